"""Recipe: the techniques chosen for a run.

The field docstrings are the help texts of the command line.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from memfit.errors import BadInput
from memfit.records.files import load_document, save_document
from memfit.records.plain import from_plain

KIND, VERSION = "recipe", 1

PRECISIONS = ("fp32", "bf16", "bf16-pure")
OPTIMIZERS = ("adamw", "sgd")
_CHECKPOINTING = re.compile(r"none|full|every:([1-9]\d*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a step is run.

    Raises:
        BadInput: a value is not one of those named below.
    """

    precision: str = "fp32"
    """fp32; bf16: autocast to bfloat16 over fp32 parameters; bf16-pure: all in bfloat16."""

    batch_size: int = 1
    """Samples of a micro-batch: what one forward pass sees."""

    accumulate: int = 1
    """Micro-batches of a step: gradients are added up over them, normalised by target tokens."""

    checkpointing: str = "none"
    """none; full: recompute every block in backward; every:N: every N-th block."""

    optimizer: str = "adamw"
    """adamw, or sgd (with momentum 0.9)."""

    learning_rate: float = 6e-4
    """The peak learning rate, reached after warm-up."""

    weight_decay: float = 0.1
    """Decoupled weight decay; applied to matrices only, not to vectors."""

    clip_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; None leaves them alone."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            known = ", ".join(PRECISIONS)
            raise BadInput(f"precision is {self.precision!r}: choose one of {known}")
        if self.optimizer not in OPTIMIZERS:
            raise BadInput(f"optimizer is {self.optimizer!r}: choose {' or '.join(OPTIMIZERS)}")
        for name in ("batch_size", "accumulate"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise BadInput(f"{name} is {value!r}: it must be a whole number, at least 1")
        if not _CHECKPOINTING.fullmatch(self.checkpointing):
            raise BadInput(
                f"checkpointing is {self.checkpointing!r}: write none, full or every:N with N >= 1"
            )
        for name in ("learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(
                    f"{name} is {getattr(self, name)}: it must be 0 or above, and finite"
                )
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise BadInput(f"clip_norm is {self.clip_norm}: it must be above 0 and finite, or None")

    @property
    def checkpoint_every(self) -> int | None:
        """Every how many blocks one is recomputed; None for no checkpointing."""
        match = _CHECKPOINTING.fullmatch(self.checkpointing)
        assert match is not None
        if self.checkpointing == "none":
            return None
        return int(match[1] or 1)

    @property
    def samples_per_step(self) -> int:
        """Samples behind one optimizer step."""
        return self.batch_size * self.accumulate

    def but(self, **changes: Any) -> Recipe:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def save(self, path: Path, *, force: bool = False) -> None:
        """Writes the recipe as one versioned file."""
        save_document(path, KIND, VERSION, {"recipe": self.as_dict()}, force=force)

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Reads a recipe; raises BadInput or DamagedFile."""
        return load_document(
            path, KIND, VERSION, lambda document: from_plain(cls, document["recipe"])
        )
