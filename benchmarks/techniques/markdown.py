"""docs/techniques.md, and the measured costs on the how-to pages.  No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.techniques.contenders import Group
from benchmarks.techniques.results import Result, aims
from benchmarks.techniques.stored import Measured

TEMPLATE = Path(__file__).with_name("page.md")

_MEASURED = re.compile(r"<!-- measured: (\S+) -->\n(?:.*?<!-- end measured -->\n)?", re.S)

MiB = 1 << 20


def page(measured: Mapping[str, Measured], groups: Sequence[Group]) -> str:
    """The whole page, of the groups that were run."""
    missing = [group.title for group in groups if group.name not in measured]
    groups = [group for group in groups if group.name in measured]
    parts = [f"**Not run:** {'; '.join(missing)}.", ""] if missing else []
    for group in groups:
        found = measured[group.name]
        parts += [f"## {group.title}", "", f"{described(group)} torch {found.torch}, {found.when}."]
        parts += ["", *table(group, found.results), ""]
    return TEMPLATE.read_text().format(
        aims="\n".join(_aims(measured, groups)), groups="\n".join(parts).rstrip()
    )


def described(group: Group) -> str:
    """The sizes, as a line above the table."""
    size = group.size
    return (
        f"Vocabulary {size.vocab_size:,}, {size.batch_size} x {size.seq_len:,} tokens a step "
        "where nothing else is said."
    )


def table(group: Group, results: Sequence[Result]) -> list[str]:
    """The lines of one group; memory in MiB, ratios to the group's baseline."""
    base = next((one for one in results if one.contender.key == group.baseline), None)
    heads = ("tensor peak", "predicted", "resident peak", "above both", "optimizer state")
    ratios = ("tokens per CPU-second", "peak", "speed")
    lines = [
        f"| contender | {' | '.join(heads + ratios)} |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for one in results:
        if one.error:
            lines.append(f"| {one.contender.title} | failed: {one.error} | | | | | | | |")
            continue
        lines.append(
            f"| {one.contender.title} | {_mib(one.tensor_peak_bytes)} | {_predicted(one)} | "
            f"{_mib(one.resident_peak_bytes)} | {_mib(one.above_bytes)} | "
            f"{_mib(one.state_bytes)} | {one.tokens_per_cpu_second:,.0f} | {_ratios(one, base)} |"
        )
    return lines


def sentence(group: Group, result: Result, results: Sequence[Result]) -> str:
    """What a how-to page says of its technique."""
    rows = {one.contender.key: one for one in results}
    # Beside a Trainer it is memfit's own plain row that says what a technique does.
    base = rows["memfit"] if "memfit" in rows else rows[group.baseline]
    size = group.size
    samples = result.contender.recipe.get("batch_size", size.batch_size)
    assert result.tensor_peak_bytes is not None and base.tensor_peak_bytes is not None
    speed = result.tokens_per_cpu_second / base.tokens_per_cpu_second
    words = (
        f"Measured on a GPT-2 of {size.num_layers} layers and {size.dim} wide, vocabulary "
        f"{size.vocab_size:,}, {samples} x {size.seq_len:,} tokens a micro-batch on a CPU: "
        f"**{result.contender.title}**: a tensor peak of {_mib(result.tensor_peak_bytes)} MiB "
        f"({base.contender.title}: {_mib(base.tensor_peak_bytes)}) at {speed:.2f} of the speed."
    )
    if result.state_bytes is not None and group.name in ("optimizers", "muon"):
        words += f" Its state takes {_mib(result.state_bytes)} MiB."
    return words


def with_measured(text: str, sentences: Mapping[str, str]) -> str:
    """``text`` with a sentence below each ``<!-- measured: KEY -->`` that there is one for."""

    def fill(match: re.Match[str]) -> str:
        if match[1] not in sentences:
            return match[0]
        return f"<!-- measured: {match[1]} -->\n{sentences[match[1]]}\n<!-- end measured -->\n"

    return _MEASURED.sub(fill, text)


def asked_for(text: str) -> list[str]:
    """The rows that a page names."""
    return [match[1] for match in _MEASURED.finditer(text)]


def _aims(measured: Mapping[str, Measured], groups: Sequence[Group]) -> list[str]:
    lines = ["| aim | found | |", "|---|---|---|"]
    for group in groups:
        for aim in aims(group, measured[group.name].results):
            verdict = "reached" if aim.passed else "missed"
            lines.append(f"| {group.title}: {aim.words} | {aim.found} | {verdict} |")
    return lines


def _mib(num_bytes: int | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / MiB:,.0f}"


def _predicted(result: Result) -> str:
    predicted, measured = result.predicted_peak_bytes, result.tensor_peak_bytes
    if predicted is None or measured is None:
        return ""
    return "exact" if predicted == measured else f"{predicted - measured:+,} bytes"


def _ratios(result: Result, base: Result | None) -> str:
    if base is None or not base.tensor_peak_bytes or not result.tensor_peak_bytes:
        return " | "
    peak = result.tensor_peak_bytes / base.tensor_peak_bytes
    return f"{peak:.2f} | {result.tokens_per_cpu_second / base.tokens_per_cpu_second:.2f}"
