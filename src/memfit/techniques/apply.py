"""Turns a job and a recipe into a model, an optimizer and a step.

This is the one place where techniques are applied, in one order, whether the tensors are real
or hold no data: the step that is predicted is the step that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.checkpointing import checkpoint_blocks
from memfit.techniques.in_backward import update_in_backward
from memfit.techniques.loss import chunk_loss
from memfit.techniques.offloaded_optimizer import offload_optimizer
from memfit.techniques.optimizer import build_optimizer
from memfit.techniques.precision import building_context, check_parameters
from memfit.techniques.step import Step


class Applied(NamedTuple):
    """What :func:`apply` gives: ``model, optimizer, step = memfit.apply(job, recipe)``."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Step


def apply(
    job: Job,
    recipe: Recipe,
    *,
    device: str = "cpu",
    on_phase: Callable[[str], None] | None = None,
) -> Applied:
    """Builds the job's model and makes a training step of it.

    Args:
        job: how to build the model, a batch, and the loss.
        recipe: the techniques, without a budget; ``recipe.batch_size`` is the micro-batch.
        device: where the model is built, and where the step moves each micro-batch.
        on_phase: called with ``forward``, ``backward``, ``optimizer`` or ``eval`` as each begins.

    Returns:
        ``(model, optimizer, step)``.  ``step(batch)`` runs one optimizer step over a batch of
        any number of samples and returns a ``StepOutcome``.

    Raises:
        BadInput: the recipe cannot be applied to this model.
    """
    assert recipe.is_settled, "a budget becomes a recipe by prediction (planner.settle)"
    # On the device from the start: the host need not hold the model as well.
    with torch.device(device), building_context(recipe):
        model = job.model()
    model.to(device)
    model.train()
    check_parameters(model, recipe)
    # The head first: it is never inside a block.
    chunk_loss(model, recipe)
    # Before the optimizer: nothing here replaces a parameter, and blocks are still bare modules.
    checkpoint_blocks(model, recipe)
    # It must see the parameters as they will be trained.
    optimizer = build_optimizer(model, recipe)
    # Around the optimizer, whose state has not been made yet.
    optimizer = offload_optimizer(model, optimizer, recipe)
    # Last: it takes the update out of the step.
    update_in_backward(model, optimizer, recipe)
    return Applied(model, optimizer, Step(job, recipe, model, optimizer, on_phase))
