"""The fused path of nn.MultiheadAttention and nn.TransformerEncoderLayer in eval mode.

PyTorch calls one op for a whole layer where no gradient is needed; its CUDA kernel is C++ over
other ops (aten/src/ATen/native/transformers/transformer.cpp, cuda/attention.cu), repeated here for
dense tensors so that each takes its memory.
"""

from __future__ import annotations

import torch

from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.virtual.attention import chosen_for
from memfit.tracing.virtual.attention_choice import MATH
from memfit.tracing.virtual.dispatch import Dispatch

_Tensor = torch.Tensor
_WHOLE_HEADS = 8
"""Heads of a multiple of this size may take a fused kernel (native_multi_head_attention_cuda)."""


def register(gpu: Dispatch, kernels: Kernels) -> list[torch.library.Library]:
    """The libraries must be kept for the kernels to stay."""
    layer = _EncoderLayer(gpu, kernels)
    aten = torch.library.Library("aten", "IMPL")
    aten.impl("_native_multi_head_attention", layer.attend, "PrivateUse1")
    aten.impl("_transformer_encoder_layer_fwd", layer.forward, "PrivateUse1")
    return [aten]


class _EncoderLayer:
    """Both ops on one card.  (B, T, D) tensors, H heads."""

    def __init__(self, gpu: Dispatch, kernels: Kernels) -> None:
        self._gpu = gpu
        self._kernels = kernels

    def attend(
        self,
        query: _Tensor,
        key: _Tensor,
        value: _Tensor,
        embed_dim: int,
        num_head: int,
        qkv_weight: _Tensor,
        qkv_bias: _Tensor,
        proj_weight: _Tensor,
        proj_bias: _Tensor,
        mask: _Tensor | None = None,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        mask_type: int | None = None,
    ) -> tuple[_Tensor, _Tensor | None]:
        """Self-attention with its projections."""
        aten = torch.ops.aten
        batch, size = query.shape[0], embed_dim // num_head
        is_self = query.data_ptr() == key.data_ptr() == value.data_ptr()
        heads = query.view(batch, -1, num_head, size).transpose(1, 2)
        can_fuse = is_self and size % _WHOLE_HEADS == 0 and not need_weights and mask is None
        if can_fuse and chosen_for(heads, self._kernels) not in ("", MATH):
            projected = aten.linear(query, qkv_weight, qkv_bias)
            q, k, v = (
                part.view(batch, -1, num_head, size).transpose(1, 2)
                for part in projected.chunk(3, -1)
            )
            output = aten.scaled_dot_product_attention(q, k, v)
            del q, k, v
            rows = output.transpose(1, 2).reshape(batch, -1, embed_dim)
            return aten.linear(rows, proj_weight, proj_bias), None
        packed = self._heads(query, qkv_weight, num_head)
        q, k, v = (part.squeeze(0).flatten(0, 1) for part in packed.chunk(3, 0))
        scores = aten.bmm(q, k.transpose(1, 2)).view(batch, num_head, -1, key.shape[1])
        if mask is None:
            scores = scores.copy_(scores)  # softmax in place
        else:
            scores = aten._masked_softmax(scores, mask, scores.dim() - 1, mask_type)
        output = aten.bmm.out(scores.flatten(0, 1), v, out=q)
        weights = scores if need_weights else None
        del scores, k, v
        rows = output.view(batch, num_head, -1, size).transpose(1, 2).reshape(-1, embed_dim)
        result = aten.addmm(proj_bias, rows, proj_weight.t()).view(batch, -1, embed_dim)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        return result, weights

    def forward(
        self,
        src: _Tensor,
        embed_dim: int,
        num_heads: int,
        qkv_weight: _Tensor,
        qkv_bias: _Tensor,
        proj_weight: _Tensor,
        proj_bias: _Tensor,
        use_gelu: bool,
        norm_first: bool,
        eps: float,
        norm_weight_1: _Tensor,
        norm_bias_1: _Tensor,
        norm_weight_2: _Tensor,
        norm_bias_2: _Tensor,
        ffn_weight_1: _Tensor,
        ffn_bias_1: _Tensor,
        ffn_weight_2: _Tensor,
        ffn_bias_2: _Tensor,
        mask: _Tensor | None = None,
        mask_type: int | None = None,
    ) -> _Tensor:
        """A layer: attention, and a net of two layers, each normalized before or after."""
        aten = torch.ops.aten
        norm_1 = ([embed_dim], norm_weight_1, norm_bias_1, eps)
        norm_2 = ([embed_dim], norm_weight_2, norm_bias_2, eps)
        x = aten.layer_norm(src, *norm_1) if norm_first else src
        x, _ = self.attend(
            *(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask),
            need_weights=False,
            mask_type=mask_type,
        )
        x.add_(src)
        if not norm_first:
            x = aten.layer_norm(x, *norm_1)
        before = x
        if norm_first:
            x = aten.layer_norm(x, *norm_2)
        rows = x.reshape(-1, embed_dim)
        hidden = aten._addmm_activation(ffn_bias_1, rows, ffn_weight_1.t(), use_gelu=use_gelu)
        del rows
        x = aten.addmm(ffn_bias_2, hidden, ffn_weight_2.t()).view(src.shape)
        del hidden
        x.add_(before)
        return x if norm_first else aten.layer_norm(x, *norm_2)  # type: ignore[no-any-return]

    def _heads(self, query: _Tensor, qkv_weight: _Tensor, num_head: int) -> _Tensor:
        """(3, B, H, T, D / H): projected, then biased and split into heads in a copy."""
        batch, rows, embed_dim = query.shape
        projected = torch.ops.aten.linear(query, qkv_weight, None)
        size = [3, batch, num_head, rows, embed_dim // num_head]
        op = "aten::_transform_bias_rescale_qkv"
        packed = self._gpu.empty(size, None, projected.dtype, op)
        del projected
        return packed
