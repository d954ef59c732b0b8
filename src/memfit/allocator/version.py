"""TorchVersion: which release's rules apply.

The allocator's rules changed a little from release to release; a rule that did names the first
release that has it, and compares with ``>=``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from memfit.errors import BadInput

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.\d+)?(?:[a-z]+\d*)?(?:\.dev\d+)?(?:\+[\w.]+)?")


class TorchVersion(NamedTuple):
    """A release of PyTorch, without its patch number: 2.11 comes after 2.9."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> TorchVersion:
        """The version of ``2.11``, ``2.11.0`` or ``2.11.0+cu128``.

        Raises:
            BadInput: the text is not a version, or its rules are not known here.
        """
        match = _VERSION.fullmatch(text.strip())
        if match is None:
            raise BadInput(
                f"{text!r:.40} is not a version of PyTorch: write for example {NEWEST} or "
                f"{NEWEST}.1+cu130"
            )
        version = cls(int(match[1]), int(match[2]))
        if not OLDEST <= version <= NEWEST:
            raise BadInput(
                f"the memory rules of PyTorch {version} are not known: choose a version from "
                f"{OLDEST} to {NEWEST}"
            )
        return version

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


OLDEST = TorchVersion(2, 6)
NEWEST = TorchVersion(2, 14)
