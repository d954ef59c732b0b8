"""Where a script is, told from what PyTorch does: forward, backward, optimizer, evaluation.

- *forward* begins when a module outside any other runs in training mode with gradients, *eval*
  when it runs without either;
- *backward* is inside the autograd engine;
- *optimizer* is inside ``Optimizer.step``.

What happens after a step, or after an evaluated batch, is decided by what comes next: if that is a
training pass, the next step has begun (its batch was made, gradients were dropped).

Steps are counted by the optimizer that takes the most of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import _pytree as pytree

from memfit.tracing.log import PhaseSpan, Use
from memfit.tracing.modules import ModulePaths
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.memory import is_virtual

_PATIENCE = 10
"""How many times the wanted steps to wait for optimizers that have not stepped at all."""


class Stop(BaseException):
    """Ends the script from inside; not an Exception, which scripts catch.

    What follows, in its ``finally`` and ``except`` clauses, is no part of the trace.
    """


class Progress:
    """Follows a script, labels what its tensors are, and ends it."""

    def __init__(
        self,
        gpu: Dispatch,
        modules: ModulePaths,
        num_steps: int,
        at_end: Callable[[Progress], None],
    ) -> None:
        self.steps_done = 0
        self._gpu = gpu
        self._modules = modules
        self._num_steps = num_steps
        self._at_end = at_end
        self._step = 0
        self._outer = "init"
        """The phase outside the engine and the optimizers."""

        self._undecided: PhaseSpan | None = None
        """The current span, when what it is for is not known yet."""

        self._inside: list[str] = []
        """Calls of the engine and of optimizers that are running, each inside the one before."""

        self._counts: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def install(self) -> None:
        """Begins to watch: before ModulePaths does, which must know a root's modules by then."""
        register_module_forward_pre_hook(self._module_runs)
        register_module_forward_hook(self._module_ran, always_call=True)
        register_optimizer_step_pre_hook(self._step_begins)
        register_optimizer_step_post_hook(self._step_ends)
        autograd: Any = torch.autograd
        watched = self._watching(autograd.graph._engine_run_backward)
        autograd._engine_run_backward = autograd.graph._engine_run_backward = watched
        optimizers: Any = Optimizer
        make = optimizers.__init__

        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self._counts.setdefault(optimizer, 0)

        optimizers.__init__ = made

    # ------------------------------------------------------------------ where the script is

    def finish(self, *, is_stopped: bool) -> None:
        """The script ends here, by itself or because it is stopped.

        The beginning of a step that is not taken is left out, and so is what dies at a script's
        end; what it still allocates there is of no step, and called an evaluation.
        """
        ledger = self._gpu.ledger
        if self._undecided is not None:
            if is_stopped or ledger.first_of_span == len(ledger.blocks):
                ledger.forget_span()
            self._decide("eval")

    def _begin(self, phase: str) -> None:
        self._decide(phase)
        span = self._gpu.ledger.spans[-1]
        if (phase, self._step) != (span.name, span.step):
            self._gpu.begin_phase(phase, self._step)

    def _decide(self, phase: str) -> None:
        if self._undecided is not None:
            self._undecided.name, self._undecided.step = phase, self._step
            self._undecided = None

    def _leave_open(self) -> None:
        self._gpu.begin_phase(self._outer, self._step)
        self._undecided = self._gpu.ledger.spans[-1]

    def _begin_training(self, phase: str) -> None:
        """Forward or backward, outside everything: perhaps of a new step."""
        self._advance()
        self._outer = phase
        self._begin(phase)

    def _advance(self) -> None:
        """What follows belongs to the step after those that are done."""
        if self.steps_done >= self._num_steps and self._all_have_stepped():
            self.finish(is_stopped=True)
            self._at_end(self)
            raise Stop
        self._step = self.steps_done + 1

    def _all_have_stepped(self) -> bool:
        """A GAN's two optimizers take turns: both belong to a step."""
        return all(self._counts.values()) or self.steps_done >= _PATIENCE * self._num_steps

    def _module_runs(self, module: nn.Module, args: Any) -> None:
        if self._modules.depth or "backward" in self._inside:
            return
        if next(module.parameters(), None) is None:
            return
        if module not in self._roots:
            self._meet(module)
        if self._inside:  # a closure, called by the optimizer
            self._begin("forward")
        elif torch.is_grad_enabled() and module.training:
            self._begin_training("forward")
        else:
            self._outer = "eval"
            self._begin("eval")

    def _module_ran(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._modules.depth == 1 and self._outer == "eval" and not self._inside:
            self._leave_open()

    def _watching(self, engine: Callable[..., Any]) -> Callable[..., Any]:
        def run(
            outputs: Any,
            gradients: Any,
            keep_graph: Any,
            create_graph: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            before = self._outer
            if not self._inside:
                self._begin_training("backward")
            self._inside.append("backward")
            self._begin("backward")
            try:
                return engine(outputs, gradients, keep_graph, create_graph, *args, **kwargs)
            finally:
                self._inside.pop()
                if self._inside:
                    self._begin(self._inside[-1])
                elif create_graph:  # the forward pass goes on, with gradients of its own
                    self._outer = before
                    self._begin(before)

        return run

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        parameters = _parameters(optimizer)
        if not self._counts.get(optimizer):
            self._use(parameters, Use.PARAMETER)
        self._use_gradients(parameters)
        done = self._counts.get(optimizer, 0)
        if not self._inside and self._step == self.steps_done == done:
            self._advance()  # its passes come in a closure
        self._inside.append("optimizer")
        self._begin("optimizer")

    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self.steps_done = max(self.steps_done, count)
        self._inside.pop()
        if self._inside:
            self._begin(self._inside[-1])
        else:
            self._outer = "optimizer"
            self._leave_open()
        parameters = _parameters(optimizer)
        self._use_gradients(parameters)
        self._use(pytree.tree_leaves(list(optimizer.state.values())), Use.OPTIMIZER_STATE)

    # ------------------------------------------------------------------ what its tensors are

    def _meet(self, root: nn.Module) -> None:
        """Learns the names of a module that runs outside any other."""
        prefix = type(root).__name__ if len(self._roots) else ""
        self._roots.add(root)
        self._modules.name_modules(root, prefix)
        self._use([*root.parameters(), *root.buffers()], Use.PARAMETER)
        for name, tensor in [*root.named_parameters(prefix), *root.named_buffers(prefix)]:
            if is_virtual(tensor):
                self._gpu.name_block(tensor, name)

    def _use_gradients(self, parameters: list[torch.Tensor]) -> None:
        """Of what the optimizer updates, and of all else that a backward pass reached."""
        met = [parameter for root in self._roots for parameter in root.parameters()]
        self._use([parameter.grad for parameter in [*parameters, *met]], Use.GRADIENT)

    def _use(self, values: list[Any], use: Use) -> None:
        # A DTensor's memory is its local tensor's.
        local = [getattr(value, "_local_tensor", value) for value in values]
        tensors = [value for value in local if isinstance(value, torch.Tensor)]
        self._gpu.use([tensor for tensor in tensors if is_virtual(tensor)], use)


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
