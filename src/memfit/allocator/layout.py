"""Layout: segments and the blocks in use, apart from the allocator that made them.

What lies between the blocks in use of a segment is free, since the allocator joins free
neighbours at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, replace

from memfit.records.segments import Segment, SegmentBlock


@dataclass(frozen=True, slots=True)
class Held:
    """A segment, or a mapped range of an expandable one."""

    num_bytes: int
    stream: int
    is_small: bool
    is_expandable: bool


class Layout:
    """Segments come and go; the blocks in use are kept by their addresses."""

    def __init__(self) -> None:
        self.held: dict[int, Held] = {}
        """By address."""

        self.starts: list[int] = []
        """The addresses, sorted."""

        self.used: dict[int, tuple[int, int]] = {}
        """Address -> (bytes of the block, bytes asked for)."""

    def add(self, address: int, held: Held) -> None:
        """A segment of its own; a mapped range joins those that it touches.

        Raises:
            ValueError: there is one already, or it has no bytes.
        """
        if held.num_bytes <= 0 or address in self.held:
            raise ValueError(f"a segment of {held.num_bytes} bytes at {address:#x} cannot be added")
        if held.is_expandable:
            index = bisect_left(self.starts, address)
            for place in self.starts[max(index - 1, 0) : index + 1]:
                other = self.held[place]
                touches = place + other.num_bytes == address or address + held.num_bytes == place
                if touches and replace(other, num_bytes=held.num_bytes) == held:
                    self._drop(place)
                    address = min(address, place)
                    held = replace(held, num_bytes=held.num_bytes + other.num_bytes)
        self.held[address] = held
        insort(self.starts, address)

    def remove(self, address: int, num_bytes: int) -> None:
        """A segment is gone, or a range out of the middle of an expandable one.

        Raises:
            ValueError: it is not there.
        """
        start = self.around(address)
        held = self.held[start]
        before, after = address - start, start + held.num_bytes - address - num_bytes
        if after < 0 or ((before or after) and not held.is_expandable):
            raise ValueError(f"there is no segment of {num_bytes} bytes at {address:#x}")
        self._drop(start)
        for place, size in ((start, before), (address + num_bytes, after)):
            if size:
                self.held[place] = replace(held, num_bytes=size)
                insort(self.starts, place)

    def around(self, address: int) -> int:
        """The start of the segment that holds ``address``; raises ValueError."""
        index = bisect_right(self.starts, address) - 1
        start = self.starts[index] if index >= 0 else -1
        if index < 0 or address >= start + self.held[start].num_bytes:
            raise ValueError(f"no segment holds the block at {address:#x}")
        return start

    def segments(self, numbers: Mapping[int, int]) -> tuple[Segment, ...]:
        """The layout as records, by address.

        Args:
            numbers: address -> number of each block in use.
        """
        used = sorted(self.used)
        return tuple(self._record(address, used, numbers) for address in self.starts)

    def _record(self, address: int, used: list[int], numbers: Mapping[int, int]) -> Segment:
        held = self.held[address]
        end = address + held.num_bytes
        blocks: list[SegmentBlock] = []
        at = address
        for place in used[bisect_left(used, address) : bisect_left(used, end)]:
            size, requested = self.used[place]
            if place > at:
                blocks.append(_free(at - address, place - at))
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
            blocks.append(_free(at - address, end - at))
        return Segment(
            address=address,
            num_bytes=held.num_bytes,
            stream=held.stream,
            is_small=held.is_small,
            is_expandable=held.is_expandable,
            blocks=tuple(blocks),
        )

    def _drop(self, start: int) -> None:
        del self.held[start]
        del self.starts[bisect_left(self.starts, start)]


def _free(offset: int, num_bytes: int) -> SegmentBlock:
    return SegmentBlock(offset=offset, num_bytes=num_bytes, requested_bytes=0, block=-1)
