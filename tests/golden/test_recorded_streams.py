"""Runs that others recorded on their GPUs, predicted event by event without one.

The recordings are other people's files, outside the project; where they are absent these tests are
skipped.  Nothing is fitted to them: the models say what ran, the rules say what it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cellular_automaton
import course_a_on_torch_2_6 as torch_2_6
import pytest
import torch._dynamo  # noqa: F401  # once here, or every child would import it
from recorded import SNAPSHOTS
from streams import Event, first_difference, frees_in_any_order, predicted_stream, recorded_stream

from benchmarks.accuracy import course_a_runs, course_b_runs, single_ops
from memfit.allocator.replay import replay_on_cuda
from memfit.allocator.settings import Settings, parse_settings
from memfit.allocator.version import TorchVersion
from memfit.devices.catalog import find
from memfit.observer import Observer
from memfit.profiler.snapshot import Recording, load_recording
from memfit.records.timeline import Timeline
from memfit.tracing.virtual.run import Traced, trace_on_gpu

HOPPER, OTHER, BLACKWELL = "h100-80gb", "rtx-3090", "b200"
"""A card of the generation that the recordings are from; they name none."""

STEP = ("forward", "backward", "optimizer")

Run = Callable[[Observer], None]


def recording(name: str) -> Recording:
    path = SNAPSHOTS / f"{name}.pickle"
    if not path.is_file():
        pytest.skip(f"the recording {name} is not at hand")
    return load_recording(path)


def trace(run: Run, card: str, version: str, settings: Settings | None = None) -> Traced:
    return trace_on_gpu(
        run, card=find(card), version=TorchVersion.parse(version), settings=settings
    )


def streams(
    name: str, run: Run, card: str, version: str, phases: tuple[str, ...] = ()
) -> tuple[list[Event], list[Event], Timeline]:
    """The recorded stream, the predicted one, and the Timeline that it is of."""
    recorded = recorded_stream(recording(name))
    timeline = trace(run, card, version).timeline
    return recorded, predicted_stream(timeline, phases), timeline


def peaks(timeline: Timeline) -> tuple[int, int]:
    """Allocated and reserved bytes on torch 2.6, fresh segments at addresses of our own."""
    replay = replay_on_cuda(timeline, version=TorchVersion(2, 6))
    return int(replay.allocated.max()), int(replay.reserved.max())


# ------------------------------------------------------------------ course model A, 2.7b


@pytest.mark.slow
def test_the_first_step_of_the_27b_model_asks_for_the_recorded_sizes_in_the_recorded_order() -> (
    None
):
    run = partial(torch_2_6.first_step, batch_size=4, seq_len=128, num_layers=32)
    recorded, predicted, timeline = streams(
        "course-a-27b-ctx128-first-step", run, HOPPER, "2.6", STEP
    )
    assert first_difference(recorded, predicted) == ""
    assert len(predicted) == 12_665
    assert peaks(timeline) == (55_079_000_576, 61_111_009_280)


@pytest.mark.slow
def test_a_bf16_forward_of_the_27b_model_casts_and_frees_as_recorded() -> None:
    run = partial(torch_2_6.bf16_forward, batch_size=4, seq_len=256, num_layers=32)
    recorded, predicted, timeline = streams(
        "course-a-27b-ctx256-forward-bf16", run, HOPPER, "2.6", ("forward",)
    )
    assert first_difference(recorded, predicted) == ""
    assert len(predicted) == 4_116
    assert peaks(timeline) == (28_398_369_792, 28_848_422_912)


# ------------------------------------------------------------------ course model A on torch 2.11


@pytest.mark.slow
def test_a_steady_step_of_the_medium_model_asks_for_the_recorded_sizes() -> None:
    run = partial(course_a_runs.recorded_step, size="medium", batch_size=4, seq_len=128, warmups=1)
    recorded, predicted, _ = streams("course-a-medium-t128-train", run, OTHER, "2.11", STEP)
    assert first_difference(recorded, predicted) == ""


@pytest.mark.slow
def test_expandable_segments_of_the_xl_model_are_mapped_to_the_recorded_byte() -> None:
    recorded = recording("course-a-xl-forward-t512-bf16-expandable")
    run = partial(
        course_a_runs.forward_only,
        size="xl",
        batch_size=4,
        seq_len=512,
        precision="bf16",
        warmups=1,
    )
    settings = parse_settings(recorded.settings, TorchVersion(2, 11))
    traced = trace(run, BLACKWELL, "2.11", settings)
    predicted = predicted_stream(traced.timeline, ("forward", "eval"))
    assert first_difference(recorded_stream(recorded), predicted) == ""
    mapped = {segment.is_small: segment.num_bytes for segment in recorded.segments}
    assert mapped == {
        True: traced.stats["reserved_bytes.small_pool.current"],
        False: traced.stats["reserved_bytes.large_pool.current"],
    }


# ------------------------------------------------------------------ course model B


@pytest.mark.slow
def test_three_steps_of_course_model_b_ask_for_the_recorded_sizes() -> None:
    run = partial(course_b_runs.train, batch_size=10, seq_len=100, precision="fp32")
    recorded, predicted, _ = streams("course-b-train-t100", run, OTHER, "2.6")
    assert first_difference(recorded, predicted) == ""


@pytest.mark.slow
def test_autocast_frees_its_casts_where_recorded_in_an_order_of_its_own() -> None:
    run = partial(course_b_runs.train, batch_size=10, seq_len=200, precision="bf16")
    recorded, predicted, _ = streams("course-b-train-t200-bf16", run, OTHER, "2.6")
    assert first_difference(frees_in_any_order(recorded), frees_in_any_order(predicted)) == ""


# ------------------------------------------------------------------ a convolutional automaton


def test_a_cellular_automaton_asks_for_the_recorded_sizes_and_retries_once_on_24_gb() -> None:
    recorded, predicted, timeline = streams(
        "conv-nca-retry", cellular_automaton.segment, OTHER, "2.6", ("forward",)
    )
    assert first_difference(recorded, predicted) == ""
    replay = replay_on_cuda(timeline, version=TorchVersion(2, 6), capacity_bytes=24 * 10**9)
    assert (replay.num_alloc_retries, int(replay.reserved.max())) == (1, 22_194_159_616)


# ------------------------------------------------------------------ single operations


@pytest.mark.parametrize(
    ("name", "run", "card", "version"),
    [
        (
            "attention-eager",
            partial(single_ops.written_out_attention, batch_size=8, seq_len=4096, head_width=16),
            OTHER,
            "2.6",
        ),
        (
            "linear-fwd-bwd",
            partial(
                single_ops.linear_forwards,
                batch_size=5000,
                in_features=10_000,
                out_features=50_000,
            ),
            HOPPER,
            "2.6",
        ),
        (
            "cross-entropy-vanilla",
            partial(single_ops.cross_entropy_alone, num_tokens=1024, vocab_size=128_000),
            OTHER,
            "2.9",
        ),
    ],
)
def test_a_single_operation_asks_for_the_recorded_sizes(
    name: str, run: Run, card: str, version: str
) -> None:
    recorded, predicted, _ = streams(name, run, card, version)
    assert first_difference(recorded, predicted) == ""
