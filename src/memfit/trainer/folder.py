"""The folder of a run: what lies where, and who may write it.

    OUT/run.jsonl          the log, a line a step
    OUT/plan.json          what was run, where it was planned
    OUT/measured.timeline  memory of the first steps, as recorded
    OUT/tokenizer.json     what encoded the text
    OUT/state/             saved states

The command line adds ``predicted.timeline``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from memfit.errors import BadInput
from memfit.records.files import write_text
from memfit.records.runlog import Note, RunLog, StepRecord, note_line, step_line

CHAT_TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")
"""What may lie beside a tokenizer and say how a conversation is written."""


class RunFolder:
    """The paths of a run.  Nothing is written before ``prepare``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "run.jsonl"
        self.plan = path / "plan.json"
        self.timeline = path / "measured.timeline"
        self.tokenizer = path / "tokenizer.json"
        self.states = path / "state"

    def check(self, *, resume: bool, force: bool) -> None:
        """Refuses a folder that a run cannot begin in, or cannot go on in.

        Raises:
            BadInput: there is no run to resume; or there is one, and neither ``resume`` nor
                ``force`` was given.
        """
        there = self.log.exists()
        if resume and not there:
            raise BadInput(
                f"there is no run in {self.path} to resume: leave out --resume to begin one"
            )
        if there and not resume and not force:
            raise BadInput(
                f"{self.path} holds a run already: go on with it with --resume, choose another "
                "--out, or begin anew with --force, which removes it"
            )

    def begin(self, log: RunLog, tokenizer: Path) -> None:
        """Removes a former run, begins the log, and puts the tokenizer beside it.

        Raises:
            BadInput: something cannot be written.
        """
        text = tokenizer.read_text(encoding="utf-8")  # it may be the former run's own
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.states, ignore_errors=True)
            for former in (self.plan, self.timeline):
                former.unlink(missing_ok=True)
        except OSError as error:
            raise BadInput(f"cannot write to {self.path}: {error.strerror or error}") from error
        write_text(self.tokenizer, text, force=True)
        for name in CHAT_TEMPLATES:
            if (tokenizer.parent / name).is_file() and tokenizer.parent != self.path:
                beside = (tokenizer.parent / name).read_text(encoding="utf-8")
                write_text(self.path / name, beside, force=True)
        log.save(self.log, force=True)

    def append(self, record: StepRecord | Note) -> None:
        """Adds one step, or a note, to the log.

        Raises:
            BadInput: the line cannot be written; the log is as it was.
        """
        size = self.log.stat().st_size
        try:
            with open(self.log, "a", encoding="utf-8") as file:
                file.write(note_line(record) if isinstance(record, Note) else step_line(record))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.truncate(self.log, size)
            raise BadInput(
                f"cannot write {self.log}: {error.strerror or error}; make room and go on with "
                "--resume"
            ) from error
