"""Batches have the form of data, and losses are sums with the number of what was summed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from memfit.models.objectives import (
    IGNORED,
    image_batch,
    image_loss,
    masked_batch,
    masked_loss,
    num_masked,
    token_batch,
    token_loss,
)


@given(seq_len=st.integers(1, 60), batch_size=st.integers(1, 4))
def test_each_sequence_hides_the_same_number_of_tokens_and_labels_them_alone(
    seq_len: int, batch_size: int
) -> None:
    batch = masked_batch(30, batch_size, seq_len)
    hidden = batch["input_ids"] == 29

    assert batch["input_ids"].shape == batch["labels"].shape == (batch_size, seq_len)
    assert hidden.sum(dim=1).tolist() == [num_masked(seq_len)] * batch_size
    assert torch.equal(hidden, batch["labels"] != IGNORED)
    assert batch["labels"][hidden].max() < 29 and batch["labels"][hidden].min() >= 0


@pytest.mark.parametrize(("seq_len", "expected"), [(1, 1), (20, 3), (128, 19), (512, 77)])
def test_fifteen_percent_of_a_sequence_are_hidden_and_at_least_one(
    seq_len: int, expected: int
) -> None:
    assert num_masked(seq_len) == expected


def test_the_masked_loss_counts_hidden_positions_only() -> None:
    labels = masked_batch(30, 2, 20)["labels"]
    logits = torch.randn(2, 20, 30)

    loss_sum, num_targets = masked_loss(logits, labels)

    hidden = labels != IGNORED
    assert num_targets == hidden.sum() == 6
    expected = F.cross_entropy(logits[hidden], labels[hidden], reduction="sum")
    torch.testing.assert_close(loss_sum, expected)


def test_token_losses_are_computed_in_fp32_whatever_the_logits_are() -> None:
    logits, targets = torch.randn(2, 5, 30).bfloat16(), torch.randint(30, (2, 5))

    loss_sum, num_targets = token_loss(logits, targets)

    assert loss_sum.dtype == torch.float32
    assert num_targets == 10
    expected = -logits.float().log_softmax(-1).gather(-1, targets[..., None]).sum()
    torch.testing.assert_close(loss_sum, expected)


def test_a_token_batch_has_one_token_more_than_the_sequence() -> None:
    batch = token_batch(7, 3, 100)

    assert batch.shape == (3, 101) and batch.dtype == torch.int64
    assert set(batch.flatten().tolist()) == set(range(7))


def test_an_image_batch_ignores_the_sequence_length() -> None:
    batch = image_batch((3, 8, 4), 5, 64, 1234)

    assert batch["pixel_values"].shape == (64, 3, 8, 4)
    assert set(batch["labels"].tolist()) == set(range(5))
    assert image_loss(torch.zeros(64, 5), batch["labels"])[1] == 64


def test_no_batch_and_no_loss_depends_on_the_values_of_a_tensor() -> None:
    # Fake tensors have none, and say so when asked.
    with FakeTensorMode():
        tokens = token_batch(30, 2, 20)
        masked = masked_batch(30, 2, 20)
        images = image_batch((3, 8, 8), 5, 2, 1)
        logits = torch.randn(2, 20, 30, requires_grad=True)
        losses = [
            token_loss(logits, tokens[:, 1:]),
            masked_loss(logits, masked["labels"]),
            image_loss(torch.randn(2, 5, requires_grad=True), images["labels"]),
        ]
        for loss_sum, _ in losses:
            loss_sum.backward()

    assert [num_targets for _, num_targets in losses] == [40, 6, 2]
