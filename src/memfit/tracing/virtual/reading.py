"""What Python reads of a tensor on the virtual GPU: its text, its numbers, its type.

Numbers are true where they are known and 1.0, 1 or False where they are not, as ``item()`` gives.
"""

from __future__ import annotations

from typing import Any

import torch

from memfit.tracing.virtual.backend import NAME
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.memory import is_virtual

_Tensor: Any = torch.Tensor
_TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}
"""``torch.cuda.FloatTensor`` and its siblings."""


def install(gpu: Dispatch) -> None:
    """Replaces what reads, in ``torch.Tensor`` and ``torch.cuda``."""
    _install_values(gpu)
    _install_types()


def _install_values(gpu: Dispatch) -> None:
    show, to_numpy, to_list = _Tensor.__repr__, _Tensor.numpy, _Tensor.tolist

    def represent(tensor: torch.Tensor, *, tensor_contents: Any = None) -> str:
        if not is_virtual(tensor):
            return str(show(tensor, tensor_contents=tensor_contents))
        return _text(tensor, gpu.shadows.of(tensor))

    def numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_virtual(tensor):
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
                "tensor to host memory first."
            )
        return to_numpy(tensor, *args, **kwargs)

    def tolist(tensor: torch.Tensor) -> Any:
        if not is_virtual(tensor):
            return to_list(tensor)
        values = gpu.shadows.of(tensor)
        if values is not None:
            return to_list(values)
        gpu.shadows.note_read()
        return to_list(torch.full(tensor.shape, tensor.dtype is not torch.bool, dtype=tensor.dtype))

    is_finite = torch.isfinite

    def isfinite(input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # torch's name
        result = is_finite(input)
        if is_virtual(result) and not gpu.shadows.is_known(result):
            values = gpu.shadows.give(result, gpu.storage_bytes(result))
            if values is not None:
                values.fill_(True)  # training is taken to be healthy
        return result

    package: Any = torch
    package.isfinite = _Tensor.isfinite = isfinite
    _Tensor.__repr__ = represent
    _Tensor.numpy = numpy
    _Tensor.tolist = tolist


def _text(tensor: torch.Tensor, values: torch.Tensor | None) -> str:
    """As torch writes it, without the numbers where they are unknown."""
    suffix = ""
    if tensor.grad_fn is not None:
        suffix = f", grad_fn=<{type(tensor.grad_fn).__name__}>"
    elif tensor.requires_grad:
        suffix = ", requires_grad=True"
    if values is not None:
        return f"{torch._tensor_str._str(values)[:-1]}, device='cuda:0'{suffix})"
    dtype = "" if tensor.dtype is torch.get_default_dtype() else f", dtype={tensor.dtype}"
    return f"tensor(..., device='cuda:0', size={tuple(tensor.shape)}{dtype}{suffix})"


def _install_types() -> None:
    kinds = {name: _TensorType(name, dtype) for name, dtype in _TYPES.items()}
    for name, tensor_type in kinds.items():
        setattr(torch.cuda, name, tensor_type)
    by_text = {f"torch.cuda.{name}": of_name for name, of_name in kinds.items()}
    get_type = _Tensor.type

    def type_of(tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is None:
            return get_type(tensor).replace(f"torch.{NAME}.", "torch.cuda.")
        kind = by_text.get(dtype) if isinstance(dtype, str) else dtype
        if isinstance(kind, _TensorType):
            return tensor.to(device="cuda", dtype=kind.dtype)
        converted = get_type(tensor, dtype, *args, **kwargs)
        is_host_type = not isinstance(dtype, torch.dtype)
        return converted.cpu() if is_host_type and is_virtual(converted) else converted

    set_default = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        on_gpu = by_text.get(kind) if isinstance(kind, str) else kind
        if isinstance(on_gpu, _TensorType):
            torch.set_default_dtype(on_gpu.dtype)
            torch.set_default_device("cuda")
        else:
            torch.set_default_device("cpu")
            set_default(kind)

    _Tensor.type = type_of
    torch.set_default_tensor_type = set_default_tensor_type


class _TensorType(type):
    """``torch.cuda.FloatTensor``: makes tensors, and is what ``isinstance`` asks."""

    dtype: torch.dtype
    is_cuda = True

    def __new__(mcs, name: str, dtype: torch.dtype) -> _TensorType:
        made = super().__new__(mcs, name, (), {"__module__": "torch.cuda"})
        made.dtype = dtype
        return made

    def __init__(cls, name: str, dtype: torch.dtype) -> None:
        super().__init__(name, (), {})

    def __call__(cls, *args: Any) -> torch.Tensor:
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        return torch.empty(*args, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and is_virtual(instance)
            and instance.dtype is cls.dtype
        )
