"""``memfit gpus``: the cards of this machine and of the catalog, and where each figure stands."""

from __future__ import annotations

from collections import defaultdict
from json import dumps
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from memfit.devices import detect
from memfit.devices.catalog import catalog, find
from memfit.records.device import Device
from memfit.units import GiB

_WORDS = {
    "total_bytes": "memory, GiB",
    "compute_capability": "compute capability",
    "sms": "SMs",
    "bandwidth_bytes_per_second": "bandwidth, GB/s",
    "bf16_flops": "bf16, TFLOP/s",
}


def gpus(
    name: Annotated[
        str | None,
        typer.Argument(help="One card, with the source of every figure; 'cpu' is this machine."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the GPUs that a run can be fitted to: this machine's first, then the catalog."""
    here = [*detect.gpus(), detect.machine()]
    known = list(catalog().values())
    if name is not None:
        device = next((mine for mine in here if mine.name == name.lower()), None) or find(name)
        if json:
            typer.echo(dumps({"device": device.as_dict()}, indent=2))
        else:
            _show(device)
    elif json:
        document = {"this_machine": here, "catalog": known}
        plain = {key: [device.as_dict() for device in some] for key, some in document.items()}
        typer.echo(dumps(plain, indent=2))
    else:
        _list(here, known)


def _list(here: list[Device], known: list[Device]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    for heading in ("memory GiB", "compute", "SMs", "GB/s", "bf16 TFLOP/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for device in here:
        table.add_row(device.name, *_figures(device).values(), "this machine", style="green")
    for device in known:
        table.add_row(device.name, *_figures(device).values())
    Console().print(table)


def _show(device: Device) -> None:
    """The figures of one device, then the sources, each once with the figures it is for."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for field, figure in _figures(device).items():
        table.add_row(_WORDS[field], figure)
    console = Console(highlight=False)
    maker = ", ".join(filter(None, (device.label, device.architecture)))
    console.print(f"{device.name}: {maker}", style="bold", markup=False)
    console.print(table)
    fields_of = defaultdict(list)
    for field, source in device.sources.items():
        fields_of[source].append(_WORDS[field].partition(",")[0])
    console.print("sources", style="bold")
    for source, fields in fields_of.items():
        console.print(f"{', '.join(fields)}: {source}", markup=False, soft_wrap=True)


def _figures(device: Device) -> dict[str, str]:
    """What is shown of a device, by the field it comes from; ``-`` where there is none."""
    bandwidth, bf16 = device.bandwidth_bytes_per_second, device.bf16_flops
    return {
        "total_bytes": f"{device.total_bytes / GiB:.2f}",
        "compute_capability": device.compute_capability or "-",
        "sms": str(device.sms or "-"),
        "bandwidth_bytes_per_second": f"{bandwidth / 10**9:,.0f}" if bandwidth else "-",
        "bf16_flops": f"{bf16 / 10**12:,.1f}" if bf16 else "-",
    }
