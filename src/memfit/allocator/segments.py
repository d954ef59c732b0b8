"""What the allocator holds of the device: taking segments from the driver and giving them back.

Follows alloc_block, release_block, release_cached_blocks, release_available_cached_blocks and
garbage_collect_cached_blocks of c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from memfit.allocator.addresses import Addresses
from memfit.allocator.blocks import ALLOCATED, FREE, UNMAPPED, Block, Pool
from memfit.allocator.journal import Counter
from memfit.allocator.version import TorchVersion
from memfit.records.segments import Segment

_AGE_RANK = 1 << 64
"""Above every address: from torch 2.13 on a block's rank is its segment's age, then its address."""


class Change(NamedTuple):
    """A segment, or a mapped range of an expandable one, came or went."""

    address: int
    num_bytes: int
    """Negative when it went."""

    stream: int
    is_small: bool
    is_expandable: bool


class Segments:
    """The segments of both pools, and the room that is left for more."""

    def __init__(
        self,
        pools: tuple[Pool, Pool],
        version: TorchVersion,
        max_split: int,
        capacity_bytes: int | None,
        addresses: Addresses,
    ) -> None:
        self.pools = pools
        """The small one, the large one."""

        self.reserved = Counter()
        """Bytes of both pools."""

        self.num_segments = Counter()
        """Of both pools; expandable ones are not counted."""

        self.heads: dict[int, Block] = {}
        """The first block of every segment, and of every expandable segment's range."""

        self.capacity_bytes = capacity_bytes
        self.limit_bytes: int | None = None
        """What the process may reserve; None: as much as there is."""

        self.changes: list[Change] = []
        """What came and went, in order."""

        self.addresses = addresses
        self.oversize = Counter()
        """Segments of at least ``max_split`` bytes."""

        self.max_split = max_split
        self.num_device_alloc = 0
        self.num_device_free = 0
        self._ages = version >= (2, 13)
        self._num_backings = 0

    def rank(self, address: int) -> int:
        """The rank of a new backing allocation's first block."""
        self._num_backings += 1
        return address + self._ages * self._num_backings * _AGE_RANK

    def room(self) -> int | None:
        """Bytes that the driver can still give; None: any."""
        if self.capacity_bytes is None:
            return None
        return self.capacity_bytes - self.reserved.current

    def within_limit(self, num_bytes: int) -> bool:
        """Whether the process may reserve ``num_bytes`` more."""
        return self.limit_bytes is None or self.reserved.current + num_bytes <= self.limit_bytes

    def new(self, pool: Pool, num_bytes: int, stream: int) -> Block | None:
        """A segment as one free block that is in no list yet; None: the driver has no room."""
        room = self.room()
        if room is not None and num_bytes > room:
            return None
        address = self.addresses.take(num_bytes)
        self.add(pool, num_bytes, Change(address, num_bytes, stream, pool.is_small, False))
        block = Block(address, num_bytes, self.rank(address), pool, stream)
        self.heads[address] = block
        if num_bytes >= self.max_split:
            self.oversize.add(1)
        return block

    def restore(self, pool: Pool, segment: Segment) -> list[Block]:
        """A recorded segment's blocks; the free ones are in no list yet."""
        pool.free.setdefault(segment.stream, [])
        rank = self.rank(segment.address)
        blocks: list[Block] = []
        for piece in segment.blocks:
            block = Block(
                segment.address + piece.offset,
                piece.num_bytes,
                rank + piece.offset,
                pool,
                segment.stream,
                blocks[-1] if blocks else None,
                expandable=segment.is_expandable,
                state=FREE if piece.block < 0 else ALLOCATED,
            )
            block.requested, block.number = piece.requested_bytes, piece.block
            if blocks:
                blocks[-1].next = block
            blocks.append(block)
        self.heads[segment.address] = blocks[0]
        held = Change(
            segment.address,
            segment.num_bytes,
            segment.stream,
            segment.is_small,
            segment.is_expandable,
        )
        self.add(pool, segment.num_bytes, held)
        if segment.num_bytes >= self.max_split and not segment.is_expandable:
            self.oversize.add(1)
        return blocks

    def add(self, pool: Pool, num_bytes: int, change: Change) -> None:
        """Counts memory that the driver gave."""
        self.num_device_alloc += 1
        self.changes.append(change)
        self._count(pool, num_bytes, not change.is_expandable)

    def subtract(self, pool: Pool, num_bytes: int, change: Change) -> None:
        """Counts memory that went back to the driver."""
        self.num_device_free += 1
        self.changes.append(change)
        self._count(pool, -num_bytes, -(not change.is_expandable))

    def _count(self, pool: Pool, num_bytes: int, num_segments: int) -> None:
        for reserved in (pool.reserved, self.reserved):
            reserved.add(num_bytes)
        for segments in (pool.segments, self.num_segments):
            segments.add(num_segments)

    def reset_peaks(self) -> None:
        """Every peak becomes the value of now."""
        for counter in (self.reserved, self.num_segments, self.oversize):
            counter.reset_peak()
        for pool in self.pools:
            pool.reserved.reset_peak()
            pool.segments.reset_peak()

    def put(self, stats: dict[str, int]) -> None:
        """Enters what is held of the driver under PyTorch's names."""
        small, large = self.pools
        for name, reserved, segments in (
            ("all", self.reserved, self.num_segments),
            ("small_pool", small.reserved, small.segments),
            ("large_pool", large.reserved, large.segments),
        ):
            reserved.put(stats, f"reserved_bytes.{name}")
            segments.put(stats, f"segment.{name}")
        self.oversize.put(stats, "oversize_segments")
        stats["num_device_alloc"] = self.num_device_alloc
        stats["num_device_free"] = self.num_device_free

    def release(self, block: Block) -> None:
        """Gives a whole free segment back."""
        block.pool.remove(block)
        del self.heads[block.address]
        self.addresses.give_back(block.address, block.size)
        change = Change(block.address, -block.size, block.stream, block.pool.is_small, False)
        self.subtract(block.pool, block.size, change)
        if block.size >= self.max_split:
            self.oversize.add(-1)

    def release_oversize(self, pool: Pool, stream: int, size: int) -> bool:
        """Gives back the smallest free segment that would do, or large ones until they sum up.

        Only segments that ``max_split_size_mb`` keeps whole are looked at.
        """
        wanted = max(size, self.max_split)
        entries = pool.free.get(stream, [])
        start = bisect_left(entries, (wanted,))
        for _, _, block in entries[start:]:
            if not block.expandable:
                self.release(block)
                return True
        released = 0
        for block_bytes, _, block in reversed(entries[:start]):
            if released >= wanted or block_bytes < self.max_split:
                break
            if not block.expandable:
                self.release(block)
                released += block_bytes
        return released >= wanted

    def whole_free_segments(self, pool: Pool) -> list[Block]:
        """Free blocks that are a whole segment, of every stream."""
        return [
            block
            for stream in sorted(pool.free)
            for _, _, block in pool.free[stream]
            if block.prev is None and block.next is None and not block.expandable
        ]

    def expandable_free_blocks(self, pool: Pool) -> list[Block]:
        """Free blocks of expandable segments, of every stream."""
        return [
            block
            for stream in sorted(pool.free)
            for _, _, block in pool.free[stream]
            if block.expandable
        ]

    def collect_garbage(self, pool: Pool, threshold: float) -> None:
        """Gives back free large segments, the longest unused first, down to the threshold.

        Args:
            threshold: share of ``limit_bytes``.
        """
        assert self.limit_bytes is not None
        excess = self.reserved.current - int(threshold * self.limit_bytes)
        candidates = self.whole_free_segments(pool)
        while excess > 0 and candidates:
            # A round goes on when enough is released: it should not be needed again at once.
            total_age = sum(pool.searches - block.born for block in candidates)
            mean_age = total_age / len(candidates)
            for block in candidates:
                if pool.searches - block.born >= mean_age:
                    excess -= block.size
                    self.release(block)
            candidates = [block for block in candidates if block.address in self.heads]

    def chains(self) -> Iterator[list[Block]]:
        """Runs of blocks with memory behind them, by address: a segment each."""
        for address in sorted(self.heads):
            run: list[Block] = []
            block: Block | None = self.heads[address]
            while block is not None:
                if block.state != UNMAPPED:
                    run.append(block)
                elif run:
                    yield run
                    run = []
                block = block.next
            if run:
                yield run
