"""A callback for Lightning: predicted against measured memory of a step, shown and logged.

    trainer = lightning.Trainer(callbacks=[MemfitCallback()])

The figures go through ``LightningModule.log``, so they are wherever the trainer logs to.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from memfit.errors import MissingExtra
from memfit.integrations.comparison import Comparison, Given
from memfit.integrations.forecast import CannotTell, forecast, like
from memfit.records.recipe import Recipe

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise MissingExtra("lightning", "lightning", "the callback for Lightning") from error

_PRECISIONS = {
    "32-true": "fp32",
    "32": "fp32",
    "bf16-mixed": "bf16",
    "16-mixed": "fp16",
    "bf16-true": "bf16-pure",
}
"""``Trainer.precision`` -> ``Recipe.precision``."""


class MemfitCallback(Callback):
    """Shows and logs the memory of a Lightning module's steps.

    Args:
        prediction: a ``Prediction``, the file of ``memfit predict --json``, or bytes.  Left out,
            the step is predicted from the module when its first batch is there, if
            ``save_hyperparameters()`` says how to build it anew; else the table says why not.
    """

    def __init__(self, prediction: Given | None = None) -> None:
        self.comparison = Comparison(prediction)
        self._batch: Any = None

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._batch is None and self.comparison.predicted is None:
            self._batch = like(batch)
        self.comparison.memory.begin(pl_module, trainer.optimizers)

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
        kind, arguments = type(module), copy.deepcopy(dict(module.hparams))
        if not arguments:
            self.comparison.why_not = (
                f"nothing says how to build {kind.__name__} anew: call save_hyperparameters() in "
                "its __init__, or give a prediction"
            )
            return
        forecast(
            self.comparison,
            kind.__name__,
            build=lambda: _Bare(kind(**arguments)),
            loss=lambda bare, batch: bare(batch),
            batch=self._batch,
            settings=lambda size: _recipe(trainer, size),
            device=module.device,
        )


class _Bare(nn.Module):
    """The module without its trainer: what it logs goes nowhere."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        for name in ("log", "log_dict"):
            object.__setattr__(module, name, lambda *args, **kwargs: None)

    def forward(self, batch: Any) -> Tensor:
        out = self.module.training_step(batch, 0)
        loss: Tensor = out["loss"] if isinstance(out, dict) else out
        return loss


def _recipe(trainer: Any, batch_size: int) -> Recipe:
    """The trainer's settings in memfit's words."""
    if len(trainer.optimizers) != 1:
        raise CannotTell(f"it has {len(trainer.optimizers)} optimizers, and memfit's step has one")
    inner = getattr(trainer.optimizers[0], "optimizer", trainer.optimizers[0])
    group = inner.param_groups[0]
    if isinstance(inner, (torch.optim.AdamW, torch.optim.Adam)):
        optimizer = "adamw"
    elif isinstance(inner, torch.optim.SGD) and group["momentum"]:
        optimizer = "sgd"
    else:
        raise CannotTell(f"memfit has no optimizer that takes what {type(inner).__name__} takes")
    precision = str(trainer.precision)
    if precision not in _PRECISIONS:
        raise CannotTell(f"memfit has no precision {precision!r}")
    return Recipe(
        precision=_PRECISIONS[precision],
        batch_size=batch_size,
        accumulate=trainer.accumulate_grad_batches,
        optimizer=optimizer,
        clip_norm=trainer.gradient_clip_val or None,
    )
