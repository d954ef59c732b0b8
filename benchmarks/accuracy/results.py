"""What the predictions of the rows come to: errors, and how they are spread.  No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.accuracy.rows import Figure, Row


@dataclass(kw_only=True, slots=True)
class Prediction:
    """What was predicted for a row; plain data, to be sent between processes."""

    values: dict[str, int] = field(default_factory=dict)
    """Figure -> bytes under the default policy of segment addresses."""

    lows: dict[str, int] = field(default_factory=dict)
    highs: dict[str, int] = field(default_factory=dict)
    """Figure -> the least and the most over address policies and, for xMem, batches' lengths."""

    fits: bool = True
    num_alloc_retries: int = 0
    num_events: int = 0
    seconds: float = 0.0
    error: str = ""
    """Why there is no prediction; empty where there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One figure, predicted and measured."""

    row: Row
    figure: Figure
    predicted_bytes: int
    low_bytes: int
    high_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Predicted minus measured; 0 where the measurement is printed no finer."""
        difference = self.predicted_bytes - self.figure.num_bytes
        return 0 if abs(difference) <= self.figure.rounding_bytes else difference

    @property
    def error(self) -> float:
        """The difference as a part of what was measured, with its sign."""
        return self.difference_bytes / self.figure.num_bytes

    @property
    def is_inside_range(self) -> bool:
        """The measurement lies in the predicted range, as far as it was printed."""
        rounding = self.figure.rounding_bytes
        return self.low_bytes - rounding <= self.figure.num_bytes <= self.high_bytes + rounding

    @property
    def cause(self) -> str:
        """Why it differs, as written down with the row; empty where nothing is."""
        return self.row.causes.get(self.figure.name, self.row.causes.get("*", ""))


def results_of(rows: Iterable[Row], predictions: Sequence[Prediction]) -> list[Result]:
    """A result for each figure of each row that has a prediction."""
    return [
        Result(
            row=row,
            figure=figure,
            predicted_bytes=prediction.values[figure.name],
            low_bytes=prediction.lows[figure.name],
            high_bytes=prediction.highs[figure.name],
        )
        for row, prediction in zip(rows, predictions, strict=True)
        if not prediction.error
        for figure in row.figures
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """How the errors of several figures are spread; parts of what was measured."""

    num_figures: int
    num_exact: int
    """Equal to the byte, or to the last printed digit."""

    median: float
    percentile_95: float
    worst: float
    """The largest error without its sign."""

    most_under: float
    """The largest part by which a prediction is below the measurement, 0 when none is."""

    under_rate: float
    """The part of the figures that is predicted too low at all."""

    num_inside_range: int


def summary(errors: Sequence[float], num_inside_range: int = 0) -> Summary:
    """Statistics of signed errors.

    Raises:
        ValueError: there are none.
    """
    if not errors:
        raise ValueError("there is no error to summarise")
    sizes = sorted(abs(error) for error in errors)
    return Summary(
        num_figures=len(errors),
        num_exact=sum(error == 0 for error in errors),
        median=percentile(sizes, 50),
        percentile_95=percentile(sizes, 95),
        worst=sizes[-1],
        most_under=max(0.0, -min(errors)),
        under_rate=sum(error < 0 for error in errors) / len(errors),
        num_inside_range=num_inside_range,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the nearest ranks of ascending ``values``."""
    rank = (len(values) - 1) * percent / 100
    low, high = math.floor(rank), math.ceil(rank)
    return values[low] + (values[high] - values[low]) * (rank - low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Confusion:
    """Rows by what happened and what was said."""

    fits_said_fits: int = 0
    fits_said_not: int = 0
    not_said_fits: int = 0
    not_said_not: int = 0

    @property
    def num_right(self) -> int:
        """Right verdicts."""
        return self.fits_said_fits + self.not_said_not

    @property
    def num_rows(self) -> int:
        """All verdicts."""
        return self.num_right + self.fits_said_not + self.not_said_fits


def confusion(verdicts: Iterable[tuple[bool, bool]]) -> Confusion:
    """From pairs: whether it fitted, whether it was said to."""
    pairs = list(verdicts)
    return Confusion(
        fits_said_fits=pairs.count((True, True)),
        fits_said_not=pairs.count((True, False)),
        not_said_fits=pairs.count((False, True)),
        not_said_not=pairs.count((False, False)),
    )
