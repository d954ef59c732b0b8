"""Undoes what an allocator did, event by event, from the layout at the end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from memfit.allocator.layout import Held, Layout
from memfit.allocator.rounding import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES, round_size
from memfit.units import MiB


class Rewind(Layout):
    """A layout that goes back in time.  Starts as a copy of ``end``."""

    def __init__(self, end: Layout) -> None:
        super().__init__()
        self.held = dict(end.held)
        self.starts = list(end.starts)
        self.used = dict(end.used)
        self._places = sorted(end.used)

    def undo(self, action: str, address: int, num_bytes: int, stream: int) -> None:
        """The layout before an event.

        Raises:
            ValueError: the event cannot have led to this layout.
        """
        if action == "alloc":
            if self.used.pop(address, None) is None:
                raise ValueError(f"no block begins at {address:#x}")
            del self._places[bisect_left(self._places, address)]
        elif action == "free_completed":
            self.used[address] = (self._size_of_freed(address, num_bytes), num_bytes)
            insort(self._places, address)
        elif action in ("segment_alloc", "segment_map"):
            index = bisect_left(self._places, address)
            if index < len(self._places) and self._places[index] < address + num_bytes:
                raise ValueError(f"the segment at {address:#x} was in use before it was there")
            self.remove(address, num_bytes)
        elif action == "segment_free":
            self.add(address, Held(num_bytes, stream, num_bytes == SMALL_SEGMENT_BYTES, False))
        elif action == "segment_unmap":
            self.add(address, Held(num_bytes, stream, self._maps_small(address, num_bytes), True))

    def number_blocks(self) -> dict[int, int]:
        """Address -> number of the blocks in use, by address."""
        return {address: number for number, address in enumerate(self._places)}

    def _size_of_freed(self, address: int, num_bytes: int) -> int:
        """The block's size before it was freed.

        The event says what was asked for.  In the large pool up to 1 MiB more is left unsplit, so
        a gap of that size before the next block was part of the block, or was of no use to anyone.
        """
        start = self.around(address)
        held = self.held[start]
        size = round_size(num_bytes)
        index = bisect_right(self._places, address)
        end = start + held.num_bytes
        if index < len(self._places):
            end = min(end, self._places[index])
        gap = end - address - size
        if gap < 0 or address in self.used:
            raise ValueError(f"there is no room for the block of {num_bytes} bytes at {address:#x}")
        if held.is_small or held.is_expandable or gap > MiB:
            return size
        return size + gap

    def _maps_small(self, address: int, num_bytes: int) -> bool:
        """Whether a mapped range was of the small pool: as the ones that it touches, if any."""
        index = bisect_left(self.starts, address)
        for place in self.starts[max(index - 1, 0) : index + 1]:
            held = self.held[place]
            touches = place + held.num_bytes == address or address + num_bytes == place
            if touches and held.is_expandable:
                return held.is_small
        return bool(num_bytes % LARGE_SEGMENT_BYTES)
