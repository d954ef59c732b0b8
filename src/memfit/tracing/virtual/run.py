"""Traces a run on the virtual GPU, in a process of its own.

Much of what the virtual GPU changes in torch cannot be undone, so a trace forks: the child makes
the device, runs, and sends its Timeline back.  Nothing of it is left in the caller's process,
whatever happens.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from memfit.allocator.caching import CachingAllocator
from memfit.allocator.settings import Settings
from memfit.allocator.version import TorchVersion
from memfit.errors import MemfitError
from memfit.observer import Observer
from memfit.records.device import Device
from memfit.records.timeline import Timeline
from memfit.tracing.hidden.cuda.kernels import kernels_for
from memfit.tracing.modules import ModulePaths
from memfit.tracing.virtual import (
    answers,
    attention,
    autocast,
    backend,
    composites,
    counting,
    encoder_layer,
    kernels,
    old_indexing,
    rnn,
    shape_rules,
    special,
)
from memfit.tracing.virtual.child import in_child
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.face import Face
from memfit.tracing.virtual.ledger import Ledger
from memfit.tracing.watch import Watch


class Traced(NamedTuple):
    """What a trace on the virtual GPU gives."""

    timeline: Timeline
    value: Any
    """What the run returned."""

    stats: dict[str, int]
    """``torch.cuda.memory_stats()`` at its end."""


class RunEnded(MemfitError):
    """The run called ``sys.exit``."""

    exit_code = 1


def trace_on_gpu(
    run: Callable[[Observer], Any],
    *,
    card: Device,
    version: TorchVersion,
    settings: Settings | None = None,
    addresses: str = "ascending",
) -> Traced:
    """Runs ``run`` on a virtual ``card`` and returns its Timeline.

    ``run`` is ordinary PyTorch code that may use ``cuda``.  It runs in a forked child without data;
    what it returns must be picklable.

    Args:
        run: builds a model and takes steps, telling the observer where it is.
        card: which GPU.
        version: whose rules the allocator and the workspaces follow.
        settings: of the allocator; PyTorch's defaults when left out.
        addresses: where the driver puts segments, one of ``allocator.addresses.POLICIES``.

    Raises:
        BadInput: the run needs values that a trace does not have.
        RunEnded: it called ``sys.exit``.
        Exception: whatever ``run`` raises, with a note of the step and the module it was in.
    """
    import torch._dynamo  # noqa: F401  # here, so that the child of the next trace has it too

    traced: Traced = in_child(
        lambda: trace_here(run, card=card, version=version, settings=settings, addresses=addresses)
    )
    return traced


def trace_here(
    run: Callable[[Observer], Any],
    *,
    card: Device,
    version: TorchVersion,
    settings: Settings | None = None,
    addresses: str = "ascending",
) -> Traced:
    """:func:`trace_on_gpu` in this process, which is spent afterwards: torch stays changed."""
    gc.disable()  # when garbage in cycles goes is chance; here it stays, which errs upwards
    modules = ModulePaths()
    gpu = start(card, version, settings or Settings(), addresses, modules)
    watch = Watch(gpu, modules)
    with modules:
        try:
            value = run(watch)
        except SystemExit as error:
            raise RunEnded(
                f"the job ended its process with sys.exit({error.code!r}). "
                f"{where(gpu, modules, error)}"
            ) from None
        except Exception as error:
            error.add_note(where(gpu, modules, error))
            raise
    return outcome(gpu, card, version, value)


def outcome(gpu: Dispatch, card: Device, version: TorchVersion, value: Any) -> Traced:
    """What the run that ends here gives; nothing that dies later is in it."""
    stats = gpu.ledger.allocator.stats()
    gpu.close()
    return Traced(gpu.ledger.timeline(card.name, _facts(gpu, version)), value, stats)


def start(
    card: Device, version: TorchVersion, settings: Settings, addresses: str, modules: ModulePaths
) -> Dispatch:
    """Makes the virtual GPU of this process."""
    import torch._dynamo  # noqa: F401  # it checks torch's functions when imported: before we do

    device = backend.register()
    allocator = CachingAllocator(
        version=version, settings=settings, addresses=addresses, total_bytes=card.total_bytes
    )
    on_card = kernels_for(card, version)
    gpu = Dispatch(device, Ledger(allocator), modules, on_card, special.HANDLERS)
    with warnings.catch_warnings():
        # A CUDA build has kernels where ours are put, and warns of it.
        warnings.filterwarnings("ignore", message=".*other operators may also be overridden")
        gpu.libraries = [
            *kernels.register(gpu),
            *autocast.register(version),
            *attention.register(gpu, on_card),
            *composites.register(version),
            *counting.register(gpu),
            *encoder_layer.register(gpu, on_card),
            *rnn.register(gpu, on_card),
            *shape_rules.register(),
        ]
    Face(gpu).install()
    old_indexing.install(version)
    answers.install(gpu, card)
    return gpu


def where(gpu: Dispatch, modules: ModulePaths, error: BaseException) -> str:
    """Where an error was raised: ``This was in step 2, forward, in module blocks.1.``"""
    span = gpu.ledger.spans[-1]
    step = f"in step {span.step}" if span.step else "before the first step"
    if modules.was_left_by(error):
        module = f", in module {modules.last}" if modules.last else ", in the model itself"
    else:
        module = f"; the last module to begin was {modules.last}" if modules.last else ""
    return f"This was {step}, {span.name}{module}."


def _facts(gpu: Dispatch, version: TorchVersion) -> dict[str, str]:
    facts = {"torch": torch.__version__, "rules of torch": str(version), **gpu.facts}
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        facts["transformers"] = transformers.__version__
    if gpu.unknown_scratch:
        facts["scratch unknown"] = f"{', '.join(sorted(gpu.unknown_scratch))} (counted as none)"
    reads = gpu.shadows.unknown_reads
    if reads:
        lines = ", ".join(sorted(reads))
        facts["unknown values read"] = f"{lines} (answered with 1.0, 1 or False)"
    if gpu.shadows.unknown_sizes:
        lines = ", ".join(sorted(gpu.shadows.unknown_sizes))
        facts["sizes from unknown values"] = f"{lines} (taken as large as they can be)"
    return facts
