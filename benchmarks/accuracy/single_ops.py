"""Rows that measure one operation: attention alone, and a language model's head with its loss."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from memfit.observer import Observer

GEMMA2_SOFTCAP = 30.0
"""``final_logit_softcapping`` of Gemma 2's published configurations."""


def attention(
    observer: Observer,
    *,
    batch_size: int,
    seq_len: int,
    head_width: int,
    backward_first: bool,
    upstream_gradient: bool,
) -> None:
    """Plain attention without heads; read between forward and backward, so it is not a peak.

    ``backward_first``: an earlier pair of passes has run, so the autograd thread's cuBLAS
    workspace exists too.  ``upstream_gradient``: the gradient that backward starts from is made
    before the figure is read.
    """
    observer.phase("init")
    shape = (batch_size, seq_len, head_width)
    q, k, v = (torch.randn(shape, device="cuda", requires_grad=True) for _ in range(3))
    gradient = torch.randn(shape, device="cuda") if upstream_gradient else None

    def forward() -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(head_width)
        return torch.softmax(scores, dim=-1) @ v

    if backward_first:
        observer.step(1)
        observer.phase("backward")
        forward().sum().backward()
        q.grad = k.grad = v.grad = None
    observer.step(2)
    observer.phase("forward")
    out = forward()
    observer.phase("save")
    del out, gradient


def head_and_cross_entropy(
    observer: Observer, *, num_tokens: int, d_model: int, vocab_size: int, passes: str
) -> None:
    """Logits of a bf16 head, softcapped, and their cross entropy in fp32.

    The figures are peaks above what is allocated before the part that is measured:
    ``passes`` is ``forward``, ``backward`` or ``forward and backward``.  One round before makes
    the cuBLAS workspaces, as a benchmark's warm-up does.
    """
    observer.phase("init")
    dtype = torch.bfloat16
    hidden = torch.randn(num_tokens, d_model, device="cuda", dtype=dtype, requires_grad=True)
    head = torch.randn(vocab_size, d_model, device="cuda", dtype=dtype, requires_grad=True)
    labels = torch.randint(0, vocab_size, (num_tokens,), device="cuda")

    def loss() -> Tensor:
        logits = hidden @ head.T
        logits = torch.tanh(logits / GEMMA2_SOFTCAP) * GEMMA2_SOFTCAP
        return F.cross_entropy(logits.float(), labels)

    observer.step(1)
    observer.phase("forward")
    loss().backward()
    hidden.grad = head.grad = None
    observer.step(2)
    observer.phase("forward")
    if passes == "backward":
        value = loss()
        torch.cuda.reset_peak_memory_stats()
        observer.phase("backward")
        value.backward()
    else:
        torch.cuda.reset_peak_memory_stats()
        value = loss()
        if passes == "forward and backward":
            observer.phase("backward")
            value.backward()
    observer.phase("save")


def written_out_attention(
    observer: Observer, *, batch_size: int, seq_len: int, head_width: int
) -> None:
    """Attention whose softmax is written out, its sum and one backward."""

    def softmax(x: Tensor) -> Tensor:
        largest = torch.max(x, dim=-1, keepdim=True)[0]
        exponentials = torch.exp(x - largest)
        total = torch.sum(exponentials, dim=-1, keepdim=True)
        return exponentials / total

    def attend() -> Tensor:
        scores = torch.einsum("...qk,...sk->...qs", q, k) / math.sqrt(head_width)
        weights = softmax(scores)
        return torch.einsum("...qs,...sk->...qk", weights, v)

    observer.phase("init")
    shape = (batch_size, seq_len, head_width)
    q = torch.randn(shape, device="cuda", requires_grad=True)
    k = torch.randn(shape, device="cuda", requires_grad=True)
    v = torch.randn(shape, device="cuda", requires_grad=True)
    observer.step(1)
    observer.phase("forward")
    out = attend()
    loss = out.sum()
    observer.phase("backward")
    loss.backward()
    observer.phase("save")


def linear_forwards(
    observer: Observer, *, batch_size: int, in_features: int, out_features: int
) -> None:
    """Three forwards of one ``nn.Linear``; each output lives until the next one is there."""
    observer.phase("init")
    layer = torch.nn.Linear(in_features, out_features, device="cuda")
    for step in range(1, 4):
        observer.step(step)
        observer.phase("forward")
        x = torch.randn(batch_size, in_features, device="cuda")
        y = layer(x)
    observer.phase("save")
    del x, y


def cross_entropy_alone(observer: Observer, *, num_tokens: int, vocab_size: int) -> None:
    """Cross entropy of bf16 logits and its backward."""
    observer.phase("init")
    dtype = torch.bfloat16
    logits = torch.randn(num_tokens, vocab_size, device="cuda", dtype=dtype, requires_grad=True)
    labels = torch.randint(0, vocab_size, (num_tokens,), device="cuda")
    observer.step(1)
    observer.phase("forward")
    loss = F.cross_entropy(logits, labels)
    observer.phase("backward")
    loss.backward()
    observer.phase("save")
