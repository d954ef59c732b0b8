"""How long a run is, and how often it evaluates and saves.  None of it changes a step's memory."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.errors import BadInput
from memfit.trainer.schedule import Schedule


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """What a run needs beside its job, its recipe and its data.

    Raises:
        BadInput: a number is not positive, the warm-up is longer than the run, or the seed has more
            than 64 bits.
    """

    num_steps: int = 1000
    """Optimizer steps."""

    warmup_steps: int | None = None
    """Steps of linear warm-up; a tenth of the run, at most 100, when left out."""

    eval_every: int = 100
    """Steps between two evaluations; the last step always evaluates."""

    save_every: int = 100
    """Steps between two saved states; the last step always saves."""

    keep: int = 2
    """Saved states that are kept; older ones are removed."""

    truncate: str = "head"
    """Which end of a document or conversation that is too long is kept: head or tail."""

    log: tuple[str, ...] = ()
    """Who else is told of each step: tensorboard, trackio, wandb."""

    seed: int = 0
    """Of the initial weights, dropout, and the order of the data."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "eval_every", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not -(1 << 63) <= self.seed < 1 << 64:
            raise BadInput(
                f"seed is {self.seed}: PyTorch's generators take 64 bits, from -2**63 to 2**64 - 1"
            )
        if self.truncate not in ("head", "tail"):
            raise BadInput(f"truncate is {self.truncate!r}: choose head or tail")
        self.schedule()

    def schedule(self) -> Schedule:
        """The learning rate over the run."""
        if self.warmup_steps is None:
            return Schedule.for_steps(self.num_steps)
        return Schedule(self.num_steps, self.warmup_steps)

    def evaluates(self, step: int) -> bool:
        """Whether ``step``, counted from 1, is followed by an evaluation."""
        return step % self.eval_every == 0 or step == self.num_steps

    def saves(self, step: int) -> bool:
        """Whether ``step``, counted from 1, is followed by saving."""
        return step % self.save_every == 0 or step == self.num_steps
