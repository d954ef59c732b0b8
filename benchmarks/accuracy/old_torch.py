"""What older versions of torch did otherwise, for rows that were measured with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class OldSoftmax(torch.autograd.Function):
    """Softmax as torch up to 1.10 had it: backward names the input, so the input is kept.

    See pytorch/pytorch#64000 and #65242.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        y = torch.softmax(x, dim)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, y = ctx.saved_tensors
        return torch._softmax_backward_data(grad, y, ctx.dim, x.dtype), None


@contextmanager
def old_softmax() -> Iterator[None]:
    """``F.softmax`` is :class:`OldSoftmax` within."""

    def softmax(x: Tensor, dim: int) -> Tensor:
        y: Tensor = OldSoftmax.apply(x, dim)  # type: ignore[no-untyped-call]
        return y

    today = F.softmax
    F.softmax = softmax  # type: ignore[assignment]
    try:
        yield
    finally:
        F.softmax = today
