"""A Timeline through PyTorch's CUDA caching allocator."""

from __future__ import annotations

import sys
from bisect import bisect_right

import numpy as np

from memfit.allocator.blocks import Block
from memfit.allocator.caching import CachingAllocator
from memfit.allocator.heap import NoRoom
from memfit.allocator.layout import Held, Layout
from memfit.allocator.settings import Settings
from memfit.allocator.version import TorchVersion
from memfit.records.replay import Replay
from memfit.records.segments import Segment
from memfit.records.timeline import Timeline

_STRETCH = 100_000
"""Events played at a time: what they leave in the statistics' journal is summed up between."""


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

    allocator = CachingAllocator(
        version=version,
        settings=settings,
        capacity_bytes=capacity_bytes,
        addresses=addresses,
        total_bytes=total_bytes,
    )
    run = Run(timeline, allocator)
    run.play(len(timeline.events))
    requested, allocated, reserved = run.curves()
    peak = int(np.argmax(allocated)) if len(allocated) else -1
    return Replay(
        allocator=f"cuda {version}",
        requested=requested,
        allocated=allocated,
        reserved=reserved,
        block_bytes=np.array(run.block_bytes, dtype=np.int64),
        segments=run.layout_after(peak),
        out_of_memory_event=run.out_of_memory_event,
        num_alloc_retries=allocator.num_alloc_retries,
    )


class Run:
    """Plays a Timeline on an allocator, event by event, and remembers what came of each."""

    def __init__(self, timeline: Timeline, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.out_of_memory_event = -1
        self.block_bytes = [0] * len(timeline.num_bytes)
        self._timeline = timeline
        self._places = [0] * len(timeline.num_bytes)
        """The address of each block."""

        self._marks = [(-1, 0)]
        """(event, changes of segments up to and including it), where there were any."""

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
                self._stretch(min(end, moment, self._next_event + _STRETCH))
                self.allocator.heap.journal.sum_up_if_long()
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

    def layout_after(self, event: int) -> tuple[Segment, ...]:
        """The segments and the blocks in use after ``event``, with the Timeline's numbers."""
        layout = Layout()
        _, num_changes = self._marks[bisect_right(self._marks, (event, sys.maxsize)) - 1]
        for change in self.allocator.heap.held.changes[:num_changes]:
            if change.num_bytes > 0:
                layout.add(change.address, Held(*change[1:]))
            else:
                layout.remove(change.address, -change.num_bytes)
        numbers: dict[int, int] = {}
        for number in self._timeline.live_blocks(event).tolist():
            if self.block_bytes[number]:
                numbers[self._places[number]] = number
                layout.used[self._places[number]] = self.block_bytes[number], self._sizes[number]
        return layout.segments(numbers)

    def _stretch(self, end: int) -> None:
        """Events without an action between them."""
        heap, held = self.allocator.heap, self.allocator.heap.held
        take, give, reserved_now = heap.take, heap.give, held.reserved
        sizes, streams, blocks = self._sizes, self._streams, self.blocks
        block_bytes, places = self.block_bytes, self._places
        requested, allocated, reserved = self._requested, self._allocated, self._reserved
        num_device_alloc = held.num_device_alloc
        for event in self._events[self._next_event : end]:
            if event > 0:
                number = event - 1
                if sizes[number]:
                    try:
                        block = take(sizes[number], streams[number])
                    except NoRoom:
                        self.out_of_memory_event = len(requested)
                        return
                    blocks[number] = block
                    block_bytes[number] = block.size
                    places[number] = block.address
                    if held.num_device_alloc != num_device_alloc:
                        num_device_alloc = held.num_device_alloc
                        self._marks.append((len(requested), len(held.changes)))
            elif sizes[-event - 1]:
                give(blocks.pop(-event - 1))
            requested.append(heap.requested_bytes)
            allocated.append(heap.allocated_bytes)
            reserved.append(reserved_now.current)
        self._next_event = end

    def _act(self, name: str) -> None:
        if name == "empty_cache":
            self.allocator.empty_cache()
            self._marks.append((self._next_event, len(self.allocator.heap.held.changes)))
        elif name == "reset_peak":
            self.allocator.reset_peak()
        elif name == "synchronize":
            self.allocator.synchronize()
