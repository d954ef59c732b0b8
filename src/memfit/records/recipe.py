"""Recipe: the techniques chosen for a run.

The field docstrings are the help texts of the command line.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from memfit.errors import BadInput
from memfit.records.files import load_document, save_document
from memfit.records.plain import from_plain
from memfit.records.stages import Stages, parse_stages
from memfit.units import parse_size

KIND, VERSION = "recipe", 1

PRECISIONS = ("fp32", "bf16", "fp16", "bf16-pure")

OPTIMIZERS = {
    "adamw": 6e-4,
    "sgd": 6e-4,
    "adafactor": 1e-2,
    "adamw-8bit": 6e-4,
    "adamw-4bit": 6e-4,
    "lion-8bit": 1e-4,
    "muon": 2e-2,
    "muon-8bit": 2e-2,
}
"""Name -> the peak learning rate where none is asked for.  Lion wants 3 to 10 times less than AdamW
(Chen et al. 2023, section 5); Adafactor's is relative to a parameter's size (Shazeer & Stern 2018,
section 8); Muon's is nanochat's for matrices."""

QUANTISED = ("adamw-8bit", "adamw-4bit", "lion-8bit", "muon-8bit")
"""Optimizers whose state is kept in fewer bits."""

LOSSES = ("full", "chunked")
SEQUENCES = ("rows", "packed", "documents")

_SIZE = r"[^:,]+"
_CHECKPOINTING = re.compile(
    rf"none|full|selective|every:(?P<every>[1-9]\d*)|budget:(?P<budget>{_SIZE})"
    r"|blocks:(?P<whole>\d+):(?P<selective>\d+)"
)
_ACTIVATIONS = re.compile(rf"activations(?:(?P<budget>:budget)?:(?P<size>{_SIZE}))?")


class Blocks(NamedTuple):
    """How many of a model's repeated blocks are recomputed; of the others nothing is."""

    whole: int
    """Blocks that keep their input only."""

    selective: int
    """Blocks that keep the results of matrix products and attention."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How a step is run.

    Raises:
        BadInput: a value is not one of those named below, or two of them cannot go together.
    """

    precision: str = "fp32"
    """fp32; bf16 or fp16: autocast over fp32 parameters, fp16 with a gradient scaler; bf16-pure:
    all in bfloat16, updates rounded stochastically."""

    batch_size: int = 1
    """Samples of a micro-batch: what one forward pass sees."""

    accumulate: int = 1
    """Micro-batches of a step: gradients are added up over them, normalised by target tokens."""

    checkpointing: str = "none"
    """none; full: recompute every block in backward; every:N: every N-th block; selective: keep
    the results of matrix products and attention, recompute the rest; budget:SIZE: as little
    recomputation as a predicted peak of SIZE allows; blocks:W:S: W blocks whole, S selectively."""

    loss: str = "full"
    """full; chunked: the logits are computed in pieces and never held."""

    optimizer: str = "adamw"
    """adamw; sgd (momentum 0.9); adafactor; adamw-8bit, lion-8bit (bitsandbytes); adamw-4bit
    (torchao); muon: matrices by Muon, the rest by AdamW; muon-8bit: its momentum in 8 bits."""

    optimizer_in_backward: bool = False
    """Update each parameter as soon as its gradient is there, and let go of the gradient.  Not
    with accumulation, clipping or fp16, which need all gradients at once."""

    offload: str = "none"
    """none; activations: what backward needs waits in host memory (activations:SIZE: that much of
    it, activations:budget:SIZE: as little as a predicted peak of SIZE allows); optimizer: state
    and update on the CPU.  Two are joined by a comma."""

    sequences: str = "rows"
    """What a sample is: rows of the text as it runs; packed: whole documents side by side, which do
    not see each other; documents: one document or conversation, padded."""

    seq_schedule: str | None = None
    """Sequence lengths in stages, as 1024:2000,2048:4000,4096: 1,024 tokens up to step 2,000, 2,048
    up to step 4,000, then 4,096; the tokens of a step stay the same."""

    learning_rate: float | None = None
    """The peak learning rate, reached after warm-up; the optimizer's usual one when left out."""

    weight_decay: float = 0.1
    """Decoupled weight decay; applied to matrices only, not to vectors."""

    clip_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; None leaves them alone."""

    def __post_init__(self) -> None:
        _choose("precision", self.precision, PRECISIONS)
        _choose("optimizer", self.optimizer, tuple(OPTIMIZERS))
        _choose("loss", self.loss, LOSSES)
        _choose("sequences", self.sequences, SEQUENCES)
        for name in ("batch_size", "accumulate"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise BadInput(f"{name} is {value!r}: it must be a whole number, at least 1")
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise BadInput(f"{name} is {value}: it must be 0 or above, and finite")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise BadInput(f"clip_norm is {self.clip_norm}: it must be above 0 and finite, or None")
        self._check_checkpointing()
        self._check_offload()
        if self.seq_schedule is not None:
            parse_stages(self.seq_schedule)
        self._check_pairs()

    def _check_checkpointing(self) -> None:
        match = _CHECKPOINTING.fullmatch(self.checkpointing)
        if match is None:
            raise BadInput(
                f"checkpointing is {self.checkpointing!r}: write none, full, every:N with N >= 1, "
                "selective, budget:SIZE or blocks:W:S"
            )
        if match["budget"]:
            parse_size(match["budget"])

    def _check_offload(self) -> None:
        parts = self.offload.split(",")
        kinds = [part.partition(":")[0] for part in parts]
        if self.offload == "none":
            return
        known = all(part == "optimizer" or _ACTIVATIONS.fullmatch(part) for part in parts)
        if not known or len(set(kinds)) < len(kinds):
            raise BadInput(
                f"offload is {self.offload!r}: write none, optimizer, activations, "
                "activations:SIZE, activations:budget:SIZE, or optimizer and one of the others "
                "joined by a comma"
            )
        match = self._activations
        if match is not None and match["size"]:
            parse_size(match["size"])

    def _check_pairs(self) -> None:
        """Refuses what cannot go together, and says why."""
        if self.optimizer_in_backward:
            for name, is_there, why in (
                (
                    "accumulation",
                    self.accumulate > 1,
                    "each micro-batch would update the weights: write accumulate 1",
                ),
                (
                    "clipping",
                    self.clip_norm is not None,
                    "the global norm is known only when all gradients are: write clip_norm none",
                ),
                (
                    "fp16",
                    self.precision == "fp16",
                    "a step must be skipped when any gradient overflows: write precision bf16",
                ),
                (
                    "the optimizer offloaded",
                    self.offloads_optimizer,
                    "its gradients are streamed to the CPU already: drop optimizer_in_backward",
                ),
            ):
                if is_there:
                    raise BadInput(f"optimizer_in_backward does not go with {name}: {why}")
        if self.offloads_optimizer and self.precision == "fp16":
            raise BadInput(
                "offload optimizer does not go with fp16: the gradient scaler looks for gradients "
                "beside the parameters, and they are on the host; write precision bf16"
            )
        if self.offloads_optimizer and self.optimizer in QUANTISED:
            raise BadInput(
                f"offload optimizer does not go with {self.optimizer}: its kernels keep the state "
                "beside the parameters, on their device; write optimizer adamw or muon"
            )
        if self.seq_schedule is not None and self.sequences == "documents":
            raise BadInput(
                f"the sequence schedule {self.seq_schedule} does not go with sequences documents, "
                "which are as long as they are: choose rows or packed"
            )
        if self.checkpoint_budget_bytes is not None and self.offload_budget_bytes is not None:
            raise BadInput(
                "checkpointing budget:SIZE and offload activations:budget:SIZE are two ways to "
                "reach one peak: give the budget to one of them"
            )

    @property
    def _activations(self) -> re.Match[str] | None:
        matches = (_ACTIVATIONS.fullmatch(part) for part in self.offload.split(","))
        return next((match for match in matches if match), None)

    @property
    def checkpoint_every(self) -> int | None:
        """Every how many blocks one is recomputed as a whole; None where that is not the rule."""
        match = self._checkpointing
        if self.checkpointing == "full":
            return 1
        return int(match["every"]) if match["every"] else None

    @property
    def checkpoint_blocks(self) -> Blocks | None:
        """The numbers of ``blocks:W:S``; None for any other checkpointing."""
        match = self._checkpointing
        return Blocks(int(match["whole"]), int(match["selective"])) if match["whole"] else None

    @property
    def checkpoint_budget_bytes(self) -> int | None:
        """The predicted peak that ``budget:SIZE`` allows."""
        size = self._checkpointing["budget"]
        return parse_size(size) if size else None

    @property
    def _checkpointing(self) -> re.Match[str]:
        match = _CHECKPOINTING.fullmatch(self.checkpointing)
        assert match is not None
        return match

    @property
    def offloads_optimizer(self) -> bool:
        """Whether state and update are on the CPU."""
        return "optimizer" in self.offload.split(",")

    @property
    def offloaded_activation_bytes(self) -> int | None:
        """How many bytes of activations wait in host memory; None for all of them, 0 for none.

        A budget is not an answer yet: it has to be settled first.
        """
        match = self._activations
        if match is None:
            return 0
        assert not match["budget"], "activations:budget:SIZE must be settled before it is applied"
        return parse_size(match["size"]) if match["size"] else None

    @property
    def offload_budget_bytes(self) -> int | None:
        """The predicted peak that ``activations:budget:SIZE`` allows."""
        match = self._activations
        return parse_size(match["size"]) if match and match["budget"] else None

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left for a prediction to decide: it holds no budget."""
        return self.checkpoint_budget_bytes is None and self.offload_budget_bytes is None

    @property
    def peak_learning_rate(self) -> float:
        """The learning rate after warm-up."""
        return OPTIMIZERS[self.optimizer] if self.learning_rate is None else self.learning_rate

    @property
    def stages(self) -> Stages | None:
        """The sequence lengths in stages; None for one length."""
        return None if self.seq_schedule is None else parse_stages(self.seq_schedule)

    @property
    def samples_per_step(self) -> int:
        """Samples behind one optimizer step, of the longest length where there are stages."""
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


def _choose(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadInput(f"{name} is {value!r}: choose one of {', '.join(known)}")
