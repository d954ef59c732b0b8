"""Rows of the text as it runs, whatever documents they are of; their lengths may come in stages.

A shorter stage cuts each row into several.  So a step has the targets that it would have without
stages, and every token but the first is a target once an epoch.  Where a length does not divide the
longest, the rows that are shuffled are as long as all lengths divide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from torch import Tensor

from memfit.data.batches import Batches, EvalBatches
from memfit.errors import BadInput
from memfit.records.stages import Stages


class RowFeed:
    """Rows of neighbouring tokens.

    Args:
        tokens: (N,) integers to train on.
        held_out: (M,) integers to evaluate on, all of its whole rows.
        tokens_per_step: a multiple of each length.
        batch_size: samples of an evaluation batch, at most.
        stages: the lengths.
        seed: of the order.

    Raises:
        BadInput: the tokens do not fill one row.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        held_out: np.ndarray,
        *,
        tokens_per_step: int,
        batch_size: int,
        stages: Stages,
        seed: int,
    ) -> None:
        unit = math.lcm(*stages.lengths)
        if unit > stages.longest and len(tokens) <= unit:
            raise BadInput(
                f"the sequence schedule {stages} shuffles stretches of {unit:,} tokens, the "
                f"shortest that all its lengths divide, and the text has {len(tokens):,}: choose "
                f"lengths that divide {stages.longest:,}, or give more text"
            )
        self._stages = stages
        self._batches = Batches(
            tokens, samples_per_step=tokens_per_step // unit, seq_len=unit, seed=seed
        )
        evaluation = EvalBatches(held_out, batch_size=batch_size, seq_len=stages.longest)
        self.held_out: list[Callable[[], Tensor]] = [
            partial(evaluation.batch, index) for index in range(evaluation.num_batches)
        ]

    def batch(self, step: int) -> Tensor:
        """(B, T + 1) int64."""
        return self._batches.batch(step, self._stages.at(step + 1))

    def batch_size(self, step: int, batch_size: int) -> int:
        """As many samples as have the tokens of ``batch_size`` of the longest."""
        return max(1, batch_size * self._stages.longest // self._stages.at(step + 1))

    def longest(self) -> Tensor:
        """The first step's targets in rows of the longest length."""
        return self._batches.batch(0, self._stages.longest)
