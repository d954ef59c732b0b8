"""A prediction, a plan or a run, as text in the terminal.

Names of modules and ops come from other people's models: everything is printed as ``rich.Text``,
which reads no markup, and control characters are spelled out.
"""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
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

_STYLES = {"yes": "bold green", "tight": "bold yellow", "no": "bold red"}

_DOUBTS = ("scratch unknown", "unknown values read")
"""Facts of a CPU's Timeline that a person should weigh a prediction by."""


def print_prediction(console: Console, prediction: Prediction) -> None:
    """Verdict, peaks, what the peak is made of, phases, the largest tensors, what is uncertain."""
    answer, sizes = wording.verdict(prediction).split(": ", 1)
    console.print(Text.assemble((answer.capitalize(), _STYLES[prediction.fits]), f": {sizes}"))
    console.print(_plain(f"{prediction.job} · {wording.setting(prediction)}", "dim"))
    for line in filter(None, (wording.why(prediction), _lengths(prediction))):
        console.print(_plain(line, "yellow"))
    console.print()
    console.print(_peaks(prediction))
    console.print(_plain(f"\nThe peak is {wording.where(prediction.at_peak)}."))
    _print_part(console, "At the peak", _breakdown(prediction))
    _print_part(console, "Peak of each phase", _phases(prediction))
    _print_part(console, "Largest tensors at the peak", _largest(prediction))
    if prediction.simulation is None:
        _print_notes_of_the_cpu(console, prediction)
    else:
        _print_part(console, "What is not certain", _uncertainty(prediction))
        console.print(_plain(f"\n{wording.rules(prediction)}", "dim"))
    console.print(_plain(f"\nPredicted in {format_duration(prediction.seconds)}.", "dim"))


def _print_notes_of_the_cpu(console: Console, prediction: Prediction) -> None:
    if prediction.learnt_bytes:
        learnt = format_size(prediction.learnt_bytes)
        console.print(_plain(f"\n{learnt} of the peak was learnt by running ops once.", "dim"))
    for fact in _DOUBTS:
        if fact in prediction.timeline.facts:
            note = f"\nNote: {fact}: {prediction.timeline.facts[fact]}"
            console.print(_plain(note, "yellow"))


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


def _peaks(prediction: Prediction) -> Padding:
    """The four peaks, with their ranges and what they hold beside tensors."""
    peak, outside = prediction.peak, prediction.outside.total_bytes
    least, most = prediction.allocated_range or (0, 0)
    cached = prediction.replay.fragmentation_bytes
    rows = (
        ("requested", peak.requested_bytes, "", ""),
        ("allocated", peak.allocated_bytes, wording.bounds(least, most), ""),
        (
            "reserved",
            peak.reserved_bytes,
            wording.bounds(*prediction.reserved_range),
            f"{format_size(cached)} not handed out" if cached else "",
        ),
        (
            "device",
            peak.device_bytes,
            wording.bounds(prediction.at_least_bytes, prediction.at_most_bytes),
            f"{format_size(outside)} outside the allocator" if outside else "",
        ),
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    for label, num_bytes, bounds, note in rows:
        cells = [_plain(bounds), _plain(note, "dim")] if outside else []
        table.add_row(Text(label, "dim"), format_size(num_bytes), *cells)
    return Padding(table, (0, 0, 0, 2))


def _lengths(prediction: Prediction) -> str:
    return "" if prediction.lengths is None else wording.lengths(prediction.lengths)


def _uncertainty(prediction: Prediction) -> Group:
    """Each part with what it may change, and why below it."""
    width = max((len(part.name) for part in prediction.uncertainty), default=0)
    lines: list[RenderableType] = []
    for part in prediction.uncertainty:
        lines.append(Text.assemble(f"{part.name:{width}}  ", wording.change(part)))
        lines.append(Padding(_plain(part.reason, "dim"), (0, 0, 0, 2)))
    return Group(*lines)


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


def _print_part(console: Console, title: str, part: RenderableType) -> None:
    console.print(Group("", Text(title, "bold"), Padding(part, (0, 0, 0, 2))))


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
