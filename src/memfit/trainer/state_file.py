"""state.json: what a saved state says of itself, beside its tensors.

It carries a checksum of itself and those of the tensor files, so that a state that was altered
anywhere is known before anything is read into the model.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from memfit.errors import BadInput, DamagedFile
from memfit.records.files import load_document
from memfit.records.plain import from_plain
from memfit.records.recipe import Recipe
from memfit.trainer.tensor_files import describe_model

KIND, VERSION = "saved_state", 1

_CHANGES_NOTHING = ("batch_size", "accumulate", "checkpointing", "optimizer")
"""Fields of a recipe that are compared in another way, or leave the numbers as they are."""


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
    """Stands for the data and the tokenizer; anything that changes when they do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateFile:
    """The contents of state.json."""

    step: int
    """Optimizer steps that were done."""

    job_name: str
    recipe: Mapping[str, Any]
    samples_per_step: int
    seq_len: int | None
    seed: int
    data_hash: str
    extra: Mapping[str, Any]
    """What the caller wished to keep; small."""

    environment: Mapping[str, str]
    """What the last bits of the results hang on."""

    model: Mapping[str, str]
    """Parameters and persistent buffers, as ``describe_model`` gives them."""

    optimizer: str
    """Its class."""

    optimizer_scalars: Mapping[str, Any]
    """Its state, by ``kind.parameter``, as far as it is not tensors."""

    rng: Mapping[str, Any]
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
            # Any version: that of a damaged file says nothing.
            document = load_document(path, KIND, sys.maxsize, dict)
        except BadInput as error:
            raise DamagedFile(str(error)) from error
        if document.pop("checksum", None) != _checksum(document):
            raise DamagedFile(f"{path} is damaged: it does not have the checksum it gives")
        if document["version"] > VERSION:
            raise BadInput(
                f"{path} was written by a newer memfit (version {document['version']}; this one "
                f"reads up to {VERSION}): upgrade memfit to resume"
            )
        try:
            del document["memfit"], document["version"]
            return from_plain(cls, document)
        except TypeError as error:
            raise DamagedFile(f"{path} is damaged: {error}") from error

    def check_belongs(
        self, path: Path, run: RunIdentity, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """Refuses a run that cannot go on from this state, which lies at ``path``.

        Raises:
            BadInput: names all that differs, and what to write.
        """
        samples, recipe = run.recipe.samples_per_step, self.recipe
        facts = (
            (
                "optimizer",
                self.optimizer,
                type(optimizer).__name__,
                f"--optimizer {recipe['optimizer']}",
            ),
            (
                "number of samples in a step",
                self.samples_per_step,
                samples,
                f"a batch size and an accumulation that multiply to {self.samples_per_step}",
            ),
            ("sequence length", self.seq_len, run.seq_len, f"--seq-len {self.seq_len}"),
            ("seed", self.seed, run.seed, f"--seed {self.seed}"),
            (
                "hash of the data",
                self.data_hash[:12],
                run.data_hash[:12],
                "the --data and tokenizer that it was trained with",
            ),
        )
        found = [
            f"the {what} was {then} and is {now} (give {remedy})"
            for what, then, now, remedy in facts
            if then != now
        ]
        found += _model_differences(self.model, describe_model(model), self.job_name)
        if found:
            raise BadInput(
                f"cannot go on from {path}, the state of another run: {'; '.join(found)}. "
                "To train anew, choose another folder with --out"
            )

    def changes(self, run: RunIdentity) -> list[str]:
        """What differs and does not hinder, but makes another run of it: ``a: 1 -> 2``."""
        then = {"job": self.job_name, **self.environment, **self.recipe}
        now = {"job": run.job_name, **environment(), **run.recipe.as_dict()}
        return [
            f"{name}: {then.get(name)} -> {now[name]}"
            for name in now
            if name not in _CHANGES_NOTHING and then.get(name) != now[name]
        ]


def environment() -> dict[str, str]:
    """What the last bits of the results hang on: the version of torch, and its threads."""
    return {"torch": str(torch.__version__), "threads": str(torch.get_num_threads())}


def _model_differences(then: Mapping[str, str], now: Mapping[str, str], job_name: str) -> list[str]:
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    if not names:
        return []
    first, count = names[0], len(names)
    return [
        f"the model differs in {count} tensor{'s' * (count > 1)}: {first} was "
        f"{then.get(first, 'not there')} and is {now.get(first, 'not there')} (give {job_name})"
    ]


def _checksum(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document).encode("ascii")).hexdigest()
