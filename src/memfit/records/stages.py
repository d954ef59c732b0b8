"""Stages: how long the sequences of a run are, and until which step.

``1024:2000,2048:4000,4096`` reads: 1,024 tokens up to step 2,000, 2,048 tokens up to step 4,000,
4,096 tokens from there on.  The tokens of a step stay the same, so shorter sequences are more.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from memfit.errors import BadInput

_STAGE = re.compile(r"\s*([1-9]\d*)\s*(?::\s*([1-9]\d*)\s*)?")


@dataclass(frozen=True, slots=True)
class Stage:
    """One sequence length and the last step that has it, from 1; None for the last stage."""

    seq_len: int
    last_step: int | None


@dataclass(frozen=True, slots=True)
class Stages:
    """Sequence lengths that grow.

    Raises:
        BadInput: lengths or steps do not grow, or the last stage has an end.
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        *ended, last = self.stages
        if last.last_step is not None or any(stage.last_step is None for stage in ended):
            raise BadInput(
                f"the sequence schedule {self} must say LENGTH:STEP for each stage but the last, "
                "and LENGTH alone for that: as in 1024:2000,2048:4000,4096"
            )
        for before, after in pairwise(self.stages):
            if after.seq_len <= before.seq_len:
                raise BadInput(
                    f"the sequence schedule {self} goes from {before.seq_len} to {after.seq_len} "
                    "tokens: lengths must increase"
                )
        for before, after in pairwise(ended):
            assert before.last_step is not None and after.last_step is not None
            if after.last_step <= before.last_step:
                raise BadInput(
                    f"the sequence schedule {self} ends a stage at step {after.last_step}, which "
                    f"begins after step {before.last_step}: steps must increase"
                )

    def __str__(self) -> str:
        return ",".join(
            str(stage.seq_len) if stage.last_step is None else f"{stage.seq_len}:{stage.last_step}"
            for stage in self.stages
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest sequences, those of the last stage."""
        return self.stages[-1].seq_len

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of a sequence in each stage."""
        return tuple(stage.seq_len for stage in self.stages)

    def at(self, step: int) -> int:
        """Tokens of a sequence in ``step``, counted from 1."""
        for stage in self.stages:
            if stage.last_step is None or step <= stage.last_step:
                return stage.seq_len
        raise AssertionError("the last stage has no end")

    def place(self, step: int) -> int:
        """The how manieth step of its stage ``step`` is; both are counted from 1."""
        ended = (stage.last_step or 0 for stage in self.stages)
        return step - max((last for last in ended if last < step), default=0)

    def check_longest(self, seq_len: int | tuple[int, int] | None) -> int:
        """The longest length; a length that is asked for beside the schedule must be it.

        Raises:
            BadInput: another length, or lengths that vary, are asked for.
        """
        if seq_len not in (None, self.longest):
            asked = (
                f"lengths vary from {seq_len[0]:,} to {seq_len[1]:,}"
                if isinstance(seq_len, tuple)
                else f"sequence length is {seq_len:,}"
            )
            raise BadInput(
                f"the sequence schedule {self} ends with {self.longest:,} tokens and the {asked}: "
                "leave the length out, or make them the same"
            )
        return self.longest

    @property
    def fewest_samples(self) -> int:
        """The fewest samples of the longest length that are whole sequences in every stage."""
        return math.lcm(*self.lengths) // self.longest

    def check_divides(self, tokens_per_step: int) -> None:
        """Refuses tokens of a step that are not whole sequences in every stage.

        Raises:
            BadInput: names the length and a number of tokens that would do.
        """
        for length in self.lengths:
            if tokens_per_step % length:
                raise BadInput(
                    f"{tokens_per_step:,} tokens a step are not a whole number of sequences of "
                    f"{length:,}, which the schedule {self} asks for: choose a multiple of all its "
                    "lengths"
                )


def parse_stages(text: str) -> Stages:
    """Reads ``1024:2000,2048:4000,4096``.

    Raises:
        BadInput: it is not such a schedule.
    """
    matches = [_STAGE.fullmatch(part) for part in text.split(",")]
    stages = tuple(
        Stage(int(match[1]), int(match[2]) if match[2] else None) for match in matches if match
    )
    if len(stages) < len(matches):
        raise BadInput(
            f"the sequence schedule is {text!r}: write LENGTH:STEP for each stage but the last, as "
            "in 1024:2000,2048:4000,4096"
        )
    return Stages(stages)
