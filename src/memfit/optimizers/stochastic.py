"""Stochastic rounding: parameters in bfloat16 that do not lose their small updates.

bfloat16 has 8 bits of precision.  An update below 1/512 of its parameter is lost when it is rounded
to nearest, each time, and training stands still.  Rounded up or down by chance, with odds that make
the mean exact, it arrives on average (Zamirai et al. 2020, "Revisiting BFloat16 Training",
https://arxiv.org/abs/2010.06192).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memfit.optimizers.pieces import loss_of, step_on, unhooked

_LOST_BITS = 16
"""Bits of an fp32 number that bfloat16 has not."""


def round_stochastically(
    x: Tensor, *, out: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Rounds fp32 to one of the two neighbours in bfloat16, so that the mean is ``x``.

    bfloat16 is the upper half of fp32.  A random number of 16 bits is added to the lower half,
    which is then cut off: the chance of a carry is the lower half over 65,536.  Numbers that
    bfloat16 has, infinities and NaN stay as they are; numbers above its largest may become
    infinite, as when rounding to nearest.

    Args:
        x: fp32, any shape.
        out: bfloat16 of the same shape, where the result is written; a new tensor when left out.
        generator: where chance comes from; that of the device when left out.

    Returns:
        ``out``.
    """
    rounded = torch.empty_like(x, dtype=torch.bfloat16) if out is None else out
    bits = torch.empty_like(x, dtype=torch.int32).random_(0, 1 << _LOST_BITS, generator=generator)
    bits.add_(x.view(torch.int32)).bitwise_and_(-1 << _LOST_BITS)
    rounded.copy_(bits.view(torch.float32))
    del bits
    # The carry of a NaN may run through to its sign, or leave an infinity.
    return rounded.masked_fill_(x.isnan(), math.nan)


class StochasticallyRounded(torch.optim.Optimizer):
    """Makes an optimizer round bfloat16 parameters stochastically; put before it among the bases.

        class RoundedSGD(StochasticallyRounded, torch.optim.SGD): ...

    A parameter at a time, parameter, gradient and state are widened to fp32, the optimizer takes
    its own step, and what came out is rounded.  State of the parameter's shape is bfloat16 and
    rounded stochastically too: with beta2 = 0.999 a second moment rounded to nearest would stand
    still.  What remains is 2 bytes a number; while a parameter is updated it takes 4 for itself, 4
    for its gradient, 4 for each number of its state and, at the end, 4 for chance.

    Parameters in other dtypes are left to the optimizer.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of every parameter that has a gradient."""
        loss = loss_of(closure)
        step = unhooked(super().step)
        for group in self.param_groups:
            others = []
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.dtype == torch.bfloat16:
                    self._step_rounded(step, group, parameter)
                else:
                    others.append(parameter)
            if others:
                step_on(self, step, group, others)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what ``state_dict`` gave, to the bit.

        PyTorch casts all state to the dtype of its parameter.  That is right for state of the
        parameter's shape, and rounds what has another: Adafactor's rows and columns.
        """
        super().load_state_dict(state_dict)
        parameters = [p for group in self.param_groups for p in group["params"]]
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        for parameter, index in zip(parameters, saved, strict=True):
            state = self.state.get(parameter) or {}
            for name, value in state_dict["state"].get(index, {}).items():
                cast = state.get(name)
                if not isinstance(cast, Tensor) or value.shape == parameter.shape:
                    continue
                if cast.dtype != value.dtype:
                    state[name] = value.to(parameter.device, copy=True)

    def _step_rounded(
        self, step: Callable[[], Any], group: dict[str, Any], parameter: Tensor
    ) -> None:
        assert parameter.grad is not None
        kept: dict[str, Any] = self.state.get(parameter) or {}
        wide = parameter.detach().float()
        wide.grad = parameter.grad.float()
        self.state[wide] = {
            name: value.float() if _is_narrow(value) else value for name, value in kept.items()
        }
        try:
            step_on(self, step, group, [wide])
        finally:
            state = self.state.pop(wide)
        wide.grad = None
        round_stochastically(wide, out=parameter.detach())
        del wide
        for name in tuple(state):
            value = state.pop(name)
            if name != "step" and _has_shape(value, parameter):
                narrow = kept.get(name)
                value = round_stochastically(value, out=narrow)
            kept[name] = value
        self.state[parameter] = kept


class RoundedAdamW(StochasticallyRounded, torch.optim.AdamW):
    """AdamW with bfloat16 parameters: 4 bytes of state a parameter."""


class RoundedSGD(StochasticallyRounded, torch.optim.SGD):
    """SGD with bfloat16 parameters: with momentum 2 bytes of state a parameter."""


class RoundedAdafactor(StochasticallyRounded, torch.optim.Adafactor):
    """Adafactor with bfloat16 parameters; its rows and columns of statistics stay fp32."""


class RoundedMuon(StochasticallyRounded, torch.optim.Muon):
    """Muon with bfloat16 parameters: 2 bytes of state a parameter."""


def _is_narrow(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bfloat16


def _has_shape(value: Any, parameter: Tensor) -> bool:
    """Whether ``value`` is state of one number a parameter."""
    return (
        isinstance(value, Tensor)
        and value.dtype == torch.float32
        and value.shape == parameter.shape
    )
