"""Matrix products: the workspaces of cuBLAS and cuBLASLt, and operands that BLAS cannot read."""

from __future__ import annotations

import re

import torch

from memfit.allocator.version import TorchVersion
from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden.cuda.arguments import named, tensor
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.steps import Steps
from memfit.tracing.hidden.sequences import Sequence
from memfit.units import KiB, MiB

CUBLAS, CUBLASLT = "cuBLAS workspace", "cuBLASLt workspace"

BLACKWELL_32_MIB_FROM = TorchVersion(2, 12)
"""PR #175344 (February 2026); read in the compiled 2.14.1."""

LT_KEPT_FROM = TorchVersion(2, 9)
"""PR #156495."""

LT_SHARED_FROM = TorchVersion(2, 11)
"""PR #168175 (January 2026); read in the compiled 2.14.1."""


def cublas_workspace_bytes(kernels: Kernels) -> int:
    """cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize.

    8.125 MiB was recorded on torch 2.6 and 2.11 (sm_80 class and sm_100), 32 MiB on Hopper.
    """
    parts = re.findall(r":([0-9]+):([0-9]+)", kernels.cublas_workspace_config)
    if parts:
        return sum(int(kibibytes) * KiB * int(count) for kibibytes, count in parts)
    major = kernels.capability[0]
    is_big = major == 9 or (major in (10, 11, 12) and kernels.version >= BLACKWELL_32_MIB_FROM)
    return 32 * MiB if is_big else 2 * 4 * MiB + 8 * 16 * KiB


def product(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """``mm``, ``addmm``, ``bmm``, ``baddbmm``, ``addmv`` and their like.

    native/cuda/Blas.cpp: the output is there first; matrices that have no stride of 1, or rows that
    overlap, are copied; then the handle is asked for, which allocates the thread's workspace.
    """
    base = call.op.split(".")[0]
    steps = Steps(num_outputs)
    steps.outputs()
    positions = (1, 2) if base.startswith(("aten::addm", "aten::_addmm", "aten::bad")) else (0, 1)
    matrices = [tensor(call, position) for position in positions]
    if any(matrix is None or matrix.numel == 0 for matrix in matrices):
        return steps.sequence()
    copies = [steps.take(_copy_bytes(matrix)) for matrix in matrices if matrix is not None]
    if _goes_by_lt(call, base):
        _add_lt_workspace(steps, kernels)
    else:
        steps.keep(CUBLAS, cublas_workspace_bytes(kernels))
    steps.give(*reversed(copies))
    return steps.sequence()


def _add_lt_workspace(steps: Steps, kernels: Kernels) -> None:
    """The handle is cuBLAS's own, so its workspace comes with it.

    cuda/CUDABlas.cpp, gemm_and_bias: 1 MiB unless ``CUBLASLT_WORKSPACE_SIZE`` says otherwise.
    """
    num_bytes = kernels.cublaslt_workspace_kib * KiB
    if kernels.version >= LT_SHARED_FROM:
        steps.keep(CUBLAS, cublas_workspace_bytes(kernels))
    elif kernels.version >= LT_KEPT_FROM:
        steps.keep(CUBLAS, cublas_workspace_bytes(kernels))
        steps.keep(CUBLASLT, num_bytes)
    else:
        passing = steps.take(num_bytes)
        steps.keep(CUBLAS, cublas_workspace_bytes(kernels))
        steps.give(passing)


def _goes_by_lt(call: Call, base: str) -> bool:
    """isInputCompliesAddmmCudaLt: a bias of one dimension that cuBLASLt can add.

    Scaled and int8 products (cuda/ScaledBlas.cpp, Blas.cpp) go there always.
    """
    if base in ("aten::_scaled_mm", "aten::_int_mm"):
        return True
    if base not in ("aten::addmm", "aten::_addmm_activation"):
        return False
    bias, first, second = (tensor(call, position) for position in (0, 1, 2))
    if bias is None or first is None or second is None or named(call, "beta") not in (None, 1, 1.0):
        return False
    halves = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return (
        len(bias.shape) == 1
        and bias.is_contiguous
        and bias.shape[0] == second.shape[1]
        and first.dtype in halves
        and second.shape[0] > 1
        and second.shape[1] > 1
    )


def _copy_bytes(matrix: TensorSpec) -> int:
    """prepare_matrix_for_cublas and prepare_batch_matrix_for_cublas."""
    if len(matrix.shape) < 2:
        return 0 if len(matrix.shape) == 0 or matrix.stride[-1] != 0 else matrix.num_bytes
    rows, columns = matrix.stride[-2:]
    num_rows, num_columns = matrix.shape[-2:]
    by_rows = columns == 1 and rows >= max(1, num_columns)
    by_columns = rows == 1 and columns >= max(1, num_rows)
    if by_rows or by_columns:
        return 0
    return 0 if matrix.is_contiguous and rows != 0 and columns != 0 else matrix.num_bytes
