"""Large tensors on the host that need neither memory nor time: parameters before they move to the
GPU, what is copied back from it, and what waits there, activations or an optimizer's state.

A script that builds an 8 B model on the host and moves it would take 32 GB here, and minutes to
fill it with random numbers that nobody reads.  So the data of a parameter of 1 MiB and more lies in
memory without pages.  It is an ordinary CPU tensor of zeros: every op works on it, and is as slow
and as large as it is; but what initializes, converts, copies or moves a whole parameter is known
here and does not touch it.

What one should know:

- Values are zero from the start.  The GPU's copies have no values anyway; a script that trains on
  the host sees zeros.
- ``Parameter(buffer)`` no longer shares memory with ``buffer`` when it is as large; code that
  relies on it (flat buffers behind parameters) assigns ``.data``, which is left alone.
- A copy from the GPU of 1 MiB and more, of numbers that nobody knows, is such a tensor too.
- Pinned memory of 1 MiB and more, for floating-point numbers or masks, is such a tensor too.
- Optimizers leave out such parameters: their state and their update would take the memory and the
  time of the real run, and change no byte of the GPU's.
- Numbers that are computed before ``Parameter()`` are computed for real.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from memfit.tracing.memory import VirtualMemory, extent_bytes
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.memory import is_virtual

_SMALLEST_BYTES = 1 << 20
"""Parameters below this are real: they cost little, and some are read (scales, gates)."""

_WRITES = (
    "normal_",
    "uniform_",
    "zero_",
    "fill_",
    "copy_",
    "erfinv_",
    "mul_",
    "add_",
    "clamp_",
    "div_",
    "sub_",
)
"""Methods that ``torch.nn.init`` and ``load_state_dict`` write with; ``trunc_normal_`` is the third
to the sixth."""

_CONVERSIONS = {
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "double": torch.float64,
}

_PINNED = ("empty", "empty_like", "empty_strided")
"""Functions that make pinned memory to copy to or from."""

_Tensor: Any = torch.Tensor
_PLAIN = (_Tensor, nn.Parameter)
"""Not fake tensors and other kinds, which say that they are on the CPU too."""


class HostMemory:
    """Large host tensors without pages."""

    def __init__(self) -> None:
        self._memory = VirtualMemory()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in memory without pages."""
        return not is_virtual(tensor) and tensor.data_ptr() in self._memory

    def unknown_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a copy from the GPU of numbers that nobody knows would be."""
        if tensor.numel() * tensor.element_size() >= _SMALLEST_BYTES:
            return self.like(tensor)
        number = 1 if tensor.is_floating_point() else 0
        return torch.full_like(tensor, number, device="cpu")

    def like(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor of the same shape and strides, or of another dtype, without pages."""
        dtype = dtype or tensor.dtype
        size, stride = list(tensor.shape), list(tensor.stride())
        num_bytes = extent_bytes(size, stride, dtype)
        return self._memory.tensor(size, stride, dtype, num_bytes, lambda address: None)


