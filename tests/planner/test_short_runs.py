"""A run that is over before its steps repeat has a peak of its own."""

from __future__ import annotations

from tiny_runs import SEQ_LEN, tiny_gpt

from memfit.planner.budget import fit_to_budget
from memfit.planner.predict import predict
from memfit.records.recipe import Recipe

JOB = tiny_gpt()


def peak(recipe: Recipe, num_steps: int | None = None) -> int:
    return predict(JOB, recipe, num_steps=num_steps).peak.device_bytes


def test_a_single_step_takes_less_as_it_runs_without_the_optimizers_state():
    recipe = Recipe(batch_size=2)

    assert peak(recipe, 1) < peak(recipe, 2) == peak(recipe, 1000) == peak(recipe)


def test_a_short_run_has_the_choice_of_a_long_one_and_a_prediction_of_its_own():
    whole, half = Recipe(batch_size=4), Recipe(batch_size=2, accumulate=2)
    budget_bytes = peak(whole) - 1
    assert peak(whole, 1) <= budget_bytes  # a single step would go through as a whole

    plan, prediction = fit_to_budget(
        JOB,
        Recipe(),
        target="tiny",
        budget_bytes=budget_bytes,
        samples_per_step=4,
        seq_len=SEQ_LEN,
        num_steps=1,
    )

    assert plan.recipe == half
    assert plan.predicted_peak_bytes == prediction.peak.device_bytes == peak(half, 1)
