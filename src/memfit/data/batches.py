"""Batches of token ids for a causal language model: a pure function of the step number.

Legend: N tokens, B samples, T the sequence length.  Row r is the T + 1 tokens from r * T on:
neighbouring rows share one token, so that every token but the first is a target once an epoch
(up to T at the end, which fill no row).

A batch is one allocation of B * (T + 1) * 8 bytes and nothing else, as ``torch.randint`` makes
it: memory predicted with random ids is the memory of real ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from memfit.errors import BadInput


class Batches:
    """Rows in an order that is shuffled anew for each epoch.

    A batch depends on the seed and its step alone: resuming needs only the step number, and how
    a step is split into micro-batches changes nothing.

    Args:
        tokens: (N,) integers, below 2**31.
        samples_per_step: B, all micro-batches together.
        seq_len: T, in tokens.
        seed: any integer; another one gives another order.

    Raises:
        BadInput: the tokens do not fill one row.
    """

    def __init__(
        self, tokens: np.ndarray, *, samples_per_step: int, seq_len: int, seed: int
    ) -> None:
        self.num_rows = _num_rows(tokens, seq_len)
        self._tokens = tokens
        self._samples_per_step = samples_per_step
        self._seq_len = seq_len
        self._seed = seed % (1 << 64)
        self._shuffled_epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, of the first row of this step's batch."""
        return step * self._samples_per_step // self.num_rows

    def batch(self, step: int, seq_len: int | None = None) -> Tensor:
        """(B, T + 1) int64 ids of a step, counted from 0.  Epochs follow on without a gap.

        A shorter ``seq_len``, which divides T, cuts each row into several: the same targets.
        """
        first = step * self._samples_per_step
        rows = [self._row(index) for index in range(first, first + self._samples_per_step)]
        length = self._seq_len if seq_len is None else seq_len
        parts = self._seq_len // length
        return _gather(
            self._tokens, [row * parts + part for row in rows for part in range(parts)], length
        )

    def _row(self, index: int) -> int:
        epoch, place = divmod(index, self.num_rows)
        if epoch != self._shuffled_epoch:
            # Raw bits, because NumPy promises never to change them; `permutation` may change.
            bits = np.random.PCG64([self._seed, epoch]).random_raw(self.num_rows)
            self._order = np.argsort(bits, kind="stable")
            self._shuffled_epoch = epoch
        return int(self._order[place])


class EvalBatches:
    """All whole rows once, in order; the last batch may have fewer samples, never more.

    They are asked for by index, so that a caller need not hold one batch while making the next.

    Args:
        tokens: (N,) integers, below 2**31.
        batch_size: B, at most.
        seq_len: T, in tokens.

    Raises:
        BadInput: the tokens do not fill one row.
    """

    def __init__(self, tokens: np.ndarray, *, batch_size: int, seq_len: int) -> None:
        self.num_rows = _num_rows(tokens, seq_len)
        self.num_batches = -(-self.num_rows // batch_size)
        self._tokens = tokens
        self._batch_size = batch_size
        self._seq_len = seq_len

    def batch(self, index: int) -> Tensor:
        """(B or fewer, T + 1) int64 ids of batch 0 <= index < num_batches."""
        first = index * self._batch_size
        last = min(first + self._batch_size, self.num_rows)
        return _gather(self._tokens, range(first, last), self._seq_len)


def _num_rows(tokens: np.ndarray, seq_len: int) -> int:
    num_rows = (len(tokens) - 1) // seq_len
    if num_rows < 1:
        raise BadInput(
            f"sequences of {seq_len:,} tokens need {seq_len + 1:,} tokens and there are "
            f"{len(tokens):,}: write --seq-len {max(1, len(tokens) - 1)} or less, or give more text"
        )
    return num_rows


def _gather(tokens: np.ndarray, rows: Iterable[int], seq_len: int) -> Tensor:
    rows = list(rows)
    batch = torch.empty((len(rows), seq_len + 1), dtype=torch.int64)  # (B, T + 1)
    values = batch.numpy()  # the same memory
    for sample, row in enumerate(rows):
        values[sample] = tokens[row * seq_len : (row + 1) * seq_len + 1]
    return batch
