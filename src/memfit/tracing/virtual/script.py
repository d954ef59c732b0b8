"""Traces a training script that knows nothing of memfit.

The script runs as ``python script.py`` would run it, on the virtual GPU of a forked child, and is
stopped after a few optimizer steps.  Where it is told from what PyTorch lets anyone watch: forward
passes of modules, calls of the autograd engine, steps of optimizers.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memfit.allocator.settings import Settings
from memfit.allocator.version import TorchVersion
from memfit.errors import BadInput, MemfitError
from memfit.records.device import Device
from memfit.tracing.modules import ModulePaths
from memfit.tracing.virtual.child import answer_now, in_child
from memfit.tracing.virtual.progress import Progress, Stop
from memfit.tracing.virtual.run import Traced, outcome, start, where

_PATIENCE = 3
"""How often a script may go on after it was told to stop: some catch everything in a loop."""

_OWN = str(Path(__file__).parents[2]) + os.sep
"""Frames of this package are left out of the script's traceback."""


class ScriptFailed(MemfitError):
    """The script raised, or left with an exit code; the message is its own traceback."""

    exit_code = 1


def trace_script(
    path: Path,
    arguments: Sequence[str] = (),
    *,
    card: Device,
    version: TorchVersion,
    settings: Settings | None = None,
    addresses: str = "ascending",
    num_steps: int = 3,
) -> Traced:
    """Runs a script on a virtual ``card`` for ``num_steps`` optimizer steps, or to its end.

    What it prints goes to stderr.  It is stopped where the step after the last would begin, so
    that the last one is whole, with an evaluation that follows it.

    Args:
        path: the script.
        arguments: its own, ``sys.argv[1:]``.
        card: which GPU.
        version: whose rules the allocator and the workspaces follow.
        settings: of the allocator; PyTorch's defaults when left out.
        addresses: where the driver puts segments.
        num_steps: optimizer steps.

    Raises:
        BadInput: there is no such script, or it needs values that a trace does not have.
        ScriptFailed: it raised, or ended itself with an exit code.
    """
    if not path.is_file():
        raise BadInput(f"there is no script {path}: give the path of a Python file")
    traced: Traced = in_child(
        lambda: trace_script_here(
            path,
            arguments,
            card=card,
            version=version,
            settings=settings,
            addresses=addresses,
            num_steps=num_steps,
        )
    )
    return traced


def trace_script_here(
    path: Path,
    arguments: Sequence[str],
    *,
    card: Device,
    version: TorchVersion,
    settings: Settings | None,
    addresses: str,
    num_steps: int,
) -> Traced:
    """:func:`trace_script` in this process, which is spent afterwards."""
    gc.disable()  # as in a trace of a job: when garbage in cycles goes is chance
    _print_to_stderr()
    modules = ModulePaths()
    gpu = start(card, version, settings or Settings(), addresses, modules)
    ends: list[Traced] = []
    settings_before = _settings_of(os.environ)

    def end(progress: Progress) -> None:
        if not ends:
            if not gpu.ledger.blocks:
                gpu.facts["no GPU"] = f"{path.name} put nothing on the GPU"
            if _settings_of(os.environ) != settings_before:
                gpu.facts["PYTORCH_ALLOC_CONF"] = _settings_of(os.environ)
            if not progress.steps_done:
                gpu.facts["no steps"] = f"{path.name} took no optimizer step"
            ends.append(outcome(gpu, card, version, progress.steps_done))
        elif len(ends) == _PATIENCE:
            answer_now(ends[0])
        else:
            ends.append(ends[0])

    progress = Progress(gpu, modules, num_steps, end)
    progress.install()
    with modules:
        try:
            _run_as_main(path, arguments)
        except Stop:
            pass
        except SystemExit as error:
            if error.code not in (None, 0) and not ends:
                raise ScriptFailed(
                    f"{path} ended itself with {_say_code(error.code)}. "
                    f"{where(gpu, modules, error)}"
                ) from None
        except BadInput:
            if not ends:
                raise
        except Exception as error:
            if not ends:
                raise ScriptFailed(
                    f"{path} raised an error. {where(gpu, modules, error)}\n{_own_traceback(error)}"
                ) from None
        if not ends:
            progress.finish(is_stopped=False)
            end(progress)
    return ends[0]


def _print_to_stderr() -> None:
    """What the script prints, and what its processes print, is not the command's answer."""
    os.dup2(2, 1)
    sys.stdout = io.TextIOWrapper(
        io.FileIO(1, "w", closefd=False), encoding="utf-8", errors="replace", line_buffering=True
    )


def _warn_as_python_does() -> None:
    """The filters that an interpreter starts with: those of this process are not the script's."""
    warnings.resetwarnings()
    for quiet in (ResourceWarning, ImportWarning, PendingDeprecationWarning, DeprecationWarning):
        warnings.simplefilter("ignore", quiet)
    warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")


def _settings_of(environment: Mapping[str, str]) -> str:
    """The allocator's settings, which a script may set for itself before CUDA starts."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return next((environment[name] for name in names if name in environment), "")


def _run_as_main(path: Path, arguments: Sequence[str]) -> None:
    """As ``python path arguments``: its folder first in ``sys.path``, its module ``__main__``."""
    file = str(path.absolute())
    main = types.ModuleType("__main__")
    main.__file__ = file
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    sys.argv = [str(path), *arguments]
    sys.path[0:1] = [str(path.resolve().parent)]
    _warn_as_python_does()
    code = compile(path.read_bytes(), file, "exec")
    exec(code, main.__dict__)


def _own_traceback(error: BaseException) -> str:
    """The error with the script's frames, and its libraries', without ours."""
    shown = traceback.TracebackException.from_exception(error)
    seen: traceback.TracebackException | None = shown
    while seen is not None:
        frames = [frame for frame in seen.stack if not frame.filename.startswith(_OWN)]
        seen.stack = traceback.StackSummary.from_list(frames)
        seen = seen.__cause__ or seen.__context__
    return "".join(shown.format()).rstrip()


def _say_code(code: Any) -> str:
    return f"exit code {code}" if isinstance(code, int) else f"the message {code!r}"
