"""Blocks, and the pools that keep the free ones in order.

A segment is a chain of blocks by address.  A block that is free is also an entry of its pool's
list for its stream, ordered by (size, rank): the first entry that is not smaller than a request
is its best fit.  ``rank`` is PyTorch's tie-break among blocks of one size: the address up to
torch 2.12, the age of the segment and then the address from 2.13 on.
"""

from __future__ import annotations

from bisect import bisect_left, insort

FREE, ALLOCATED, PENDING, UNMAPPED = 0, 1, 2, 3
"""A block's state.  PENDING: freed by its owner while another stream may still use it.
UNMAPPED: addresses of an expandable segment without memory behind them."""


class Block:
    """A piece of a segment."""

    __slots__ = (
        "address",
        "born",
        "expandable",
        "next",
        "number",
        "pool",
        "prev",
        "rank",
        "requested",
        "size",
        "state",
        "stream",
    )

    def __init__(
        self,
        address: int,
        size: int,
        rank: int,
        pool: Pool,
        stream: int,
        prev: Block | None = None,
        next: Block | None = None,  # noqa: A002  # the field's own word for it
        expandable: bool = False,
        state: int = FREE,
    ) -> None:
        self.address = address
        self.size = size
        self.rank = rank
        self.pool = pool
        self.stream = stream
        self.prev = prev
        self.next = next
        self.expandable = expandable
        self.state = state
        self.requested = 0
        self.number = -1
        self.born = 0
        """``pool.searches`` when the block became free: its age is counted from there."""


FreeList = list[tuple[int, int, Block]]


class Counts:
    """What is counted of one pool, or of both: a value now, its peak, and all increases so far.

    What was freed so far is the increases minus the value.  ``active`` is ``allocated`` plus
    ``pending``, and its peak is followed only while something is pending: in all other moments
    it is the allocated one.
    """

    __slots__ = (
        "active_bytes_peak",
        "active_peak",
        "allocated",
        "allocated_peak",
        "allocated_total",
        "allocations",
        "allocations_peak",
        "allocations_total",
        "inactive",
        "inactive_bytes",
        "inactive_bytes_peak",
        "inactive_bytes_total",
        "inactive_peak",
        "inactive_total",
        "pending",
        "pending_bytes",
        "requested",
        "requested_peak",
        "requested_total",
        "reserved",
        "reserved_peak",
        "reserved_total",
        "segments",
        "segments_peak",
        "segments_total",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    allocations: int
    allocations_peak: int
    allocations_total: int
    allocated: int
    allocated_peak: int
    allocated_total: int
    requested: int
    requested_peak: int
    requested_total: int
    inactive: int
    inactive_peak: int
    inactive_total: int
    inactive_bytes: int
    inactive_bytes_peak: int
    inactive_bytes_total: int
    segments: int
    segments_peak: int
    segments_total: int
    reserved: int
    reserved_peak: int
    reserved_total: int
    pending: int
    pending_bytes: int
    active_peak: int
    active_bytes_peak: int

    def add_taken(self, size: int, requested: int) -> None:
        """A block is in use; ``CachingAllocator.take`` has this written out."""
        self.allocations += 1
        self.allocations_total += 1
        self.allocations_peak = max(self.allocations_peak, self.allocations)
        self.allocated += size
        self.allocated_total += size
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        self.requested += requested
        self.requested_total += requested
        self.requested_peak = max(self.requested_peak, self.requested)

    def add_reserved(self, num_bytes: int, num_segments: int) -> None:
        """The driver gave memory."""
        self.reserved += num_bytes
        self.reserved_total += num_bytes
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        self.segments += num_segments
        self.segments_total += num_segments
        self.segments_peak = max(self.segments_peak, self.segments)

    def note_active(self) -> None:
        """Follows the peaks of what is active; called whenever something is pending."""
        self.active_peak = max(self.active_peak, self.allocations + self.pending)
        self.active_bytes_peak = max(self.active_bytes_peak, self.allocated + self.pending_bytes)

    def reset_peaks(self) -> None:
        """Every peak becomes the value of now."""
        self.allocations_peak = self.allocations
        self.allocated_peak = self.allocated
        self.requested_peak = self.requested
        self.inactive_peak = self.inactive
        self.inactive_bytes_peak = self.inactive_bytes
        self.segments_peak = self.segments
        self.reserved_peak = self.reserved
        self.active_peak = self.allocations + self.pending
        self.active_bytes_peak = self.allocated + self.pending_bytes


class Tally:
    """How many blocks or segments there are that ``max_split_size_mb`` keeps whole."""

    __slots__ = ("current", "peak", "total")

    def __init__(self) -> None:
        self.current = self.peak = self.total = 0

    def increase(self) -> None:
        self.current += 1
        self.total += 1
        self.peak = max(self.peak, self.current)


class Pool:
    """The free blocks of the small or of the large pool, and its counts."""

    __slots__ = ("counts", "free", "is_small", "searches", "split_from", "unmapped")

    def __init__(self, *, is_small: bool, split_from: int) -> None:
        self.is_small = is_small
        self.split_from = split_from
        """A block is split when at least so many bytes are left over."""

        self.free: dict[int, FreeList] = {}
        """Per stream, sorted."""

        self.unmapped: dict[int, list[tuple[int, Block]]] = {}
        """Per stream, sorted by address: pieces of expandable segments without memory."""

        self.searches = 0
        """How often a free block was looked for: the clock of the garbage collection."""

        self.counts = Counts()

    def insert(self, block: Block) -> None:
        """Enters a free block."""
        block.born = self.searches
        insort(self.free.setdefault(block.stream, []), (block.size, block.rank, block))

    def remove(self, block: Block) -> None:
        """Takes a free block out."""
        entries = self.free[block.stream]
        del entries[bisect_left(entries, (block.size, block.rank))]
