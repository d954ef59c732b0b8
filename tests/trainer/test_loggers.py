"""Each logger gets each step's memory beside its loss, and keeps its files in the run's folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memfit.errors import MissingExtra, UnknownName
from memfit.records.runlog import Note, RunLog, StepRecord
from memfit.trainer.loggers import LOGGERS, metrics, open_loggers

HEADER = RunLog(
    job="gpt2",
    recipe={"batch_size": 4, "precision": "bf16"},
    predicted_peak_bytes=3000,
    facts={"torch": "2.13.0"},
)


def record(step: int, **changes: Any) -> StepRecord:
    fields: dict[str, Any] = {
        "step": step,
        "loss": 4.0 - step,
        "learning_rate": 0.5,
        "grad_norm": None,
        "num_targets": 64,
        "seconds": 0.25,
    }
    return StepRecord(**(fields | changes))


STEPS = (record(1, live_bytes=1000, peak_bytes=2000, resident_bytes=9000), record(2, eval_loss=1.5))
NOTE = Note(step=2, kind="leak", text="a leak: each step leaves 512 B behind")


def log(name: str, folder: Path) -> None:
    (logger,) = open_loggers([name], folder)
    logger.start(HEADER)
    for step in STEPS:
        logger.step(step)
    logger.note(NOTE)
    logger.close()


def test_memory_stands_beside_loss_and_rate() -> None:
    assert metrics(STEPS[0], 3000) == {
        "loss": 3.0,
        "learning_rate": 0.5,
        "seconds": 0.25,
        "num_targets": 64,
        "memory/live_bytes": 1000,
        "memory/peak_bytes": 2000,
        "memory/resident_bytes": 9000,
        "memory/predicted_peak_bytes": 3000,
        "memory/num_ooms": 0,
    }


def test_tensorboard_shows_what_the_log_says(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    log("tensorboard", tmp_path)

    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    drawn = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.scalars.Keys()}
    assert drawn["loss"] == [(1, 3.0), (2, 2.0)]
    assert drawn["memory/peak_bytes"] == [(1, 2000.0)]
    assert drawn["memory/predicted_peak_bytes"] == [(1, 3000.0), (2, 3000.0)]
    assert drawn["eval_loss"] == [(2, 1.5)]


def stand_in(said: list[tuple[str, Any]]) -> Any:
    """A module with the functions that trackio and wandb share."""
    return SimpleNamespace(
        init=lambda **arguments: said.append(("init", arguments)) or object(),
        log=lambda values, step: said.append(("log", (step, values))),
        finish=lambda: said.append(("finish", None)),
    )


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_trackio_and_wandb_are_told_in_their_words(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, Any]] = []
    monkeypatch.setitem(sys.modules, name, stand_in(said))
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))

    log(name, tmp_path / "run")

    (began, arguments), *logged, (ended, _) = said
    assert (began, ended) == ("init", "finish")
    assert (arguments["project"], arguments["name"]) == ("memfit", "run")
    assert arguments["config"]["recipe/precision"] == "bf16"
    assert logged == [
        ("log", (1, metrics(STEPS[0], 3000))),
        ("log", (2, metrics(STEPS[1], 3000))),
        ("log", (2, {"leak": NOTE.text})),
    ]


@pytest.mark.slow
def test_wandb_offline_writes_into_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path; from test_loggers import log; log('wandb', Path(sys.argv[1]))"
    )
    run_alone(program, tmp_path, {"WANDB_MODE": "offline", "WANDB_SILENT": "true"})

    assert list(tmp_path.glob("run/wandb/offline-run-*/run-*.wandb"))


@pytest.mark.slow
def test_trackio_writes_into_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path; from test_loggers import log; log('trackio', Path(sys.argv[1]))"
    )
    run_alone(program, tmp_path, {"HF_HUB_OFFLINE": "1"})

    assert list(tmp_path.glob("run/trackio/*.db")) or list(tmp_path.glob("run/trackio/**/*"))


def run_alone(program: str, folder: Path, environment: dict[str, str]) -> None:
    """In a process of its own: both keep threads, and read their settings once."""
    import os
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "run"), str(Path(__file__).parent)],
        env={**os.environ, **environment, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", LOGGERS)
def test_a_package_that_is_absent_is_named_with_its_extra(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))

    with pytest.raises(MissingExtra, match=rf"pip install 'memfit\[{name}\]'"):
        open_loggers([name], tmp_path)


def test_an_unknown_logger_is_answered_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="there are tensorboard, trackio, wandb"):
        open_loggers(["tensorbord"], tmp_path)


def test_what_is_logged_can_be_written_as_json() -> None:
    assert json.loads(json.dumps(metrics(STEPS[0], None)))["loss"] == 3.0
