"""Optimizers: which class, with which settings, in the form that takes the least memory.

PyTorch has three forms of AdamW and SGD.  Measured on the CPU (torch 2.13), beside the state a
step of AdamW takes 0 bytes a number when *fused*, which is one kernel that writes in place; 12
bytes a number of one parameter as a *loop*; and 4 bytes a number of all parameters as *foreach*,
which is what PyTorch takes on CUDA unless asked otherwise.  (SGD with decay: 0, 4 of one, 4 of
all.)  So it is fused wherever PyTorch has it, and the loop elsewhere.

State bytes a parameter in fp32: AdamW 8, SGD 4, Adafactor rows and columns only, AdamW in 8 bits
2.03 and in 4 bits 1.06, Lion in 8 bits 1.02, Muon 4 and in 8 bits 1.03.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from memfit.errors import BadInput, MissingExtra
from memfit.optimizers.adamw_4bit import AdamW4bit, RoundedAdamW4bit, import_torchao
from memfit.optimizers.forms import has_fused
from memfit.optimizers.muon import muon_adamw
from memfit.optimizers.stochastic import (
    RoundedAdafactor,
    RoundedAdamW,
    RoundedSGD,
    StochasticallyRounded,
)
from memfit.records.recipe import Recipe

_ADAMW_BETAS = (0.9, 0.95)
"""As GPT-3 was trained (Brown et al. 2020, appendix B)."""

_LION_BETAS = (0.9, 0.99)
"""Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", section 5."""

_SGD_MOMENTUM = 0.9


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimizer over the parameters of ``model`` that are trained.

    Each group has ``initial_lr`` and ``initial_weight_decay``, which schedules go by.  Parameters
    in bfloat16 are rounded stochastically.

    Raises:
        BadInput: no parameter is trained, or the optimizer finds nothing that it is for.
        MissingExtra: the optimizer's library is not installed.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise BadInput(
            f"{type(model).__name__} has no parameter to train: none has requires_grad set"
        )
    rate = recipe.peak_learning_rate
    if recipe.optimizer in ("muon", "muon-8bit"):
        return muon_adamw(
            model,
            learning_rate=rate,
            weight_decay=recipe.weight_decay,
            eight_bit=recipe.optimizer == "muon-8bit",
        )
    is_rounded = any(p.dtype == torch.bfloat16 for p in trained)
    make = _MAKERS[recipe.optimizer]
    return make(_groups(trained, rate, recipe.weight_decay), rate, is_rounded)


def import_library(recipe: Recipe) -> None:
    """Imports what the recipe's optimizer needs.

    Before anything is traced: bitsandbytes looks at the device and torchao makes tensors while they
    are imported.

    Raises:
        MissingExtra: it is not installed.
    """
    if recipe.optimizer in ("adamw-8bit", "lion-8bit"):
        _bitsandbytes(recipe.optimizer)
    elif recipe.optimizer == "adamw-4bit":
        import_torchao()


def _groups(trained: list[nn.Parameter], rate: float, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices, which decay, and vectors, which do not."""
    groups = [
        ([p for p in trained if p.dim() >= 2], weight_decay),
        ([p for p in trained if p.dim() < 2], 0.0),
    ]
    return [
        {
            "params": parameters,
            "weight_decay": decay,
            "initial_lr": rate,
            "initial_weight_decay": decay,
        }
        for parameters, decay in groups
        if parameters
    ]


def _form(groups: list[dict[str, Any]]) -> dict[str, bool]:
    parameters: list[Tensor] = [p for group in groups for p in group["params"]]
    return {"fused": True} if has_fused(parameters) else {"foreach": False}


def _adamw(groups: list[dict[str, Any]], rate: float, rounded: bool) -> torch.optim.Optimizer:
    kind = RoundedAdamW if rounded else torch.optim.AdamW
    return kind(groups, lr=rate, betas=_ADAMW_BETAS, **_form(groups))


def _sgd(groups: list[dict[str, Any]], rate: float, rounded: bool) -> torch.optim.Optimizer:
    kind = RoundedSGD if rounded else torch.optim.SGD
    return kind(groups, lr=rate, momentum=_SGD_MOMENTUM, **_form(groups))


def _adafactor(groups: list[dict[str, Any]], rate: float, rounded: bool) -> torch.optim.Optimizer:
    # There is no fused one.
    kind = RoundedAdafactor if rounded else torch.optim.Adafactor
    return kind(groups, lr=rate, foreach=False)


def _adamw_8bit(groups: list[dict[str, Any]], rate: float, rounded: bool) -> torch.optim.Optimizer:
    kind = _rounded(_bitsandbytes("adamw-8bit").optim.AdamW8bit, rounded)
    made: torch.optim.Optimizer = kind(groups, lr=rate, betas=_ADAMW_BETAS)
    return made


def _lion_8bit(groups: list[dict[str, Any]], rate: float, rounded: bool) -> torch.optim.Optimizer:
    kind = _rounded(_bitsandbytes("lion-8bit").optim.Lion8bit, rounded)
    made: torch.optim.Optimizer = kind(groups, lr=rate, betas=_LION_BETAS)
    return made


def _adamw_4bit(groups: list[dict[str, Any]], rate: float, rounded: bool) -> torch.optim.Optimizer:
    kind = RoundedAdamW4bit if rounded else AdamW4bit
    return kind(groups, lr=rate, betas=_ADAMW_BETAS)


_MAKERS: dict[str, Callable[[list[dict[str, Any]], float, bool], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "sgd": _sgd,
    "adafactor": _adafactor,
    "adamw-8bit": _adamw_8bit,
    "lion-8bit": _lion_8bit,
    "adamw-4bit": _adamw_4bit,
}


def _rounded(kind: Any, rounded: bool) -> Any:
    """The class itself, or one that rounds bfloat16 parameters stochastically."""
    if not rounded:
        return kind
    return type(f"Rounded{kind.__name__}", (StochasticallyRounded, kind), {})


def _bitsandbytes(optimizer: str) -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it says of the machine's GPU is not asked here
            import bitsandbytes
    except ImportError as error:
        raise MissingExtra("bitsandbytes", "8bit", f"optimizer {optimizer}") from error
    return bitsandbytes
