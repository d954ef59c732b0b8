"""PyTorch's native CUDA caching allocator, without CUDA.

A request is rounded (``rounding``), served from the best fitting free block of its pool and
stream, and split when enough is left over; a freed block is joined with its free neighbours and
kept (``heap``).  Only when nothing fits is the driver asked for a segment (``segments``,
``expandable``).  Blocks, segments and statistics are the same to the byte; what is not known
without the card is where the driver puts segments (``addresses``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memfit.allocator.addresses import Addresses
from memfit.allocator.addresses import addresses as addresses_of
from memfit.allocator.blocks import FREE, Block
from memfit.allocator.heap import Heap, NoRoom
from memfit.allocator.out_of_memory import OutOfMemory
from memfit.allocator.settings import Settings
from memfit.allocator.version import TorchVersion
from memfit.records.segments import Segment, SegmentBlock


class CachingAllocator:
    """One GPU's allocator.

    ``malloc`` and ``free`` speak of addresses; ``take`` and ``give`` do the same with blocks, for
    callers that keep them.

    Args:
        version: whose rules.
        capacity_bytes: room for segments on the device; None: unlimited.
        addresses: where the driver puts segments: a policy's name, or addresses of your own.
        total_bytes: the device's memory, for ``per_process_memory_fraction``.
        waits_for_streams: when the use of a block by another stream (``record_stream``) ends,
            which only a clock could tell: True, at the next ``synchronize``; False, at once.

    Raises:
        UnknownName: there is no such address policy.
        BadInput: the settings name a share of a device whose memory is not known.
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
        self.version = version
        self.settings = settings
        self.heap = Heap(version, settings, capacity_bytes, places, total_bytes, waits_for_streams)
        self._held = self.heap.held
        self._live: dict[int, Block] = {}
        self._num_mallocs = 0
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
        self.heap.journal.sum_up_if_long()
        block = self.take(num_bytes, stream)
        block.number = self._num_mallocs
        self._num_mallocs += 1
        self._live[block.address] = block
        return block.address

    def free(self, address: int) -> None:
        """Frees the block at ``address``; nothing happens for 0."""
        if address:
            self.heap.give(self._live.pop(address))

    def record_stream(self, address: int, stream: int) -> None:
        """Says that ``stream`` uses the block too: freeing it waits for that stream."""
        if address:
            self.heap.record_stream(self._live[address], stream)

    def synchronize(self) -> None:
        """All streams have done what was asked of them."""
        self.heap.synchronize()

    def empty_cache(self) -> None:
        """Gives every segment that is wholly free back to the driver."""
        self.heap.release_cached()

    def reset_peak(self) -> None:
        """``torch.cuda.reset_peak_memory_stats()``."""
        self.heap.journal.reset_peaks()
        self._held.reset_peaks()

    def set_memory_fraction(self, fraction: float) -> None:
        """``torch.cuda.set_per_process_memory_fraction(fraction)``.

        Raises:
            BadInput: the device's memory is not known, or the fraction is not in [0, 1].
        """
        self.heap.set_memory_fraction(fraction)

    @property
    def requested_bytes(self) -> int:
        return self.heap.requested_bytes

    @property
    def allocated_bytes(self) -> int:
        return self.heap.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        return self._held.reserved.current

    @property
    def active_bytes(self) -> int:
        return self.heap.allocated_bytes + self.heap.pending_bytes

    @property
    def peak_requested_bytes(self) -> int:
        return self.heap.journal.peak("requested_bytes")

    @property
    def peak_allocated_bytes(self) -> int:
        return self.heap.journal.peak("allocated_bytes")

    @property
    def peak_reserved_bytes(self) -> int:
        return self._held.reserved.peak

    @property
    def num_alloc_retries(self) -> int:
        return self.heap.num_alloc_retries

    def block_bytes(self, address: int) -> int:
        """The size of the block handed out at ``address``, with what was rounded or not split."""
        return self._live[address].size if address else 0

    def stats(self) -> dict[str, int]:
        """``torch.cuda.memory_stats()``: the same keys in the same order, and values."""
        heap = self.heap
        stats = {
            "num_alloc_retries": heap.num_alloc_retries,
            "num_ooms": heap.num_ooms,
            "num_sync_all_streams": heap.num_sync_all_streams,
            "max_split_size": self.settings.max_split_size_bytes or -1,
        }
        if self.version >= (2, 12):
            stats["num_oom_rejections"] = heap.num_oom_rejections
        heap.journal.put(stats)
        self._held.put(stats)
        return dict(sorted(stats.items()))

    def segments(self) -> tuple[Segment, ...]:
        """The layout, by address.

        A block's number is the one that its owner gave it; ``malloc`` numbers blocks as they come.
        """
        return tuple(_record(run) for run in self.chains())

    # ---- blocks ----

    def take(self, num_bytes: int, stream: int = 0) -> Block:
        """A block for ``num_bytes`` > 0; raises OutOfMemory.  ``give`` takes it back."""
        try:
            return self.heap.take(num_bytes, stream)
        except NoRoom as failure:
            raise OutOfMemory(
                requested_bytes=num_bytes,
                segment_bytes=failure.segment_bytes,
                capacity_bytes=self._held.capacity_bytes,
                free_bytes=self._held.room(),
                stats=self.stats(),
                segments=self.segments(),
            ) from None

    def give(self, block: Block) -> None:
        """Takes a block back from its owner."""
        self.heap.give(block)

    def restore(self, segments: Iterable[Segment]) -> dict[int, Block]:
        """Starts from a recorded layout instead of an empty one.

        Returns:
            The blocks in use, by the numbers that they have in the layout.  Statistics count them
            as if they had been allocated here; segments are as old as their addresses are low.
        """
        live = self.heap.restore(segments)
        self._live.update({block.address: block for block in live.values()})
        return live

    def chains(self) -> Iterator[list[Block]]:
        """The blocks of every segment, by address."""
        return self._held.chains()


def _record(run: list[Block]) -> Segment:
    head, last = run[0], run[-1]
    return Segment(
        address=head.address,
        num_bytes=last.address + last.size - head.address,
        stream=head.stream,
        is_small=head.pool.is_small,
        is_expandable=head.expandable,
        blocks=tuple(
            SegmentBlock(
                offset=block.address - head.address,
                num_bytes=block.size,
                requested_bytes=block.requested if block.state != FREE else 0,
                block=block.number if block.state != FREE else -1,
            )
            for block in run
        ),
    )
