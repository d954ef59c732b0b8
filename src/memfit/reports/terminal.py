"""A prediction, a plan or a run, as text in the terminal.

Names of modules and ops come from other people's models: everything is printed as ``rich.Text``,
which reads no markup, and control characters are spelled out.
"""

from __future__ import annotations

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memfit.records.plan import Plan
from memfit.records.prediction import Prediction
from memfit.records.runlog import RunLog
from memfit.reports import wording
from memfit.units import format_duration, format_size

_BAR_WIDTH = 24
_NUM_LARGEST = 8

_DOUBTS = ("scratch unknown", "unknown values read")
"""Facts of a Timeline that a person should weigh a prediction by."""


def print_prediction(console: Console, prediction: Prediction) -> None:
    """Verdict, peaks, what the peak is made of, phases and the largest tensors."""
    answer, sizes = wording.verdict(prediction).split(": ", 1)
    style = "bold green" if prediction.fits else "bold red"
    console.print(Text.assemble((answer.capitalize(), style), f": {sizes}"))
    console.print(_plain(f"{prediction.job} · {wording.setting(prediction)}", "dim"))
    peak = prediction.peak
    pairs = {
        "requested": peak.requested_bytes,
        "allocated": peak.allocated_bytes,
        "reserved": peak.reserved_bytes,
        "device": peak.device_bytes,
    }
    console.print()
    console.print(_pairs({label: format_size(size) for label, size in pairs.items()}))
    console.print(_plain(f"\nThe peak is in {wording.where(prediction.at_peak)}."))
    _print_part(console, "At the peak", _breakdown(prediction))
    _print_part(console, "Peak of each phase", _phases(prediction))
    _print_part(console, "Largest tensors at the peak", _largest(prediction))
    if prediction.learnt_bytes:
        learnt = format_size(prediction.learnt_bytes)
        console.print(_plain(f"\n{learnt} of the peak was learnt by running ops once.", "dim"))
    for fact in _DOUBTS:
        if fact in prediction.timeline.facts:
            note = f"\nNote: {fact}: {prediction.timeline.facts[fact]}"
            console.print(_plain(note, "yellow"))
    console.print(_plain(f"\nPredicted in {format_duration(prediction.seconds)}.", "dim"))


def print_plan(console: Console, plan: Plan) -> None:
    """The chosen recipe with its reason, and the others with theirs."""
    need, budget = format_size(plan.predicted_peak_bytes), format_size(plan.budget_bytes)
    chosen = wording.techniques(plan.recipe)
    console.print(Text.assemble(("Plan", "bold green"), f": {chosen}; {need} of {budget}"))
    if plan.reason:
        console.print(_plain(plan.reason))
    if plan.rejected:
        table = _table("Batch", "Checkpointing", "Peak", "Why not")
        for row in plan.rejected:
            peak = Text(format_size(row.peak_bytes), justify="right")
            table.add_row(
                Text(str(row.batch_size)), _plain(row.checkpointing), peak, _plain(row.reason)
            )
        _print_part(console, "Also tried", table)


def print_run(console: Console, runlog: RunLog) -> None:
    """What a run came to: steps, losses, speed, and measured beside predicted memory."""
    console.print(_plain(f"Trained {runlog.job}", "bold"))
    console.print(_pairs(wording.run_summary(runlog)))


def _breakdown(prediction: Prediction) -> Table:
    total = prediction.peak.allocated_bytes
    table = Table(box=None, show_header=False, pad_edge=False)
    rows = sorted(prediction.breakdown.items(), key=lambda row: -row[1])
    for name, num_bytes in rows:
        table.add_row(
            wording.LABELS[name],
            Text(format_size(num_bytes), justify="right"),
            Text(wording.share(num_bytes, total), justify="right"),
            _bar(num_bytes, total),
        )
    return table


def _phases(prediction: Prediction) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, num_bytes in prediction.phases.items():
        size = Text(format_size(num_bytes), justify="right")
        table.add_row(name.capitalize(), size, _bar(num_bytes, prediction.peak.allocated_bytes))
    return table


def _largest(prediction: Prediction) -> Table:
    table = _table("Size", "Tensor", "Module and op", "Category")
    for tensor in prediction.largest[:_NUM_LARGEST]:
        table.add_row(
            Text(format_size(tensor.num_bytes), justify="right"),
            _plain(f"{tensor.dtype}{tensor.shape}"),
            _plain(f"{tensor.module} {tensor.op}".strip()),
            wording.LABELS[tensor.category],
        )
    return table


def _print_part(console: Console, title: str, table: Table) -> None:
    console.print(Group("", Text(title, "bold"), Padding(table, (0, 0, 0, 2))))


def _pairs(pairs: dict[str, str]) -> Padding:
    table = Table(box=None, show_header=False, pad_edge=False)
    for label, value in pairs.items():
        table.add_row(Text(label, "dim"), _plain(value))
    return Padding(table, (0, 0, 0, 2))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _bar(part: int, whole: int) -> Text:
    return Text("█" * round(_BAR_WIDTH * part / whole) or "▏", "cyan")


def _plain(text: str, style: str = "") -> Text:
    """Text whose control characters are spelled out, so that a name cannot steer the terminal."""
    spelled = (c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
    return Text("".join(spelled), style)
