"""A trace behaves like the real run where code can see it, and leaves torch as it was."""

from __future__ import annotations

import gc
import random
import threading

import psutil
import pytest
import torch
from small_jobs import JOBS, run_of
from torch import nn
from torch.nn.modules import module as module_hooks

from memfit.devices.cpu_allocations import CpuAllocations
from memfit.errors import BadInput, MemfitError
from memfit.observer import Observer
from memfit.records.recipe import Recipe
from memfit.records.timeline import CATEGORIES, PHASES, Timeline
from memfit.tracing.step import trace


def sizes(timeline: Timeline) -> list[int]:
    return timeline.deltas().tolist()


def traced(body) -> Timeline:
    return trace(lambda observer: body())


def test_a_tensor_has_a_size_and_no_memory() -> None:
    process = psutil.Process()
    traced(lambda: torch.zeros(10).add_(1))  # what the first trace imports is not the tensor's
    before = process.memory_info().rss
    timeline = traced(lambda: torch.zeros(1 << 12, 1 << 20).add_(1))  # 16 GiB
    assert int(timeline.curve().max()) >= 16 << 30
    assert process.memory_info().rss - before < 64 << 20


def test_tensors_are_plain_tensors_of_the_cpu() -> None:
    def body() -> None:
        x = nn.Linear(2000, 2000).weight
        assert type(x) is nn.Parameter
        y = x @ x
        assert type(y) is torch.Tensor
        assert y.device.type == "cpu"
        assert not y.is_meta

    traced(body)


def test_small_tensors_that_depend_on_no_data_are_real() -> None:
    def body() -> None:
        assert torch.arange(5).sum().item() == 10
        steps = torch.tensor(3.0)
        steps += 1
        assert steps.item() == 4.0
        mask = torch.ones(2, 3, dtype=torch.bool).tril()
        assert mask.nonzero().shape == (3, 2)

    traced(body)


def test_a_small_tensor_takes_what_lies_between_its_numbers_too() -> None:
    timeline = traced(lambda: torch.empty_strided((8, 5), (10, 2)))
    assert sizes(timeline) == [79 * 4, -79 * 4]


def test_a_number_that_only_the_run_would_know_reads_as_one() -> None:
    answers = []

    def body() -> None:
        x = torch.randn(100, 100)
        answers.append((x.sum().item(), (x > 0).all().item(), x.argmax().item()))

    timeline = traced(body)
    assert answers == [(1.0, False, 1)]
    assert "test_dispatch.py" in timeline.facts["unknown values read"]


def test_a_users_own_folder_may_be_called_memfit_or_torch() -> None:
    train = "/home/me/memfit/torch/train.py"
    code = compile("torch.randn(100, 100).sum().item()", train, "exec")
    timeline = traced(lambda: exec(code, {"torch": torch}))
    assert f"{train}:1 " in timeline.facts["unknown values read"]


def test_writing_unknown_values_into_a_known_tensor_makes_it_unknown() -> None:
    answers = []

    def body() -> None:
        total = torch.zeros(())
        total += torch.randn(100, 100).sum()
        answers.append(total.item())

    traced(body)
    assert answers == [1.0]


def test_a_result_whose_size_hangs_on_unknown_values_is_refused_with_its_line() -> None:
    with pytest.raises(BadInput, match=r"test_dispatch\.py:\d+: aten::nonzero"):
        traced(lambda: torch.randn(100, 100).nonzero())


@pytest.mark.parametrize(
    "body",
    [
        lambda: torch.randn(99, 99)[torch.randn(99, 99) > 0],
        lambda: torch.randint(5, (9_000_000,)).bincount(),
        lambda: torch.randn(99, 99).to_sparse(),
    ],
    ids=["a mask as index", "counting", "a sparse tensor"],
)
def test_what_cannot_be_told_without_data_is_refused_with_its_line(body) -> None:
    with pytest.raises(BadInput, match=r"test_dispatch\.py:\d+: what aten::"):
        traced(body)


