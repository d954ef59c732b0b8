"""Expandable segments: one range of addresses a pool and stream, memory mapped unit by unit.

Follows ExpandableSegment, try_allocate_expandable_block, map_block and unmap_block of
c10/cuda/CUDACachingAllocator.cpp.  Addresses cost nothing; only mapped units are reserved memory.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from memfit.allocator.blocks import FREE, UNMAPPED, Block, Pool
from memfit.allocator.rounding import SMALL_SEGMENT_BYTES
from memfit.allocator.segments import Change, Segments

_RANGE_BYTES = 1 << 40
"""Stands for the card's memory where it is not known: addresses are free, so 1 TiB will do."""


class Expandable:
    """Grows and shrinks the expandable segments among ``segments``."""

    def __init__(
        self, segments: Segments, total_bytes: int | None, large_segment_bytes: int
    ) -> None:
        self._segments = segments
        self._total_bytes = total_bytes or _RANGE_BYTES
        self._large_segment_bytes = large_segment_bytes

    def expand(self, pool: Pool, size: int, stream: int) -> Block | None:
        """A free block of at least ``size`` bytes that is in no list; None: no room to map it."""
        found = self._room_for(pool, size, stream) or self._new_range(pool, stream)
        if found.state == UNMAPPED:
            mapped = self._map(found, min(found.size, size))
            if mapped is None:
                return None
            found = mapped
        while found.size < size:
            tail = found.next
            assert tail is not None
            mapped = self._map(tail, min(size - found.size, tail.size))
            if mapped is None:
                return None
            found = mapped
        pool.remove(found)
        return found

    def release(self, block: Block) -> None:
        """Unmaps the whole units inside a free block; its edges stay free blocks."""
        unit = self._unit(block.pool)
        base = self._base(block)
        start = base + -(-(block.address - base) // unit) * unit
        end = base + (block.address + block.size - base) // unit * unit
        if end <= start:
            return
        pool = block.pool
        pool.remove(block)
        before, after = start - block.address, block.address + block.size - end
        if before:
            front = block
            block = self._split_off(front, before)
            pool.insert(front)
        if after:
            pool.insert(self._split_off(block, end - start))
        block.state = UNMAPPED
        change = Change(start, start - end, block.stream, pool.is_small, True)
        self._segments.subtract(pool, end - start, change)
        block = self._merge_unmapped(block)
        if block.prev is None and block.next is None:
            del self._segments.heads[block.address]
            self._segments.addresses.give_back(block.address, block.size)
        else:
            insort(
                pool.unmapped.setdefault(block.stream, []),
                (block.address, block),
            )

    def join_ranges(self) -> None:
        """Puts the unmapped addresses back between and behind mapped ranges of a recording.

        A recording lists mapped ranges only; those of one pool and stream are taken to be pieces
        of one range.
        """
        heads = self._segments.heads
        last: dict[tuple[bool, int], Block] = {}
        for address in sorted(heads):
            head = heads[address]
            if not head.expandable:
                continue
            key = (head.pool.is_small, head.stream)
            if key in last:
                gap = self._append_unmapped(last[key], address - _end(last[key]))
                gap.next, head.prev = head, gap
                del heads[address]
            while head.next is not None:
                head = head.next
            last[key] = head
        for block in last.values():
            self._append_unmapped(block, self._range_bytes(self._unit(block.pool)))

    def _append_unmapped(self, block: Block, num_bytes: int) -> Block:
        address = block.address + block.size
        gap = Block(
            address,
            num_bytes,
            block.rank + block.size,
            block.pool,
            block.stream,
            block,
            expandable=True,
            state=UNMAPPED,
        )
        block.next = gap
        insort(block.pool.unmapped.setdefault(block.stream, []), (address, gap))
        return gap

    def _range_bytes(self, unit: int) -> int:
        wanted = self._total_bytes + self._total_bytes // 8
        return -(-wanted // unit) * unit

    def _unit(self, pool: Pool) -> int:
        return SMALL_SEGMENT_BYTES if pool.is_small else self._large_segment_bytes

    @staticmethod
    def _base(block: Block) -> int:
        """Where the block's range begins: units count from there."""
        while block.prev is not None:
            block = block.prev
        return block.address

    @staticmethod
    def _room_for(pool: Pool, size: int, stream: int) -> Block | None:
        """The lowest place with ``size`` bytes of free or unmapped addresses in a row."""
        for _, unmapped in pool.unmapped.get(stream, []):
            before = unmapped.prev
            start = before if before is not None and before.state == FREE else unmapped
            room, block = 0, start
            while room < size:
                if block.state not in (FREE, UNMAPPED):
                    break
                room += block.size
                if block.next is None:
                    break
                block = block.next
            if room >= size:
                return start
        return None

    def _new_range(self, pool: Pool, stream: int) -> Block:
        num_bytes = self._range_bytes(self._unit(pool))
        address = self._segments.addresses.take(num_bytes)
        rank = self._segments.rank(address)
        block = Block(address, num_bytes, rank, pool, stream, expandable=True, state=UNMAPPED)
        self._segments.heads[address] = block
        insort(pool.unmapped.setdefault(stream, []), (address, block))
        return block

    def _map(self, block: Block, wanted: int) -> Block | None:
        """Maps units at the start of an unmapped block: the free block that they end up in."""
        pool = block.pool
        unit = self._unit(pool)
        num_bytes = -(-wanted // unit) * unit
        room = self._segments.room()
        if room is not None and num_bytes > room:
            return None
        entries = pool.unmapped[block.stream]
        index = bisect_left(entries, (block.address,))
        del entries[index]
        if num_bytes < block.size:
            rest = self._split_off(block, num_bytes)
            entries.insert(index, (rest.address, rest))
        block.state = FREE
        change = Change(block.address, num_bytes, block.stream, pool.is_small, True)
        self._segments.add(pool, num_bytes, change)
        block = self._merge_free(block)
        pool.insert(block)
        return block

    @staticmethod
    def _split_off(block: Block, num_bytes: int) -> Block:
        """Cuts a block after ``num_bytes``: the part behind, which is in no list."""
        rest = Block(
            block.address + num_bytes,
            block.size - num_bytes,
            block.rank + num_bytes,
            block.pool,
            block.stream,
            block,
            block.next,
            expandable=True,
            state=block.state,
        )
        if block.next is not None:
            block.next.prev = rest
        block.next = rest
        block.size = num_bytes
        return rest

    @staticmethod
    def _merge_free(block: Block) -> Block:
        """Joins a free block that is in no list with free neighbours."""
        pool = block.pool
        after = block.next
        if after is not None and after.state == FREE:
            pool.remove(after)
            _absorb_next(block)
        before = block.prev
        if before is not None and before.state == FREE:
            pool.remove(before)
            _absorb_next(before)
            block = before
        return block

    @staticmethod
    def _merge_unmapped(block: Block) -> Block:
        """Joins an unmapped block that is in no list with unmapped neighbours."""
        entries = block.pool.unmapped.get(block.stream, [])
        after = block.next
        if after is not None and after.state == UNMAPPED:
            del entries[bisect_left(entries, (after.address,))]
            _absorb_next(block)
        before = block.prev
        if before is not None and before.state == UNMAPPED:
            del entries[bisect_left(entries, (before.address,))]
            _absorb_next(before)
            block = before
        return block


def _end(block: Block) -> int:
    return block.address + block.size


def _absorb_next(block: Block) -> None:
    after = block.next
    assert after is not None
    block.size += after.size
    block.next = after.next
    if after.next is not None:
        after.next.prev = block
