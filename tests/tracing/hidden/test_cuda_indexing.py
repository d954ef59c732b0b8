"""Gradients of look-ups: the sizes recorded, and those that follow from CUB's sources."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cuda_calls import A100, B200, BF16, H100, I64, RTX_4090, inside, of, taken

from memfit.allocator.version import TorchVersion
from memfit.tracing.hidden.cuda.cub import num_bits_of, radix_sort_pairs_bytes


@pytest.mark.parametrize(
    ("num_indices", "sorting"),
    [(512, 1), (1000, 1), (1024, 1), (1500, 1), (2000, 1), (2048, 1), (4096, 72_191)],
)
def test_an_accumulating_index_put_takes_what_was_recorded_in_that_order(
    num_indices: int, sorting: int
) -> None:
    """Course models A and B on torch 2.6 and 2.11: 10,000 rows, int64 indices."""
    each = num_indices * 8
    operands = of(10_000, 512), (of(num_indices, dtype=I64),), of(num_indices, 512), True
    assert inside(A100, "_index_put_impl_", *operands) == [
        ("take", 0, each),  # wrapped
        ("take", 1, each),  # linear
        ("give", 0),
        ("take", 2, each),  # sorted
        ("take", 3, each),  # their numbers
        ("take", 4, each),  # a range
        ("take", 5, sorting),
        ("give", 5),
        ("give", 4),
        ("give", 3),
        ("give", 2),
        ("give", 1),
    ]


def test_a_host_index_beside_a_device_index_takes_what_was_recorded_in_that_order() -> None:
    """``losses[arange, labels]`` with a host ``arange``: the 2.7b course model, 512 tokens."""
    operands = (
        of(512, 10_000),
        (of(512, dtype=I64, on_host=True), of(512, dtype=torch.int64)),
        of(512),
        True,
    )
    assert inside(H100, "_index_put_impl_", *operands) == [
        ("take", 0, 4096),  # linear, from the host
        ("take", 1, 4096),  # wrapped
        ("take", 2, 4096),  # scaled
        ("give", 1),
        ("give", 2),
        ("take", 3, 4096),
        ("take", 4, 4096),
        ("take", 5, 4096),
        ("take", 6, 1),
        ("give", 6),
        ("give", 5),
        ("give", 4),
        ("give", 3),
        ("give", 0),
    ]


def test_values_that_are_not_contiguous_are_copied_as_recorded() -> None:
    """The 2.7b course model: 512 indices, 2560 columns, 5,242,880 bytes."""
    values = of(4, 128, 2560, stride=(2560, 10_240, 1))
    operands = of(10_000, 2560), (of(4, 128, dtype=I64),), values, True
    assert taken(H100, "_index_put_impl_", *operands) == [4096, 4096, 5_242_880, *[4096] * 3, 1]


def test_indices_in_another_order_are_copied_once_more() -> None:
    plain = of(128, 4, dtype=I64), of(128, 4, 8)
    turned = of(128, 4, dtype=I64, stride=(1, 128)), of(128, 4, 8)
    counts = [
        len(taken(A100, "_index_put_impl_", of(100, 8), (index,), values, True))
        for index, values in (plain, turned)
    ]
    assert counts == [6, 7]


def test_writing_without_adding_takes_nothing_unless_it_must_be_deterministic() -> None:
    operands = of(100, 8), (of(16, dtype=I64),), of(16, 8), False
    assert inside(A100, "_index_put_impl_", *operands) is None
    assert len(taken(replace(A100, deterministic=True), "_index_put_impl_", *operands)) == 6


def test_a_number_written_under_a_mask_passes_over_the_device() -> None:
    mask = of(4, 4, dtype=torch.bool)
    assert inside(A100, "_index_put_impl_", of(4, 4), (mask,), of(on_host=True), False) == [
        ("take", 0, 4),
        ("give", 0),
    ]


@pytest.mark.parametrize(("kernels", "tiles"), [(A100, 2), (RTX_4090, 2), (H100, 1), (B200, 1)])
def test_the_radix_sort_of_4096_pairs_takes_a_second_copy_and_counts(
    kernels: object, tiles: int
) -> None:
    """Two passes of 256 counts of 8 bytes, 1,024 bytes a tile, the copies, and the padding."""
    expected = 2 * 256 * 8 + tiles * 1024 + 2 * 4096 * 8 + 256 + 255
    assert radix_sort_pairs_bytes(4096, 8, 8, 14, kernels) == expected  # type: ignore[arg-type]


def test_one_pass_needs_no_second_copy() -> None:
    assert radix_sort_pairs_bytes(4096, 8, 8, 8, A100) == 2048 + 2048 + 256 + 255


@pytest.mark.parametrize(("largest", "bits"), [(0, 1), (1, 1), (2, 2), (9_999, 14), (10_000, 14)])
def test_a_key_is_sorted_on_as_many_bits_as_the_largest_has(largest: int, bits: int) -> None:
    assert num_bits_of(largest) == bits


def test_an_embeddings_gradient_of_3072_indices_takes_nothing_beside_it() -> None:
    operands = of(3072, 64), of(3072, dtype=I64), 10_000, -1, False
    assert inside(A100, "embedding_dense_backward", *operands, num_outputs=1) is None


def test_an_embeddings_gradient_adds_up_rows_of_ten_in_fp32() -> None:
    """A language model: 16,384 tokens of 4,096 in bf16, with partial sums of 281.6 MiB."""
    operands = of(16_384, 4096, dtype=BF16), of(16_384, dtype=I64), 128_256, -1, False
    sizes = taken(A100, "embedding_dense_backward", *operands, num_outputs=1)
    assert max(sizes) == (16_384 // 10 + 16_384) * 4096 * 4
    assert sizes[:3] == [16_384 * 8] * 3


def test_the_gradient_is_allocated_after_the_sort() -> None:
    operands = of(4096, 64), of(4096, dtype=I64), 10_000, -1, False
    events = inside(A100, "embedding_dense_backward", *operands, num_outputs=1)
    assert events is not None
    before = events[: events.index(("output", 0))]
    assert [event[0] for event in before] == ["take"] * 4 + ["give"] * 2


def test_a_small_tables_gradient_goes_by_atomics_since_2_11() -> None:
    """A table of 256 rows: in bf16 an fp32 table instead of the partial sums."""
    operands = of(65_536, 128, dtype=BF16), of(65_536, dtype=I64), 256, -1, False
    sizes = {
        minor: max(
            taken(
                replace(A100, version=TorchVersion(2, minor)),
                "embedding_dense_backward",
                *operands,
                num_outputs=1,
            )
        )
        for minor in (10, 11)
    }
    parts = 65_536 // 10 + 256
    sort = radix_sort_pairs_bytes(65_536, 8, 8, 9, A100)
    assert sizes == {10: parts * 128 * 4, 11: max(256 * 128 * 4, sort)}


def test_adding_at_a_mask_finds_its_places_first_and_frees_them_before_the_sort() -> None:
    """The gradient of ``x[mask]`` with 7 of 64 rows chosen."""
    gradient, mask, values = of(64, 100), of(64, dtype=torch.bool), of(7, 100)
    events = inside(A100, "_index_put_impl_", gradient, (mask,), values, True, True)
    assert events is not None
    assert events[:6] == [
        ("take", 0, 7 * 8),
        ("take", 1, 7 * 8),
        ("take", 2, 7 * 8),
        ("give", 1),
        ("give", 0),
        ("take", 3, 7 * 8),
    ]


def test_adding_at_a_mask_among_other_indices_is_not_known() -> None:
    listed = of(64, dtype=torch.bool), of(7, dtype=I64)
    assert inside(A100, "_index_put_impl_", of(64, 100), listed, of(7), True, True) is None
