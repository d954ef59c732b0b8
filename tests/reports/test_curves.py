from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.reports import curves
from memfit.reports.curves import Span

LEVELS = st.lists(st.integers(0, 50), min_size=1, max_size=300).map(np.array)


@given(LEVELS, st.integers(1, 20))
def test_the_first_peak_and_the_ends_are_always_drawn(curve, num_buckets):
    kept = curves.extremes(curve, num_buckets)
    assert {0, int(curve.argmax()), len(curve) - 1} <= set(kept.tolist())
    assert curve[kept].min() == curve.min()


@given(LEVELS, st.integers(1, 20))
def test_events_are_drawn_once_each_in_order_and_few_of_them(curve, num_buckets):
    kept = curves.extremes(curve, num_buckets)
    assert np.all(np.diff(kept) > 0)
    assert len(kept) <= 2 * num_buckets + 2


def test_a_short_curve_is_drawn_whole():
    assert curves.extremes(np.array([3, 3, 3, 3]), num_buckets=2).tolist() == [0, 1, 2, 3]


def test_a_spike_of_one_event_in_each_bucket_is_kept():
    curve = np.zeros(10_000, dtype=np.int64)
    spikes = np.arange(50, 10_000, 100)
    curve[spikes] = 7
    assert set(spikes) <= set(curves.extremes(curve, num_buckets=100))


def test_each_span_is_drawn_with_its_own_buckets():
    curve = np.zeros(20_000, dtype=np.int64)
    curve[3::4] = 1
    spans = [Span("Step 1", 1, 0, 500), Span("Whole run", -1, 0, 20_000)]
    drawn = curves.drawn_events(curve, spans)
    assert set(range(500)) <= set(drawn.tolist())
    assert len(drawn) < 2_000


def test_the_categories_add_up_to_the_curve(gpt_timeline):
    timeline = gpt_timeline(layers=2)
    by_category = curves.category_curves(timeline, timeline.num_bytes)
    assert np.array_equal(sum(by_category.values()), timeline.curve())
    assert "other" not in by_category


def test_phase_spans_follow_each_other_without_a_gap(gpt_timeline):
    timeline = gpt_timeline(layers=1, accumulate=2, steps=1)
    spans = curves.phase_spans(timeline)
    one_pass = ["forward", "backward"]
    assert [span.label for span in spans] == ["init", *one_pass, *one_pass, "optimizer"]
    assert [span.start for span in spans[1:]] == [span.stop for span in spans[:-1]]
    assert (spans[0].start, spans[-1].stop) == (0, len(timeline.events))


@pytest.mark.parametrize(
    ("steps", "labels"),
    [
        (2, ["Init", "Step 1", "Step 2", "Whole run"]),
        (7, ["Init", "Step 1", "Step 2", "Step 7", "Whole run"]),
    ],
)
def test_the_views_are_the_ends_of_the_run_and_the_step_of_the_peak(gpt_timeline, steps, labels):
    timeline = gpt_timeline(layers=1, steps=steps)
    spans, opening = curves.views(timeline, timeline.peak_event())
    assert [span.label for span in spans] == labels
    assert spans[opening].label == "Step 2"
    assert spans[opening].start <= timeline.peak_event() < spans[opening].stop


def test_a_run_without_a_step_opens_with_its_building(gpt_timeline):
    timeline = gpt_timeline(layers=1, steps=0)
    spans, opening = curves.views(timeline, timeline.peak_event())
    assert [span.label for span in spans] == ["Init", "Whole run"]
    assert opening == 0


def test_a_recording_with_the_same_events_lies_on_the_same_places(gpt_timeline):
    timeline = gpt_timeline(layers=1)
    places = curves.stretched(timeline, timeline)
    assert np.array_equal(places, np.arange(len(timeline.events)))


def test_a_recorded_step_takes_the_width_of_the_predicted_one(gpt_timeline):
    predicted, measured = gpt_timeline(layers=1), gpt_timeline(layers=3, steps=3)
    places = curves.stretched(measured, predicted)
    for ours, theirs in zip(
        curves.step_spans(predicted), curves.step_spans(measured), strict=False
    ):
        assert places[theirs.start] == ours.start
        assert ours.stop - 2 < places[theirs.stop - 1] < ours.stop
    assert np.all(np.isnan(places[measured.steps == 3]))
