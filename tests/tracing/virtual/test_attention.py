"""Attention on the virtual GPU: the chosen kernel's outputs, saved tensors and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device_events import allocations, mark
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

OnGpu = Callable[..., Any]
BF16, FP32 = torch.bfloat16, torch.float32
B, H, S, D = 2, 4, 64, 64
HALF = B * H * S * D * 2
SUMS = B * H * S * 4


def heads(
    number: int = H, size: int = D, dtype: torch.dtype = BF16, length: int = S
) -> torch.Tensor:
    return torch.rand(B, number, length, size, device="cuda", dtype=dtype, requires_grad=True)


def test_flash_keeps_sums_and_two_random_states(traced_on_gpu: OnGpu) -> None:
    def run() -> str:
        q, k, v = heads(), heads(), heads()
        mark()
        return type(F.scaled_dot_product_attention(q, k, v, is_causal=True).grad_fn).__name__

    node, timeline = traced_on_gpu(run)
    assert node == "ScaledDotProductFlashAttentionBackward0"
    name = "_scaled_dot_product_flash_attention"
    assert allocations(timeline) == [(name, HALF), (name, SUMS), (name, 16), (name, 8)]


def test_cudnn_keeps_sums_and_two_seeds(traced_on_gpu: OnGpu) -> None:
    def run() -> str:
        q, k, v = heads(), heads(), heads()
        mark()
        return type(F.scaled_dot_product_attention(q, k, v).grad_fn).__name__

    node, timeline = traced_on_gpu(run, card="h100-80gb")
    assert node == "ScaledDotProductCudnnAttentionBackward0"
    assert sorted(num_bytes for _, num_bytes in allocations(timeline)) == [8, 8, SUMS, HALF]


def test_cudnn_keeps_no_sums_without_a_gradient(traced_on_gpu: OnGpu) -> None:
    def run() -> None:
        q, k, v = heads(), heads(), heads()
        mark()
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v)

    _, timeline = traced_on_gpu(run, card="h100-80gb")
    assert sorted(num_bytes for _, num_bytes in allocations(timeline)) == [8, 8, HALF]


def test_efficient_keeps_sums_of_whole_blocks_and_its_seeds_on_the_host(
    traced_on_gpu: OnGpu,
) -> None:
    def run() -> tuple[str, tuple[int, ...]]:
        q, k, v = (heads(dtype=FP32, length=40) for _ in range(3))
        mark()
        output = F.scaled_dot_product_attention(q, k, v)
        return type(output.grad_fn).__name__, output.stride()

    (node, strides), timeline = traced_on_gpu(run)
    assert node == "ScaledDotProductEfficientAttentionBackward0"
    assert strides == (40 * H * D, D, H * D, 1)
    assert [num_bytes for _, num_bytes in allocations(timeline)] == [
        B * H * 40 * D * 4,
        B * H * 64 * 4,
    ]


def test_a_bool_mask_becomes_an_added_one_of_its_own_shape(traced_on_gpu: OnGpu) -> None:
    def run() -> None:
        q, k, v = heads(), heads(), heads()
        mask = torch.ones(S, S, dtype=torch.bool, device="cuda")
        mark()
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    _, timeline = traced_on_gpu(run)
    sizes = [num_bytes for _, num_bytes in allocations(timeline)]
    assert sizes[:4] == [2, 2, S * S * 2, HALF]  # two scalars, the mask, the output


@pytest.mark.parametrize(("columns", "copied"), [(64, 0), (61, 64), (60, 64)])
def test_a_masks_rows_are_padded_to_multiples_of_8_for_the_efficient_kernel(
    traced_on_gpu: OnGpu, columns: int, copied: int
) -> None:
    def run() -> None:
        q, k, v = heads(), heads(length=columns), heads(length=columns)
        mask = torch.rand(S, columns, dtype=BF16, device="cuda")
        mark()
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    _, timeline = traced_on_gpu(run)
    sizes = [num_bytes for _, num_bytes in allocations(timeline)]
    assert sizes == [*([S * copied * 2] if copied else []), HALF, SUMS]


def test_heads_are_padded_to_multiples_of_8_for_flash_and_the_output_is_cut(
    traced_on_gpu: OnGpu,
) -> None:
    def run() -> tuple[list[int], list[int]]:
        q, k, v = (heads(size=60) for _ in range(3))
        mark()
        output = F.scaled_dot_product_attention(q, k, v)
        shape, strides = list(output.shape), list(output.stride())
        output.sum().backward()
        assert q.grad is not None and q.grad.shape == q.shape
        return shape, strides

    (shape, strides), timeline = traced_on_gpu(run)
    assert (shape, strides) == ([B, H, S, 60], [H * S * 64, S * 64, 64, 1])
    sizes = [num_bytes for _, num_bytes in allocations(timeline)]
    assert sizes[:5] == [HALF, HALF, HALF, HALF, SUMS]


def test_grouped_heads_are_not_repeated_by_flash_and_by_efficient_since_2_14(
    on_gpu: OnGpu,
) -> None:
    def run() -> list[Any]:
        seen = []
        for dtype in (BF16, FP32):
            q, k, v = heads(dtype=dtype), heads(2, dtype=dtype), heads(2, dtype=dtype)
            output = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            node = type(output.grad_fn).__name__
            output.sum().backward()
            assert k.grad is not None
            seen.append((node, tuple(k.grad.shape)))
        return seen

    shape = (B, 2, S, D)
    flash = ("ScaledDotProductFlashAttentionBackward0", shape)
    assert on_gpu(run) == [flash, ("UnsafeViewBackward0", shape)]
    efficient = ("ScaledDotProductEfficientAttentionBackward0", shape)
    assert on_gpu(run, version="2.14") == [flash, efficient]


def test_sdpa_kernel_switches_and_orders(on_gpu: OnGpu) -> None:
    def run() -> list[str]:
        nodes = []
        for backends, set_priority in (
            ([SDPBackend.MATH], False),
            ([SDPBackend.EFFICIENT_ATTENTION], False),
            ([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], False),
            ([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], True),
        ):
            with sdpa_kernel(backends, set_priority=set_priority):
                output = F.scaled_dot_product_attention(heads(), heads(), heads())
            nodes.append(type(output.grad_fn).__name__)
        return nodes

    assert on_gpu(run) == [
        "ToCopyBackward0",  # half precision is computed in fp32
        "ScaledDotProductEfficientAttentionBackward0",
        "ScaledDotProductFlashAttentionBackward0",
        "ScaledDotProductEfficientAttentionBackward0",
    ]


def test_no_kernel_is_an_error_with_the_reasons(on_gpu: OnGpu) -> None:
    def run() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(*(heads(dtype=FP32) for _ in range(3)))

    with pytest.raises(RuntimeError, match=r"No available kernel.*flash: it does not compute in"):
        on_gpu(run)


def test_dtypes_that_differ_are_an_error(on_gpu: OnGpu) -> None:
    def run() -> None:
        F.scaled_dot_product_attention(heads(), heads(dtype=FP32), heads())

    with pytest.raises(RuntimeError, match="to have the same dtype"):
        on_gpu(run)


def test_transformer_layers_train_and_infer(on_gpu: OnGpu) -> None:
    def run() -> list[tuple[int, ...]]:
        layer = nn.TransformerEncoderLayer(64, 4, batch_first=True, device="cuda")
        model = nn.TransformerEncoder(layer, 2)
        x = torch.rand(2, 10, 64, device="cuda")
        padding = torch.zeros(2, 10, dtype=torch.bool, device="cuda")
        causal = nn.Transformer.generate_square_subsequent_mask(10, device=torch.device("cuda"))
        model(x, mask=causal, is_causal=True).sum().backward()
        model(x, src_key_padding_mask=padding).sum().backward()
        model.eval()
        with torch.no_grad():
            outputs = [model(x), model(x, src_key_padding_mask=padding)]
        return [tuple(output.shape) for output in outputs]

    assert on_gpu(run) == [(2, 10, 64), (2, 10, 64)]


@pytest.mark.parametrize(("padding", "num_scores"), [(False, 0), (True, 2)])
def test_a_layer_in_use_takes_what_its_parts_take(
    traced_on_gpu: OnGpu, padding: bool, num_scores: int
) -> None:
    def run() -> None:
        layer = nn.TransformerEncoderLayer(64, 4, 512, batch_first=True, device="cuda").eval()
        x = torch.rand(B, S, 64, device="cuda")
        mask = torch.zeros(B, S, dtype=torch.bool, device="cuda") if padding else None
        mark()
        with torch.no_grad():
            layer(x, src_key_padding_mask=mask)

    _, timeline = traced_on_gpu(run)
    rows, scores = B * S * 64 * 4, B * 4 * S * S * 4
    sizes = [num_bytes for _, num_bytes in allocations(timeline)]
    assert sizes.count(8 * rows) == 1  # between the two layers of the net
    assert sizes.count(scores) == num_scores  # products, and their softmax where there is a mask
    assert sizes.count(3 * rows) == 1 + padding  # query, key and value, split with a copy


def test_torch_backends_cuda_says_what_would_run(on_gpu: OnGpu) -> None:
    def run() -> list[bool]:
        q, masked = heads(), torch.zeros(S, S, device="cuda", dtype=BF16)
        backends = torch.backends.cuda
        says = [backends.is_flash_attention_available()]
        for mask in (None, masked):
            params = backends.SDPAParams(q, q, q, mask, 0.0, False, False)
            says.append(backends.can_use_flash_attention(params))
            says.append(backends.can_use_efficient_attention(params))
        return says

    assert on_gpu(run) == [True, True, True, False, True]


def test_attention_with_weights_runs_the_plain_products(on_gpu: OnGpu) -> None:
    def run() -> tuple[tuple[int, ...], tuple[int, ...]]:
        layer = nn.MultiheadAttention(64, 4, batch_first=True, device="cuda")
        x = torch.rand(2, 10, 64, device="cuda")
        output, weights = layer(x, x, x)
        output.sum().backward()
        return tuple(output.shape), tuple(weights.shape)

    assert on_gpu(run) == ((2, 10, 64), (2, 10, 10))
