"""What autocast casts, and the casts of weights that it keeps (aten/src/ATen/autocast_mode.cpp)."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch

from memfit.allocator.version import TorchVersion
from memfit.tracing.virtual.memory import is_virtual

_KEEPS_GRAD_HISTORY = TorchVersion(2, 11)
"""Since when the cache leaves casts under inference mode out, and makes those under no_grad with
their history (pytorch pull request 165068)."""


class CastCache:
    """Casts of weights to 16 bit, kept until the outermost autocast region ends."""

    def __init__(self, version: TorchVersion) -> None:
        self._version = version
        self._casts: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._lock = threading.RLock()

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """``tensor`` in ``dtype``, from the cache where it is an fp32 weight in 16 bit."""
        if tensor.dtype is dtype or not is_eligible(tensor):
            return tensor
        if not self._may_keep(tensor, dtype):
            return tensor.to(dtype)
        with self._lock:
            held = self._casts.get(id(tensor))
            if held is not None and held[0]() is tensor:
                return held[1]
            if self._version >= _KEEPS_GRAD_HISTORY:
                with torch.enable_grad():
                    copy = tensor.to(dtype)
            else:
                copy = tensor.to(dtype)
            self._casts[id(tensor)] = weakref.ref(tensor), copy
            return copy

    def cast_all(self, values: Any, dtype: torch.dtype) -> list[Any]:
        """The arguments of one op, cast last to first as C++ evaluates them."""
        made = [self._cast_one(value, dtype) for value in reversed(values)]
        made.reverse()
        return made

    def clear(self) -> None:
        """The outermost region has ended."""
        with self._lock:
            casts = [copy for _, copy in self._casts.values()]
            self._casts.clear()
        drop_in_order(casts)

    def _cast_one(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self.cast(value, dtype)
        if isinstance(value, (list, tuple)):
            return [self._cast_one(item, dtype) for item in value]
        return value

    def _may_keep(self, tensor: torch.Tensor, dtype: torch.dtype) -> bool:
        return (
            dtype is torch.get_autocast_dtype("cuda")
            and tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
            and not (self._version >= _KEEPS_GRAD_HISTORY and torch.is_inference_mode_enabled())
        )


def is_eligible(tensor: torch.Tensor) -> bool:
    """Whether autocast may cast it: floating point on the device, and not double."""
    dtype = tensor.dtype
    return dtype.is_floating_point and dtype is not torch.float64 and is_virtual(tensor)


def drop_in_order(values: list[Any]) -> None:
    """Frees the values first to last, where a list that dies frees its last first."""
    for index in range(len(values)):
        value = values[index]
        values[index] = None
        if isinstance(value, list):
            drop_in_order(value)
        del value
