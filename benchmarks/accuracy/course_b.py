"""Course model B: another decoder of the course, with its loss and its Adam, op by op.

Built on the GPU; the tables of the rotary embedding and the causal mask are made on the CPU and
moved at every call.  As in ``course_a``, a local variable has a name where the recording shows
that its tensor lives until the function returns.

Letters: B batch, T positions, D = 512 model width, H = 16 heads, K = 32 head width, F = 1344.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.accuracy.course_a import truncated_normal_

VOCAB_SIZE, CONTEXT_LENGTH = 10_000, 256
D_MODEL, D_FF, NUM_LAYERS, NUM_HEADS = 512, 1344, 4, 16


class Linear(nn.Module):
    """``weight`` is (out, in)."""

    def __init__(self, in_features: int, out_features: int, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device))
        truncated_normal_(self.weight, math.sqrt(2 / (in_features + out_features)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    """A table read by advanced indexing."""

    def __init__(self, num_rows: int, d_model: int, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, d_model, device=device))
        truncated_normal_(self.weight, 1.0)

    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.weight[ids]
        return rows


class RMSNorm(nn.Module):
    """By division, in the dtype of the input."""

    def __init__(self, d_model: int, device: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model, device=device))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        rms = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + self.eps)
        return (x / rms * self.weight).to(x.dtype)


def silu(x: Tensor) -> Tensor:
    """Written out."""
    return x * torch.sigmoid(x)


class SwiGLU(nn.Module):
    """``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.w1 = Linear(D_MODEL, D_FF, device)
        self.w2 = Linear(D_FF, D_MODEL, device)
        self.w3 = Linear(D_MODEL, D_FF, device)

    def forward(self, x: Tensor) -> Tensor:
        gate = silu(self.w1(x))
        up = self.w3(x)
        return self.w2(gate * up)  # type: ignore[no-any-return]


class RotaryEmbedding(nn.Module):
    """Tables (CONTEXT_LENGTH, K / 2) on the CPU, read and moved at each call."""

    sin: Tensor
    cos: Tensor

    def __init__(self, head_width: int, theta: float = 10_000.0) -> None:
        super().__init__()
        frequencies = theta ** (-torch.arange(0, head_width, 2, device="cpu") / head_width)
        angles = torch.outer(torch.arange(CONTEXT_LENGTH, device="cpu"), frequencies)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.register_buffer("cos", angles.cos(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:  # (B, H, T, K)
        sin = self.sin[positions].to(x.device)[..., None]  # (T, K / 2, 1)
        cos = self.cos[positions].to(x.device)[..., None]
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        first = pairs[..., :1] * cos - pairs[..., 1:] * sin
        second = pairs[..., :1] * sin + pairs[..., 1:] * cos
        return torch.cat((first, second), dim=-1).reshape(x.shape)


def softmax(x: Tensor, dim: int) -> Tensor:
    """The exponentials are computed twice."""
    largest, _ = torch.max(x, dim=dim, keepdim=True)
    return torch.exp(x - largest) / torch.sum(torch.exp(x - largest), dim=dim, keepdim=True)


class ScaledDotProductAttention(nn.Module):
    """A mask of floats comes from the CPU; the scores are masked in place."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        mask = mask.to(q.device)
        products = torch.einsum("...qk,...sk->...qs", q, k)
        scores = products / torch.sqrt(torch.tensor(q.shape[-1], device=q.device))
        scores.masked_fill_(~mask.bool(), float("-inf"))
        weights = softmax(scores, -1)
        return torch.einsum("...qs,...sk->...qk", weights, v)


class CausalSelfAttention(nn.Module):
    """Query, key and value projections apart; rotates queries and keys."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.q_proj = Linear(D_MODEL, D_MODEL, device)
        self.k_proj = Linear(D_MODEL, D_MODEL, device)
        self.v_proj = Linear(D_MODEL, D_MODEL, device)
        self.output_proj = Linear(D_MODEL, D_MODEL, device)
        self.rotary = RotaryEmbedding(D_MODEL // NUM_HEADS)
        self.attention = ScaledDotProductAttention()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        B, T, _ = x.shape
        q = q.reshape(B, T, NUM_HEADS, -1).transpose(1, 2)  # (B, H, T, K)
        k = k.reshape(B, T, NUM_HEADS, -1).transpose(1, 2)
        v = v.reshape(B, T, NUM_HEADS, -1).transpose(1, 2)
        positions = torch.arange(T, device="cpu")
        q = self.rotary(q, positions)
        k = self.rotary(k, positions)
        mask = torch.tril(torch.ones(T, T, device="cpu"))
        out = self.attention(q, k, v, mask)
        out = out.transpose(1, 2).contiguous().reshape(B, T, -1)
        return self.output_proj(out)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm, two residual additions; what the norms and sublayers return has names."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.norm1 = RMSNorm(D_MODEL, device)
        self.norm2 = RMSNorm(D_MODEL, device)
        self.attn = CausalSelfAttention(device)
        self.ffn = SwiGLU(device)

    def forward(self, x: Tensor) -> Tensor:
        normed1 = self.norm1(x)
        attended = self.attn(normed1)
        x = x + attended
        normed2 = self.norm2(x)
        fed = self.ffn(normed2)
        return x + fed  # type: ignore[no-any-return]


class CourseModelB(nn.Module):
    """(B, T) ids -> (B, T, VOCAB_SIZE) logits."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.embedding = Embedding(VOCAB_SIZE, D_MODEL, device)
        self.layers = nn.ModuleList(Block(device) for _ in range(NUM_LAYERS))
        self.norm = RMSNorm(D_MODEL, device)
        self.head = Linear(D_MODEL, VOCAB_SIZE, device)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x)  # type: ignore[no-any-return]


class LastPositionLoss(nn.Module):
    """Cross entropy of one position: log-softmax and a one-hot product, written out."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:  # (B, VOCAB_SIZE), (B,)
        largest, _ = torch.max(logits, dim=-1, keepdim=True)
        log_p = (logits - largest) - torch.log(
            torch.sum(torch.exp(logits - largest), dim=-1, keepdim=True)
        )
        one_hot = torch.zeros_like(log_p)
        one_hot.scatter_(-1, labels.unsqueeze(-1), 1)
        return -torch.sum(one_hot * log_p) / logits.shape[0]


class OwnAdam(Optimizer):
    """Moments made with the optimizer; each step makes new moments and new parameters, twice."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(
            parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["m"] = torch.zeros_like(p.data)
                self.state[p]["v"] = torch.zeros_like(p.data)
        self.num_steps = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.num_steps += 1
        for group in self.param_groups:
            lr, eps, decay = group["lr"], group["eps"], group["weight_decay"]
            beta1, beta2 = group["betas"]
            rate = lr * math.sqrt(1 - beta2**self.num_steps) / (1 - beta1**self.num_steps)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                m = state["m"]
                state["m"] = beta1 * m + (1 - beta1) * p.grad.data
                v = state["v"]
                state["v"] = beta2 * v + (1 - beta2) * p.grad.data**2
                p.data = p.data - rate * (state["m"] / (torch.sqrt(state["v"]) + eps))
                p.data = p.data - lr * decay * p.data
