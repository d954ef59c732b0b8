"""docs/accuracy.md, written from the results into ``page.md``.  No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.accuracy.alignment import Comparison
from benchmarks.accuracy.results import Prediction, Result, percentile, results_of
from benchmarks.accuracy.rows import Row, group_words
from benchmarks.accuracy.text import (
    percent,
    stream_words,
    summaries,
    verdict_words,
    verdicts,
)

TEMPLATE = Path(__file__).with_name("page.md")


def page(
    rows: Sequence[Row], predictions: Sequence[Prediction], comparisons: Sequence[Comparison]
) -> str:
    """The whole page."""
    results = results_of(rows, predictions)
    words = group_words()
    groups: list[str] = []
    for name, members in groupby(
        zip(rows, predictions, strict=True), key=lambda pair: pair[0].group
    ):
        groups += [f"## {name}", "", words[name], ""]
        groups += _group(list(members), [r for r in results if r.row.group == name])
    return TEMPLATE.read_text().format(
        summary="\n".join(_summary(rows, predictions, results)),
        groups="\n".join(groups).rstrip(),
        recordings="\n".join(_recordings(comparisons)),
    )


def _summary(
    rows: Sequence[Row], predictions: Sequence[Prediction], results: Sequence[Result]
) -> list[str]:
    lines = [
        "| what | figures | exact | median | 95 % | worst | most under | under | in range |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, one in summaries(results).items():
        lines.append(
            f"| {kind} | {one.num_figures} | {one.num_exact} | {_part(one.median)} | "
            f"{_part(one.percentile_95)} | {_part(one.worst)} | {_part(one.most_under)} | "
            f"{100 * one.under_rate:.0f} % | {one.num_inside_range} |"
        )
    return [*lines, "", f"{verdict_words(verdicts(rows, predictions))}."]


def _part(part: float) -> str:
    return percent(part).removeprefix("+")


def _group(members: Sequence[tuple[Row, Prediction]], results: Sequence[Result]) -> list[str]:
    urls = list(dict.fromkeys(row.url for row, _ in members))
    lines = [_sources(urls), ""]
    numbers = {url: number for number, url in enumerate(urls, 1)}
    if results:
        lines += [
            "| row | source | figure | predicted, bytes | measured | difference | range |",
            "|---|--:|---|--:|--:|--:|---|",
        ]
        lines += [_line(result, numbers[result.row.url]) for result in results]
        lines.append("")
    lines += _not_predicted(members)
    lines += _out_of_memory(members, numbers)
    lines += _causes(results)
    if any(row.published for row, _ in members):
        lines += _published(results)
    return lines


def _sources(urls: Sequence[str]) -> str:
    links = (f"[{n}]({url})" if "://" in url else f"{n}: {url}" for n, url in enumerate(urls, 1))
    return f"Sources: {', '.join(links)}."


def _line(result: Result, source: int) -> str:
    figure = result.figure
    measured = figure.printed or f"{figure.num_bytes:,}"
    differs = result.difference_bytes
    difference = f"{differs:+,} ({percent(result.error)})" if differs else "0"
    return (
        f"| {result.row.name} | {source} | {figure.name} | {result.predicted_bytes:,} | {measured} "
        f"| {difference} | {_range(result)} |"
    )


def _range(result: Result) -> str:
    low, high = (bound - result.predicted_bytes for bound in (result.low_bytes, result.high_bytes))
    if low == high == 0:
        return ""
    words = f"{low:+,} to {high:+,}" if low else f"up to {high:+,}"
    return words if result.is_inside_range else f"{words}: outside"


def _not_predicted(members: Sequence[tuple[Row, Prediction]]) -> list[str]:
    return [
        f"**{row.name}** was not predicted: {prediction.error}\n"
        for row, prediction in members
        if prediction.error
    ]


def _out_of_memory(
    members: Sequence[tuple[Row, Prediction]], numbers: Mapping[str, int]
) -> list[str]:
    failed = [(row, prediction) for row, prediction in members if not row.fits]
    if not failed:
        return []
    lines = ["| ran out of memory | source | what was seen | predicted |", "|---|--:|---|---|"]
    for row, prediction in failed:
        said = "fits" if prediction.fits else "does not fit"
        lines.append(f"| {row.name} | {numbers[row.url]} | {row.notes} | {said} |")
    return [*lines, ""]


def _causes(results: Sequence[Result]) -> list[str]:
    """Each residual's cause once, with the rows that it holds for."""
    by_cause: dict[str, list[str]] = {}
    for result in results:
        if result.difference_bytes:
            names = by_cause.setdefault(result.cause or "not found yet", [])
            names.append(f"{result.row.name}: {result.figure.name}")
    if not by_cause:
        return []
    lines = ["What is behind the differences:", ""]
    lines += [f"- {cause} ({'; '.join(names)})" for cause, names in by_cause.items()]
    return [*lines, ""]


def _published(results: Sequence[Result]) -> list[str]:
    """Beside what other predictors answered for the rows that fitted."""
    names = list(dict.fromkeys(name for result in results for name in result.row.published))
    ours = [abs(result.error) for result in results]
    lines = ["| predictor | median error | worst |", "|---|--:|--:|"]
    lines.append(f"| memfit | {_spread(ours)} |")
    for name in names:
        errors = [
            abs(result.row.published[name] / result.figure.num_bytes - 1) for result in results
        ]
        lines.append(f"| {name} | {_spread(errors)} |")
    return [*lines, ""]


def _spread(errors: Sequence[float]) -> str:
    ordered = sorted(errors)
    return f"{100 * percentile(ordered, 50):.2f} % | {100 * ordered[-1]:.2f} %"


def _recordings(comparisons: Sequence[Comparison]) -> list[str]:
    if not comparisons:
        return []
    lines = [
        "## Recorded streams",
        "",
        "Every allocation and free in order with the bytes asked for, recorded and predicted.",
        "",
        "| recording | result |",
        "|---|---|",
    ]
    lines += [f"| {one.title} | {stream_words(one)} |" for one in comparisons]
    causes = [f"- {one.title}: {one.causes}" for one in comparisons if one.causes]
    return [*lines, "", *causes] if causes else lines
