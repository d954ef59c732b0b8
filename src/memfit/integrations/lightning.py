"""A callback for Lightning: predicted against measured memory of a step, shown and logged.

    trainer = lightning.Trainer(callbacks=[MemfitCallback()])

The figures go through ``LightningModule.log``, so they are wherever the trainer logs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from memfit.errors import MissingExtra
from memfit.integrations.comparison import Comparison, Given
from memfit.integrations.forecast import TakeStep, forecast, like

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise MissingExtra("lightning", "lightning", "the callback for Lightning") from error


class MemfitCallback(Callback):
    """Shows and logs the memory of a Lightning module's steps.

    Args:
        prediction: a ``Prediction``, the file of ``memfit predict --json``, or bytes.  Left out,
            the trainer's own step is predicted when its first batch is there; the table says why,
            when it cannot be.
    """

    def __init__(self, prediction: Given | None = None) -> None:
        self.comparison = Comparison(prediction)
        self._first_batch: Any = None

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._first_batch is None:
            self._first_batch = like(batch)
        self.comparison.memory.begin(pl_module, trainer.optimizers, trainer.global_step)
        self.comparison.memory.batch(batch)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        measured = self.comparison.memory.end()
        if self.comparison.predicted is None and self.comparison.why_not is None:
            self._forecast(trainer, pl_module)
        if measured is not None:
            pl_module.log_dict({k: float(v) for k, v in self.comparison.metrics().items()})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            print(self.comparison.table())

    def _forecast(self, trainer: Any, module: Any) -> None:
        if not module.automatic_optimization:
            self.comparison.why_not = (
                f"{type(module).__name__} optimizes by itself (automatic_optimization is False), "
                "in an order that only it knows: give a prediction"
            )
            return
        forecast(
            self.comparison,
            module,
            trainer.optimizers,
            self._first_batch,
            trainer.accumulate_grad_batches,
            _as_lightning(trainer),
        )


def _as_lightning(trainer: Any) -> TakeStep:
    """A step in the order of Lightning's ``Closure`` (``loops/optimization/automatic.py``).

    Gradients are let go of after a forward pass, just before backward makes new ones.
    """

    def take_step(
        module: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[Any]
    ) -> None:
        for name in ("log", "log_dict"):  # what the module logs goes nowhere
            object.__setattr__(module, name, lambda *args, **kwargs: None)
        for number, batch in enumerate(batches):
            with trainer.precision_plugin.train_step_context():
                output = module.training_step(batch, number)  # type: ignore[operator]
            loss = output["loss"] if isinstance(output, dict) else output
            loss = loss / trainer.accumulate_grad_batches
            if number == 0:
                optimizer.zero_grad()
            loss.backward()
        if trainer.gradient_clip_val:
            nn.utils.clip_grad_norm_(module.parameters(), trainer.gradient_clip_val)
        optimizer.step()

    return take_step
