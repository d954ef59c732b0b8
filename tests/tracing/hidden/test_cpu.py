"""Every formula is held against what the op does when it is run for real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_jobs import JOBS, run_of
from torch.nn import functional as F

from memfit.devices.cpu_allocations import CpuAllocations
from memfit.records.recipe import Recipe
from memfit.tracing.calls import Call
from memfit.tracing.dispatch import Dispatch
from memfit.tracing.hidden.cpu import formula
from memfit.tracing.hidden.learn import run_call
from memfit.tracing.hidden.scratch import sequence_of_row
from memfit.tracing.hidden.sequences import Give, Output, Sequence, Take
from memfit.tracing.log import Log, Ran
from memfit.tracing.modules import ModulePaths
from memfit.tracing.watch import Watch


def calls_of(run: Callable[[Any], None]) -> list[tuple[Call, int]]:
    """The distinct calls of a run, and how many outputs each allocates."""
    log, modules = Log(), ModulePaths()
    dispatch = Dispatch(log, modules)
    with modules, dispatch:
        run(Watch(dispatch, modules))
    counts: dict[int, int] = {}
    for entry in log.entries:
        if isinstance(entry, Ran):
            counts[entry.call] = max(counts.get(entry.call, 0), len(entry.blocks))
    return [(call, counts[number]) for call, number in log.calls.items()]


def learnt(call: Call) -> Sequence:
    sequence = sequence_of_row({"events": [list(event) for event in run_call(call)]})
    assert sequence is not None
    return sequence


def shape_of(sequence: Sequence) -> list[tuple[Any, ...]]:
    """A sequence with its slots renumbered in order of appearance."""
    slots: dict[int, int] = {}
    shape: list[tuple[Any, ...]] = []
    for event in sequence.events:
        if isinstance(event, Output):
            shape.append(("output", event.index))
        elif isinstance(event, Take):
            slots[event.slot] = len(slots)
            shape.append(("take", slots[event.slot], event.num_bytes))
        elif isinstance(event, Give):
            shape.append(("give", slots[event.slot]))
    return shape


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", JOBS)
def test_formulas_are_what_the_ops_of_a_training_step_do(name: str, precision: str) -> None:
    recipe = Recipe(precision=precision, batch_size=2, checkpointing="every:2")
    covered = 0
    for call, num_outputs in calls_of(run_of(JOBS[name](), recipe, num_steps=1)):
        expected = formula(call, num_outputs)
        if expected is not None:
            covered += 1
            assert shape_of(expected) == shape_of(learnt(call)), call
    assert covered > 60


def attention(num_queries: int, dtype: torch.dtype = torch.float32) -> Callable[[Any], None]:
    def run(_: Any) -> None:
        q = torch.empty(1, 2, num_queries, 16, dtype=dtype, requires_grad=True)
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()

    return run


@pytest.mark.parametrize("num_queries", [1, 31, 32, 191, 192, 513, 767, 768, 1000])
def test_attention_takes_a_block_of_queries_a_thread(num_queries: int) -> None:
    flash = [
        (call, count) for call, count in calls_of(attention(num_queries)) if "flash" in call.op
    ]
    assert len(flash) == 2
    for call, num_outputs in flash:
        expected = formula(call, num_outputs)
        assert expected is not None
        assert shape_of(expected) == shape_of(learnt(call))


OPERANDS: dict[str, Callable[[], Any]] = {
    "a number is cast to the tensor's dtype": lambda: torch.empty(70, 70) * 2.5,
    "an integer is cast too": lambda: torch.empty(70, 70) + 1,
    "a half tensor is cast to its partner's dtype": lambda: (
        torch.empty(70, 70) + torch.empty(70, 70, dtype=torch.bfloat16)
    ),
    "integers need no cast of a whole number": lambda: torch.ones(70, 70, dtype=torch.int64) + 1,
    "comparing holds the number until the operands are ready": lambda: torch.empty(70, 70) > 0.5,
    "in place nothing is made": lambda: torch.empty(70, 70).add_(torch.empty(70, 70)),
    "a strided index is copied": lambda: F.embedding(
        torch.ones(4, 70, dtype=torch.int64)[:, :-1], torch.empty(99, 70)
    ),
    "dividing by a number": lambda: torch.empty(70, 70).div_(3),
    "the mean of rows": lambda: torch.empty(70, 70).mean(-1),
    "rows that are all minus infinity": lambda: torch.ops.aten._safe_softmax(
        torch.empty(2, 70, 70), -1
    ),
    "a base that is a number": lambda: 10000.0 ** torch.empty(70, 70),
    "a transposed matrix is made contiguous": lambda: torch.empty(70, 80).t().contiguous(),
    "a small transposed matrix is": lambda: torch.empty(50, 60).t().contiguous(),
    "a transposed matrix is copied": lambda: torch.empty(80, 70).copy_(torch.empty(70, 80).t()),
    "a transposed matrix is cast": lambda: torch.empty(70, 80).t().to(torch.bfloat16),
    "a transposed matrix is cloned as it is": lambda: torch.empty(70, 80).t().clone(),
    "a transposed matrix of bytes is made contiguous": lambda: (
        torch.empty(70, 80, dtype=torch.uint8).t().contiguous()
    ),
    "transposed matrices of a batch": lambda: torch.empty(2, 70, 80).transpose(1, 2).contiguous(),
    "transposed matrices are put together": lambda: torch.cat([torch.empty(70, 80).t()] * 2),
    "a transposed matrix is added to a product": lambda: torch.addmm(
        torch.empty(70, 80).t(), torch.empty(80, 60), torch.empty(60, 70)
    ),
    "a small one is": lambda: torch.addmm(
        torch.empty(50, 60).t(), torch.empty(60, 60), torch.empty(60, 50)
    ),
    "a transposed matrix is left out of a product": lambda: torch.addmm(
        torch.empty(70, 80).t(), torch.empty(80, 60), torch.empty(60, 70), beta=0
    ),
    "counting bools": lambda: torch.ones(70, 70, dtype=torch.bool).cumsum(-1),
    "adding up as another dtype": lambda: torch.empty(70, 70).cumsum(-1, dtype=torch.int32),
    "adding up as what they are": lambda: torch.ones(70, 70, dtype=torch.int64).cumsum(-1),
}


@pytest.mark.parametrize("expression", OPERANDS.values(), ids=OPERANDS.keys())
def test_operands(expression: Callable[[], Any]) -> None:
    for call, num_outputs in calls_of(lambda _: expression()):
        expected = formula(call, num_outputs)
        assert expected is not None, call
        assert shape_of(expected) == shape_of(learnt(call)), call


UNCOVERED: dict[str, Callable[[], Any]] = {
    "a large sum to one number goes in two passes": lambda: torch.empty(300, 300).sum(),
    "a sum in another dtype casts first": lambda: torch.empty(70, 70, dtype=torch.bfloat16).sum(
        -1, dtype=torch.float32
    ),
    "a bf16 sum over two dimensions goes through fp32": lambda: torch.empty(
        2, 64, 24, dtype=torch.bfloat16
    ).sum((0, 2)),
    "a matrix without a unit stride is copied": lambda: (
        torch.empty(70, 140)[:, ::2] @ torch.empty(70, 8)
    ),
    "a strided input of layer norm is copied": lambda: F.layer_norm(
        torch.empty(8, 70, 70).transpose(1, 2), (70,)
    ),
    "oneDNN's convolution": lambda: F.conv2d(torch.empty(1, 3, 40, 40), torch.empty(70, 3, 3, 3)),
}


@pytest.mark.parametrize("expression", UNCOVERED.values(), ids=UNCOVERED.keys())
def test_what_no_formula_covers_is_left_to_be_learnt(expression: Callable[[], Any]) -> None:
    formulas = [formula(call, count) for call, count in calls_of(lambda _: expression())]
    assert None in formulas


def test_learning_leaves_no_profiler_running() -> None:
    (call, _), *_ = calls_of(lambda _: torch.empty(70, 70))
    learnt(call)
    with CpuAllocations():
        pass
