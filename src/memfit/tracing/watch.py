"""The observer of a traced run: labels what is logged, on the CPU and on the virtual GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from memfit.data.batch_tree import leaves
from memfit.tracing.log import Use
from memfit.tracing.modules import ModulePaths


class Labels(Protocol):
    """What is told where a run is, and what its tensors are."""

    def begin_phase(self, name: str, step: int) -> None:
        """What follows belongs to this phase of this step."""

    def use(self, tensors: list[torch.Tensor], use: Use) -> None:
        """Says what the blocks behind these tensors are."""

    def name_block(self, tensor: torch.Tensor, module: str) -> None:
        """Says whose the block behind a tensor is."""


class Watch:
    """The observer that labels what a trace logs."""

    def __init__(self, labels: Labels, modules: ModulePaths) -> None:
        self._labels = labels
        self._modules = modules
        self._parameters: list[nn.Parameter] = []
        self._step = 0
        self._phase = "init"

    def phase(self, name: str) -> None:
        if self._phase == "backward":
            # Before the optimizer drops them: which blocks became gradients.
            grads = (p.grad for p in self._parameters)
            self._labels.use([g for g in grads if g is not None], Use.GRADIENT)
        self._phase = name
        self._labels.begin_phase(name, self._step)

    def step(self, number: int) -> None:
        self._step = number

    def model(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._modules.name_modules(model)
        self._labels.use([*self._parameters, *model.buffers()], Use.PARAMETER)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self._labels.name_block(tensor, name)
        self._label_what_hooks_take()

    def _label_what_hooks_take(self) -> None:
        """Of a gradient that a hook takes away in backward, nothing is left to label after it."""
        for parameter in self._parameters:
            hooks: dict[int, Any] = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
            for number, hook in hooks.items():
                hooks[number] = _labelling(self._labels, hook)

    def inputs(self, batch: Any) -> None:
        self._labels.use(_tensors(batch), Use.INPUT)


def _labelling(
    labels: Labels, hook: Callable[[torch.Tensor], None]
) -> Callable[[torch.Tensor], None]:
    """``hook``, after the parameter's gradient was labelled.  It holds no parameter."""

    def label(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            labels.use([parameter.grad], Use.GRADIENT)
        hook(parameter)

    return label


def _tensors(batch: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
