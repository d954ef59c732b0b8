"""What every optimizer must be: exact in its bytes, predicted, saved, and of use.

A new one is a line in ``OPTIMIZERS``; each property below is then asked of it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small_jobs import JOBS, run_of
from torch import Tensor, nn
from torch.nn import functional as F

from memfit.errors import BadInput, MissingExtra
from memfit.job import Job
from memfit.profiler.capture import Capture
from memfit.records.recipe import OPTIMIZERS as NAMES
from memfit.records.recipe import Recipe
from memfit.records.timeline import Timeline
from memfit.techniques.apply import Applied, apply
from memfit.techniques.optimizer import import_library
from memfit.tracing.step import trace
from memfit.trainer.saved_state import restore, save
from memfit.trainer.state_file import RunIdentity

SIZE = 64 * 128


class Expected(NamedTuple):
    """What is expected of an optimizer."""

    matrix_bytes: int
    """State of a hidden matrix of 64 x 128 in fp32, without counts and common tables."""

    vector_bytes: int
    """State of a vector of 64 in fp32."""

    learning_rate: float
    """With which a small problem is learnt."""

    library: str | None = None
    extra: str | None = None


_SCALES = SIZE // 256 * 4
_IN_8_BITS = ("bitsandbytes", "8bit")
OPTIMIZERS = {
    "adamw": Expected(8 * SIZE, 8 * 64, 0.01),
    "sgd": Expected(4 * SIZE, 4 * 64, 0.1),
    "adafactor": Expected(4 * (64 + 128), 4 * 64, 0.1),
    "adamw-8bit": Expected(2 * (SIZE + _SCALES), 8 * 64, 0.01, *_IN_8_BITS),
    "lion-8bit": Expected(SIZE + _SCALES, 4 * 64, 0.002, *_IN_8_BITS),
    "adamw-4bit": Expected(2 * (SIZE // 2 + SIZE // 128 * 4), 8 * 64, 0.01, "torchao", "4bit"),
    "muon": Expected(4 * SIZE, 8 * 64, 0.02),
    "muon-8bit": Expected(SIZE + SIZE // 128 * 4, 8 * 64, 0.02),
}
OF_LIBRARIES = [name for name, expected in OPTIMIZERS.items() if expected.library]

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
in_backward_or_not = pytest.mark.parametrize("in_backward", [False, True], ids=["after", "within"])


class Net(nn.Module):
    """An embedding that is the head too, a hidden matrix of 64 x 128 and one back, and vectors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(40, 128)
        self.blocks = nn.ModuleList([nn.Linear(128, 64), nn.Linear(64, 128)])
        self.head = nn.Linear(128, 40, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.05)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.head(x + self.blocks[1](self.blocks[0](x).relu()))


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens), (tokens + 1) % 40)


def tokens_of(step: int) -> Tensor:
    return torch.randint(40, (16,), generator=torch.Generator().manual_seed(step))


def recipe_of(name: str, in_backward: bool = False, **changes: Any) -> Recipe:
    settings = {"learning_rate": OPTIMIZERS[name].learning_rate, "batch_size": 16, **changes}
    if in_backward:
        settings |= {"optimizer_in_backward": True, "clip_norm": None}
    recipe = Recipe(optimizer=name, **settings)
    import_library(recipe)
    return recipe


def applied_to_net(recipe: Recipe) -> Applied:
    return apply(Job(model=Net, batch=lambda n, _: tokens_of(n), loss=next_token_loss), recipe)


def train(applied: Applied, first: int, last: int) -> list[float]:
    return [applied.step(tokens_of(number)).loss for number in range(first, last + 1)]


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def state_bytes(state: dict[str, Any]) -> int:
    """Without the count of steps, and without the tables that all parameters have in common."""
    return sum(
        value.nbytes
        for kind, value in state.items()
        if isinstance(value, Tensor) and value.dim() and not kind.startswith("qmap")
    )


def measured(steps: Callable[[Any], None]) -> Timeline:
    capture = Capture()
    with capture:
        steps(capture)
    return capture.timeline


def events(timeline: Timeline) -> list[tuple[int, ...]]:
    columns = (timeline.deltas(), timeline.phases, timeline.steps)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_every_optimizer_of_a_recipe_is_here():
    assert set(OPTIMIZERS) == set(NAMES)


# Bytes


@every_optimizer
def test_state_takes_exactly_the_bytes_that_are_written_down(name):
    applied = applied_to_net(recipe_of(name))
    train(applied, 1, 1)

    state, layer = applied.optimizer.state, applied.model.blocks[0]

    assert state_bytes(state[layer.weight]) == OPTIMIZERS[name].matrix_bytes
    assert state_bytes(state[layer.bias]) == OPTIMIZERS[name].vector_bytes


