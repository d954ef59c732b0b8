"""Muon with its momentum in 8 bits.

A matrix at a time, the momentum is widened to fp32, ``torch.optim.Muon`` takes its own step, and
the momentum is narrowed again.  So the arithmetic is that of Muon, and only what is remembered from
step to step is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memfit.optimizers.pieces import loss_of, step_on, unhooked
from memfit.optimizers.quantised import Quantised, dequantise, empty, quantise_
from memfit.optimizers.stochastic import StochasticallyRounded

_CODES, _SCALES = "momentum_codes", "momentum_scales"
_MOMENTUM = "momentum_buffer"


class Muon8bit(torch.optim.Muon):
    """``torch.optim.Muon`` with 1.03 bytes of state a parameter, instead of 4.

    Takes the same arguments.  The state of a matrix is ``momentum_codes`` (int8, its shape) and
    ``momentum_scales`` (fp32, one for 128 numbers).  While a matrix is updated its momentum takes 4
    bytes a number.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of every matrix that has a gradient."""
        loss = loss_of(closure)
        step = unhooked(super().step)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_matrix(step, group, parameter)
        return loss

    def _step_matrix(
        self, step: Callable[[], Any], group: dict[str, Any], parameter: Tensor
    ) -> None:
        assert parameter.grad is not None
        kept: dict[str, Any] = self.state.get(parameter) or {}
        before = {}
        if kept:
            before[_MOMENTUM] = dequantise(_quantised(kept)).to(parameter.grad.dtype)
        self.state[parameter] = before
        del before
        try:
            step_on(self, step, group, [parameter])
        finally:
            state, self.state[parameter] = self.state[parameter], kept
        if not kept:
            kept[_CODES], kept[_SCALES] = empty(parameter.shape, parameter.device)
        # Before the first step there is none, and Muon lays it out as the gradient is.
        quantise_(state.pop(_MOMENTUM).float().contiguous(), _quantised(kept))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what ``state_dict`` gave; PyTorch alone would cast the codes to floats."""
        super().load_state_dict({**state_dict, "state": {}})
        parameters = [p for group in self.param_groups for p in group["params"]]
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        for parameter, index in zip(parameters, saved, strict=True):
            if index in state_dict["state"]:
                codes, scales = _quantised(state_dict["state"][index])
                device = parameter.device
                self.state[parameter] = {
                    _CODES: codes.to(device, copy=True),
                    _SCALES: scales.to(device, copy=True),
                }


class RoundedMuon8bit(StochasticallyRounded, Muon8bit):
    """Muon with bfloat16 parameters and its momentum in 8 bits."""


def _quantised(state: dict[str, Any]) -> Quantised:
    return Quantised(state[_CODES], state[_SCALES])
