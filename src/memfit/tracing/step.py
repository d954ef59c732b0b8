"""Traces a training run: its ops without data, as a Timeline."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable

import torch

from memfit.devices.cpu_allocations import CpuAllocations
from memfit.observer import Observer
from memfit.records.timeline import Timeline
from memfit.tracing.assemble import assemble
from memfit.tracing.dispatch import Dispatch
from memfit.tracing.hidden.scratch import sequences_of
from memfit.tracing.host import host_events
from memfit.tracing.log import Log, Ran
from memfit.tracing.modules import ModulePaths
from memfit.tracing.watch import Watch


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
