"""Replay: what an allocator made of a Timeline."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from memfit.records.files import decode_column, encode_column, load_document, save_document
from memfit.records.plain import from_plain
from memfit.records.segments import Segment, SegmentBlock, decode_segments, encode_segments

__all__ = ["Replay", "Segment", "SegmentBlock"]

KIND, VERSION = "replay", 2
"""Version 1 held the allocator and the three curves only."""

_CURVES = ("requested", "allocated", "reserved")


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """Bytes after each event of a Timeline: requested <= allocated <= reserved.

    Raises:
        ValueError: the curves differ in length, or contradict that order.
    """

    allocator: str
    """Whose rules: ``cpu`` hands out what is asked for and keeps nothing back; ``cuda 2.11`` is
    PyTorch's caching allocator of that release."""

    requested: np.ndarray
    """(E,) int64: what the tensors need."""

    allocated: np.ndarray
    """(E,) int64: the allocator's blocks handed out."""

    reserved: np.ndarray
    """(E,) int64: what the allocator holds of the device."""

    block_bytes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(B,) int64: the size of the block that each allocation got, 0 where it got none; empty
    where it is not known."""

    segments: tuple[Segment, ...] = ()
    """The layout after ``peak_event``, by address; empty where there are no segments."""

    out_of_memory_event: int = -1
    """The event whose allocation failed, -1 when none did.  From there on the curves stay."""

    num_alloc_retries: int = 0
    """How often the driver had no room until cached memory was given back."""

    def __post_init__(self) -> None:
        curves = (self.requested, self.allocated, self.reserved)
        if any(c.dtype.name != "int64" or c.shape != (len(self.requested),) for c in curves):
            raise ValueError("the three curves must be int64 and of one length")
        if np.any(self.requested > self.allocated) or np.any(self.allocated > self.reserved):
            raise ValueError("requested <= allocated <= reserved does not hold")
        if self.block_bytes.dtype.name != "int64" or self.block_bytes.ndim != 1:
            raise ValueError("block_bytes must be one int64 a block")
        if not -1 <= self.out_of_memory_event < max(len(self.requested), 1):
            raise ValueError(f"there is no event {self.out_of_memory_event} to run out of memory")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Replay):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name))
            if isinstance(getattr(self, f.name), np.ndarray)
            else getattr(self, f.name) == getattr(other, f.name)
            for f in fields(self)
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
        """Reserved but not handed out, at the fullest moment while the most is reserved.

        Most of a run is at its highest reserved bytes, with caches that are full or empty.
        """
        idle = (self.reserved - self.allocated)[self.reserved == self.peak_reserved_bytes]
        return int(idle.min()) if len(idle) else 0

    def save(self, path: Path, *, force: bool = False) -> None:
        """Writes the replay as one versioned file."""
        columns = {name: encode_column(getattr(self, name)) for name in (*_CURVES, "block_bytes")}
        body = {
            "allocator": self.allocator,
            "segments": encode_segments(self.segments),
            "out_of_memory_event": self.out_of_memory_event,
            "num_alloc_retries": self.num_alloc_retries,
            "columns": columns,
        }
        save_document(path, KIND, VERSION, body, force=force)

    @classmethod
    def load(cls, path: Path) -> Replay:
        """Reads a replay; raises BadInput or DamagedFile."""
        return load_document(path, KIND, VERSION, cls._from_document)

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> Replay:
        columns = document["columns"]
        names: tuple[str, ...] = _CURVES
        values: dict[str, Any] = {"allocator": document["allocator"]}
        if document["version"] > 1:
            names = (*_CURVES, "block_bytes")
            values["segments"] = decode_segments(document["segments"])
            for name in ("out_of_memory_event", "num_alloc_retries"):
                values[name] = document[name]
        curves = {name: decode_column(columns[name], "int64") for name in names}
        return from_plain(cls, {**values, **curves})
