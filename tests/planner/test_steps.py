"""The run that a prediction traces is the run that training makes, its stages included."""

from __future__ import annotations

import pytest
from small_jobs import JOBS

from memfit.observer import Unwatched
from memfit.planner.predict import predict
from memfit.planner.steps import lengths_of, steps_of
from memfit.profiler.capture import Capture
from memfit.records.recipe import Recipe

STAGED = Recipe(batch_size=2, seq_schedule="8:10,16:20,24")


def test_without_stages_every_step_has_the_same_length():
    assert lengths_of(Recipe(), 24, 3) == [24, 24, 24]


def test_each_stage_has_the_steps_until_they_repeat():
    assert lengths_of(STAGED, 24, 3) == [8, 8, 16, 16, 24, 24, 24]


def test_a_stage_of_a_single_step_has_one():
    assert lengths_of(Recipe(seq_schedule="8:1,16:2,24"), 24, 2) == [8, 16, 24, 24]


@pytest.mark.parametrize(
    ("num_steps", "lengths"),
    [
        (1, [8]),
        (10, [8, 8]),
        (11, [8, 8, 16]),
        (20, [8, 8, 16, 16]),
        (21, [8, 8, 16, 16, 24]),
        (1000, [8, 8, 16, 16, 24, 24]),
    ],
)
def test_no_step_is_traced_that_a_short_run_does_not_come_to(num_steps, lengths):
    assert lengths_of(STAGED, 24, 2, num_steps) == lengths
    assert lengths_of(Recipe(), 24, 2, num_steps) == [24, 24][:num_steps]


def test_the_predicted_peak_of_a_staged_run_is_the_measured_one():
    job = JOBS["gpt"]()
    steps = steps_of(job, STAGED, lengths_of(STAGED, 24, 2), "cpu")
    steps(Unwatched())
    capture = Capture()
    with capture:
        steps(capture)

    assert predict(job, STAGED).peak.allocated_bytes == int(capture.timeline.curve().max())
