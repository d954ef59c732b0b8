"""Errors of predictions, and how they are summed up."""

import pytest

from benchmarks.accuracy.results import (
    Confusion,
    Prediction,
    Result,
    Summary,
    confusion,
    percentile,
    results_of,
    summary,
)
from benchmarks.accuracy.rows import Figure, Row


def a_row(*figures: Figure, causes: dict[str, str] | None = None) -> Row:
    return Row(
        name="a run",
        group="runs",
        kind="course-a",
        url="https://example.org",
        gpu="b200",
        torch="2.11",
        arguments={},
        figures=figures,
        causes=causes or {},
        published={},
    )


def a_result(predicted: int, figure: Figure, low: int = 0, high: int = 1 << 40) -> Result:
    return Result(
        row=a_row(figure),
        figure=figure,
        predicted_bytes=predicted,
        low_bytes=low,
        high_bytes=high,
    )


MEASURED = Figure(name="peak allocated", num_bytes=1000)
PRINTED = Figure(name="peak allocated", num_bytes=1000, rounding_bytes=50, printed="1.0 kB")


def test_the_difference_is_predicted_minus_measured() -> None:
    assert a_result(990, MEASURED).difference_bytes == -10
    assert a_result(990, MEASURED).error == -0.01


def test_within_the_last_printed_digit_there_is_no_difference() -> None:
    assert a_result(1050, PRINTED).difference_bytes == 0
    assert a_result(1051, PRINTED).difference_bytes == 51


def test_a_measurement_is_inside_the_range_as_far_as_it_was_printed() -> None:
    assert a_result(1100, MEASURED, low=1000, high=1200).is_inside_range
    assert not a_result(1100, MEASURED, low=1001, high=1200).is_inside_range
    assert a_result(1100, PRINTED, low=1050, high=1200).is_inside_range


def test_a_cause_is_that_of_the_figure_or_of_the_row() -> None:
    other = Figure(name="end", num_bytes=1)
    row = a_row(MEASURED, other, causes={"*": "noise", "end": "rounding"})
    prediction = Prediction(
        values={"peak allocated": 1, "end": 2},
        lows={"peak allocated": 1, "end": 2},
        highs={"peak allocated": 1, "end": 2},
    )
    assert [result.cause for result in results_of([row], [prediction])] == ["noise", "rounding"]


def test_a_row_without_a_prediction_gives_no_result() -> None:
    assert results_of([a_row(MEASURED)], [Prediction(error="KeyError: 'x'")]) == []


@pytest.mark.parametrize(("percent", "value"), [(0, 1.0), (50, 2.5), (75, 3.25), (100, 4.0)])
def test_a_percentile_lies_between_the_nearest_ranks(percent: float, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == value


def test_a_summary_counts_what_is_exact_and_what_is_under() -> None:
    assert summary([0.0, 0.02, -0.01, 0.0], num_inside_range=3) == Summary(
        num_figures=4,
        num_exact=2,
        median=0.005,
        percentile_95=pytest.approx(0.0185),  # type: ignore[arg-type]
        worst=0.02,
        most_under=0.01,
        under_rate=0.25,
        num_inside_range=3,
    )


def test_verdicts_are_sorted_by_what_happened_and_what_was_said() -> None:
    counts = confusion([(True, True), (True, False), (False, False), (False, False)])
    assert counts == Confusion(fits_said_fits=1, fits_said_not=1, not_said_not=2)
    assert (counts.num_right, counts.num_rows) == (3, 4)
