"""Traces a run on the virtual GPU, in a process of its own.

Much of what the virtual GPU changes in torch cannot be undone, so a trace forks: the child makes
the device, runs, and sends its Timeline back.  Nothing of it is left in the caller's process,
whatever happens.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
import traceback
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
from memfit.tracing.virtual import answers, backend, kernels, special
from memfit.tracing.virtual.dispatch import Dispatch
from memfit.tracing.virtual.face import Face
from memfit.tracing.virtual.ledger import Ledger
from memfit.tracing.virtual.watch import Watch


class Traced(NamedTuple):
    """What a trace on the virtual GPU gives."""

    timeline: Timeline
    value: Any
    """What the run returned."""

    stats: dict[str, int]
    """``torch.cuda.memory_stats()`` at its end."""


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
        Exception: whatever ``run`` raises, with a note of the step and the module it was in.
    """
    return in_child(
        lambda: trace_here(run, card=card, version=version, settings=settings, addresses=addresses)
    )


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
        except Exception as error:
            error.add_note(_where(gpu, modules))
            raise
    stats = gpu.ledger.allocator.stats()
    gpu.close()
    return Traced(gpu.ledger.timeline(card.name, _facts(gpu, version)), value, stats)


def start(
    card: Device, version: TorchVersion, settings: Settings, addresses: str, modules: ModulePaths
) -> Dispatch:
    """Makes the virtual GPU of this process."""
    import torch._dynamo  # it checks the names of torch's functions: before they are replaced

    device = backend.register()
    allocator = CachingAllocator(version=version, settings=settings, addresses=addresses)
    gpu = Dispatch(device, Ledger(allocator), modules, kernels_for(card, version), special.HANDLERS)
    gpu.libraries = kernels.register(gpu)
    Face(gpu).install()
    answers.install(gpu, card)
    return gpu


def in_child(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a forked child, or the exception it raises there.

    Raises:
        MemfitError: the child died without an answer.
    """
    if not hasattr(os, "fork"):
        raise MemfitError("the virtual GPU needs a system that can fork: Linux or macOS")
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # The child starts no thread pool that the parent has (set_num_threads), as data loaders do.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(work, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if not answer:
        raise MemfitError(f"the process that traced the run died ({_say_status(status)})")
    raised, value = pickle.loads(answer)  # noqa: S301  # our own child's
    if raised:
        raise value
    return value


def _answer(work: Callable[[], Any], writing: int) -> None:
    """Does the work in the child and ends it."""
    try:
        torch.set_num_threads(1)
        try:
            answer = pickle.dumps((False, work()))
        except KeyboardInterrupt:
            answer = b""
        except BaseException as error:
            answer = _pickled_error(error)
        sys.stdout.flush()
        sys.stderr.flush()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)


def _pickled_error(error: BaseException) -> bytes:
    error.add_note(
        "Traceback in the traced process:\n" + "".join(traceback.format_exception(error))
    )
    with contextlib.suppress(Exception):
        answer = pickle.dumps((True, error))
        pickle.loads(answer)  # noqa: S301  # some exceptions pickle and do not come back
        return answer
    replacement = RuntimeError(f"{type(error).__name__}: {error}")
    for note in error.__notes__:
        replacement.add_note(note)
    return pickle.dumps((True, replacement))


def _say_status(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def _where(gpu: Dispatch, modules: ModulePaths) -> str:
    span = gpu.ledger.spans[-1]
    module = modules.last or "no module"
    return f"This was in step {span.step}, {span.name}, in {module}."


def _facts(gpu: Dispatch, version: TorchVersion) -> dict[str, str]:
    facts = {"torch": torch.__version__, "rules of torch": str(version)}
    transformers = sys.modules.get("transformers")
    if transformers is not None:
        facts["transformers"] = transformers.__version__
    reads = gpu.shadows.unknown_reads
    if reads:
        lines = ", ".join(sorted(reads))
        facts["unknown values read"] = f"{lines} (answered with 1.0, 1 or False)"
    return facts
