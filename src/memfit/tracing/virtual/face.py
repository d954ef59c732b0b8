"""What Python is told: the virtual GPU is ``cuda:0``.

Class attributes of ``torch.Tensor`` and functions of ``torch`` that read or show a device are
replaced, so every thread sees the same.  In C++ the device is ``vgpu:0``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from memfit.tracing.virtual import (
    compiling,
    distributed,
    factories,
    host,
    reading,
    serialization,
    storages,
)
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.memory import is_virtual

_Tensor: Any = torch.Tensor
_device_of = _Tensor.device.__get__
_C: Any = torch._C
CUDA = torch.device("cuda", 0)


class Face:
    """Installs what Python is told, over one virtual GPU."""

    def __init__(self, gpu: Dispatch) -> None:
        self.gpu = gpu
        self._is_forked = False
        """In a process that the run forked, as data loaders do: CUDA refuses to work there."""

    def to_device(self, device: Any) -> Any:
        """A device argument of the user's code as C++ gets it.

        Raises:
            RuntimeError: ``cuda:1`` and above, as on a machine with one card; or a forked process.
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
        if self._is_forked:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
                "you must use the 'spawn' start method"
            )
        if index is not None and index > 0:
            _C._cuda_setDevice(index)  # which raises
        return self.gpu.device

    def _forked(self) -> None:
        self._is_forked = True
        torch.cuda._is_in_bad_fork = lambda: True

    def install(self) -> None:
        """Replaces attributes of ``torch.Tensor`` and functions of ``torch``."""
        os.register_at_fork(after_in_child=self._forked)
        _install_properties()
        self._install_moves()
        factories.install(self.to_device)
        reading.install(self.gpu)
        storages.install(self.gpu)
        serialization.install(self.gpu, host.install(self.gpu))
        compiling.install(self.gpu)
        distributed.install(self.gpu)

    def _install_moves(self) -> None:
        move = _Tensor.to

        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if args and isinstance(args[0], (str, torch.device, int)):
                args = (self.to_device(args[0]), *args[1:])
            if kwargs.get("device") is not None:
                kwargs["device"] = self.to_device(kwargs["device"])
            moved: torch.Tensor = move(tensor, *args, **kwargs)
            return moved

        def cuda(
            tensor: torch.Tensor,
            device: Any = None,
            non_blocking: bool = False,
            memory_format: torch.memory_format = torch.preserve_format,
        ) -> torch.Tensor:
            target = "cuda" if device is None else device
            return to(tensor, target, non_blocking=non_blocking, memory_format=memory_format)

        def cpu(
            tensor: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format
        ) -> torch.Tensor:
            return to(tensor, "cpu", memory_format=memory_format)

        _Tensor.to, _Tensor.cuda, _Tensor.cpu = to, cuda, cpu
        _Tensor.pin_memory = _pin_memory
        _Tensor.is_pinned = _is_pinned


def _install_properties() -> None:
    def device(tensor: torch.Tensor) -> torch.device:
        return CUDA if is_virtual(tensor) else _device_of(tensor)

    _Tensor.device = property(device)
    _Tensor.is_cuda = property(lambda tensor: is_virtual(tensor))
    get_data, set_data = _Tensor.data.__get__, _Tensor.data.__set__

    def assign(tensor: torch.Tensor, value: torch.Tensor) -> None:
        if is_virtual(tensor) == is_virtual(value):
            set_data(tensor, value)
        else:
            _exchange(tensor, value)

    _Tensor.data = property(lambda tensor: get_data(tensor), assign)
    functions: Any = torch
    compatible = functions._has_compatible_shallow_copy_type
    functions._has_compatible_shallow_copy_type = _moves_in_place(compatible)


def _pin_memory(tensor: Any, device: Any = None) -> torch.Tensor:
    """Pinned memory is the host's: the tensor itself will do, and remembers."""
    tensor._is_pinned = True
    pinned: torch.Tensor = tensor
    return pinned


def _is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    return getattr(tensor, "_is_pinned", False)


def _moves_in_place(compatible: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """``Module.to`` keeps its Parameter objects, as between CPU and CUDA."""

    def answer(first: torch.Tensor, second: torch.Tensor) -> bool:
        return is_virtual(first) != is_virtual(second) or compatible(first, second)

    return answer


def _exchange(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """``tensor.data = value`` across devices: C++ refuses, so the implementations are swapped."""
    needs_grad, grad = tensor.requires_grad, tensor.grad
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
    if grad is not None:
        # Module.to moves the gradient next, by the same assignment, and drops this one.
        tensor.grad = grad.to(tensor.device)
