"""The table: what each CUDA op takes beside its outputs.  One line an op; docs in hidden-memory.md.

An op that is neither here nor among ``UNKNOWN`` takes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from memfit.tracing.calls import Call
from memfit.tracing.hidden.cuda import (
    attention,
    convolutions,
    copies,
    indexing,
    losses,
    memory_efficient,
    norms,
    optimizers,
    products,
    reductions,
    softmax,
    sorting,
    upsampling,
    where,
)
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.sequences import Sequence

Rule: TypeAlias = Callable[[Call, int, Kernels], Sequence | None]


def sequence(call: Call, num_outputs: int, kernels: Kernels) -> Sequence | None:
    """What happens inside the call on these kernels; None: its outputs, and nothing beside them.

    Args:
        call: the op with its arguments.  A structured op comes as ``.out``.
        num_outputs: how many outputs it allocates itself: 0 where C++ did so before the call.
        kernels: card and torch.
    """
    rule = _RULES.get(call.op.split(".")[0])
    return rule(call, num_outputs, kernels) if rule is not None else None


def _named(rule: Rule, names: str) -> dict[str, Rule]:
    return {f"aten::{name}": rule for name in names.split()}


_RULES: dict[str, Rule] = {
    **_named(
        products.product,
        "mm addmm _addmm_activation bmm baddbmm addbmm mv addmv dot vdot _scaled_mm _int_mm",
    ),
    **dict.fromkeys(reductions.KINDS, reductions.reduce),
    **_named(indexing.index_put, "index_put index_put_ _index_put_impl_"),
    **_named(indexing.embedding_backward, "embedding_dense_backward"),
    **_named(softmax.softmax, "_softmax _log_softmax"),
    **_named(softmax.softmax_backward, "_softmax_backward_data"),
    **_named(softmax.log_softmax_backward, "_log_softmax_backward_data"),
    **_named(where.where, "where"),
    **_named(copies.copy, "copy_"),
    **_named(copies.embedding, "embedding"),
    **_named(copies.pad, "reflection_pad1d reflection_pad2d reflection_pad3d"),
    **_named(
        upsampling.upsample,
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d",
    ),
    **_named(
        upsampling.upsample_backward,
        "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
        "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward "
        "_upsample_nearest_exact3d_backward upsample_bilinear2d_backward",
    ),
    **_named(norms.layer_norm, "native_layer_norm _fused_rms_norm"),
    **_named(norms.layer_norm_backward, "native_layer_norm_backward"),
    **_named(norms.rms_norm_backward, "_fused_rms_norm_backward"),
    **_named(norms.group_norm, "native_group_norm"),
    **_named(norms.group_norm_backward, "native_group_norm_backward"),
    **_named(losses.elementwise, "mse_loss smooth_l1_loss huber_loss"),
    **_named(
        losses.nll_loss,
        "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward",
    ),
    **_named(optimizers.foreach_norm, "_foreach_norm _foreach_powsum"),
    **_named(sorting.sort, "sort"),
    **_named(sorting.topk, "topk"),
    **_named(sorting.cumulate, "cumsum cumprod"),
    **_named(sorting.nonzero, "nonzero"),
    **_named(convolutions.convolution, "convolution"),
    **_named(convolutions.convolution_backward, "convolution_backward"),
    **_named(attention.flash, "_scaled_dot_product_flash_attention"),
    **_named(attention.flash_backward, "_scaled_dot_product_flash_attention_backward"),
    **_named(attention.cudnn, "_scaled_dot_product_cudnn_attention"),
    **_named(attention.cudnn_backward, "_scaled_dot_product_cudnn_attention_backward"),
    **_named(memory_efficient.forward, "_scaled_dot_product_efficient_attention"),
    **_named(memory_efficient.backward, "_scaled_dot_product_efficient_attention_backward"),
}

COVERED: frozenset[str] = frozenset(_RULES)
"""Ops, by name without overload, that have a rule."""

_NO_FORMULA = """
_cudnn_rnn _cudnn_rnn_backward _ctc_loss _cudnn_ctc_loss _grouped_mm _scaled_grouped_mm _fft_r2c
_fft_c2r _fft_c2c _linalg_svd _linalg_eigh _linalg_slogdet linalg_qr linalg_lu_factor_ex
linalg_cholesky_ex linalg_inv_ex linalg_lstsq _unique2 unique_dim unique_consecutive multinomial
median kthvalue mode bincount histc cdist
"""

UNKNOWN: frozenset[str] = frozenset(f"aten::{name}" for name in _NO_FORMULA.split())
"""Ops whose kernels take memory that nobody here has a formula for; counted as none."""
