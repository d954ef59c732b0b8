"""Traces a training run: its ops without data, as a Timeline."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from memfit.devices.cpu_allocations import CpuAllocations
from memfit.observer import Observer
from memfit.records.timeline import Timeline
from memfit.tracing.assemble import assemble
from memfit.tracing.dispatch import Dispatch
from memfit.tracing.hidden.scratch import sequences_of
from memfit.tracing.host import host_events
from memfit.tracing.log import Log, Ran, Use
from memfit.tracing.modules import ModulePaths


def trace(
    run: Callable[[Observer], None],
    on_progress: Callable[[int, int], None] | None = None,
) -> Timeline:
    """Runs ``run`` on the CPU without data or arithmetic and returns its Timeline.

    The random generators of torch and Python, and torch itself, are left as they were found,
    also when ``run`` raises.

    Args:
        run: builds a model and takes steps, telling the observer where it is.
        on_progress: called with (ops learnt, ops to learn) while scratch memory is learnt.

    Raises:
        BadInput: the run needs values that a trace does not have.
        Exception: whatever ``run`` raises.
    """
    import torch._dynamo  # torch.optim imports it at its first step: not in the middle of a trace

    log, modules = Log(), ModulePaths()
    python_state = random.getstate()
    listener = CpuAllocations()
    collects = gc.isenabled()
    gc.disable()  # when garbage in cycles goes is chance; here it stays, which errs upwards
    try:
        with torch.random.fork_rng(devices=[]):
            dispatch = Dispatch(log, modules)
            with listener, modules, dispatch:
                run(Watch(dispatch, modules))
    finally:
        random.setstate(python_state)
        if collects:
            gc.enable()
    calls = list(log.calls)
    counts = [0] * len(calls)
    ran = [entry for entry in log.entries if isinstance(entry, Ran)]
    for entry in ran:
        counts[entry.call] = max(counts[entry.call], len(entry.blocks))
    sequences = sequences_of(calls, counts, on_progress)
    facts = _facts(dispatch)
    pairs = zip(calls, sequences, strict=True)
    unknown = {call.op for call, sequence in pairs if sequence.origin == "unknown"}
    if unknown:
        facts["scratch unknown"] = f"{', '.join(sorted(unknown))} (counted as none)"
    host = host_events(listener.events, {entry.mark: entry.real for entry in ran if entry.real})
    return assemble(log, host, sequences, facts)


class Watch:
    """The observer that labels what a trace logs."""

    def __init__(self, dispatch: Dispatch, modules: ModulePaths) -> None:
        self._dispatch = dispatch
        self._modules = modules
        self._parameters: list[nn.Parameter] = []
        self._step = 0
        self._phase = "init"

    def phase(self, name: str) -> None:
        if self._phase == "backward":
            # Before the optimizer drops them: which blocks became gradients.
            grads = (p.grad for p in self._parameters)
            self._dispatch.use([g for g in grads if g is not None], Use.GRADIENT)
        self._phase = name
        self._dispatch.begin_phase(name, self._step)

    def step(self, number: int) -> None:
        self._step = number

    def model(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._modules.name_modules(model)
        self._dispatch.use([*self._parameters, *model.buffers()], Use.PARAMETER)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self._dispatch.name_block(tensor, name)

    def inputs(self, batch: Any) -> None:
        self._dispatch.use(_tensors(batch), Use.INPUT)


def _tensors(batch: Any) -> list[torch.Tensor]:
    leaves: Iterable[Any] = pytree.tree_leaves(batch)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _facts(dispatch: Dispatch) -> dict[str, str]:
    facts = {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        facts["transformers"] = transformers.__version__
    if dispatch.values.unknown_reads:
        lines = ", ".join(sorted(dispatch.values.unknown_reads))
        facts["unknown values read"] = f"{lines} (answered with 1.0, 1 or False)"
    return facts
