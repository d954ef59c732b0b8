"""Replay: what an allocator made of a Timeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memfit.records.files import decode_column, encode_column, load_document, save_document
from memfit.records.plain import from_plain

KIND, VERSION = "replay", 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """Bytes after each event of a Timeline: requested <= allocated <= reserved.

    Raises:
        ValueError: the curves differ in length, or contradict that order.
    """

    allocator: str
    """Whose rules: ``cpu`` hands out what is asked for and keeps nothing back."""

    requested: np.ndarray
    """(E,) int64: what the tensors need."""

    allocated: np.ndarray
    """(E,) int64: the allocator's blocks handed out."""

    reserved: np.ndarray
    """(E,) int64: what the allocator holds of the device."""

    def __post_init__(self) -> None:
        curves = (self.requested, self.allocated, self.reserved)
        if any(c.dtype.name != "int64" or c.shape != (len(self.requested),) for c in curves):
            raise ValueError("the three curves must be int64 and of one length")
        if np.any(self.requested > self.allocated) or np.any(self.allocated > self.reserved):
            raise ValueError("requested <= allocated <= reserved does not hold")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Replay):
            return NotImplemented
        return self.allocator == other.allocator and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("requested", "allocated", "reserved")
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def peak_event(self) -> int:
        """The first event at which the most bytes are allocated; -1 when there is none."""
        return int(np.argmax(self.allocated)) if len(self.allocated) else -1

    @property
    def peak_requested_bytes(self) -> int:
        return int(self.requested.max(initial=0))

    @property
    def peak_allocated_bytes(self) -> int:
        return int(self.allocated.max(initial=0))

    @property
    def peak_reserved_bytes(self) -> int:
        return int(self.reserved.max(initial=0))

    @property
    def fragmentation_bytes(self) -> int:
        """Reserved but not handed out, at the moment the most is reserved."""
        if not len(self.reserved):
            return 0
        moment = int(np.argmax(self.reserved))
        return int(self.reserved[moment] - self.allocated[moment])

    def save(self, path: Path, *, force: bool = False) -> None:
        """Writes the replay as one versioned file."""
        body = {
            "allocator": self.allocator,
            "columns": {
                name: encode_column(getattr(self, name))
                for name in ("requested", "allocated", "reserved")
            },
        }
        save_document(path, KIND, VERSION, body, force=force)

    @classmethod
    def load(cls, path: Path) -> Replay:
        """Reads a replay; raises BadInput or DamagedFile."""
        return load_document(path, KIND, VERSION, cls._from_document)

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> Replay:
        encoded = document["columns"]
        curves = {
            name: decode_column(encoded[name], "int64")
            for name in ("requested", "allocated", "reserved")
        }
        return from_plain(cls, {"allocator": document["allocator"], **curves})
