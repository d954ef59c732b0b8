"""What a run asks of its data: the batch of a step, and the batches it is evaluated on.

A batch is a pure function of the seed and the step, and every tensor of it has the sample in dim 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from memfit.data.batches import Batches, EvalBatches
from memfit.data.text import TextData
from memfit.errors import BadInput
from memfit.records.recipe import Recipe

SEQUENCES = ("rows", "packed", "documents")

EVAL_SAMPLES = 64
"""Samples of the held-out part behind an evaluation, the same ones each time."""


class Feed(Protocol):
    """The batches of a run."""

    held_out: Sequence[Callable[[], Any]]
    """Evaluation batches, to be made one at a time, each of at most ``recipe.batch_size`` samples."""

    def batch(self, step: int) -> Any:
        """The whole batch of a step, counted from 0."""

    def batch_size(self, step: int, batch_size: int) -> int:
        """Samples of a micro-batch in that step, where ``batch_size`` of the longest length fit."""

    def longest(self) -> Any:
        """A batch that takes no less memory than any that comes."""


def open_feed(
    data: TextData,
    *,
    recipe: Recipe,
    seq_len: int,
    seed: int,
    sequences: str = "rows",
    truncate: str = "head",
) -> Feed:
    """The feed of a run.

    Args:
        data: loaded text.
        recipe: ``samples_per_step`` and the stages.
        seq_len: T, the longest length.
        seed: of the order.
        sequences: one of ``SEQUENCES``.
        truncate: which end of a document longer than T is kept, ``head`` or ``tail``.

    Raises:
        BadInput: there is too little text, or the schedule does not divide the tokens of a step.
    """
    return RowFeed(data, recipe=recipe, seq_len=seq_len, seed=seed)


class RowFeed:
    """Rows of the text as it runs, whatever document they are of."""

    def __init__(self, data: TextData, *, recipe: Recipe, seq_len: int, seed: int) -> None:
        self._batches = Batches(
            data.train_tokens,
            samples_per_step=recipe.samples_per_step,
            seq_len=seq_len,
            seed=seed,
        )
        held_out = EvalBatches(
            data.eval_tokens[: EVAL_SAMPLES * seq_len + 1],
            batch_size=recipe.batch_size,
            seq_len=seq_len,
        )
        self.held_out = [partial(held_out.batch, index) for index in range(held_out.num_batches)]

    def batch(self, step: int) -> Any:
        return self._batches.batch(step)

    def batch_size(self, step: int, batch_size: int) -> int:
        return batch_size

    def longest(self) -> Any:
        return self._batches.batch(0)
