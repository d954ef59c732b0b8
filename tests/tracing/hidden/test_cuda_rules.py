"""The smaller rules of the table: softmax, losses, norms, sorts, copies, convolutions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cuda_calls import A100, BF16, F32, H100, I64, inside, of, taken

from memfit.allocator.version import TorchVersion
from memfit.records.device import Device
from memfit.tracing.calls import Call
from memfit.tracing.hidden.cuda.kernels import kernels_for
from memfit.tracing.hidden.cuda.steps import ESTIMATE
from memfit.tracing.hidden.cuda.table import COVERED, UNKNOWN, sequence
from memfit.tracing.hidden.sequences import Give, Keep, Output, Take

# ------------------------------------------------------------------ softmax and where


def test_the_gradient_of_a_softmax_takes_a_product_as_large_as_the_scores() -> None:
    scores = of(4, 16, 512, 512)
    found = inside(A100, "_softmax_backward_data.out", scores, scores, -1, F32, grad_input=scores)
    assert found == [("take", 0, 4 * 16 * 512 * 512 * 4), ("give", 0)]


def test_the_gradient_of_a_log_softmax_takes_nothing() -> None:
    logits = of(512, 50_257)
    assert inside(A100, "_log_softmax_backward_data.out", logits, logits, 1, F32) is None


def test_a_softmax_of_a_strided_input_copies_it() -> None:
    strided = of(8, 16, stride=(1, 8))
    assert taken(A100, "_softmax.out", strided, -1, False) == [8 * 16 * 4]


@pytest.mark.parametrize(("dtype", "num_bytes"), [(F32, 4), (BF16, 2)])
def test_a_number_in_where_passes_over_the_device_as_recorded(
    dtype: torch.dtype, num_bytes: int
) -> None:
    """Course models A and B on torch 2.6 and 2.11."""
    scores, mask = of(4, 8, dtype=dtype), of(4, 8, dtype=torch.bool)
    number = of(dtype=dtype, on_host=True)
    assert inside(A100, "where.self", mask, scores, number, num_outputs=1) == [
        ("take", 0, num_bytes),
        ("output", 0),
        ("give", 0),
    ]


def test_where_of_two_device_tensors_takes_nothing() -> None:
    scores, mask = of(4, 8), of(4, 8, dtype=torch.bool)
    assert inside(A100, "where.self", mask, scores, scores, num_outputs=1) is None


def test_where_of_two_dtypes_casts_one() -> None:
    mask = of(4, 8, dtype=torch.bool)
    operands = mask, of(4, 8, dtype=BF16), of(4, 8)
    assert inside(A100, "where.self", *operands, num_outputs=1) == [
        ("take", 0, 4 * 8 * 4),
        ("output", 0),
        ("give", 0),
    ]


# ------------------------------------------------------------------ losses and norms


def test_a_mean_squared_error_makes_the_loss_of_each_element_first() -> None:
    images = of(8, 4, 64, 64, dtype=BF16)
    sizes = taken(A100, "mse_loss.out", images, images, 1, out=of(dtype=BF16))
    assert sizes[0] == images.num_bytes
    assert inside(A100, "mse_loss.out", images, images, 0, out=images) is None


def test_a_huber_loss_allocates_its_result_after_the_losses() -> None:
    data = of(16, 4)
    assert inside(A100, "huber_loss", data, data, 1, 1.0, num_outputs=1) == [
        ("take", 0, 256),
        ("output", 0),
        ("give", 0),
    ]


def test_cross_entropys_loss_takes_nothing_as_recorded() -> None:
    """The public recording of cross entropy on 1024 x 128000 bf16 logits."""
    logits, labels = of(1024, 128_000, dtype=BF16), of(1024, dtype=I64)
    assert inside(H100, "nll_loss_forward.output", logits, labels, None, 1, -100) is None


def norm_backward(rows: int, width: int, kernels: object) -> list[int]:
    data, statistics, weight = of(rows, width), of(rows, 1), of(width)
    operands = data, data, (width,), statistics, statistics, weight, weight, (True, True, True)
    return taken(
        kernels,  # type: ignore[arg-type]
        "native_layer_norm_backward",
        *operands,
        num_outputs=3,
    )


def test_a_layer_norms_gradient_takes_nothing_for_usual_shapes() -> None:
    new = replace(A100, version=TorchVersion(2, 14))
    assert norm_backward(8192, 4096, new) == []
    assert norm_backward(65_536, 768, new) == []


def test_a_layer_norms_gradient_of_many_short_rows_goes_in_parts_since_2_8() -> None:
    new = replace(A100, version=TorchVersion(2, 8))
    parts = min(32_768 // 24, 131_072 // 32) * 768 * 4
    sizes = norm_backward(131_072, 768, new)
    assert sizes[:4] == [768 * 4, 768 * 4, parts, parts]
    assert norm_backward(131_072, 768, A100) == []


def test_a_group_norm_folds_into_a_factor_and_a_term_a_channel() -> None:
    data, weight = of(8, 320, 64, 64, dtype=BF16), of(320, dtype=BF16)
    operands = data, weight, weight, 8, 320, 4096, 32, 1e-5
    assert taken(A100, "native_group_norm", *operands, num_outputs=3) == [8 * 320 * 4] * 2


def test_the_norms_of_all_gradients_take_a_number_a_chunk_of_the_largest() -> None:
    gradients = (of(65_536 * 3 + 1), of(16, 16), of(16))
    assert inside(A100, "_foreach_norm.Scalar", gradients, 2, num_outputs=3) == [
        ("take", 0, 3 * 4 * 4),
        ("output", 0),
        ("output", 1),
        ("output", 2),
        ("give", 0),
    ]


# ------------------------------------------------------------------ sorts and scans


def test_a_short_sort_takes_a_range() -> None:
    assert taken(A100, "sort.values_stable", of(8, 4096), stable=False, dim=-1) == [4096 * 8]


def test_a_long_sort_takes_numbers_and_a_second_copy() -> None:
    length = 50_257
    numbers, sorting = taken(A100, "sort.values_stable", of(1, length), stable=False, dim=1)
    assert numbers == length * 8
    assert sorting > length * (4 + 8)


def test_a_few_long_slices_are_sorted_together_with_pairs_of_numbers() -> None:
    count = 8 * 50_257
    sizes = taken(A100, "sort.values_stable", of(8, 50_257), stable=False, dim=1)
    assert sizes[:3] == [count * 8, count * 8, count * 4]


def test_a_running_sum_of_a_mask_casts_it_first() -> None:
    mask, positions = of(8, 128, dtype=torch.bool), of(8, 128, dtype=I64)
    assert inside(A100, "cumsum.out", mask, -1, out=positions) == [
        ("take", 0, 8 * 128 * 8),
        ("give", 0),
    ]


def test_a_running_sum_over_rows_takes_nothing_and_over_one_dimension_some() -> None:
    assert inside(A100, "cumsum.out", of(8, 128), 1, out=of(8, 128)) is None
    assert len(taken(A100, "cumsum.out", of(1024), 0, out=of(1024))) == 1


def test_nonzero_counts_before_its_output_is_made() -> None:
    events = inside(A100, "nonzero", of(64, 64, dtype=torch.bool), num_outputs=1)
    assert events is not None
    assert [event[0] for event in events] == [
        *("take", "take", "give"),
        "output",
        *("take", "give"),
        "give",
    ]


# ------------------------------------------------------------------ copies and convolutions


def test_copies_on_the_device_and_of_plain_host_tensors_take_nothing() -> None:
    assert inside(A100, "copy_", of(4, 8, dtype=BF16), of(4, 8)) is None
    assert inside(A100, "copy_", of(4, 8), of(4, 8, on_host=True)) is None


def test_a_strided_slice_is_packed_on_its_way_to_the_host() -> None:
    source = of(4, 8, stride=(16, 1))
    assert taken(A100, "copy_", of(4, 8, on_host=True), source) == [4 * 8 * 4]


def test_an_embedding_of_strided_ids_copies_them_before_its_output() -> None:
    ids = of(16, 4, dtype=I64, stride=(1, 16))
    assert inside(A100, "embedding", of(100, 8), ids, num_outputs=1) == [
        ("take", 0, 16 * 4 * 8),
        ("output", 0),
        ("give", 0),
    ]


IMAGE, FILTER = of(2, 16, 32, 32, dtype=BF16), of(8, 16, 3, 3, dtype=BF16)
LAST = of(2, 16, 32, 32, dtype=BF16, stride=(16_384, 1, 512, 16))
FILTER_LAST = of(8, 16, 3, 3, dtype=BF16, stride=(144, 1, 48, 16))
SETTINGS = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)


def test_a_convolutions_workspace_is_an_estimate_and_marked_as_one() -> None:
    call = Call("aten::convolution", (IMAGE, FILTER, *SETTINGS), ())
    found = sequence(call, 1, A100)
    assert found is not None
    output = 2 * 8 * 32 * 32 * 2
    filters = -(-FILTER.num_bytes // 256) * 256
    assert found.events == (
        Output(0),
        Take(2, IMAGE.num_bytes + filters + output),
        Give(2),
    )
    assert found.origin == ESTIMATE


def test_a_channels_last_convolution_is_counted_without_a_workspace() -> None:
    assert inside(A100, "convolution", LAST, FILTER_LAST, *SETTINGS, num_outputs=1) is None


def test_a_filter_is_brought_into_the_inputs_format() -> None:
    assert inside(A100, "convolution", LAST, FILTER, *SETTINGS, num_outputs=1) == [
        ("take", 0, FILTER.num_bytes),
        ("output", 0),
        ("give", 0),
    ]


def test_a_convolutions_gradients_have_a_workspace_each() -> None:
    operands = of(2, 8, 32, 32, dtype=BF16), IMAGE, FILTER, None, *SETTINGS[1:]
    mask = (True, True, False)
    events = inside(A100, "convolution_backward", *operands, mask, num_outputs=2)
    assert events is not None
    assert [event[0] for event in events] == ["output", "take", "give"] * 2


def test_a_depthwise_convolution_takes_nothing_as_recorded() -> None:
    """The public recording of a cellular automaton: 16 channels, each with a filter of its own."""
    data, weight = of(1, 16, 34, 34, 34), of(16, 1, 3, 3, 3)
    settings = None, (1, 1, 1), (0, 0, 0), (1, 1, 1), False, (0, 0, 0), 16
    assert inside(A100, "convolution", data, weight, *settings, num_outputs=1) is None


def test_padding_by_reflection_copies_a_strided_input_as_recorded() -> None:
    data = of(1, 16, 8, 8, 8, stride=(8192, 1, 1024, 128, 16))
    assert inside(A100, "reflection_pad3d.out", data, (1,) * 6) == [
        ("take", 0, data.num_bytes),
        ("give", 0),
    ]


def test_upsampling_a_strided_volume_copies_it_as_recorded() -> None:
    data, output = of(1, 16, 4, 5, 6, stride=(1920, 1, 16, 64, 320)), of(1, 16, 8, 10, 12)
    assert inside(A100, "upsample_nearest3d.out", data, (8, 10, 12), out=output) == [
        ("take", 0, data.num_bytes),
        ("give", 0),
    ]


def test_upsampling_copies_an_output_that_is_not_contiguous_before_the_input() -> None:
    data = of(2, 3, 4, 5, stride=(60, 1, 15, 3))
    output = of(2, 3, 8, 10, stride=(240, 1, 30, 3))
    assert inside(A100, "upsample_nearest2d.out", data, (8, 10), out=output) == [
        ("take", 0, output.num_bytes),
        ("take", 1, data.num_bytes),
        ("give", 1),
        ("give", 0),
    ]


def test_upsampling_channels_last_images_of_four_channels_takes_nothing() -> None:
    data = of(2, 4, 4, 5, stride=(80, 1, 20, 4))
    output = of(2, 4, 8, 10, stride=(320, 1, 40, 4))
    assert inside(A100, "upsample_nearest2d.out", data, (8, 10), out=output) is None
    backward = "upsample_bilinear2d_backward.grad_input"
    assert inside(A100, backward, output, (8, 10), data.shape, grad_input=data) is None


# ------------------------------------------------------------------ the table


def test_every_op_of_the_table_is_an_op_of_torch() -> None:
    names = COVERED | UNKNOWN
    assert [name for name in names if not hasattr(torch.ops.aten, name.split("::")[1])] == []
    assert not COVERED & UNKNOWN


def test_an_op_without_a_rule_takes_nothing() -> None:
    assert inside(A100, "add.Tensor", of(4), of(4), num_outputs=1) is None


def test_kernels_of_a_card_are_read_from_it() -> None:
    card = Device(
        name="a-card",
        kind="cuda",
        total_bytes=1 << 30,
        compute_capability="8.9",
        sms=128,
        threads_per_sm=1536,
        shared_memory_per_block_bytes=101_376,
    )
    found = kernels_for(card, TorchVersion(2, 11), deterministic=True)
    assert (found.capability, found.sms, found.threads_per_sm) == ((8, 9), 128, 1536)
    assert found.deterministic


def test_a_processor_has_no_cuda_kernels() -> None:
    with pytest.raises(ValueError, match="not a GPU"):
        kernels_for(Device(name="cpu", kind="cpu", total_bytes=1), TorchVersion(2, 11))


def test_a_block_that_stays_is_named() -> None:
    assert Keep("cuBLAS workspace", 8_519_680).name == "cuBLAS workspace"
