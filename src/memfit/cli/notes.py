"""What is said beside the answer: memfit's warnings as plain notes, and no library's small talk.

For the command line only, whose process is ours: a library does not touch its user's logging.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any, TextIO

from memfit.errors import MemfitWarning


@contextlib.contextmanager
def plain_notes() -> Iterator[None]:
    """Inside, a warning of memfit's is one line on stderr, once; all others stay as they are."""
    told: set[str] = set()

    with warnings.catch_warnings(), _without_small_talk():
        show = warnings.showwarning

        def tell(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not issubclass(category, MemfitWarning):
                show(message, category, filename, lineno, file, line)
            elif str(message) not in told:
                told.add(str(message))
                print(f"note: {message}", file=sys.stderr)

        warnings.simplefilter("always", MemfitWarning)
        warnings.showwarning = tell
        yield


@contextlib.contextmanager
def _without_small_talk() -> Iterator[None]:
    """transformers imports torchao where it is installed, for any model that it builds.

    torchao then logs which of its kernels for GPUs do not suit this PyTorch, none of which memfit
    calls, and has PyTorch log that torchao's own code is out of date (torchao 0.18, torch 2.13).
    """
    filters = {"torchao": _is_no_missing_kernel, "torch.utils._pytree": _is_not_of_torchao}
    for name, filter_ in filters.items():
        logging.getLogger(name).addFilter(filter_)
    try:
        yield
    finally:
        for name, filter_ in filters.items():
            logging.getLogger(name).removeFilter(filter_)


def _is_no_missing_kernel(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    return not (message.startswith("Failed to load ") and "/torchao/_C" in message)


def _is_not_of_torchao(record: logging.LogRecord) -> bool:
    named: Any = record.args
    is_theirs = isinstance(named, tuple) and any(
        getattr(value, "__module__", "").startswith("torchao.") for value in named
    )
    return not (is_theirs and "is an Enum subclass" in record.getMessage())
