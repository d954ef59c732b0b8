from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from memfit.data.batches import Batches, EvalBatches
from memfit.errors import BadInput


def counting(num_tokens: int) -> np.ndarray:
    """Tokens that are their own positions."""
    return np.arange(num_tokens, dtype=np.uint16)


def memory_events(build) -> list[int]:
    """The signed sizes of all CPU allocations and frees while ``build`` runs."""
    build()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        build()
    events = profiler.profiler.kineto_results.events()
    return [event.nbytes() for event in events if event.name() == "[memory]"]


def test_a_batch_costs_the_one_allocation_that_random_ids_cost():
    batches = Batches(counting(10_000), samples_per_step=6, seq_len=32, seed=0)
    evaluation = EvalBatches(counting(10_000), batch_size=6, seq_len=32)

    built = memory_events(lambda: batches.batch(3))

    assert built == [6 * 33 * 8, -6 * 33 * 8]
    assert built == memory_events(lambda: torch.randint(50, (6, 33)))
    assert built == memory_events(lambda: torch.empty((6, 33), dtype=torch.int64))
    assert built == memory_events(lambda: evaluation.batch(0))


@given(
    num_tokens=st.integers(2, 400),
    seq_len=st.integers(1, 20),
    samples=st.integers(1, 7),
    seed=st.integers(-5, 5),
    epoch=st.integers(0, 2),
)
def test_every_token_is_a_target_once_an_epoch_up_to_the_tail_that_fills_no_row(
    num_tokens, seq_len, samples, seed, epoch
):
    if num_tokens <= seq_len:
        return
    batches = Batches(counting(num_tokens), samples_per_step=samples, seq_len=seq_len, seed=seed)
    rows = batches.num_rows
    first, last = epoch * rows, (epoch + 1) * rows
    steps = range(first // samples, -(-last // samples))
    stream = torch.cat([batches.batch(step) for step in steps])[first - steps[0] * samples :][:rows]

    targets = Counter(stream[:, 1:].flatten().tolist())

    assert targets == Counter(range(1, rows * seq_len + 1))
    assert num_tokens - 1 - rows * seq_len < seq_len


@given(step=st.integers(0, 60), seed=st.integers(0, 3))
def test_a_batch_depends_on_its_step_and_seed_alone(step, seed):
    options = {"samples_per_step": 4, "seq_len": 8, "seed": seed}
    walked = Batches(counting(300), **options)
    for earlier in range(step):
        walked.batch(earlier)

    resumed = Batches(counting(300), **options).batch(step)

    assert torch.equal(walked.batch(step), resumed)


@given(micro=st.sampled_from([1, 2, 3, 4, 6, 12]), step=st.integers(0, 20))
def test_micro_batches_of_any_size_are_slices_of_the_same_samples(micro, step):
    whole = Batches(counting(300), samples_per_step=12, seq_len=8, seed=1).batch(step)
    small = Batches(counting(300), samples_per_step=micro, seq_len=8, seed=1)

    parts = [small.batch(step * 12 // micro + part) for part in range(12 // micro)]

    assert torch.equal(torch.cat(parts), whole)


def test_rows_are_neighbouring_tokens_as_int64():
    batch = Batches(counting(1000), samples_per_step=5, seq_len=16, seed=0).batch(0)

    assert batch.dtype == torch.int64 and batch.shape == (5, 17)
    assert torch.equal(batch - batch[:, :1], torch.arange(17).expand(5, 17))


def test_each_epoch_and_each_seed_has_its_own_order():
    one = Batches(counting(1000), samples_per_step=62, seq_len=16, seed=0)
    other = Batches(counting(1000), samples_per_step=62, seq_len=16, seed=1)

    assert one.num_rows == 62 and [one.epoch_of(step) for step in range(3)] == [0, 1, 2]
    assert not torch.equal(one.batch(0), one.batch(1))
    assert not torch.equal(one.batch(0), other.batch(0))


def test_the_order_of_a_seed_never_changes():
    batches = Batches(counting(100), samples_per_step=9, seq_len=10, seed=7)

    assert batches.batch(0)[:, 0].tolist() == [60, 30, 40, 0, 20, 80, 70, 50, 10]


def test_a_sequence_longer_than_the_data_is_refused_with_both_numbers():
    with pytest.raises(BadInput, match=r"of 50 tokens need 51 .* are 40: write --seq-len 39"):
        Batches(counting(40), samples_per_step=1, seq_len=50, seed=0)


@given(num_tokens=st.integers(11, 300), batch_size=st.integers(1, 8))
def test_evaluation_sees_every_whole_row_once_in_order_and_no_batch_is_larger(
    num_tokens, batch_size
):
    batches = EvalBatches(counting(num_tokens), batch_size=batch_size, seq_len=10)

    parts = [batches.batch(index) for index in range(batches.num_batches)]

    assert all(part.shape == (batch_size, 11) for part in parts[:-1])
    assert 1 <= len(parts[-1]) <= batch_size
    assert torch.cat(parts)[:, 0].tolist() == list(range(0, (num_tokens - 1) // 10 * 10, 10))
