"""Saved state: all that a run needs to go on bit for bit, in one folder a step.

    OUT/state/step-00000100/model.safetensors      parameters and persistent buffers
                            optimizer.safetensors  by ``exp_avg.parameter``
                            state.json             step, generators, whose state it is, checksums

A state is there as a whole or not at all, and nothing in it is pickled.  The data's place follows
from the step (``memfit.data.batches``), the learning rate from the schedule.  Checkpointing may
change when a run goes on; a change of the micro-batch, as rounding follows it, is noted.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from memfit.errors import BadInput, DamagedFile
from memfit.trainer.rng import rng_state, set_rng_state
from memfit.trainer.state_file import RunIdentity, StateFile
from memfit.trainer.state_folders import filling, keep_last, newest_first, step_folder
from memfit.trainer.tensor_files import (
    describe_model,
    model_tensors,
    optimizer_tensors,
    read_model,
    read_optimizer,
    write_tensors,
)
from memfit.units import format_size

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What :func:`restore` found."""

    step: int
    """Optimizer steps that were done; the next one is ``step + 1``."""

    path: Path
    extra: Mapping[str, Any]
    notes: tuple[str, ...]
    """Sentences for the person: which states could not be used and why, and what has changed
    so that the results are not those of one run."""


def save(
    folder: Path,
    *,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: RunIdentity,
    keep: int,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Saves the state after ``step`` in ``folder``, then removes all but the last ``keep`` there.

    States of later steps go too: they belong to a history that was left.

    Args:
        folder: holds the states of one run; made if need be.
        extra: anything small that JSON can say.

    Returns:
        The state's own folder.

    Raises:
        BadInput: ``keep`` is below 1, or the state cannot be written; the states saved before
            are as they were.
    """
    if keep < 1:
        raise BadInput(f"cannot keep the last {keep} saved states: keep at least 1")
    place = step_folder(folder, step)
    moments, scalars = optimizer_tensors(model, optimizer)
    files = {MODEL: model_tensors(model)[0], OPTIMIZER: moments}
    try:
        with filling(place) as temporary:
            for name, tensors in files.items():
                write_tensors(temporary / name, tensors)
            state = StateFile(
                step=step,
                job_name=run.job_name,
                recipe=run.recipe.as_dict(),
                fixed=run.fixed(),
                conditions=run.conditions(),
                extra=extra or {},
                model=describe_model(model),
                optimizer_scalars=scalars,
                rng=rng_state(),
                num_bytes={name: (temporary / name).stat().st_size for name in files},
                sha256={name: _sha256(temporary / name) for name in files},
            )
            (temporary / STATE).write_text(state.as_text(), encoding="ascii")
            for name in files:  # safetensors lets nobody but their owner read them
                shutil.copymode(temporary / STATE, temporary / name)
    except (OSError, SafetensorError) as error:
        num_bytes = sum(t.nbytes for tensors in files.values() for t in tensors.values())
        raise BadInput(
            f"cannot save step {step} in {folder}: {getattr(error, 'strerror', None) or error}. A "
            f"state takes {format_size(num_bytes)}: make room, or choose another folder with --out "
            "(the states saved before are as they were)"
        ) from error
    keep_last(keep, place)
    return place


def latest(folder: Path) -> StateFile | None:
    """What the newest state says of itself; None when none there says anything.

    Its tensor files are not looked at: :func:`restore` may have to take the one before.

    Raises:
        BadInput: it was written by a newer memfit.
    """
    for path in newest_first(folder):
        with contextlib.suppress(DamagedFile):
            return StateFile.load(path / STATE)
    return None


def restore(
    folder: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, run: RunIdentity
) -> Restored:
    """Puts model, optimizer and generators into the newest state that can be used.

    The optimizer keeps its settings: they are the recipe's.

    Args:
        folder: where :func:`save` put the states.
        model: built as for a new run, ties included.
        optimizer: over parameters of ``model``.

    Raises:
        BadInput: there is no state, none can be used, or the newest is that of another run.
    """
    damages: list[str] = []
    for path in newest_first(folder):
        try:
            state = StateFile.load(path / STATE)
            state.check_belongs(path, run, model)
            _check_files(path, state)
            _read(path, state, model, optimizer)
        except DamagedFile as damage:
            damages.append(f"{path.name} cannot be used: {damage}")
            continue
        notes = [*damages, f"going on from step {state.step} instead"] if damages else []
        if changed := state.changed(run):
            notes.append(f"from here on the results are not those of one run: {', '.join(changed)}")
        return Restored(step=state.step, path=path, extra=state.extra, notes=tuple(notes))
    if damages:
        raise BadInput(
            f"no saved state in {folder} can be used, so the run has to begin anew, without "
            f"--resume: {'; '.join(damages)}"
        )
    raise BadInput(f"there is no saved state in {folder}: leave out --resume to begin a new run")


def _check_files(path: Path, state: StateFile) -> None:
    """Raises DamagedFile where a tensor file is missing, cut short or altered."""
    for file in (path / MODEL, path / OPTIMIZER):
        try:
            found, saved = file.stat().st_size, state.num_bytes.get(file.name, 0)
            if found != saved:
                raise DamagedFile(f"{file} has {found:,} bytes, not the {saved:,} that were saved")
            if _sha256(file) != state.sha256.get(file.name):
                raise DamagedFile(f"{file} is damaged: its contents do not have their checksum")
        except OSError as error:
            raise DamagedFile(f"cannot read {file}: {error.strerror or error}") from error


def _read(path: Path, state: StateFile, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Reads files whose checksums are right; one that was forged may still say nonsense."""
    try:
        read_model(path / MODEL, model)
        read_optimizer(path / OPTIMIZER, state.optimizer_scalars, model, optimizer)
        set_rng_state(state.rng)
    except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
        raise DamagedFile(f"{path}: {type(error).__name__}: {error}") from error


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
