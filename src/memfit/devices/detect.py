"""The devices of this machine: its memory and processor, and its cards through the driver.

``machine`` counts what this process may use: in a container that is often far less than the
machine's RAM, and the kernel kills what goes beyond it.  ``gpus`` asks NVML (the package
nvidia-ml-py, extra ``gpu``), which needs a driver but neither CUDA nor torch.  ``find`` takes a
card of this machine before the catalog's of the same name: its own driver keeps what it keeps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from memfit.devices.catalog import catalog, matches
from memfit.devices.catalog import find as find_in_catalog
from memfit.devices.derived import completed
from memfit.records.device import Device
from memfit.units import GiB


def machine(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Device:
    """The CPU, named ``cpu``: RAM in bytes, or the control group's limit where that is lower.

    ``proc`` and ``cgroups`` are where Linux mounts them; elsewhere they do not exist.
    """
    total_bytes, source = psutil.virtual_memory().total, "RAM, as the system reports it"
    limit = _cgroup_limit(proc, cgroups)
    if limit is not None and limit < total_bytes:
        total_bytes, source = limit, "memory limit of this process's control group"
    return Device(
        name="cpu",
        kind="cpu",
        total_bytes=total_bytes,
        label=_processor(proc),
        sources={"total_bytes": source},
    )


def available_bytes() -> int:
    """What a new run can take of this machine's memory now, without pushing anything out."""
    return min(machine().total_bytes, int(psutil.virtual_memory().available))


def gpus() -> list[Device]:
    """The cards of this machine in the driver's order; empty without a driver or nvidia-ml-py.

    ``total_bytes`` is what the driver leaves to CUDA: NVML's total less what it keeps for itself.
    What NVML does not tell (the L2 cache, the peak rates) is the catalog's for a card in it, else
    0; what follows from the compute capability is there for every card.  A card that does not tell
    its memory (it has none of its own, or is lost) is left out.
    """
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        source = f"NVML, driver {pynvml.nvmlSystemGetDriverVersion()}"
        cards = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):
                cards.append(_card(pynvml, index, source))
        return cards
    finally:
        pynvml.nvmlShutdown()


def find(name: str) -> Device:
    """The device that ``name`` means: ``cpu``, a card of this machine, or one of the catalog.

    Raises:
        UnknownName: no device is meant; the message names the nearest.
        BadInput: more than one card is meant, and not just one of them is in this machine.
    """
    if name.lower() == "cpu":
        return machine()
    here = {card.name: card for card in reversed(gpus())}
    if name.lower() in here:
        return here[name.lower()]
    mine = [card.name for card in matches(name) if card.name in here]
    if len(mine) == 1:
        return here[mine[0]]
    return find_in_catalog(name)


def _card(nvml: Any, index: int, source: str) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def figure(query: Callable[..., int], *arguments: int) -> int:
        try:
            return query(handle, *arguments)
        except nvml.NVMLError:
            return 0

    label = nvml.nvmlDeviceGetName(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    capability = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    # A graphics core is one of 64 fp32 units of an SM up to the A100, of 128 in every card since.
    cores_per_sm = 64 if capability <= (8, 0) else 128
    megahertz = figure(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM)
    bus_bits = figure(nvml.nvmlDeviceGetMemoryBusWidth)
    generation = figure(nvml.nvmlDeviceGetMaxPcieLinkGeneration)
    lanes = figure(nvml.nvmlDeviceGetMaxPcieLinkWidth)
    figures: dict[str, Any] = {
        "total_bytes": memory.total - memory.reserved,
        "compute_capability": f"{capability[0]}.{capability[1]}",
        "sms": figure(nvml.nvmlDeviceGetNumGpuCores) // cores_per_sm,
        "bandwidth_bytes_per_second": 2 * megahertz * 10**6 * bus_bits // 8,
        "link": f"PCIe {generation}.0 x{lanes}" if generation and lanes else "",
    }
    sources = {
        "total_bytes": f"{source}: total less reserved",
        "compute_capability": source,
        "sms": f"{source}: cores / {cores_per_sm}",
        "bandwidth_bytes_per_second": f"{source}: 2 x largest memory clock x bus width",
        "link": f"{source}: largest generation and width of the slot",
    }
    card = Device(
        name=re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-"),
        kind="cuda",
        label=label,
        **figures,
        sources={field: text for field, text in sources.items() if figures[field]},
    )
    has_nvlink = figure(nvml.nvmlDeviceGetNvLinkState, 0) == nvml.NVML_FEATURE_ENABLED
    return completed(_named(card, has_nvlink=has_nvlink))


def _named(card: Device, *, has_nvlink: bool) -> Device:
    """The detected ``card`` under its catalog name, with what only the catalog knows.

    Labels do not tell the 8 GB and the 16 GB card of a model apart, so the size must agree too.
    An NVLink of the catalog is this card's only where its first link is up: a board can have a
    chip with links that lead nowhere.
    """
    for known in catalog().values():
        if known.label == card.label and abs(known.total_bytes - card.total_bytes) < 2 * GiB:
            kept = {"link", "link_bytes_per_second"} if has_nvlink else set()
            taken = {
                figure: getattr(known, figure)
                for figure in known.sources
                if figure in kept or (not getattr(card, figure) and not figure.startswith("link"))
            }
            origins = {figure: known.sources[figure] for figure in taken}
            return dataclasses.replace(
                card,
                name=known.name,
                **taken,
                sources={**card.sources, **origins},
            )
    return card


def _processor(proc: Path) -> str:
    """The processor's model as Linux names it, else whatever the platform calls it."""
    try:
        text = (proc / "cpuinfo").read_text("utf-8", "replace")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def _cgroup_limit(proc: Path, cgroups: Path) -> int | None:
    """The lowest memory limit in bytes from this process's control group up to the root.

    Version 2 writes ``max`` for no limit, version 1 a number larger than any memory.  Inside a
    container the group's own path is often not mounted; then only its parents are read.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text("utf-8").splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, file = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, file = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        while group.is_relative_to(root):
            limits += _bytes_in(group / file)
            group = group.parent
    return min(limits, default=None)


def _bytes_in(file: Path) -> list[int]:
    try:
        text = file.read_text("ascii").strip()
    except OSError:
        return []
    return [int(text)] if text.isdecimal() else []
