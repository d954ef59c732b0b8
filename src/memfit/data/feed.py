"""What a run asks of its data: the batch of a step, and the batches it is evaluated on.

A batch is a pure function of the seed and the step, and every tensor of it has the sample in dim 0.
It is token ids (B, T + 1) for rows, and a dict with labels for documents (``Job.sequences``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from memfit.data.document_feed import DocumentFeed
from memfit.data.documents import Documents, truncated
from memfit.data.packed_feed import PackedFeed
from memfit.data.row_feed import RowFeed
from memfit.data.text import TextData
from memfit.errors import BadInput
from memfit.records.recipe import SEQUENCES, Recipe
from memfit.records.stages import Stage, Stages

TRUNCATIONS = ("head", "tail")
"""Which end of what is too long is kept."""

EVAL_SAMPLES = 64
"""The held-out part behind an evaluation, in samples of the longest length; always the same."""

_ONE_HELD_OUT_OF = 100
"""As where conversations are encoded (``memfit.data.conversations``)."""


class Feed(Protocol):
    """The batches of a run."""

    @property
    def held_out(self) -> Sequence[Callable[[], Any]]:
        """Evaluation batches, to be made one at a time, of at most ``recipe.batch_size`` samples
        each."""

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
        data: loaded text, or chat.
        recipe: says the samples of a step, of the longest length, and the stages.
        seq_len: T, the longest length in tokens.
        seed: of the order; any integer.
        sequences: ``rows``, ``packed`` or ``documents``.
        truncate: which end is kept of a conversation, or of a document that is a sample of its
            own, when it is longer than T: ``head`` or ``tail``.

    Raises:
        BadInput: there is too little text, the schedule does not divide the tokens of a step, or
            the data does not come in such sequences.
    """
    if sequences not in SEQUENCES:
        raise BadInput(f"sequences are {sequences!r}: choose one of {', '.join(SEQUENCES)}")
    if truncate not in TRUNCATIONS:
        raise BadInput(f"truncate is {truncate!r}: choose one of {', '.join(TRUNCATIONS)}")
    stages = _stages(recipe, seq_len, sequences)
    tokens_per_step = recipe.samples_per_step * seq_len
    stages.check_divides(tokens_per_step)
    if sequences == "rows":
        if data.is_chat:
            raise BadInput(
                "the data is chat, and rows of neighbouring tokens would tear conversations "
                "apart: choose sequences packed or documents"
            )
        return RowFeed(
            data.train_tokens,
            data.eval_tokens[: EVAL_SAMPLES * seq_len + 1],
            tokens_per_step=tokens_per_step,
            batch_size=recipe.batch_size,
            stages=stages,
            seed=seed,
        )
    longest = seq_len if is_cut(data, sequences) else None
    (train, to_train_on), (held_out, to_evaluate_on) = _parts(data, longest, truncate, seq_len)
    pieces = to_train_on, _first(to_evaluate_on, seq_len)
    if sequences == "packed":
        for stage in stages.stages if data.is_chat else ():
            fitting = train.with_targets(truncated(to_train_on, stage.seq_len, truncate))
            _check_some(train, fitting, "to train on", data, stage.seq_len)
        return PackedFeed(
            train,
            held_out,
            pieces=pieces,
            tokens_per_step=tokens_per_step,
            batch_size=recipe.batch_size,
            stages=stages,
            seed=seed,
            padding_id=data.end_of_text_id,
            truncate=truncate if data.is_chat else None,
        )
    return DocumentFeed(
        train,
        held_out,
        pieces=pieces,
        tokens_per_step=tokens_per_step,
        batch_size=recipe.batch_size,
        seq_len=seq_len,
        seed=seed,
        padding_id=data.end_of_text_id,
    )


def is_cut(data: TextData, sequences: str) -> bool:
    """Whether what is longer than a sample loses one of its ends.

    A text goes on in the next row; a conversation without its beginning, or a sample of its own,
    does not.
    """
    return sequences == "documents" or data.is_chat


def _stages(recipe: Recipe, seq_len: int, sequences: str) -> Stages:
    stages = recipe.stages
    if stages is None:
        return Stages((Stage(seq_len, None),))
    if sequences == "documents":
        raise BadInput(
            f"the sequence schedule {stages} does not go with sequences documents, which are as "
            "long as they are: choose rows or packed"
        )
    stages.check_longest(seq_len)
    return stages


def _parts(
    data: TextData, longest: int | None, truncate: str, seq_len: int
) -> tuple[tuple[Documents, np.ndarray], tuple[Documents, np.ndarray]]:
    """What is trained and what is evaluated on, each with its pieces.

    Conversations are held out by a hash, before it is known how much of them is kept.  Where
    nothing to learn is left of those, the last ones of the others are held out instead.

    Raises:
        BadInput: nothing is left of the one or the other.
    """
    train, held_out = data.train_documents, data.eval_documents
    mine, theirs = train.pieces(longest, truncate), held_out.pieces(longest, truncate)
    if data.is_chat and len(mine) > 1 and not len(theirs):
        num = max(1, len(mine) // _ONE_HELD_OUT_OF)
        held_out, theirs, mine = train, mine[-num:], mine[:-num]
    _check_some(train, mine, "to train on", data, seq_len)
    _check_some(held_out, theirs, "held out", data, seq_len)
    return (train, mine), (held_out, theirs)


def _check_some(
    documents: Documents, pieces: np.ndarray, which: str, data: TextData, seq_len: int
) -> None:
    if len(pieces):
        return
    num = len(documents.starts) - 1
    if not data.is_chat:
        raise BadInput(f"none of {num:,} documents {which} has two tokens: give more text")
    only = ", and only one of those to train on has" if which == "held out" else ""
    raise BadInput(
        f"none of {num:,} conversations {which} has a word of the assistant within "
        f"{seq_len:,} tokens{only}, so there is nothing to learn: make the sequence longer, "
        'keep the "tail", or give conversations in which the assistant answers'
    )


def _first(pieces: np.ndarray, seq_len: int) -> np.ndarray:
    """The first pieces, of at most ``EVAL_SAMPLES`` sequences together; the last one cut there."""
    lengths = pieces[:, 1] - pieces[:, 0]
    room = EVAL_SAMPLES * seq_len - (np.cumsum(lengths) - lengths)
    kept: np.ndarray = np.stack(
        [pieces[:, 0], np.minimum(pieces[:, 1], pieces[:, 0] + room)], axis=1
    )[room > 0]
    return kept
