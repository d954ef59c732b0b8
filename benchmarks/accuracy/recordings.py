"""Recorded streams of allocations beside predicted ones, where the recordings are at hand.

The recordings are other people's files and no part of this project; they are looked for in
``../shared/ground_truth/snapshots``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.accuracy import course_a_runs, course_b_runs, single_ops
from benchmarks.accuracy.alignment import Comparison, Event, align
from benchmarks.accuracy.figures import end_event
from memfit.allocator.replay import replay_on_cuda
from memfit.allocator.version import TorchVersion
from memfit.devices.catalog import find
from memfit.observer import Observer
from memfit.profiler.snapshot import Recording, load_recording
from memfit.records.timeline import PHASES, Timeline
from memfit.tracing.virtual.run import trace_on_gpu

FOLDER = Path(__file__).parents[3] / "shared" / "ground_truth" / "snapshots"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """A recording, and the run that it is of."""

    name: str
    """The file, without its ending."""

    title: str
    run: Callable[[Observer], None]
    gpu: str
    """A card of the generation that the recording is from; it names none."""

    torch: str
    phases: tuple[str, ...] = ()
    """Which phases of the last step it holds; empty: all that happened, from an empty allocator."""

    causes: str = ""
    """Why the streams differ, where they do."""


RECORDINGS = (
    Recorded(
        name="course-b-forward-t200",
        title="course model B, forward three times, T=200, fp32",
        run=partial(course_b_runs.forward, batch_size=10, seq_len=200, precision="fp32"),
        gpu="rtx-3090",
        torch="2.6",
    ),
    Recorded(
        name="course-b-train-t100",
        title="course model B, three training steps, T=100, fp32",
        run=partial(course_b_runs.train, batch_size=10, seq_len=100, precision="fp32"),
        gpu="rtx-3090",
        torch="2.6",
    ),
    Recorded(
        name="course-b-train-t200-bf16",
        title="course model B, three training steps, T=200, bf16 autocast",
        run=partial(course_b_runs.train, batch_size=10, seq_len=200, precision="bf16"),
        gpu="rtx-3090",
        torch="2.6",
        causes=(
            "9 of the frees with which autocast drops its cache at the end of its region stand in "
            "another order: the order of a hash table on the GPU"
        ),
    ),
    Recorded(
        name="course-a-medium-t128-train",
        title="course model A medium, one training step, T=128, fp32",
        run=partial(
            course_a_runs.recorded_step, size="medium", batch_size=4, seq_len=128, warmups=1
        ),
        gpu="rtx-3090",
        torch="2.11",
        phases=("forward", "backward", "optimizer"),
    ),
    Recorded(
        name="course-a-xl-forward-t512-bf16-expandable",
        title="course model A xl, one forward and its graph's end, T=512, bf16 autocast",
        run=partial(
            course_a_runs.forward_only,
            size="xl",
            batch_size=4,
            seq_len=512,
            precision="bf16",
            warmups=1,
        ),
        gpu="b200",
        torch="2.11",
        phases=("forward", "eval"),
    ),
    Recorded(
        name="attention-eager",
        title="written-out attention, forward and backward, T=4096",
        run=partial(single_ops.written_out_attention, batch_size=8, seq_len=4096, head_width=16),
        gpu="rtx-3090",
        torch="2.6",
    ),
    Recorded(
        name="linear-fwd-bwd",
        title="three forwards of `nn.Linear(10000, 50000)`",
        run=partial(
            single_ops.linear_forwards, batch_size=5000, in_features=10_000, out_features=50_000
        ),
        gpu="h100-80gb",
        torch="2.6",
    ),
    Recorded(
        name="cross-entropy-vanilla",
        title="cross entropy of 1,024 x 128,000 bf16 logits, forward and backward",
        run=partial(single_ops.cross_entropy_alone, num_tokens=1024, vocab_size=128_000),
        gpu="rtx-3090",
        torch="2.9",
    ),
)


def available() -> tuple[Recorded, ...]:
    """The recordings that are here."""
    return tuple(one for one in RECORDINGS if (FOLDER / f"{one.name}.pickle").is_file())


def compare(recorded: Recorded) -> Comparison:
    """Traces the run and lays its stream beside the recorded one."""
    started = time.perf_counter()
    recording = load_recording(FOLDER / f"{recorded.name}.pickle")
    version = TorchVersion.parse(recorded.torch)
    timeline = trace_on_gpu(recorded.run, card=find(recorded.gpu), version=version).timeline
    predicted = predicted_stream(timeline, recorded.phases)
    segments: tuple[int, ...] = ()
    if not recorded.phases:
        reserved = replay_on_cuda(timeline, version=version).reserved[: end_event(timeline)]
        steps = np.diff(reserved, prepend=0)
        segments = tuple(int(step) for step in steps if step)
    return Comparison(
        name=recorded.name,
        title=recorded.title,
        alignment=align(recorded_stream(recording), predicted),
        recorded_segments=tuple(
            event.num_bytes for event in recording.events if event.action == "segment_alloc"
        ),
        predicted_segments=segments,
        causes=recorded.causes,
        seconds=time.perf_counter() - started,
    )


def recorded_stream(recording: Recording) -> list[Event]:
    """Allocations numbered in their order; what was live before counts down from 0 when freed."""
    stream: list[Event] = []
    numbers: dict[int, int] = {}
    num_blocks = num_older = 0
    for event in recording.events:
        if event.action == "alloc":
            num_blocks += 1
            numbers[event.address] = num_blocks
            stream.append((num_blocks, event.num_bytes))
        elif event.action == "free_completed":
            block = numbers.pop(event.address, None)
            if block is None:
                num_older += 1
                block = 1_000_000_000 + num_older  # no allocation of this stream
            stream.append((-block, event.num_bytes))
    return stream


def predicted_stream(timeline: Timeline, phases: tuple[str, ...] = ()) -> list[Event]:
    """The run up to its taking down, or some phases of its last step; empty blocks are left out."""
    events = timeline.events[: end_event(timeline)]
    if phases:
        last = timeline.steps[: len(events)] == timeline.steps.max()
        codes = [PHASES.index(phase) for phase in phases]
        events = events[last & np.isin(timeline.phases[: len(events)], codes)]
    sizes = timeline.num_bytes[np.abs(events) - 1]
    return [
        (block, num_bytes)
        for block, num_bytes in zip(events.tolist(), sizes.tolist(), strict=True)
        if num_bytes
    ]
