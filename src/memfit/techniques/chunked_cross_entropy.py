"""Cross-entropy of a linear head, a few rows at a time: the logits are never held.

The logits of all rows, their softmax and its gradient are the largest tensors of many a run: three
times N * V numbers.  Here a chunk of rows goes all the way to its gradient in one pass, in place.
What is held is one chunk, the gradient of the hidden states and that of the head's weight, which
backward would make in any case.  Nothing is computed twice.

The gradient of a sum of losses is known in forward up to one factor, which backward brings.  Where
each row has a factor of its own (losses by row, a z-loss) chunks are checkpointed instead.  So they
are in fp16, where a gradient that is not scaled yet would vanish.

Sources: Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models" (the problem);
Hsu et al. 2024, "Liger Kernel", section 3.2 (gradients in forward, by chunks).

Letters of shapes: N rows, C width, V vocabulary, R rows of a chunk.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from memfit.errors import BadInput

_CHUNK_ELEMENTS = 1 << 24
"""Logits of a chunk: 64 MiB in fp32.  Products of fewer rows keep no device busy."""

_CHUNKS = 16
"""At least so many, where rows allow: a chunk has two buffers and the full loss three, so the loss
takes a tenth even with the gradient of a weight beside it."""

_FEWEST_ROWS = 128


class Head(NamedTuple):
    """From hidden states to logits: ``cap * tanh(scale * (x @ weight.T + bias))``.

    Without ``cap`` there is no tanh, and the logits are scaled alone.
    """

    weight: Tensor
    """(V, C)."""

    bias: Tensor | None
    """(V,)."""

    dtype: torch.dtype
    """What the product is computed in."""

    scale: float = 1.0
    cap: float | None = None


def rows_of_a_chunk(num_rows: int, vocab_size: int) -> int:
    """R: a power of two, so that kernels see one shape."""
    rows = max(_FEWEST_ROWS, min(_CHUNK_ELEMENTS // vocab_size, num_rows // _CHUNKS))
    return min(num_rows, 1 << (rows.bit_length() - 1)) or 1


def summed_cross_entropy(hidden: Tensor, head: Head, targets: Tensor, ignore_index: int) -> Tensor:
    """The sum of the losses of hidden states (N, C) against targets (N,), a scalar.

    In fp32, or in float64 where the product is.  Rows whose target is ``ignore_index`` count
    nothing.  It can go through backward once.
    """
    if head.dtype == torch.float16 and torch.is_grad_enabled():
        return cross_entropy_by_row(hidden, head, targets, ignore_index).sum()
    total: Tensor = _Summed.apply(  # type: ignore[no-untyped-call]
        hidden,
        head.weight,
        head.bias,
        targets,
        head._replace(weight=None, bias=None),  # type: ignore[arg-type]  # those are inputs
        ignore_index,
        torch.is_grad_enabled(),
    )
    return total


def cross_entropy_by_row(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    ignore_index: int,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The loss of each row (N,), fp32; 0 where the target is ``ignore_index``."""

    def losses(x: Tensor, weight: Tensor, bias: Tensor | None, part: Tensor) -> Tensor:
        logits = _logits(x, head._replace(weight=weight, bias=bias))
        return F.cross_entropy(
            logits,
            part,
            ignore_index=ignore_index,
            reduction="none",
            label_smoothing=label_smoothing,
        )

    return _checkpointed(losses, hidden, head, targets)


