"""A step over micro-batches is the step over one large batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from memfit.errors import BadInput
from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.accumulation import micro_batches, num_samples
from memfit.techniques.apply import apply
from memfit.techniques.step import StepOutcome

T, V = 6, 5
IGNORED = -100


class Reader(nn.Module):
    """Token ids (B, T) to logits (B, T, V), in fp64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(V, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, V)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embedding(tokens))))


def ragged_batch(lengths: list[int]) -> dict[str, Tensor]:
    """A sample for each length, with targets in that many of its T places."""
    tokens = torch.randint(V, (len(lengths), T), generator=torch.Generator().manual_seed(1))
    labels = (tokens + 1) % V
    for sample, length in enumerate(lengths):
        labels[sample, length:] = IGNORED
    return {"tokens": tokens, "labels": labels}


def summed(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(sum of losses, number of targets)."""
    logits, labels = model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten()
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return loss, (labels != IGNORED).sum()


def mean_over_samples(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The mean of what is a loss per sample."""
    return model(batch["tokens"]).square().mean()


def step_and_weights(
    loss: Callable[[nn.Module, Any], Any], batch: Any, recipe: Recipe
) -> tuple[StepOutcome, list[Tensor]]:
    job = Job(model=Reader, batch=lambda batch_size, seq_len: None, loss=loss)
    model, _, step = apply(job, recipe)
    outcome = step(batch)
    return outcome, [parameter.detach() for parameter in model.parameters()]


RECIPES = [
    # The first step of plain SGD moves each weight by its gradient.
    Recipe(optimizer="sgd", learning_rate=1.0, weight_decay=0.0, clip_norm=None),
    Recipe(optimizer="sgd", learning_rate=1.0, clip_norm=0.01),
    Recipe(optimizer="adamw", learning_rate=0.1),
]
SPLITS = (
    st.lists(st.integers(0, T), min_size=1, max_size=9)
    .filter(any)
    .flatmap(lambda lengths: st.tuples(st.just(lengths), st.integers(1, len(lengths))))
)


@pytest.mark.parametrize("recipe", RECIPES, ids=["gradient", "clipped", "adamw"])
@pytest.mark.parametrize("loss", [summed, mean_over_samples])
@settings(max_examples=30)
@given(split=SPLITS)
@example(split=([6, 1, 3, 0, 2, 6, 5], 3))  # the last micro-batch is short
@example(split=([0, 0, 6, 1], 2))  # a micro-batch without any target
def test_micro_batches_give_the_step_of_one_large_batch(recipe, loss, split):
    lengths, batch_size = split
    batch = ragged_batch(lengths)

    whole, expected = step_and_weights(loss, batch, recipe.but(batch_size=len(lengths)))
    outcome, weights = step_and_weights(loss, batch, recipe.but(batch_size=batch_size))

    assert outcome.num_targets == whole.num_targets
    assert outcome.loss == pytest.approx(whole.loss, rel=1e-10)
    if recipe.clip_norm is not None:
        assert outcome.grad_norm == pytest.approx(whole.grad_norm, rel=1e-10)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)


@settings(max_examples=30)
@given(split=SPLITS)
def test_a_large_batch_is_its_mean_over_all_targets(split):
    lengths, _ = split
    batch = ragged_batch(lengths)
    model = Reader()
    loss, num_targets = summed(model, batch)
    mean = loss / num_targets
    expected = [p - g for p, g in zip(model.parameters(), grads(mean, model), strict=True)]

    outcome, weights = step_and_weights(summed, batch, RECIPES[0].but(batch_size=len(lengths)))

    assert outcome == StepOutcome(
        pytest.approx(mean.item(), rel=1e-12), sum(lengths), None, len(lengths)
    )
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)


def grads(loss: Tensor, model: nn.Module) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, list(model.parameters()))


def test_tokens_weigh_alike_however_many_share_their_micro_batch():
    # One weight w; the loss of each target is its label times w, so gradients are means of labels.
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def loss(model: Scale, batch: Tensor) -> tuple[Tensor, Tensor]:
        return (model.weight * batch.nan_to_num()).sum(), (~batch.isnan()).sum()

    nan = float("nan")
    batch = torch.tensor([[1.0, 1.0, 1.0], [5.0, nan, nan]], dtype=torch.float64)
    job = Job(model=Scale, batch=lambda batch_size, seq_len: batch, loss=loss)
    model, _, step = apply(job, RECIPES[0].but(batch_size=1))

    outcome = step(batch)

    assert outcome == StepOutcome(2.0, 4, None, 1)  # the mean of the two means is 3
    assert model.weight.item() == 1.0 - 2.0


# Slicing


def test_the_last_micro_batch_may_be_short():
    batch = torch.arange(7)

    found = [(micro.tolist(), count) for micro, count in micro_batches(batch, 3)]

    assert found == [([0, 1, 2], 3), ([3, 4, 5], 3), ([6], 1)]


def test_a_micro_batch_takes_no_memory():
    batch = {"x": torch.zeros(4, 3), "y": [torch.zeros(4)]}

    for micro, _ in micro_batches(batch, 2):
        for part, whole in ((micro["x"], batch["x"]), (micro["y"][0], batch["y"][0])):
            assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_a_batch_that_goes_through_at_once_is_passed_as_it_is():
    batch = (torch.zeros(2, 3), "anything")

    [(micro, count)] = micro_batches(batch, 2)

    assert micro is batch
    assert count == 2


def test_what_is_no_sample_goes_into_every_micro_batch():
    batch = {"x": torch.arange(2), "temperature": torch.tensor(0.5), "name": "a"}

    first, second = (micro for micro, _ in micro_batches(batch, 1))

    assert (first["x"].tolist(), second["x"].tolist()) == ([0], [1])
    assert first["temperature"] is second["temperature"] is batch["temperature"]
    assert first["name"] == second["name"] == "a"


def test_tensors_that_disagree_in_their_number_of_samples_are_refused():
    with pytest.raises(
        BadInput, match=r"one size in dim 0, the sample; the sizes found are \[2, 3\]"
    ):
        num_samples({"x": torch.zeros(3, 2), "y": torch.zeros(2, 3)})


@pytest.mark.parametrize("batch", [None, "text", {"x": torch.tensor(1.0)}])
def test_a_batch_without_samples_is_refused(batch):
    with pytest.raises(BadInput, match=r"the sizes found are \[\]"):
        num_samples(batch)
