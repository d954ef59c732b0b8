"""Predicts a row: its run is traced once, then replayed under each policy of segment addresses."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.accuracy import figures
from benchmarks.accuracy.results import Prediction
from benchmarks.accuracy.rows import Row
from benchmarks.accuracy.runs import run_of
from memfit.allocator.addresses import POLICIES
from memfit.allocator.replay import replay_on_cuda
from memfit.allocator.version import TorchVersion
from memfit.devices.catalog import find
from memfit.devices.context import context_bytes, growth_bytes
from memfit.records.device import Device
from memfit.records.replay import Replay
from memfit.records.timeline import Timeline
from memfit.tracing.virtual.run import trace_on_gpu
from memfit.units import MiB

V100_CONTEXT_BYTES = (1343 - 2) * MiB
"""nvidia-smi's figure of the source of the bert-large rows (transformers' perf_train_gpu_one, 2022)
once a first tiny tensor is on the card, less the allocator's segment that holds that tensor."""

OLD_WORKSPACES_BYTES = 2 * 8_519_680
"""cuBLAS workspaces are the allocator's since torch 1.13 (pytorch/pytorch#83461), so an older torch
may have reserved so much less."""

DRIVER_GROWTH_BYTES = growth_bytes().num_bytes
"""What the driver takes once kernels run, as ``memfit predict`` has it."""

XMEM_REPEATS = 0.003
"""By how much equal runs of xMem's source differ, at the median."""

XMEM_BATCHES: tuple[dict[str, Any], ...] = (
    {},
    {"padded": False},
    *({"lengths": (length, 128, 128, 128)} for length in (112, 96, 64)),
)
"""What the batches of an xMem run may have been: lines that are padded to 128 tokens; lines that
all reach them; or a first batch whose longest line is shorter.  The first one is predicted."""


def predict(row: Row) -> Prediction:
    """Traces and replays one row."""
    started = time.perf_counter()
    prediction = Prediction()
    if row.kind == "xmem":
        for batches in XMEM_BATCHES if row.fits else XMEM_BATCHES[:1]:
            _add(prediction, row, _trace(row, **batches))
    else:
        _add(prediction, row, _trace(row))
    prediction.seconds = time.perf_counter() - started
    return prediction


def _trace(row: Row, **changes: Any) -> Timeline:
    card, version = find(row.gpu), TorchVersion.parse(row.torch)
    return trace_on_gpu(run_of(row, **changes), card=card, version=version).timeline


def _add(prediction: Prediction, row: Row, timeline: Timeline) -> None:
    """Takes one Timeline into the prediction: the first one gives the values, all the ranges."""
    is_first = not prediction.num_events
    room = capacity_bytes(row, find(row.gpu))
    for policy in POLICIES:
        replay = replay_on_cuda(
            timeline,
            version=TorchVersion.parse(row.torch),
            addresses=policy,
            capacity_bytes=room if row.kind == "xmem" or not row.fits else None,
        )
        leads = is_first and policy == row.addresses
        for figure in row.figures:
            low, value, high = _read(figure.name, timeline, replay)
            prediction.lows[figure.name] = min(prediction.lows.get(figure.name, low), low)
            prediction.highs[figure.name] = max(prediction.highs.get(figure.name, high), high)
            if leads:
                prediction.values[figure.name] = value
        if leads:
            prediction.num_alloc_retries = replay.num_alloc_retries
            failed = replay.out_of_memory_event >= 0
            prediction.fits = not failed and int(replay.reserved.max()) <= room
    prediction.num_events = len(timeline.events)


def _read(name: str, timeline: Timeline, replay: Replay) -> tuple[int, int, int]:
    """A figure with the least and the most it may be, what is outside the allocator included."""
    if name == "device":
        value = figures.read("peak reserved", timeline, replay) + V100_CONTEXT_BYTES
        return value - OLD_WORKSPACES_BYTES, value, value + DRIVER_GROWTH_BYTES
    if name == "device growth":
        reserved = figures.read("peak reserved", timeline, replay)
        grown = reserved + DRIVER_GROWTH_BYTES
        return round(reserved * (1 - XMEM_REPEATS)), grown, round(grown * (1 + XMEM_REPEATS))
    value = figures.read(name, timeline, replay)
    return value, value, value


def capacity_bytes(row: Row, card: Device) -> int:
    """Room for segments: what CUDA reports as the card's, less the context and its growth."""
    context = V100_CONTEXT_BYTES if row.kind == "bert" else context_bytes(card).num_bytes
    return card.total_bytes - context - DRIVER_GROWTH_BYTES