def logsumexp_by_row(hidden: Tensor, head: Head) -> Tensor:
    """The logarithm of the sum of the exponentials of each row's logits, (N,), fp32."""

    def values(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _logits(x, head._replace(weight=weight, bias=bias)).logsumexp(-1)

    return _checkpointed(values, hidden, head)


def _checkpointed(by_row: Any, hidden: Tensor, head: Head, *more: Tensor) -> Tensor:
    rows = rows_of_a_chunk(len(hidden), head.weight.shape[0])
    chunks = zip(*(tensor.split(rows) for tensor in (hidden, *more)), strict=True)
    found = [
        checkpoint(by_row, x, head.weight, head.bias, *parts, use_reentrant=False)
        for x, *parts in chunks
    ]
    return torch.cat(found)


def _logits(x: Tensor, head: Head) -> Tensor:
    """(R, V), fp32, of hidden states (R, C), as autograd sees them."""
    with torch.autocast(x.device.type, enabled=False):
        bias = None if head.bias is None else head.bias.to(head.dtype)
        z = _wide(F.linear(x.to(head.dtype), head.weight.to(head.dtype), bias))
        if head.cap is None:
            return z if head.scale == 1 else z * head.scale
        return head.cap * torch.tanh(z * head.scale)


def _wide(z: Tensor) -> Tensor:
    """In fp32 at least; itself where it is."""
    return z.to(torch.promote_types(z.dtype, torch.float32))


class _Summed(torch.autograd.Function):
    """The sum of losses, with its gradients computed beside it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        head: Head,
        ignore_index: int,
        needs_gradients: bool,
    ) -> Tensor:
        wants_hidden, wants_weight, wants_bias = (
            needs_gradients and tensor is not None and tensor.requires_grad
            for tensor in (hidden, weight, bias)
        )
        with torch.autocast(hidden.device.type, enabled=False):
            narrow = weight.to(head.dtype)  # (V, C), the weight itself where it is of that dtype
            narrow_bias = None if bias is None else bias.to(head.dtype)
            wide = torch.promote_types(head.dtype, torch.float32)
            total = torch.zeros((), dtype=wide, device=hidden.device)
            d_hidden = torch.empty_like(hidden) if wants_hidden else None
            # Chunks add up in fp32: of many bf16 sums the last ones would be lost.
            d_weight = torch.zeros_like(weight, dtype=wide) if wants_weight else None
            d_bias = torch.zeros_like(bias, dtype=wide) if bias is not None and wants_bias else None
            rows = rows_of_a_chunk(len(hidden), len(weight))
            for start in range(0, len(hidden), rows):
                x = hidden[start : start + rows].to(head.dtype)  # (R, C)
                part = targets[start : start + rows]  # (R,)
                z = F.linear(x, narrow, narrow_bias)  # (R, V)
                losses, d_z = _with_gradient(z, part, head, ignore_index, needs_gradients)
                del z
                total += losses
                if d_z is None:
                    continue
                if d_bias is not None:
                    d_bias += d_z.sum(0)
                d_z = d_z.to(head.dtype)
                if d_hidden is not None:
                    d_hidden[start : start + rows] = d_z @ narrow
                if d_weight is None:
                    continue
                if d_weight.dtype == head.dtype:
                    d_weight.addmm_(d_z.t(), x)
                else:
                    d_weight += d_z.t() @ x
                del d_z
            if d_weight is not None:
                d_weight = d_weight.to(weight.dtype)
            if bias is not None and d_bias is not None:
                d_bias = d_bias.to(bias.dtype)
        ctx.gradients = (d_hidden, d_weight, d_bias)
        return total

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise BadInput(
                "the chunked loss has no second derivative, which create_graph=True asks for: "
                "write --loss full"
            )
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise BadInput(
                "the chunked loss goes through backward a second time, and its gradients are gone: "
                "add up what needs it and call backward once, or write --loss full"
            )
        for gradient in gradients:
            if gradient is not None:
                gradient.mul_(factor)
        return (*gradients, None, None, None, None)


def _with_gradient(
    z: Tensor, targets: Tensor, head: Head, ignore_index: int, needs_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The sum of the losses of a chunk, and its gradient by ``z`` (R, V), fp32, made in place."""
    valid = (targets != ignore_index).unsqueeze(1)  # (R, 1)
    columns = targets.unsqueeze(1).masked_fill(~valid, 0)  # (R, 1)
    x = _wide(z)
    if head.scale != 1:
        x = x.mul_(head.scale)
    curved = None
    if head.cap is not None:
        curved = x.tanh_()
        x = curved * head.cap
    normaliser = x.logsumexp(1, keepdim=True)  # (R, 1)
    losses = (normaliser - x.gather(1, columns)).masked_fill_(~valid, 0).sum()
    if not needs_gradient:
        return losses, None
    d = x.sub_(normaliser).exp_()  # the softmax
    d.scatter_(1, columns, d.gather(1, columns) - 1)
    d.mul_(valid)
    if curved is not None and head.cap is not None:
        d.mul_(curved.square_().neg_().add_(1)).mul_(head.cap)
    if head.scale != 1:
        d.mul_(head.scale)
    return losses, d
