"""A probe measures what a prediction cannot see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_runs import SEQ_LEN, tiny_gpt

from memfit.api import find_batch_size
from memfit.errors import DoesNotFit, OutOfMemory
from memfit.planner.predict import predict
from memfit.records.recipe import Recipe
from memfit.trainer.probe import probe
from memfit.units import MiB, format_size

JOB = tiny_gpt()
RECIPE = Recipe(batch_size=2)


BATCH = JOB.batch(2, SEQ_LEN)


def tried(job, budget_bytes=1000 * MiB):
    return probe(job, RECIPE, BATCH, budget_bytes=budget_bytes)


def with_loss(before):
    def loss(model, batch):
        kept = before(model, batch)
        found = JOB.loss(model, batch)
        del kept
        return found

    return replace(JOB, loss=loss)


def test_memory_that_no_prediction_has_seen_is_measured():
    hidden = with_loss(lambda model, batch: torch.empty(32 * MiB, dtype=torch.uint8))
    assert tried(hidden).peak_bytes > predict(JOB, RECIPE).peak.requested_bytes + 30 * MiB
    assert not tried(hidden, 32 * MiB).fits
    assert tried(JOB, 32 * MiB).fits


def test_the_evaluation_is_measured_too():
    larger = with_loss(lambda model, batch: None if model.training else torch.empty(16 * MiB))
    assert tried(larger).peak_bytes > 64 * MiB


def test_running_out_of_memory_is_an_answer_and_generators_are_as_before():
    def runs_out(model, batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    before = torch.get_rng_state()
    assert tried(with_loss(runs_out)).peak_bytes is None
    assert tried(JOB).fits
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("predicted", [1, 8])
def test_the_batch_is_what_fits_for_real(predicted):
    def runs_out(model, batch):
        if batch.shape[0] > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    found = find_batch_size(
        with_loss(runs_out),
        RECIPE.but(batch_size=predicted),
        longest_batch=lambda count: JOB.batch(count, SEQ_LEN),
        samples_per_step=8,
        budget_bytes=1000 * MiB,
    )
    assert (found.batch_size, found.accumulate) == (3, 3)


def found_in(budget_bytes, job=JOB, recipe=RECIPE, samples=2):
    return find_batch_size(
        job,
        recipe,
        longest_batch=lambda count: JOB.batch(count, SEQ_LEN),
        samples_per_step=samples,
        budget_bytes=budget_bytes,
    )


def peak_of_one_sample() -> int:
    peak = probe(
        JOB, Recipe(accumulate=2), JOB.batch(2, SEQ_LEN), budget_bytes=1000 * MiB
    ).peak_bytes
    assert peak is not None
    return peak


def test_one_sample_inside_the_margin_is_said_to_be_so_with_a_budget_that_would_do():
    peak = peak_of_one_sample()

    with pytest.raises(DoesNotFit, match="one sample at a time takes") as caught:
        found_in(round(peak * 1.01))

    assert caught.value.smallest_bytes == peak
    assert f"takes {format_size(peak)} when tried, and a try must leave 2 % of" in str(caught.value)
    assert "free: give --memory 1MiB or more" in str(caught.value)
    assert found_in(round(peak * 1.021)).batch_size == 1


def test_memory_that_runs_out_with_one_sample_is_said():
    def runs_out(model, batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(OutOfMemory, match="memory ran out when one sample at a time was tried"):
        found_in(1000 * MiB, with_loss(runs_out))


def test_the_step_of_an_optimizer_in_backward_is_tried_as_a_whole():
    recipe = Recipe(batch_size=4, optimizer_in_backward=True, clip_norm=None)

    found = found_in(1000 * MiB, recipe=recipe, samples=4)
    assert (found.batch_size, found.accumulate, found.tried) == (4, 1, ((4, True),))

    with pytest.raises(DoesNotFit, match="the whole step, 4 at a time, takes") as caught:
        found_in(peak_of_one_sample() // 2, recipe=recipe, samples=4)
    assert "leave --optimizer-in-backward out" in str(caught.value)
