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

V100_CONTEXT_BYTES = 1343 * MiB
"""Measured by the source of the bert-large rows, which prints nvidia-smi's figure before any model
is there (transformers' perf_train_gpu_one, 2022; CUDA before lazy loading)."""

DRIVER_GROWTH_BYTES = growth_bytes().low
"""What the driver was seen to take once kernels run: 26 MiB at the first cuBLAS call and 4 MiB at
the first cuDNN call on a Tesla T4."""

LENGTHS = ((128, 128, 128, 128), (112, 128, 128, 128), (96, 128, 128, 128))
"""Padded lengths of the four batches of an xMem run: all at the limit, or the first one shorter,
as far as batches of a dozen lines and more ever are."""


def predict(row: Row) -> Prediction:
    """Traces and replays one row."""
    started = time.perf_counter()
    prediction = Prediction()
    if row.kind == "xmem":
        for lengths in LENGTHS if row.fits else LENGTHS[:1]:
            _add(prediction, row, _trace(row, lengths=lengths))
    else:
        _add(prediction, row, _trace(row))
    prediction.seconds = time.perf_counter() - started
    return prediction


def _trace(row: Row, **changes: Any) -> Timeline:
    card, version = find(row.gpu), TorchVersion.parse(row.torch)
    return trace_on_gpu(run_of(row, **changes), card=card, version=version).timeline


def _add(prediction: Prediction, row: Row, timeline: Timeline) -> None:
    """Takes one Timeline into the prediction: the first one gives the values, all the ranges."""
    first = not prediction.num_events
    version = TorchVersion.parse(row.torch)
    limited = row.kind == "xmem" or not row.fits
    room = capacity_bytes(row, find(row.gpu))
    for number, policy in enumerate(POLICIES):
        replay = replay_on_cuda(
            timeline,
            version=version,
            addresses=policy,
            capacity_bytes=room if limited else None,
        )
        for name in (figure.name for figure in row.figures):
            value = _read(name, timeline, replay)
            prediction.lows[name] = min(prediction.lows.get(name, value), value)
            prediction.highs[name] = max(prediction.highs.get(name, value), value)
            if first and number == 0:
                prediction.values[name] = value
        if first and number == 0:
            prediction.num_alloc_retries = replay.num_alloc_retries
            failed = replay.out_of_memory_event >= 0
            prediction.fits = not failed and int(replay.reserved.max()) <= room
    prediction.num_events = len(timeline.events)


def _read(name: str, timeline: Timeline, replay: Replay) -> int:
    """Figures that include what is outside the allocator, and those that do not."""
    if name == "device":
        return figures.read("peak reserved", timeline, replay) + V100_CONTEXT_BYTES
    if name == "device growth":
        return figures.read("peak reserved", timeline, replay) + DRIVER_GROWTH_BYTES
    return figures.read(name, timeline, replay)


def capacity_bytes(row: Row, card: Device) -> int:
    """Room for segments: what CUDA reports as the card's, less the context and its growth."""
    context = V100_CONTEXT_BYTES if row.kind == "bert" else context_bytes(card).num_bytes
    return card.total_bytes - context - DRIVER_GROWTH_BYTES
