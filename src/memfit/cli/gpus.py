"""``memfit gpus``: the cards of this machine and of the catalog, and where each figure stands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fnmatch import fnmatchcase
from json import dumps
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from memfit.devices import detect
from memfit.devices.catalog import catalog
from memfit.errors import BadInput, UnknownName
from memfit.records.device import Device
from memfit.units import GiB, KiB, MiB, format_size, parse_size


def _per(unit: int, digits: int = 0) -> Callable[[int], str]:
    return lambda figure: f"{figure / unit:,.{digits}f}"


_FIGURES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "total_bytes": ("memory, GiB", _per(GiB, 2)),
    "compute_capability": ("compute capability", str),
    "sms": ("SMs", str),
    "threads_per_sm": ("threads of an SM", _per(1)),
    "shared_memory_per_block_bytes": ("shared memory of a block, KiB", _per(KiB)),
    "l2_bytes": ("L2 cache, MiB", _per(MiB, 2)),
    "bandwidth_bytes_per_second": ("bandwidth, GB/s", _per(10**9)),
    "fp32_flops": ("fp32, TFLOP/s", _per(10**12, 1)),
    "tf32_flops": ("tf32, TFLOP/s", _per(10**12, 1)),
    "fp16_flops": ("fp16, TFLOP/s", _per(10**12, 1)),
    "bf16_flops": ("bf16, TFLOP/s", _per(10**12, 1)),
    "fp8_flops": ("fp8, TFLOP/s", _per(10**12, 1)),
    "link": ("link", str),
    "link_bytes_per_second": ("link one way, GB/s", _per(10**9, 1)),
    "context_bytes": ("CUDA context, MiB", _per(MiB)),
    "context_spread_bytes": ("CUDA context, more or less by MiB", _per(MiB)),
}
"""Field of a Device -> what it is called and how it is written."""

_COLUMNS = {
    "total_bytes": "memory GiB",
    "compute_capability": "compute",
    "sms": "SMs",
    "bandwidth_bytes_per_second": "GB/s",
    "bf16_flops": "bf16 TFLOP/s",
}
"""What the list shows, and its heading."""


def gpus(
    name: Annotated[
        str | None,
        typer.Argument(
            help="One card, with the source of every figure; 'cpu' is this machine.  A pattern "
            "('rtx-40*') lists the cards that it fits."
        ),
    ] = None,
    min_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Only what has this much, as CUDA reports it: 40GiB."),
    ] = None,
    architecture: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only Turing, Ampere, Ada, Hopper, ...")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the GPUs that a run can be fitted to: this machine's first, then the catalog."""
    if name is not None and not set(name) & set("*?["):
        if min_memory or architecture:
            raise BadInput(
                f"{name!r} is one card, and one card is not filtered: leave --min-memory and "
                f"--architecture out, or write a pattern such as '{name}*'"
            )
        device = detect.find(name)
        if json:
            typer.echo(dumps({"device": device.as_dict()}, indent=2))
        else:
            _show(device)
        return
    wanted = _wanted(name, min_memory, architecture)
    here = [device for device in (*detect.gpus(), detect.machine()) if wanted(device)]
    known = [card for card in catalog().values() if wanted(card)]
    if json:
        document = {"this_machine": here, "catalog": known}
        plain = {key: [device.as_dict() for device in some] for key, some in document.items()}
        typer.echo(dumps(plain, indent=2))
    elif here or known:
        _list(here, known)
    else:
        most = max(catalog().values(), key=lambda card: card.total_bytes)
        raise BadInput(
            f"none of {len(catalog())} GPUs is so: the largest is {most.name} with "
            f"{format_size(most.total_bytes)}, and `memfit gpus` lists all"
        )


def _wanted(
    pattern: str | None, min_memory: str | None, architecture: str | None
) -> Callable[[Device], bool]:
    """Whether a device passes every filter that is given."""
    least_bytes = 0 if min_memory is None else parse_size(min_memory)
    built = {card.architecture.lower(): card.architecture for card in catalog().values()}
    if architecture is not None and architecture.lower() not in built:
        raise UnknownName("architecture", architecture, built.values(), ", ".join(built.values()))
    shape = "*" if pattern is None else pattern.lower()

    def wanted(device: Device) -> bool:
        return (
            device.total_bytes >= least_bytes
            and (architecture is None or device.architecture.lower() == architecture.lower())
            and fnmatchcase(device.name, shape)
        )

    return wanted


def _list(here: list[Device], known: list[Device]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for device in here:
        figures = (_written(device, field) for field in _COLUMNS)
        table.add_row(device.name, *figures, "this machine", style="green")
    for device in known:
        table.add_row(device.name, *(_written(device, field) for field in _COLUMNS))
    Console().print(table)


def _show(device: Device) -> None:
    """The figures of one device, then the sources, each once with the figures it is for."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for field, (words, _) in _FIGURES.items():
        if getattr(device, field) or field in device.sources:
            table.add_row(words, _written(device, field))
    console = Console(highlight=False)
    maker = ", ".join(filter(None, (device.label, device.architecture)))
    console.print(f"{device.name}: {maker}", style="bold", markup=False, soft_wrap=True)
    console.print(table)
    fields_of = defaultdict(list)
    for field in _FIGURES:
        if field in device.sources:
            fields_of[device.sources[field]].append(_FIGURES[field][0].partition(",")[0])
    console.print("sources", style="bold")
    for source, words_of in fields_of.items():
        names = ", ".join(dict.fromkeys(words_of))
        console.print(f"{names}: {source}", markup=False, soft_wrap=True)


def _written(device: Device, field: str) -> str:
    """A figure as people read it; ``-`` where there is none."""
    figure = getattr(device, field)
    return _FIGURES[field][1](figure) if figure else "-"