def test_views_share_their_block() -> None:
    timeline = traced(lambda: torch.empty(300, 300).t()[:5].reshape(-1).view(-1))
    assert sizes(timeline)[0] == 300 * 300 * 4
    assert (timeline.num_bytes == 300 * 300 * 4).sum() == 1


def test_gradients_of_one_tensor_add_up_in_place_as_they_do_without_a_trace() -> None:
    def body() -> None:
        x = torch.empty(100, 100, requires_grad=True)
        h = x * 2
        (h.relu() + h.relu() + h.relu()).sum().backward()

    listener = CpuAllocations()
    body()
    with listener:
        body()
    assert sizes(traced(body)) == [event.num_bytes for event in listener.events]


def test_numbers_that_torch_wraps_are_counted_for_as_long_as_autograd_keeps_them() -> None:
    def body() -> None:
        x = torch.empty(100, 100, requires_grad=True)
        (x * 3.0).sum().backward()

    timeline = traced(body)
    wrapped = timeline.num_bytes == 8
    assert wrapped.sum() == 1
    assert CATEGORIES[timeline.categories[wrapped][0]] == "other"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_torch_is_left_as_it_was_when_the_job_raises(error: type[BaseException]) -> None:
    def body() -> None:
        torch.empty(100, 100)
        raise error("stop")

    hooks = (
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
    )
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.get_rng_state(), random.getstate()
    with pytest.raises(error, match="stop"):
        traced(body)
    assert torch.equal(torch.get_rng_state(), expected[0])
    assert random.getstate() == expected[1]
    assert hooks == (
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
    )
    assert gc.isenabled()
    assert not torch._C._autograd._profiler_enabled()
    assert torch.full((2000,), 2.0).sum().item() == 4000.0


def test_a_tensor_that_outlives_its_trace_is_harmless() -> None:
    kept = []
    traced(lambda: kept.append(torch.empty(1000, 1000)))
    assert kept[0].sum().item() == 0.0
    kept.clear()


def test_one_trace_at_a_time() -> None:
    with pytest.raises(MemfitError, match="one at a time"):
        traced(lambda: traced(lambda: None))


def test_another_thread_keeps_its_data() -> None:
    seen = []

    def body() -> None:
        thread = threading.Thread(target=lambda: seen.append(torch.full((9999,), 2.0).sum().item()))
        thread.start()
        thread.join()

    traced(body)
    assert seen == [2.0 * 9999]


def test_a_module_is_named_in_forward_in_backward_and_when_it_is_recomputed() -> None:
    timeline = trace(run_of(JOBS["gpt2"](), Recipe(checkpointing="full"), num_steps=1))
    made = timeline.events > 0
    blocks = timeline.events[made] - 1
    for phase in ("forward", "backward"):
        inside = timeline.phases[made] == PHASES.index(phase)
        names = {timeline.names[m] for m in timeline.modules[blocks[inside]]}
        assert {"transformer.h.0.mlp.c_fc", "transformer.h.1.attn.c_attn"} <= names


def test_what_is_alive_after_a_step_is_parameters_and_state() -> None:
    job, recipe = JOBS["llama"](), Recipe()
    parts: dict[str, int] = {}

    def run(observer: Observer) -> None:
        from memfit.techniques import run as pieces

        applied = pieces.build(job, recipe, observer)
        pieces.take_step(applied, 1, lambda: job.batch(1, 16), observer)
        observer.phase("eval")
        parts["parameters"] = sum(p.nbytes for p in applied.model.parameters())
        counts_of_steps = 4 * len(list(applied.model.parameters()))
        parts["optimizer_state"] = 2 * parts["parameters"] + counts_of_steps
        kept.append(applied)

    kept: list[object] = []
    timeline = trace(run)
    breakdown = timeline.breakdown(len(timeline.events) - 1)
    buffers = breakdown["parameters"] - parts["parameters"]
    assert 0 <= buffers < 1000
    assert breakdown["optimizer_state"] == parts["optimizer_state"]
    assert set(breakdown) <= {"parameters", "optimizer_state", "other"}
