"""What C++ does with CUDA tensors up to the kernels, seen on fake tensors, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def on_fake_cuda(work: Callable[[], Any]) -> Any:
    """``work()`` among fake tensors that may say ``cuda``.  Changes torch: run it in a child."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    torch.cuda._lazy_init = lambda: None  # type: ignore[assignment]
    torch.cuda.is_available = lambda: True
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False  # type: ignore[assignment]
    with FakeTensorMode(allow_non_fake_inputs=True):
        return work()


def is_fakes_fault(error: Exception) -> bool:
    """Whether the error is one of fake tensors without a driver, and not one of the function."""
    if type(error).__name__ == "DataDependentOutputException":
        return True
    missing = ("not linked with support for cuda", "from the 'CUDA' backend", "NVIDIA driver")
    return isinstance(error, NotImplementedError) or any(text in str(error) for text in missing)


class Path(TorchDispatchMode):
    """Writes down the ops that reach the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name.startswith("aten::"):
            self.ops.append(name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))
