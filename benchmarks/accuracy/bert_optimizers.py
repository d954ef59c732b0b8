"""Optimizers that Hugging Face's Trainer used in early 2022, by what they allocate.

``LoopAdamW`` is what ``transformers.AdamW`` was: a loop over the parameters with updates in place
and one temporary, the square root.  ``Adam8bit`` has the layout that bitsandbytes documents: for
parameters of at least 4,096 elements two bytes of state per element and one float32 per block of
2,048 elements and state, for smaller ones float32 states; its kernel works in place.  Adafactor is
the class that transformers still has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

MIN_8BIT_ELEMENTS = 4096
BLOCK_ELEMENTS = 2048
"""Defaults of bitsandbytes 0.26 (2022): ``min_8bit_size`` and its block-wise quantisation."""

MAP_ENTRIES = 256
"""A byte has so many values: the float32 each stands for is kept once per state."""


class LoopAdamW(Optimizer):
    """Decoupled AdamW, one parameter after another, in place."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 5e-5) -> None:
        defaults = {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.data
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p.data)
                    state["exp_avg_sq"] = torch.zeros_like(p.data)
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                state["step"] += 1
                exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)
                exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                denominator = exp_avg_sq.sqrt().add_(group["eps"])
                corrections = math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
                p.data.addcdiv_(exp_avg, denominator, value=-group["lr"] * corrections)


class Adam8bit(Optimizer):
    """Allocates what bitsandbytes' Adam8bit does; updates nothing."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.maps: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    self.state[p] = self._states(p)

    def _states(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        if p.numel() < MIN_8BIT_ELEMENTS:
            return {name: torch.zeros_like(p) for name in ("state1", "state2")}
        if not self.maps:
            self.maps = [torch.zeros(MAP_ENTRIES, device=p.device) for _ in range(2)]
        num_blocks = -(-p.numel() // BLOCK_ELEMENTS)
        states = {}
        for number in ("1", "2"):
            states["state" + number] = torch.zeros_like(p, dtype=torch.uint8)
            states["absmax" + number] = torch.zeros(num_blocks, device=p.device)
        return states
