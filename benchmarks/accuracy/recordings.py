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

from benchmarks.accuracy import course_a_runs, course_b_runs
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

WORK = tuple(PHASES.index(name) for name in ("forward", "backward", "optimizer"))


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
    is_whole: bool
    """From an empty allocator on; otherwise it holds the work of the last step only."""

    causes: str = ""
    """Why the streams differ, where they do."""


RECORDINGS = (
    Recorded(
        name="course-b-forward-t200",
        title="course model B, forward three times, T=200, fp32",
        run=partial(course_b_runs.forward, batch_size=10, seq_len=200, precision="fp32"),
        gpu="rtx-3090",
        torch="2.6",
        is_whole=True,
    ),
    Recorded(
        name="course-b-train-t100",
        title="course model B, three training steps, T=100, fp32",
        run=partial(course_b_runs.train, batch_size=10, seq_len=100, precision="fp32"),
        gpu="rtx-3090",
        torch="2.6",
        is_whole=True,
    ),
    Recorded(
        name="course-b-train-t200-bf16",
        title="course model B, three training steps, T=200, bf16 autocast",
        run=partial(course_b_runs.train, batch_size=10, seq_len=200, precision="bf16"),
        gpu="rtx-3090",
        torch="2.6",
        is_whole=True,
    ),
    Recorded(
        name="course-a-medium-t128-train",
        title="course model A medium, one training step, T=128, fp32",
        run=partial(
            course_a_runs.recorded_step, size="medium", batch_size=4, seq_len=128, warmups=1
        ),
        gpu="rtx-3090",
        torch="2.11",
        is_whole=False,
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
    predicted = predicted_stream(timeline, is_whole=recorded.is_whole)
    segments: tuple[int, ...] = ()
    if recorded.is_whole:
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


def predicted_stream(timeline: Timeline, *, is_whole: bool) -> list[Event]:
    """The run up to its taking down, or the work of its last step; empty blocks are left out."""
    events = timeline.events[: end_event(timeline)]
    if not is_whole:
        last = timeline.steps[: len(events)] == timeline.steps.max()
        events = events[last & np.isin(timeline.phases[: len(events)], WORK)]
    sizes = timeline.num_bytes[np.abs(events) - 1]
    return [
        (block, num_bytes)
        for block, num_bytes in zip(events.tolist(), sizes.tolist(), strict=True)
        if num_bytes
    ]
