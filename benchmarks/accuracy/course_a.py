"""Course model A: the decoder of a university course, as its rows and recordings describe it.

Linear layers are einsums over untransposed weights; RMSNorm, the rotary embedding, softmax and
SwiGLU are written out op by op, without biases, dropout or weight tying.  The names of local
variables decide how long a temporary lives, so they follow the recordings: a tensor that was freed
when its function returned has a name here, one that was freed at once has none.

Letters: B batch, T positions, D model width, H heads, K head width, F feed-forward width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCAB_SIZE = 10_000


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of one model of the course."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int


SIZES = {
    "small": Size(768, 3072, 12, 12),
    "medium": Size(1024, 4096, 24, 16),
    "large": Size(1280, 5120, 36, 20),
    "xl": Size(2560, 10240, 32, 32),
    "10b": Size(4608, 12288, 50, 36),
}


def truncated_normal_(weight: Tensor, std: float) -> Tensor:
    """``nn.init.trunc_normal_`` as torch up to 2.11 had it: in place from one uniform sample.

    The one of torch 2.13 draws again what falls outside, which takes masks and candidates.
    """
    with torch.no_grad():
        weight.uniform_(-1, 1).erfinv_().mul_(std * math.sqrt(2)).clamp_(-3 * std, 3 * std)
    return weight


class Linear(nn.Module):
    """``weight`` is (out, in)."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        std = math.sqrt(2 / (in_features + out_features))
        self.weight = nn.Parameter(truncated_normal_(torch.empty(out_features, in_features), std))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    """A table read by advanced indexing: its backward is an accumulating ``index_put``."""

    def __init__(self, num_rows: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(truncated_normal_(torch.empty(num_rows, d_model), 1.0))

    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.weight[ids, :]
        return rows


class RMSNorm(nn.Module):
    """In float32 whatever comes in."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        rms = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        x = x * rms
        return (self.weight * x).to(dtype)


class RotaryEmbedding(nn.Module):
    """One table (2, context, K / 2) of cosines and sines, shared by all layers."""

    table: Tensor

    def __init__(self, context_length: int, head_width: int, theta: float = 10_000.0) -> None:
        super().__init__()
        exponents = torch.arange(0, head_width, 2) / head_width
        frequencies = theta**-exponents
        positions = torch.arange(context_length)
        angles = torch.einsum("t,f->tf", positions, frequencies)
        cos, sin = torch.cos(angles), torch.sin(angles)
        self.register_buffer("table", torch.stack((cos, sin)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, H, T, K)
        x1, x2 = x.reshape(*x.shape[:-1], -1, 2).permute(4, 0, 1, 2, 3)  # even and odd entries
        cos, sin = self.table[:, : x.shape[-2]]
        rotated1 = cos * x1 - sin * x2
        rotated2 = sin * x1 + cos * x2
        return torch.cat((rotated1, rotated2), dim=-1)


def softmax(x: Tensor, dim: int) -> Tensor:
    """Written out, each step a tensor of its own."""
    shifted = x - torch.max(x, dim=dim, keepdim=True)[0]
    exponentials = torch.exp(shifted)
    return exponentials / torch.sum(exponentials, dim=dim, keepdim=True)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention over the whole (T, T) matrix; q, k, v are (B, H, T, K)."""
    scores = torch.einsum("...qk,...sk->...qs", q, k) / math.sqrt(k.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores, -1)
    return torch.einsum("...qs,...sk->...qk", weights, v)


class CausalSelfAttention(nn.Module):
    """Query, key and value projections apart; the mask is made anew in every layer."""

    def __init__(self, size: Size, rotary: RotaryEmbedding) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.q_proj = Linear(size.d_model, size.d_model)
        self.k_proj = Linear(size.d_model, size.d_model)
        self.v_proj = Linear(size.d_model, size.d_model)
        self.output_proj = Linear(size.d_model, size.d_model)
        self.rotary = rotary

    def _heads(self, x: Tensor) -> Tensor:  # (B, T, D) -> (B, H, T, K)
        return x.reshape(*x.shape[:-1], self.num_heads, -1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        q = self.rotary(q)
        k = self.rotary(k)
        positions = torch.arange(x.shape[-2], device=x.device)
        mask = positions[None, None, :, None] >= positions[None, None, None, :]
        out = attention(q, k, v, mask)
        out = out.transpose(1, 2).reshape(*x.shape[:-1], -1).contiguous()
        return self.output_proj(out)  # type: ignore[no-any-return]


def silu(x: Tensor) -> Tensor:
    """Written out: the sigmoid is kept beside its input."""
    return x * torch.sigmoid(x)


class SwiGLU(nn.Module):
    """``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.w1 = Linear(size.d_model, size.d_ff)
        self.w2 = Linear(size.d_ff, size.d_model)
        self.w3 = Linear(size.d_model, size.d_ff)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm, two residual additions."""

    def __init__(self, size: Size, rotary: RotaryEmbedding) -> None:
        super().__init__()
        self.attn = CausalSelfAttention(size, rotary)
        self.ffn = SwiGLU(size)
        self.ln1 = RMSNorm(size.d_model)
        self.ln2 = RMSNorm(size.d_model)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attn(self.ln1(x))
        middle = x + attended
        fed = self.ffn(self.ln2(middle))
        return middle + fed  # type: ignore[no-any-return]


class CourseModelA(nn.Module):
    """The whole decoder: (B, T) ids -> (B, T, VOCAB_SIZE) logits.

    With ``layers_per_segment`` the layers run under activation checkpointing in segments of so
    many.
    """

    def __init__(self, size: Size, context_length: int, layers_per_segment: int = 0) -> None:
        super().__init__()
        self.token_embeddings = Embedding(VOCAB_SIZE, size.d_model)
        rotary = RotaryEmbedding(context_length, size.d_model // size.num_heads)
        self.layers = nn.ModuleList(Block(size, rotary) for _ in range(size.num_layers))
        self.ln_final = RMSNorm(size.d_model)
        self.lm_head = Linear(size.d_model, VOCAB_SIZE)
        self.layers_per_segment = layers_per_segment

    def _segment(self, x: Tensor, start: int) -> Tensor:
        for layer in self.layers[start : start + self.layers_per_segment]:
            x = layer(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embeddings(ids)
        if self.layers_per_segment:
            for start in range(0, len(self.layers), self.layers_per_segment):
                x = checkpoint(self._segment, x, start, use_reentrant=False)
        else:
            for layer in self.layers:
                x = layer(x)
        x = self.ln_final(x)
        return self.lm_head(x)  # type: ignore[no-any-return]


def log_softmax(x: Tensor) -> Tensor:
    """Over the last axis, written out."""
    largest = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - largest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The course's own cross entropy; some of its runs use torch's instead."""
    negative = -log_softmax(logits)
    return torch.mean(torch.gather(negative, -1, labels.unsqueeze(-1)))
