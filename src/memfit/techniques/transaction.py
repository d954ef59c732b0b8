"""What a step changes before its update, so that it can be undone: generators and buffers.

Gradients are simply dropped and parameters are not touched before the update.  But dropout has
drawn numbers, and BatchNorm has moved its statistics.
"""

from __future__ import annotations

import gc
import random
import traceback
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from memfit.profiler.messages import is_out_of_memory

T = TypeVar("T")


class Before:
    """The state of a run before a step, as far as forward and backward change it.

    Buffers are those that are saved with the model: by that definition the others hold no state.
    Their copies are on the host.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._host = torch.get_rng_state()
        self._device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self._where = device
        self._buffers = [(buffer, buffer.to("cpu", copy=True)) for buffer in _saved_buffers(model)]

    def restore(self) -> None:
        """Puts everything back."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._host)
        if self._device is not None:
            torch.cuda.set_rng_state(self._device, self._where)
        with torch.no_grad():
            for buffer, copy in self._buffers:
                buffer.copy_(copy)


class Attempt(NamedTuple, Generic[T]):
    """What :func:`attempt` gives: a result, or the text of an out-of-memory."""

    result: T | None
    out_of_memory: str | None


def attempt(run: Callable[[], T]) -> Attempt[T]:
    """Runs ``run``; an out-of-memory comes back as its text, without the exception.

    While an exception lives, its frames hold the tensors that are in the way.  Here it is gone,
    and what its frames held with it.
    """
    try:
        return Attempt(run(), None)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        text = f"{type(error).__name__}: {error}"
        seen: BaseException | None = error
        while seen is not None:
            traceback.clear_frames(seen.__traceback__)
            seen = seen.__cause__ or seen.__context__
    return Attempt(None, text)


def free_memory(device: torch.device) -> None:
    """Gives back what nothing refers to any more, after an out-of-memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _saved_buffers(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield buffer
