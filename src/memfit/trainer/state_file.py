"""state.json: what a saved state says of itself, beside its tensors.

It carries a checksum of itself and those of the tensor files, so that a state that was altered
anywhere is known before anything is read into the model.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from memfit.errors import BadInput, DamagedFile
from memfit.records.files import load_document
from memfit.records.plain import from_plain
from memfit.records.recipe import Recipe
from memfit.trainer.schedule import Schedule
from memfit.trainer.tensor_files import describe_model

KIND, VERSION = "saved_state", 1

_WORDS = {
    "optimizer": "--optimizer",
    "samples_per_step": "batch size times accumulation",
    "seq_len": "--seq-len",
    "seed": "the seed",
    "data_hash": "the hash of data and tokenizer",
}

_HARMLESS = ("accumulate", "checkpointing", "offload", "optimizer")
"""Fields of a recipe that change no bit of the results, or are settled by the others.  Of offload
that is so for activations; the optimizer's is noted by itself."""

_SCHEDULE = tuple(field.name for field in fields(Schedule))


@dataclass(frozen=True, kw_only=True, slots=True)
class RunIdentity:
    """What a run is, as far as going on from its states is concerned."""

    job_name: str
    recipe: Recipe
    seq_len: int | None
    """Tokens of a sequence; None for a job without sequences."""

    seed: int
    """Sets the order of the data."""

    data_hash: str
    """Another one for other data, or another tokenizer."""

    truncate: str | None = None
    """Which end of a sample that is too long is kept; None where samples are never cut."""

    schedule: Schedule | None = None
    """The learning rate over the run; None where it is not known."""

    def fixed(self) -> dict[str, Any]:
        """What must stay as it is."""
        return {
            "optimizer": self.recipe.optimizer,
            "samples_per_step": self.recipe.samples_per_step,
            "seq_len": self.seq_len,
            "seed": self.seed,
            "data_hash": self.data_hash,
        }

    def conditions(self) -> dict[str, Any]:
        """What may change, but then changes the results, if only by rounding."""
        return {
            "job": self.job_name,
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "offload": "optimizer" if self.recipe.offloads_optimizer else "none",
            **({"truncate": self.truncate} if self.truncate else {}),
            **(asdict(self.schedule) if self.schedule else {}),
            **{k: v for k, v in self.recipe.as_dict().items() if k not in _HARMLESS},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class StateFile:
    """The contents of state.json."""

    step: int
    """Optimizer steps that were done."""

    job_name: str
    recipe: Mapping[str, Any]
    fixed: Mapping[str, Any]
    conditions: Mapping[str, Any]
    extra: Mapping[str, Any]
    """What the caller wished to keep; small."""

    model: Mapping[str, str]
    """Parameters and persistent buffers, as ``describe_model`` gives them."""

    optimizer_scalars: Mapping[str, Any]
    """The optimizer's state by ``kind.parameter``, as far as it is not tensors."""

    rng: Mapping[str, Any]
    """As ``rng_state`` gives it."""

    num_bytes: Mapping[str, int]
    """File name -> size."""

    sha256: Mapping[str, str]
    """File name -> hexadecimal digest."""

    def as_text(self) -> str:
        """The JSON document, its own checksum last."""
        document = {"memfit": KIND, "version": VERSION, **asdict(self)}
        return json.dumps({**document, "checksum": _checksum(document)}) + "\n"

    @classmethod
    def load(cls, path: Path) -> StateFile:
        """Reads state.json.

        Raises:
            DamagedFile: it is missing, cut short or altered.
            BadInput: it was written by a newer memfit.
        """
        try:
            # Of any version: what a damaged file says is its version means nothing.
            document = load_document(path, KIND, sys.maxsize, dict)
        except BadInput as error:
            raise DamagedFile(str(error)) from error
        if document.pop("checksum", None) != _checksum(document):
            raise DamagedFile(f"{path} is damaged: its contents do not have their checksum")
        if document["version"] > VERSION:
            raise BadInput(
                f"{path} was written by a newer memfit (version {document['version']}; this one "
                f"reads up to {VERSION}): upgrade memfit to resume"
            )
        del document["memfit"], document["version"]
        try:
            return from_plain(cls, document)
        except TypeError as error:
            raise DamagedFile(f"{path} is damaged: {error}") from error

    def check_belongs(self, path: Path, run: RunIdentity, model: nn.Module) -> None:
        """Refuses a run that cannot go on from this state, which lies at ``path``.

        Raises:
            BadInput: names all that differs.
        """
        found = [f"{_WORDS[name]} {change}" for name, change in _changes(self.fixed, run.fixed())]
        found += self._moved_state(run, model)
        tensors = _changes(self.model, describe_model(model))
        if tensors:
            name, change = tensors[0]
            found.append(
                f"of the model's tensors {len(tensors)} differ, first {name}, which {change}"
            )
        if found:
            raise BadInput(
                f"cannot go on from {path}, a state of {self.job_name}: {'; '.join(found)}. Give "
                "what was given then; or, to train anew, another folder with --out"
            )

    def _moved_state(self, run: RunIdentity, model: nn.Module) -> list[str]:
        """What forbids to take the optimizer's state to the host, or back from there.

        On the host it is fp32, and of a narrow parameter the weights are among it; beside the
        parameters it has their dtype.
        """
        then = Recipe(offload=self.recipe.get("offload", "none")).offloads_optimizer
        now = run.recipe.offloads_optimizer
        narrow = {p.dtype for p in model.parameters() if p.requires_grad} - {torch.float32}
        if then == now or not narrow:
            return []
        dtypes = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in narrow))
        change = "was off and is on" if now else "was on and is off"
        what = f"the state of parameters in {dtypes} has another form there"
        return [f"--offload optimizer {change}, and {what}"]

    def changed(self, run: RunIdentity) -> list[str]:
        """Which conditions are not what they were, as far as both are known."""
        now = run.conditions()
        known = {name: value for name, value in now.items() if name in self.conditions}
        if self._goes_on_along(run):
            known = {name: value for name, value in known.items() if name not in _SCHEDULE}
        then = {name: self.conditions[name] for name in known}
        return [f"{name} {change}" for name, change in _changes(then, known)]

    def _goes_on_along(self, run: RunIdentity) -> bool:
        """Whether the steps that were done had the rates that the schedule of ``run`` gives them.

        Then another length of the run changes nothing, as within a warm-up that stays the same.
        """
        if run.schedule is None or not set(_SCHEDULE) <= set(self.conditions):
            return False
        then = Schedule(**{name: self.conditions[name] for name in _SCHEDULE})
        if then == run.schedule or self.step >= run.schedule.num_steps:  # the same, or no step left
            return True
        has_decay = run.recipe.optimizer.startswith("muon") and run.recipe.weight_decay > 0
        return then.agrees(run.schedule, self.step, with_decay=has_decay)


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The names that differ, with how: ``was 1 and is 2``."""
    return [
        (name, f"was {then.get(name, 'not there')} and is {now.get(name, 'not there')}")
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    ]


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document).encode("ascii")).hexdigest()
