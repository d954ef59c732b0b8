"""The search for the largest batch size, over limits that are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import BadInput
from memfit.planner.finder import even_batch, largest_batch

SIZES = st.integers(1, 300)


@given(limit=SIZES, samples=SIZES, predicted=SIZES)
def test_it_is_the_largest_that_fits_and_no_size_is_tried_twice(limit, samples, predicted):
    tried = []
    found = largest_batch(
        lambda size: tried.append(size) or size <= limit,
        samples_per_step=samples,
        predicted=predicted,
    )
    largest = min(limit, samples)
    assert max(size for size, fitted in found.tried if fitted) == largest
    assert len(set(tried)) == len(tried) <= 20
    expected = even_batch(largest, samples)
    assert (found.batch_size, found.accumulate) == (expected.batch_size, expected.accumulate)


@given(largest=SIZES, samples=SIZES)
def test_the_samples_of_a_step_stay(largest, samples):
    found = even_batch(largest, samples)
    assert found.batch_size <= largest
    assert found.batch_size * (found.accumulate - 1) < samples
    assert samples <= found.batch_size * found.accumulate


def test_a_prediction_that_is_right_needs_two_tries():
    found = largest_batch(lambda size: size <= 37, samples_per_step=300, predicted=37)
    assert found.tried == ((37, True), (38, False))


def test_nothing_that_fits_is_refused():
    with pytest.raises(BadInput, match="not even one sample fits"):
        largest_batch(lambda size: False, samples_per_step=8, predicted=4)
