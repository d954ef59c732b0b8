"""Curves small enough to draw and true where it counts: which events are kept, and what spans them.

A Timeline of 100,000 events is drawn from some thousand of them.  Each stretch of a curve is cut
into buckets and each bucket keeps its lowest and its highest point, so every spike is there and
the peak is exact; a short curve is kept whole.  E is the number of events.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

import numpy as np

from memfit.records.timeline import CATEGORIES, PHASES, Timeline

NUM_BUCKETS = 500


class Span(NamedTuple):
    """Events ``start`` to ``stop`` (exclusive), and what they are called."""

    label: str
    step: int
    start: int
    stop: int


def extremes(curve: np.ndarray, num_buckets: int = NUM_BUCKETS) -> np.ndarray:
    """Positions that draw ``curve``, ascending: ends, and each bucket's lowest and highest."""
    length = len(curve)
    if length <= 2 * num_buckets:
        return np.arange(length)
    edges = np.linspace(0, length, num_buckets + 1).astype(np.int64)
    kept = [0, length - 1]
    for start, stop in itertools.pairwise(edges):
        bucket = curve[start:stop]
        kept += [int(start + bucket.argmin()), int(start + bucket.argmax())]
    return np.unique(kept)


def drawn_events(curve: np.ndarray, spans: list[Span]) -> np.ndarray:
    """The events to draw so that each span, looked at alone, shows all of its spikes."""
    parts = [span.start + extremes(curve[span.start : span.stop]) for span in spans]
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *parts]))


def category_curves(timeline: Timeline, block_bytes: np.ndarray) -> dict[str, np.ndarray]:
    """Category -> (E,) int64 live bytes after each event; absent ones left out.

    ``block_bytes`` is (B,): what each block of the timeline counts for.
    """
    blocks = np.abs(timeline.events) - 1
    deltas = np.where(timeline.events > 0, block_bytes[blocks], -block_bytes[blocks])
    codes = timeline.categories[blocks]
    return {
        name: np.cumsum(np.where(codes == code, deltas, 0))
        for code, name in enumerate(CATEGORIES)
        if np.any(codes == code)
    }


def phase_spans(timeline: Timeline) -> list[Span]:
    """Each unbroken stretch of one phase in one step, in order."""
    phases, steps = timeline.phases, timeline.steps
    changes = np.flatnonzero((np.diff(phases) != 0) | (np.diff(steps) != 0)) + 1
    edges = [0, *map(int, changes), len(phases)]
    return [
        Span(PHASES[phases[start]], int(steps[start]), start, stop)
        for start, stop in itertools.pairwise(edges)
        if start < stop
    ]


def step_spans(timeline: Timeline) -> list[Span]:
    """From the first to the last event of each step; step 0 is ``Init``."""
    spans = []
    for step in np.unique(timeline.steps):
        seen = np.flatnonzero(timeline.steps == step)
        label = f"Step {step}" if step else "Init"
        spans.append(Span(label, int(step), int(seen[0]), int(seen[-1]) + 1))
    return spans


def views(timeline: Timeline, peak_event: int) -> tuple[list[Span], int]:
    """What the memory chart can be switched to, and which of them it opens with.

    The whole run, its building, the first step, the step of the peak and the last one.  It opens
    with the step of the peak; with the last step when the peak is in none.
    """
    steps = step_spans(timeline)
    if not steps:
        return [], 0
    last = steps[-1].step
    opening = int(timeline.steps[peak_event]) or last
    shown = [span for span in steps if span.step in {0, 1, opening, last}]
    chosen = [span.step for span in shown].index(opening)
    return [*shown, Span("Whole run", -1, 0, len(timeline.events))], chosen


def stretched(measured: Timeline, onto: Timeline) -> np.ndarray:
    """(E of ``measured``,) where each measured event lies on the event axis of ``onto``.

    The same phase of the same step takes the same width in both: whole numbers where the two have
    as many events in it.  NaN in phases that ``onto`` does not have.
    """
    there = _by_occurrence(phase_spans(onto))
    places = np.full(len(measured.events), np.nan)
    for key, here in _by_occurrence(phase_spans(measured)).items():
        if key in there:
            target, width = there[key], here.stop - here.start
            steps = np.arange(width) * (target.stop - target.start) / width
            places[here.start : here.stop] = target.start + steps
    return places


def _by_occurrence(spans: list[Span]) -> dict[tuple[int, str, int], Span]:
    """Spans by step, phase, and which of that phase in that step it is."""
    seen: Counter[tuple[int, str]] = Counter()
    found = {}
    for span in spans:
        key = (span.step, span.label)
        found[(*key, seen[key])] = span
        seen[key] += 1
    return found
