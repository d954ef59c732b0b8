"""einsum as PyTorch composed it up to 2.8: the first operand's dimensions stay in front.

A contraction of two operands is one batched product of shape (in both, first only, second only),
which is permuted to the order that was asked for.  Pull request 161755 exchanges the operands where
that spares the permutation; before, ``einsum("oi,...i->...o", weight, x)`` was a transposed view,
and everything computed from it lies in memory as it does: copies, and the scratch of reductions.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import torch

from memfit.allocator.version import TorchVersion

EXCHANGED = TorchVersion(2, 9)
"""Pull request 161755, in the release notes of 2.9.0; recorded before in 2.6."""

_ELLIPSIS = "..."


def einsum(
    equation: str, tensors: Sequence[torch.Tensor], *, path: Sequence[int] | None = None
) -> torch.Tensor:
    """``torch.einsum``: asks today's for the order without an exchange, and permutes."""
    if len(tensors) == 2:
        order = _order(equation.replace(" ", ""), tensors)
        if order is not None:
            inner, permutation = order
            return _composed(inner, tensors).permute(permutation)
    return _composed(equation, tensors, path=path)


def _composed(equation: str, tensors: Sequence[torch.Tensor], **path: Any) -> torch.Tensor:
    op = torch.ops.aten.einsum.default
    return op.decompose(equation, list(tensors), **path)  # type: ignore[no-any-return]


def _order(equation: str, tensors: Sequence[torch.Tensor]) -> tuple[str, list[int]] | None:
    """The equation with its output in the order of the product, and what permutes it back.

    None where the operands would not be exchanged, or for what einsum itself refuses.
    """
    labels = _labels(equation, [tensor.dim() for tensor in tensors])
    if labels is None:
        return None
    (left, right), output = labels
    sizes = [
        {label: size for label, size in zip(side, tensor.shape, strict=True) if size != 1}
        for side, tensor in zip((left, right), tensors, strict=True)
    ]
    summed = (set(left) | set(right)) - set(output)
    first = [label for label in output if label in sizes[0] and label not in sizes[1]]
    second = [label for label in output if label not in sizes[0]]
    is_exchanged = first and second and output.index(second[-1]) < output.index(first[0])
    if not summed or not is_exchanged:
        return None
    product = [label for label in output if label in sizes[0] and label in sizes[1]]
    product += first + second
    inner = f"{''.join(left)},{''.join(right)}->{''.join(product)}"
    return inner, [product.index(label) for label in output]


def _labels(equation: str, ranks: Sequence[int]) -> tuple[list[str], str] | None:
    """The operands' and the output's labels, an ellipsis written out in letters of its own."""
    inputs, arrow, output = equation.partition("->")
    operands = inputs.split(",")
    if len(operands) != len(ranks):
        return None
    free = [letter for letter in ascii_letters if letter not in equation]
    widths = [
        rank - len(operand.replace(_ELLIPSIS, "")) if _ELLIPSIS in operand else 0
        for operand, rank in zip(operands, ranks, strict=True)
    ]
    most = max(widths)
    if min(widths) < 0 or most > len(free):
        return None
    written = "".join(free[:most])
    if not arrow:
        alone = [letter for letter in sorted(set(inputs) - {",", "."}) if inputs.count(letter) == 1]
        output = _ELLIPSIS + "".join(alone)
    operands = [
        operand.replace(_ELLIPSIS, written[most - width :])
        for operand, width in zip(operands, widths, strict=True)
    ]
    output = output.replace(_ELLIPSIS, written)
    known = set("".join(operands))
    is_sound = set(output) <= known and len(set(output)) == len(output)
    fits = all(len(operand) == rank for operand, rank in zip(operands, ranks, strict=True))
    return (operands, output) if is_sound and fits else None
