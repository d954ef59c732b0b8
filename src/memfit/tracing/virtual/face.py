"""What Python is told: the virtual GPU is ``cuda:0``.

Class attributes of ``torch.Tensor`` and functions of ``torch`` that read or show a device are
replaced, so every thread sees the same.  In C++ the device is ``vgpu:0``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.memory import is_virtual

_Tensor = torch.Tensor
_device_of = torch._C.TensorBase.device.__get__
CUDA = torch.device("cuda", 0)

_NEW = ("new_tensor", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")
_MAKERS = (
    "tensor",
    "as_tensor",
    "asarray",
    "empty_like",
    "full_like",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "zeros_like",
)
"""Functions that take a device, beside those that ``torch.device`` as a context serves."""


class Face:
    """Installs what Python is told, over one virtual GPU."""

    def __init__(self, gpu: Dispatch) -> None:
        self.gpu = gpu

    def to_device(self, device: Any) -> Any:
        """A device argument of the user's code as C++ gets it.

        Raises:
            RuntimeError: ``cuda:1`` and above, as on a machine with one card.
        """
        if device is None or isinstance(device, bool):
            return device
        if isinstance(device, int):
            index: int | None = device
        else:
            named = torch.device(device) if isinstance(device, str) else device
            if not isinstance(named, torch.device) or named.type != "cuda":
                return device
            index = named.index
        if index not in (None, 0):
            raise RuntimeError(
                f"CUDA error: invalid device ordinal (cuda:{index} on a machine with one GPU)"
            )
        return self.gpu.device

    def install(self) -> None:
        """Replaces attributes of ``torch.Tensor`` and functions of ``torch``."""
        self._install_properties()
        self._install_moves()
        self._install_factories()

    def _install_properties(self) -> None:
        def device(tensor: torch.Tensor) -> torch.device:
            return CUDA if is_virtual(tensor) else _device_of(tensor)

        _Tensor.device = property(device)  # type: ignore[assignment, method-assign]
        _Tensor.is_cuda = property(lambda tensor: is_virtual(tensor))  # type: ignore[assignment]
        get_data, set_data = _Tensor.data.__get__, _Tensor.data.__set__

        def assign(tensor: torch.Tensor, value: torch.Tensor) -> None:
            if is_virtual(tensor) == is_virtual(value):
                set_data(tensor, value)
            else:
                _exchange(tensor, value)

        _Tensor.data = property(lambda tensor: get_data(tensor), assign)  # type: ignore[assignment]
        torch._has_compatible_shallow_copy_type = _moves_in_place(
            torch._has_compatible_shallow_copy_type
        )

    def _install_moves(self) -> None:
        move = torch._C.TensorBase.to

        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if args and isinstance(args[0], (str, torch.device, int)):
                args = (self.to_device(args[0]), *args[1:])
            if kwargs.get("device") is not None:
                kwargs["device"] = self.to_device(kwargs["device"])
            return move(tensor, *args, **kwargs)

        def cuda(
            tensor: torch.Tensor,
            device: Any = None,
            non_blocking: bool = False,
            memory_format: torch.memory_format = torch.preserve_format,
        ) -> torch.Tensor:
            target = self.to_device("cuda" if device is None else device)
            return move(tensor, target, non_blocking=non_blocking, memory_format=memory_format)

        def cpu(
            tensor: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format
        ) -> torch.Tensor:
            return move(tensor, "cpu", memory_format=memory_format)

        _Tensor.to, _Tensor.cuda, _Tensor.cpu = to, cuda, cpu  # type: ignore[method-assign]
        _Tensor.pin_memory = lambda tensor, device=None: tensor  # type: ignore[method-assign]
        _Tensor.is_pinned = lambda tensor, device=None: False  # type: ignore[method-assign]
        for name in _NEW:
            setattr(_Tensor, name, self._told(getattr(torch._C.TensorBase, name)))

    def _install_factories(self) -> None:
        served = torch.utils._device._device_constructors()
        names = {
            getattr(function, "__name__", "")
            for function in served
            if getattr(torch, getattr(function, "__name__", ""), None) is function
        }
        for name in sorted(names | set(_MAKERS)):
            setattr(torch, name, self._told(getattr(torch, name)))
        context = torch.utils._device.DeviceContext

        def in_context(
            this: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if function in served and kwargs.get("device") is None:
                kwargs["device"] = self.to_device(this.device)
            return function(*args, **kwargs)

        context.__torch_function__ = in_context

    def _told(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` with its device argument translated and pinned memory left out."""

        @functools.wraps(function)
        def told(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") is not None:
                kwargs["device"] = self.to_device(kwargs["device"])
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            return function(*args, **kwargs)

        return told


def _moves_in_place(compatible: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """``Module.to`` keeps its Parameter objects, as between CPU and CUDA."""

    def answer(first: torch.Tensor, second: torch.Tensor) -> bool:
        return is_virtual(first) != is_virtual(second) or compatible(first, second)

    return answer


def _exchange(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """``tensor.data = value`` across devices: C++ refuses, so the implementations are swapped."""
    needs_grad = tensor.requires_grad
    hooks, post_hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    with torch.no_grad():
        fresh = value.detach()
    if needs_grad:
        fresh.requires_grad_(True)
    tensor.grad = None
    torch._C._swap_tensor_impl(tensor, fresh)
    if hooks:
        tensor._backward_hooks = hooks
    if post_hooks:
        tensor._post_accumulate_grad_hooks = post_hooks
