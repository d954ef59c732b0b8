"""The functions that training code calls run on the virtual GPU, forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_events import allocations, mark
from fake_cuda import Path, is_fakes_fault, on_fake_cuda
from functionals import FUNCTIONALS, Described, train
from torch import nn

from memfit.tracing.virtual.child import in_child

OnGpu = Callable[..., Any]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def _all(device: str, dtype: torch.dtype) -> dict[str, Described]:
    described = {}
    for name in FUNCTIONALS:
        with contextlib.suppress(NotImplementedError, RuntimeError):
            described[name] = train(name, device, dtype)
    return described


CHOSEN_HERE = ("_scaled_dot_product", "_fused_rms_norm", "cudnn_batch_norm")
"""Kernels that C++ leaves for others on fake tensors, as they ask for a GPU."""


def _paths() -> dict[tuple[str, str, bool], list[str]]:
    """(function, dtype, under autocast) -> the ops that reach the kernels, and the result."""
    paths = {}
    for dtype, autocast, region in ((FP32, False, BF16), (FP32, True, BF16), (FP16, True, FP16)):
        for name, functional in FUNCTIONALS.items():
            operands = [torch.empty(s, device="cuda:0", dtype=dtype) for s in functional.shapes]
            with torch.autocast("cuda", dtype=region, enabled=autocast), Path() as path:
                try:
                    result = functional.function("cuda:0", *operands)
                except Exception as error:
                    if is_fakes_fault(error) or name == "ctc_loss":  # lengths on the host
                        continue
                    raise
            described = f"{result.dtype}{list(result.stride())}"
            paths[name, str(dtype), autocast] = [*path.ops, described]
    return paths


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_functions_are_composed_of_the_ops_that_cuda_composes_them_of(on_gpu: OnGpu) -> None:
    cudas = in_child(lambda: on_fake_cuda(_paths))
    here = {
        case: path
        for case, path in on_gpu(_paths).items()
        if not any(op.startswith(CHOSEN_HERE) for op in path)
    }
    both = cudas.keys() & here.keys()
    assert len(both) > 500
    assert {case: here[case] for case in both} == {case: cudas[case] for case in both}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_shapes_and_dtypes_are_those_of_the_host(on_gpu: OnGpu, dtype: torch.dtype) -> None:
    host = _all("cpu", dtype)
    assert len(host) > 140
    here = on_gpu(lambda: _all("cuda", dtype))
    assert {name: here.get(name) for name in host} == host


@pytest.mark.filterwarnings("ignore")
def test_all_run_in_bf16_even_those_that_the_host_lacks(on_gpu: OnGpu) -> None:
    assert set(FUNCTIONALS) == set(on_gpu(lambda: _all("cuda", BF16)))


@pytest.mark.filterwarnings("ignore")
def test_all_train_under_autocast_and_give_fp32_gradients(on_gpu: OnGpu) -> None:
    def run() -> dict[str, Described]:
        return {name: train(name, "cuda", FP32, autocast=BF16) for name in FUNCTIONALS}

    described = on_gpu(run)
    fp32 = _all("cpu", FP32)
    shapes = {name: [shape for shape, _ in described[name]] for name in fp32}
    assert shapes == {name: [shape for shape, _ in rows] for name, rows in fp32.items()}
    assert {dtype for rows in described.values() for _, dtype in rows[1:]} == {"torch.float32"}


@pytest.mark.parametrize(
    ("dtype", "weights", "shape", "node"),
    [
        (FP32, FP32, (2, 8, 4, 4), "CudnnBatchNorm"),
        (FP16, FP32, (2, 8, 4, 4), "CudnnBatchNorm"),
        (FP16, FP16, (2, 8, 4, 4), "NativeBatchNorm"),
        (BF16, FP32, (2, 8, 4, 4), "NativeBatchNorm"),
        (FP32, FP32, (2, 8), "NativeBatchNorm"),
    ],
)
def test_cudnn_normalizes_batches_of_fp32_and_of_fp16_with_fp32_weights(
    on_gpu: OnGpu, dtype: torch.dtype, weights: torch.dtype, shape: tuple[int, ...], node: str
) -> None:
    def run() -> str:
        norm = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(8)
        norm = norm.to("cuda", weights)
        output = norm(torch.rand(shape, device="cuda", dtype=dtype))
        output.float().sum().backward()
        return type(output.grad_fn).__name__

    assert on_gpu(run) == f"{node}Backward0"


def test_a_batch_norm_keeps_mean_and_deviation_in_fp32(traced_on_gpu: OnGpu) -> None:
    def run() -> None:
        norm = nn.BatchNorm2d(8, device="cuda")
        image = torch.rand(2, 8, 4, 4, device="cuda", dtype=BF16)
        mark()
        norm(image)

    _, timeline = traced_on_gpu(run)
    sizes = [num_bytes for _, num_bytes in allocations(timeline)]
    assert sizes[-3:] == [2 * 8 * 16 * 2, 8 * 4, 8 * 4]


def test_layer_norm_keeps_its_statistics_in_fp32_and_group_norm_in_its_weights_dtype(
    traced_on_gpu: OnGpu,
) -> None:
    def run() -> None:
        rows = torch.rand(16, 64, device="cuda", dtype=BF16)
        image = torch.rand(2, 8, 4, device="cuda", dtype=BF16)
        norms = nn.LayerNorm(64, device="cuda", dtype=BF16), nn.GroupNorm(2, 8, device="cuda")
        mark()
        norms[0](rows)
        norms[1](image)

    _, timeline = traced_on_gpu(run)
    sizes = dict[str, list[int]]()
    for op, num_bytes in allocations(timeline):
        sizes.setdefault(op, []).append(num_bytes)
    assert sizes["native_layer_norm"] == [16 * 64 * 2, 16 * 4, 16 * 4]
    assert sizes["native_group_norm"][:3] == [2 * 8 * 4 * 2, 2 * 2 * 4, 2 * 2 * 4]


@pytest.mark.parametrize(("version", "is_fused"), [("2.8", False), ("2.9", True)])
def test_rms_norm_is_one_kernel_since_2_9(on_gpu: OnGpu, version: str, is_fused: bool) -> None:
    def run() -> str:
        norm = nn.RMSNorm(64, device="cuda", dtype=BF16)
        output = norm(torch.rand(16, 64, device="cuda", dtype=BF16))
        output.sum().backward()
        return type(output.grad_fn).__name__

    assert (on_gpu(run, version=version) == "FusedRmsNormBackward0") is is_fused


@pytest.mark.parametrize(("version", "sizes"), [("2.6", [4, 4, 4, 2, 2]), ("2.7", [4, 4, 4, 4, 2])])
def test_rms_norm_of_bf16_is_weighed_in_fp32_since_2_7(
    traced_on_gpu: OnGpu, version: str, sizes: list[int]
) -> None:
    def run() -> None:
        norm = nn.RMSNorm(64, device="cuda", dtype=BF16)
        x = torch.rand(16, 64, device="cuda", dtype=BF16)
        mark()
        norm(x)

    _, timeline = traced_on_gpu(run, version=version)
    large = [num_bytes for _, num_bytes in allocations(timeline) if num_bytes > 64]
    assert large == [16 * 64 * size for size in sizes]


def test_a_mask_as_index_takes_its_places_and_one_result(traced_on_gpu: OnGpu) -> None:
    def run() -> list[int]:
        x = torch.rand(64, 100, device="cuda")
        mask = torch.rand(64, device="cuda") > 0.5
        mark()
        return list(x[mask].shape)

    shape, timeline = traced_on_gpu(run)
    assert shape == [64, 100]
    # Counting comes before the places, selecting after them: CUB's scratch, in bytes.
    places = [("nonzero", 4), ("nonzero", 1), ("nonzero", 64 * 8), ("nonzero", 767)]
    assert allocations(timeline) == [*places, ("index", 64 * 100 * 4)]


def test_dropout_keeps_a_mask_of_a_byte_an_element(traced_on_gpu: OnGpu) -> None:
    def run() -> None:
        x = torch.rand(1024, device="cuda", requires_grad=True)
        mark()
        nn.functional.dropout(x, 0.1)

    _, timeline = traced_on_gpu(run)
    assert allocations(timeline) == [("native_dropout", 4096), ("native_dropout", 1024)]


def test_one_operand_in_channels_last_decides_for_a_convolution(on_gpu: OnGpu) -> None:
    def run() -> list[bool]:
        last = torch.channels_last
        seen = []
        for of_image, of_weight in ((False, False), (True, False), (False, True)):
            image = torch.rand(2, 3, 8, 8, device="cuda")
            conv = nn.Conv2d(3, 6, 3, device="cuda")
            image = image.to(memory_format=last) if of_image else image
            conv = conv.to(memory_format=last) if of_weight else conv
            image.requires_grad_()
            output = conv(image)
            output.sum().backward()
            assert image.grad is not None and image.grad.stride() == image.stride()
            seen.append(output.is_contiguous(memory_format=last))
        return seen

    assert on_gpu(run) == [False, True, True]


def test_an_image_net_trains_in_channels_last_under_autocast(on_gpu: OnGpu) -> None:
    def run() -> tuple[tuple[int, ...], str]:
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        ).to("cuda", memory_format=torch.channels_last)
        images = torch.rand(4, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=BF16):
            logits = net(images)
            loss = nn.functional.cross_entropy(logits, torch.zeros(4, dtype=int, device="cuda"))
        loss.backward()
        return tuple(net[0].weight.grad.stride()), str(loss.dtype)

    assert on_gpu(run) == ((27, 1, 9, 3), "torch.float32")


def test_values_are_counted_where_they_are_known_and_else_taken_to_differ(on_gpu: OnGpu) -> None:
    def run() -> list[Any]:
        known = torch.tensor([[3, 1], [3, 1]], device="cuda")
        unknown = torch.rand(2, 5, device="cuda").argsort(1)
        seen: list[Any] = [torch.unique(known).tolist(), torch.bincount(known.flatten()).tolist()]
        for x in (known, unknown):
            values, places, counts = torch.unique(x, return_inverse=True, return_counts=True)
            seen.append([tuple(t.shape) for t in (values, places, counts)])
            seen.append(tuple(torch.unique(x, dim=0).shape))
        return [*seen, tuple(torch.bincount(unknown.flatten(), minlength=8).shape)]

    assert on_gpu(run) == [
        [1, 3],
        [0, 2, 0, 2],
        [(2,), (2, 2), (2,)],
        (1, 2),
        [(10,), (2, 5), (10,)],
        (2, 5),
        (8,),
    ]
