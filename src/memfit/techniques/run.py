"""A run, piece by piece: the model is built, steps are taken, the held-out part is evaluated.

Prediction strings these pieces together over batches without data, training over real ones.  A
batch lives exactly as long as the piece that needs it, in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memfit.job import Job
from memfit.observer import Observer
from memfit.records.recipe import Recipe
from memfit.techniques.apply import Applied, apply
from memfit.techniques.step import EvalOutcome, StepOutcome


def build(job: Job, recipe: Recipe, observer: Observer, *, device: str = "cpu") -> Applied:
    """Applies the recipe to the job on a device, watched."""
    observer.phase("init")
    applied = apply(job, recipe, device=device, on_phase=observer.phase)
    observer.model(applied.model)
    return applied


def take_step(
    applied: Applied,
    number: int,
    make_batch: Callable[[], Any],
    observer: Observer,
    batch_size: int | None = None,
) -> StepOutcome:
    """Makes the batch of step ``number``, counted from 1, and takes the step.

    ``batch_size`` is the micro-batch; the recipe's when left out.
    """
    observer.step(number)
    observer.phase("forward")
    batch = make_batch()
    observer.inputs(batch)
    return applied.step(batch, batch_size)


def evaluate(
    applied: Applied,
    batches: Sequence[Callable[[], Any]],
    observer: Observer,
    batch_size: int | None = None,
) -> EvalOutcome:
    """The loss over batches that are made one at a time, each of one micro-batch or less."""
    loss_sum, num_targets = 0.0, 0
    notes: tuple[str, ...] = ()
    observer.phase("eval")
    for make_batch in batches:
        batch = make_batch()
        observer.inputs(batch)
        outcome = applied.step.evaluate(batch, batch_size)
        del batch
        loss_sum += outcome.loss_sum
        num_targets += outcome.num_targets
        notes += outcome.notes
    return EvalOutcome(loss_sum, num_targets, notes)
