"""One optimizer step: precision, accumulation, clipping, update; and what an out-of-memory changes.

An out-of-memory is a transaction.  Before the update, all the step has done is undone, the
micro-batch is halved and the step begins again: it is the step of a run that had the small
micro-batch from the start.  In the update the gradients are whole and the micro-batch is gone, so
the update goes on where it stopped.  In an evaluation the part that failed is halved.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from memfit.errors import BadInput, OutOfMemory
from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.accumulation import (
    micro_batches,
    num_samples,
    on_device,
    slice_samples,
)
from memfit.techniques.loss import in_chunks
from memfit.techniques.offload import ActivationOffload
from memfit.techniques.precision import (
    forward_context,
    gradient_scaler,
    input_dtype,
    loss_divisor,
)
from memfit.techniques.returned_loss import loss_and_targets
from memfit.techniques.transaction import Before, attempt, free_memory
from memfit.techniques.update import Update

_NO_TARGET = "the batch has no target: every label is masked, so there is no loss"


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did.  ``loss`` is the mean over ``num_targets`` targets, in nats."""

    loss: float
    num_targets: int
    grad_norm: float | None
    """Global norm before clipping; None when the recipe does not clip."""

    batch_size: int = 0
    """Samples of a micro-batch, as they went through."""

    notes: tuple[str, ...] = ()
    """A sentence on each out-of-memory that the step survived."""

    skipped: bool = False
    """Whether gradients overflowed in fp16, so that nothing was updated."""

    loss_scale: float | None = None
    """What the loss was scaled by; None but in fp16."""


@dataclass(frozen=True, slots=True)
class EvalOutcome:
    """The sum of losses over ``num_targets`` targets, in nats."""

    loss_sum: float
    num_targets: int
    notes: tuple[str, ...] = ()
    """A sentence on each out-of-memory that the evaluation survived."""


@dataclass(slots=True)
class _Gradients:
    """Where the gradients of a step stand."""

    loss_sum: float = 0.0
    num_targets: int = 0
    divisor: float = 1
    """What the gradients are to be divided by, beside the loss's scale."""


