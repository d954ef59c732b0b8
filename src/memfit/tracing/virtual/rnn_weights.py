"""Recurrent nets on cuDNN: their weights, which cuDNN takes as one flat buffer.

Facts of aten/src/ATen/native/cudnn/RNN.cpp.  A module's weights come layer by layer and direction
by direction, each as (input weights, hidden weights[, two biases][, projection]).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from memfit.tracing.virtual.blocks import CPU_KEYS
from memfit.tracing.virtual.dispatch import Dispatch

RELU, TANH, LSTM, GRU = 0, 1, 2, 3
"""cudnnRNNMode_t."""

GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}


@dataclass(frozen=True, kw_only=True, slots=True)
class Net:
    """The shape of a recurrent net."""

    mode: int
    input_size: int
    hidden_size: int
    proj_size: int
    """Of an LSTM with projections; 0 without."""

    num_layers: int
    is_bidirectional: bool

    @property
    def directions(self) -> int:
        return 2 if self.is_bidirectional else 1

    @property
    def output_size(self) -> int:
        """Width of what one direction of a layer gives."""
        return self.proj_size or self.hidden_size

    def num_weights(self) -> int:
        """Elements of the flat buffer, which has room for two biases whether they are used or not.

        ``cudnnSetRNNDescriptor_v8`` is called with CUDNN_RNN_DOUBLE_BIAS.
        """
        gates = GATES[self.mode] * self.hidden_size
        total = 0
        for layer in range(self.num_layers):
            width = self.input_size if layer == 0 else self.output_size * self.directions
            one = gates * (width + self.output_size + 2) + self.proj_size * self.hidden_size
            total += self.directions * one
        return total


def net_of(
    x: torch.Tensor, mode: int, hidden_size: int, proj_size: int, layers: int, bidirectional: bool
) -> Net:
    """The net that runs over ``x``, from the arguments of ``_cudnn_rnn``."""
    return Net(
        mode=mode,
        input_size=x.shape[-1],
        hidden_size=hidden_size,
        proj_size=proj_size,
        num_layers=layers,
        is_bidirectional=bidirectional,
    )


def over(
    gpu: Dispatch, source: torch.Tensor, offset: int, size: list[int], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor over a part of the storage of ``source``; for autograd no view of it."""
    empty = gpu.empty([0], None, dtype)
    strides = [math.prod(size[dim + 1 :]) for dim in range(len(size))]
    return _set(empty, source, offset - int(source.storage_offset()), size, strides)


def views(gpu: Dispatch, flat: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """A tensor over ``flat`` for each weight, one after the other."""
    found, offset = [], 0
    for weight in weights:
        found.append(over(gpu, flat, offset, list(weight.shape), flat.dtype))
        offset += weight.numel()
    return found


def flatten(gpu: Dispatch, weights: list[torch.Tensor], net: Net) -> torch.Tensor:
    """``_cudnn_rnn_flatten_weight``: copies the weights to one buffer and lets them lie there."""
    flat = torch.ops.aten.zeros([net.num_weights()], dtype=weights[0].dtype, device=gpu.device)
    for weight, view in zip(weights, views(gpu, flat, weights), strict=True):
        view.copy_(weight)
        _set(weight, view, 0, list(view.size()), list(view.stride()))
    return flat  # type: ignore[no-any-return]


def _set(
    tensor: torch.Tensor, source: torch.Tensor, offset: int, size: list[int], stride: list[int]
) -> torch.Tensor:
    """Lets ``tensor`` lie in the storage of ``source``, ``offset`` elements behind its start."""
    set_to = torch.ops.aten.set_.source_Tensor_storage_offset
    return set_to.redispatch(CPU_KEYS, tensor, source, offset, size, stride)  # type: ignore[no-any-return]
