"""The folder of a run: what lies where, and who may write it.

    OUT/run.jsonl          the log, a line a step
    OUT/measured.timeline  memory of the first steps, as recorded
    OUT/tokenizer.json     what encoded the text
    OUT/state/             saved states
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from memfit.errors import BadInput
from memfit.records.files import write_text
from memfit.records.runlog import RunLog, StepRecord, step_line


class RunFolder:
    """A run's folder, made ready to write to.

    Raises:
        BadInput: it holds a run and neither ``resume`` nor ``force`` was given, or it cannot be
            written.
    """

    def __init__(self, path: Path, *, resume: bool, force: bool) -> None:
        self.path = path
        self.states = path / "state"
        self.log = path / "run.jsonl"
        self.timeline = path / "measured.timeline"
        self.tokenizer = path / "tokenizer.json"
        if resume and not self.log.exists():
            raise BadInput(f"there is no run in {path} to resume: leave out --resume to begin one")
        if self.log.exists() and not resume and not force:
            raise BadInput(
                f"{path} holds a run already: go on with it with --resume, choose another --out, "
                "or begin anew with --force, which removes it"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not resume:
                shutil.rmtree(self.states, ignore_errors=True)
        except OSError as error:
            raise BadInput(f"cannot write to {path}: {error.strerror or error}") from error

    def begin_log(self, log: RunLog) -> None:
        """Writes the log as it stands; steps are appended to it from here on."""
        log.save(self.log, force=True)

    def append(self, record: StepRecord) -> None:
        """Adds one step to the log.

        Raises:
            BadInput: the line cannot be written; the log is as it was.
        """
        size = self.log.stat().st_size
        try:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(step_line(record))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.log, size)
            raise BadInput(
                f"cannot write {self.log}: {error.strerror or error}; make room and go on with "
                "--resume"
            ) from error

    def keep_tokenizer(self, source: Path) -> None:
        """Copies the tokenizer beside the weights that need it."""
        write_text(self.tokenizer, source.read_text(encoding="utf-8"), force=True)
