"""Shows a training run as it goes: loss, speed, memory now and at its peak, and the time left.

On a terminal it is a line that changes; elsewhere a line is written now and then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from memfit.cli import choices
from memfit.records.plan import Plan
from memfit.records.runlog import StepRecord
from memfit.units import format_duration, format_size

_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def shown_training(
    plan: Plan, num_steps: int
) -> Iterator[tuple[Callable[[StepRecord], None], Callable[[str], None]]]:
    """Gives the callbacks for a step and for a note."""
    console = choices.stderr()
    bar = Progress(
        TextColumn("{task.fields[text]}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("training", total=num_steps, text="first steps")
        board = _Board(plan, num_steps)

        def on_step(record: StepRecord) -> None:
            text = board.line(record)
            bar.update(task, completed=record.step, text=text)
            if not console.is_terminal and board.is_due(record):
                console.print(
                    f"step {record.step}/{num_steps}  {text}", markup=False, soft_wrap=True
                )
            if record.eval_loss is not None:
                _print_eval(console, record)

        yield on_step, lambda note: console.print(note, markup=False)


def _print_eval(console: Console, record: StepRecord) -> None:
    console.print(f"step {record.step}: held-out loss {record.eval_loss:.3f}", markup=False)


class _Board:
    """What is shown of the run so far."""

    def __init__(self, plan: Plan, num_steps: int) -> None:
        self._predicted = plan.predicted_peak_bytes
        self._num_steps = num_steps
        self._live: int | None = None
        self._peak = 0
        self._seconds_per_step: float | None = None
        self._printed = float("-inf")

    def line(self, record: StepRecord) -> str:
        """One line about the run as of this step."""
        self._live = record.live_bytes if record.live_bytes is not None else self._live
        self._peak = max(self._peak, record.peak_bytes or 0)
        before = self._seconds_per_step
        # A slow average: the time left should not jump with each step.
        self._seconds_per_step = (
            record.seconds if before is None else 0.9 * before + 0.1 * record.seconds
        )
        left = (self._num_steps - record.step) * self._seconds_per_step
        parts = [
            f"loss {record.loss:.3f}",
            f"{record.num_targets / record.seconds:,.0f} tokens/s",
            f"tensors {_size(self._live)}, peak {_size(self._peak)} "
            f"(predicted {format_size(self._predicted)})",
            f"process {_size(record.resident_bytes)}",
            f"{format_duration(left)} left",
        ]
        return "  ".join(parts)

    def is_due(self, record: StepRecord) -> bool:
        """Whether it is time for a line where lines stay."""
        now = time.monotonic()
        due = now - self._printed >= _SECONDS_BETWEEN_LINES or record.step == self._num_steps
        if due:
            self._printed = now
        return due


def _size(num_bytes: int | None) -> str:
    return "?" if num_bytes is None else format_size(num_bytes)
