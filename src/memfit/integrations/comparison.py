"""Predicted against measured memory of a step, inside another trainer.

Measured is what PyTorch's allocator counts: ``max_memory_allocated`` on CUDA; on the CPU the model,
its gradients and optimizer state as they stand, the step's batch, and on top of them every block
that the step takes (``devices.cpu_allocations``).  Listening costs time there, so only some steps
are measured.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from memfit.data.batch_tree import leaves
from memfit.devices.cpu_allocations import CpuAllocations
from memfit.errors import BadInput
from memfit.records.prediction import Prediction
from memfit.units import format_size

Given: TypeAlias = Prediction | str | Path | int
"""A prediction, the file of ``memfit predict --json``, or bytes."""

_FIRST_STEPS, _EVERY = 3, 10
"""On the CPU the first steps are measured and one in so many.  The one before that is listened to
as well: of a block that was made unheard, such as a gradient, the allocator does not say how large
it was when it goes."""


def predicted_bytes(given: Given) -> int:
    """The allocated peak that a prediction says.

    Raises:
        BadInput: the file cannot be read, or holds no prediction.
    """
    if isinstance(given, Prediction):
        return given.peak.allocated_bytes
    if isinstance(given, int):
        return given
    try:
        data = json.loads(Path(given).read_text(encoding="utf-8"))
        return int(data["peak"]["allocated_bytes"])
    except OSError as error:
        raise BadInput(f"cannot read {given}: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise BadInput(
            f"{given} holds no prediction: write one with 'memfit predict TARGET --json'"
        ) from error


class StepMemory:
    """Measures the peak of steps: ``begin`` before one, ``batch`` in it, ``end`` after it.

    Or of each of a step's micro-batches in turn.
    """

    def __init__(self) -> None:
        self.peak_bytes: int | None = None
        """The highest of all measured steps."""
        self._listener: CpuAllocations | None = None
        self._device: torch.device | None = None
        self._before = 0
        self._batch: dict[int, int] = {}
        self._is_measured = False

    def begin(self, model: nn.Module, optimizers: Iterable[Any], step: int) -> None:
        """Step ``step``, counted from 0, begins, or a micro-batch of it."""
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._device = device
        self._batch = {}
        self._is_measured = step < _FIRST_STEPS or step % _EVERY == _EVERY - 1
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif self._is_measured or step % _EVERY == _EVERY - 2:
            self._before = _held_bytes(model, optimizers)
            self._listener = CpuAllocations()
            self._listener.__enter__()

    def batch(self, batch: Any) -> None:
        """A micro-batch of the step, which was made before the step began."""
        if self._listener is not None:
            tensors = (leaf for leaf in leaves(batch) if isinstance(leaf, Tensor))
            self._batch |= _storages(tensors)

    def end(self) -> int | None:
        """The step has ended; its peak in bytes, None when it was not measured."""
        peak: int | None = None
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.__exit__(None, None, None)
        if self._device is not None and self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
        elif listener is not None and self._is_measured:
            held = self._before + sum(self._batch.values())
            changes = (event.num_bytes for event in listener.events)
            peak = held + max(itertools.accumulate(changes, initial=0))
        if peak is not None:
            self.peak_bytes = max(peak, self.peak_bytes or 0)
        return peak


class Comparison:
    """What was predicted, what was measured, and how far apart they are."""

    def __init__(self, given: Given | None) -> None:
        self.predicted: int | None = None if given is None else predicted_bytes(given)
        self.why_not: str | None = None
        """Why nothing was predicted."""
        self.memory = StepMemory()

    def metrics(self) -> dict[str, float]:
        """What is logged, by name; empty before the first measured step."""
        measured = self.memory.peak_bytes
        if measured is None:
            return {}
        logged: dict[str, float] = {"memfit/measured_peak_bytes": measured}
        if self.predicted is not None:
            logged["memfit/predicted_peak_bytes"] = self.predicted
            logged["memfit/measured_over_predicted"] = measured / self.predicted
        return logged

    def table(self) -> str:
        """The same for the person."""
        measured = self.memory.peak_bytes
        if measured is None:
            return "memfit: no step was measured"
        lines = ["memfit: the most memory that a step takes"]
        if self.predicted is None:
            lines += [f"  predicted  nothing: {self.why_not}", f"  measured   {_size(measured)}"]
            return "\n".join(lines)
        lines += [
            f"  predicted  {_size(self.predicted)}",
            f"  measured   {_size(measured)}  ({_apart(measured, self.predicted)})",
        ]
        return "\n".join(lines)


def _size(num_bytes: int) -> str:
    return f"{format_size(num_bytes):>10}"


def _apart(measured: int, predicted: int) -> str:
    if measured == predicted:
        return "as predicted"
    difference = abs(measured - predicted)
    share = f"{difference / predicted:.1%}"
    words = format_size(difference) if share == "0.0%" else share
    return f"{words} {'above' if measured > predicted else 'below'}"


def _held_bytes(model: nn.Module, optimizers: Iterable[Any]) -> int:
    """Bytes of parameters, buffers, gradients and optimizer state, each storage once."""
    return sum(_storages(_held(model, optimizers)).values())


def _storages(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Which storages of the CPU hold them: which -> bytes."""
    return {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for tensor in tensors
        if tensor.layout == torch.strided and tensor.device.type == "cpu"
    }


def _held(model: nn.Module, optimizers: Iterable[Any]) -> Iterator[Tensor]:
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    yield from model.buffers()
    for optimizer in optimizers:
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate and Lightning wrap it
        for state in getattr(inner, "state", {}).values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
