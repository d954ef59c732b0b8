"""What a step leaves behind where it cannot be taken, and what a caller's own loop relies on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memfit.errors import BadInput
from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.apply import Applied, apply

IN_BACKWARD = Recipe(batch_size=4, optimizer_in_backward=True, clip_norm=None)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + F.dropout(block(x), 0.3, self.training)
        return self.head(self.norm(x.transpose(1, 2)).transpose(1, 2))


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    logits, labels = model(batch["tokens"]).flatten(0, 1), batch["labels"].flatten()
    return F.cross_entropy(logits, labels, reduction="sum"), (labels != -100).sum()


def batch_of(num_samples: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(11, (num_samples, 3), generator=generator)
        for name in ("tokens", "labels")
    }


def built(recipe: Recipe, loss: Any = loss_of, model: Callable[[], nn.Module] = Net) -> Applied:
    torch.manual_seed(0)
    return apply(Job(model=model, batch=lambda size, seq_len: batch_of(size), loss=loss), recipe)


def weights(applied: Applied) -> list[Tensor]:
    return [tensor.clone() for tensor in applied.model.state_dict().values()]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("fails_at", [1, 2])
def test_after_an_error_of_the_callers_own_the_step_is_as_if_it_had_not_begun(precision, fails_at):
    calls = [0]

    def loss(model: nn.Module, batch: Any) -> Any:
        found = loss_of(model, batch)
        calls[0] += 1
        if calls[0] == fails_at:
            raise ValueError("a label is out of range")
        return found

    recipe = Recipe(batch_size=2, precision=precision)
    struck = built(recipe, loss)
    with pytest.raises(ValueError, match="out of range"):
        struck.step(batch_of(4, 1))
    struck.step(batch_of(4, 2))
    undisturbed = built(recipe)
    undisturbed.step(batch_of(4, 2))

    assert all(map(torch.equal, weights(struck), weights(undisturbed)))


def test_a_batch_without_a_target_changes_nothing():
    for recipe in (Recipe(batch_size=4), IN_BACKWARD):
        applied = built(recipe)
        before = [p.detach().clone() for p in applied.model.parameters()]
        batch = batch_of(4) | {"labels": torch.full((4, 3), -100)}

        with pytest.raises(BadInput, match="every label is masked"):
            applied.step(batch)

        assert all(map(torch.equal, applied.model.parameters(), before))
        assert all(p.grad is None for p in applied.model.parameters())


class _RunsOutInEvaluation:
    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        if not model.training and self.times:
            self.times -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        return loss_of(model, batch)


@pytest.mark.parametrize("recipe", [Recipe(batch_size=64), IN_BACKWARD.but(batch_size=64)])
def test_an_evaluation_that_runs_out_does_not_change_how_a_run_trains(recipe):
    applied = built(recipe, _RunsOutInEvaluation(times=1))

    outcome = applied.step.evaluate(batch_of(3))

    assert "in an evaluation, which goes on with 2" in outcome.notes[0]
    assert outcome.num_targets == 9
    assert applied.step.micro_batch(64) == 64
    assert applied.step(batch_of(64)).batch_size == 64


def test_with_the_optimizer_in_backward_thrash_halves_nothing():
    applied = built(IN_BACKWARD)

    assert not applied.step.shrink()
    applied.step(batch_of(4))

    steps = {int(state["step"]) for state in applied.optimizer.state.values()}
    assert steps == {1}


def test_one_sample_is_not_halved():
    applied = built(Recipe(batch_size=2))

    assert applied.step.shrink()
    assert not applied.step.shrink()
    assert applied.step.num_halvings == 1


@pytest.mark.parametrize(
    ("saved", "halvings", "resumed", "trains"),
    [(8, 1, 8, 4), (8, 1, 4, 4), (8, 1, 16, 4), (8, 2, 3, 2), (8, 0, 16, 16)],
)
def test_a_resumed_run_trains_with_what_fitted_before(saved, halvings, resumed, trains):
    before = built(Recipe(batch_size=saved)).step
    for _ in range(halvings):
        before.shrink()
    after = built(Recipe(batch_size=resumed)).step
    after.load_state(before.state())

    assert after.micro_batch(resumed) == trains


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(batch_size=4, optimizer="muon"),
        Recipe(batch_size=4, offload="optimizer"),
        Recipe(batch_size=4, optimizer="adafactor"),
        IN_BACKWARD,
    ],
    ids=["muon", "offload", "adafactor", "in-backward"],
)
def test_a_scheduler_of_pytorch_finds_the_update_before_it(recipe):
    applied = built(recipe)
    scheduler = torch.optim.lr_scheduler.LambdaLR(applied.optimizer, lambda step: 1 / (1 + step))
    before = [group["lr"] for group in applied.optimizer.param_groups]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        applied.step(batch_of(4))
        scheduler.step()

    assert [group["lr"] for group in applied.optimizer.param_groups] == [lr / 2 for lr in before]


def test_float16_parameters_do_not_go_with_a_gradient_scaler():
    with pytest.raises(BadInput, match=r"embedding\.weight is float16.*build the model in fp32"):
        built(Recipe(batch_size=4, precision="fp16"), model=lambda: Net().half())


def test_a_head_with_a_forward_of_its_own_is_not_left_out_of_a_chunked_loss():
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x / 2)

    def subclassed() -> nn.Module:
        net = Net()
        net.head = Scaled(8, 11)
        return net

    def patched() -> nn.Module:
        net = Net()
        net.head.forward = lambda x: F.linear(x / 2, net.head.weight)  # type: ignore[method-assign]
        return net

    for model in (subclassed, patched):
        with pytest.raises(BadInput, match=r"has a forward of its own.*--loss full"):
            built(Recipe(batch_size=4, loss="chunked"), model=model)


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
def test_a_forward_that_another_library_put_on_a_block_is_kept(checkpointing):
    def patched() -> nn.Module:
        net = Net()
        for block in net.blocks:
            block.forward = lambda x, block=block: F.linear(x, block.weight).tanh()
        return net

    found = []
    for recipe in (Recipe(batch_size=4), Recipe(batch_size=4, checkpointing=checkpointing)):
        applied = built(recipe, model=patched)
        found.append((applied.step(batch_of(4)).loss, weights(applied)))

    assert found[0][0] == found[1][0]
    assert all(map(torch.equal, found[0][1], found[1][1]))
