"""Turns a job and a recipe into a model, an optimizer and a step.

This is the one place where techniques are applied, in one order, whether the tensors are real
or hold no data: the step that is predicted is the step that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from memfit.errors import BadInput
from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.accumulation import micro_batches, num_samples, on_device
from memfit.techniques.checkpointing import checkpoint_blocks
from memfit.techniques.optimizer import build_optimizer
from memfit.techniques.precision import building_context, forward_context, input_dtype


class Applied(NamedTuple):
    """What :func:`apply` gives: ``model, optimizer, step = memfit.apply(job, recipe)``."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Step


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did.  ``loss`` is the mean over ``num_targets`` targets, in nats."""

    loss: float
    num_targets: int
    grad_norm: float | None
    """Global norm before clipping; None when the recipe does not clip."""


@dataclass(frozen=True, slots=True)
class EvalOutcome:
    """The sum of losses over ``num_targets`` targets, in nats."""

    loss_sum: float
    num_targets: int


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
        recipe: the techniques; ``recipe.batch_size`` is the micro-batch.
        device: where the model is built, and where the step moves each micro-batch.
        on_phase: called with ``forward``, ``backward``, ``optimizer`` or ``eval`` as each begins.

    Returns:
        ``(model, optimizer, step)``.  ``step(batch)`` runs one optimizer step over a batch of
        any number of samples and returns a :class:`StepOutcome`.

    Raises:
        BadInput: the recipe cannot be applied to this model.
    """
    # On the device from the start: the host need not hold the model as well.
    with torch.device(device), building_context(recipe):
        model = job.model()
    model.to(device)
    model.train()
    # Before the optimizer: nothing here replaces a parameter, and blocks are still bare modules.
    checkpoint_blocks(model, recipe)
    # Last: it must see the parameters as they will be trained.
    optimizer = build_optimizer(model, recipe)
    return Applied(model, optimizer, Step(job, recipe, model, optimizer, on_phase))


class Step:
    """One optimizer step: precision, accumulation, clipping, update."""

    def __init__(
        self,
        job: Job,
        recipe: Recipe,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        on_phase: Callable[[str], None] | None,
    ) -> None:
        self.recipe = recipe
        self.on_phase = on_phase or (lambda phase: None)
        self._loss = job.loss
        self._model = model
        self._optimizer = optimizer
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = self._trained[0].device

    def __call__(self, batch: Any) -> StepOutcome:
        """Runs forward and backward over each micro-batch of ``batch``, then the update.

        Raises:
            BadInput: the batch's tensors disagree in dim 0, no sample has a target, or the loss
                is not one number.
        """
        loss_sum, num_targets, is_mean = self._accumulate_gradients(batch)
        if num_targets == 0:
            raise BadInput("the batch has no target: every label is masked, so there is no loss")
        self.on_phase("optimizer")
        if not is_mean:
            for parameter in self._trained:
                if parameter.grad is not None:
                    parameter.grad.div_(num_targets)
        grad_norm = None
        if self.recipe.clip_norm is not None:
            grad_norm = nn.utils.clip_grad_norm_(self._trained, self.recipe.clip_norm).item()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return StepOutcome(loss_sum / num_targets, num_targets, grad_norm)

    def evaluate(self, batch: Any) -> EvalOutcome:
        """The loss of ``batch`` without gradients, one micro-batch at a time."""
        self.on_phase("eval")
        loss_sum, num_targets = 0.0, 0
        self._model.eval()
        try:
            with torch.no_grad():
                for part, count in micro_batches(batch, self.recipe.batch_size):
                    micro = on_device(part, self._device, input_dtype(self.recipe))
                    loss, targets = self._forward(micro)
                    loss_sum += loss.item() if targets is not None else loss.item() * count
                    num_targets += count if targets is None else targets
                    del part, micro, loss
        finally:
            self._model.train()
        return EvalOutcome(loss_sum, num_targets)

    def _accumulate_gradients(self, batch: Any) -> tuple[float, int, bool]:
        """Adds up gradients of the sums of losses, or of the mean over the whole batch.

        Returns the sum of losses, the number of targets, and whether gradients are a mean already.
        """
        loss_sum, num_targets, is_mean = 0.0, 0, False
        total = num_samples(batch)
        for part, count in micro_batches(batch, self.recipe.batch_size):
            self.on_phase("forward")
            micro = on_device(part, self._device, input_dtype(self.recipe))
            loss, targets = self._forward(micro)
            if targets is None:
                is_mean, targets = True, count
                loss_sum += loss.item() * count
                if count != total:
                    loss = loss * (count / total)
            else:
                loss_sum += loss.item()
            num_targets += targets
            self.on_phase("backward")
            loss.backward()
            # The graph and the micro-batch must be gone before the next forward pass begins.
            del part, micro, loss
        return loss_sum, num_targets, is_mean

    def _forward(self, micro: Any) -> tuple[Tensor, int | None]:
        """The loss of one micro-batch: ``(sum, number of targets)``, or ``(mean, None)``."""
        with forward_context(self.recipe, self._device.type):
            found = self._loss(self._model, micro)
        loss, num_targets = (found, None) if isinstance(found, Tensor) else found
        if loss.numel() != 1:
            raise BadInput(
                f"the loss is a tensor of shape {list(loss.shape)}: return the mean over the "
                "batch, a scalar, or the sum of the losses and the number of targets"
            )
        return loss, None if num_targets is None else int(num_targets)
