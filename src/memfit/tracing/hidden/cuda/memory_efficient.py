"""Memory-efficient attention (CUTLASS): its tiles decide how much its backward takes.

B batch, H heads, M queries, N keys, K size of a key, Kv of a value.  Tensors come as (B, H, M, K).
Below ``native/transformers/cuda``: ``attention.cu``, ``attention_backward.cu``,
``mem_eff_attention/kernel_forward.h``, ``kernel_backward.h`` and ``kernels/cutlassB.h``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import tensor
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence

_FP32 = 4


def forward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """Output and log-sum-exp, and an fp32 output where a value does not fit into registers.

    Outputs: attention, log-sum-exp; seed and offset are host tensors.
    """
    query, value = tensor(call, 0), tensor(call, 2)
    if query is None or value is None:
        return None
    batch, heads, rows, _ = query.shape
    steps = Steps(num_outputs)
    steps.outputs()
    width = value.shape[-1]
    is_half = query.dtype.itemsize == 2
    steps.passing(batch * rows * heads * width * _FP32 if is_half and width > 128 else 0)
    return steps.sequence()


def backward(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """A copy of the gradient, the gradients, row sums, and one workspace.

    The workspace holds fp32 sums of the queries' gradient, a lock and a counter a tile, and, where
    a tile is narrower than a head, of the keys' and the values' for each part of the keys.

    Outputs: gradients of query, key, value, and of the bias, whose rows are padded to 16 elements.
    """
    gradient, query, key, value = (tensor(call, position) for position in range(4))
    if gradient is None or query is None or key is None or value is None:
        return None
    batch, heads, rows, size = query.shape
    columns, width = key.shape[2], value.shape[3]
    kernel = choose(query, max(size, width), float(call.argument(9, 0.0)) > 0, kernels)
    if kernel is None:
        return None
    steps = Steps(num_outputs)
    gradient = gradient.transposed(1, 2)
    copy = steps.take(0 if gradient.is_contiguous else gradient.num_bytes)
    for index in range(3):
        steps.output(index)
    expanded = batch * columns * heads * query.dtype.itemsize if key.shape[1] != heads else 0
    keys, values = steps.take(expanded * size), steps.take(expanded * width)
    steps.outputs()
    sums = _add_row_sums(steps, gradient, tensor(call, 5), (batch, heads, rows), kernel)
    workspace = steps.take(_workspace_bytes(kernel, query, key, value, kernels))
    steps.give(sums, workspace, values, keys, copy)
    return steps.sequence()


def _add_row_sums(
    steps: Steps,
    gradient: TensorSpec,
    output: TensorSpec | None,
    shape: tuple[int, int, int],
    kernel: Kernel,
) -> int:
    """``delta``: computed by the kernel in half precision; else a product, its sum, and a copy."""
    num_bytes = prod(shape) * _FP32
    if kernel.sums_rows or output is None:
        return steps.take(num_bytes)
    casts = [steps.take(0 if not kernel.is_half else gradient.numel * _FP32) for _ in range(2)]
    product = steps.take(gradient.numel * _FP32)
    total = steps.take(num_bytes)
    if 1 in shape[1:]:  # heads and rows exchanged are contiguous still
        steps.give(product, *reversed(casts))
        return total
    sums = steps.take(num_bytes)
    steps.give(total, product, *reversed(casts))
    return sums


def _workspace_bytes(
    kernel: Kernel, query: TensorSpec, key: TensorSpec, value: TensorSpec, kernels: Kernels
) -> int:
    """Params::workspace_size."""
    batch, heads, rows, size = query.shape
    columns, width = key.shape[2], value.shape[3]
    tiles = -(-rows // kernel.queries) * -(-size // kernel.keys)
    elements = tiles * (4 + kernel.queries * kernel.keys)
    if kernel.accumulates_keys:
        padded = sum(-(-length // kernel.queries) * kernel.queries for length in (size, width))
        elements += _num_splits(kernel, batch * heads, columns, kernels) * kernel.keys * padded
    return batch * heads * -(-elements // 4) * 4 * _FP32


def _num_splits(kernel: Kernel, num_heads: int, columns: int, kernels: Kernels) -> int:
    """Parts of the keys that are worked on at once (attention_backward.cu)."""
    if kernels.deterministic:
        return 1
    splits = -(-columns // kernel.keys)
    if num_heads >= 256 and columns <= 2 * kernel.keys:
        splits = 1
    return max(1, min(splits, 200 // num_heads))


@dataclass(frozen=True, slots=True)
class Kernel:
    """A backward kernel: its tile of queries by keys, and the largest head that it takes."""

    queries: int
    keys: int
    most: int
    """Largest size of a head (kMaxK)."""

    shared_bytes: int
    """Shared memory of a block: ``sizeof(SharedStorage)``, by compiling the header of torch 2.13
    with CUTLASS 4.2."""

    is_half: bool
    sums_rows: bool = True
    """Whether it computes the sums of output times gradient itself (kKernelComputesDelta)."""

    @property
    def accumulates_keys(self) -> bool:
        """Whether gradients of keys and values are summed in memory: kNeedsAccumGradK and V."""
        return self.is_half and self.most > self.queries


def choose(query: TensorSpec, size: int, has_dropout: bool, kernels: Kernels) -> Kernel | None:
    """The first kernel of the list that takes the head and fits into shared memory."""
    is_half = query.dtype.itemsize == 2
    capability = kernels.capability
    listed = _AMPERE if capability >= (8, 0) else _TURING if capability >= (7, 5) else _VOLTA
    for kernel in listed:
        fits = kernel.shared_bytes <= kernels.shared_memory_per_block_bytes
        is_meant = kernel is not _ADA or (capability in ((8, 6), (8, 9)) and not has_dropout)
        if kernel.is_half == is_half and kernel.most >= size and fits and is_meant:
            return kernel
    return None


_ANY = 65536

_ADA = Kernel(128, 64, 96, 91_648, True)
"""Compute capability 8.6 and 8.9 only, without dropout."""

_AMPERE = (
    Kernel(64, 64, 32, 34_560, True),
    Kernel(64, 64, 64, 42_240, True),
    _ADA,
    Kernel(128, 128, 128, 133_632, True),
    Kernel(64, 64, 128, 34_048, True),
    Kernel(128, 64, _ANY, 60_928, True),
    Kernel(64, 64, 64, 53_504, False, sums_rows=False),
    Kernel(128, 64, 128, 121_344, False, sums_rows=False),
    Kernel(64, 64, 128, 67_840, False, sums_rows=False),
    Kernel(128, 64, _ANY, 121_344, False, sums_rows=False),
    Kernel(64, 64, _ANY, 67_840, False, sums_rows=False),
)
"""dispatch_cutlassB_*_sm80 of kernels/cutlassB.h, in its order; used up to compute capability 12.1.
With dropout the 128 x 128 kernel needs 152,064 bytes, which changes no card's choice."""

_TURING = (
    Kernel(64, 64, 64, 27_904, True),
    Kernel(128, 64, 128, 54_784, True),
    Kernel(128, 64, _ANY, 54_784, True),
    Kernel(64, 64, _ANY, 37_120, False, sums_rows=False),
)
"""dispatch_cutlassB_*_sm75."""

_VOLTA = (
    Kernel(64, 64, 64, 25_088, True),
    Kernel(128, 64, 128, 50_176, True),
    Kernel(128, 64, _ANY, 50_176, True, sums_rows=False),
    Kernel(64, 64, _ANY, 37_120, False, sums_rows=False),
)
"""dispatch_cutlassB_*_sm70."""
