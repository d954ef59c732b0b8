"""The public functions in which planner and trainer meet.

A recipe may leave something to a prediction (``checkpointing="budget:2GiB"``).  Planner and
trainer do not know each other, so it is here that a recipe is settled before it is applied, and
that a run which does not fit is given the planner's advice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from memfit.data.text import TextData
from memfit.errors import DoesNotFit, MemfitError, OutOfMemory
from memfit.job import Job
from memfit.planner.advice import advise
from memfit.planner.finder import FoundBatch, largest_batch
from memfit.planner.predict import settled
from memfit.records.plan import Plan
from memfit.records.recipe import Recipe
from memfit.records.runlog import RunLog, StepRecord
from memfit.techniques import apply as techniques
from memfit.techniques.apply import Applied
from memfit.trainer import engine
from memfit.trainer.options import TrainOptions
from memfit.trainer.probe import MARGIN, Probed, probe
from memfit.units import MiB, format_size


def apply(
    job: Job,
    recipe: Recipe | Plan,
    *,
    device: str = "cpu",
    seq_len: int | None = None,
    on_phase: Callable[[str], None] | None = None,
) -> Applied:
    """Builds the job's model and makes a training step of it, for people who keep their own loop.

    Args:
        job: how to build the model, a batch, and the loss.
        recipe: the techniques, or a plan with its recipe.
        device: where the model is built and trained: ``cpu`` or ``cuda``.
        seq_len: tokens of a sample, which a budget is settled for; the plan's or the job's own
            length when left out.
        on_phase: called with ``forward``, ``backward``, ``optimizer`` or ``eval`` as each begins.

    Returns:
        ``(model, optimizer, step)``.  ``step(batch)`` runs one optimizer step over a batch of any
        number of samples: precision, accumulation, clipping, and the retry when memory runs out.
        ``step.evaluate(batch)`` gives the loss without gradients.

    Raises:
        BadInput: the recipe cannot be applied to this model.
        DoesNotFit: no way to apply it reaches its budget.
    """
    length = _length(job, recipe, seq_len)
    ready = _settled(job, recipe, device, length)
    applied = techniques.apply(job, ready, device=device, on_phase=on_phase)
    applied.step.advise = lambda: advise(job, ready, device=device, seq_len=length)
    return applied


def train(
    job: Job,
    plan: Plan | Recipe,
    data: TextData | str | Path | Sequence[str | Path],
    out: Path | str,
    *,
    options: TrainOptions | None = None,
    seq_len: int | None = None,
    device: str = "cpu",
    resume: bool = False,
    force: bool = False,
    on_step: Callable[[StepRecord], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> RunLog:
    """Trains a language model on text; see :func:`memfit.trainer.engine.train`.

    A budget in the recipe is settled by prediction first.

    Raises:
        DoesNotFit: no way to apply the recipe reaches its budget.
        BadInput, OutOfMemory, MemfitError: as the trainer says.
    """
    length = _length(job, plan, seq_len)
    recipe = _settled(job, plan, device, length)
    ready = replace(plan, recipe=recipe) if isinstance(plan, Plan) else recipe
    return engine.train(
        job,
        ready,
        data,
        out,
        options=options,
        seq_len=length,
        device=device,
        resume=resume,
        force=force,
        on_step=on_step,
        on_note=on_note,
        advise=lambda: advise(job, recipe, device=device, seq_len=length),
    )


def find_batch_size(
    job: Job,
    recipe: Recipe,
    *,
    longest_batch: Callable[[int], Any],
    samples_per_step: int,
    budget_bytes: int,
    device: str = "cpu",
    seq_len: int | None = None,
) -> FoundBatch:
    """The largest micro-batch that fits on the real device, and the accumulation that goes with it.

    Each size is tried for real: the model is built, and two steps and an evaluation are taken.

    Args:
        recipe: its batch size is where the search begins; what a prediction says is seldom far off.
        longest_batch: number of samples -> a batch of that many, of the greatest length.
        samples_per_step: stays the same, whatever the micro-batch.
        budget_bytes: what the peak must stay in, less 2 %.
        device: where it is tried: ``cpu`` or ``cuda``.
        seq_len: tokens of a sample, which a budget in the recipe is settled for.

    With the optimizer in backward each micro-batch would update the weights, so only the whole
    step is tried.

    Raises:
        BadInput: the recipe cannot be applied to this job.
        DoesNotFit: the smallest micro-batch takes more than the budget less 2 %, or no way to
            apply the recipe reaches its own budget.
        OutOfMemory: memory ran out with the smallest micro-batch.
    """
    settled = _settled(job, recipe, device, _length(job, recipe, seq_len))
    smallest, predicted = 1, min(recipe.batch_size, samples_per_step)
    if settled.optimizer_in_backward:
        smallest = predicted = samples_per_step

    def fits(batch_size: int) -> bool:
        num_micro = min(2, -(-samples_per_step // batch_size))
        tried = settled.but(batch_size=batch_size, accumulate=num_micro)
        batch = longest_batch(min(samples_per_step, batch_size * num_micro))
        found = probe(job, tried, batch, budget_bytes=budget_bytes, device=device)
        if batch_size == smallest and not found.fits:
            raise _too_large(found, smallest, budget_bytes, settled)
        return found.fits

    return largest_batch(fits, samples_per_step=samples_per_step, predicted=predicted)


def _too_large(found: Probed, samples: int, budget_bytes: int, recipe: Recipe) -> MemfitError:
    """The error where the smallest micro-batch that may be tried does not fit."""
    if recipe.optimizer_in_backward:
        tried = f"the whole step, {samples} at a time,"
        change = (
            "write fewer samples a step, --checkpointing full or --loss chunked, or leave "
            "--optimizer-in-backward out, with which a step cannot be made of micro-batches"
        )
    else:
        tried = "one sample at a time"
        change = (
            "make the sequence shorter, or choose --checkpointing full, --loss chunked or an "
            "optimizer with less state"
        )
    if found.peak_bytes is None:
        return OutOfMemory(f"memory ran out when {tried} was tried: {change}")
    enough = math.ceil(found.peak_bytes / (1 - MARGIN))
    return DoesNotFit(
        f"{tried} takes {format_size(found.peak_bytes)} when tried, and a try must leave "
        f"{MARGIN * 100:g} % of {format_size(budget_bytes)} free: give --memory "
        f"{enough // MiB + 1}MiB or more; or {change}",
        found.peak_bytes,
    )


def _length(job: Job, recipe: Recipe | Plan, seq_len: int | None) -> int | None:
    """The longest sequence: as asked, by the schedule, or the plan's."""
    if isinstance(recipe, Plan):
        seq_len = recipe.seq_len if seq_len is None else seq_len
        recipe = recipe.recipe
    return recipe.stages.check_longest(seq_len) if recipe.stages else seq_len


def _settled(job: Job, recipe: Recipe | Plan, device: str, seq_len: int | None) -> Recipe:
    recipe = recipe.recipe if isinstance(recipe, Plan) else recipe
    return settled(job, recipe, device=device, seq_len=seq_len)
