"""Offload changes where tensors wait, and no value."""

from __future__ import annotations

import itertools
from copy import deepcopy

import pytest
import torch
from small_jobs import JOBS, SEQ_LEN, run_of
from torch import nn

from memfit.profiler.capture import Capture
from memfit.records.recipe import Recipe
from memfit.records.timeline import Timeline
from memfit.techniques.apply import apply
from memfit.techniques.offload import ActivationOffload
from memfit.tracing.step import trace


def trained(recipe: Recipe, name: str = "gpt") -> list[torch.Tensor]:
    torch.manual_seed(0)
    job = JOBS[name]()
    model, _, step = apply(job, recipe)
    for _ in range(3):
        step(job.batch(recipe.samples_per_step, SEQ_LEN))
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("offload", ["activations", "activations:20KB", "optimizer"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("name", ["gpt", "gpt2"])
def test_the_weights_are_those_of_the_plain_run_bit_for_bit(name, checkpointing, offload):
    plain = Recipe(batch_size=2, accumulate=2, checkpointing=checkpointing)
    pairs = zip(trained(plain, name), trained(plain.but(offload=offload), name), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def with_dropout(offload: str) -> list[torch.Tensor]:
    """Gradients of one pass with every second number dropped."""
    torch.manual_seed(0)
    layers = [(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.5)) for _ in range(3)]
    model = nn.Sequential(*itertools.chain(*layers))
    moves = ActivationOffload(Recipe(offload=offload), torch.device("cpu"), model)
    with moves.forward():
        loss = model(torch.randn(16, 32)).square().sum()
    loss.backward()
    assert (moves.moved_bytes > 0) == (offload != "none")
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("offload", ["activations", "activations:6KB"])
def test_dropout_drops_the_same_in_backward_as_in_forward(offload):
    pairs = zip(with_dropout("none"), with_dropout(offload), strict=True)
    assert all(one.any() and torch.equal(one, other) for one, other in pairs)


def stretches(timeline: Timeline) -> list[list[int]]:
    """Signed bytes in order; those freed at one moment as a set, as autocast's are by chance."""
    groups = itertools.groupby(timeline.deltas().tolist(), key=lambda delta: delta > 0)
    return [list(group) if allocates else sorted(group) for allocates, group in groups]


@pytest.mark.parametrize("offload", ["activations", "optimizer"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-pure"])
def test_the_predicted_curve_is_the_measured_one(precision, offload):
    recipe = Recipe(batch_size=2, accumulate=2, precision=precision, offload=offload)
    steps = run_of(JOBS["gpt"](), recipe)
    steps(Capture())
    capture = Capture()
    with capture:
        steps(capture)
    found, measured = trace(steps), capture.timeline
    if precision == "bf16":
        assert stretches(found) == stretches(measured)
    else:
        assert found.deltas().tolist() == measured.deltas().tolist()


def test_no_more_is_moved_than_asked_and_without_a_limit_more():
    moved = []
    for offload in ("activations:20KB", "activations"):
        job = JOBS["gpt"]()
        _, _, step = apply(job, Recipe(batch_size=2, offload=offload))
        step(job.batch(2, SEQ_LEN))
        moved.append(step._offload.moved_bytes)
    assert 0 < moved[0] <= 20_480 < moved[1]


def test_masters_of_bf16_parameters_are_saved_and_loaded():
    recipe = Recipe(batch_size=2, precision="bf16-pure", offload="optimizer")
    job = JOBS["gpt"]()
    torch.manual_seed(0)
    first, second = apply(job, recipe), apply(job, recipe)
    first.step(job.batch(2, SEQ_LEN))
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(deepcopy(first.optimizer.state_dict()))
    batch = job.batch(2, SEQ_LEN)
    for applied in (first, second):
        applied.step(batch)
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert one.dtype == torch.bfloat16
        assert torch.equal(one, other)
        for kind in ("master", "exp_avg", "exp_avg_sq"):
            kept = first.optimizer.state[one][kind]
            assert kept.dtype == torch.float32
            assert torch.equal(kept, second.optimizer.state[other][kind])


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("optimizer", ["sgd", "muon", "adafactor"])
def test_each_optimizer_on_the_host_updates_as_the_plain_one(optimizer, clip_norm):
    plain = Recipe(batch_size=2, accumulate=2, optimizer=optimizer, clip_norm=clip_norm)
    pairs = zip(trained(plain), trained(plain.but(offload="optimizer")), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_weights_and_their_views_and_buffers_are_never_moved():
    model = torch.nn.Linear(64, 64)
    model.register_buffer("table", torch.ones(64, 64))
    recipe = Recipe(offload="activations")
    offload = ActivationOffload(recipe, torch.device("cpu"), model)
    with offload.forward():
        kept = [model.weight, model.weight.t(), model.weight.detach()[1:], model.table.t()]
        assert all(offload._pack(tensor) is tensor for tensor in kept)
        assert offload._pack(torch.ones(64, 64)) is not None
        assert len(offload._moved) == 1
    offload.step_ends()


def test_host_buffers_of_batches_of_other_shapes_do_not_pile_up():
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    offload = ActivationOffload(Recipe(offload="activations"), torch.device("cpu"), model)
    for num_samples in (8, 16, 24, 32, 16):
        with offload.forward():
            loss = model(torch.ones(num_samples, 64)).square().sum()
        moved = sum(each.num_bytes for each in offload._moved)
        loss.backward()
        offload.step_ends()
        kept = sum(buffer.nbytes for free in offload._buffers.values() for buffer in free)
        assert kept == moved
