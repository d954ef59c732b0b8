"""A callback for ``transformers.Trainer``: predicted against measured memory, shown and logged.

    MemfitCallback.attach(trainer)

The figures join what the trainer logs (``memfit/measured_peak_bytes``, ...), so they are in its
history and wherever it reports to.  In ``callbacks=[MemfitCallback()]`` it comes after the
trainer's reporters, which then do not see them; ``attach`` puts it before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.trainer_callback import TrainerCallback

from memfit.integrations.comparison import Comparison, Given
from memfit.integrations.forecast import TakeStep, forecast, like


class MemfitCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Shows and logs the memory of a Trainer's steps.

    Args:
        prediction: a ``Prediction``, the file of ``memfit predict --json``, or bytes.  Left out,
            the first batch is waited for, and the trainer's own step is predicted; the table says
            why, when it cannot be.
    """

    def __init__(self, prediction: Given | None = None) -> None:
        self.comparison = Comparison(prediction)
        self._first_batch: Any = None
        self._hook: Any = None

    @classmethod
    def attach(cls, trainer: Any, prediction: Given | None = None) -> MemfitCallback:
        """Adds the callback to a trainer, before its reporters."""
        callback = cls(prediction)
        trainer.callback_handler.callbacks.insert(0, callback)
        return callback

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watch(kwargs["model"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.comparison.memory.begin(kwargs["model"], [kwargs.get("optimizer")], state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.comparison.memory.end()
        if self.comparison.predicted is None and self.comparison.why_not is None:
            self._hook.remove()  # the model's twin must not have it
            forecast(
                self.comparison,
                kwargs["model"],
                [kwargs.get("optimizer")],
                self._first_batch,
                args.gradient_accumulation_steps,
                _as_the_trainer(args),
            )
            self._watch(kwargs["model"])

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

    def _watch(self, model: nn.Module) -> None:
        self._hook = model.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """A micro-batch is there.  Those of a step were all made before it."""
        if model.training:
            self.comparison.memory.batch(kwargs)
            if self._first_batch is None:
                self._first_batch = like(
                    {name: value for name, value in kwargs.items() if isinstance(value, Tensor)}
                )


def _as_the_trainer(args: Any) -> TakeStep:
    """A step in the order of ``Trainer.training_step`` and ``Trainer._run_epoch``.

    Autocast and checkpointing are in the model: accelerate and the Trainer have put them there.
    """

    def take_step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[dict[str, Any]]
    ) -> None:
        for batch in list(batches):
            loss = model(**batch).loss
            if "num_items_in_batch" not in batch:
                loss = loss / args.gradient_accumulation_steps
            loss.backward()
            loss = loss.detach()
        if args.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        optimizer.step()
        model.zero_grad()

    return take_step
