"""AdamW with its two moments in 4 bits, by torchao's tables.

torchao's own ``AdamW4bit`` is compiled: 10 to 40 seconds and a C++ compiler at the first step, and
its state is tensors of a class of its own.  Here the same numbers are plain tensors, and a
parameter is updated a piece at a time: widened, stepped by PyTorch's AdamW, narrowed by torchao's
functions.  A piece bounds what an update takes beside the state, however large the parameter.

Source: Li et al. 2023, "Memory Efficient Optimizers with 4-bit States",
https://arxiv.org/abs/2309.01507; which tensors are narrowed is as in torchao's ``optim/adam.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from memfit.errors import MissingExtra
from memfit.optimizers.forms import has_fused
from memfit.optimizers.pieces import loss_of
from memfit.optimizers.stochastic import StochasticallyRounded

BLOCK_SIZE = 128
"""Numbers that share a scale (torchao's default)."""

SMALLEST = 4096
"""Parameters with fewer numbers keep their state in fp32 (torchao's, after bitsandbytes)."""

_PIECE = 1 << 20
"""Numbers that are updated at once.  Narrowing them takes some 50 bytes each for a moment."""


class _Moment(NamedTuple):
    codes: Tensor
    """uint8 (numbers / 2,): two numbers a byte, the first in the upper half."""

    scale: Tensor
    """fp32 (numbers / 128,)."""

    table: Tensor
    """fp32 (16,): what the codes stand for."""


class AdamW4bit(torch.optim.Optimizer):
    """AdamW with 1.0625 bytes of state a parameter, instead of 8.

    The state of a parameter of at least 4,096 numbers, a multiple of 128, is ``exp_avg_codes``,
    ``exp_avg_scale``, ``exp_avg_sq_codes`` and ``exp_avg_sq_scale``; of any other ``exp_avg`` and
    ``exp_avg_sq`` in fp32.

    Raises:
        MissingExtra: torchao is not installed.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        import_torchao()
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self._make_tables()

    def _make_tables(self) -> None:
        tables, device = import_torchao(), self.param_groups[0]["params"][0].device
        self._tables = {
            "exp_avg": torch.tensor(tables.get_qmap_signed(), device=device),
            "exp_avg_sq": torch.tensor(tables.get_qmap_unsigned(), device=device),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a copy whole: what PyTorch copies of an optimizer is groups and state only."""
        super().__setstate__(state)
        if not hasattr(self, "_tables"):
            self._make_tables()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step of every parameter that has a gradient."""
        loss = loss_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(group, parameter)
        return loss

    def _step_parameter(self, group: dict[str, Any], parameter: Tensor) -> None:
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            self._begin(state, parameter)
        count = state["step"]
        if "exp_avg" in state:
            _adamw(group, parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], count)
            return
        moments = [
            _Moment(state[f"{name}_codes"], state[f"{name}_scale"], table)
            for name, table in self._tables.items()
        ]
        numbers, gradient = parameter.view(-1), parameter.grad.contiguous().view(-1)
        before = count.clone()
        for start, stop in _pieces(numbers.numel()):
            parts = [_slice(moment, start, stop) for moment in moments]
            wide = [_widen(part) for part in parts]
            count.copy_(before)
            _adamw(group, numbers[start:stop], gradient[start:stop], wide[0], wide[1], count)
            while wide:
                _narrow(wide.pop(), parts[len(wide)])

    def _begin(self, state: dict[str, Any], parameter: Tensor) -> None:
        device = parameter.device if has_fused([parameter]) else "cpu"
        state["step"] = torch.zeros((), device=device)
        for name in self._tables:
            size = parameter.numel()
            if size < SMALLEST or size % BLOCK_SIZE or not parameter.is_contiguous():
                state[name] = torch.zeros_like(parameter)
                continue
            where = parameter.device
            state[f"{name}_codes"] = torch.zeros(size // 2, dtype=torch.uint8, device=where)
            state[f"{name}_scale"] = torch.zeros(size // BLOCK_SIZE, device=where)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what ``state_dict`` gave; PyTorch alone would cast the codes to floats."""
        super().load_state_dict({**state_dict, "state": {}})
        parameters = [p for group in self.param_groups for p in group["params"]]
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        for parameter, index in zip(parameters, saved, strict=True):
            if index in state_dict["state"]:
                self.state[parameter] = {
                    name: value.to(parameter.device, copy=True)
                    for name, value in state_dict["state"][index].items()
                }


class RoundedAdamW4bit(StochasticallyRounded, AdamW4bit):
    """AdamW in 4 bits with bfloat16 parameters."""


def _adamw(
    group: dict[str, Any], x: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, count: Tensor
) -> None:
    """One step of PyTorch's AdamW, in place; ``count`` goes up by one."""
    fused = has_fused([x])
    adamw(
        [x],
        [gradient],
        [mean],
        [square],
        [],
        [count],
        fused=fused,
        foreach=False,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, _PIECE):
        yield start, min(start + _PIECE, size)


def _slice(moment: _Moment, start: int, stop: int) -> _Moment:
    return _Moment(
        moment.codes[start // 2 : stop // 2],
        moment.scale[start // BLOCK_SIZE : stop // BLOCK_SIZE],
        moment.table,
    )


def _widen(moment: _Moment) -> Tensor:
    """The numbers in fp32, (numbers,)."""
    from torchao.optim.quant_utils import dequant_with_qmap  # type: ignore[import-untyped]

    codes = torch.stack([moment.codes >> 4, moment.codes & 0b1111], dim=-1).view(-1)
    wide: Tensor = dequant_with_qmap(codes, moment.table, moment.scale)
    return wide


def _narrow(x: Tensor, out: _Moment) -> None:
    """Writes ``x`` (fp32) into ``out``."""
    from torchao.optim.quant_utils import quantize_4bit_with_qmap, scale_tensor

    scaled, scale = scale_tensor(x, BLOCK_SIZE)
    out.scale.copy_(scale)
    codes = quantize_4bit_with_qmap(scaled, out.table)
    out.codes.copy_((codes[::2] << 4) | codes[1::2])


def import_torchao() -> Any:
    """torchao's tables.

    Raises:
        MissingExtra: torchao is not installed.
    """
    try:
        from torchao.optim import subclass_4bit  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("torchao", "4bit", "optimizer adamw-4bit") from error
    return subclass_4bit
