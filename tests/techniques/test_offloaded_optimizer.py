"""An optimizer on the host is an optimizer: schedules, clipping and states work as with others."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from small_jobs import JOBS, SEQ_LEN
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from memfit.records.recipe import Recipe
from memfit.techniques.apply import Applied, apply
from memfit.techniques.offloaded_optimizer import OffloadedOptimizer
from memfit.trainer import saved_state
from memfit.trainer.state_file import RunIdentity

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, T_max=5),
}

LOOP: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def loop(kind: str, schedule: str, *, is_offloaded: bool, max_norm: float | None) -> list[Any]:
    """Weights, rates and norms of a loop of one's own, with a schedule of PyTorch's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = LOOP[kind](list(model.parameters()))
    if is_offloaded:
        optimizer = OffloadedOptimizer(optimizer)
    scheduler = SCHEDULES[schedule](optimizer)
    seen: list[Any] = []
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(6, 8)).square().sum().backward()
        if max_norm is not None and isinstance(optimizer, OffloadedOptimizer):
            seen.append(optimizer.clip_grad_norm_(max_norm).item())
        elif max_norm is not None:
            seen.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        optimizer.step()
        scheduler.step()
        seen += [scheduler.get_last_lr(), [group["lr"] for group in optimizer.param_groups]]
    return seen + [parameter.tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", LOOP)
def test_schedules_and_clipping_act_to_the_last_bit_as_on_the_plain_one(kind, schedule, max_norm):
    plain = loop(kind, schedule, is_offloaded=False, max_norm=max_norm)
    assert loop(kind, schedule, is_offloaded=True, max_norm=max_norm) == plain


def scheduled(recipe: Recipe) -> list[Tensor]:
    torch.manual_seed(0)
    job = JOBS["gpt"]()
    model, optimizer, step = apply(job, recipe)
    scheduler = CosineAnnealingLR(optimizer, T_max=4)
    for _ in range(3):
        step(job.batch(2, SEQ_LEN))
        scheduler.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_schedule_beside_the_step_is_honoured_without_a_warning(optimizer):
    plain = Recipe(batch_size=2, optimizer=optimizer)
    pairs = zip(scheduled(plain), scheduled(plain.but(offload="optimizer")), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_gradients_that_are_on_the_host_are_clipped_there():
    model = nn.Linear(16, 16, bias=False, dtype=torch.bfloat16)
    optimizer = OffloadedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    model(torch.ones(4, 16, dtype=torch.bfloat16)).sum().backward()
    assert model.weight.grad is None
    assert optimizer.clip_grad_norm_(2.0).item() == 64.0  # 256 gradients of 4
    (gradient,) = optimizer.gradients()
    torch.testing.assert_close(gradient, torch.full((16, 16), 0.125))


STATES: dict[str, dict[str, Any]] = {
    "adamw": {},
    "adamw in bf16": {"precision": "bf16-pure"},
    "muon": {"optimizer": "muon"},
    "muon in bf16": {"optimizer": "muon", "precision": "bf16-pure"},
    "adafactor": {"optimizer": "adafactor"},
}


def run_on(applied: Applied, batches: list[Tensor]) -> list[float]:
    return [applied.step(batch).loss for batch in batches]


def assert_same(one: Applied, other: Applied) -> None:
    for first, second in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(first, second)
        kept, found = one.optimizer.state[first], other.optimizer.state[second]
        assert kept.keys() == found.keys()
        for name, value in kept.items():
            assert found[name].device.type == "cpu"
            assert torch.equal(value, found[name])


@pytest.mark.parametrize("name", STATES)
def test_a_run_goes_on_from_its_state_dict_as_if_it_had_not_stopped(name):
    job, recipe = JOBS["gpt"](), Recipe(batch_size=2, offload="optimizer", **STATES[name])
    batches = [job.batch(2, SEQ_LEN) for _ in range(4)]
    torch.manual_seed(0)
    straight = apply(job, recipe)
    run_on(straight, batches[:2])
    state = deepcopy((straight.model.state_dict(), straight.optimizer.state_dict()))

    torch.manual_seed(1)
    resumed = apply(job, recipe)
    run_on(resumed, batches[3:])  # what it was is overwritten
    resumed.model.load_state_dict(state[0])
    resumed.optimizer.load_state_dict(state[1])
    assert run_on(resumed, batches[2:]) == run_on(straight, batches[2:])
    assert_same(straight, resumed)


@pytest.mark.parametrize("name", STATES)
def test_a_run_goes_on_from_saved_state_as_if_it_had_not_stopped(name: str, tmp_path: Path):
    job, recipe = JOBS["gpt"](), Recipe(batch_size=2, offload="optimizer", **STATES[name])
    run = RunIdentity(job_name="gpt", recipe=recipe, seq_len=SEQ_LEN, seed=0, data_hash="none")
    batches = [job.batch(2, SEQ_LEN) for _ in range(4)]
    torch.manual_seed(0)
    straight = apply(job, recipe)
    run_on(straight, batches[:2])
    model, optimizer = straight.model, straight.optimizer
    saved_state.save(tmp_path, step=2, model=model, optimizer=optimizer, run=run, keep=1)

    torch.manual_seed(1)
    resumed = apply(job, recipe)
    saved_state.restore(tmp_path, model=resumed.model, optimizer=resumed.optimizer, run=run)
    assert run_on(resumed, batches[2:]) == run_on(straight, batches[2:])
    assert_same(straight, resumed)


def test_a_state_dict_is_one_of_the_optimizer_itself():
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.load_state_dict(first.state_dict())
    offloaded = OffloadedOptimizer(torch.optim.AdamW(first.parameters(), lr=0.01))
    plain = torch.optim.AdamW(second.parameters(), lr=0.5)
    first(torch.ones(2, 8)).square().sum().backward()
    offloaded.step()
    second.load_state_dict(first.state_dict())
    plain.load_state_dict(deepcopy(offloaded.state_dict()))
    for model, optimizer in ((first, offloaded), (second, plain)):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()
    assert torch.equal(first.weight, second.weight)
    assert plain.param_groups[0]["lr"] == 0.01


def test_float64_parameters_are_not_narrowed():
    torch.manual_seed(0)
    models = [nn.Linear(4, 4, dtype=torch.float64) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    plain, inner = (torch.optim.AdamW(model.parameters(), lr=0.1) for model in models)
    for model, optimizer in zip(models, (plain, OffloadedOptimizer(inner)), strict=True):
        for scale in (1, 1e-12):
            model(torch.full((2, 4), scale, dtype=torch.float64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert torch.equal(models[0].weight, models[1].weight)
