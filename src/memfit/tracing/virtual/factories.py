"""Functions that make tensors where they are told to: ``device="cuda"`` means the virtual GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

_MAKERS = (
    "tensor",
    "as_tensor",
    "asarray",
    "empty_like",
    "full_like",
    "normal",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "zeros_like",
)
"""Functions that take a device, beside those that ``torch.device`` as a context serves."""

_NEW = ("new_tensor", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "new")


def install(to_device: Callable[[Any], Any]) -> None:
    """Translates the device argument of every factory.

    Args:
        to_device: a device as the user says it -> as C++ gets it.
    """
    for name in _NEW:
        setattr(torch.Tensor, name, _told(getattr(torch._C.TensorBase, name), to_device))
    served = torch.utils._device._device_constructors()
    names = {
        getattr(function, "__name__", "")
        for function in served
        if getattr(torch, getattr(function, "__name__", ""), None) is function
    }
    for name in sorted(names | set(_MAKERS)):
        setattr(torch, name, _told(getattr(torch, name), to_device))

    def in_context(this: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in served and kwargs.get("device") is None:
            kwargs["device"] = to_device(this.device)
        return function(*args, **kwargs)

    context: Any = torch.utils._device.DeviceContext
    context.__torch_function__ = in_context


def _told(function: Callable[..., Any], to_device: Callable[[Any], Any]) -> Callable[..., Any]:
    """``function`` with its device argument translated and pinned memory left out."""

    @functools.wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = to_device(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return function(*args, **kwargs)

    return told
