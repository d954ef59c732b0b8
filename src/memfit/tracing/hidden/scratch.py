"""The one place that is asked what an op allocates on a device beyond what its outputs show.

On the CPU the answer is, in this order: a formula (``cpu``), what this machine learnt before
(a cache file), or what it learns now by running the op once on zeros in another process.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from memfit.devices.detect import machine
from memfit.errors import BadInput, MemfitError
from memfit.records.files import cache_folder, write_text
from memfit.tracing.calls import Call
from memfit.tracing.hidden.cpu import formula
from memfit.tracing.hidden.encoding import call_to_json
from memfit.tracing.hidden.sequences import Give, Output, Sequence, Take, outputs_only
from memfit.units import GiB

VERSION = 1

_LEARNT_AT_MOST = 2 * GiB
"""A call on larger arguments is not run to learn from: predicting must not fill the memory."""


def sequences_of(
    calls: list[Call],
    num_outputs: list[int],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Sequence]:
    """What happens inside each call on this machine's CPU.

    Where neither a formula is known nor the op could be run, its outputs alone are counted, and the
    sequence's origin is ``unknown``.

    Args:
        calls: distinct calls.
        num_outputs: how many of its outputs each call allocates.
        on_progress: called with (calls learnt so far, calls to learn).
    """
    found: list[Sequence | None] = [
        formula(call, count) for call, count in zip(calls, num_outputs, strict=True)
    ]
    missing = [index for index, sequence in enumerate(found) if sequence is None]
    if missing:
        learnt = _learn_with_cache([calls[index] for index in missing], on_progress)
        for index, sequence in zip(missing, learnt, strict=True):
            found[index] = sequence or replace(outputs_only(num_outputs[index]), origin="unknown")
    return [sequence for sequence in found if sequence is not None]


def _extent_bytes(call: Call) -> int:
    return sum(tensor.extent_bytes for tensor in call.tensors())


def _learn_with_cache(
    calls: list[Call], on_progress: Callable[[int, int], None] | None
) -> list[Sequence | None]:
    path = cache_folder() / "scratch" / f"{_machine_key()}.json"
    rows = _load(path)
    keys = []
    for call in calls:
        try:
            key = json.dumps(call_to_json(call))
        except TypeError:
            key = ""
        keys.append(key if _extent_bytes(call) <= _LEARNT_AT_MOST else "")
    unknown = [key for key in dict.fromkeys(keys) if key and key not in rows]
    if unknown:
        fresh = _learn(unknown, on_progress)
        rows.update(fresh)
        # A failure may be of the moment, such as a lack of memory: it is tried again next time.
        _save(path, {**_load(path), **{key: row for key, row in fresh.items() if "events" in row}})
    return [sequence_of_row(rows.get(key)) for key in keys]


def _machine_key() -> str:
    """What learnt scratch hangs on: torch's build, the threads, and the processor."""
    facts = [
        str(VERSION),
        torch.__version__,
        str(torch.get_num_threads()),
        torch.backends.cpu.get_cpu_capability(),
        platform.machine(),
        machine().label,
        os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _load(path: Path) -> dict[str, Any]:
    """The cache, or nothing where it is missing or damaged: it can always be learnt again."""
    try:
        rows = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return rows if isinstance(rows, dict) else {}


def _save(path: Path, rows: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(rows), force=True)
    except (OSError, BadInput):
        pass  # a cache that cannot be written costs time, not correctness


def _learn(keys: list[str], on_progress: Callable[[int, int], None] | None) -> dict[str, Any]:
    """Runs each call in a child process; a child that dies is started again behind that call."""
    rows: dict[str, Any] = {}
    todo = list(keys)
    while todo:
        answers = _run_child(todo, len(rows), len(keys), on_progress)
        rows.update(zip(todo, answers, strict=False))
        todo = todo[len(answers) :]
        if todo:
            rows[todo[0]] = {"error": "the process that ran it died"}
            todo = todo[1:]
    return rows


def _run_child(
    keys: list[str], num_before: int, num_calls: int, on_progress: Callable[[int, int], None] | None
) -> list[Any]:
    command = [sys.executable, "-m", __package__ + ".learn", str(torch.get_num_threads())]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    answers: list[Any] = []
    if child.stdout.readline() != "ready\n":
        child.kill()
        raise MemfitError(f"cannot start a process to learn scratch memory: {' '.join(command)}")
    try:
        for key in keys:
            child.stdin.write(key + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
            if not line.endswith("\n"):
                break
            answers.append(json.loads(line))
            if on_progress is not None:
                on_progress(num_before + len(answers), num_calls)
    except BrokenPipeError:
        pass
    finally:
        child.kill()
        child.communicate()
    return answers


def sequence_of_row(row: Any) -> Sequence | None:
    """An answer of the learning process as a sequence; None where the op could not be run."""
    if not isinstance(row, dict) or "events" not in row:
        return None
    events: list[Output | Take | Give] = []
    slots: dict[int, int] = {}
    num_taken = 0
    for first, second in row["events"]:
        if first == "output":
            events.append(Output(second))
        elif second > 0:
            slots[first] = num_taken
            events.append(Take(num_taken, second))
            num_taken += 1
        elif first in slots:
            events.append(Give(slots.pop(first)))
    return Sequence(tuple(events), "learnt")
