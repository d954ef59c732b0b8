"""einsum of torch 2.6 to 2.8: the same numbers as today's, in another order in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memfit.allocator.version import TorchVersion
from memfit.tracing.virtual.old_einsum import EXCHANGED, einsum

OnGpu = Callable[..., Any]


def _strides() -> list[tuple[int, ...]]:
    weight = torch.empty(20, 5, device="cuda")
    x = torch.empty(2, 3, 5, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        cast = torch.einsum("oi,...i->...o", weight, x)
    return [
        torch.einsum("oi,...i->...o", weight, x).stride(),
        torch.einsum("...i,oi->...o", x, weight).stride(),
        cast.stride(),
    ]


def test_a_weight_that_comes_first_gives_a_transposed_output_up_to_torch_2_8(on_gpu: OnGpu) -> None:
    """Recorded in torch 2.6: reductions of such logits take 164,626,432 bytes of scratch."""
    assert on_gpu(_strides, version="2.8") == [(3, 1, 6), (60, 20, 1), (3, 1, 6)]


def test_the_output_is_contiguous_from_torch_2_9_on(on_gpu: OnGpu) -> None:
    assert on_gpu(_strides, version="2.9") == [(60, 20, 1)] * 3
    assert TorchVersion(2, 9) == EXCHANGED


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("oi,...i->...o", [(4, 3), (2, 5, 3)]),
        ("oi, bi -> bo", [(4, 3), (2, 3)]),
        ("ij,jk", [(4, 3), (3, 2)]),
        ("bj,ba", [(2, 3), (2, 4)]),
        ("...j,...ak->...k", [(2, 3), (5, 1, 4, 6)]),
        ("hbo,b...i,->", [(1, 2, 3), (2, 4), ()]),
        ("ki,ti->tk", [(1, 3), (2, 3)]),
        ("i,j->ji", [(3,), (4,)]),
        ("ii,ij->j", [(3, 3), (3, 4)]),
        ("abi,cdi->cbad", [(2, 3, 4), (5, 6, 4)]),
    ],
)
def test_it_computes_what_einsum_does(equation: str, shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    torch.testing.assert_close(einsum(equation, tensors), torch.einsum(equation, *tensors))


@given(st.data())
def test_any_contraction_of_two_has_its_first_operands_dimensions_in_front(
    data: st.DataObject,
) -> None:
    labels = "abcdef"
    sizes = {label: data.draw(st.integers(1, 3), label) for label in labels}
    sides = [data.draw(st.permutations(labels)) for _ in range(2)]
    cut = [data.draw(st.integers(1, 5)) for _ in range(2)]
    left, right = (side[:size] for side, size in zip(sides, cut, strict=True))
    kept = [label for label in sorted(set(left) | set(right)) if data.draw(st.booleans())]
    output = data.draw(st.permutations(kept))
    equation = f"{''.join(left)},{''.join(right)}->{''.join(output)}"
    operands = [torch.randn([sizes[label] for label in side]) for side in (left, right)]
    found = einsum(equation, operands)
    torch.testing.assert_close(found, torch.einsum(equation, *operands))
    wide = [label for label in output if sizes[label] > 1]
    summed = [label for label in {*left, *right} - {*output} if label in left and label in right]
    if any(sizes[label] > 1 for label in summed):
        strides = dict(zip(output, found.stride(), strict=True))
        both = [label for label in wide if label in left and label in right]
        order = both + [label for label in wide if label in left and label not in right]
        order += [label for label in wide if label not in left]
        assert [strides[label] for label in order] == sorted(
            (strides[label] for label in order), reverse=True
        )


def test_a_wrong_equation_is_refused_as_einsum_does() -> None:
    with pytest.raises(RuntimeError, match="einsum"):
        einsum("oi,i->x", [torch.ones(2, 3), torch.ones(3)])
