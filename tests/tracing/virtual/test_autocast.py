"""Autocast on the virtual GPU follows CUDA's lists, casts and keeps what CUDA does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from autocast_cases import UNKNOWN, dtypes_under_autocast
from device_events import allocations, events, mark
from fake_cuda import on_fake_cuda
from torch import nn

from memfit.allocator.version import TorchVersion
from memfit.tracing.virtual import autocast
from memfit.tracing.virtual.child import in_child

OnGpu = Callable[..., Any]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.skipif(
    torch.version.cuda is not None, reason="fake CUDA tensors ask a CUDA build for its driver"
)
def test_results_have_the_dtypes_that_cudas_own_lists_give(on_gpu: OnGpu) -> None:
    reference = in_child(lambda: on_fake_cuda(dtypes_under_autocast))
    known = {case: dtype for case, dtype in reference.items() if dtype != UNKNOWN}
    here = on_gpu(dtypes_under_autocast)
    assert len(known) > 290
    assert {case: here[case] for case in known} == known


def test_every_op_of_cudas_lists_has_a_policy_and_no_other_op() -> None:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_all_op_names()
    cudas = {
        name.removeprefix("aten::")
        for name in names
        if name.startswith("aten::") and has_kernel(name, "AutocastCUDA")
    }
    elsewhere = {"_cudnn_rnn"}  # in rnn: it flattens its weights anew
    # Named tensors, which torch had up to 2.11, are not on the virtual GPU.
    named = {name for name in cudas if "imname" in name or "names_" in name}
    assert cudas - elsewhere - named == autocast.listed(TorchVersion.parse(torch.__version__))


def test_a_weight_is_cast_once_in_a_region_and_dropped_at_its_end(traced_on_gpu: OnGpu) -> None:
    def run() -> None:
        layer = nn.Linear(256, 128, bias=False, device="cuda")
        x = torch.rand(64, 256, device="cuda")
        mark()
        with torch.no_grad(), torch.autocast("cuda", dtype=BF16):
            layer(x)
            layer(x)

    _, timeline = traced_on_gpu(run)
    weight, operand, output = 256 * 128 * 2, 64 * 256 * 2, 64 * 128 * 2
    in_region = [event for event in events(timeline) if "cuBLAS" not in event[0]][:10]
    assert in_region == [
        ("copy_", weight),
        ("copy_", operand),
        ("mm", output),
        ("copy_", -operand),
        ("mm", -output),
        ("copy_", operand),
        ("mm", output),
        ("copy_", -operand),
        ("mm", -output),
        ("copy_", -weight),
    ]


def test_operands_are_cast_last_to_first_and_freed_first_to_last(traced_on_gpu: OnGpu) -> None:
    def run() -> None:
        x, w, b = (torch.rand(size, device="cuda") for size in ((64, 256), (128, 256), (128,)))
        mark()
        with torch.autocast("cuda", dtype=BF16):
            nn.functional.linear(x, w, b)

    _, timeline = traced_on_gpu(run)
    x, w, b = 64 * 256 * 2, 128 * 256 * 2, 128 * 2
    casts = [num_bytes for op, num_bytes in events(timeline) if op == "copy_"]
    assert casts[:6] == [b, w, x, -x, -w, -b]


@pytest.mark.parametrize(
    ("version", "inference", "num_casts"),
    [("2.10", False, 1), ("2.13", False, 1), ("2.10", True, 1), ("2.13", True, 2)],
)
def test_casts_under_inference_mode_are_not_kept_since_2_11(
    on_gpu: OnGpu, version: str, inference: bool, num_casts: int
) -> None:
    def run() -> int:
        layer = nn.Linear(1024, 1024, bias=False, device="cuda")
        x = torch.rand(1, 1024, device="cuda", dtype=BF16)
        mode = torch.inference_mode if inference else torch.no_grad
        with mode(), torch.autocast("cuda", dtype=BF16):
            layer(x)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            layer(x)
            return 1 + (torch.cuda.max_memory_allocated() - before >= 1024 * 1024 * 2)

    assert on_gpu(run, version=version) == num_casts


@pytest.mark.parametrize(("version", "has_gradient"), [("2.10", False), ("2.11", True)])
def test_a_cast_made_under_no_grad_reaches_the_weight_since_2_11(
    on_gpu: OnGpu, version: str, has_gradient: bool
) -> None:
    def run() -> bool:
        layer = nn.Linear(8, 8, bias=False, device="cuda")
        x = torch.rand(2, 8, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=BF16):
            with torch.no_grad():
                layer(x)
            loss = layer(x * 1).sum()
        loss.backward()
        return layer.weight.grad is not None

    assert on_gpu(run, version=version) is has_gradient


def test_nothing_is_kept_with_cache_enabled_false(on_gpu: OnGpu) -> None:
    def run() -> int:
        layer = nn.Linear(1024, 1024, bias=False, device="cuda")
        x = torch.rand(1, 1024, device="cuda", dtype=BF16)
        before = torch.cuda.memory_allocated()
        with torch.no_grad(), torch.autocast("cuda", dtype=BF16, cache_enabled=False):
            layer(x)
            torch.cuda.synchronize()
            return torch.cuda.memory_allocated() - before

    assert on_gpu(run) < 1024 * 1024 * 2 + 8519680


def test_only_fp32_leaves_that_need_a_gradient_are_kept(on_gpu: OnGpu) -> None:
    def run() -> list[int]:
        kept = []
        leaf = torch.rand(1024, 1024, device="cuda")
        x = torch.rand(1, 1024, device="cuda", dtype=BF16)
        x @ x.T  # the workspace
        for weight in (leaf, leaf.clone().requires_grad_(), leaf.clone().requires_grad_() * 1):
            with torch.no_grad(), torch.autocast("cuda", dtype=BF16):
                before = torch.cuda.memory_allocated()
                torch.mm(x, weight)
                kept.append(torch.cuda.memory_allocated() - before)
        return kept

    assert on_gpu(run) == [0, 1024 * 1024 * 2, 0]


def test_fp16_softmax_casts_inside_its_kernel_and_bf16_before_it(traced_on_gpu: OnGpu) -> None:
    def run() -> None:
        fp16, bf16 = (torch.rand(64, 128, device="cuda", dtype=dtype) for dtype in (FP16, BF16))
        mark()
        with torch.autocast("cuda", dtype=FP16):
            fp16.softmax(-1)
            bf16.softmax(-1)

    _, timeline = traced_on_gpu(run)
    in_fp32 = 64 * 128 * 4
    assert allocations(timeline) == [
        ("_softmax", in_fp32),
        ("copy_", in_fp32),
        ("_softmax", in_fp32),
    ]


@pytest.mark.parametrize(("version", "dtype"), [("2.11", "bfloat16"), ("2.12", "float32")])
def test_rms_norm_runs_in_fp32_since_2_12(on_gpu: OnGpu, version: str, dtype: str) -> None:
    def run() -> str:
        with torch.autocast("cuda", dtype=BF16):
            x = torch.rand(4, 8, device="cuda", dtype=BF16)
            return str(nn.functional.rms_norm(x, (8,)).dtype)

    assert on_gpu(run, version=version) == f"torch.{dtype}"


def test_binary_cross_entropy_is_refused(on_gpu: OnGpu) -> None:
    def run() -> None:
        x = torch.rand(4, device="cuda")
        with torch.autocast("cuda"):
            nn.functional.binary_cross_entropy(x, x)

    with pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"):
        on_gpu(run)


def test_regions_nest_and_end(on_gpu: OnGpu) -> None:
    def run() -> list[str]:
        x = torch.rand(8, 8, device="cuda")
        dtypes = []
        with torch.autocast("cuda", dtype=BF16):
            dtypes.append((x @ x).dtype)
            with torch.autocast("cuda", enabled=False):
                dtypes.append((x @ x).dtype)
            with torch.autocast("cuda", dtype=FP16):
                dtypes.append((x @ x).dtype)
            with torch.autocast("cpu", dtype=BF16):
                dtypes.append((x @ x).dtype)
            dtypes.append((x @ x).dtype)
        dtypes.append((x @ x).dtype)
        return [str(dtype) for dtype in dtypes]

    names = ["bfloat16", "float32", "float16", "bfloat16", "bfloat16", "float32"]
    assert on_gpu(run) == [f"torch.{name}" for name in names]


def test_torch_is_told_that_autocast_is_on(on_gpu: OnGpu) -> None:
    def run() -> list[bool]:
        told = [torch.is_autocast_enabled("cuda")]
        with torch.autocast("cuda"):
            told += [torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")]
        torch.set_autocast_enabled("cuda", True)
        x = torch.rand(8, 8, device="cuda")
        told.append((x @ x).dtype is FP16)
        torch.set_autocast_enabled("cuda", False)
        return [*told, (x @ x).dtype is FP32]

    assert on_gpu(run) == [False, True, False, True, True]


def test_backward_inside_a_region_casts_to_the_regions_dtype(on_gpu: OnGpu) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            seen.append(str((gradient @ x).dtype))
            return gradient

    seen: list[str] = []

    def run() -> list[str]:
        x = torch.rand(8, 8, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=BF16):
            Product.apply(x).sum().backward()
        Product.apply(x).sum().backward()
        return seen

    assert on_gpu(run) == ["torch.bfloat16", "torch.float32"]


def test_a_scaler_scales_unscales_and_steps(on_gpu: OnGpu) -> None:
    def run() -> tuple[str, bool]:
        layer = nn.Linear(8, 8, device="cuda")
        optimizer = torch.optim.AdamW(layer.parameters())
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=FP16):
            loss = layer(torch.rand(2, 8, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert layer.weight.grad is not None
        return str(layer.weight.grad.dtype), bool(optimizer.state)

    assert on_gpu(run) == ("torch.float32", True)
