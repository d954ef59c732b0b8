"""PyTorch's native CUDA caching allocator, without CUDA.

A request is rounded (``rounding``), served from the best fitting free block of its pool and
stream, and split when enough is left over; a freed block is joined with its free neighbours and
kept.  Only when nothing fits is the driver asked for a segment (``segments``, ``expandable``).

Follows DeviceCachingAllocator of c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.14, outside
graph capture and private pools.  Blocks, segments and statistics are the same to the byte; what is
not known without the card is where the driver puts segments (``addresses``).
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from memfit.allocator.addresses import Addresses
from memfit.allocator.addresses import addresses as addresses_of
from memfit.allocator.blocks import ALLOCATED, FREE, PENDING, UNMAPPED, Block, Counts, Pool, Tally
from memfit.allocator.expandable import Expandable
from memfit.allocator.out_of_memory import OutOfMemory
from memfit.allocator.rounding import (
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    round_size,
    segment_bytes,
)
from memfit.allocator.segments import Segments
from memfit.allocator.settings import Settings
from memfit.allocator.statistics import add_totals, group_statistics, put_tally
from memfit.allocator.version import TorchVersion
from memfit.records.segments import Segment, SegmentBlock

_LARGE_SPLIT_BYTES = SMALL_BYTES + 1
"""A block of the large pool is split when more than 1 MiB is left over."""


class CachingAllocator:
    """One GPU's allocator.

    ``malloc`` and ``free`` speak of addresses; ``take`` and ``give`` do the same with blocks, for
    callers that can keep them.

    Args:
        version: whose rules.
        capacity_bytes: room for segments on the device; None: unlimited.
        addresses: where the driver puts segments: a policy's name, or addresses of your own.
        total_bytes: the device's memory, for ``per_process_memory_fraction``.
        waits_for_streams: when the use of a block by another stream (``record_stream``) ends,
            which only a clock could tell: True, at the next ``synchronize``; False, at once.
    """

    def __init__(
        self,
        *,
        version: TorchVersion,
        settings: Settings = Settings(),  # noqa: B008  # frozen
        capacity_bytes: int | None = None,
        addresses: str | Addresses = "ascending",
        total_bytes: int | None = None,
        waits_for_streams: bool = True,
    ) -> None:
        places = addresses_of(addresses) if isinstance(addresses, str) else addresses
        expandable = settings.expandable_segments
        large_split = MIN_BLOCK_BYTES if expandable else _LARGE_SPLIT_BYTES
        self.version = version
        self.settings = settings
        self._small = Pool(is_small=True, split_from=MIN_BLOCK_BYTES)
        self._large = Pool(is_small=False, split_from=large_split)
        self._max_split = settings.max_split_size_bytes or sys.maxsize
        self._held = Segments(
            (self._small, self._large), version, self._max_split, capacity_bytes, places
        )
        self.total = self._held.total
        self._total_bytes = total_bytes
        self._expandable = (
            Expandable(self._held, total_bytes, settings.large_segment_bytes)
            if expandable
            else None
        )
        self._divisions = settings.roundup_power2_divisions
        self._split_below = sys.maxsize if expandable else self._max_split
        self._collects = False
        self._can_take_any = not expandable and settings.max_split_size_bytes is None
        self._fits_any = self._can_take_any
        """Whether the smallest free block that is large enough is always the one to take."""

        self._spare: list[Block] = []
        """Blocks that were joined with others: objects to use again."""

        self._num_mallocs = 0
        self._live: dict[int, Block] = {}
        self._uses: dict[Block, set[int]] = {}
        self._waits_for_streams = waits_for_streams
        self._waiting: list[Block] = []
        self._finished: list[Block] = []
        self._oversize = Tally()
        self._num_alloc_retries = self._num_ooms = self._num_sync_all_streams = 0
        self._num_oom_rejections = 0
        if settings.per_process_memory_fraction < 1:
            self.set_memory_fraction(settings.per_process_memory_fraction)

    # ---- what torch.cuda offers ----

    def malloc(self, num_bytes: int, stream: int = 0) -> int:
        """The address of a new block, 0 for 0 bytes.

        Raises:
            OutOfMemory: the device has no room, also after cached memory was given back.
        """
        if num_bytes <= 0:
            if num_bytes < 0:
                raise ValueError(f"cannot allocate {num_bytes} bytes")
            return 0
        block = self.take(num_bytes, stream)
        block.number = self._num_mallocs
        self._num_mallocs += 1
        self._live[block.address] = block
        return block.address

    def free(self, address: int) -> None:
        """Frees the block at ``address``; nothing happens for 0."""
        if address:
            self.give(self._live.pop(address))

    def record_stream(self, address: int, stream: int) -> None:
        """Says that ``stream`` uses the block too: freeing it waits for that stream."""
        if address:
            block = self._live[address]
            if stream != block.stream:
                self._uses.setdefault(block, set()).add(stream)

    def synchronize(self) -> None:
        """All streams have done what was asked of them."""
        self._finished += self._waiting
        self._waiting.clear()

    def empty_cache(self) -> None:
        """Gives every segment that is wholly free back to the driver."""
        self._release_cached()

    def reset_peak(self) -> None:
        """``torch.cuda.reset_peak_memory_stats()``."""
        for counts in (self.total, self._small.counts, self._large.counts):
            counts.reset_peaks()
        for tally in (self._oversize, self._held.oversize):
            tally.peak = tally.current

    def set_memory_fraction(self, fraction: float) -> None:
        """``torch.cuda.set_per_process_memory_fraction(fraction)``.

        Raises:
            ValueError: the device's memory is not known, or the fraction is not in [0, 1].
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"a share of the device is between 0 and 1, not {fraction}")
        if self._total_bytes is None:
            raise ValueError("a share of the device needs the device's memory: give total_bytes")
        limit = fraction * self._total_bytes
        # Up to 2.8 (by the source of its time) all of the device is a limit too, which matters to
        # the garbage collection only; the byte is cut off up to 2.13, rounded in 2.14.
        if fraction < 1 or self.version <= (2, 8):
            self._held.limit_bytes = round(limit) if self.version >= (2, 14) else int(limit)
        else:
            self._held.limit_bytes = None
        threshold = self.settings.garbage_collection_threshold
        self._collects = threshold > 0 and self._held.limit_bytes is not None
        self._fits_any = self._can_take_any and not self._collects

    @property
    def requested_bytes(self) -> int:
        return self.total.requested

    @property
    def allocated_bytes(self) -> int:
        return self.total.allocated

    @property
    def reserved_bytes(self) -> int:
        return self.total.reserved

    @property
    def active_bytes(self) -> int:
        return self.total.allocated + self.total.pending_bytes

    @property
    def peak_requested_bytes(self) -> int:
        return self.total.requested_peak

    @property
    def peak_allocated_bytes(self) -> int:
        return self.total.allocated_peak

    @property
    def peak_reserved_bytes(self) -> int:
        return self.total.reserved_peak

    @property
    def num_alloc_retries(self) -> int:
        return self._num_alloc_retries

    def block_bytes(self, address: int) -> int:
        """The size of the block handed out at ``address``, with what was rounded or not split."""
        return self._live[address].size if address else 0

    def stats(self) -> dict[str, int]:
        """``torch.cuda.memory_stats()``: the same keys in the same order, and values."""
        total, small, large = self.total, self._small.counts, self._large.counts
        add_totals(total, small, large)
        stats = {
            **group_statistics("all", total),
            **group_statistics("small_pool", small),
            **group_statistics("large_pool", large),
            "num_alloc_retries": self._num_alloc_retries,
            "num_ooms": self._num_ooms,
            "num_sync_all_streams": self._num_sync_all_streams,
            "num_device_alloc": self._held.num_device_alloc,
            "num_device_free": self._held.num_device_free,
            "max_split_size": self.settings.max_split_size_bytes or -1,
        }
        if self.version >= (2, 12):
            stats["num_oom_rejections"] = self._num_oom_rejections
        put_tally(stats, "oversize_allocations", self._oversize)
        put_tally(stats, "oversize_segments", self._held.oversize)
        return dict(sorted(stats.items()))

    def segments(self) -> tuple[Segment, ...]:
        """The layout, by address.

        A block's number is the one that its owner gave it; ``malloc`` numbers blocks as they come.
        """
        return tuple(
            Segment(
                address=run[0].address,
                num_bytes=run[-1].address + run[-1].size - run[0].address,
                stream=run[0].stream,
                is_small=run[0].pool.is_small,
                is_expandable=run[0].expandable,
                blocks=tuple(
                    SegmentBlock(
                        offset=block.address - run[0].address,
                        num_bytes=block.size,
                        requested_bytes=block.requested if block.state != FREE else 0,
                        block=block.number if block.state != FREE else -1,
                    )
                    for block in run
                ),
            )
            for run in self.chains()
        )

    def restore(self, segments: Iterable[Segment]) -> dict[int, Block]:
        """Starts from a recorded layout instead of an empty one.

        Returns:
            The blocks in use, by the numbers that they have in the layout.  Statistics count them
            as if they had been allocated here; segments are as old as their addresses are low.
        """
        live: dict[int, Block] = {}
        for segment in segments:
            pool = self._small if segment.is_small else self._large
            for block in self._held.restore(pool, segment):
                if block.state == FREE:
                    pool.insert(block)
                    if len(segment.blocks) > 1 and not block.expandable:
                        self._add_inactive(pool.counts, 1, block.size)
                else:
                    for counts in (pool.counts, self.total):
                        counts.add_taken(block.size, block.requested)
                    if block.size >= self._max_split:
                        self._oversize.increase()
                    self._live[block.address] = live[block.number] = block
        if self._expandable is not None:
            self._expandable.join_ranges()
        return live

    def chains(self) -> Iterator[list[Block]]:
        """The blocks of every segment, by address."""
        return self._held.chains()

    # ---- blocks ----

    def take(self, num_bytes: int, stream: int = 0) -> Block:
        """A block for ``num_bytes`` > 0; raises OutOfMemory."""
        if self._finished:
            self._process_events()
        divisions = self._divisions
        size = round_size(num_bytes, divisions) if divisions else (num_bytes + 511) & -512
        pool = self._small if size <= 1048576 else self._large
        free = pool.free.get(stream)
        if free is None:
            free = pool.free[stream] = []
        if self._fits_any:
            index = bisect_left(free, (size,))
            block = free.pop(index)[2] if index < len(free) else self._miss(pool, size, stream)
        else:
            found = self._find(pool, size, stream)
            block = self._miss(pool, size, stream) if found is None else found
        counts, total = pool.counts, self.total
        rest = block.size - size
        after = block.next
        if rest >= pool.split_from and size < self._split_below:
            address = block.address + size
            rank = block.rank + size
            if self._spare:  # a used object is filled anew in a quarter of the time
                tail = self._spare.pop()
                tail.address = address
                tail.size = rest
                tail.rank = rank
                tail.pool = pool
                tail.stream = stream
                tail.prev = block
                tail.next = after
                tail.expandable = block.expandable
                tail.state = FREE
            else:
                tail = Block(address, rest, rank, pool, stream, block, after, block.expandable)
            tail.born = pool.searches
            insort(free, (rest, rank, tail))
            block.next = tail
            block.size = size
            if after is not None:
                after.prev = tail
            if not block.expandable:
                if after is not None or block.prev is not None:
                    counts.inactive_bytes -= size
                    total.inactive_bytes -= size
                else:
                    self._add_inactive(counts, 1, rest)
        else:
            size = block.size
            if (after is not None or block.prev is not None) and not block.expandable:
                counts.inactive -= 1
                counts.inactive_bytes -= size
                total.inactive -= 1
                total.inactive_bytes -= size
        block.state = ALLOCATED
        block.requested = num_bytes
        block.number = -1
        # Written out for both: a loop would cost a tenth of the allocator's speed.
        counts.allocations_total += 1
        counts.allocated_total += size
        counts.requested_total += num_bytes
        counts.allocations = value = counts.allocations + 1
        if value > counts.allocations_peak:
            counts.allocations_peak = value
        counts.allocated = value = counts.allocated + size
        if value > counts.allocated_peak:
            counts.allocated_peak = value
        counts.requested = value = counts.requested + num_bytes
        if value > counts.requested_peak:
            counts.requested_peak = value
        total.allocations = value = total.allocations + 1
        if value > total.allocations_peak:
            total.allocations_peak = value
        total.allocated = value = total.allocated + size
        if value > total.allocated_peak:
            total.allocated_peak = value
        total.requested = value = total.requested + num_bytes
        if value > total.requested_peak:
            total.requested_peak = value
        if total.pending:
            counts.note_active()
            total.note_active()
        if size >= self._max_split:
            self._oversize.increase()
        return block

    def give(self, block: Block) -> None:
        """Takes a block back from its owner."""
        size = block.size
        counts, total = block.pool.counts, self.total
        counts.allocations -= 1
        counts.allocated -= size
        total.allocations -= 1
        total.allocated -= size
        if size >= self._max_split:
            self._oversize.current -= 1
        if self._uses and block in self._uses:
            del self._uses[block]
            block.state = PENDING
            for each in (counts, total):
                each.pending += 1
                each.pending_bytes += size
            (self._waiting if self._waits_for_streams else self._finished).append(block)
        else:
            self._release(block)

    def _release(self, block: Block) -> None:
        """A block that nothing uses any more joins its free neighbours, and the pool."""
        pool = block.pool
        counts, total = pool.counts, self.total
        counts.requested -= block.requested
        total.requested -= block.requested
        block.state = FREE
        free = pool.free[block.stream]
        num_joined = joined_bytes = 0
        after = block.next
        if after is not None and after.state == 0:
            num_joined = 1
            joined_bytes = after.size
            del free[bisect_left(free, (joined_bytes, after.rank))]
            self._spare.append(after)
            block.size += joined_bytes
            block.next = beyond = after.next
            if beyond is not None:
                beyond.prev = block
        before = block.prev
        if before is not None and before.state == 0:
            num_joined += 1
            joined_bytes += before.size
            del free[bisect_left(free, (before.size, before.rank))]
            self._spare.append(block)
            before.size += block.size
            before.next = beyond = block.next
            if beyond is not None:
                beyond.prev = before
            block = before
        block.born = pool.searches
        insort(free, (block.size, block.rank, block))
        if block.expandable:
            return
        if block.prev is None and block.next is None:
            if num_joined:
                counts.inactive -= num_joined
                total.inactive -= num_joined
                counts.inactive_bytes -= joined_bytes
                total.inactive_bytes -= joined_bytes
        else:
            self._add_inactive(counts, 1 - num_joined, block.size - joined_bytes)

    def _add_inactive(self, counts: Counts, num_blocks: int, num_bytes: int) -> None:
        """Free pieces of a segment, which keep it from being given back; ``num_bytes`` > 0."""
        total = self.total
        counts.inactive_bytes_total += num_bytes
        counts.inactive_bytes = value = counts.inactive_bytes + num_bytes
        if value > counts.inactive_bytes_peak:
            counts.inactive_bytes_peak = value
        total.inactive_bytes = value = total.inactive_bytes + num_bytes
        if value > total.inactive_bytes_peak:
            total.inactive_bytes_peak = value
        if num_blocks:
            counts.inactive = value = counts.inactive + num_blocks
            if value > counts.inactive_peak:
                counts.inactive_peak = value
            total.inactive = value = total.inactive + num_blocks
            if value > total.inactive_peak:
                total.inactive_peak = value
            if num_blocks > 0:
                counts.inactive_total += num_blocks

    def _find(self, pool: Pool, size: int, stream: int) -> Block | None:
        """The best free block where options restrict the choice; it leaves its list."""
        if self._collects:
            pool.searches += 1
        free = pool.free[stream]
        index = bisect_left(free, (size,))
        if index == len(free):
            return None
        block = free[index][2]
        if self._expandable is not None:
            while index + 1 < len(free):
                following = free[index + 1][2]
                if _with_unmapped(following) >= _with_unmapped(block):
                    break
                index, block = index + 1, following
        if size < self._max_split <= block.size:
            return None
        if (
            size >= self._max_split
            and block.size >= size + self.settings.max_non_split_rounding_bytes
        ):
            return None
        del free[index]
        return block

    # ---- when nothing fits ----

    def _miss(self, pool: Pool, size: int, stream: int) -> Block:
        """Fresh memory from the driver, which may first need cached memory back."""
        held = self._held
        num_bytes = segment_bytes(size, self.settings.large_segment_bytes)
        if self._collects:
            held.collect_garbage(self._large, self.settings.garbage_collection_threshold)
        block = self._fresh(pool, size, num_bytes, stream)
        if (
            block is None
            and self.settings.throw_on_cudamalloc_oom
            and not held.within_limit(num_bytes)
        ):
            self._num_oom_rejections += 1
            raise self._out_of_memory(size, num_bytes)
        if (
            block is None
            and self.settings.max_split_size_bytes is not None
            and held.release_oversize(pool, stream, size)
        ):
            block = self._fresh(pool, size, num_bytes, stream)
        if block is None:
            self._release_cached()
            self._num_alloc_retries += 1
            block = self._fresh(pool, size, num_bytes, stream)
        if block is None:
            self._num_ooms += 1
            raise self._out_of_memory(size, num_bytes)
        return block

    def _fresh(self, pool: Pool, size: int, num_bytes: int, stream: int) -> Block | None:
        if not self._held.within_limit(num_bytes):
            return None
        if self._expandable is not None:
            return self._expandable.expand(pool, size, stream)
        return self._held.new(pool, num_bytes, stream)

    def _release_cached(self) -> None:
        self.synchronize()
        self._num_sync_all_streams += 1
        self._process_events()
        for pool in (self._large, self._small):
            for block in self._held.whole_free_segments(pool):
                self._held.release(block)
            if self._expandable is not None:
                for block in self._held.expandable_free_blocks(pool):
                    self._expandable.release(block)

    def _process_events(self) -> None:
        """Frees the blocks that their last stream is done with."""
        finished, self._finished = self._finished, []
        for block in finished:
            for each in (block.pool.counts, self.total):
                each.pending -= 1
                each.pending_bytes -= block.size
            self._release(block)

    def _out_of_memory(self, size: int, num_bytes: int) -> OutOfMemory:
        return OutOfMemory(
            requested_bytes=size,
            segment_bytes=num_bytes,
            capacity_bytes=self._held.capacity_bytes,
            free_bytes=self._held.room(),
            stats=self.stats(),
            segments=self.segments(),
        )


def _with_unmapped(block: Block) -> int:
    """What the block could grow to without new addresses."""
    after = block.next
    if after is not None and after.state == UNMAPPED:
        return block.size + after.size
    return block.size
