"""Fused attention: FlashAttention-2 and cuDNN, and the outputs' order of the memory-efficient one.

B batch, H heads, Hk key heads, Sq and Sk lengths, D size of a head.  Tensors come as (B, H, S, D).
Below ``native/transformers/cuda``: ``flash_attn/flash_api.cpp``, ``attention.cu``,
``attention_backward.cu``; and ``native/cudnn/MHA.cpp``.  Holds for torch 2.6 to 2.14 unless said.
"""

from __future__ import annotations

from math import ceil

from memfit.allocator.version import TorchVersion
from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import tensor
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import ESTIMATE, Steps
from memfit.tracing.hidden.sequences import Sequence

FLASH_STATE_ON_DEVICE_FROM = TorchVersion(2, 7)
"""From here on the random state is two device tensors even without dropout; before, seed and
offset were host tensors.  Read in 2.4's and 2.12's sources, the border is inferred."""

_FP32, _RNG_STATE_BYTES = 4, 16


def flash(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """Output, log-sum-exp, partial results of split keys, random state, and a dummy tensor.

    Outputs: attention, log-sum-exp, random state (16 bytes), dummy (8 bytes).
    """
    query, key = tensor(call, 0), tensor(call, 1)
    dropout = float(call.argument(3, 0.0))
    if query is None or key is None:
        return None
    batch, heads, rows, size = query.shape
    steps = Steps(num_outputs)
    steps.output(0)
    steps.output(1)
    splits = 1 if dropout > 0 else _num_splits(query, key, kernels)
    of_sums = of_outputs = 0
    if splits > 1:
        of_sums = splits * batch * heads * rows * _FP32
        of_outputs = of_sums * _rounded(size, 32 if size <= 128 else 64)
    sums, outputs = steps.take(of_sums), steps.take(of_outputs)
    # with dropout the random state is allocated once more, before the first one is freed
    is_made_twice = dropout > 0 and kernels.version >= FLASH_STATE_ON_DEVICE_FROM
    unused_state = steps.take(_RNG_STATE_BYTES if is_made_twice else 0)
    for index in (3, 2) if dropout > 0 else (2, 3):
        steps.output(index)
    steps.give(unused_state, outputs, sums)  # locals, last to first
    return steps.sequence()


def _num_splits(query: TensorSpec, key: TensorSpec, kernels: Kernels) -> int:
    """num_splits_heuristic: keys are split where the queries alone do not fill the card."""
    batch, heads, rows, size = query.shape
    key_heads, columns = key.shape[1], key.shape[2]
    if rows == 1 and heads > key_heads:  # queries of one group go as rows of one head
        heads, rows = key_heads, heads // key_heads
    block = 256 if size <= 64 else 128 if size <= 128 else 64
    num_blocks = -(-columns // block)
    num_queries = batch * heads * -(-rows // 64)
    processors = 2 * kernels.sms
    if num_queries >= 0.8 * processors:
        return 1
    most = min(128, processors, num_blocks)
    efficiencies = {}
    for splits in range(1, most + 1):
        if splits == 1 or -(-num_blocks // splits) != -(-num_blocks // (splits - 1)):
            waves = num_queries * splits / processors
            efficiencies[splits] = waves / ceil(waves)
    best = max(efficiencies.values(), default=0.0)
    return next((s for s, value in efficiencies.items() if value >= 0.85 * best), 1)


def flash_backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """Copies of gradient and output as (B, S, H, D), gradients, and fp32 sums for the queries'."""
    gradient, query, key, _, output = (tensor(call, position) for position in range(5))
    if gradient is None or query is None or key is None or output is None:
        return None
    batch, heads, rows, size = query.shape
    key_heads, columns = key.shape[1], key.shape[2]
    steps = Steps(num_outputs)
    copies = [steps.take(_copy_bytes(operand.transposed(1, 2))) for operand in (gradient, output)]
    steps.outputs()
    padded = _rounded(rows, 128)
    dots = steps.take(batch * heads * padded * _FP32)
    of_sums = batch * padded * heads * _rounded(size, 32 if size <= 128 else 64) * _FP32
    splits = -(-kernels.sms // (batch * heads)) if kernels.deterministic else 1
    sums = steps.take(splits * of_sums)
    expanded = batch * columns * heads * size * query.dtype.itemsize if key_heads != heads else 0
    keys, values = steps.take(expanded), steps.take(expanded)
    steps.give(values, keys, sums)
    # the row sums are a fourth result of the inner function, freed by the outer one
    steps.give(dots, *reversed(copies))
    return steps.sequence()


def cudnn(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """Seed and offset come first, then output and log-sum-exp; no workspace is assumed.

    Outputs: attention, log-sum-exp, seed (8 bytes), offset (8 bytes).
    """
    steps = Steps(num_outputs)
    wants_sums = bool(call.argument(4, False))
    order = (2, 3, 0, 1) if wants_sums else (1, 2, 0)
    for index in order:
        steps.output(index)
    return steps.sequence()


def cudnn_backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """Gradients, then cuDNN's workspace: fp32 sums for the queries' and a number a row.

    The cuDNN frontend's graph of the backward names both (scaled_dot_product_flash_attention.h,
    May 2026).  What the plan adds is not known: nothing is counted, but for grouped heads the keys'
    and values' gradients of all heads, which the graph names too and which must lie somewhere.
    """
    gradient, query, key = (tensor(call, position) for position in range(3))
    if gradient is None or query is None or key is None:
        return None
    batch, heads, rows, size = query.shape
    key_heads, columns = key.shape[1], key.shape[2]
    steps = Steps(num_outputs)
    steps.outputs()
    copy = steps.take(gradient.num_bytes if gradient.stride[-1] != 1 else 0)
    per_row = batch * heads * rows * _FP32
    grouped = 2 * batch * heads * columns * size * query.dtype.itemsize
    workspace = per_row * size + per_row + (grouped if key_heads != heads else 0)
    steps.give(steps.take(workspace), copy)
    return steps.sequence(ESTIMATE)


def _copy_bytes(operand: TensorSpec) -> int:
    return 0 if operand.is_contiguous else operand.num_bytes


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
