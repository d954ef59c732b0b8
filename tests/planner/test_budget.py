"""The recipe that a budget allows: compared with predictions of everything it could choose."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_runs import tiny_gpt
from torch import nn

from memfit.errors import BadInput, DoesNotFit
from memfit.job import Job
from memfit.planner import budget
from memfit.planner.budget import LADDER, fit_to_budget
from memfit.records.plan import Plan
from memfit.records.prediction import Prediction
from memfit.records.recipe import Recipe
from memfit.units import GiB, MiB, parse_size

SAMPLES = 4
SIZES = (1, 2, 4)
JOB = tiny_gpt(num_layers=4)
SEQ_LEN = 96
"""So long that the activations of one sample weigh more than the optimizer."""


@pytest.fixture(scope="module", autouse=True)
def _each_recipe_is_predicted_once() -> Iterator[None]:
    """The same recipes are asked for again and again; a budget changes nothing but the verdict."""
    really_predict = budget.predict
    predicted: dict[tuple[Job, Recipe], Prediction] = {}

    def predict(job: Job, recipe: Recipe, *, budget_bytes: int, **others: Any) -> Prediction:
        if (job, recipe) not in predicted:
            predicted[job, recipe] = really_predict(job, recipe, num_steps=1, **others)
        return replace(predicted[job, recipe], budget_bytes=budget_bytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "predict", predict)
        yield


@pytest.fixture(scope="module")
def peaks(_each_recipe_is_predicted_once: None) -> dict[tuple[str, int], int]:
    """The peak of each choice there is, in bytes."""
    return {
        (checkpointing, size): budget.predict(
            JOB,
            Recipe(checkpointing=checkpointing, batch_size=size, accumulate=SAMPLES // size),
            budget_bytes=1,
            seq_len=SEQ_LEN,
        ).peak.device_bytes
        for checkpointing, size in itertools.product(LADDER, SIZES)
    }


def fit(budget_bytes: int, **settings: Any) -> Plan:
    asked = {"recipe": Recipe(), "samples_per_step": SAMPLES, "seq_len": SEQ_LEN} | settings
    plan, prediction = fit_to_budget(JOB, target="tiny", budget_bytes=budget_bytes, **asked)
    assert prediction.recipe == plan.recipe
    assert prediction.peak.device_bytes == plan.predicted_peak_bytes
    return plan


def budgets_between(peaks: dict[Any, int]) -> list[int]:
    """Every budget at which something else may be chosen, and one of plenty."""
    return sorted(
        {*peaks.values(), *(peak - 1 for peak in peaks.values()), 2 * max(peaks.values())}
    )


def test_less_checkpointing_and_larger_micro_batches_take_more(peaks):
    assert all(
        peaks[checkpointing, one] < peaks[checkpointing, other]
        for checkpointing in LADDER
        for one, other in itertools.pairwise(SIZES)
    )
    assert peaks["none", 4] > peaks["selective", 4] > peaks["every:2", 4] > peaks["full", 4]


def test_the_choice_is_the_least_checkpointing_and_then_the_largest_micro_batch_that_fit(peaks):
    smallest = min(peaks.values())

    for budget_bytes in budgets_between(peaks):
        fitting = [choice for choice, peak in peaks.items() if peak <= budget_bytes]
        if budget_bytes < smallest:
            continue
        expected = min(fitting, key=lambda choice: (LADDER.index(choice[0]), -choice[1]))

        plan = fit(budget_bytes)

        assert (plan.recipe.checkpointing, plan.recipe.batch_size) == expected
        assert plan.predicted_peak_bytes == peaks[expected] <= budget_bytes


def test_the_samples_of_a_step_stay_as_asked(peaks):
    found = {fit(budget_bytes).recipe.samples_per_step for budget_bytes in sorted(peaks.values())}

    assert found == {SAMPLES}


def test_more_budget_never_gives_more_checkpointing(peaks):
    budgets = [size for size in budgets_between(peaks) if size >= min(peaks.values())]

    rungs = [LADDER.index(fit(size).recipe.checkpointing) for size in budgets]

    assert rungs == sorted(rungs, reverse=True)
    assert set(rungs) == {0, 1, 2, 3}


def test_the_smallest_size_that_would_do_is_in_the_error_and_does(peaks):
    smallest = min(peaks.values())
    with pytest.raises(DoesNotFit, match="one sample at a time with checkpointing") as caught:
        fit(smallest - 1)

    size = str(caught.value).partition("--memory ")[2].split()[0]

    assert caught.value.smallest_bytes == smallest
    assert smallest <= parse_size(size) < smallest + MiB
    assert fit(parse_size(size)).predicted_peak_bytes <= parse_size(size)
    assert fit(smallest).predicted_peak_bytes == smallest


def test_a_micro_batch_can_be_kept(peaks):
    recipe = Recipe(batch_size=2)

    plan = fit(peaks["none", 4], recipe=recipe, keep_batch_size=True)

    assert (plan.recipe.batch_size, plan.recipe.accumulate) == (2, 2)
    assert plan.reason == "nothing is computed twice, and the micro-batch is as asked"


def test_checkpointing_can_be_kept(peaks):
    plan = fit(peaks["none", 4], recipe=Recipe(checkpointing="every:3"), keep_checkpointing=True)

    assert (plan.recipe.checkpointing, plan.recipe.batch_size) == ("every:3", 4)
    assert plan.reason == "checkpointing is as asked, and the whole step goes through at once"


def test_what_was_tried_is_told_with_why_it_lost(peaks):
    told: list[str] = []

    plan = fit(peaks["none", 2], on_progress=told.append)

    assert plan.recipe.batch_size == 2
    assert plan.reason == (
        "nothing is computed twice, and 2 at a time is the largest micro-batch that fits"
    )
    assert len(told) == len(plan.rejected) + 1
    assert told[0].startswith("4 × 1 samples, checkpointing none: ")
    assert told[0].endswith(", does not fit")
    for lost in plan.rejected:
        assert lost.peak_bytes == peaks[lost.checkpointing, lost.batch_size]
        over = lost.peak_bytes > plan.budget_bytes
        assert lost.reason.endswith(" over the budget" if over else "is a smaller batch")


def test_a_budget_with_room_takes_one_prediction(peaks):
    assert fit(10 * max(peaks.values())).rejected == ()


def test_without_a_budget_there_is_what_the_machine_has_free(monkeypatch):
    monkeypatch.setattr(budget, "available_bytes", lambda: 10 * GiB)
    plan, prediction = fit_to_budget(
        JOB, Recipe(), target="tiny", budget_bytes=None, samples_per_step=SAMPLES, seq_len=SEQ_LEN
    )

    assert plan.budget_bytes == prediction.budget_bytes == 10 * GiB


def linear_job(loss: Any = lambda model, batch: model(batch).mean()) -> Job:
    return Job(
        model=lambda: nn.Linear(64, 64), batch=lambda size, _: torch.zeros(size, 99, 64), loss=loss
    )


def test_a_model_without_blocks_is_fitted_by_its_micro_batch_alone():
    def fit_linear(budget_bytes: int) -> Plan:
        plan, _ = fit_to_budget(
            linear_job(), Recipe(), target="linear", budget_bytes=budget_bytes, samples_per_step=8
        )
        return plan

    plenty = fit_linear(MiB)
    assert plenty.recipe.batch_size == 8
    assert fit_linear(plenty.predicted_peak_bytes - 1).recipe.batch_size < 8
    with pytest.raises(DoesNotFit, match="with checkpointing none"):
        fit_linear(1000)


def test_a_job_that_cannot_be_predicted_is_refused_with_its_own_words():
    job = linear_job(loss=lambda model, batch: model(batch).nonzero().sum())

    with pytest.raises(BadInput, match="size depends on values"):
        fit_to_budget(job, Recipe(), target="x", budget_bytes=MiB, samples_per_step=1)


def test_a_budget_of_checkpointing_is_met_with_a_smaller_micro_batch():
    def fit_within(num_bytes: int) -> Plan:
        recipe = Recipe(checkpointing=f"budget:{num_bytes}")
        return fit(1 << 40, recipe=recipe, keep_checkpointing=True)

    with pytest.raises(DoesNotFit, match="by checkpointing alone") as caught:
        fit_within(1024)
    smallest = caught.value.smallest_bytes

    plan = fit_within(smallest)

    assert (plan.recipe.batch_size, plan.recipe.accumulate) == (1, SAMPLES)
    assert plan.predicted_peak_bytes <= smallest
    assert fit_within(3 * smallest).recipe.batch_size > 1


def test_an_optimizer_in_backward_keeps_the_step_whole_and_recomputes_instead():
    recipe = Recipe(optimizer_in_backward=True, clip_norm=None)
    whole = fit(1 << 40, recipe=recipe)

    plan = fit(whole.predicted_peak_bytes - 1, recipe=recipe)

    assert plan.recipe.accumulate == 1
    assert plan.recipe.checkpointing != "none"
    assert f"checkpointing {plan.recipe.checkpointing} is the least that fits" in plan.reason
