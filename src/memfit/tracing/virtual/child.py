"""Work in a forked child: what it changes in torch, and in the process, ends with it."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

import torch

from memfit.errors import MemfitError
from memfit.tracing.values import MEMFIT_FOLDER
from memfit.tracing.virtual.backend import NAME

_LENGTH_BYTES = 8
"""An answer is preceded by its length: processes that the child started hold its pipe open."""

_PR_SET_PDEATHSIG = 1
"""Linux's prctl(2): the signal that a process gets when its parent dies."""

_pipe = -1
"""In a child: where its answer goes."""

_last_acts: list[Callable[[], None]] = []


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
    parent = os.getpid()
    with warnings.catch_warnings():
        # The child starts no thread pool that the parent has (set_num_threads), as data loaders do.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reading)
        _die_with(parent)
        _do(work, writing)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            length = int.from_bytes(pipe.read(_LENGTH_BYTES), "little")
            answer = pipe.read(length)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if not answer:
        raise MemfitError(f"the process that traced the run died ({_say_status(status)})")
    raised, value = pickle.loads(answer)  # our own child's
    if raised:
        raise value
    return value


def answer_now(value: Any) -> NoReturn:
    """Ends a child from wherever it is called: ``in_child`` returns ``value``."""
    _send(pickle.dumps((False, value)))
    os._exit(0)


def before_leaving(act: Callable[[], None]) -> None:
    """Something that a child does when it ends; a child runs no ``atexit`` functions."""
    _last_acts.append(act)


def _die_with(parent: int) -> None:
    """A parent that is killed leaves no child behind, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(1)


def _do(work: Callable[[], Any], writing: int) -> NoReturn:
    global _pipe
    _pipe = writing
    try:
        torch.set_num_threads(1)
        # Once the parent has run a backward pass, the forked engine believes it has its threads.
        torch.autograd.set_multithreading_enabled(False)
        try:
            answer = pickle.dumps((False, work()))
        except KeyboardInterrupt:
            answer = b""
        except BaseException as error:
            answer = _pickled_error(error)
        _send(answer)
    finally:
        os._exit(0)


def _send(answer: bytes) -> None:
    for worker in multiprocessing.active_children():
        worker.terminate()
    for act in _last_acts:
        act()
    with contextlib.suppress(OSError, ValueError):  # a script may have closed them
        sys.stdout.flush()
        sys.stderr.flush()
    with os.fdopen(_pipe, "wb") as pipe:
        pipe.write(len(answer).to_bytes(_LENGTH_BYTES, "little") + answer)


def _pickled_error(error: BaseException) -> bytes:
    # In C++ the device has its own name, which no user has heard of.
    error.args = tuple(
        argument.replace(f"{NAME}:0", "cuda:0") if isinstance(argument, str) else argument
        for argument in error.args
    )
    if not isinstance(error, MemfitError):  # whose message says all there is to say
        shown = "".join(traceback.format_exception(type(error), error, _from_the_users(error)))
        error.add_note(f"Traceback in the traced process:\n{shown}")
        # Pickled with the error, for who shows the run's traceback in place of this process's.
        error.traced_traceback = shown  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        answer = pickle.dumps((True, error))
        pickle.loads(answer)  # some exceptions pickle and do not come back
        return answer
    replacement = RuntimeError(f"{type(error).__name__}: {error}")
    replacement.traced_traceback = getattr(error, "traced_traceback", "")  # type: ignore[attr-defined]
    for note in getattr(error, "__notes__", ()):
        replacement.add_note(note)
    return pickle.dumps((True, replacement))


def _from_the_users(error: BaseException) -> TracebackType | None:
    """The traceback from the first line on that is not memfit's."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(MEMFIT_FOLDER):
        frames = frames.tb_next
    return frames or error.__traceback__


def _say_status(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"
