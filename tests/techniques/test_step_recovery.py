"""An out-of-memory is a transaction: whichever op it strikes, the step is one that was not struck.

A fault is injected before every op of a step, in every phase.  Before the update, the step is that
of a run that had the halved micro-batch from the start; in the update, that of a run in which
nothing happened.  Both to the last bit: weights, optimizer state, scaler, generators, statistics.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.errors import BadInput, OutOfMemory
from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.apply import Applied, apply
from memfit.techniques.step import StepOutcome


class Net(nn.Module):
    """Dropout draws numbers, BatchNorm keeps statistics, and there are matrices and vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)  # (B, T, C)
        for block in self.blocks:
            x = x + F.dropout(block(x), 0.3, self.training)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return self.head(x)


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    logits = model(batch["tokens"])  # (B, T, V)
    random.random(), np.random.rand()  # a user's code may draw from these too
    labels = batch["labels"].flatten()
    return F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum"), labels.numel()


def batch_of(num_samples: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(11, (num_samples, 3), generator=generator)
        for name in ("tokens", "labels")
    }


JOB = Job(model=Net, batch=lambda size, seq_len: batch_of(size), loss=loss_of)


def takes_memory(op: Any) -> bool:
    return op.namespace != "profiler" and op is not torch.ops.aten.copy_.default


class OutOfMemoryAt(TorchDispatchMode):
    """Raises what PyTorch raises, before op number ``at``, and before the next ones ``times`` - 1.

    Marks of the profiler, and copies into what is there, take no memory and are left alone.
    """

    def __init__(self, at: int, times: int = 1) -> None:
        super().__init__()
        self.at, self.times = at, times
        self.count = 0
        self.phase = "forward"
        self.struck: str | None = None
        self.phases: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        number = self.count
        self.count += 1
        self.phases.append(self.phase)
        if self.at <= number and self.times > 0 and takes_memory(func):
            self.times -= 1
            self.struck = self.phase
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0")
        return func(*args, **(kwargs or {}))


def built(recipe: Recipe) -> Applied:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return apply(JOB, recipe)


def state_of(applied: Applied) -> list[Any]:
    """Everything that the next step depends on."""
    optimizer = applied.optimizer
    states = [
        (name, key, value)
        for name, parameter in applied.model.named_parameters()
        for key, value in sorted(optimizer.state.get(parameter, {}).items())
    ]
    scaler = applied.step.scaler
    return [
        *((name, tensor.clone()) for name, tensor in applied.model.state_dict().items()),
        *states,
        scaler.state_dict() if scaler else None,
        torch.get_rng_state(),
        random.getstate(),
        str(np.random.get_state()),
    ]


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(found, Tensor):
        assert torch.equal(found, expected)
    elif isinstance(found, dict):
        assert_same(list(found.items()), list(expected.items()))
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


def struck_step(applied: Applied, batch: Any, at: int) -> tuple[StepOutcome, OutOfMemoryAt]:
    mode = OutOfMemoryAt(at)

    def on_phase(phase: str) -> None:
        mode.phase = phase

    applied.step.on_phase = on_phase
    with mode:
        outcome = applied.step(batch)
    return outcome, mode


@pytest.fixture(autouse=True, scope="module")
def _quick_garbage_collection() -> Iterator[None]:
    """Each out-of-memory collects garbage, which looks at all that libraries have made."""
    gc.freeze()
    yield
    gc.unfreeze()


EVERY = 11
"""Ops between two that are struck; another k-th one in each test."""

RECIPES = [
    Recipe(batch_size=4),
    Recipe(batch_size=4, precision="fp16"),
    Recipe(batch_size=4, optimizer="muon", clip_norm=None),
    Recipe(batch_size=2, optimizer="adafactor"),
    Recipe(batch_size=4, optimizer="sgd", checkpointing="full"),
    Recipe(batch_size=4, loss="chunked"),
    Recipe(batch_size=4, offload="optimizer"),
    Recipe(batch_size=4, offload="activations"),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: f"{r.precision}-{r.optimizer}-{r.loss}")
