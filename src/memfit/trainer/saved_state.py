"""Saved state: all that a run needs to go on bit for bit, in one folder a step.

    OUT/state/step-00000100/model.safetensors      parameters and persistent buffers
                            optimizer.safetensors  by ``exp_avg.parameter``
                            state.json             step, generators, whose state it is, checksums

A state is written beside its place and renamed when all of it is on the disk: it is there as a
whole or not at all.  Nothing in it is pickled.  The micro-batch may differ when a run goes on;
the data's place follows from the step (see ``memfit.data.batches``).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from memfit.errors import BadInput, DamagedFile
from memfit.trainer import tensor_files
from memfit.trainer.rng import rng_state, set_rng_state
from memfit.trainer.state_file import RunIdentity, StateFile, environment
from memfit.units import format_size

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"

_STEP_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What :func:`restore` found."""

    step: int
    """Optimizer steps that were done; the next one is ``step + 1``."""

    path: Path
    extra: Mapping[str, Any]
    notes: tuple[str, ...]
    """For the person: states that could not be used, and what makes another run of this one."""


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
    """Saves the state after ``step`` in ``folder`` and removes all but the last ``keep`` there.

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
    place = folder / f"step-{step:08d}"
    temporary = _temporary(place)
    tensors = {
        MODEL: tensor_files.model_tensors(model)[0],
        OPTIMIZER: tensor_files.optimizer_tensors(model, optimizer)[0],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        temporary.mkdir()
        for name, by_name in tensors.items():
            tensor_files.write_tensors(temporary / name, by_name)
        state = StateFile(
            step=step,
            job_name=run.job_name,
            recipe=run.recipe.as_dict(),
            samples_per_step=run.recipe.samples_per_step,
            seq_len=run.seq_len,
            seed=run.seed,
            data_hash=run.data_hash,
            extra=extra or {},
            environment=environment(),
            model=tensor_files.describe_model(model),
            optimizer=type(optimizer).__name__,
            optimizer_scalars=tensor_files.optimizer_tensors(model, optimizer)[1],
            rng=rng_state(),
            num_bytes={name: (temporary / name).stat().st_size for name in tensors},
            sha256={name: _sha256(temporary / name) for name in tensors},
        )
        (temporary / STATE).write_text(state.as_text(), encoding="ascii")
        for path in (*temporary.iterdir(), temporary):
            _flush(path)
        _put(temporary, place)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        num_bytes = sum(t.nbytes for by_name in tensors.values() for t in by_name.values())
        raise BadInput(
            f"cannot save step {step} in {folder}: {getattr(error, 'strerror', None) or error}. A "
            f"state takes {format_size(num_bytes)}: make room, or choose another folder with --out "
            "(the states saved before are as they were)"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _keep_last(keep, folder, step)
    return place


def latest(folder: Path) -> StateFile | None:
    """What the newest state says of itself, unless nothing there says anything.

    Its tensor files are not looked at: :func:`restore` may have to take the one before.

    Raises:
        BadInput: it was written by a newer memfit.
    """
    for path in _newest_first(folder):
        with contextlib.suppress(DamagedFile):
            return StateFile.load(path / STATE)
    return None


def restore(
    folder: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer, run: RunIdentity
) -> Restored:
    """Puts model, optimizer and generators into the newest state that can be used.

    The optimizer's settings stay: they come from the recipe, and the rate from the schedule.

    Args:
        folder: where :func:`save` put the states.
        model: built as for a new run, ties included.
        optimizer: over the parameters of ``model``.

    Raises:
        BadInput: there is no state, none can be used, or it is that of another run.
    """
    damages: list[str] = []
    for path in _newest_first(folder):
        try:
            state = StateFile.load(path / STATE)
            state.check_belongs(path, run, model, optimizer)
            _check_files(path, state)
            _read(path, state, model, optimizer)
        except DamagedFile as damage:
            damages.append(f"{path.name} cannot be used: {damage}")
            continue
        if damages:
            damages.append(f"going on from step {state.step} instead")
        changes = state.changes(run)
        if changes:
            damages.append(f"not the run it was any more, as there changed {', '.join(changes)}")
        return Restored(step=state.step, path=path, extra=state.extra, notes=tuple(damages))
    if damages:
        raise BadInput(
            f"none of the {len(damages)} saved states in {folder} can be used: "
            f"{'; '.join(damages)}. Train anew, without --resume"
        )
    raise BadInput(f"there is no saved state in {folder}: train without --resume")


def _read(path: Path, state: StateFile, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    try:
        tensor_files.read_model(path / MODEL, model)
        tensor_files.read_optimizer(path / OPTIMIZER, state.optimizer_scalars, model, optimizer)
        set_rng_state(state.rng)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(f"{type(error).__name__}: {error}") from error


def _check_files(path: Path, state: StateFile) -> None:
    """Raises DamagedFile where a tensor file is missing, cut short or altered."""
    for name in (MODEL, OPTIMIZER):
        file = path / name
        try:
            found, saved = file.stat().st_size, state.num_bytes.get(name)
            if found != saved:
                raise DamagedFile(f"{file} has {found:,} bytes, not the {saved:,} that were saved")
            if _sha256(file) != state.sha256.get(name):
                raise DamagedFile(f"{file} is damaged: its contents do not have their checksum")
        except OSError as error:
            raise DamagedFile(f"cannot read {file}: {error.strerror or error}") from error


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _newest_first(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    steps = {
        int(match[1]): path
        for path in folder.iterdir()
        if (match := _STEP_FOLDER.fullmatch(path.name))
    }
    return [steps[step] for step in sorted(steps, reverse=True)]


def _keep_last(keep: int, folder: Path, step: int) -> None:
    states = _newest_first(folder)
    this = states.index(folder / f"step-{step:08d}")
    for path in (*states[:this], *states[this + keep :]):
        aside = _temporary(path)
        with contextlib.suppress(OSError):
            os.rename(path, aside)  # a state that is being removed is no state
        shutil.rmtree(aside, ignore_errors=True)


def _put(temporary: Path, place: Path) -> None:
    """Renames a whole state into its place.  One that is there steps aside, and back on failure."""
    aside = _temporary(place)
    with contextlib.suppress(FileNotFoundError):
        os.rename(place, aside)
    try:
        os.rename(temporary, place)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.rename(aside, place)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _temporary(place: Path) -> Path:
    return place.parent / f".{place.name}.{secrets.token_hex(4)}.tmp"


def _remove_leftovers(folder: Path) -> None:
    """What runs that were killed while saving have left."""
    for leftover in folder.glob(".step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def _flush(path: Path) -> None:
    """Waits until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
