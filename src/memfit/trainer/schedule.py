"""Learning rate over a run: linear warm-up, then half a cosine down to a fraction of the peak.

The cosine is that of Loshchilov & Hutter 2016, "SGDR: Stochastic Gradient Descent with Warm
Restarts", eq. 5, without restarts.  Muon's momentum and weight decay have schedules of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from memfit.errors import BadInput
from memfit.optimizers.muon import PEAK_MOMENTUM

_MOST_WARMUP_STEPS = 100

_FIRST_MOMENTUM = 0.85
_MOMENTUM_STEPS = 300
"""Muon's momentum rises from the one to its peak over the other: nanochat's scripts/base_train.py,
``get_muon_momentum``, as of its first release."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the peak learning rate is multiplied by at each step.

    Raises:
        BadInput: a number is out of its range.
    """

    num_steps: int
    """Optimizer steps of the whole run, at least 1."""

    warmup_steps: int
    """Steps over which the rate rises; the last of them has the peak rate.  0 for none."""

    final_fraction: float = 0.1
    """The factor of the last step, from 0 to 1."""

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise BadInput(f"a run of {self.num_steps} steps trains nothing: write at least 1")
        if not 0 <= self.warmup_steps <= self.num_steps:
            raise BadInput(
                f"{self.warmup_steps} warm-up steps do not fit a run of {self.num_steps} steps: "
                f"choose from 0 to {self.num_steps}"
            )
        if not 0 <= self.final_fraction <= 1:
            raise BadInput(
                f"final_fraction is {self.final_fraction}: it is a part of the peak rate, 0 to 1"
            )

    @classmethod
    def for_steps(cls, num_steps: int) -> Schedule:
        """Warm-up over the first tenth, rounded up, and over 100 steps at most."""
        return cls(num_steps, min(_MOST_WARMUP_STEPS, -(-num_steps // 10)))

    def factor(self, step: int) -> float:
        """The factor of ``step``, counted from 1 to ``num_steps``."""
        # Past the end the cosine would rise again.
        assert 1 <= step <= self.num_steps, f"step {step} of {self.num_steps}"
        if step <= self.warmup_steps:
            return step / self.warmup_steps
        progress = (step - self.warmup_steps) / (self.num_steps - self.warmup_steps)
        height = (1 + math.cos(math.pi * progress)) / 2
        return self.final_fraction + (1 - self.final_fraction) * height

    def decay_factor(self, step: int) -> float:
        """What Muon's weight decay is multiplied by in ``step``, counted from 1.

        Half a cosine that reaches 0 one step after the last (nanochat's ``get_weight_decay``).
        """
        return (1 + math.cos(math.pi * (step - 1) / self.num_steps)) / 2

    def agrees(self, other: Schedule, num_done: int, *, with_decay: bool) -> bool:
        """Whether the first ``num_done`` steps are the same under both, so that who has taken them
        may go on with either.

        Args:
            other: may be shorter than that.
            with_decay: whether Muon's weight decay counts.
        """
        if num_done > min(self.num_steps, other.num_steps):
            return False
        return all(
            self.factor(step) == other.factor(step)
            and (not with_decay or self.decay_factor(step) == other.decay_factor(step))
            for step in range(1, num_done + 1)
        )


def set_rates(optimizer: torch.optim.Optimizer, schedule: Schedule, step: int) -> None:
    """Sets what ``optimizer`` is to take step ``step`` with, counted from 1.

    The learning rate of each group is ``initial_lr`` times the schedule's factor.  In groups whose
    ``kind`` is "muon" momentum rises from 0.85 to 0.95 over the first 300 steps, and weight decay
    falls from ``initial_weight_decay`` (``Schedule.decay_factor``).  Other groups keep theirs.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * schedule.factor(step)
        if group.get("kind") == "muon":
            warmth = min((step - 1) / _MOMENTUM_STEPS, 1)
            group["momentum"] = (1 - warmth) * _FIRST_MOMENTUM + warmth * PEAK_MOMENTUM
            group["weight_decay"] = group["initial_weight_decay"] * schedule.decay_factor(step)
