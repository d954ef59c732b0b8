"""Checkpointing changes when things are computed, and not one bit of what."""

import copy
from collections import Counter
from dataclasses import astuple
from typing import Any

import pytest
import torch
from small_jobs import JOBS, OTHER_JOBS, SEQ_LEN
from torch import Tensor, nn
from torch.nn import functional as F

from memfit.errors import BadInput, MemfitWarning
from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.apply import Applied, apply
from memfit.techniques.blocks import repeated_blocks
from memfit.techniques.checkpointing import checkpoint_blocks, chosen_blocks


class Block(nn.Module):
    """Dropout draws numbers, and batch norm keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.norm(self.linear(x)).relu(), 0.3, self.training)


class Blocks(nn.Module):
    def __init__(self, num_blocks: int = 5) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def blocks_job() -> Job:
    return Job(
        model=Blocks,
        batch=lambda batch_size, seq_len: torch.randn(batch_size, 8),
        loss=lambda model, batch: (model(batch) - batch.sum(1, keepdim=True)).square().mean(),
    )


def three_steps(job: Job, recipe: Recipe) -> tuple[dict[str, Any], Applied]:
    """All that three steps come to, gradients included."""
    torch.manual_seed(0)
    applied = apply(job, recipe)
    model, optimizer, step = applied
    gradients: list[Tensor | None] = []

    def keep_gradients(*_: object) -> None:
        gradients.extend(p.grad.clone() for p in model.parameters() if p.grad is not None)

    optimizer.register_step_pre_hook(keep_gradients)
    outcomes = [astuple(step(job.batch(recipe.samples_per_step, SEQ_LEN))) for _ in range(3)]
    found = {"outcomes": outcomes, "gradients": gradients, "weights": model.state_dict()}
    return found | {"rng": torch.get_rng_state()}, applied


@pytest.mark.parametrize(
    "checkpointing", ["full", "every:2", "every:3", "selective", "blocks:0:1", "blocks:1:1"]
)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
@pytest.mark.parametrize("name", [*JOBS, "resnet", "mixtral", "blocks"])
def test_losses_gradients_and_weights_are_those_of_the_plain_run(name, precision, checkpointing):
    job = blocks_job() if name == "blocks" else {**JOBS, **OTHER_JOBS}[name]()
    recipe = Recipe(precision=precision, batch_size=3, accumulate=2)

    plain, _ = three_steps(job, recipe)
    checkpointed, applied = three_steps(job, recipe.but(checkpointing=checkpointing))

    assert "forward" in vars(repeated_blocks(applied.model)[0])  # it is checkpointed indeed
    torch.testing.assert_close(checkpointed, plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("checkpointing", "runs"),
    [
        ("none", [1, 1, 1, 1, 1]),
        ("full", [2, 2, 2, 2, 2]),
        ("every:2", [2, 1, 2, 1, 2]),
        ("every:3", [2, 1, 1, 2, 1]),
        ("every:9", [2, 1, 1, 1, 1]),
        ("blocks:3:0", [2, 2, 2, 1, 1]),
        ("blocks:5:0", [2, 2, 2, 2, 2]),
        ("blocks:0:0", [1, 1, 1, 1, 1]),
    ],
)
def test_the_blocks_that_are_asked_for_are_run_twice_and_no_others(checkpointing, runs):
    job = blocks_job()
    model, _, step = apply(job, Recipe(batch_size=4, checkpointing=checkpointing))
    counts: Counter[int] = Counter()
    for index, block in enumerate(model.blocks):
        block.linear.register_forward_pre_hook(lambda *_, index=index: counts.update([index]))

    step(job.batch(4, 1))

    assert [counts[index] for index in range(5)] == runs


def test_evaluation_runs_no_block_twice():
    job = blocks_job()
    model, _, step = apply(job, Recipe(batch_size=4, checkpointing="full"))
    counts: Counter[str] = Counter()
    model.blocks[0].linear.register_forward_pre_hook(lambda *_: counts.update(["run"]))

    step.evaluate(job.batch(4, 1))

    assert counts["run"] == 1


@pytest.mark.parametrize("name", JOBS)
def test_no_name_in_the_state_dict_changes(name):
    plain, checkpointed = JOBS[name]().model(), JOBS[name]().model()

    checkpoint_blocks(checkpointed, Recipe(checkpointing="full"))

    assert list(checkpointed.state_dict()) == list(plain.state_dict())


def test_a_deep_copy_runs_its_own_blocks():
    model = Blocks().eval()
    checkpoint_blocks(model, Recipe(checkpointing="full"))
    x = torch.randn(4, 8)
    before = model(x)

    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()

    assert torch.equal(twin(x), before)


# Which blocks


@pytest.mark.parametrize("asked", ["blocks:3:0", "blocks:1:2", "blocks:0:9"])
def test_more_blocks_than_there_are_are_refused(asked):
    with pytest.raises(BadInput, match=rf"{asked} asks for .* blocks, but the model has 2: write"):
        checkpoint_blocks(Blocks(2), Recipe(checkpointing=asked))


def test_the_first_blocks_are_whole_the_next_selective_and_the_last_left_alone():
    blocks = list(Blocks(5).blocks)

    assert chosen_blocks(blocks, Recipe(checkpointing="blocks:1:2")) == [
        (blocks[0], True),
        (blocks[1], False),
        (blocks[2], False),
    ]


def test_a_hugging_face_model_makes_no_cache_of_keys():
    model = JOBS["llama"]().model()
    assert model.config.use_cache

    checkpoint_blocks(model, Recipe(checkpointing="full"))

    assert not model.config.use_cache
    tokens = torch.randint(96, (2, 8))
    loss = model(input_ids=tokens, labels=tokens)
    assert loss.past_key_values is None
    loss.loss.backward()


# Models without repeated blocks


def chain(num_pairs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(num_pairs):
        layers += [nn.Linear(8, 8), nn.Dropout(0.2) if index % 2 else nn.Tanh()]
    return nn.Sequential(*layers)


def chain_job(num_pairs: int) -> Job:
    return Job(
        model=lambda: chain(num_pairs),
        batch=lambda batch_size, seq_len: torch.randn(batch_size, 8),
        loss=lambda model, batch: model(batch).square().mean(),
    )


@pytest.mark.parametrize("checkpointing", ["full", "selective", "blocks:1:1", "every:2"])
def test_a_chain_of_layers_runs_in_pieces_with_the_same_gradients(checkpointing):
    job = chain_job(5)
    plain, _ = three_steps(job, Recipe(batch_size=4))

    with pytest.warns(MemfitWarning, match=r"no repeated blocks: .* 4 pieces .* has 10 modules"):
        pieces, _ = three_steps(job, Recipe(batch_size=4, checkpointing=checkpointing))

    torch.testing.assert_close(pieces, plain, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Sequential has no repeated blocks")
def test_a_chain_in_pieces_keeps_its_names_and_can_be_copied():
    model = chain(4).eval()
    names = list(model.state_dict())
    checkpoint_blocks(model, Recipe(checkpointing="full"))
    assert list(model.state_dict()) == names
    x = torch.randn(4, 8)
    before = model(x)

    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()

    assert torch.equal(twin(x), before)


@pytest.mark.parametrize(
    "model",
    [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.ModuleList([nn.Linear(2, 2)])],
)
def test_a_model_in_which_nothing_repeats_is_refused(model):
    with pytest.raises(BadInput, match=r"has no repeated blocks .*: use checkpointing none"):
        checkpoint_blocks(model, Recipe(checkpointing="full"))


def test_a_model_in_which_nothing_repeats_can_be_left_alone():
    checkpoint_blocks(nn.Linear(2, 2), Recipe(checkpointing="none"))