class Step:
    """One optimizer step over a batch of any number of samples."""

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
        self.advise: Callable[[], str] = lambda: (
            "make the sequence shorter, or choose --checkpointing full, --loss chunked or an "
            "optimizer with less state"
        )
        """What to write instead when even one sample does not fit."""
        self.num_halvings = 0
        """How often the micro-batch was halved because memory ran out."""
        self.num_eval_halvings = 0
        """How often it was for evaluations alone, whose last batch may be a small one."""
        self._loss = job.loss
        self._model = model
        self._optimizer = optimizer
        self._trained = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = next(model.parameters()).device
        self._offload = ActivationOffload(recipe, self._device, model)
        self._update = Update(optimizer)
        self._in_backward = recipe.optimizer_in_backward
        self.scaler = gradient_scaler(recipe, self._device.type)

    def __call__(self, batch: Any, batch_size: int | None = None) -> StepOutcome:
        """Runs forward and backward over each micro-batch of ``batch``, then the update.

        Args:
            batch: of any number of samples.
            batch_size: samples of a micro-batch; the recipe's when left out.

        Raises:
            BadInput: the batch's tensors disagree in dim 0, no sample has a target, or the loss
                is not one number.
            OutOfMemory: even one sample at a time does not fit.
        """
        asked = batch_size or self.recipe.batch_size
        if self._in_backward and num_samples(batch) > asked:
            raise BadInput(
                f"the batch has {num_samples(batch)} samples and a micro-batch {asked}: with the "
                "optimizer in backward each micro-batch would update the weights; give as many "
                "samples as a micro-batch has"
            )
        notes: list[str] = []
        before = self._before(notes)
        while True:
            size = self.micro_batch(asked)
            try:
                found, out_of_memory = attempt(lambda: self._gradients(batch, size))  # noqa: B023
            except BaseException:
                self._undo(before)  # or the caller's next step would begin with these gradients
                raise
            if found is not None:
                break
            assert out_of_memory is not None
            self._undo(before)
            self._halve(min(size, num_samples(batch)), asked, out_of_memory, notes)
        gradients, grad_norm = found
        scale = self.scaler.get_scale() if self.scaler else None
        updated = self._take_update(notes)
        self._offload.step_ends()
        return StepOutcome(
            loss=gradients.loss_sum / gradients.num_targets,
            num_targets=gradients.num_targets,
            grad_norm=grad_norm,
            batch_size=min(size, num_samples(batch)),
            notes=tuple(notes),
            skipped=not updated,
            loss_scale=scale,
        )

    def evaluate(self, batch: Any, batch_size: int | None = None) -> EvalOutcome:
        """The loss of ``batch`` without gradients, one micro-batch at a time.

        Raises:
            OutOfMemory: even one sample at a time does not fit.
        """
        self.on_phase("eval")
        asked = batch_size or self.recipe.batch_size
        loss_sum, num_targets = 0.0, 0
        notes: list[str] = []
        start, total = 0, num_samples(batch)
        self._model.eval()
        try:
            while start < total:
                count = min(self._eval_batch(asked), total - start)
                found, out_of_memory = attempt(lambda: self._evaluate(batch, start, count))  # noqa: B023
                if found is None:
                    assert out_of_memory is not None
                    free_memory(self._device)
                    if count == 1:
                        self._stop("an evaluation of one sample does not fit", out_of_memory)
                    while self._eval_batch(asked) >= count:
                        self.num_eval_halvings += 1
                    notes.append(
                        f"memory ran out with {count} samples at a time in an evaluation, which "
                        f"goes on with {self._eval_batch(asked)} ({out_of_memory})"
                    )
                    continue
                loss_sum += found[0]
                num_targets += found[1]
                start += count
        finally:
            self._model.train()
        return EvalOutcome(loss_sum, num_targets, tuple(notes))

    def micro_batch(self, asked: int) -> int:
        """Samples that go through at once where ``asked`` would, had memory never run out."""
        return _halved(asked, self.num_halvings)

    def shrink(self) -> bool:
        """Halves the micro-batch from here on: the step fits, but only just.

        False, and nothing changes, where it cannot be halved: one sample is left, or each
        micro-batch updates the weights.
        """
        if self._in_backward or self.micro_batch(self.recipe.batch_size) == 1:
            return False
        self.num_halvings += 1
        return True

    def state(self) -> dict[str, Any]:
        """What a saved state must hold of a step, as plain data; for :meth:`load_state`."""
        return {
            "num_halvings": self.num_halvings,
            "batch_size": self.recipe.batch_size,
            "scaler": self.scaler.state_dict() if self.scaler else None,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what :meth:`state` gave; states saved before there was one hold nothing."""
        num_halvings = state.get("num_halvings", 0)
        former = state.get("batch_size", self.recipe.batch_size)
        if former != self.recipe.batch_size:  # what fitted then fits now
            fitted = _halved(former, num_halvings)
            num_halvings = 0 if fitted == former else _halvings(self.recipe.batch_size, fitted)
        self.num_halvings = 0 if self._in_backward else num_halvings
        if self.scaler is not None and state.get("scaler"):
            self.scaler.load_state_dict(dict(state["scaler"]))

    # ------------------------------------------------------------------ forward and backward

    def _gradients(self, batch: Any, size: int) -> tuple[_Gradients, float | None]:
        """Leaves the gradients of the mean loss in place, clipped; with their norm before that."""
        gradients = self._accumulate(batch, size)
        if gradients.num_targets == 0:
            raise BadInput(_NO_TARGET)
        self.on_phase("optimizer")
        if self._in_backward:
            return gradients, None
        if self.scaler is not None:
            self.scaler.unscale_(self._update)  # type: ignore[arg-type]  # it has param_groups
        divisor = gradients.divisor
        if divisor != 1:
            for gradient in self._gradient_tensors():
                gradient.div_(divisor)
        if self.recipe.clip_norm is None:
            return gradients, None
        return gradients, self._clip(self.recipe.clip_norm)

    def _clip(self, clip_norm: float) -> float:
        tensors = self._gradient_tensors()
        norm = nn.utils.get_total_norm(tensors)
        owners = [_Owner(tensor) for tensor in tensors]
        nn.utils.clip_grads_with_norm_(owners, clip_norm, norm)  # type: ignore[arg-type]
        return norm.item()

    def _gradient_tensors(self) -> list[Tensor]:
        """The gradients, wherever they are."""
        if hasattr(self._optimizer, "gradients"):
            elsewhere: list[Tensor] = self._optimizer.gradients()
            return elsewhere
        return [p.grad for p in self._trained if p.grad is not None]

    def _accumulate(self, batch: Any, size: int) -> _Gradients:
        """Adds up gradients of the sums of losses, or of the mean over the whole batch."""
        done = _Gradients()
        total, targets_before, is_mean = num_samples(batch), 0, False
        for part, count in micro_batches(batch, size):
            self.on_phase("forward")
            micro = on_device(part, self._device, input_dtype(self.recipe))
            loss, targets = self._forward(micro)
            if targets is None:
                is_mean, targets = True, count
                done.loss_sum += loss.item() * count
                if count != total:
                    loss = loss * (count / total)
            else:
                done.loss_sum += loss.item()
                if self._in_backward:
                    if targets == 0:  # before the weights are updated
                        raise BadInput(_NO_TARGET)
                    loss = loss / targets
                elif self.scaler is not None:
                    divisor = loss_divisor(targets_before or targets)
                    loss = loss / divisor
                    targets_before = targets_before or targets
            done.num_targets += targets
            if self.scaler is not None:
                loss = self.scaler.scale(loss)
            self.on_phase("backward")
            loss.backward()
            # The graph and the micro-batch must be gone before the next forward pass begins.
            del part, micro, loss
        if not is_mean and not self._in_backward:
            done.divisor = done.num_targets
            if self.scaler is not None:
                done.divisor = done.num_targets / loss_divisor(targets_before)
        return done

    def _forward(self, micro: Any) -> tuple[Tensor, int | None]:
        """The loss of one micro-batch: ``(sum, number of targets)``, or ``(mean, None)``."""
        with (
            forward_context(self.recipe, self._device.type),
            in_chunks(self.recipe),
            self._offload.forward(),
        ):
            found = self._loss(self._model, micro)
        return loss_and_targets(found)

    def _eval_batch(self, asked: int) -> int:
        return _halved(self.micro_batch(asked), self.num_eval_halvings)

    def _evaluate(self, batch: Any, start: int, count: int) -> tuple[float, int]:
        part = slice_samples(batch, start, count)
        micro = on_device(part, self._device, input_dtype(self.recipe))
        with torch.inference_mode():
            loss, targets = self._forward(micro)
        if targets is None:
            return loss.item() * count, count
        return loss.item(), targets

    # ------------------------------------------------------------------ the update

    def _take_update(self, notes: list[str]) -> bool:
        """Updates the parameters; False when fp16's gradients overflowed and it was left out."""
        # A scheduler of PyTorch asks for it, and would take the update of parts for none.
        self._optimizer._opt_called = True  # type: ignore[attr-defined]
        if self._in_backward:
            return True
        self._update.begin()
        before = -1
        updated = False
        while True:
            found, out_of_memory = attempt(self._update_once)
            if found is not None:
                updated = found
                break
            assert out_of_memory is not None
            if self._update.num_done == before:
                self._stop("the update of one parameter does not fit", out_of_memory)
            before = self._update.num_done
            free_memory(self._device)
            notes.append(
                f"memory ran out in the update, which went on where it stopped ({out_of_memory})"
            )
        self._optimizer.zero_grad(set_to_none=True)
        return updated

    def _update_once(self) -> bool:
        if self.scaler is None:
            return self._update.step()
        if not self._update.is_done:
            # It gives what the update gives, and None where gradients have overflowed.
            updated = self.scaler.step(self._update)  # type: ignore[arg-type]
            self._update.skip(updated is None)
        self.scaler.update()
        return not self._update.was_skipped

    # ------------------------------------------------------------------ out of memory

    def _before(self, notes: list[str]) -> Before:
        """What the step may have to go back to."""
        before, out_of_memory = attempt(lambda: Before(self._model, self._device))
        if before is None:
            assert out_of_memory is not None
            free_memory(self._device)
            notes.append(f"memory ran out before the step, and was freed ({out_of_memory})")
            before = Before(self._model, self._device)
        return before

    def _undo(self, before: Before) -> None:
        """Makes it as if the step had not begun."""
        self._offload.step_ends()
        self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._trained:
            parameter.grad = None
        if self.scaler is not None:
            # The gradients that it has unscaled are gone; its own state is as before the step.
            state = self.scaler.state_dict()
            self.scaler = gradient_scaler(self.recipe, self._device.type)
            assert self.scaler is not None
            self.scaler.load_state_dict(state)
        free_memory(self._device)
        before.restore()

    def _halve(self, size: int, asked: int, out_of_memory: str, notes: list[str]) -> None:
        """Halves the micro-batch, of which ``size`` samples were really there."""
        if self._in_backward:
            self._stop(
                "with the optimizer in backward some weights may be updated already, so the step "
                "cannot be taken back",
                out_of_memory,
            )
        if size == 1:
            self._stop("one sample at a time does not fit", out_of_memory)
        while self.micro_batch(asked) >= size:
            self.num_halvings += 1
        notes.append(
            f"memory ran out with {size} samples at a time: the step was taken back and goes on "
            f"with {self.micro_batch(asked)} ({out_of_memory})"
        )

    def _stop(self, why: str, out_of_memory: str) -> NoReturn:
        raise OutOfMemory(f"memory ran out: {why} ({out_of_memory}); {self.advise()}")


def _halved(num_samples: int, times: int) -> int:
    """Halved and rounded up, so often; at least 1."""
    return max(1, -(-num_samples >> times))


def _halvings(batch_size: int, fitted: int) -> int:
    """How often ``batch_size`` is halved until it is at most ``fitted``."""
    return next(n for n in itertools.count() if _halved(batch_size, n) <= fitted)


class _Owner:
    """Something with a ``.grad``, as torch's clipping takes it."""

    def __init__(self, grad: Tensor) -> None:
        self.grad = grad
