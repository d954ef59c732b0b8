"""What fused attention takes: by formula from PyTorch's sources, kernel by kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cuda_calls import A100, B200, BF16, F32, H100, RTX_4090, inside, of, taken

from memfit.allocator.version import TorchVersion
from memfit.tracing.hidden.cuda.kernels import Kernels
from memfit.tracing.hidden.cuda.memory_efficient import choose

FLASH = "_scaled_dot_product_flash_attention"
CUDNN = "_scaled_dot_product_cudnn_attention"
EFFICIENT = "_scaled_dot_product_efficient_attention"


def heads(batch: int, num: int, length: int, size: int, **more: object):  # type: ignore[no-untyped-def]
    """A view (B, H, S, D) of a projection that lies as (B, S, H, D)."""
    stride = (length * num * size, size, num * size, 1)
    return of(batch, num, length, size, stride=stride, **more)  # type: ignore[arg-type]


def test_a_full_card_splits_no_keys_and_flash_takes_nothing() -> None:
    q = heads(8, 32, 2048, 128, dtype=BF16)
    assert inside(A100, FLASH, q, q, q, num_outputs=4) is None


def test_few_queries_split_the_keys_and_keep_partial_outputs_in_fp32() -> None:
    """1 x 4 x 64 on 108 SMs: 4 blocks of queries, 32 of keys; 32 splits fill most of the card."""
    q, k = heads(1, 4, 64, 64, dtype=BF16), heads(1, 4, 8192, 64, dtype=BF16)
    rows = 32 * 4 * 64 * 4
    assert inside(A100, FLASH, q, k, k, num_outputs=4) == [
        ("output", 0),
        ("output", 1),
        ("take", 0, rows),
        ("take", 1, rows * 64),
        ("output", 2),
        ("output", 3),
        ("give", 1),
        ("give", 0),
    ]


def test_dropout_makes_the_random_state_twice_and_splits_nothing() -> None:
    q, k = heads(1, 4, 64, 64, dtype=BF16), heads(1, 4, 8192, 64, dtype=BF16)
    new = replace(A100, version=TorchVersion(2, 7))
    assert inside(new, FLASH, q, k, k, 0.1, num_outputs=4) == [
        ("output", 0),
        ("output", 1),
        ("take", 0, 16),
        ("output", 3),
        ("output", 2),
        ("give", 0),
    ]


def test_flash_backward_sums_the_queries_gradient_in_fp32() -> None:
    q = heads(2, 16, 1000, 80, dtype=BF16)
    operands = q, q, q, q, q, of(2, 16, 1000), None, None, 1000, 1000, 0.0, True
    assert inside(A100, f"{FLASH}_backward", *operands, num_outputs=3) == [
        ("output", 0),
        ("output", 1),
        ("output", 2),
        ("take", 0, 2 * 16 * 1024 * 4),
        ("take", 1, 2 * 1024 * 16 * 96 * 4),
        ("give", 1),
        ("give", 0),
    ]


def test_flash_backward_copies_what_does_not_lie_as_batch_length_heads() -> None:
    """After rotary embeddings queries lie as (B, H, S, D), and so does the output."""
    q, gradient = of(2, 16, 1024, 64, dtype=BF16), heads(2, 16, 1024, 64, dtype=BF16)
    operands = gradient, q, q, q, q, of(2, 16, 1024), None, None, 1024, 1024, 0.0, True
    assert taken(A100, f"{FLASH}_backward", *operands, num_outputs=3)[0] == q.num_bytes


def test_flash_backward_of_grouped_heads_makes_keys_and_values_of_all_heads() -> None:
    q, k = heads(1, 32, 4096, 128, dtype=BF16), heads(1, 8, 4096, 128, dtype=BF16)
    operands = q, q, k, k, q, of(1, 32, 4096), None, None, 4096, 4096, 0.0, True
    sizes = taken(A100, f"{FLASH}_backward", *operands, num_outputs=3)
    assert sizes[2:] == [q.num_bytes, q.num_bytes]


def test_deterministic_flash_backward_sums_apart_for_each_processor() -> None:
    q = heads(1, 12, 1024, 64, dtype=BF16)
    operands = q, q, q, q, q, of(1, 12, 1024), None, None, 1024, 1024, 0.0, True
    plain, apart = (
        taken(kernels, f"{FLASH}_backward", *operands, num_outputs=3)[1]
        for kernels in (A100, replace(A100, deterministic=True))
    )
    assert apart == 9 * plain  # 108 SMs over 12 heads


def test_cudnn_makes_seed_and_offset_before_the_output() -> None:
    q = heads(2, 16, 1024, 64, dtype=BF16)
    assert inside(H100, CUDNN, q, q, q, None, True, num_outputs=4) == [
        ("output", index) for index in (2, 3, 0, 1)
    ]


def test_cudnn_backward_takes_fp32_sums_of_the_queries_gradient_and_of_rows() -> None:
    q = heads(2, 16, 1000, 64, dtype=BF16)
    operands = q, q, q, q, q, of(2, 16, 1000, 1)
    assert taken(H100, f"{CUDNN}_backward", *operands, num_outputs=3) == [
        2 * 16 * 1000 * 64 * 4 + 2 * 16 * 1000 * 4
    ]


def test_the_memory_efficient_forward_takes_an_output_in_fp32_for_wide_values() -> None:
    narrow, wide = (heads(1, 8, 512, size, dtype=BF16) for size in (128, 192))
    assert inside(A100, EFFICIENT, narrow, narrow, narrow, None, True, num_outputs=2) is None
    assert taken(A100, EFFICIENT, wide, wide, wide, None, True, num_outputs=2) == [
        8 * 512 * 192 * 4
    ]


@pytest.mark.parametrize(
    ("kernels", "size", "dtype", "tile"),
    [
        (A100, 64, BF16, (64, 64)),
        (A100, 128, BF16, (128, 128)),
        (H100, 128, BF16, (128, 128)),
        (B200, 128, BF16, (128, 128)),
        (RTX_4090, 96, BF16, (128, 64)),
        (RTX_4090, 128, BF16, (64, 64)),
        (A100, 256, BF16, (128, 64)),
        (A100, 64, F32, (64, 64)),
        (A100, 128, F32, (128, 64)),
        (RTX_4090, 128, F32, (64, 64)),
        (
            replace(A100, capability=(7, 5), shared_memory_per_block_bytes=65_536),
            128,
            F32,
            (64, 64),
        ),
    ],
)
def test_the_tile_is_the_first_that_fits_into_shared_memory(
    kernels: Kernels, size: int, dtype: object, tile: tuple[int, int]
) -> None:
    query = heads(1, 8, 512, size, dtype=dtype)
    kernel = choose(query, size, False, kernels)
    assert kernel is not None
    assert (kernel.queries, kernel.keys) == tile


def test_the_memory_efficient_backward_in_fp32_multiplies_sums_and_turns() -> None:
    """BERT on a 12 GB card: batch 8, 12 heads of 64, 128 tokens, fp32."""
    q = heads(8, 12, 128, 64)
    operands = q, q, q, q, None, q, of(8, 12, 128), None, None, 0.1, (True, True, True, False)
    card = replace(RTX_4090, capability=(8, 6), sms=28)
    rows, tiles = 8 * 12 * 128 * 4, 8 * 12 * 2 * (4 + 64 * 64) * 4
    assert inside(card, f"{EFFICIENT}_backward", *operands, num_outputs=3) == [
        ("output", 0),
        ("output", 1),
        ("output", 2),
        ("take", 0, q.num_bytes),
        ("take", 1, rows),
        ("take", 2, rows),
        ("give", 1),
        ("give", 0),
        ("take", 3, tiles),
        ("give", 2),
        ("give", 3),
    ]


def test_the_memory_efficient_backward_in_half_precision_has_one_buffer_of_row_sums() -> None:
    q = heads(8, 12, 512, 64, dtype=BF16)
    operands = q, q, q, q, None, q, of(8, 12, 512), None, None, 0.0, (True, True, True, False)
    assert taken(A100, f"{EFFICIENT}_backward", *operands, num_outputs=3) == [
        8 * 12 * 512 * 4,
        8 * 12 * 8 * (4 + 64 * 64) * 4,
    ]


def test_narrow_tiles_sum_keys_and_values_in_memory_as_often_as_keys_are_split() -> None:
    """A 4090 with heads of 128: tiles of 64 x 64, and 200 // 16 = 12 parts at most."""
    q = heads(1, 16, 2048, 128, dtype=BF16)
    operands = q, q, q, q, None, q, of(1, 16, 2048), None, None, 0.0, (True, True, True, False)
    per_head = 32 * 2 * (4 + 64 * 64) + 12 * 64 * (128 + 128)
    assert taken(RTX_4090, f"{EFFICIENT}_backward", *operands, num_outputs=3)[1] == (
        16 * per_head * 4
    )
