"""What follows from a few figures of a card: by its capability, clock, link and architecture.

A figure that many cards share stands once, in ``capabilities.toml``, ``rates.toml``, ``links.py``
or ``context.py``.  Every card, from the catalog or detected, gets it from there with its source.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from memfit.devices.context import expected_context
from memfit.devices.links import link_bytes_per_second
from memfit.records.device import Device

RATES = ("fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops", "fp8_flops")
"""The fields of a Device that ``rates.toml`` gives per clock and multiprocessor."""

_CAPABILITY_SOURCE = (
    "CUDA C++ Programming Guide, appendix Compute Capabilities, table of technical specifications"
)
_NO_UNITS = {
    "tf32_flops": "none: tf32 tensor cores begin with compute capability 8.0",
    "fp16_flops": "none: tensor cores begin with compute capability 7.0",
    "bf16_flops": "none: bf16 tensor cores begin with compute capability 8.0",
    "fp8_flops": "none: fp8 tensor cores begin with compute capability 8.9",
}
"""CUDA C++ Programming Guide, appendix Compute Capabilities, types that tensor cores support."""


@functools.cache
def table(name: str) -> dict[str, Any]:
    """A TOML file of this package as plain data.  Not to be changed."""
    text = resources.files("memfit.devices").joinpath(name).read_text("utf-8")
    return tomllib.loads(text)


def rates(entry: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, str]]:
    """Peak FLOP/s by field, and their sources, of a card of the catalog.

    ``entry`` names a table of ``rates.toml`` and has the clocks that the maker's peaks are for.
    """
    sms, kind, sources = entry["sms"], table("rates.toml")[entry["rates"]], entry["sources"]
    figures, origins = {}, {}
    for field in RATES:
        clock = "boost_hz"
        if field != "fp32_flops" and "tensor_hz" in entry:
            clock = "tensor_hz"
        flop = kind[field]
        figures[field] = sms * flop * entry[clock]
        origins[field] = (
            f"{sms} multiprocessors x {flop} FLOP per clock x {entry[clock] / 10**9:g} GHz; "
            f"FLOP: {kind['source']}; clock: {sources[clock]}"
            if flop
            else _NO_UNITS[field]
        )
    return figures, origins


def completed(card: Device) -> Device:
    """``card`` with the figures that it lacks and that follow from those it has."""
    figures: dict[str, Any] = dict(table("capabilities.toml").get(card.compute_capability, {}))
    sources = {field: _CAPABILITY_SOURCE for field in figures if field != "architecture"}
    figures["link_bytes_per_second"] = link_bytes_per_second(card.link)
    sources["link_bytes_per_second"] = f"one direction of {card.link}: devices/links.py"
    card = _filled(card, figures, sources)
    context = expected_context(card)
    figures = {
        "context_bytes": context.num_bytes,
        "context_spread_bytes": context.high - context.num_bytes,
    }
    return _filled(card, figures, dict.fromkeys(figures, context.source))


def _filled(card: Device, figures: Mapping[str, Any], sources: Mapping[str, str]) -> Device:
    missing = {field: value for field, value in figures.items() if not getattr(card, field)}
    found = {field: source for field, source in sources.items() if missing.get(field)}
    return dataclasses.replace(card, **missing, sources={**card.sources, **found})
