"""Shows a training run as it goes: loss, speed, time left, and memory measured beside predicted.

On a terminal two lines change in place; elsewhere a line is written now and then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from memfit.records.plan import Plan
from memfit.records.runlog import StepRecord
from memfit.units import format_duration, format_size

_BAR_WIDTH = 16
_SECONDS_BETWEEN_LINES = 10.0


@contextlib.contextmanager
def shown_training(
    console: Console, plan: Plan, num_steps: int
) -> Iterator[tuple[Callable[[StepRecord], None], Callable[[str], None]]]:
    """Gives the callbacks for a step and for a note."""
    board = _Board(plan, num_steps)
    live = Live(Text("building the model"), console=console, refresh_per_second=4)
    printed = float("-inf")

    def on_step(record: StepRecord) -> None:
        nonlocal printed
        board.add(record)
        now = time.monotonic()
        if console.is_terminal:
            live.update(board.lines())
        elif now - printed >= _SECONDS_BETWEEN_LINES or record.step == num_steps:
            printed = now
            console.print(f"{board.progress()}  {board.memory()}", markup=False, soft_wrap=True)
        if record.eval_loss is not None:
            on_note(f"step {record.step}: held-out loss {record.eval_loss:.3f}")

    def on_note(note: str) -> None:
        console.print(note, markup=False, soft_wrap=True)

    with live if console.is_terminal else contextlib.nullcontext():
        yield on_step, on_note


class _Board:
    """What is known of the run so far."""

    def __init__(self, plan: Plan, num_steps: int) -> None:
        self._predicted_bytes = plan.predicted_peak_bytes
        self._num_steps = num_steps
        self._live_bytes = self._peak_bytes = 0
        self._seconds_per_step = 0.0

    def add(self, record: StepRecord) -> None:
        """Takes in a step; its memory may not have been measured."""
        if self._seconds_per_step == 0:
            self._seconds_per_step = record.seconds
        # A slow average: the time left should not jump with each step.
        self._seconds_per_step += 0.1 * (record.seconds - self._seconds_per_step)
        if record.live_bytes is not None:
            self._live_bytes = record.live_bytes
        self._peak_bytes = max(self._peak_bytes, record.peak_bytes or 0)
        self._last = record

    def progress(self) -> str:
        """``step 30/1000  loss 5.714  6,717 tokens/s  2 min 05 s left``."""
        record = self._last
        left = (self._num_steps - record.step) * self._seconds_per_step
        return (
            f"step {record.step}/{self._num_steps}  loss {record.loss:.3f}  "
            f"{record.num_targets / record.seconds:,.0f} tokens/s  {format_duration(left)} left"
        )

    def memory(self) -> str:
        """Tensors now and at their peak, as measured and as predicted; and the whole process."""
        return (
            f"tensors {format_size(self._live_bytes)}, peak {format_size(self._peak_bytes)}, "
            f"predicted {format_size(self._predicted_bytes)}; "
            f"process {format_size(self._last.resident_bytes or 0)}"
        )

    def lines(self) -> Group:
        """The two lines of a terminal."""
        bar = ProgressBar(total=self._num_steps, completed=self._last.step, width=_BAR_WIDTH)
        first = Table.grid(padding=(0, 2, 0, 0))
        first.add_row(bar, Text(self.progress()))
        return Group(first, Text(self.memory(), style="dim"))
