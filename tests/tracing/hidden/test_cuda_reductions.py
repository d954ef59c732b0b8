"""When a reduction is spread over blocks, and what it takes then."""

from __future__ import annotations

import pytest
import torch
from cuda_calls import A100, B200, BF16, F32, H100, I64, RTX_4090, inside, of, taken
from hypothesis import given
from hypothesis import strategies as st

from memfit.tracing.hidden.cuda.iterator import reduction


@pytest.mark.parametrize(
    ("rows", "sizes"), [(100, []), (150, [6_291_456, 16]), (200, [8_388_608, 16])]
)
def test_the_gradient_of_a_norms_weight_takes_what_was_recorded(
    rows: int, sizes: list[int]
) -> None:
    """Course model B on torch 2.6: batch 10, 512 columns."""
    data = of(10, rows, 512)
    assert taken(A100, "sum.IntList_out", data, (0, 1), True, out=of(1, 1, 512)) == sizes


def test_the_gradient_of_a_norms_weight_on_a_b200_takes_what_was_recorded() -> None:
    data = of(4, 512, 768)
    found = taken(B200, "sum.IntList_out", data, (0, 1), True, out=of(1, 1, 768))
    assert found == [12_582_912, 24]


def test_a_sum_of_everything_takes_what_was_recorded_in_that_order() -> None:
    """The public recording of plain attention (torch 2.6): 8 x 4096 x 16, fp32."""
    assert inside(A100, "sum.IntList_out", of(8, 4096, 16), (), False, out=of()) == [
        ("take", 0, 256),
        ("take", 1, 4),
        ("give", 1),
        ("give", 0),
    ]


@pytest.mark.parametrize(
    ("op", "length", "sizes"),
    [
        ("sum.IntList_out", 2560, [10_485_760, 16]),
        ("sum.IntList_out", 10_000, [41_156_608, 16]),
        ("max.dim_max", 10_000, [164_626_432, 16]),
    ],
)
def test_rows_that_lie_side_by_side_take_what_was_recorded(
    op: str, length: int, sizes: list[int]
) -> None:
    """The 2.7b course model on a Hopper card, torch 2.6: 512 tokens, the tokens fastest."""
    data = of(512, length, stride=(1, 512))
    outputs = {"out": of(512)} if op.startswith("sum") else {"max": of(512)}
    assert taken(H100, op, data, 1, False, **outputs) == sizes


def test_the_output_of_a_functional_reduction_comes_first() -> None:
    events = inside(A100, "var.correction", of(1 << 24), None, num_outputs=1)
    assert events is not None
    assert [event[:2] for event in events] == [
        ("output", 0),
        ("take", 0),
        ("take", 1),
        ("give", 1),
        ("give", 0),
    ]


def test_blocks_are_limited_by_the_card_when_the_input_is_long() -> None:
    """108 SMs x 4 blocks of 512 threads, a partial sum of 4 bytes each."""
    assert taken(A100, "sum.IntList_out", of(1 << 24), (), out=of()) == [432 * 4, 4]
    assert taken(RTX_4090, "sum.IntList_out", of(1 << 24), (), out=of()) == [384 * 4, 4]


@pytest.mark.parametrize(
    ("op", "dtype", "factor"),
    [
        ("sum.IntList_out", F32, 4),
        ("sum.IntList_out", torch.float64, 8),
        ("sum.IntList_out", BF16, 4),
        ("mean.out", BF16, 4),
        ("linalg_vector_norm.out", BF16, 4),
        ("amax.out", BF16, 2),
        ("amax.out", F32, 4),
        ("all.all_out", torch.bool, 1),
    ],
)
def test_partial_results_have_the_accumulators_size(
    op: str, dtype: torch.dtype, factor: int
) -> None:
    before = (2,) if op.startswith("linalg") else ()
    buffer, _ = taken(A100, op, of(1 << 24, dtype=dtype), *before, (), out=of(dtype=dtype))
    assert buffer % factor == 0
    assert buffer // factor in (432, 512)


def test_partial_results_with_an_index_take_16_bytes() -> None:
    buffer, semaphores = taken(
        A100, "max.dim_max", of(1, 1 << 24), 1, max=of(1), max_values=of(1, dtype=I64)
    )
    assert (buffer, semaphores) == (432 * 16, 4)


@pytest.mark.parametrize("shape", [(4, 128), (4096, 4096), (64, 1024, 1024)])
def test_a_softmaxs_sums_over_short_rows_take_nothing(shape: tuple[int, ...]) -> None:
    assert inside(A100, "sum.IntList_out", of(*shape), (-1,), True) is None


def test_integers_are_cast_for_a_sum_and_half_precision_is_not() -> None:
    ids = of(64, 128, dtype=torch.int32)
    assert taken(A100, "sum.IntList_out", ids, (1,), out=of(64, dtype=I64)) == [64 * 128 * 8]
    half = of(64, 128, dtype=BF16)
    assert taken(A100, "sum.IntList_out", half, (1,), out=of(64)) == []


def test_a_tensor_above_2_gib_is_reduced_in_pieces() -> None:
    """4 GiB of floats: one halving; each piece has scratch of its own, of 256 values a thread."""
    sizes = taken(A100, "sum.IntList_out", of(1 << 30), (), out=of())
    assert sizes == [(1 << 29) // 512 // 256 * 4, 4] * 2


def test_a_bfloat16_sum_above_2_gib_keeps_its_partial_sums_apart() -> None:
    sizes = taken(A100, "sum.IntList_out", of(1 << 31, dtype=BF16), (), out=of(dtype=BF16))
    assert sizes[0] == 4


def test_an_empty_tensor_is_not_reduced() -> None:
    assert inside(A100, "sum.IntList_out", of(0, 4), (0,)) is None


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    data=st.data(),
)
def test_canonical_form_keeps_the_numbers_of_inputs_and_outputs(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    dims = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    order = data.draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    found = reduction(of(*shape, stride=tuple(strides)), tuple(dims), 4)
    assert found is not None
    num_outputs = 1
    for dim, size in enumerate(shape):
        num_outputs *= 1 if dim in dims else size
    assert found.num_outputs == num_outputs
    assert found.num_inputs * num_outputs == of(*shape).numel
    reduced = found.inputs[: found.num_reduced]
    assert list(reduced) == sorted(reduced)
