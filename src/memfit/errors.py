"""Every error memfit raises on purpose, in one small tree, and its one warning.

    MemfitError                what a user can cause; the command line prints it and exits with 2
    ├── BadInput (ValueError)  an argument, a file or a model that cannot be used
    │   ├── UnknownName        a name that is not in a list; carries the nearest ones
    │   └── DamagedFile        a file that is not what it says, or is from a newer memfit
    ├── DoesNotFit             even the smallest run that would do is too large; exits with 3
    ├── OutOfMemory            a run ran out of memory and cannot go on; exits with 3
    └── MissingExtra           an optional package is not installed; names the extra

    MemfitWarning (UserWarning)  no error: it goes on, otherwise than one may expect

A message says what happened with the numbers, why it cannot be, and what to write instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MemfitError(Exception):
    """Anything that memfit refuses; ``exit_code`` is what the command line returns."""

    exit_code = 2


class BadInput(MemfitError, ValueError):
    """An argument, a file or a model that cannot be used."""


class UnknownName(BadInput):
    """A name that is not in a list of known names.

    The message offers the nearest known names, and where to see all of them.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], see: str) -> None:
        nearest = difflib.get_close_matches(name.lower(), list(known), n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(nearest)}; " if nearest else ""
        super().__init__(f"no {what} is called {name!r} ({hint}{see})")
        self.nearest = nearest


class DamagedFile(BadInput):
    """A file that is not what it says, is cut short, or was written by a newer memfit."""


class DoesNotFit(MemfitError):
    """No choice inside the asked limits fits the budget.

    ``smallest_bytes`` is the peak of the smallest run that was tried, in bytes.
    """

    exit_code = 3

    def __init__(self, message: str, smallest_bytes: int) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes


class OutOfMemory(MemfitError):
    """A run ran out of memory, and nothing smaller is left to try."""

    exit_code = 3


class MissingExtra(MemfitError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed: "
            f"pip install 'memfit[{extra}]'"
        )


class MemfitWarning(UserWarning):
    """What was asked is done otherwise than one may expect; the command line prints a note."""
