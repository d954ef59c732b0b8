"""The optimizer's update, in pieces that happen whole or not at all.

An out-of-memory in the middle of an update leaves parameters and state half old and half new.  A
copy of everything, to go back to, would double them.  So the update is a row of pieces: after an
out-of-memory the piece in flight is put back as it was, and ``step`` called again goes on with
it.  The gradients are whole, so the result is that of an update that was never disturbed.

A fused optimizer allocates its state and then nothing: a parameter group is one piece, which needs
no copy.  Of others a piece is one parameter, copied with its state while it is updated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memfit.optimizers.stochastic import StochasticallyRounded
from memfit.optimizers.together import parts


class Update:
    """The update of one optimizer.  A gradient scaler can take it for the optimizer itself."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.begin()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the optimizer, where a gradient scaler looks for the gradients."""
        return self._optimizer.param_groups

    def begin(self) -> None:
        """A new step: no piece is done."""
        self.num_done = 0
        self.is_done = False
        self.was_skipped = False

    def skip(self, skipped: bool) -> None:
        """The gradient scaler has decided: the update is done, or left out."""
        self.is_done, self.was_skipped = True, skipped

    def step(self) -> bool:
        """Does the pieces that are left; True when all are done.

        Raises:
            Exception: whatever a piece raises, when it is as if it had not begun.
        """
        for piece in self._pieces()[self.num_done :]:
            piece()
            self.num_done += 1
        return True

    def _pieces(self) -> list[Callable[[], None]]:
        if hasattr(self._optimizer, "pieces"):  # it knows better: its state is on another device
            own: list[Callable[[], None]] = self._optimizer.pieces()
            return own
        return [
            piece
            for part in parts(self._optimizer)
            for group in part.param_groups
            for piece in _pieces_of(part, group)
        ]


def _pieces_of(part: torch.optim.Optimizer, group: dict[str, Any]) -> list[Callable[[], None]]:
    updated = [p for p in group["params"] if p.grad is not None]
    if _is_atomic(part, group):
        return [lambda: _atomic(part, group, updated)]
    return [lambda p=p: _kept(part, group, p) for p in updated]  # type: ignore[misc]


def _is_atomic(part: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    # Stochastic rounding widens one parameter after the other, fused or not.
    return bool(group.get("fused")) and not isinstance(part, StochasticallyRounded)


def _atomic(part: torch.optim.Optimizer, group: dict[str, Any], updated: list[Tensor]) -> None:
    """Updates a group with an optimizer that makes its state first, and then needs nothing.

    Before its one kernel it changes the counts of steps alone.
    """
    without_state = [p for p in updated if not part.state.get(p)]
    counts = [state["step"] for p in updated if "step" in (state := part.state.get(p) or {})]
    kept = torch.stack(counts) if counts else None
    try:
        _step(part, group, updated)
    except BaseException:
        for parameter in without_state:
            part.state.pop(parameter, None)
        if kept is not None:
            for count, former in zip(counts, kept.unbind(), strict=True):
                count.copy_(former)
        raise


def _kept(part: torch.optim.Optimizer, group: dict[str, Any], parameter: Tensor) -> None:
    """Updates one parameter; what it was is kept until it is done."""
    state = part.state.get(parameter) or {}
    written = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    kept = [(tensor, _copy(tensor)) for tensor in (parameter, *written.values())]
    former = dict(state)
    drawn = _generator_state(parameter) if isinstance(part, StochasticallyRounded) else None
    try:
        _step(part, group, [parameter])
    except BaseException:
        if drawn is not None:
            _set_generator_state(parameter, drawn)
        with torch.no_grad():
            for tensor, copy in kept:
                tensor.copy_(copy)
        if former:
            part.state[parameter] = former
        else:
            part.state.pop(parameter, None)
        raise


def _copy(tensor: Tensor) -> Tensor:
    """A copy on the host, where the memory that ran out is not."""
    with torch.no_grad():
        return tensor.detach().to("cpu", copy=True)


def _generator_state(parameter: Tensor) -> Tensor:
    if parameter.is_cuda:
        return torch.cuda.get_rng_state(parameter.device)
    return torch.get_rng_state()


def _set_generator_state(parameter: Tensor, state: Tensor) -> None:
    if parameter.is_cuda:
        torch.cuda.set_rng_state(state, parameter.device)
    else:
        torch.set_rng_state(state)


def _step(part: torch.optim.Optimizer, group: dict[str, Any], updated: list[Tensor]) -> None:
    """A step of these parameters of one group alone."""
    groups = part.param_groups
    alone = {**group, "params": updated}
    part.param_groups = [alone]
    try:
        part.step()
    finally:
        part.param_groups = groups
        # What a step keeps in its group (a count, a seed) stays.
        group.update({name: value for name, value in alone.items() if name != "params"})
