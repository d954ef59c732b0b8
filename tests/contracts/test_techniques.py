"""One contract for every technique, alone and in pairs.

- Predicted is measured: every allocation and free of a real run on the CPU, in order, to the byte.
- The gradients are those of the plain run: to the last bit where the arithmetic is the same.
- A run that is saved and resumed is the run that was not.
- A pair that cannot work is refused, with the reason.

A technique is one line in ``TECHNIQUES``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from memfit.errors import BadInput
from memfit.job import Job
from memfit.models.gpt import GPTConfig, gpt_job
from memfit.models.sequences import with_sequences
from memfit.observer import Observer, Unwatched
from memfit.profiler.capture import Capture
from memfit.records.recipe import Recipe
from memfit.records.timeline import Timeline
from memfit.techniques import run
from memfit.techniques.apply import apply
from memfit.tracing.step import trace
from memfit.trainer import saved_state
from memfit.trainer.state_file import RunIdentity

SEQ_LEN = 24

PLAIN = Recipe(batch_size=2)

TECHNIQUES: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "bf16-pure": {"precision": "bf16-pure"},
    "accumulate": {"accumulate": 3},
    "full": {"checkpointing": "full"},
    "every-2": {"checkpointing": "every:2"},
    "selective": {"checkpointing": "selective"},
    "blocks": {"checkpointing": "blocks:1:1"},
    "chunked": {"loss": "chunked"},
    "sgd": {"optimizer": "sgd"},
    "adafactor": {"optimizer": "adafactor"},
    "adamw-8bit": {"optimizer": "adamw-8bit"},
    "lion-8bit": {"optimizer": "lion-8bit"},
    "muon": {"optimizer": "muon"},
    "muon-8bit": {"optimizer": "muon-8bit"},
    "in-backward": {"optimizer_in_backward": True, "clip_norm": None},
    "offload-activations": {"offload": "activations"},
    "offload-optimizer": {"offload": "optimizer"},
    "packed": {"sequences": "packed"},
}

REFUSED = {
    ("fp16", "in-backward"): "fp16",
    ("fp16", "offload-optimizer"): "fp16",
    ("accumulate", "in-backward"): "accumulation",
    ("in-backward", "offload-optimizer"): "offloaded",
    ("adamw-8bit", "offload-optimizer"): "adamw-8bit",
    ("lion-8bit", "offload-optimizer"): "lion-8bit",
    ("muon-8bit", "offload-optimizer"): "muon-8bit",
}
"""Pairs that cannot work, and what the reason names."""

SAME_ARITHMETIC = (
    "full",
    "every-2",
    "selective",
    "blocks",
    "offload-activations",
    "offload-optimizer",
)
"""Techniques that change when a number is computed or where it lies, and no number."""

PAIRS = [
    pair
    for pair in itertools.combinations(TECHNIQUES, 2)
    if not TECHNIQUES[pair[0]].keys() & TECHNIQUES[pair[1]].keys() and pair not in REFUSED
]


@cache
def job() -> Job:
    config = GPTConfig(num_layers=2, dim=32, num_heads=2, num_kv_heads=2, vocab_size=96, seq_len=64)
    return gpt_job(config, "gpt")


def recipe_of(*names: str) -> Recipe:
    changes: dict[str, Any] = {}
    for name in names:
        changes |= TECHNIQUES[name]
    return PLAIN.but(**changes)


def steps_of(recipe: Recipe) -> Callable[[Observer], None]:
    fed = with_sequences(job(), recipe.sequences)

    def steps(observer: Observer) -> None:
        applied = run.build(fed, recipe, observer)
        make_batch = partial(fed.batch, recipe.samples_per_step, SEQ_LEN)
        for number in (1, 2):
            run.take_step(applied, number, make_batch, observer)
        run.evaluate(applied, [partial(fed.batch, recipe.batch_size, SEQ_LEN)], observer)

    return steps


def measured(steps: Callable[[Observer], None]) -> Timeline:
    capture = Capture()
    with capture:
        steps(capture)
    return capture.timeline


def stretches(timeline: Timeline) -> list[list[tuple[int, int, int]]]:
    """Events in order; frees that follow each other as a set, as autocast's are by chance."""
    columns = (timeline.deltas(), timeline.phases, timeline.steps)
    events = zip(*(column.tolist() for column in columns), strict=True)
    return [
        list(group) if allocates else sorted(group)
        for allocates, group in itertools.groupby(events, key=lambda event: event[0] > 0)
    ]


