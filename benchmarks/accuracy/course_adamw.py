"""The course's AdamW: a Python loop over the parameters, every result a new tensor.

Both moments are new tensors at each step.  The zeros that would stand for a missing moment are made
whether or not one is missing, and the names ``old_m`` and ``old_v`` keep the moments of the last
parameter alive until the next one has them replaced: both cost memory, and both are in the
recordings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class CourseAdamW(Optimizer):
    """AdamW with decoupled decay taken first."""

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

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, eps, weight_decay = group["lr"], group["eps"], group["weight_decay"]
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                state = self.state[p]
                t = state.get("t", 1)
                p.data -= lr * weight_decay * p.data
                old_m = state.get("m", torch.zeros_like(grad))
                old_v = state.get("v", torch.zeros_like(grad))
                m = beta1 * old_m + (1 - beta1) * grad
                v = beta2 * old_v + (1 - beta2) * torch.square(grad)
                alpha = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
                p.data -= alpha * m / (torch.sqrt(v) + eps)
                state["m"], state["v"], state["t"] = m, v, t + 1
