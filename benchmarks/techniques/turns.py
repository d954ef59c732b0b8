"""A contender's end of the pipe: it waits to be told to take a step, and answers with its figures.

Resident memory is the highest of a step, which Linux counts anew when told to (``man proc``,
``/proc/pid/clear_refs``).
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from memfit.profiler.capture import Capture

CAPTURED_STEPS = 2
"""The first makes the optimizer's state, the second runs beside it."""


def status_bytes(field: str) -> int:
    """``VmRSS``, ``VmHWM``: of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {field}")


class Turns:
    """The turns of one contender, the first two of them recorded where ``captures`` is set."""

    def __init__(self, *, captures: bool = True) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print is not an answer
        self._number = 0
        self.capture = Capture()
        self._recording = ExitStack()
        self._captures = captures

    def ready(self) -> None:
        """Everything is imported: what is resident now is the floor."""
        self._send({"floor_bytes": status_bytes("VmRSS")})
        if self._captures:
            self._recording.enter_context(self.capture)

    def wait(self) -> bool:
        """Waits for the word to take a step; False when there are no more."""
        if sys.stdin.readline().strip() != "step":
            return False
        self._number += 1
        if self._captures and self._number <= CAPTURED_STEPS:
            self.capture.step(self._number)
            self.capture.phase("forward")
        Path("/proc/self/clear_refs").write_text("5")
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return True

    def done(self, num_tokens: int, **more: Any) -> None:
        """The step is taken; ``num_tokens`` of it count."""
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        answer: dict[str, Any] = {
            "cpu_seconds": cpu,
            "wall_seconds": wall,
            "num_tokens": num_tokens,
            "resident_peak_bytes": status_bytes("VmHWM"),
            **more,
        }
        if self._captures and self._number == CAPTURED_STEPS:
            self._recording.close()
            timeline = self.capture.timeline
            within = timeline.curve()[timeline.steps == CAPTURED_STEPS]
            answer |= {"tensor_peak_bytes": int(within.max()), "live_bytes": int(within[-1])}
        self._send(answer)

    def _send(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps(answer) + "\n")
        self._answers.flush()
