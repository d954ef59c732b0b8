"""Course model A as one of its recordings ran it, on torch 2.6: another hand, other ops.

The weight comes first in every einsum, so that outputs are transposed in memory; RMSNorm goes
through a vector norm; the rotary embedding writes into zeros; the optimizer changes its moments in
place.  Names of locals follow the order in which the recording frees them.

Letters: B batch, T positions, D width, H heads, K head width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from memfit.observer import Observer

VOCAB_SIZE = 10_000
D_MODEL, D_FF, NUM_HEADS = 2560, 10240, 32


class Linear(nn.Module):
    """``weight`` is (out, in) and the first operand."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("oi,...i->...o", self.weight, x)


class Embedding(nn.Module):
    """Rows by advanced indexing."""

    def __init__(self, num_rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, width))

    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.weight[ids]
        return rows


class RMSNorm(nn.Module):
    """From the vector norm; the result in the dtype of the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        rms = torch.sqrt(norm**2 / self.width + 1e-5)
        normed = x / rms
        scaled = torch.einsum("i,...i->...i", self.weight, normed)
        return scaled.to(x.dtype)


class RotaryEmbedding(nn.Module):
    """One table (2, context, K / 2) in every layer, read by position."""

    table: Tensor

    def __init__(self, context_length: int, head_width: int) -> None:
        super().__init__()
        table = torch.empty(2, context_length, head_width // 2)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:  # (B, H, T, K), (B, T)
        cos = self.table[0][positions].unsqueeze(1)
        sin = self.table[1][positions].unsqueeze(1)
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        out = torch.zeros_like(pairs)
        out[..., 0] = pairs[..., 0] * cos - pairs[..., 1] * sin
        out[..., 1] = pairs[..., 0] * sin + pairs[..., 1] * cos
        return out.reshape(x.shape)


def softmax(x: Tensor) -> Tensor:
    """Over the last axis, written out."""
    largest = torch.max(x, dim=-1, keepdim=True).values
    exponentials = torch.exp(x - largest)
    total = torch.sum(exponentials, dim=-1, keepdim=True)
    return exponentials / total


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention with the whole score matrix."""
    scores = torch.einsum("...qk,...sk->...qs", q, k)
    scores = scores / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qs,...sk->...qk", weights, v)


class CausalSelfAttention(nn.Module):
    """Projections apart, and a causal mask in every layer."""

    def __init__(self, context_length: int) -> None:
        super().__init__()
        self.q_proj = Linear(D_MODEL, D_MODEL)
        self.k_proj = Linear(D_MODEL, D_MODEL)
        self.v_proj = Linear(D_MODEL, D_MODEL)
        self.output_proj = Linear(D_MODEL, D_MODEL)
        self.rotary = RotaryEmbedding(context_length, D_MODEL // NUM_HEADS)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        all_q = self.q_proj(x)
        all_k = self.k_proj(x)
        all_v = self.v_proj(x)
        q = all_q.reshape(batch, length, NUM_HEADS, -1).transpose(1, 2)
        k = all_k.reshape(batch, length, NUM_HEADS, -1).transpose(1, 2)
        v = all_v.reshape(batch, length, NUM_HEADS, -1).transpose(1, 2)
        positions = torch.arange(length, device=x.device).expand(batch, length)
        q = self.rotary(q, positions)
        k = self.rotary(k, positions)
        mask = torch.triu(torch.ones(length, length, device=x.device), diagonal=1).bool()
        mask = ~mask
        mask = mask.expand(batch, NUM_HEADS, length, length)
        out = attend(q, k, v, mask)
        out = out.transpose(1, 2).reshape(batch, length, -1)
        return self.output_proj(out)  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """Gate, up and down."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = Linear(D_MODEL, D_FF)
        self.w2 = Linear(D_FF, D_MODEL)
        self.w3 = Linear(D_MODEL, D_FF)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.w1(x)
        up = self.w3(x)
        gate = torch.sigmoid(gate) * gate
        product = gate * up
        return self.w2(product)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm; one name for what is normed and what a sublayer gives."""

    def __init__(self, context_length: int) -> None:
        super().__init__()
        self.norm1 = RMSNorm(D_MODEL)
        self.attn = CausalSelfAttention(context_length)
        self.norm2 = RMSNorm(D_MODEL)
        self.ffn = SwiGLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        y = self.attn(y)
        x = x + y
        y = self.norm2(x)
        y = self.ffn(y)
        return x + y  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """(B, T) ids -> (B, T, V) logits."""

    def __init__(self, context_length: int, num_layers: int) -> None:
        super().__init__()
        self.embedding = Embedding(VOCAB_SIZE, D_MODEL)
        self.layers = nn.ModuleList(Block(context_length) for _ in range(num_layers))
        self.norm = RMSNorm(D_MODEL)
        self.head = Linear(D_MODEL, VOCAB_SIZE)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.head(x)  # type: ignore[no-any-return]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of (N, V) logits; the rows are picked with an index on the CPU."""
    largest = torch.max(logits, dim=-1, keepdim=True).values
    logits = logits - largest
    exponentials = torch.exp(logits)
    total = torch.sum(exponentials, dim=-1)
    picked = logits[torch.arange(len(labels)), labels]
    losses = torch.log(total) - picked
    return torch.mean(losses)


class InPlaceAdamW(Optimizer):
    """Moments change in place; the update of one parameter lives until the next one's is there."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p.data)
                    state["v"] = torch.zeros_like(p.data)
                m, v = state["m"], state["v"]
                m.mul_(0.9).add_(p.grad.data, alpha=0.1)
                v.mul_(0.999).addcmul_(p.grad.data, p.grad.data, value=0.001)
                update = m / v.sqrt().add_(1e-8)
                p.data.add_(update, alpha=-group["lr"])
                p.data.mul_(0.99999)


def first_step(observer: Observer, *, batch_size: int, seq_len: int, num_layers: int) -> None:
    """The first training step, fp32; the ids are their own labels."""
    observer.phase("init")
    with torch.device("cuda"):
        model = Decoder(seq_len, num_layers)
        ids = torch.randint(0, VOCAB_SIZE, (batch_size, seq_len))
    optimizer = InPlaceAdamW(model.parameters())
    observer.step(1)
    observer.phase("forward")
    logits = model(ids)
    loss = cross_entropy(logits.flatten(0, 1), ids.flatten())
    observer.phase("backward")
    loss.backward()
    observer.phase("optimizer")
    optimizer.step()
    observer.phase("eval")


def bf16_forward(observer: Observer, *, batch_size: int, seq_len: int, num_layers: int) -> None:
    """A second forward under bf16 autocast, after the cache was emptied."""
    observer.phase("init")
    with torch.device("cuda"):
        model = Decoder(seq_len, num_layers)
        ids = torch.randint(0, VOCAB_SIZE, (batch_size, seq_len))

    def forward() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            observer.phase("forward")
            logits = model(ids)
            observer.phase("eval")
        del logits

    for step in (1, 2):
        observer.step(step)
        torch.cuda.empty_cache()
        forward()
    observer.phase("save")
