"""Which attention kernel CUDA runs, rule by rule, and why not the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from memfit.allocator.version import TorchVersion
from memfit.tracing.calls import TensorSpec
from memfit.tracing.virtual.attention_choice import (
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    Attention,
    Choice,
    Switches,
    choose,
    default_order,
)

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
T4, V100, A100, RTX_3090, RTX_4090 = (7, 5), (7, 0), (8, 0), (8, 6), (8, 9)
H100, B200, RTX_5090 = (9, 0), (10, 0), (12, 0)
V2_6, V2_8, V2_9, V2_10, V2_11, V2_13, V2_14 = (
    TorchVersion(2, minor) for minor in (6, 8, 9, 10, 11, 13, 14)
)


def spec(*shape: int, dtype: torch.dtype = BF16, offset: int = 0) -> TensorSpec:
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return TensorSpec(shape, tuple(strides), dtype, offset, 0)


def attention(
    *,
    dtype: torch.dtype = BF16,
    batch: int = 2,
    heads: int = 8,
    key_heads: int | None = None,
    length: int = 128,
    key_length: int | None = None,
    size: int = 64,
    value_size: int | None = None,
    mask: tuple[int, ...] | None = None,
    **rest: Any,
) -> Attention:
    columns = length if key_length is None else key_length
    of_keys = heads if key_heads is None else key_heads
    return Attention(
        query=spec(batch, heads, length, size, dtype=dtype),
        key=spec(batch, of_keys, columns, size, dtype=dtype),
        value=spec(batch, of_keys, columns, value_size or size, dtype=dtype),
        mask=None if mask is None else spec(*mask, dtype=dtype),
        **rest,
    )


def chosen(
    call: Attention, card: tuple[int, int], version: TorchVersion = V2_13, **switches: Any
) -> Choice:
    return choose(call, card, version, Switches(order=default_order(card, version), **switches))


TRAINS = {"needs_grad": True}
GQA = {"key_heads": 2, "enable_gqa": True}
MASK = {"mask": (128, 128)}


@pytest.mark.parametrize(
    ("card", "version", "call", "kernel"),
    [
        # the table of common cases
        (A100, V2_13, {}, FLASH),
        (RTX_4090, V2_13, {}, FLASH),
        (RTX_5090, V2_13, {}, FLASH),
        (RTX_4090, V2_13, MASK, EFFICIENT),
        (RTX_4090, V2_13, {"dtype": FP32}, EFFICIENT),
        (RTX_4090, V2_13, {"dtype": FP64}, MATH),
        (H100, V2_11, {}, CUDNN),
        (H100, V2_11, MASK, CUDNN),
        (B200, V2_13, {}, CUDNN),
        (H100, V2_13, {"dtype": FP32}, EFFICIENT),
        (H100, V2_6, {}, FLASH),
        (H100, V2_8, MASK, EFFICIENT),
        (H100, V2_9, {}, CUDNN),
        (H100, V2_10, {}, FLASH),
        # cards before Ampere
        (T4, V2_13, {"dtype": FP16}, EFFICIENT),
        (T4, V2_13, {"dtype": BF16}, MATH),
        (V100, V2_13, {"dtype": FP32, "size": 63}, EFFICIENT),
        (V100, V2_13, {"dtype": FP16, "size": 60}, MATH),
        # sizes of a head
        (A100, V2_13, {"size": 63}, FLASH),
        (A100, V2_13, {"size": 256}, FLASH),
        (A100, V2_13, {"size": 264}, EFFICIENT),
        (A100, V2_13, {"value_size": 128}, EFFICIENT),
        (A100, V2_13, {"size": 60, **MASK}, MATH),
        (A100, V2_13, {"dtype": FP32, "size": 60}, EFFICIENT),
        (A100, V2_13, {"dtype": FP32, "size": 62}, MATH),
        (RTX_3090, V2_13, {"size": 192, **TRAINS}, FLASH),
        (RTX_3090, V2_13, {"size": 200}, FLASH),
        (RTX_3090, V2_13, {"size": 200, **TRAINS}, EFFICIENT),
        (RTX_5090, V2_13, {"size": 224, **TRAINS}, EFFICIENT),
        (RTX_4090, V2_13, {"size": 232, **TRAINS}, FLASH),
        (RTX_4090, V2_13, {"size": 232, "dropout": 0.1, **TRAINS}, EFFICIENT),
        (A100, V2_13, {"size": 200, **TRAINS}, FLASH),
        (H100, V2_13, {"size": 136}, FLASH),
        (H100, V2_13, {"size": 192, "value_size": 128}, CUDNN),
        (H100, V2_13, {"size": 60}, FLASH),
        (H100, V2_14, {"size": 256, **TRAINS}, CUDNN),
        (H100, V2_14, {"size": 200}, CUDNN),
        (H100, V2_14, {"size": 200, **TRAINS}, FLASH),
        # causal over what is not a square
        (A100, V2_13, {"is_causal": True}, FLASH),
        (A100, V2_13, {"is_causal": True, "key_length": 256}, EFFICIENT),
        # lengths
        (A100, V2_13, {"key_length": 0}, MATH),
        (H100, V2_13, {"key_length": 1}, FLASH),
        (H100, V2_13, {"length": 1, "key_length": 128}, CUDNN),
        (H100, V2_13, {"length": 1, "key_length": 128, "dropout": 0.125}, FLASH),
        # dropout in sixteenths
        (H100, V2_13, {"dropout": 0.125}, CUDNN),
        (H100, V2_13, {"dropout": 0.1}, FLASH),
        # large batches
        (H100, V2_13, {"batch": 65535, "length": 2}, CUDNN),
        (H100, V2_13, {"batch": 65536, "length": 2}, FLASH),
        # masks
        (H100, V2_13, {"mask": (2, 1, 128, 128)}, CUDNN),
        (H100, V2_13, {"mask": (1, 8, 1, 128)}, CUDNN),
        (H100, V2_13, {"mask": (2, 128, 128)}, EFFICIENT),
        (H100, V2_13, {**MASK, "mask_needs_grad": True}, EFFICIENT),
        # grouped heads
        (A100, V2_13, GQA, FLASH),
        (H100, V2_13, GQA, CUDNN),
        (A100, V2_13, {**GQA, **MASK}, MATH),
        (A100, V2_14, {**GQA, **MASK}, EFFICIENT),
        (A100, V2_13, {"key_heads": 3, "enable_gqa": True}, MATH),
        (A100, V2_13, {"key_heads": 2}, MATH),
        (A100, V2_13, {"key_heads": 1}, MATH),
        (A100, V2_14, {"key_heads": 1}, FLASH),
    ],
)
def test_the_kernel(
    card: tuple[int, int], version: TorchVersion, call: dict[str, Any], kernel: str
) -> None:
    assert chosen(attention(**call), card, version).kernel == kernel


def test_three_dimensions_go_to_math() -> None:
    flat = spec(8, 128, 64)
    assert chosen(Attention(query=flat, key=flat, value=flat), A100).kernel == MATH


def test_a_batch_that_differs_goes_to_math() -> None:
    call = attention()
    assert chosen(replace(call, key=spec(1, 8, 128, 64)), A100).kernel == MATH


def test_a_strided_last_dimension_goes_to_math() -> None:
    call = attention()
    strided = replace(call.query, stride=(*call.query.stride[:-1], 2))
    assert chosen(replace(call, query=strided), A100).kernel == MATH


def test_a_strided_dimension_of_size_1_is_no_matter_to_flash() -> None:
    call = attention(size=1)
    strided = replace(call.query, stride=(*call.query.stride[:-1], 2))
    assert chosen(replace(call, query=strided), A100).kernel == FLASH


def test_an_expanded_column_of_a_mask_goes_to_math() -> None:
    mask = TensorSpec((128, 128), (1, 0), BF16, 0, 0)
    assert chosen(replace(attention(), mask=mask), H100).kernel == MATH


@pytest.mark.parametrize(("version", "kernel"), [(V2_13, EFFICIENT), (V2_14, MATH)])
def test_a_start_off_alignment_goes_to_math_since_2_14(version: TorchVersion, kernel: str) -> None:
    call = attention(dtype=FP32)
    shifted = replace(call, query=replace(call.query, offset=2))
    assert chosen(shifted, A100, version).kernel == kernel


def test_deterministic_algorithms_leave_cudnn_out() -> None:
    assert chosen(attention(), H100, deterministic=True).kernel == FLASH


def test_what_is_switched_off_is_not_chosen() -> None:
    enabled = frozenset({EFFICIENT, MATH})
    assert chosen(attention(), H100, enabled=enabled).kernel == EFFICIENT


def test_a_given_order_is_kept() -> None:
    switches = Switches(order=(EFFICIENT, FLASH))
    assert choose(attention(), H100, V2_13, switches).kernel == EFFICIENT


def test_the_choice_says_why_not_the_others() -> None:
    choice = chosen(attention(is_causal=True, length=128, key_length=64, size=136), H100)
    assert choice == Choice(
        kernel=EFFICIENT,
        refusals=(
            (CUDNN, "a head of 136 is over 128"),
            (FLASH, "it is causal over 128 x 64, not a square"),
        ),
    )
    assert choice.explain() == (
        "efficient; not cudnn: a head of 136 is over 128; not flash: it is causal over 128 x 64, "
        "not a square"
    )


def test_no_kernel_may_be_left() -> None:
    choice = chosen(attention(dtype=FP32), A100, enabled=frozenset({FLASH}))
    assert choice.kernel == ""
    assert choice.explain() == (
        "no kernel; not flash: it does not compute in float32 on this card; not efficient: it is "
        "switched off; not math: it is switched off; not cudnn: it is switched off"
    )
