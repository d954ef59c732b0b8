"""OutOfMemory: an allocation that the device has no room for, and the state at that moment."""

from __future__ import annotations

from collections.abc import Mapping

from memfit.errors import MemfitError
from memfit.records.segments import Segment
from memfit.units import format_size


class OutOfMemory(MemfitError):
    """What ``torch.cuda.OutOfMemoryError`` is on a GPU."""

    exit_code = 3

    def __init__(
        self,
        *,
        requested_bytes: int,
        segment_bytes: int,
        capacity_bytes: int | None,
        free_bytes: int | None,
        stats: Mapping[str, int],
        segments: tuple[Segment, ...],
    ) -> None:
        self.requested_bytes = requested_bytes
        """What was asked for."""

        self.segment_bytes = segment_bytes
        """What the driver was asked for."""

        self.capacity_bytes = capacity_bytes
        """Room for segments on the device; None: not limited."""

        self.free_bytes = free_bytes
        """What the driver could still give."""

        self.stats = stats
        """``torch.cuda.memory_stats()`` at that moment."""

        self.segments = segments
        """The layout at that moment."""

        allocated = stats["allocated_bytes.all.current"]
        reserved = stats["reserved_bytes.all.current"]
        room = (
            f" of a room of {format_size(capacity_bytes)} {format_size(free_bytes)} is free;"
            if capacity_bytes is not None and free_bytes is not None
            else " the process's share of the device is used up;"
        )
        super().__init__(
            f"CUDA out of memory: tried to allocate {format_size(segment_bytes)} for a request of "
            f"{requested_bytes:,} bytes;{room} {format_size(allocated)} is allocated by PyTorch, "
            f"and {format_size(reserved - allocated)} is reserved by PyTorch but unallocated"
        )
