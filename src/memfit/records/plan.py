"""Plan: a Recipe for one job on one device, with its predicted peak, and why the others lost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from memfit.records.files import load_document, save_document
from memfit.records.plain import from_plain
from memfit.records.recipe import Recipe

KIND, VERSION = "plan", 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A recipe that was predicted and not taken."""

    batch_size: int
    checkpointing: str
    peak_bytes: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A recipe with its proof.

    Raises:
        ValueError: the predicted peak is above the budget, or a size is not positive.
    """

    target: str
    """What the command line was given: a preset, a folder, ``file.py:name``."""

    recipe: Recipe

    device: str

    seq_len: int | None

    vocab_size: int | None = None
    """Of the model that was predicted, where it is a language model."""

    budget_bytes: int

    predicted_peak_bytes: int
    """The predicted allocated peak of the whole recipe, evaluation included."""

    reason: str = ""
    """Why this recipe, in a sentence."""

    rejected: tuple[Rejected, ...] = ()

    def __post_init__(self) -> None:
        if self.budget_bytes <= 0 or self.predicted_peak_bytes <= 0:
            raise ValueError("a plan has a positive budget and a positive predicted peak")
        if self.predicted_peak_bytes > self.budget_bytes:
            raise ValueError(
                f"a plan must fit: its predicted peak is {self.predicted_peak_bytes} bytes and its "
                f"budget {self.budget_bytes}"
            )

    @property
    def tokens_per_step(self) -> int | None:
        """Target tokens behind one optimizer step; None for a job without sequences."""
        return None if self.seq_len is None else self.seq_len * self.recipe.samples_per_step

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def save(self, path: Path, *, force: bool = False) -> None:
        """Writes the plan as one versioned file."""
        save_document(path, KIND, VERSION, {"plan": self.as_dict()}, force=force)

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Reads a plan; raises BadInput or DamagedFile."""
        return load_document(path, KIND, VERSION, cls._from_document)

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> Plan:
        plan = dict(document["plan"])
        plan["recipe"] = from_plain(Recipe, plan["recipe"])
        plan["rejected"] = tuple(from_plain(Rejected, row) for row in plan.get("rejected", ()))
        return from_plain(cls, plan)
