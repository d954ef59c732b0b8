"""docs/accuracy.md says what was found, and what was not."""

from pathlib import Path

from benchmarks.accuracy.alignment import Comparison, align
from benchmarks.accuracy.markdown import page
from benchmarks.accuracy.results import Prediction
from benchmarks.accuracy.rows import load
from benchmarks.accuracy.text import table

ROWS = load()
ROW = next(row for row in ROWS if row.name == "small, train, fp32")
FAILED = next(row for row in ROWS if not row.fits)


def predicted(difference: int) -> Prediction:
    values = {figure.name: figure.num_bytes + difference for figure in ROW.figures}
    return Prediction(values=values, lows=dict(values), highs=dict(values))


def test_a_difference_without_a_cause_is_called_not_found_yet() -> None:
    text = page([ROW], [predicted(1000)], [])
    assert "not found yet (small, train, fp32: " in text
    assert "+1,000" in text


def test_exact_rows_have_no_list_of_causes() -> None:
    text = page([ROW], [predicted(0)], [])
    assert "What is behind the differences" not in text


def test_a_row_that_ran_out_stands_with_its_verdict() -> None:
    text = page([FAILED], [Prediction(fits=False)], [])
    assert f"| {FAILED.name} | 1 | {FAILED.notes} | does not fit |" in text
    assert "1 of 1 verdicts right" in text


def test_a_row_without_a_prediction_says_why() -> None:
    text = page([ROW], [Prediction(error="KeyError: 'gpu'")], [])
    assert "**small, train, fp32** was not predicted: KeyError: 'gpu'" in text


def test_a_recorded_stream_says_how_many_events_are_equal() -> None:
    stream = [(1, 512), (-1, 512)]
    comparison = Comparison(
        name="one",
        title="a recording",
        alignment=align(stream, stream),
        recorded_segments=(2 << 20,),
        predicted_segments=(2 << 20,),
    )
    line = "2 of 2 recorded events equal; 1 segments, order and size equal"
    assert f"| a recording | {line} |" in page([ROW], [predicted(0)], [comparison])
    assert f"recording one: {line}" in table([ROW], [predicted(0)], [comparison])


def test_the_page_in_the_documents_has_every_row() -> None:
    text = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text()
    assert [row.name for row in ROWS if row.name not in text] == []
    assert "not found yet" not in text
