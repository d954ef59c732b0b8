"""The virtual GPU's kernels: outputs without data, known values, memory as CUDA takes it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from memfit.errors import BadInput
from memfit.records.timeline import Timeline

OnGpu = Callable[..., Any]
TracedOnGpu = Callable[..., tuple[Any, Timeline]]


def allocations(timeline: Timeline) -> list[tuple[str, int]]:
    """(op, bytes) of every block, in order."""
    ops = [timeline.names[code] for code in timeline.ops]
    return list(zip(ops, timeline.num_bytes.tolist(), strict=True))


def test_a_tensor_takes_its_bytes_and_gives_them_back_when_it_dies(on_gpu: OnGpu) -> None:
    def run() -> list[int]:
        seen = [torch.cuda.memory_allocated()]
        x = torch.empty(1000, 1000, device="cuda")
        seen.append(torch.cuda.memory_allocated())
        y = x[10:]
        del x
        seen.append(torch.cuda.memory_allocated())
        del y
        seen.append(torch.cuda.memory_allocated())
        return seen

    assert on_gpu(run) == [0, 4_000_256, 4_000_256, 0]


def test_an_op_takes_its_output_and_nothing_else(traced_on_gpu: TracedOnGpu) -> None:
    def run() -> None:
        x = torch.empty(256, device="cuda")
        torch.exp(x)
        x.exp_()
        x[::2] + 1

    _, timeline = traced_on_gpu(run)
    assert allocations(timeline) == [("aten::empty", 1024), ("aten::exp", 1024), ("aten::add", 512)]


def test_gradients_of_a_tensor_used_twice_are_added_in_place(traced_on_gpu: TracedOnGpu) -> None:
    def run() -> None:
        x = torch.zeros(1024, device="cuda", requires_grad=True)
        y = x * 2.0
        (y.exp() * y.sin()).backward(torch.ones(1024, device="cuda"))

    _, timeline = traced_on_gpu(run)
    assert Counter(op for op, _ in allocations(timeline))["aten::add"] == 0


def test_a_storage_has_one_owner(on_gpu: OnGpu) -> None:
    def run() -> tuple[int, int]:
        x = torch.zeros(8, device="cuda")
        return x._use_count(), torch._C._storage_Use_Count(x.untyped_storage()._cdata)

    # One for the tensor, and one for the storage object that was asked for just now.
    assert on_gpu(run) == (1, 2)


def test_small_values_that_hang_on_no_data_are_true(on_gpu: OnGpu) -> None:
    def run() -> list[Any]:
        positions = torch.arange(6, device="cuda").view(2, 3)
        mask = positions % 2 == 0
        positions[mask] += 100
        return [positions.cpu().tolist(), int(mask.sum()), positions.max().item()]

    assert on_gpu(run) == [[[100, 1, 102], [3, 104, 5]], 3, 104]


def test_values_that_went_to_the_device_come_back(on_gpu: OnGpu) -> None:
    assert on_gpu(lambda: torch.tensor([3, 1, 2]).cuda().sort()[0].cpu().tolist()) == [1, 2, 3]


def test_an_unknown_number_reads_as_1_and_the_line_is_named(traced_on_gpu: TracedOnGpu) -> None:
    def run() -> tuple[float, bool]:
        loss = torch.randn(4, device="cuda").sum()
        return loss.item(), bool(loss > 3)

    value, timeline = traced_on_gpu(run)
    assert value == (1.0, False)
    noted = timeline.facts["unknown values read"]
    line = run.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}" in noted


def test_a_loss_that_nobody_knows_is_taken_to_be_finite(on_gpu: OnGpu) -> None:
    def run() -> Any:
        values = torch.randn(600, 600, device="cuda", requires_grad=True)
        loss = values.sum()
        finite = torch.isfinite(loss), loss.isfinite(), values.isfinite().all()
        return (
            [bool(answer) for answer in finite],
            bool(torch.isnan(loss)),
            torch.equal(values, values),
            torch.equal(values, torch.randn_like(values)),
        )

    assert on_gpu(run) == ([True, True, True], False, True, False)


def test_a_write_of_unknown_values_makes_a_known_tensor_unknown(on_gpu: OnGpu) -> None:
    def run() -> float:
        x = torch.full((4,), 7.0, device="cuda")
        x += torch.randn(4, device="cuda")
        return x[0].item()

    assert on_gpu(run) == 1.0


def test_a_result_sized_by_unknown_values_is_as_large_as_it_can_be(
    traced_on_gpu: TracedOnGpu,
) -> None:
    def run() -> tuple[int, ...]:
        x = torch.randn(16, device="cuda")
        return tuple(x[x > 0].shape)

    value, timeline = traced_on_gpu(run)
    assert value == (16,)
    assert "taken as large as they can be" in timeline.facts["sizes from unknown values"]


def test_a_known_mask_gives_the_true_size(on_gpu: OnGpu) -> None:
    def run() -> tuple[int, ...]:
        x = torch.randn(8, 4096, device="cuda")
        keep = torch.tensor([True, False] * 4, device="cuda")
        return tuple(x[keep].shape)

    assert on_gpu(run) == (4, 4096)


def test_host_and_device_tensors_do_not_mix(on_gpu: OnGpu) -> None:
    def run() -> None:
        torch.ones(3) + torch.ones(3, device="cuda")

    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
        on_gpu(run)


def test_a_host_scalar_may_stand_among_device_tensors(on_gpu: OnGpu) -> None:
    def run() -> tuple[torch.dtype, str]:
        y = torch.ones(3, device="cuda", dtype=torch.bfloat16) * torch.tensor(2.0)
        return y.dtype, y.device.type

    assert on_gpu(run) == (torch.bfloat16, "cuda")


def test_an_op_without_a_shape_rule_is_refused_with_its_line(on_gpu: OnGpu) -> None:
    def run() -> None:
        torch.geqrf(torch.randn(8, 8, device="cuda"))

    with pytest.raises(BadInput, match=r"test_dispatch\.py:\d+: what aten::geqrf"):
        on_gpu(run)


def test_the_error_of_a_run_says_the_step_and_the_module(on_gpu: OnGpu) -> None:
    def run() -> None:
        model = torch.nn.Linear(4, 4, device="cuda")
        model(torch.ones(2, 5, device="cuda"))

    with pytest.raises(RuntimeError) as caught:
        on_gpu(run)
    where = "This was before the first step, init, in the model itself."
    assert any(where in note for note in caught.value.__notes__)
    assert any("in run\n" in note for note in caught.value.__notes__)


def test_backward_has_a_workspace_of_its_own_as_in_the_engines_thread(
    traced_on_gpu: TracedOnGpu,
) -> None:
    def run() -> None:
        weight = torch.zeros(64, 64, device="cuda", requires_grad=True)
        for _ in range(2):
            (torch.ones(8, 64, device="cuda") @ weight).sum().backward()

    _, timeline = traced_on_gpu(run, version="2.11")
    assert [size for _, size in allocations(timeline) if size > 10**6] == [8_519_680, 8_519_680]


def test_a_workspace_has_the_size_that_the_environment_asks_for(
    traced_on_gpu: TracedOnGpu,
) -> None:
    def run() -> None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
        torch.ones(8, 64, device="cuda") @ torch.ones(64, 8, device="cuda")

    _, timeline = traced_on_gpu(run)
    assert ("cuBLAS workspace", 16 * 8 * 1024) in allocations(timeline)


def test_a_process_that_has_run_backward_itself_can_trace(on_gpu: OnGpu) -> None:
    def run() -> tuple[int, ...]:
        x = torch.ones(3, device="cuda", requires_grad=True)
        x.exp().sum().backward()
        assert x.grad is not None
        return tuple(x.grad.shape)

    torch.ones(3, requires_grad=True).sum().backward()
    assert on_gpu(run) == (3,)


def test_layer_norm_keeps_fp32_statistics_of_a_half_precision_input(
    traced_on_gpu: TracedOnGpu,
) -> None:
    def run() -> None:
        x = torch.zeros(32, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        F.layer_norm(x, (64,))

    _, timeline = traced_on_gpu(run)
    assert allocations(timeline)[-3:] == [
        ("aten::native_layer_norm", 32 * 64 * 2),
        ("aten::native_layer_norm", 32 * 4),
        ("aten::native_layer_norm", 32 * 4),
    ]


def test_dropout_keeps_a_mask_of_a_byte_an_element(traced_on_gpu: TracedOnGpu) -> None:
    def run() -> None:
        F.dropout(torch.zeros(1024, device="cuda", requires_grad=True), 0.1)

    _, timeline = traced_on_gpu(run)
    assert allocations(timeline)[-2:] == [
        ("aten::native_dropout", 4096),
        ("aten::native_dropout", 1024),
    ]


def test_adamw_takes_the_foreach_path_and_its_list_of_square_roots(
    traced_on_gpu: TracedOnGpu,
) -> None:
    def run() -> None:
        weight = torch.nn.Parameter(torch.zeros(1000, device="cuda"))
        weight.grad = torch.zeros(1000, device="cuda")
        torch.optim.AdamW([weight]).step()

    _, timeline = traced_on_gpu(run)
    ops = [op for op, _ in allocations(timeline)]
    assert "aten::_foreach_sqrt" in ops
    assert "aten::sqrt" not in ops


def test_nothing_of_the_virtual_gpu_is_left_in_the_callers_process(on_gpu: OnGpu) -> None:
    before = {name: getattr(torch, name) for name in dir(torch)}
    cuda = {name: getattr(torch.cuda, name) for name in dir(torch.cuda)}
    tensor = dict(vars(torch.Tensor))
    on_gpu(lambda: torch.ones(2, device="cuda").sum().item())
    with pytest.raises(ZeroDivisionError):
        on_gpu(lambda: 1 // 0)
    assert {name: getattr(torch, name) for name in before} == before
    assert {name: getattr(torch.cuda, name) for name in cuda} == cuda
    assert dict(vars(torch.Tensor)) == tensor
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
