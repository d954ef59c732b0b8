"""How many allocations and frees a second the simulated allocator plays.

    python benchmarks/allocator.py

The best of several runs, in processor time, so that other work on the machine counts less.  The
first stream is made up: steps of a transformer, of which all but the first reuse what is there.
Recordings of real GPUs are played too where ``../shared/ground_truth`` has them.  At least 300,000
events a second is the aim.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from memfit.allocator.caching import CachingAllocator
from memfit.allocator.replay import replay_on_cuda
from memfit.allocator.version import NEWEST, OLDEST, TorchVersion
from memfit.profiler.snapshot import load_recording
from memfit.records.segments import Segment
from memfit.records.timeline import Timeline

NUM_RUNS = 5
SNAPSHOTS = Path(__file__).parents[1] / ".." / "shared" / "ground_truth" / "snapshots"

NUM_STEPS, NUM_LAYERS = 20, 48
B, T, D, F, V = 8, 1024, 1024, 4096, 32_000
"""Samples, tokens, width, inner width and vocabulary of the made-up transformer, in fp32."""


def main() -> None:
    events, sizes = transformer_steps()
    print(f"{'stream':<44}{'events':>10}{'events/s':>12}")
    for version in (OLDEST, NEWEST):
        show(
            f"a transformer, {NUM_STEPS} steps, torch {version}",
            len(events),
            partial(play, version, events, sizes),
        )
    timeline = as_timeline(events, sizes)
    show(
        "the same as a Replay, with the peak's layout",
        len(events),
        lambda: replay_on_cuda(timeline, version=NEWEST),
    )
    for path in sorted(SNAPSHOTS.glob("course-*.pickle")):
        recording = load_recording(path)
        events, sizes, start = [], [], recording.start_segments
        numbers = {
            segment.address + block.offset: block.block
            for segment in start
            for block in segment.blocks
            if block.block >= 0
        }
        num_live = len(numbers)
        for event in recording.events:
            if event.action == "alloc":
                numbers[event.address] = num_live + len(sizes)
                sizes.append(event.num_bytes)
                events.append(num_live + len(sizes))
            elif event.action == "free_completed":
                events.append(-numbers.pop(event.address) - 1)
        show(path.stem, len(events), partial(play, OLDEST, events, sizes, start, num_live))


def show(name: str, num_events: int, work: Callable[[], object]) -> None:
    """Prints the events a second of the fastest of several runs."""
    seconds = []
    for _ in range(NUM_RUNS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    print(f"{name:<44}{num_events:>10,}{num_events / min(seconds):>12,.0f}")


def transformer_steps() -> tuple[list[int], list[int]]:
    """Events as a Timeline has them, and the bytes of each block."""
    return record(_training())


def _training() -> Iterator[tuple[str, int]]:
    """(name of a block, bytes) when it comes, (name, 0) when it goes."""
    weights = [4 * n for n in (4 * D * D, D * F, D * F, D, D)]
    for layer in range(NUM_LAYERS):
        yield from ((f"weight {layer} {i}", size) for i, size in enumerate(weights))
    for step in range(NUM_STEPS):
        x = 4 * B * T * D
        for layer in range(NUM_LAYERS):
            for i, size in enumerate((x, 512, 3 * x, x, x, 4 * B * T, 4 * x, 4 * x)):
                yield f"saved {layer} {i}", size
                yield "temporary", size
                yield "temporary", 0
        for name, size in (("logits", 4 * B * T * V), ("loss", 4), ("grad logits", 4 * B * T * V)):
            yield name, size
        yield "grad", x
        yield from ((name, 0) for name in ("grad logits", "logits", "loss"))
        for layer in reversed(range(NUM_LAYERS)):
            for i, size in reversed(
                list(enumerate((x, 512, 3 * x, x, x, 4 * B * T, 4 * x, 4 * x)))
            ):
                yield f"grad {i}", size
                yield f"saved {layer} {i}", 0
            yield from ((f"gradient {layer} {i}", size) for i, size in enumerate(weights))
            yield from ((f"grad {i}", 0) for i in range(8))
        yield "grad", 0
        for layer in range(NUM_LAYERS):
            for i, size in enumerate(weights):
                if not step:
                    yield f"moment {layer} {i}", size
                    yield f"variance {layer} {i}", size
                yield "update", size
                yield "update", 0
                yield f"gradient {layer} {i}", 0


def record(run: Iterator[tuple[str, int]]) -> tuple[list[int], list[int]]:
    events: list[int] = []
    sizes: list[int] = []
    numbers: dict[str, int] = {}
    for name, size in run:
        if size:
            sizes.append(size)
            numbers[name] = len(sizes)
            events.append(len(sizes))
        else:
            events.append(-numbers.pop(name))
    return events, sizes


def play(
    version: TorchVersion,
    events: list[int],
    sizes: list[int],
    start: tuple[Segment, ...] = (),
    first: int = 0,
) -> None:
    """Plays events on a fresh allocator, or one that starts from a layout of ``first`` blocks."""
    allocator = CachingAllocator(version=version)
    blocks = allocator.restore(start)
    take, give = allocator.heap.take, allocator.heap.give
    for event in events:
        if event > 0:
            blocks[event - 1] = take(sizes[event - 1 - first])
        else:
            give(blocks.pop(-event - 1))


def as_timeline(events: list[int], sizes: list[int]) -> Timeline:
    num_events, num_blocks = len(events), len(sizes)
    return Timeline(
        device="gpu",
        events=np.array(events, dtype=np.int32),
        phases=np.zeros(num_events, dtype=np.uint8),
        steps=np.zeros(num_events, dtype=np.int32),
        num_bytes=np.array(sizes, dtype=np.int64),
        categories=np.zeros(num_blocks, dtype=np.uint8),
        origins=np.zeros(num_blocks, dtype=np.uint8),
        ops=np.zeros(num_blocks, dtype=np.int32),
        modules=np.zeros(num_blocks, dtype=np.int32),
        tensors=np.zeros(num_blocks, dtype=np.int32),
    )


if __name__ == "__main__":
    main()
