"""Whole documents packed into rows, in an order that is shuffled anew for each epoch.

Rows of one length are packed once and shuffled.  Where lengths come in stages, each stage has rows
of its own.  A stage ends in the middle of an epoch: what the epoch has left, rows that are not
taken yet, is put together again and packed into rows of the next length.  So every target comes
once an epoch, whatever the stages, and the rows of a step follow from the seed and the step alone.
Conversations are not cut but truncated to the length of the stage: an answer needs its question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from memfit.data.documents import Documents, truncated
from memfit.data.filling import filled
from memfit.data.order import shuffled
from memfit.data.packing import PackedRows, joined, pack
from memfit.records.stages import Stages


@dataclass(slots=True)
class _Stretch:
    """The rows of one stage: first the rest of the epoch that it begins in, then whole epochs."""

    number: int
    first_step: int
    seq_len: int
    samples: int
    rest: PackedRows | None
    whole: PackedRows
    epoch: int
    """The one that the rest is of; of the first that is whole, one more."""

    seed: int

    def rows(self, index: int) -> tuple[PackedRows, int, int, tuple[int, ...]]:
        """``(rows, place in their order, epoch, seeds of the order)`` of row ``index``."""
        num_rest = len(self.rest) if self.rest is not None else 0
        if self.rest is not None and index < num_rest:
            return self.rest, index, self.epoch, (self.seed, self.epoch, self.number)
        epochs, place = divmod(index - num_rest, len(self.whole))
        epoch = self.epoch + 1 + epochs
        return self.whole, place, epoch, (self.seed, epoch)


class PackedFeed:
    """Rows of whole documents.

    Args:
        documents: to train on.
        held_out: to evaluate on.
        pieces: (P, 2) int64 of ``documents`` that are to be packed, and of ``held_out``.
        tokens_per_step: a multiple of each length.
        batch_size: samples of an evaluation batch, at most.
        stages: the lengths.
        seed: of the order.
        padding_id: the token in what is left of a row.
        truncate: the end that is kept of a piece longer than a row, ``head`` or ``tail``; None to
            cut it into pieces that are all kept.
    """

    def __init__(
        self,
        documents: Documents,
        held_out: Documents,
        *,
        pieces: tuple[np.ndarray, np.ndarray],
        tokens_per_step: int,
        batch_size: int,
        stages: Stages,
        seed: int,
        padding_id: int,
        truncate: str | None = None,
    ) -> None:
        self._documents = documents
        self._padding_id = padding_id
        self._longest = stages.longest
        train = _Packing(documents, pieces[0], truncate)
        self._stretches = _stretches(train, tokens_per_step, stages, seed % (1 << 64))
        self._order: tuple[tuple[int, ...], np.ndarray] = ((), np.empty(0, dtype=np.int64))
        rows = _Packing(held_out, pieces[1], truncate).rows(stages.longest)
        self.held_out: list[Callable[[], dict[str, Tensor]]] = [
            partial(
                self._filled,
                held_out,
                [rows.row(row) for row in range(first, min(first + batch_size, len(rows)))],
                stages.longest,
            )
            for first in range(0, len(rows), batch_size)
        ]

    def batch(self, step: int) -> dict[str, Tensor]:
        """``input_ids``, ``labels``, ``position_ids`` (B, T) and ``num_targets`` (B,), int64."""
        stretch = self._stretch(step)
        first = (step - stretch.first_step) * stretch.samples
        rows = [self._row(stretch, first + sample) for sample in range(stretch.samples)]
        return self._filled(self._documents, rows, stretch.seq_len)

    def batch_size(self, step: int, batch_size: int) -> int:
        """As many samples as have the tokens of ``batch_size`` of the longest."""
        return max(1, batch_size * self._longest // self._stretch(step).seq_len)

    def longest(self) -> dict[str, Tensor]:
        """The first batch of the longest length."""
        return self.batch(self._stretches[-1].first_step)

    def fullness(self) -> float:
        """Part of the positions of an epoch of the longest rows that a document fills."""
        rows = self._stretches[-1].whole
        return rows.num_positions / (len(rows) * self._longest)

    def _stretch(self, step: int) -> _Stretch:
        return [stretch for stretch in self._stretches if stretch.first_step <= step][-1]

    def _row(self, stretch: _Stretch, index: int) -> np.ndarray:
        rows, place, _, seeds = stretch.rows(index)
        if self._order[0] != seeds:
            self._order = (seeds, shuffled(len(rows), *seeds))
        return rows.row(int(self._order[1][place]))

    def _filled(
        self, documents: Documents, rows: list[np.ndarray], seq_len: int
    ) -> dict[str, Tensor]:
        return filled(documents, rows, seq_len, padding_id=self._padding_id, with_positions=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Packing:
    """Pieces, and how they get into rows shorter than they are."""

    documents: Documents
    pieces: np.ndarray
    """(P, 2) int64, as long as they come."""

    truncate: str | None

    def rows(self, row_len: int, pieces: np.ndarray | None = None) -> PackedRows:
        """Rows of ``pieces``, of all when left out."""
        pieces = self.pieces if pieces is None else pieces
        if self.truncate is not None:
            # What has no target within this length is left for longer rows.
            pieces = self.documents.with_targets(truncated(pieces, row_len, self.truncate))
        return pack(pieces, row_len)

    def restored(self, parts: np.ndarray) -> np.ndarray:
        """The pieces that ``parts``, out of rows of some length, were; as far as they are there."""
        if self.truncate is None:
            return joined(parts)
        end = 0 if self.truncate == "head" else 1
        whole: np.ndarray = self.pieces[np.isin(self.pieces[:, end], parts[:, end])]
        return whole


def _stretches(
    packing: _Packing, tokens_per_step: int, stages: Stages, seed: int
) -> list[_Stretch]:
    found: list[_Stretch] = []
    for number, stage in enumerate(stages.stages):
        rest, epoch, first_step = None, -1, 0
        if found:
            before = found[-1]
            first_step = stages.stages[number - 1].last_step or 0
            unused, epoch = _left_over(before, first_step - before.first_step)
            rest = packing.rows(stage.seq_len, packing.restored(unused)) if len(unused) else None
        found.append(
            _Stretch(
                number=number,
                first_step=first_step,
                seq_len=stage.seq_len,
                samples=tokens_per_step // stage.seq_len,
                rest=rest,
                whole=packing.rows(stage.seq_len),
                epoch=epoch,
                seed=seed,
            )
        )
    return found


def _left_over(stretch: _Stretch, num_steps: int) -> tuple[np.ndarray, int]:
    """Pieces in the rows that ``num_steps`` of a stage leave of an epoch; and that epoch."""
    rows, place, epoch, seeds = stretch.rows(num_steps * stretch.samples)
    if place == 0:  # between two epochs
        return np.empty((0, 2), dtype=np.int64), epoch - 1
    unused = shuffled(len(rows), *seeds)[place:]
    return np.concatenate([rows.row(int(row)) for row in unused]), epoch
