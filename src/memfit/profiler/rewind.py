"""Undoes what an allocator did, event by event, from the layout at the end.

Only the blocks in use are kept; what lies between them in a segment is free, since the allocator
joins free neighbours at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, replace

from memfit.allocator.rounding import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES, round_size
from memfit.records.segments import Segment, SegmentBlock
from memfit.units import MiB


@dataclass(frozen=True, slots=True)
class _Held:
    num_bytes: int
    stream: int
    is_small: bool
    is_expandable: bool


class Layout:
    """Segments, and the blocks in use."""

    def __init__(self) -> None:
        self._segments: dict[int, _Held] = {}
        self._starts: list[int] = []
        self._used: list[int] = []
        self.blocks: dict[int, tuple[int, int]] = {}
        """Address -> (bytes of the block, bytes asked for)."""

    def copy(self) -> Layout:
        """The same layout, apart from this one."""
        other = Layout()
        other._segments = dict(self._segments)
        other._starts = sorted(self._segments)
        other.blocks = dict(self.blocks)
        other._used = sorted(self.blocks)
        return other

    def add_segment(
        self, address: int, num_bytes: int, *, stream: int, is_small: bool, is_expandable: bool
    ) -> None:
        """A segment that nothing uses yet."""
        if num_bytes <= 0 or address in self._segments:
            raise ValueError(f"a segment of {num_bytes} bytes at {address:#x} cannot be added")
        self._segments[address] = _Held(num_bytes, stream, is_small, is_expandable)
        insort(self._starts, address)

    def undo(self, action: str, address: int, num_bytes: int, stream: int) -> None:
        """The layout before an event.

        Raises:
            ValueError: the event cannot have led to this layout.
        """
        if action == "alloc":
            if self.blocks.pop(address, None) is None:
                raise ValueError(f"no block begins at {address:#x}")
            del self._used[bisect_left(self._used, address)]
        elif action == "free_completed":
            self.blocks[address] = (self._size_of_freed(address, num_bytes), num_bytes)
            insort(self._used, address)
        elif action == "segment_alloc":
            self._remove(address, num_bytes)
        elif action == "segment_free":
            self.add_segment(
                address,
                num_bytes,
                stream=stream,
                is_small=num_bytes == SMALL_SEGMENT_BYTES,
                is_expandable=False,
            )
        elif action == "segment_map":
            self._unmap(address, num_bytes)
        elif action == "segment_unmap":
            self._map(address, num_bytes, stream)

    def number_blocks(self) -> dict[int, int]:
        """Address -> number of the blocks in use, by address."""
        return {address: number for number, address in enumerate(sorted(self.blocks))}

    def segments(self, numbers: Mapping[int, int]) -> tuple[Segment, ...]:
        """The layout as records, by address."""
        used = sorted(self.blocks)
        return tuple(self._record(address, used, numbers) for address in sorted(self._segments))

    def _record(self, address: int, used: list[int], numbers: Mapping[int, int]) -> Segment:
        held = self._segments[address]
        end = address + held.num_bytes
        blocks: list[SegmentBlock] = []
        at = address
        for place in used[bisect_left(used, address) : bisect_left(used, end)]:
            size, requested = self.blocks[place]
            if place > at:
                blocks.append(_free_block(at - address, place - at))
            blocks.append(
                SegmentBlock(
                    offset=place - address,
                    num_bytes=size,
                    requested_bytes=requested,
                    block=numbers[place],
                )
            )
            at = place + size
        if at < end:
            blocks.append(_free_block(at - address, end - at))
        return Segment(
            address=address,
            num_bytes=held.num_bytes,
            stream=held.stream,
            is_small=held.is_small,
            is_expandable=held.is_expandable,
            blocks=tuple(blocks),
        )

    def _around(self, address: int) -> int:
        """The start of the segment that holds ``address``."""
        index = bisect_right(self._starts, address) - 1
        start = self._starts[index] if index >= 0 else -1
        if index < 0 or address >= start + self._segments[start].num_bytes:
            raise ValueError(f"no segment holds the block at {address:#x}")
        return start

    def _size_of_freed(self, address: int, num_bytes: int) -> int:
        """The block's size before it was freed.

        The event says what was asked for.  In the large pool up to 1 MiB more is left unsplit, so
        a gap of that size before the next block was part of the block, or was of no use to anyone.
        """
        start = self._around(address)
        held = self._segments[start]
        size = round_size(num_bytes)
        index = bisect_right(self._used, address)
        end = start + held.num_bytes
        if index < len(self._used):
            end = min(end, self._used[index])
        gap = end - address - size
        if gap < 0 or address in self.blocks:
            raise ValueError(f"there is no room for the block of {num_bytes} bytes at {address:#x}")
        if held.is_small or held.is_expandable or gap > MiB:
            return size
        return size + gap

    def _remove(self, address: int, num_bytes: int) -> None:
        held = self._segments.get(address)
        index = bisect_left(self._used, address)
        if held is None or held.num_bytes != num_bytes:
            raise ValueError(f"no segment of {num_bytes} bytes begins at {address:#x}")
        if index < len(self._used) and self._used[index] < address + num_bytes:
            raise ValueError(f"the segment at {address:#x} was in use before it was there")
        del self._segments[address]
        del self._starts[bisect_left(self._starts, address)]

    def _unmap(self, address: int, num_bytes: int) -> None:
        """Cuts a range out of an expandable segment."""
        start = self._around(address)
        held = self._segments[start]
        before, after = address - start, start + held.num_bytes - address - num_bytes
        if after < 0:
            raise ValueError(f"{num_bytes} bytes at {address:#x} are not mapped")
        del self._segments[start]
        del self._starts[bisect_left(self._starts, start)]
        for place, size in ((start, before), (address + num_bytes, after)):
            if size:
                self._segments[place] = replace(held, num_bytes=size)
                insort(self._starts, place)

    def _map(self, address: int, num_bytes: int, stream: int) -> None:
        """Adds a range to the expandable segments that it touches."""
        start, size = address, num_bytes
        is_small = bool(num_bytes % LARGE_SEGMENT_BYTES)
        index = bisect_left(self._starts, address)
        neighbours = self._starts[max(index - 1, 0) : index + 1]
        for place in neighbours:
            held = self._segments[place]
            touches = place + held.num_bytes == address or place == address + num_bytes
            if touches and held.is_expandable and held.stream == stream:
                start, size = min(start, place), size + held.num_bytes
                is_small = held.is_small
                del self._segments[place]
                self._starts.remove(place)
        self.add_segment(start, size, stream=stream, is_small=is_small, is_expandable=True)


def _free_block(offset: int, num_bytes: int) -> SegmentBlock:
    return SegmentBlock(offset=offset, num_bytes=num_bytes, requested_bytes=0, block=-1)
