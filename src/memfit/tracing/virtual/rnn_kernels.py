"""cuDNN's recurrent kernels on the virtual GPU: what they return, save and take.

Facts of aten/src/ATen/native/cudnn/RNN.cpp (``_cudnn_rnn``, ``_cudnn_rnn_backward``).  Only cuDNN
knows the sizes of its reserve and its workspace; those here are estimates and marked as such.

T time steps, B batch, H hidden size; sequences come as (T, B, width) or packed as (N, width).
"""

from __future__ import annotations

from typing import Any

import torch

from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import ESTIMATE
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.rnn_weights import (
    GATES,
    GRU,
    LSTM,
    RELU,
    TANH,
    Net,
    net_of,
    over,
    views,
)

_FORWARD, _BACKWARD = "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"

_KEPT = {LSTM: 5, GRU: 4, RELU: 0, TANH: 0}
"""Numbers a hidden unit and time step that a backward needs beside the layer's output: an LSTM its
four gates and its cell, a GRU its three gates and the hidden part of the third (derived from the
formulas in cuDNN's API reference; the true size is cuDNN's)."""

_RANDOM_STATE_BYTES = 48
"""Of one thread's curandState, of which the dropout state has one a resident thread."""


class CudnnRnn:
    """Kernels of one card."""

    def __init__(self, gpu: Dispatch, kernels: Kernels) -> None:
        self._gpu = gpu
        self._kernels = kernels

    def dropout_state(self) -> torch.Tensor:
        """``_cudnn_init_dropout_state``: "slightly over 2MB" says its source, for small cards."""
        num_bytes = self._kernels.sms * self._kernels.threads_per_sm * _RANDOM_STATE_BYTES
        return self._estimated([num_bytes], "aten::_cudnn_init_dropout_state")

    def forward(
        self,
        x: torch.Tensor,
        weight: list[torch.Tensor],
        weight_stride0: int,
        weight_buf: torch.Tensor | None,
        hx: torch.Tensor,
        cx: torch.Tensor | None,
        mode: int,
        hidden_size: int,
        proj_size: int,
        num_layers: int,
        batch_first: bool,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_sizes: list[int],
        dropout_state: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Output, last hidden, last cell, reserve, and the flat weights."""
        net = net_of(x, mode, hidden_size, proj_size, num_layers, bidirectional)
        is_transposed = batch_first and not batch_sizes
        ordered = x.transpose(0, 1).contiguous() if is_transposed else x.contiguous()
        batch = batch_sizes[0] if batch_sizes else ordered.shape[1]
        rows = list(ordered.shape[:-1])
        output = self._empty([*rows, net.output_size * net.directions], x.dtype)
        of_layers = num_layers * net.directions
        hy = self._empty([of_layers, batch, net.output_size], hx.dtype)
        cy = self._empty([0] if cx is None else [of_layers, batch, hidden_size], hx.dtype)
        flat = weight_buf
        if flat is None:
            flat = self._gather(weight, net, x.dtype)
        num_rows = ordered.numel() // ordered.shape[-1] if ordered.numel() else 0
        workspace = self._workspace(net, num_rows, x.dtype, _FORWARD)
        kept = _reserve_numel(net, num_rows, dropout) if train else 0
        reserve = self._estimated([kept * x.element_size()], _FORWARD)
        self._gpu.ledger.free(workspace)
        del ordered
        if is_transposed:
            output = output.transpose(0, 1)
        return output, hy, cy, reserve, flat

    def backward(
        self,
        x: torch.Tensor,
        weight: list[torch.Tensor],
        weight_stride0: int,
        weight_buf: torch.Tensor,
        hx: torch.Tensor,
        cx: torch.Tensor | None,
        output: torch.Tensor,
        grad_output: torch.Tensor | None,
        grad_hy: torch.Tensor | None,
        grad_cy: torch.Tensor | None,
        mode: int,
        hidden_size: int,
        proj_size: int,
        num_layers: int,
        batch_first: bool,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_sizes: list[int],
        dropout_state: torch.Tensor | None,
        reserve: torch.Tensor,
        output_mask: list[bool],
    ) -> tuple[Any, ...]:
        """Gradients of input, hidden, cell, and the weights, which share one flat buffer."""
        if grad_output is None and grad_hy is None and grad_cy is None:
            return None, None, None, [None] * len(weight)
        if not train:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        net = net_of(x, mode, hidden_size, proj_size, num_layers, bidirectional)
        grad_output = _or_zeros(grad_output, output)
        grad_hy = _or_zeros(grad_hy, hx)
        grad_cy = None if cx is None else _or_zeros(grad_cy, cx)
        is_transposed = batch_first and not batch_sizes
        if is_transposed:
            x, grad_output = x.transpose(0, 1), grad_output.transpose(0, 1)
        ordered, gradient = x.contiguous(), grad_output.contiguous()
        num_rows = x.numel() // x.shape[-1] if x.numel() else 0
        dx = self._empty(list(x.shape), x.dtype, _BACKWARD)
        dhx = self._empty(list(hx.shape), hx.dtype, _BACKWARD)
        dcx = None if cx is None else self._empty(list(cx.shape), cx.dtype, _BACKWARD)
        self._gpu.ledger.free(self._workspace(net, num_rows, x.dtype, _BACKWARD))
        del gradient, ordered
        if is_transposed:
            dx = dx.transpose(0, 1)
        dw: list[torch.Tensor] = []
        if output_mask[3]:
            ordered = x.contiguous()
            dw = self._weight_gradients(weight, weight_stride0, weight_buf, net)
            self._gpu.ledger.free(self._workspace(net, num_rows, x.dtype, _BACKWARD))
            del ordered
        return dx, dhx, dcx, dw

    def _weight_gradients(
        self, weight: list[torch.Tensor], stride: int, weight_buf: torch.Tensor, net: Net
    ) -> list[torch.Tensor]:
        flat = torch.zeros_like(weight_buf)
        if stride == _weights_per_layer(net):
            return views(self._gpu, flat, weight)
        return [self._empty(list(w.shape), w.dtype, _BACKWARD) for w in weight]

    def _gather(self, weight: list[torch.Tensor], net: Net, dtype: torch.dtype) -> torch.Tensor:
        """A flat buffer made for one call, for weights that do not lie in one."""
        flat = torch.ops.aten.zeros([net.num_weights()], dtype=dtype, device=self._gpu.device)
        for view, source in zip(views(self._gpu, flat, weight), weight, strict=True):
            view.copy_(source)
        return flat  # type: ignore[no-any-return]

    def _empty(self, size: list[int], dtype: torch.dtype, op: str = _FORWARD) -> torch.Tensor:
        return self._gpu.empty(size, None, dtype, op)

    def _estimated(self, size: list[int], op: str) -> torch.Tensor:
        tensor = self._gpu.empty(size, None, torch.uint8, op)
        self._gpu.call_estimate(tensor)
        return tensor

    def _workspace(self, net: Net, num_rows: int, dtype: torch.dtype, op: str) -> int:
        """Estimate: the gates of one layer before they are combined."""
        numel = num_rows * GATES[net.mode] * net.hidden_size * net.directions
        return self._gpu.take(max(numel * dtype.itemsize, 1), op, ESTIMATE)


def flat_weights(
    gpu: Dispatch, weight: list[torch.Tensor], net: Net, address: int | None
) -> torch.Tensor | None:
    """The buffer that the weights lie in, if they lie in one (try_get_weight_buf)."""
    numel = net.num_weights()
    if address is None or gpu.storage_bytes(weight[0]) < numel * weight[0].element_size():
        return None
    return over(gpu, weight[0], 0, [numel], weight[0].dtype)


def _weights_per_layer(net: Net) -> int:
    return 5 if net.proj_size else 4


def _reserve_numel(net: Net, num_rows: int, dropout: float) -> int:
    """Estimate: what the backward needs of each layer, and outputs of all layers but the last."""
    of_layers = net.num_layers * _KEPT[net.mode] * net.hidden_size
    between = (net.num_layers - 1) * net.output_size * (2 if dropout else 1)
    return num_rows * net.directions * (of_layers + between)


def _or_zeros(gradient: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    if gradient is not None:
        return gradient
    return torch.zeros_like(like, memory_format=torch.contiguous_format)