def install(gpu: Dispatch) -> HostMemory:
    """Replaces what makes, fills, converts and copies parameters on the host."""
    host = HostMemory()
    parameter: Any = nn.Parameter
    make = parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is _Tensor and _is_large_on_host(data) and not host.holds(data):
            data = host.like(data)
        return make(cls, data, requires_grad)

    parameter.__new__ = new
    for name in _WRITES:
        setattr(_Tensor, name, _skipping(host, getattr(_Tensor, name)))
    for name, dtype in _CONVERSIONS.items():
        setattr(_Tensor, name, _converting(host, dtype, getattr(_Tensor, name)))
    move, clone = _Tensor.to, _Tensor.clone

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device, dtype = _asked(args, kwargs)
        if device == "cpu" and is_virtual(tensor) and _is_free_to_leave(gpu, tensor):
            # CUDA converts before it copies to the host.
            return host.like(tensor if dtype is None else move(tensor, dtype))
        is_new = dtype not in (None, tensor.dtype) or kwargs.get("copy", False)
        if device in ("cpu", "") and is_new and _is_free_to_skip(host, tensor):
            return host.like(tensor, dtype)
        moved: torch.Tensor = move(tensor, *args, **kwargs)
        return moved

    def cpu(
        tensor: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format
    ) -> torch.Tensor:
        return to(tensor, "cpu", memory_format=memory_format)

    def copy(
        tensor: torch.Tensor, *, memory_format: torch.memory_format = torch.preserve_format
    ) -> torch.Tensor:
        if _is_free_to_skip(host, tensor) and memory_format is torch.preserve_format:
            return host.like(tensor)
        twin: torch.Tensor = clone(tensor, memory_format=memory_format)
        return twin

    _Tensor.to, _Tensor.cpu, _Tensor.clone = to, cpu, copy
    for name in _PINNED:
        setattr(torch, name, _pinning(host, getattr(torch, name)))
    _leave_out_updates(host)
    return host


def _pinning(host: HostMemory, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function that makes empty tensors, pinned ones without pages."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor = make(*args, **kwargs)
        is_copied = tensor.is_floating_point() or tensor.dtype is torch.bool
        is_large = tensor.numel() * tensor.element_size() >= _SMALLEST_BYTES
        if kwargs.get("pin_memory") and is_copied and is_large:
            return host.like(tensor).requires_grad_(tensor.requires_grad)
        return tensor

    return made


def _leave_out_updates(host: HostMemory) -> None:
    """Optimizers do not see the gradients of parameters without pages."""
    hidden: dict[Optimizer, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def hide(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        found = [p for p in parameters if type(p) in _PLAIN and host.holds(p)]
        hidden[optimizer] = [(p, p.grad) for p in found if p.grad is not None]
        for parameter in found:
            parameter.grad = None

    def show(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for parameter, gradient in hidden.pop(optimizer, ()):
            parameter.grad = gradient

    register_optimizer_step_pre_hook(hide)
    register_optimizer_step_post_hook(show)


def _is_free_to_leave(gpu: Dispatch, tensor: torch.Tensor) -> bool:
    """Whether a copy on the host would be large, and of numbers that nobody knows."""
    return (
        tensor.numel() * tensor.element_size() >= _SMALLEST_BYTES
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and not gpu.shadows.is_known(tensor)
    )


def _is_large_on_host(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_floating_point()
        and tensor.numel() * tensor.element_size() >= _SMALLEST_BYTES
        and tensor.grad_fn is None
    )


def _is_free_to_skip(host: HostMemory, tensor: torch.Tensor) -> bool:
    """Whether it has no pages, and nobody wants gradients through what is done to it."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.numel() * tensor.element_size() >= _SMALLEST_BYTES
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and host.holds(tensor)
    )


def _skipping(host: HostMemory, write: Callable[..., Any]) -> Callable[..., Any]:
    """A method that writes into its tensor, unless that has no pages."""

    def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _is_free_to_skip(host, tensor):
            return tensor
        return write(tensor, *args, **kwargs)

    method.__name__ = write.__name__
    return method


def _converting(
    host: HostMemory, dtype: torch.dtype, convert: Callable[..., Any]
) -> Callable[..., Any]:
    def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _is_free_to_skip(host, tensor):
            return tensor if tensor.dtype is dtype else host.like(tensor, dtype)
        return convert(tensor, *args, **kwargs)

    return method


def _asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, torch.dtype | None]:
    """The type of the device ("": none was named) and the dtype that ``to`` is asked for."""
    device, dtype = "", None
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (str, torch.device)):
            device = torch.device(value).type
        elif isinstance(value, torch.memory_format):
            if value is not torch.preserve_format:
                return "other", None
        elif isinstance(value, torch.Tensor) or type(value) is int:
            return "other", None
    return device, dtype
