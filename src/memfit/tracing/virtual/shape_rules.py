"""What ops return that have kernels but no meta kernel, or a wrong one.

Registered as meta kernels, in the traced process only.  ``outputs`` corrects those that are right
for other devices but not for CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_Tensor = torch.Tensor


def register() -> list[torch.library.Library]:
    """The libraries must be kept for the rules to stay."""
    aten = torch.library.Library("aten", "IMPL")
    for name, rule in _RULES.items():
        aten.impl(name, rule, "Meta", allow_override=True)
    return [aten]


def _like(*positions: int) -> Callable[..., Any]:
    """Outputs shaped as these arguments, row-major; one output comes alone."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        made = tuple(
            torch.empty_like(args[position], memory_format=torch.contiguous_format)
            for position in positions
        )
        return made if len(made) > 1 else made[0]

    return rule


def _gru_cell(
    input_gates: _Tensor,
    hidden_gates: _Tensor,
    hx: _Tensor,
    input_bias: _Tensor | None = None,
    hidden_bias: _Tensor | None = None,
) -> tuple[_Tensor, _Tensor]:
    """The new state, and a workspace of five numbers a unit (native/cuda/RNN.cu)."""
    workspace = hx.new_empty([hx.shape[0], 5 * hx.shape[1]])
    return torch.empty_like(hx, memory_format=torch.contiguous_format), workspace


def _gru_cell_backward(grad_hy: _Tensor, workspace: _Tensor, has_bias: bool) -> tuple[Any, ...]:
    """Gradients of both gates, of the state, and of both biases."""
    batch, units = workspace.shape[0], workspace.shape[1] // 5
    gates = [workspace.new_empty([batch, 3 * units]) for _ in range(2)]
    biases = [workspace.new_empty([3 * units]) if has_bias else None for _ in range(2)]
    return (*gates, torch.empty_like(grad_hy, memory_format=torch.contiguous_format), *biases)


def _lstm_cell(
    input_gates: _Tensor,
    hidden_gates: _Tensor,
    cx: _Tensor,
    input_bias: _Tensor | None = None,
    hidden_bias: _Tensor | None = None,
) -> tuple[_Tensor, ...]:
    """State, cell and gates; PyTorch's rule does not take cells without biases."""
    made = (cx, cx, input_gates)
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in made)


def _lstm_cell_backward(
    grad_hy: _Tensor | None,
    grad_cy: _Tensor | None,
    cx: _Tensor,
    cy: _Tensor,
    workspace: _Tensor,
    has_bias: bool,
) -> tuple[Any, ...]:
    """Gradients of the gates, the cell and the bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    gates = torch.empty_like(workspace, memory_format=torch.contiguous_format)
    bias = gates.new_empty([gates.shape[1]]) if has_bias else None
    return gates, torch.empty_like(cx, memory_format=torch.contiguous_format), bias


_RULES: dict[str, Callable[..., Any]] = {
    "_ctc_loss_backward": _like(1),
    "_ctc_loss_backward.Tensor": _like(1),
    "multi_margin_loss_backward": _like(1),
    "multilabel_margin_loss_backward": _like(1),
    "_logcumsumexp": _like(0),
    "_masked_softmax": _like(0),
    "_masked_softmax_backward": _like(0),
    "_standard_gamma_grad": _like(0),
    "_dirichlet_grad": _like(0),
    "_sample_dirichlet": _like(0),
    "binomial": _like(0),
    "fractional_max_pool3d_backward": _like(1),
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
}
