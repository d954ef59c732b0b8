"""How much memory a run really takes: the CPU allocator's count, and the process's size.

Listening costs microseconds a block, which is much of a small model's step, so not every step is
listened to: the first ones from the model's construction on, the first ones of each stage of a
schedule, which may leave something behind, then one in ten and each that evaluates.  Between two
such stretches the count of live bytes is carried over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil
import torch

from memfit.observer import Observer, Unwatched
from memfit.profiler.capture import Capture
from memfit.records.stages import Stages
from memfit.records.timeline import Timeline

MEASURED_STEPS = 2
"""Steps from the start, and of each stage, that are measured: as many as a prediction traces."""

_MEASURE_EVERY = 10


class Meter:
    """Measures stretches of a run.

    ``live_bytes`` and ``peak_bytes`` tell of the last stretch that was measured; both are None
    for one that was not.  On a GPU, counting costs nothing: each stretch is measured.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._gpu = device if device is not None and device.type == "cuda" else None
        self.timeline: Timeline | None = None
        """The recording of the first stretch, on the CPU."""
        self.live_bytes: int | None = None
        self.peak_bytes: int | None = None
        self._carried_bytes = 0
        self._process = psutil.Process()

    @contextlib.contextmanager
    def stretch(self, *, measured: bool) -> Iterator[Observer]:
        """A stretch of the run; gives the observer that the run must tell its phases."""
        self.live_bytes = self.peak_bytes = None
        if self._gpu is not None:
            torch.cuda.reset_peak_memory_stats(self._gpu)
            yield Unwatched()
            self.live_bytes = torch.cuda.memory_allocated(self._gpu)
            self.peak_bytes = torch.cuda.max_memory_allocated(self._gpu)
            return
        if not measured:
            yield Unwatched()
            return
        capture = Capture()
        with capture:
            yield capture
        self.timeline = self.timeline or capture.timeline
        self.peak_bytes = self._carried_bytes + max(0, capture.rise_bytes)
        self._carried_bytes += capture.net_bytes
        self.live_bytes = self._carried_bytes

    def resident_bytes(self) -> int:
        """The process's resident memory now."""
        return int(self._process.memory_info().rss)


def is_measured(step: int, stages: Stages | None, *, evaluates: bool) -> bool:
    """Whether a step is measured that is not one of the first ones of all."""
    begins_stage = stages is not None and stages.place(step) <= MEASURED_STEPS
    return evaluates or begins_stage or step % _MEASURE_EVERY == 0


def step_memory(timeline: Timeline, step: int) -> tuple[int | None, int | None]:
    """Live bytes after one step of a recording, and the highest within it; None when unknown."""
    within = timeline.curve()[timeline.steps == step]
    return (int(within[-1]), int(within.max())) if len(within) else (None, None)
