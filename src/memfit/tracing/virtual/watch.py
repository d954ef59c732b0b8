"""The observer that labels what the virtual GPU's ledger holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from memfit.tracing.log import Use
from memfit.tracing.modules import ModulePaths
from memfit.tracing.virtual.dispatch import Dispatch


class Watch:
    """Hears where a run is, and what its tensors are."""

    def __init__(self, gpu: Dispatch, modules: ModulePaths) -> None:
        self._gpu = gpu
        self._modules = modules
        self._parameters: list[nn.Parameter] = []
        self._step = 0
        self._phase = "init"

    def phase(self, name: str) -> None:
        if self._phase == "backward":
            # Before the optimizer drops them: which blocks became gradients.
            grads = (p.grad for p in self._parameters)
            self._gpu.use([grad for grad in grads if grad is not None], Use.GRADIENT)
        self._phase = name
        self._gpu.begin(name, self._step)

    def step(self, number: int) -> None:
        self._step = number

    def model(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._modules.name_modules(model)
        self._gpu.use([*self._parameters, *model.buffers()], Use.PARAMETER)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self._gpu.name_block(tensor, name)

    def inputs(self, batch: Any) -> None:
        leaves = pytree.tree_leaves(batch)
        self._gpu.use([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], Use.INPUT)
