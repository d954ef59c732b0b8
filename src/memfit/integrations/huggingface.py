"""A callback for ``transformers.Trainer``: predicted against measured memory, shown and logged.

    MemfitCallback.attach(trainer)

The figures join what the trainer logs (``memfit/measured_peak_bytes``, ...), so they are in its
history and wherever it reports to.  In ``callbacks=[MemfitCallback()]`` it comes after the
trainer's reporters, which then do not see them; ``attach`` puts it before.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.trainer_callback import TrainerCallback

from memfit.integrations.comparison import Comparison, Given
from memfit.integrations.forecast import CannotTell, forecast, like
from memfit.records.recipe import Recipe

_OPTIMIZERS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adafactor": "adafactor",
    "adamw_8bit": "adamw-8bit",
    "adamw_bnb_8bit": "adamw-8bit",
    "lion_8bit": "lion-8bit",
    "adamw_torch_4bit": "adamw-4bit",
}
"""``TrainingArguments.optim`` -> ``Recipe.optimizer``, where both take the same state."""


class MemfitCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Shows and logs the memory of a Trainer's steps.

    Args:
        prediction: a ``Prediction``, the file of ``memfit predict --json``, or bytes.  Left out,
            the first batch is waited for, and the step is predicted from the trainer's own model
            and arguments; the table says why, when it cannot be.
    """

    def __init__(self, prediction: Given | None = None) -> None:
        self.comparison = Comparison(prediction)
        self._batch: Any = None
        self._hook: Any = None

    @classmethod
    def attach(cls, trainer: Any, prediction: Given | None = None) -> MemfitCallback:
        """Adds the callback to a trainer, before its reporters."""
        callback = cls(prediction)
        trainer.callback_handler.callbacks.insert(0, callback)
        return callback

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.comparison.predicted is None:
            model = kwargs["model"]
            self._hook = model.register_forward_pre_hook(self._see, with_kwargs=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.comparison.memory.begin(kwargs["model"], [kwargs.get("optimizer")])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.comparison.memory.end()
        if self._batch is not None and self.comparison.predicted is None:
            batch, self._batch = self._batch, None
            self._forecast(args, kwargs["model"], batch)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        found = self.comparison.metrics()
        if logs is not None:
            logs.update(found)
        if state.log_history:  # it has a copy already
            state.log_history[-1].update(found)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._hook is not None:
            self._hook.remove()
        if state.is_world_process_zero:
            print(self.comparison.table())

    def _see(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """The first batch is there: its shapes are all that is kept."""
        self._hook.remove()
        self._batch = {
            name: like(value)
            for name, value in kwargs.items()
            if isinstance(value, torch.Tensor) and value.dim()
        }

    def _forecast(self, args: Any, model: nn.Module, batch: Any) -> None:
        inner = getattr(model, "module", model)
        if not isinstance(inner, PreTrainedModel):
            self.comparison.why_not = (
                f"{type(inner).__name__} is not a model of transformers, which its configuration "
                "would build anew: give a prediction"
            )
            return
        kind, config = type(inner), copy.deepcopy(inner.config)
        forecast(
            self.comparison,
            kind.__name__,
            build=lambda: kind(config),
            loss=lambda anew, batch: anew(**batch).loss,
            batch=batch,
            settings=lambda size: _recipe(args, inner, size),
            device=inner.device,
        )


def _recipe(args: Any, model: nn.Module, batch_size: int) -> Recipe:
    """The Trainer's arguments in memfit's words."""
    optim = str(getattr(args.optim, "value", args.optim))
    if optim not in _OPTIMIZERS:
        raise CannotTell(f"memfit has no optimizer that takes what optim={optim!r} takes")
    pure = any(p.dtype == torch.bfloat16 for p in model.parameters())
    return Recipe(
        precision="bf16-pure" if pure else "bf16" if args.bf16 else "fp16" if args.fp16 else "fp32",
        batch_size=batch_size,
        accumulate=args.gradient_accumulation_steps,
        checkpointing="full" if args.gradient_checkpointing else "none",
        optimizer=_OPTIMIZERS[optim],
        clip_norm=args.max_grad_norm or None,
    )
