"""The table as text for a terminal, and the words that it shares with the page.  No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from benchmarks.accuracy.alignment import Comparison
from benchmarks.accuracy.results import (
    Confusion,
    Prediction,
    Result,
    Summary,
    confusion,
    results_of,
    summary,
)
from benchmarks.accuracy.rows import Figure, Row
from memfit.units import GiB, MiB

KINDS = ("allocated", "reserved", "reserved, with the driver's growth", "device (nvidia-smi)")
"""What is measured, in the order of the summary."""


def kind_of(figure: Figure) -> str:
    """Which line of the summary a figure counts for."""
    if figure.name == "device":
        return KINDS[3]
    if figure.name == "device growth":
        return KINDS[2]
    return KINDS[1] if figure.name.endswith("reserved") else KINDS[0]


def summaries(results: Iterable[Result]) -> dict[str, Summary]:
    """A summary for each kind of figure that occurs."""
    found = list(results)
    by_kind = {kind: [r for r in found if kind_of(r.figure) == kind] for kind in KINDS}
    return {
        kind: summary([r.error for r in some], sum(r.is_inside_range for r in some))
        for kind, some in by_kind.items()
        if some
    }


def verdicts(rows: Iterable[Row], predictions: Sequence[Prediction]) -> Confusion:
    """Fits or does not, over the rows that have a prediction."""
    return confusion(
        (row.fits, prediction.fits)
        for row, prediction in zip(rows, predictions, strict=True)
        if not prediction.error
    )


def table(
    rows: Sequence[Row], predictions: Sequence[Prediction], comparisons: Sequence[Comparison]
) -> str:
    """Every row with its figures, then the summary."""
    lines = []
    results = results_of(rows, predictions)
    pairs = zip(rows, predictions, strict=True)
    for group, members in groupby(pairs, key=lambda pair: pair[0].group):
        lines += ["", group]
        for row, prediction in members:
            lines.append(f"  {row.name}{_trouble(row, prediction)}")
            lines += [_line(result) for result in results if result.row is row]
    for comparison in comparisons:
        lines += ["", f"recording {comparison.name}: {stream_words(comparison)}"]
    lines.append("")
    for kind, one in summaries(results).items():
        lines.append(f"{kind}: {summary_words(one)}")
    lines.append(verdict_words(verdicts(rows, predictions)))
    return "\n".join(lines)


def _trouble(row: Row, prediction: Prediction) -> str:
    if prediction.error:
        return f"   NOT PREDICTED: {prediction.error:.200}"
    if row.fits != prediction.fits:
        return f"   WRONG VERDICT: {'fits' if prediction.fits else 'does not fit'}"
    return "" if row.fits else "   does not fit, as predicted"


def _line(result: Result) -> str:
    figure = result.figure
    cause = f"   {result.cause}" if result.difference_bytes else ""
    outside = "" if result.is_inside_range else "   outside the range"
    return (
        f"    {figure.name:<18}{result.predicted_bytes:>16,} {figure.num_bytes:>16,}"
        f" {percent(result.error):>9}{outside}{cause}"
    )


def percent(part: float) -> str:
    """``+0.12 %``, with more digits for what would print as 0; ``0`` for exactly nothing."""
    if part == 0:
        return "0"
    return f"{100 * part:+.2f} %" if abs(part) >= 5e-5 else f"{100 * part:+.1g} %"


def size(num_bytes: int) -> str:
    """Bytes with commas, and GiB or MiB behind."""
    if num_bytes >= GiB:
        return f"{num_bytes:,} ({num_bytes / GiB:.3f} GiB)"
    return f"{num_bytes:,} ({num_bytes / MiB:.1f} MiB)"


def summary_words(one: Summary) -> str:
    """One line of statistics."""
    return (
        f"{one.num_exact} of {one.num_figures} exact, median {100 * one.median:.2f} %, 95th "
        f"percentile {100 * one.percentile_95:.2f} %, worst {100 * one.worst:.2f} %, most under "
        f"{100 * one.most_under:.2f} %, under in {100 * one.under_rate:.0f} %, "
        f"{one.num_inside_range} inside the stated range"
    )


def verdict_words(counts: Confusion) -> str:
    """The confusion of verdicts."""
    return (
        f"{counts.num_right} of {counts.num_rows} verdicts right: {counts.fits_said_fits} fitted "
        f"and were said to, {counts.not_said_not} ran out and were said to; "
        f"{counts.fits_said_not} fitted and were said not to, {counts.not_said_fits} ran out and "
        f"were said to fit"
    )


def stream_words(comparison: Comparison) -> str:
    """How one stream compares."""
    one = comparison.alignment
    words = f"{one.num_equal:,} of {one.num_recorded:,} recorded events equal"
    if one.num_predicted != one.num_recorded:
        words += f", {one.num_predicted:,} predicted"
    if comparison.recorded_segments:
        alike = comparison.recorded_segments == comparison.predicted_segments
        words += f"; {len(comparison.recorded_segments)} segments, order and size "
        words += "equal" if alike else "not equal"
    return words
