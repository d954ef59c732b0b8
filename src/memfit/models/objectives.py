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

TensorDict: TypeAlias = dict[str, Tensor]

IGNORED = -100
"""The label of a position that is no target: the default ``ignore_index`` of cross-entropy."""

MASKED_FRACTION = 0.15
"""Of the tokens, as in BERT (Devlin et al. 2018, section 3.1)."""


def token_batch(vocab_size: int, batch_size: int, seq_len: int) -> Tensor:
    """Random token ids, int64 (B, T+1): inputs are all but the last, targets all but the first."""
    return torch.randint(vocab_size, (batch_size, seq_len + 1))


def token_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, int]:
    """Cross-entropy of logits (B, T, V), in fp32, against token ids (B, T)."""
    return _summed_cross_entropy(logits, targets), targets.numel()


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
