"""Blocks, and the pools that keep the free ones in order.

A segment is a chain of blocks by address.  A block that is free is also an entry of its pool's
list for its stream, ordered by (size, rank): the first entry that is not smaller than a request
is its best fit.  ``rank`` is PyTorch's tie-break among blocks of one size: the address up to
torch 2.12, the age of the segment and then the address from 2.13 on.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from memfit.allocator.journal import Counter

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


class Pool:
    """The free blocks of the small or of the large pool, and what it holds of the driver."""

    __slots__ = ("free", "is_small", "reserved", "searches", "segments", "split_from", "unmapped")

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

        self.reserved = Counter()
        """Bytes of the driver."""

        self.segments = Counter()

    def insert(self, block: Block) -> None:
        """Enters a free block."""
        block.born = self.searches
        insort(self.free.setdefault(block.stream, []), (block.size, block.rank, block))

    def remove(self, block: Block) -> None:
        """Takes a free block out."""
        entries = self.free[block.stream]
        del entries[bisect_left(entries, (block.size, block.rank))]
