"""LSTM, GRU and RNN on the virtual GPU: through cuDNN, as CUDA runs them.

The composites ``lstm.input`` and its kin take the cuDNN branch (native/RNN.cpp) and call
``_cudnn_rnn`` (native/cudnn/RNN.cpp, _cudnn_impl).  Dtypes that cuDNN does not take, bf16 among
them, run PyTorch's own composite of cells.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.backends.cudnn.rnn

from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.memory import storage_address
from memfit.tracing.virtual.autocast import BELOW, KEY
from memfit.tracing.virtual.casts import is_eligible
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.rnn_kernels import CudnnRnn, flat_weights
from memfit.tracing.virtual.rnn_weights import GRU, LSTM, RELU, TANH, Net, flatten, net_of, views

_ACCEPTABLE = (torch.float16, torch.float32, torch.float64)
"""torch.backends.cudnn.CUDNN_TENSOR_DTYPES."""

_MODES = {"rnn_relu": RELU, "rnn_tanh": TANH, "gru": GRU, "lstm": LSTM}


def register(gpu: Dispatch, kernels: Kernels) -> list[torch.library.Library]:
    """Registers the nets and their kernels; the libraries must be kept for them to stay."""
    nets = _Nets(gpu, CudnnRnn(gpu, kernels))
    aten = torch.library.Library("aten", "IMPL")
    for name, mode in _MODES.items():
        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            aten.impl(f"{name}.input", nets.on_padded(mode, f"{name}.input"), key)
            aten.impl(f"{name}.data", nets.on_packed(mode, f"{name}.data"), key)
    aten.impl("_cudnn_rnn", nets.kernels.forward, "PrivateUse1")
    aten.impl("_cudnn_rnn_backward", nets.kernels.backward, "PrivateUse1")
    aten.impl("_cudnn_rnn_flatten_weight", nets.flatten, "PrivateUse1")
    aten.impl("_cudnn_rnn", nets.cast, KEY)
    _tell_python()
    return [aten]


def _tell_python() -> None:
    """What ``flatten_parameters`` asks."""
    torch._use_cudnn_rnn_flatten_weight = lambda: True
    torch.backends.cudnn.is_acceptable = _is_acceptable
    numbers = {f"RNN_{name.removeprefix('rnn_').upper()}": mode for name, mode in _MODES.items()}
    numbers.update(LSTM=LSTM, GRU=GRU)
    torch.backends.cudnn.rnn.get_cudnn_mode = lambda mode: numbers[mode]


def _is_acceptable(tensor: torch.Tensor) -> bool:
    return bool(torch.backends.cudnn.enabled and tensor.is_cuda and tensor.dtype in _ACCEPTABLE)


class _Nets:
    """The composites above autograd."""

    def __init__(self, gpu: Dispatch, kernels: CudnnRnn) -> None:
        self.kernels = kernels
        self._gpu = gpu
        self._dropout_state: torch.Tensor | None = None

    def on_padded(self, mode: int, name: str) -> Any:
        """The kernel of ``lstm.input`` and its kin."""
        composite = _overload(name)

        def kernel(x: torch.Tensor, hx: Any, params: list[torch.Tensor], *layout: Any) -> Any:
            if not (_is_acceptable(x) and x.numel()):
                return composite.decompose(x, hx, params, *layout)
            return self._run(mode, x, hx, params, layout, [])

        return kernel

    def on_packed(self, mode: int, name: str) -> Any:
        """The kernel of ``lstm.data`` and its kin, for packed sequences."""
        composite = _overload(name)

        def kernel(
            x: torch.Tensor,
            batch_sizes: torch.Tensor,
            hx: Any,
            params: list[torch.Tensor],
            *layout: Any,
        ) -> Any:
            if not (_is_acceptable(x) and x.numel()):
                return composite.decompose(x, batch_sizes, hx, params, *layout)
            return self._run(mode, x, hx, params, (*layout, False), batch_sizes.tolist())

        return kernel

    def _run(
        self,
        mode: int,
        x: torch.Tensor,
        hidden: Any,
        params: list[torch.Tensor],
        layout: tuple[Any, ...],
        batch_sizes: list[int],
    ) -> Any:
        """``layout``: as the op has it, from ``has_biases`` to ``batch_first``."""
        has_biases, num_layers, dropout, train, bidirectional, batch_first = layout
        hx, cx = hidden if mode == LSTM else (hidden, None)
        is_projected = cx is not None and cx.shape[2] != hx.shape[2]
        hidden_size = cx.shape[2] if cx is not None else hx.shape[2]
        proj_size = hx.shape[2] if is_projected else 0
        net = net_of(x, mode, hidden_size, proj_size, num_layers, bidirectional)
        if train and dropout > 0 and self._dropout_state is None:
            self._dropout_state = self.kernels.dropout_state()
        output, hy, cy, _, _ = torch.ops.aten._cudnn_rnn(
            x,
            params,
            (4 if has_biases else 2) + bool(proj_size),
            flat_weights(self._gpu, params, net, _common_storage(params)),
            hx,
            cx,
            mode,
            hidden_size,
            proj_size,
            num_layers,
            batch_first,
            dropout,
            train,
            bidirectional,
            batch_sizes,
            self._dropout_state,
        )
        return (output, hy, cy) if mode == LSTM else (output, hy)

    def flatten(
        self,
        weights: list[torch.Tensor],
        weight_stride0: int,
        input_size: int,
        mode: int,
        hidden_size: int,
        proj_size: int,
        num_layers: int,
        batch_first: bool,
        bidirectional: bool,
    ) -> torch.Tensor:
        """The kernel of ``_cudnn_rnn_flatten_weight``."""
        net = Net(
            mode=mode,
            input_size=input_size,
            hidden_size=hidden_size,
            proj_size=proj_size,
            num_layers=num_layers,
            is_bidirectional=bidirectional,
        )
        return flatten(self._gpu, weights, net)

    def cast(
        self,
        x: torch.Tensor,
        weight: list[torch.Tensor],
        weight_stride0: int,
        weight_buf: torch.Tensor | None,
        hx: torch.Tensor,
        cx: torch.Tensor | None,
        *rest: Any,
    ) -> Any:
        """Autocast: to fp16 whatever the region's dtype, and the weights flattened anew.

        aten/src/ATen/cudnn/AutocastRNN.cpp; each weight's cast is recorded by autograd.
        """
        half = torch.float16
        given = weight[0] if weight_buf is None else weight_buf
        with torch._C._ExcludeDispatchKeyGuard(BELOW):
            if is_eligible(given) and given.dtype is not half:
                weight_buf, weight = self._flatten_as(half, x, weight, rest)
            states = [t.to(half) if t is not None and is_eligible(t) else t for t in (cx, hx, x)]
            return torch.ops.aten._cudnn_rnn(
                states[2], weight, weight_stride0, weight_buf, states[1], states[0], *rest
            )

    def _flatten_as(
        self, dtype: torch.dtype, x: torch.Tensor, weight: list[torch.Tensor], rest: Any
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        mode, hidden_size, proj_size, num_layers, _, _, _, bidirectional, *_ = rest
        net = net_of(x, mode, hidden_size, proj_size, num_layers, bidirectional)
        flat = torch.ops.aten.zeros([net.num_weights()], dtype=dtype, device=self._gpu.device)
        parts = views(self._gpu, flat, weight)
        return flat, [
            part.copy_(source).view_as(source) for part, source in zip(parts, weight, strict=True)
        ]


def _common_storage(weights: list[torch.Tensor]) -> int | None:
    addresses = {storage_address(weight) for weight in weights}
    return addresses.pop() if len(addresses) == 1 else None


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload)