def assert_predicted(recipe: Recipe) -> None:
    steps = steps_of(recipe)
    steps(Unwatched())  # PyTorch's own one-time buffers are not the run's
    predicted, real = trace(steps), measured(steps)
    assert int(predicted.curve().max()) == int(real.curve().max())
    assert stretches(predicted) == stretches(real)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_what_is_predicted_is_what_is_measured(name: str) -> None:
    assert_predicted(recipe_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_what_is_predicted_of_a_pair_is_what_is_measured(pair: tuple[str, str]) -> None:
    assert_predicted(recipe_of(*pair))


@pytest.mark.parametrize("pair", REFUSED, ids="+".join)
def test_a_pair_that_cannot_work_is_refused_with_the_reason(pair: tuple[str, str]) -> None:
    with pytest.raises(BadInput, match=REFUSED[pair]):
        recipe_of(*pair)


def gradients(recipe: Recipe) -> list[Tensor]:
    """The gradients of a step, as the change of the weights under SGD with a rate of 1."""
    recipe = recipe.but(optimizer="sgd", learning_rate=1.0, weight_decay=0.0, clip_norm=None)
    torch.manual_seed(0)
    applied = apply(job(), recipe)
    with torch.no_grad():  # a new block changes nothing, and has no gradients inside
        for parameter in applied.model.parameters():
            parameter.normal_(std=0.1)
    before = [p.detach().clone() for p in applied.model.parameters()]
    torch.manual_seed(1)
    applied.step(job().batch(6, SEQ_LEN), 6 if recipe.accumulate == 1 else 2)
    return [old - p.detach() for old, p in zip(before, applied.model.parameters(), strict=True)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", SAME_ARITHMETIC)
def test_gradients_are_those_of_the_plain_run_to_the_last_bit(name: str, precision: str) -> None:
    plain = gradients(PLAIN.but(precision=precision))
    found = gradients(recipe_of(name).but(precision=precision))

    assert any(gradient.any() for gradient in plain)
    for one, other in zip(found, plain, strict=True):
        assert torch.equal(one, other)


# In backward the loss is divided by its targets before, not the gradients after.
@pytest.mark.parametrize("name", ["accumulate", "chunked", "in-backward"])
def test_gradients_are_those_of_the_plain_run_up_to_rounding(name: str) -> None:
    for one, other in zip(gradients(recipe_of(name)), gradients(PLAIN), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def identity(recipe: Recipe) -> RunIdentity:
    return RunIdentity(job_name="gpt", recipe=recipe, seq_len=SEQ_LEN, seed=0, data_hash="none")


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_run_that_is_saved_and_resumed_is_the_run_that_was_not(name: str, tmp_path: Path) -> None:
    recipe = recipe_of(name)
    fed = with_sequences(job(), recipe.sequences)
    batches = [fed.batch(recipe.samples_per_step, SEQ_LEN) for _ in range(4)]
    torch.manual_seed(0)
    straight = apply(fed, recipe)
    for batch in batches[:2]:
        straight.step(batch)
    saved_state.save(
        tmp_path,
        step=2,
        model=straight.model,
        optimizer=straight.optimizer,
        run=identity(recipe),
        keep=1,
        extra=straight.step.state(),
    )
    losses = [straight.step(batch).loss for batch in batches[2:]]

    torch.manual_seed(99)
    resumed = apply(fed, recipe)
    restored = saved_state.restore(
        tmp_path, model=resumed.model, optimizer=resumed.optimizer, run=identity(recipe)
    )
    resumed.step.load_state(restored.extra)

    assert [resumed.step(batch).loss for batch in batches[2:]] == losses
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
