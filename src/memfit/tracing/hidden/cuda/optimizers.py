"""Optimizers and gradient clipping: what ``_foreach`` kernels take inside.

Lists of new tensors that PyTorch's Python code makes between kernels (the square roots of Adam)
are outputs, which the trace sees.  Fused optimizers take nothing.
"""

from __future__ import annotations

import torch

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import is_dense, named
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence

_CHUNK = 65_536
"""kChunkSize, native/cuda/MultiTensorApply.cuh."""


def foreach_norm(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``_foreach_norm``: one partial norm for each chunk of the largest tensor, times the tensors.

    native/cuda/ForeachReduceOp.cu, before the outputs.  Tensors of more than one dtype, or strided
    ones, are left to ``linalg_vector_norm`` one by one.
    """
    listed = call.argument(0, ())
    tensors = [value for value in listed if isinstance(value, TensorSpec)]
    order = call.argument(1, 2)
    is_fast = len({t.dtype for t in tensors}) == 1 and order in (0, 1, 2, float("inf"))
    if not tensors or not is_fast or not all(is_dense(t) for t in tensors):
        return None
    steps = Steps(num_outputs)
    chunks = max(-(-t.numel // _CHUNK) for t in tensors)
    dtype = named(call, "dtype") or call.argument(2) or tensors[0].dtype
    each = 8 if dtype is torch.float64 else 4
    parts = steps.take(len(tensors) * chunks * each)
    steps.outputs()
    steps.give(parts)
    return steps.sequence()