@pytest.mark.parametrize("step_number", [1, 2])
def test_whichever_op_runs_out_of_memory_the_result_is_that_of_a_run_where_none_did(
    recipe: Recipe, step_number: int
) -> None:
    def before() -> Applied:
        applied = built(recipe)
        for number in range(step_number - 1):
            applied.step(batch_of(4, number))
        return applied

    batch = batch_of(4, 9)
    undisturbed = before()
    counting = OutOfMemoryAt(1 << 30)
    with counting:
        undisturbed.step(batch)
    expected = {"update": state_of(undisturbed)}
    halved = before()
    halved.step.shrink()
    halved.step(batch)
    expected["gradients"] = state_of(halved)

    struck: set[str | None] = set()
    last = range(max(0, counting.count - 12), counting.count)  # the update of a fused optimizer
    for at in (*range(step_number, counting.count - 12, EVERY), *last):
        applied = before()
        outcome, mode = struck_step(applied, batch, at)
        struck.add(mode.struck)
        if mode.struck is None:
            assert at > counting.count - 12  # marks of the profiler alone come after this
            continue
        assert len(outcome.notes) == 1
        was_halved = outcome.batch_size < recipe.batch_size
        assert was_halved == ("taken back" in outcome.notes[0])
        assert_same(state_of(applied), expected["gradients" if was_halved else "update"])
        assert all(parameter.grad is None for parameter in applied.model.parameters())
    assert struck >= {"forward", "backward", "optimizer"}


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_an_evaluation_that_runs_out_of_memory_goes_on_with_half_and_gives_the_same_sum(at):
    applied = built(Recipe(batch_size=4))
    whole = applied.step.evaluate(batch_of(7))
    before, batch = applied.model.state_dict(), batch_of(7)
    before = {name: tensor.clone() for name, tensor in before.items()}
    with OutOfMemoryAt(at) as mode:
        outcome = applied.step.evaluate(batch)

    assert outcome.num_targets == whole.num_targets
    assert outcome.loss_sum == pytest.approx(whole.loss_sum, rel=1e-6)
    assert len(outcome.notes) == (mode.struck is not None)
    assert_same(dict(applied.model.state_dict()), before)


def test_it_halves_until_it_fits_and_stays_there():
    applied = built(Recipe(batch_size=4))
    batch = batch_of(4)
    with OutOfMemoryAt(5, times=2):
        outcome = applied.step(batch)

    assert (outcome.batch_size, len(outcome.notes)) == (1, 2)
    assert applied.step(batch_of(4)).batch_size == 1
    assert applied.step(batch_of(4), batch_size=8).batch_size == 2  # a stage of shorter sequences


def test_at_one_sample_it_stops_with_advice_and_with_nothing_changed():
    applied = built(Recipe(batch_size=2))
    applied.step.advise = lambda: "rent a larger card"
    before, batch = state_of(applied), batch_of(2)

    with OutOfMemoryAt(5, times=99), pytest.raises(OutOfMemory, match="rent a larger card") as it:
        applied.step(batch)

    assert it.value.exit_code == 3
    assert_same(state_of(applied), before)


def test_other_errors_are_not_taken_for_an_out_of_memory():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    job = Job(model=Net, batch=lambda size, seq_len: batch_of(size), loss=loss)
    step = apply(job, Recipe(batch_size=2)).step

    with pytest.raises(RuntimeError, match="illegal memory access"):
        step(batch_of(2))


def test_with_the_optimizer_in_backward_it_stops_because_the_step_cannot_be_taken_back():
    applied = built(Recipe(batch_size=4, optimizer_in_backward=True, clip_norm=None))

    batch = batch_of(4)
    with OutOfMemoryAt(5), pytest.raises(OutOfMemory, match="cannot be taken back"):
        applied.step(batch)


def test_more_samples_than_a_micro_batch_are_refused_with_the_optimizer_in_backward():
    applied = built(Recipe(batch_size=2, optimizer_in_backward=True, clip_norm=None))

    with pytest.raises(BadInput, match="4 samples and a micro-batch 2"):
        applied.step(batch_of(4))


def test_nothing_of_the_failed_attempt_is_held_while_the_next_one_runs():
    held: list[int] = []

    class Watched(Net):
        def forward(self, tokens: Tensor) -> Tensor:
            graph = [o for o in gc.get_objects() if type(o) is Tensor and o.grad_fn is not None]
            held.append(len(graph))
            if len(held) == 1:
                x = super().forward(tokens)
                raise torch.OutOfMemoryError(f"CUDA out of memory. {x.shape}")
            return super().forward(tokens)

    applied = apply(Job(model=Watched, batch=JOB.batch, loss=loss_of), Recipe(batch_size=4))
    applied.step(batch_of(4))

    assert held[1] <= held[0]
