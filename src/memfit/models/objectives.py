"""What a model is trained on: how a batch is made and what its loss is, for each objective.

The batches here are random and only the shapes matter: they stand for data when memory is
predicted.  A language model trained on text takes batches of the same form from ``memfit.data``.
Losses are ``(sum over the targets, number of targets)``; the number follows from the shapes alone,
so that nothing here depends on the values of a tensor.

Letters of shapes: B samples, T tokens, V vocabulary, M masked positions, N classes.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from memfit.job import IGNORED

TensorDict: TypeAlias = dict[str, Tensor]

MASKED_FRACTION = 0.15
"""Of the tokens, as in BERT (Devlin et al. 2018, section 3.1)."""


def token_batch(vocab_size: int, batch_size: int, seq_len: int) -> Tensor:
    """Random token ids, int64 (B, T+1): inputs are all but the last, targets all but the first."""
    return torch.randint(vocab_size, (batch_size, seq_len + 1))


def token_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Cross-entropy of logits (B, T, V), in fp32, against token ids (B, T)."""
    return _summed_cross_entropy(logits, targets), targets.numel()


def labelled_batch(vocab_size: int, batch_size: int, seq_len: int) -> TensorDict:
    """Random token ids with labels: one document a sample, without padding.

    Returns:
        ``input_ids`` and ``labels`` (B, T), ``num_targets`` (B,), all int64.
    """
    return {
        "input_ids": torch.randint(vocab_size, (batch_size, seq_len)),
        "labels": torch.randint(vocab_size, (batch_size, seq_len)),
        "num_targets": torch.full((batch_size,), seq_len),
    }


def packed_batch(vocab_size: int, batch_size: int, seq_len: int) -> TensorDict:
    """Random token ids with labels and positions: each token is a document of its own.

    Where documents begin changes no size.

    Returns:
        ``input_ids``, ``labels`` and ``position_ids`` (B, T), ``num_targets`` (B,), all int64.
    """
    return {
        "input_ids": torch.randint(vocab_size, (batch_size, seq_len)),
        "labels": torch.randint(vocab_size, (batch_size, seq_len)),
        "position_ids": torch.zeros((batch_size, seq_len), dtype=torch.int64),
        "num_targets": torch.full((batch_size,), seq_len),
    }


def labelled_loss(logits: Tensor, batch: TensorDict) -> tuple[Tensor, int]:
    """Cross-entropy of logits (B, T, V), in fp32, against the labels of the batch.

    They are shifted already.  How many are targets is read from a tensor of the host's making.
    """
    num_targets = int(batch["num_targets"].sum())
    return _summed_cross_entropy(logits, batch["labels"]), num_targets


def document_mask(position_ids: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
    """(B, 1, T, T) to be added to scores: 0 from a document's first token to the query, else -inf.

    In the dtype of the queries, and made once for all layers: of a mask of bools each layer would
    make such a tensor of its own, and keep it for backward (``convert_boolean_attn_mask`` in
    aten/src/ATen/native/transformers/attention.cpp).

    Args:
        position_ids: (B, T) int64, beginning again at 0 with each document.
        dtype: of the queries.
        window: how many tokens a query sees, itself among them; None for all of its document.
    """
    num_samples, seq_len = position_ids.shape
    place = torch.arange(seq_len, device=position_ids.device)
    if window is not None:
        position_ids = position_ids.clamp(max=window - 1)
    first = place - position_ids  # (B, T): what a query sees begins there
    hidden = place < first.unsqueeze(-1)  # (B, T, T), keys last
    hidden.logical_or_(place > place.unsqueeze(-1))
    mask = torch.zeros((num_samples, 1, seq_len, seq_len), dtype=dtype, device=position_ids.device)
    return mask.masked_fill_(hidden.unsqueeze(1), -torch.inf)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of queries that a linear layer makes of ``x``: autocast's, where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def num_masked(seq_len: int) -> int:
    """How many positions of a sequence are masked: a fixed number, at least one."""
    return max(1, round(MASKED_FRACTION * seq_len))


def masked_batch(vocab_size: int, batch_size: int, seq_len: int) -> TensorDict:
    """Random token ids with some of each sequence hidden behind the vocabulary's last id.

    Returns:
        ``input_ids`` (B, T) and ``labels`` (B, T), int64; labels are IGNORED where nothing is
        hidden.  There is no attention mask: the sequences are full, as in pretraining.
    """
    tokens = torch.randint(vocab_size - 1, (batch_size, seq_len))
    scores = torch.rand(batch_size, seq_len)
    positions = scores.topk(num_masked(seq_len), dim=1).indices  # (B, M)
    labels = torch.full_like(tokens, IGNORED).scatter(1, positions, tokens.gather(1, positions))
    return {"input_ids": tokens.scatter(1, positions, vocab_size - 1), "labels": labels}


def masked_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """Cross-entropy of logits (B, T, V), in fp32, at the positions :func:`masked_batch` hid."""
    num_samples, seq_len = labels.shape
    return _summed_cross_entropy(logits, labels), num_samples * num_masked(seq_len)


def image_batch(
    image_shape: tuple[int, int, int], num_classes: int, batch_size: int, seq_len: int
) -> TensorDict:
    """Random ``pixel_values``, fp32 (B, channels, height, width), and ``labels``, int64 (B,).

    ``seq_len`` has no meaning for images and is ignored.
    """
    return {
        "pixel_values": torch.randn(batch_size, *image_shape),
        "labels": torch.randint(num_classes, (batch_size,)),
    }


def image_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """Cross-entropy of logits (B, N) against classes (B,)."""
    return F.cross_entropy(logits, labels, reduction="sum"), labels.numel()


def _summed_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.float().flatten(0, 1)  # (B * T, V)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
