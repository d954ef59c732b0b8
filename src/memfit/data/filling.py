"""From pieces of documents to the tensors of a batch.

Each tensor is one allocation on the host, as memory is predicted with.  Letters of shapes: B
samples, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from memfit.data.documents import Documents
from memfit.job import IGNORED


def filled(
    documents: Documents,
    rows: Sequence[np.ndarray],
    seq_len: int,
    *,
    padding_id: int,
    with_positions: bool,
) -> dict[str, Tensor]:
    """A batch of one sample for each of ``rows``, its pieces side by side.

    Args:
        documents: what the pieces are of.
        rows: (P, 2) int64 [start, stop) each, of at most ``seq_len`` positions together.
        seq_len: T; what is left of a row is padding, which is no target.
        padding_id: the token there.
        with_positions: whether rows hold several documents, so that positions must be said.

    Returns:
        ``input_ids``, ``labels`` and perhaps ``position_ids`` (B, T), ``num_targets`` (B,), int64.
        Padding has positions of its own, as a document would.
    """
    shape = (len(rows), seq_len)
    batch = {
        name: torch.empty(shape, dtype=torch.int64)
        for name in ("input_ids", "labels", *(("position_ids",) if with_positions else ()))
    }
    batch["num_targets"] = torch.empty(len(rows), dtype=torch.int64)
    values = {name: tensor.numpy() for name, tensor in batch.items()}  # the same memory
    values["input_ids"].fill(padding_id)
    values["labels"].fill(IGNORED)
    tokens, targets = documents.tokens, documents.targets
    for sample, pieces in enumerate(rows):
        place = num_targets = 0
        for start, stop in pieces.tolist():
            here = slice(place, place + stop - start)
            values["input_ids"][sample, here] = tokens[start:stop]
            labels = values["labels"][sample, here]
            labels[:] = tokens[start + 1 : stop + 1]
            if targets is not None:
                labels[~targets[start + 1 : stop + 1]] = IGNORED
            num_targets += int((labels != IGNORED).sum())
            if with_positions:
                values["position_ids"][sample, here] = np.arange(stop - start)
            place += stop - start
        if with_positions:
            values["position_ids"][sample, place:] = np.arange(seq_len - place)
        values["num_targets"][sample] = num_targets
    return batch
