"""A Timeline through PyTorch's CUDA caching allocator."""

from __future__ import annotations

import numpy as np

from memfit.allocator.blocks import Block
from memfit.allocator.caching import CachingAllocator
from memfit.allocator.out_of_memory import OutOfMemory
from memfit.allocator.settings import Settings
from memfit.allocator.version import TorchVersion
from memfit.records.replay import Replay
from memfit.records.segments import Segment
from memfit.records.timeline import Timeline


def replay_on_cuda(
    timeline: Timeline,
    *,
    version: TorchVersion,
    settings: Settings = Settings(),  # noqa: B008  # frozen
    capacity_bytes: int | None = None,
    addresses: str = "ascending",
    total_bytes: int | None = None,
) -> Replay:
    """What the allocator of a GPU makes of a Timeline.

    Args:
        version: whose rules.
        capacity_bytes: room for segments on the device; None: unlimited.
        addresses: the policy by which the driver places segments.
        total_bytes: the device's memory, for ``per_process_memory_fraction``.
    """

    def run(num_events: int) -> Run:
        allocator = CachingAllocator(
            version=version,
            settings=settings,
            capacity_bytes=capacity_bytes,
            addresses=addresses,
            total_bytes=total_bytes,
        )
        run = Run(timeline, allocator)
        run.play(num_events)
        return run

    whole = run(len(timeline.events))
    requested, allocated, reserved = whole.curves()
    peak = int(np.argmax(allocated)) if len(allocated) else -1
    return Replay(
        allocator=f"cuda {version}",
        requested=requested,
        allocated=allocated,
        reserved=reserved,
        block_bytes=np.array(whole.block_bytes, dtype=np.int64),
        segments=run(peak + 1).segments(),
        out_of_memory_event=whole.out_of_memory_event,
        num_alloc_retries=whole.allocator.num_alloc_retries,
    )


class Run:
    """Plays a Timeline on an allocator, event by event, and remembers what came of each."""

    def __init__(self, timeline: Timeline, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.out_of_memory_event = -1
        self.block_bytes = [0] * len(timeline.num_bytes)
        self.blocks: dict[int, Block] = {}
        """Live blocks by their number in the Timeline; blocks of 0 bytes have none."""

        self._events: list[int] = timeline.events.tolist()
        self._sizes: list[int] = timeline.num_bytes.tolist()
        self._streams: list[int] = timeline.streams.tolist()
        self._actions = [*timeline.actions, (len(self._events) + 1, "")]
        self._next_event = self._next_action = 0
        self._requested: list[int] = []
        self._allocated: list[int] = []
        self._reserved: list[int] = []

    def play(self, end: int) -> None:
        """Plays on up to event ``end``, exclusive; stops for good where memory runs out."""
        while self._next_event < end and self.out_of_memory_event < 0:
            moment, name = self._actions[self._next_action]
            if moment <= self._next_event:
                self._next_action += 1
                self._act(name)
            else:
                self._stretch(min(end, moment))
        while (
            end == len(self._events)
            and self._actions[self._next_action][0] <= end
            and self.out_of_memory_event < 0
        ):
            self._act(self._actions[self._next_action][1])
            self._next_action += 1

    def curves(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Requested, allocated and reserved bytes after each event; flat after a failure."""
        total = self.allocator
        rest = len(self._events) - len(self._requested)
        last = (total.requested_bytes, total.allocated_bytes, total.reserved_bytes)
        curves = (self._requested, self._allocated, self._reserved)
        requested, allocated, reserved = (
            np.array([*curve, *[value] * rest], dtype=np.int64)
            for curve, value in zip(curves, last, strict=True)
        )
        return requested, allocated, reserved

    def segments(self) -> tuple[Segment, ...]:
        """The layout now, with the Timeline's numbers of blocks."""
        for number, block in self.blocks.items():
            block.number = number
        return self.allocator.segments()

    def _stretch(self, end: int) -> None:
        """Events without an action between them."""
        allocator, sizes, streams = self.allocator, self._sizes, self._streams
        take, give, blocks, block_bytes = (
            allocator.take,
            allocator.give,
            self.blocks,
            self.block_bytes,
        )
        total = allocator.total
        requested, allocated, reserved = self._requested, self._allocated, self._reserved
        for event in self._events[self._next_event : end]:
            if event > 0:
                number = event - 1
                if sizes[number]:
                    try:
                        block = take(sizes[number], streams[number])
                    except OutOfMemory:
                        self.out_of_memory_event = len(requested)
                        return
                    blocks[number] = block
                    block_bytes[number] = block.size
            elif sizes[-event - 1]:
                give(blocks.pop(-event - 1))
            requested.append(total.requested)
            allocated.append(total.allocated)
            reserved.append(total.reserved)
        self._next_event = end

    def _act(self, name: str) -> None:
        if name == "empty_cache":
            self.allocator.empty_cache()
        elif name == "reset_peak":
            self.allocator.reset_peak()
        elif name == "synchronize":
            self.allocator.synchronize()
