"""The run that a prediction traces is the run that training makes, its stages included."""

from __future__ import annotations

from small_jobs import JOBS

from memfit.observer import Unwatched
from memfit.planner.predict import predict
from memfit.planner.steps import lengths_of, steps_of
from memfit.profiler.capture import Capture
from memfit.records.recipe import Recipe

STAGED = Recipe(batch_size=2, seq_schedule="8:10,16:20,24")


def test_without_stages_every_step_has_the_same_length():
    assert lengths_of(Recipe(), 24, 3) == [24, 24, 24]


def test_every_stage_has_a_step_and_the_first_one_more_for_the_optimizer_state():
    assert lengths_of(STAGED, 24, 3) == [8, 8, 16, 24, 24, 24]


def test_the_predicted_peak_of_a_staged_run_is_the_measured_one():
    job = JOBS["gpt"]()
    steps = steps_of(job, STAGED, lengths_of(STAGED, 24, 2), "cpu")
    steps(Unwatched())
    capture = Capture()
    with capture:
        steps(capture)

    assert predict(job, STAGED).peak.allocated_bytes == int(capture.timeline.curve().max())
