from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np

from memfit.records.prediction import Peak
from memfit.records.replay import Replay
from memfit.reports import charts


def test_the_layers_add_up_to_the_allocated_bytes_at_every_drawn_event(prediction):
    chart = charts.memory_chart(prediction)
    total = np.sum([layer["bytes"] for layer in chart["layers"]], axis=0)
    assert np.array_equal(total, prediction.replay.allocated[chart["x"]])


def test_the_peak_of_a_long_run_is_drawn_exactly(gpt_timeline, prediction_of):
    prediction = prediction_of(gpt_timeline(layers=12, accumulate=8))
    chart = charts.memory_chart(prediction)
    assert len(chart["x"]) < chart["num_events"]
    drawn = prediction.replay.allocated[chart["x"]]
    assert drawn.max() == chart["peak"]["bytes"] == prediction.peak.allocated_bytes
    assert chart["x"][int(drawn.argmax())] == chart["peak"]["x"]


def test_each_drawn_event_names_its_op_and_module(prediction):
    chart, timeline = charts.memory_chart(prediction), prediction.timeline
    i = chart["x"].index(timeline.peak_event())
    assert chart["names"][chart["ops"][i]] == prediction.at_peak.op
    assert chart["names"][chart["modules"][i]] == prediction.at_peak.module
    assert chart["deltas"][i] == timeline.deltas()[timeline.peak_event()]


def test_allocated_and_reserved_are_lines_only_where_they_differ(prediction):
    curve = prediction.timeline.curve()
    larger = Replay(allocator="x", requested=curve, allocated=curve, reserved=curve + 512)
    assert charts.memory_chart(prediction)["lines"] == []
    lines = charts.memory_chart(replace(prediction, replay=larger))["lines"]
    assert [line["label"] for line in lines] == ["Reserved"]


def test_what_lies_outside_the_allocator_lowers_the_ceiling(prediction):
    peak = Peak(requested_bytes=1, allocated_bytes=1, reserved_bytes=1, device_bytes=1 + (1 << 29))
    chart = charts.memory_chart(replace(prediction, peak=peak, budget_bytes=1 << 30))
    assert chart["ceiling"] == {
        "bytes": 1 << 29,
        "label": "budget leaves 512.0 MiB",
        "outside_bytes": 1 << 29,
    }


def test_a_budget_below_what_lies_outside_the_allocator_is_not_drawn(prediction):
    peak = Peak(requested_bytes=1, allocated_bytes=1, reserved_bytes=1, device_bytes=1 + (1 << 29))
    chart = charts.memory_chart(replace(prediction, peak=peak, budget_bytes=1 << 20))
    assert chart["ceiling"] is None


def test_equal_curves_have_no_gap_and_unequal_ones_are_told_apart(gpt_timeline, prediction_of):
    timeline = gpt_timeline(layers=1)
    sizes = timeline.num_bytes.copy()
    sizes[0] += 4096
    other = replace(timeline, num_bytes=sizes)
    prediction = prediction_of(timeline)
    assert charts.comparison_chart(prediction, timeline)["largest_gap_bytes"] == 0
    assert charts.comparison_chart(prediction, other)["largest_gap_bytes"] == 4096
    longer = charts.comparison_chart(prediction, gpt_timeline(layers=2))
    assert longer["largest_gap_bytes"] is None
    assert max(longer["measured"]["bytes"]) == gpt_timeline(layers=2).curve().max()


def test_a_diverged_loss_is_a_gap_in_the_curve(runlog_of):
    log = runlog_of(steps=3)
    steps = (log.steps[0], replace(log.steps[1], loss=math.nan, eval_loss=math.inf), log.steps[2])
    chart = charts.training_chart(replace(log, steps=steps))
    assert chart["loss"]["y"][1] is None
    assert chart["eval"]["y"] == [None]
    json.dumps(chart, allow_nan=False)


def test_only_measured_steps_are_in_the_curve_of_peaks(runlog_of):
    log = runlog_of(steps=3)
    steps = (replace(log.steps[0], peak_bytes=None), *log.steps[1:])
    chart = charts.training_chart(replace(log, steps=steps))
    assert chart["peak"]["x"] == [2, 3]
    assert charts.training_chart(runlog_of(steps=0))["peak"] == {"x": [], "bytes": []}
