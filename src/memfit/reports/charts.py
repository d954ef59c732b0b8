"""What the charts of a page are drawn from: records turned into plain lists, ready for JSON.

Nothing here is styled; the templates do that.  All memory is in bytes, all x are event numbers
(memory) or step numbers (training).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from memfit.records.prediction import Prediction
from memfit.records.runlog import RunLog
from memfit.records.timeline import Timeline
from memfit.reports import curves
from memfit.reports.wording import LABELS, STACK
from memfit.units import format_size


def memory_chart(prediction: Prediction) -> dict[str, Any]:
    """Live bytes by category over the events, with the phases, the views and the peak.

    Bytes are those of the allocator's blocks, so that the layers are what is allocated.
    """
    timeline, replay = prediction.timeline, prediction.replay
    spans, opening = curves.views(timeline, replay.peak_event)
    events = curves.drawn_events(replay.allocated, spans)
    by_category = curves.category_curves(timeline, _block_bytes(prediction))
    blocks = np.abs(timeline.events[events]) - 1
    names, codes = np.unique(
        np.concatenate([timeline.ops[blocks], timeline.modules[blocks]]), return_inverse=True
    )
    return {
        "num_events": len(timeline.events),
        "x": events.tolist(),
        "layers": [
            {"name": name, "label": LABELS[name], "bytes": by_category[name][events].tolist()}
            for name in STACK
            if name in by_category
        ],
        "lines": _allocator_lines(prediction, events),
        "deltas": timeline.deltas()[events].tolist(),
        "names": [timeline.names[name] for name in names],
        "ops": codes[: len(events)].tolist(),
        "modules": codes[len(events) :].tolist(),
        "phases": _bands(timeline),
        "views": [span._asdict() for span in spans],
        "opening": opening,
        "peak": {"x": replay.peak_event, "bytes": prediction.peak.allocated_bytes},
        "ceiling": _ceiling(prediction),
    }


def comparison_chart(prediction: Prediction, measured: Timeline) -> dict[str, Any]:
    """Predicted and measured live requested bytes on the predicted event axis.

    ``largest_gap_bytes`` is the most that the two are apart at any measured event; None when some
    phase has another number of events in one than in the other.
    """
    predicted = prediction.timeline.curve()
    curve, places = measured.curve(), curves.stretched(measured, prediction.timeline)
    ours, theirs = curves.extremes(predicted), curves.extremes(curve)
    theirs = theirs[~np.isnan(places[theirs])]
    return {
        "predicted": {"x": ours.tolist(), "bytes": predicted[ours].tolist()},
        "measured": {"x": places[theirs].round(2).tolist(), "bytes": curve[theirs].tolist()},
        "phases": _bands(prediction.timeline),
        "largest_gap_bytes": _largest_gap(predicted, curve, places),
    }


def _largest_gap(predicted: np.ndarray, measured: np.ndarray, places: np.ndarray) -> int | None:
    """The most bytes that two curves are apart; None where their events are not the same ones."""
    if np.isnan(places).any() or np.any(places % 1):
        return None
    return int(np.abs(predicted[places.astype(np.int64)] - measured).max(initial=0))


def training_chart(runlog: RunLog) -> dict[str, Any]:
    """Losses and measured memory over the steps; what was not measured is null."""
    loss = np.array([row.loss for row in runlog.steps])
    kept = [runlog.steps[i] for i in curves.extremes(np.nan_to_num(loss))]
    evaluated = [row for row in runlog.steps if row.eval_loss is not None]
    measured = [row for row in runlog.steps if row.peak_bytes is not None]
    peaks = curves.extremes(np.array([row.peak_bytes for row in measured]))
    return {
        "loss": {"x": [row.step for row in kept], "y": [_finite(row.loss) for row in kept]},
        "eval": {
            "x": [row.step for row in evaluated],
            "y": [_finite(row.eval_loss) for row in evaluated],
        },
        "peak": {
            "x": [measured[i].step for i in peaks],
            "bytes": [measured[i].peak_bytes for i in peaks],
        },
        "predicted_bytes": runlog.predicted_peak_bytes,
        "budget_bytes": runlog.budget_bytes,
    }


def _block_bytes(prediction: Prediction) -> np.ndarray:
    """(B,) what each block takes: as the allocator hands it out, where that is known."""
    known = prediction.replay.block_bytes
    return known if len(known) else prediction.timeline.num_bytes


def _allocator_lines(prediction: Prediction, events: np.ndarray) -> list[dict[str, Any]]:
    """Allocated and reserved, where the allocator takes more than the tensors need."""
    replay = prediction.replay
    lower, lines = replay.requested, []
    for label, curve in (("Allocated", replay.allocated), ("Reserved", replay.reserved)):
        if not np.array_equal(curve, lower):
            lines.append({"label": label, "bytes": curve[events].tolist()})
        lower = curve
    return lines


def _bands(timeline: Timeline) -> list[dict[str, Any]]:
    return [span._asdict() for span in curves.phase_spans(timeline)]


def _ceiling(prediction: Prediction) -> dict[str, Any] | None:
    """The line that reserved bytes may not cross; None where nothing is left for them."""
    outside = prediction.peak.device_bytes - prediction.peak.reserved_bytes
    room = prediction.budget_bytes - outside
    if room <= 0:
        return None
    label = f"budget leaves {format_size(room)}" if outside else f"budget {format_size(room)}"
    return {"bytes": room, "label": label, "outside_bytes": outside}


def _finite(number: float | None) -> float | None:
    """JSON has no NaN: a diverged loss is a gap in the curve."""
    return None if number is None or not math.isfinite(number) else number
