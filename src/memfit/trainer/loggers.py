"""Loggers that people watch runs with: TensorBoard, trackio, Weights & Biases.

Each gets what ``run.jsonl`` gets, memory beside loss and learning rate, and keeps its files inside
the run's folder.  The packages are extras, imported when one is asked for.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from memfit.errors import MissingExtra, UnknownName
from memfit.records.runlog import Note, RunLog, StepRecord


class Logger(Protocol):
    """Something that shows a run while it trains."""

    def start(self, header: RunLog) -> None:
        """The run begins, or goes on."""

    def step(self, record: StepRecord) -> None:
        """One step is done."""

    def note(self, note: Note) -> None:
        """Something happened beside the steps."""

    def close(self) -> None:
        """The run ends; what was logged is on disk afterwards."""


def open_loggers(names: Sequence[str], folder: Path) -> list[Logger]:
    """The loggers of these names, for the run in ``folder``.

    Raises:
        UnknownName: there is no such logger.
        MissingExtra: its package is not installed.
    """
    for name in names:
        if name not in LOGGERS:
            raise UnknownName("logger", name, LOGGERS, f"there are {', '.join(LOGGERS)}")
    return [LOGGERS[name](folder) for name in dict.fromkeys(names)]


def metrics(record: StepRecord, predicted_peak_bytes: int | None) -> dict[str, float]:
    """What is drawn of a step, by name.  What it does not know is left out."""
    named = {
        "loss": record.loss,
        "eval_loss": record.eval_loss,
        "learning_rate": record.learning_rate,
        "grad_norm": record.grad_norm,
        "seconds": record.seconds,
        "num_targets": record.num_targets,
        "batch_size": record.batch_size,
        "seq_len": record.seq_len,
        "loss_scale": record.loss_scale,
        "memory/live_bytes": record.live_bytes,
        "memory/peak_bytes": record.peak_bytes,
        "memory/resident_bytes": record.resident_bytes,
        "memory/predicted_peak_bytes": predicted_peak_bytes,
        "memory/num_ooms": record.num_ooms,
    }
    return {name: value for name, value in named.items() if value is not None}


def _config(header: RunLog) -> dict[str, Any]:
    return {
        "job": header.job,
        "budget_bytes": header.budget_bytes,
        "predicted_peak_bytes": header.predicted_peak_bytes,
        **{f"recipe/{name}": value for name, value in header.recipe.items()},
        **header.facts,
    }


class TensorBoard:
    """Event files in ``OUT/tensorboard``: ``tensorboard --logdir OUT``."""

    def __init__(self, folder: Path) -> None:
        _module("tensorboard", "tensorboard", "logging to TensorBoard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(log_dir=str(folder / "tensorboard"))
        self._predicted: int | None = None

    def start(self, header: RunLog) -> None:
        self._predicted = header.predicted_peak_bytes
        lines = [f"    {name}: {value}" for name, value in _config(header).items()]
        self._writer.add_text("run", "\n".join(lines), 0)

    def step(self, record: StepRecord) -> None:
        for name, value in metrics(record, self._predicted).items():
            self._writer.add_scalar(name, value, record.step)

    def note(self, note: Note) -> None:
        self._writer.add_text(note.kind, note.text, note.step)

    def close(self) -> None:
        self._writer.close()


class _Run:
    """What trackio and wandb have in common: trackio has wandb's interface."""

    _package: str
    _extra: str

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._predicted: int | None = None
        self._run: Any = None
        self._library = self._open()

    def _open(self) -> Any:
        raise NotImplementedError

    def _arguments(self) -> dict[str, Any]:
        raise NotImplementedError

    def start(self, header: RunLog) -> None:
        self._predicted = header.predicted_peak_bytes
        self._run = self._library.init(
            project="memfit", name=self._folder.name, config=_config(header), **self._arguments()
        )

    def step(self, record: StepRecord) -> None:
        self._library.log(metrics(record, self._predicted), step=record.step)

    def note(self, note: Note) -> None:
        self._library.log({note.kind: note.text}, step=note.step)

    def close(self) -> None:
        if self._run is not None:
            self._library.finish()


class Trackio(_Run):
    """A database in ``OUT/trackio``: ``TRACKIO_DIR=OUT/trackio trackio show``.

    trackio reads ``TRACKIO_DIR`` once, when it is imported; where it already is, or the variable
    is set, its files stay where that says.
    """

    def _open(self) -> Any:
        os.environ.setdefault("TRACKIO_DIR", str(self._folder.resolve() / "trackio"))
        return _module("trackio", "trackio", "logging to trackio")

    def _arguments(self) -> dict[str, Any]:
        return {"embed": False, "auto_log_gpu": False}


class Wandb(_Run):
    """``OUT/wandb``.  Where it goes from there is wandb's own setting: ``WANDB_MODE=offline``
    keeps it there, for ``wandb sync`` later."""

    def _open(self) -> Any:
        return _module("wandb", "wandb", "logging to Weights & Biases")

    def _arguments(self) -> dict[str, Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        return {"dir": str(self._folder)}


LOGGERS: dict[str, Callable[[Path], Logger]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
}


def _module(name: str, extra: str, purpose: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(name, extra, purpose) from error
