"""The loss alone: head and cross-entropy of hidden states, forward and backward, no model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.techniques.contenders import Contender, Size
from benchmarks.techniques.turns import CAPTURED_STEPS, Turns
from memfit.profiler.capture import Capture
from memfit.techniques.chunked_cross_entropy import Head, summed_cross_entropy

CAP = 15.0
"""The logits' bound, as nanochat has it."""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def run_loss(contender: Contender, size: Size, turns: Turns) -> None:
    """Hidden states (N, C) and a head (V, C), in fp32.

    The peak is what is added to them: both gradients are in it, whichever loss it is.
    """
    loss = LOSSES[contender.loss]
    torch.manual_seed(0)
    hidden = torch.randn(size.tokens, size.dim, requires_grad=True)
    weight = (torch.randn(size.vocab_size, size.dim) * 0.02).requires_grad_()
    targets = torch.randint(size.vocab_size, (size.tokens,))
    turns.ready()
    number = 0
    while turns.wait():
        number += 1
        hidden.grad = weight.grad = None
        capture = Capture() if number == CAPTURED_STEPS else None
        with capture or nullcontext():
            loss(hidden, weight, targets).backward()
        if capture is None:
            turns.done(size.tokens)
            continue
        curve = capture.timeline.curve()
        turns.done(
            size.tokens,
            tensor_peak_bytes=int(curve.max()),
            live_bytes=int(curve[-1]),
            is_timed=False,
        )


def _full(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), targets, reduction="sum")


def _full_capped(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = CAP * torch.tanh(F.linear(hidden, weight) / CAP)
    return F.cross_entropy(logits, targets, reduction="sum")


def _chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return summed_cross_entropy(hidden, Head(weight, None, torch.float32), targets, -100)


def _chunked_capped(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    head = Head(weight, None, torch.float32, scale=1 / CAP, cap=CAP)
    return summed_cross_entropy(hidden, head, targets, -100)


def _torch(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    if not hasattr(F, "linear_cross_entropy"):
        raise NotImplementedError(f"torch {torch.__version__} has no linear_cross_entropy")
    options = torch.nn.LinearCrossEntropyOptions()
    loss: Tensor = F.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)
    return loss


LOSSES: dict[str, Loss] = {
    "full": _full,
    "full-capped": _full_capped,
    "chunked": _chunked,
    "chunked-capped": _chunked_capped,
    "torch": _torch,
}
