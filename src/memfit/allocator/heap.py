"""Blocks from segments: best fit, splitting, joining, and what happens when nothing fits.

Follows DeviceCachingAllocator of c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.14, outside
graph capture and private pools.  ``take`` and ``give`` run for every tensor of a run, so they are
written out flat.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Iterable

from memfit.allocator.addresses import Addresses
from memfit.allocator.blocks import ALLOCATED, FREE, PENDING, UNMAPPED, Block, Pool
from memfit.allocator.expandable import Expandable
from memfit.allocator.journal import Journal
from memfit.allocator.rounding import MIN_BLOCK_BYTES, SMALL_BYTES, round_size, segment_bytes
from memfit.allocator.segments import Segments
from memfit.allocator.settings import Settings
from memfit.allocator.version import TorchVersion
from memfit.errors import BadInput
from memfit.records.segments import Segment

_LARGE_SPLIT_BYTES = SMALL_BYTES + 1
"""A block of the large pool is split when more than 1 MiB is left over."""


class NoRoom(Exception):
    """The driver has no memory left, also after cached memory was given back."""

    def __init__(self, segment_bytes: int) -> None:
        super().__init__(segment_bytes)
        self.segment_bytes = segment_bytes
        """What the driver was asked for."""


class Heap:
    """Hands out blocks and takes them back.

    Args:
        version, settings: whose rules, and the options.
        capacity_bytes: room for segments on the device; None: unlimited.
        places: where the driver puts segments.
        total_bytes: the device's memory, where it is known.
        waits_for_streams: whether a block that other streams use stays until ``synchronize``.
    """

    def __init__(
        self,
        version: TorchVersion,
        settings: Settings,
        capacity_bytes: int | None,
        places: Addresses,
        total_bytes: int | None,
        waits_for_streams: bool,
    ) -> None:
        self.version = version
        self.settings = settings
        self.allocated_bytes = 0
        self.requested_bytes = 0
        self.pending_bytes = 0
        """Given back by their owners, but still used by another stream."""

        self.num_alloc_retries = self.num_ooms = 0
        self.num_sync_all_streams = self.num_oom_rejections = 0
        expandable = settings.expandable_segments
        self._max_split = settings.max_split_size_bytes or sys.maxsize
        self._split_below = sys.maxsize if expandable else self._max_split
        large_split = MIN_BLOCK_BYTES if expandable else _LARGE_SPLIT_BYTES
        self._small = Pool(is_small=True, split_from=MIN_BLOCK_BYTES)
        self._large = Pool(is_small=False, split_from=large_split)
        self.held = Segments(
            (self._small, self._large), version, self._max_split, capacity_bytes, places
        )
        self.journal = Journal(self._max_split)
        self._log = self.journal.entries.append
        self._expandable = (
            Expandable(self.held, total_bytes, settings.large_segment_bytes) if expandable else None
        )
        self._divisions = settings.roundup_power2_divisions
        self._total_bytes = total_bytes
        self._collects = False
        self._can_take_any = not expandable and settings.max_split_size_bytes is None
        self._takes_any = self._can_take_any
        """Whether the smallest free block that is large enough is always the one to take."""

        self._spare: list[Block] = []
        """Blocks that were joined with others: objects to use again."""

        self._waits_for_streams = waits_for_streams
        self._uses: dict[Block, set[int]] = {}
        self._waiting: list[Block] = []
        self._finished: list[Block] = []

    def set_memory_fraction(self, fraction: float) -> None:
        """``torch.cuda.set_per_process_memory_fraction(fraction)``.

        Raises:
            BadInput: the device's memory is not known, or the fraction is not in [0, 1].
        """
        if not 0 <= fraction <= 1:
            raise BadInput(f"a share of the device is between 0 and 1, not {fraction}")
        if self._total_bytes is None:
            raise BadInput("a share of the device needs the device's memory: give total_bytes")
        limit = fraction * self._total_bytes
        # Up to 2.8 (by the source of its time) all of the device is a limit too, which matters to
        # the garbage collection only; the byte is cut off up to 2.13, rounded in 2.14.
        if fraction < 1 or self.version <= (2, 8):
            self.held.limit_bytes = round(limit) if self.version >= (2, 14) else int(limit)
        else:
            self.held.limit_bytes = None
        threshold = self.settings.garbage_collection_threshold
        self._collects = threshold > 0 and self.held.limit_bytes is not None
        self._takes_any = self._can_take_any and not self._collects

    def restore(self, segments: Iterable[Segment]) -> dict[int, Block]:
        """Starts from a recorded layout; returns the blocks in use by their numbers."""
        live: dict[int, Block] = {}
        for segment in segments:
            pool = self._small if segment.is_small else self._large
            is_cut = len(segment.blocks) > 1 and not segment.is_expandable
            for block in self.held.restore(pool, segment):
                size, requested = block.size, block.requested
                if block.state == FREE:
                    pool.insert(block)
                    self._log((pool.is_small, 0, 0, 0, is_cut, is_cut * size))
                else:
                    live[block.number] = block
                    self.allocated_bytes += size
                    self.requested_bytes += requested
                    self._log((pool.is_small, size, size, requested, 0, 0))
        if self._expandable is not None:
            self._expandable.join_ranges()
        return live

    # ---- for every tensor ----

    def take(self, num_bytes: int, stream: int = 0) -> Block:
        """A block for ``num_bytes`` > 0; raises NoRoom."""
        if self._finished:
            self._process_events()
        divisions = self._divisions
        size = round_size(num_bytes, divisions) if divisions else (num_bytes + 511) & -512
        pool = self._small if size <= 1048576 else self._large
        try:
            free = pool.free[stream]
        except KeyError:
            free = pool.free[stream] = []
        if self._takes_any:
            index = bisect_left(free, (size,))
            block = free.pop(index)[2] if index < len(free) else self._miss(pool, size, stream)
        else:
            found = self._find(pool, size, stream)
            block = self._miss(pool, size, stream) if found is None else found
        rest = block.size - size
        after = block.next
        num_pieces = piece_bytes = 0
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
                piece_bytes = -size
            elif block.prev is not None:
                piece_bytes = -size
            else:
                num_pieces = 1
                piece_bytes = rest
        else:
            size = block.size
            if after is not None or block.prev is not None:
                num_pieces = -1
                piece_bytes = -size
        if block.expandable:
            num_pieces = piece_bytes = 0
        block.state = ALLOCATED
        block.requested = num_bytes
        block.number = -1
        self.allocated_bytes += size
        self.requested_bytes += num_bytes
        self._log((pool.is_small, size, size, num_bytes, num_pieces, piece_bytes))
        return block

    def give(self, block: Block, *, was_pending: bool = False) -> None:
        """Takes a block back from its owner, or from the last other stream that used it.

        It joins its free neighbours, and the pool.
        """
        size = block.size
        if was_pending:
            self.pending_bytes -= size
            allocated = 0
        else:
            self.allocated_bytes -= size
            allocated = -size
            if self._uses and block in self._uses:
                self._set_pending(block)
                return
        pool = block.pool
        requested = block.requested
        self.requested_bytes -= requested
        block.state = FREE
        free = pool.free[block.stream]
        num_pieces = 1
        piece_bytes = size
        after = block.next
        if after is not None and after.state == 0:
            del free[bisect_left(free, (after.size, after.rank))]
            self._spare.append(after)
            num_pieces = 0
            block.size += after.size
            block.next = beyond = after.next
            if beyond is not None:
                beyond.prev = block
        before = block.prev
        if before is not None and before.state == 0:
            del free[bisect_left(free, (before.size, before.rank))]
            self._spare.append(block)
            num_pieces -= 1
            before.size += block.size
            before.next = beyond = block.next
            if beyond is not None:
                beyond.prev = before
            block = before
        block.born = pool.searches
        insort(free, (block.size, block.rank, block))
        if block.expandable:
            num_pieces = piece_bytes = 0
        elif block.prev is None and block.next is None:  # a whole segment is no piece
            num_pieces -= 1
            piece_bytes -= block.size
        self._log((pool.is_small, allocated, -size, -requested, num_pieces, piece_bytes))

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
        slack = self.settings.max_non_split_rounding_bytes
        if size >= self._max_split and block.size >= size + slack:
            return None
        del free[index]
        return block

    # ---- other streams ----

    def record_stream(self, block: Block, stream: int) -> None:
        """Another stream uses the block too."""
        if stream != block.stream:
            self._uses.setdefault(block, set()).add(stream)

    def _set_pending(self, block: Block) -> None:
        """Its owner gave the block back, but other streams still use it."""
        del self._uses[block]
        block.state = PENDING
        self.pending_bytes += block.size
        self._log((block.pool.is_small, -block.size, 0, 0, 0, 0))
        (self._waiting if self._waits_for_streams else self._finished).append(block)

    def synchronize(self) -> None:
        """All streams have done what was asked of them; the next request notices."""
        self._finished += self._waiting
        self._waiting.clear()

    def _process_events(self) -> None:
        """Frees the blocks that their last stream is done with."""
        finished, self._finished = self._finished, []
        for block in finished:
            self.give(block, was_pending=True)

    # ---- the driver ----

    def _miss(self, pool: Pool, size: int, stream: int) -> Block:
        """Fresh memory from the driver, which may first need cached memory back."""
        held, settings = self.held, self.settings
        self.journal.sum_up_if_long()
        num_bytes = segment_bytes(size, settings.large_segment_bytes)
        if self._collects:
            held.collect_garbage(self._large, settings.garbage_collection_threshold)
        block = self._fresh(pool, size, num_bytes, stream)
        if block is not None:
            return block
        if settings.throw_on_cudamalloc_oom and not held.within_limit(num_bytes):
            self.num_oom_rejections += 1
            raise NoRoom(num_bytes)
        if settings.max_split_size_bytes is not None and held.release_oversize(pool, stream, size):
            block = self._fresh(pool, size, num_bytes, stream)
        if block is None:
            self.release_cached()
            self.num_alloc_retries += 1
            block = self._fresh(pool, size, num_bytes, stream)
        if block is None:
            self.num_ooms += 1
            raise NoRoom(num_bytes)
        return block

    def _fresh(self, pool: Pool, size: int, num_bytes: int, stream: int) -> Block | None:
        if not self.held.within_limit(num_bytes):
            return None
        if self._expandable is not None:
            return self._expandable.expand(pool, size, stream)
        return self.held.new(pool, num_bytes, stream)

    def release_cached(self) -> None:
        """Gives every segment that is wholly free back to the driver, once all streams are done."""
        self.synchronize()
        self.num_sync_all_streams += 1
        self._process_events()
        for pool in (self._large, self._small):
            for block in self.held.whole_free_segments(pool):
                self.held.release(block)
            if self._expandable is not None:
                for block in self.held.expandable_free_blocks(pool):
                    self._expandable.release(block)


def _with_unmapped(block: Block) -> int:
    """What the block could grow to without new addresses."""
    after = block.next
    if after is not None and after.state == UNMAPPED:
        return block.size + after.size
    return block.size
