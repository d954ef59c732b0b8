"""Eight bits are as near as they say, for any block."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from memfit.optimizers.quantised import BLOCK_SIZE, Quantised, dequantise, empty, quantise_

LARGEST = torch.finfo(torch.float32).max

magnitudes = st.sampled_from([0.0, 1e-45, 1e-39, 1e-20, 1e-3, 1.0, 7.0, 1e20, LARGEST])


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Random numbers whose blocks are of very different magnitudes, with zeros and outliers."""
    num_rows, num_columns = draw(st.integers(1, 20)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.rand(num_rows * num_columns, generator=generator) * 2 - 1
    for block in x.split(BLOCK_SIZE):
        block.mul_(draw(magnitudes))
    if draw(st.booleans()):
        x[draw(st.integers(0, len(x) - 1))] = draw(magnitudes)
    return x.view(num_rows, num_columns)


def quantised(x: Tensor) -> Quantised:
    room = empty(x.shape, x.device)
    quantise_(x.clone(), room)
    return room


def reference(x: Tensor) -> Tensor:
    """Slow and readable, in float64: each number to the nearest of 255 steps of its block."""
    numbers = x.double().flatten().tolist()
    rounded = []
    for start in range(0, len(numbers), BLOCK_SIZE):
        block = numbers[start : start + BLOCK_SIZE]
        largest = max(map(abs, block))
        rounded += [largest * round(n / largest * 127) / 127 if largest else 0.0 for n in block]
    return torch.tensor(rounded, dtype=torch.float64).view(x.shape)


@given(tensors())
def test_the_error_of_a_number_is_at_most_half_a_step_of_its_block(x):
    error = (dequantise(quantised(x)).double() - x.double()).abs().flatten()

    for block, numbers in zip(error.split(BLOCK_SIZE), x.flatten().split(BLOCK_SIZE), strict=True):
        largest = numbers.abs().max().double()
        # fp32 rounds the quotient, the product and denormal results.
        assert block.max() <= largest / 254 * (1 + 1e-4) + 2e-45


@given(tensors())
def test_it_is_the_nearest_of_255_steps(x):
    expected, found = reference(x), dequantise(quantised(x)).double()

    step = (x.flatten().abs().max() / 127).double()
    # Half-way between two steps rounding in fp32 may choose the other one.
    differs = (found - expected).abs() > 1e-5 * expected.abs() + 3e-45
    assert differs.double().mean() <= 0.02
    assert (found - expected).abs().max() <= step * (1 + 1e-4) + 3e-45


@given(tensors())
def test_what_was_quantised_once_stays_as_it_is(x):
    once = quantised(x)
    twice = quantised(dequantise(once))

    assert torch.equal(once.scales, twice.scales)
    assert torch.equal(dequantise(once), dequantise(twice))


def test_zeros_stay_zeros_and_the_largest_of_a_block_comes_back_exactly():
    x = torch.zeros(3, BLOCK_SIZE)
    x[1, 5], x[2, 0] = -LARGEST, 0.1

    assert torch.equal(dequantise(quantised(x)), x)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_block_that_is_not_finite_does_not_come_back_finite_and_harms_no_other(bad):
    x = torch.ones(2, BLOCK_SIZE)
    x[0, 3] = bad

    found = dequantise(quantised(x))

    assert not found[0].isfinite().any()
    assert torch.equal(found[1], x[1])


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 16), (1, 129), (64, 256), (7, 333)])
def test_the_bytes_are_one_a_number_and_four_a_block_with_no_padding(shape):
    codes, scales = quantised(torch.randn(shape))

    numel = math.prod(shape)
    assert codes.nbytes == numel
    assert scales.nbytes == 4 * -(-numel // 128)
    assert codes.shape == shape