@in_backward_or_not
@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
@every_optimizer
def test_the_predicted_curve_is_the_measured_one(name, precision, in_backward):
    recipe = recipe_of(name, in_backward, batch_size=2, precision=precision)
    steps = run_of(JOBS["gpt"](), recipe)
    steps(Capture())  # one-time buffers of PyTorch are not the run's

    assert events(trace(steps)) == events(measured(steps))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_an_update_allocates_nothing_once_there_is_state(name):
    from memfit.devices.cpu_allocations import CpuAllocations

    applied = applied_to_net(recipe_of(name))
    train(applied, 1, 2)
    for parameter in applied.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    listener = CpuAllocations()
    with listener:
        applied.optimizer.step()

    assert max((event.num_bytes for event in listener.events), default=0) <= 8


@every_optimizer
def test_it_runs_on_the_virtual_gpu(name):
    from memfit.planner.predict import predict

    recipe = recipe_of(name, batch_size=2)
    found = predict(JOBS["gpt"](), recipe, device="rtx-4090", torch_version="2.13")

    assert found.breakdown["optimizer_state"] > 0


# Saved state


@in_backward_or_not
@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
@every_optimizer
def test_three_steps_saved_and_three_more_are_six_steps(
    tmp_path: Path, name, precision, in_backward
):
    recipe = recipe_of(name, in_backward, precision=precision)
    run = RunIdentity(job_name="net", recipe=recipe, seq_len=None, seed=0, data_hash="0")
    straight = applied_to_net(recipe)
    train(straight, 1, 3)
    model, optimizer, _ = straight
    save(tmp_path, step=3, model=model, optimizer=optimizer, run=run, keep=1)
    losses = train(straight, 4, 6)

    resumed = applied_to_net(recipe)
    restore(tmp_path, model=resumed.model, optimizer=resumed.optimizer, run=run)

    assert train(resumed, 4, 6) == losses
    torch.testing.assert_close(weights(resumed.model), weights(model), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["adamw-8bit", "lion-8bit"])
def test_a_table_of_all_parameters_is_one_table_after_loading_too(tmp_path: Path, name):
    recipe = recipe_of(name)
    run = RunIdentity(job_name="net", recipe=recipe, seq_len=None, seed=0, data_hash="0")
    applied = applied_to_net(recipe)
    train(applied, 1, 1)
    model, optimizer, _ = applied
    save(tmp_path, step=1, model=model, optimizer=optimizer, run=run, keep=1)
    restore(tmp_path, model=model, optimizer=optimizer, run=run)

    tables = [state["qmap1"] for state in optimizer.state.values() if "qmap1" in state]

    assert len(tables) == 3
    assert len({id(table) for table in tables}) == 1


# What it does


@in_backward_or_not
@every_optimizer
def test_it_learns_a_small_problem(name, in_backward):
    applied = applied_to_net(recipe_of(name, in_backward, weight_decay=0.0))

    losses = train(applied, 1, 150)

    assert losses[0] > 3.5
    assert sum(losses[-5:]) / 5 < 0.5


@in_backward_or_not
@every_optimizer
def test_without_a_learning_rate_nothing_changes(name, in_backward):
    applied = applied_to_net(recipe_of(name, in_backward))
    before = weights(applied.model)

    for group in applied.optimizer.param_groups:
        group["lr"] = 0.0
    train(applied, 1, 2)

    torch.testing.assert_close(weights(applied.model), before, rtol=0, atol=0)


@every_optimizer
def test_in_backward_is_the_ordinary_update_to_the_last_bit(name):
    """The embedding is the head too: its gradient has two parts."""
    ordinary = applied_to_net(recipe_of(name, clip_norm=None))
    within = applied_to_net(recipe_of(name, in_backward=True))

    assert train(within, 1, 4) == train(ordinary, 1, 4)
    torch.testing.assert_close(weights(within.model), weights(ordinary.model), rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in within.model.parameters())


@every_optimizer
def test_every_group_says_what_its_peak_is(name):
    for group in applied_to_net(recipe_of(name)).optimizer.param_groups:
        assert group["initial_lr"] == group["lr"] > 0
        assert group["initial_weight_decay"] == group["weight_decay"]


# Refused


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_without_its_library_it_says_which_extra_to_install(name, monkeypatch):
    recipe, expected = recipe_of(name), OPTIMIZERS[name]
    real = builtins.__import__

    def absent(module: str, *arguments: Any, **named: Any) -> Any:
        if module.partition(".")[0] == expected.library:
            raise ImportError(module)
        return real(module, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", absent)

    with pytest.raises(MissingExtra, match=rf"{name} needs .*memfit\[{expected.extra}\]"):
        applied_to_net(recipe)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accumulate": 2}, "each micro-batch would update the weights"),
        ({"clip_norm": 1.0}, "the global norm is known only when all gradients are"),
        ({"precision": "fp16"}, "a step must be skipped when any gradient overflows"),
        ({"offload": "optimizer"}, "streamed to the CPU already"),
    ],
)
def test_in_backward_refuses_what_needs_all_gradients(changes, reason):
    with pytest.raises(BadInput, match=reason):
        Recipe(**{"optimizer_in_backward": True, "clip_norm": None, **changes})
