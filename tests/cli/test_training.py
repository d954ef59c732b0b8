"""How a run is shown while it goes."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from memfit.cli import training
from memfit.cli.progress import shown_progress
from memfit.cli.training import shown_training
from memfit.records.plan import Plan
from memfit.records.recipe import Recipe
from memfit.records.runlog import StepRecord
from memfit.units import GiB, MiB

PLAN = Plan(
    target="gpt2",
    recipe=Recipe(),
    device="cpu",
    seq_len=1024,
    budget_bytes=2 * GiB,
    predicted_peak_bytes=GiB,
)


def record_of(step: int, **changes: Any) -> StepRecord:
    settings: dict[str, Any] = {
        "step": step,
        "loss": 3.21987,
        "learning_rate": 1e-3,
        "grad_norm": 1.0,
        "num_targets": 16_384,
        "seconds": 2.0,
        "resident_bytes": GiB + 512 * MiB,
    }
    return StepRecord(**settings | changes)


def shown(records: list[StepRecord], *, terminal: bool, num_steps: int = 200) -> str:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=terminal, no_color=True, highlight=False)
    with shown_training(console, PLAN, num_steps) as (on_step, on_note):
        for record in records:
            on_step(record)
        on_note("the end")
    return out.getvalue()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its number is the time, in seconds."""
    now = [100.0]
    monkeypatch.setattr(training.time, "monotonic", lambda: now[0])
    return now


def test_a_line_tells_of_loss_speed_time_left_and_memory_beside_the_prediction():
    first = record_of(1, live_bytes=300 * MiB, peak_bytes=900 * MiB)

    assert shown([first], terminal=False).splitlines()[0] == (
        "step 1/200  loss 3.220  8,192 tokens/s  6 min 38 s left  "
        "tensors 300.0 MiB, peak 900.0 MiB, predicted 1.00 GiB; process 1.50 GiB"
    )


def test_a_step_that_was_not_measured_shows_what_was_measured_last():
    records = [
        record_of(1, live_bytes=300 * MiB, peak_bytes=900 * MiB),
        record_of(2, live_bytes=301 * MiB, peak_bytes=800 * MiB),
        record_of(3),
    ]

    last = shown(records, terminal=False, num_steps=3).splitlines()[-2]

    assert last.startswith("step 3/3  loss 3.220  8,192 tokens/s  0.0 s left  ")
    assert "tensors 301.0 MiB, peak 900.0 MiB" in last


def test_where_lines_stay_there_is_one_every_ten_seconds_and_at_the_end(clock):
    class Ticking(list[StepRecord]):
        def __iter__(self) -> Any:
            for record in super().__iter__():
                yield record
                clock[0] += 4

    said = shown(Ticking(map(record_of, range(1, 10))), terminal=False, num_steps=9)

    lines = [line.split()[1] for line in said.splitlines() if line.startswith("step")]
    assert lines == ["1/9", "4/9", "7/9", "9/9"]


def test_an_evaluation_and_a_note_are_lines_of_their_own():
    said = shown([record_of(5, eval_loss=3.1)], terminal=False)

    assert said.splitlines()[1:] == ["step 5: held-out loss 3.100", "the end"]


def test_a_terminal_shows_two_lines_that_fit_80_columns():
    almost = 1023 * MiB
    first = record_of(1, live_bytes=almost, peak_bytes=almost, resident_bytes=almost)

    said = shown([first], terminal=True, num_steps=100_000)

    assert "building the model" in said
    lines = said.replace("\x1b[2K", "\n").replace("\r", "\n").splitlines()
    (progress,) = {line.partition("step ")[2] for line in lines if "step " in line}
    (memory,) = {line for line in lines if "tensors" in line}
    assert progress.startswith("1/100000  loss 3.220  8,192 tokens/s  55 h 33 min left")
    assert "…" not in said
    assert "process 1023.0 MiB" in memory


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_for_terminals_and_comes_with_the_first_news(terminal):
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=terminal, no_color=True)
    with shown_progress(console, "learning") as on_progress:
        assert "learning" not in out.getvalue()
        for done in range(11):
            on_progress(done, 10)

    assert ("learning" in out.getvalue()) is terminal
