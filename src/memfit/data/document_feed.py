"""One document a sample, batches of documents of similar length, as many as a step has tokens for.

Sorted by length, longest first, documents are put into batches of as many samples as keep samples
x longest within the tokens of a step.  So little is padding, and the number of samples varies.  The
order of batches, and which of equally long documents goes where, is shuffled anew for each epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from torch import Tensor

from memfit.data.documents import Documents
from memfit.data.filling import filled
from memfit.data.order import random_bits, shuffled


class DocumentFeed:
    """Padded documents.

    Args:
        documents: to train on.
        held_out: to evaluate on.
        pieces: (P, 2) int64: what is taken of each document, to train and to evaluate on, each of
            at most ``seq_len`` positions.
        tokens_per_step: samples x longest of a batch, at most; no less than ``seq_len``.
        batch_size: samples of an evaluation batch, at most.
        seq_len: the longest a piece can be.
        seed: of the order.
        padding_id: the token behind a shorter document; nothing sees it.
    """

    def __init__(
        self,
        documents: Documents,
        held_out: Documents,
        *,
        pieces: tuple[np.ndarray, np.ndarray],
        tokens_per_step: int,
        batch_size: int,
        seq_len: int,
        seed: int,
        padding_id: int,
    ) -> None:
        self._documents = documents
        self._pieces = pieces[0]
        self._lengths = self._pieces[:, 1] - self._pieces[:, 0]
        self._firsts = _firsts(np.sort(self._lengths)[::-1], tokens_per_step)
        self._tokens_per_step = tokens_per_step
        self._seq_len = seq_len
        self._seed = seed % (1 << 64)
        self._padding_id = padding_id
        self._orders = (-1, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        aside = pieces[1]
        by_length = aside[np.argsort(aside[:, 0] - aside[:, 1], kind="stable")]
        self.held_out: list[Callable[[], dict[str, Tensor]]] = [
            partial(self._filled, held_out, by_length[first : first + batch_size])
            for first in range(0, len(by_length), batch_size)
        ]

    @property
    def num_batches(self) -> int:
        """Batches of an epoch."""
        return len(self._firsts) - 1

    def batch(self, step: int) -> dict[str, Tensor]:
        """``input_ids`` and ``labels`` (B, T), ``num_targets`` (B,), int64; B and T vary."""
        return self._filled(self._documents, self._pieces[self._samples(step)])

    def batch_size(self, step: int, batch_size: int) -> int:
        """As many samples as have the tokens of ``batch_size`` of the longest."""
        longest = int(self._lengths[self._samples(step)].max())
        return max(1, batch_size * self._seq_len // longest)

    def longest(self) -> dict[str, Tensor]:
        """A step's tokens as documents of ``seq_len``, the longest ones put one after the other."""
        order = np.argsort(-self._lengths, kind="stable")
        rows, taken = [], 0
        for _ in range(self._tokens_per_step // self._seq_len):
            row, room = [], self._seq_len
            while room:
                start, stop = self._pieces[order[taken % len(order)]].tolist()
                stop = min(stop, start + room)
                row.append((start, stop))
                room -= stop - start
                taken += 1
            rows.append(np.array(row))
        return filled(
            self._documents,
            rows,
            self._seq_len,
            padding_id=self._padding_id,
            with_positions=False,
        )

    def _samples(self, step: int) -> np.ndarray:
        """Which pieces are in the batch of a step."""
        epoch, place = divmod(step, self.num_batches)
        if self._orders[0] != epoch:
            bits = random_bits(len(self._lengths), self._seed, epoch)
            self._orders = (
                epoch,
                np.lexsort((bits, -self._lengths)),
                shuffled(self.num_batches, self._seed, epoch, 1),
            )
        _, by_length, batches = self._orders
        number = int(batches[place])
        samples: np.ndarray = by_length[self._firsts[number] : self._firsts[number + 1]]
        return samples

    def _filled(self, documents: Documents, pieces: np.ndarray) -> dict[str, Tensor]:
        return filled(
            documents,
            list(pieces[:, np.newaxis]),
            int((pieces[:, 1] - pieces[:, 0]).max()),
            padding_id=self._padding_id,
            with_positions=False,
        )


def _firsts(lengths: np.ndarray, tokens_per_step: int) -> list[int]:
    """Where each batch begins among lengths that decrease, and where the last one ends."""
    firsts = [0]
    while firsts[-1] < len(lengths):
        samples = tokens_per_step // int(lengths[firsts[-1]])
        firsts.append(min(len(lengths), firsts[-1] + samples))
    return firsts
