"""RunLog: what a training run did, step by step.  On disk it is JSON lines, appended as it goes.

The first line says what was run; each later line is one step, or a note on something that
happened: an out-of-memory that the run survived, a leak, memory that was given back.  A run that
is killed leaves at most its last line cut short, which is dropped on loading.

JSON has no infinity and no NaN: such a number is written as null.  A loss that is null is read as
NaN, any other number as None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from memfit.errors import BadInput, DamagedFile
from memfit.records.files import check_header, write_text
from memfit.records.plain import from_plain

KIND, VERSION = "runlog", 1
_HEADER_ONLY = ("memfit", "version")

NOTE_KINDS = ("out-of-memory", "leak", "cache", "resume", "other")
"""What a note can be about: an out-of-memory survived, a leak found, cached memory given back to
the driver, a run that goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One optimizer step.

    Raises:
        ValueError: the step is not counted from 1.
    """

    step: int
    loss: float
    """Mean loss over the step's target tokens, in nats."""

    learning_rate: float
    grad_norm: float | None
    """Global norm before clipping; None when gradients are not clipped, or as read where they
    overflowed."""

    num_targets: int
    seconds: float

    live_bytes: int | None = None
    """Tensor bytes live after the step; None on a step whose memory was not measured."""

    peak_bytes: int | None = None
    """Highest tensor bytes within the step; None on a step whose memory was not measured."""

    resident_bytes: int | None = None
    """The process's resident memory after the step."""

    eval_loss: float | None = None
    """Mean loss on the held-out part, when this step evaluated."""

    batch_size: int | None = None
    """Samples of a micro-batch as they went through; None in logs of before it was written."""

    seq_len: int | None = None
    """Tokens of a sample, which a schedule of lengths changes."""

    num_ooms: int = 0
    """Out-of-memory errors that the step survived, its evaluation's among them."""

    skipped: bool = False
    """Whether fp16 gradients overflowed, so that nothing was updated."""

    loss_scale: float | None = None
    """What the loss was scaled by; None but in fp16."""

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"steps are counted from 1, not {self.step}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something that happened in a run, beside its steps.

    Raises:
        ValueError: its kind is none of NOTE_KINDS, or its step is negative.
    """

    step: int
    """The step in which it happened; 0 before the first."""

    kind: str
    text: str
    """A sentence for the person: what happened, and what was done."""

    def __post_init__(self) -> None:
        if self.kind not in NOTE_KINDS:
            raise ValueError(f"a note is one of {', '.join(NOTE_KINDS)}, not {self.kind!r}")
        if self.step < 0:
            raise ValueError(f"a note's step is {self.step}: 0 is before the first")


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """A run: what was asked, what was predicted, its steps, and what happened beside them."""

    job: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    predicted_peak_bytes: int | None = None
    budget_bytes: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[StepRecord, ...] = ()
    notes: tuple[Note, ...] = ()
    """In the order in which they were written."""

    @property
    def peak_bytes(self) -> int | None:
        """The highest measured tensor bytes of all steps; None when none was measured."""
        measured = [s.peak_bytes for s in self.steps if s.peak_bytes is not None]
        return max(measured, default=None)

    @property
    def num_ooms(self) -> int:
        """Out-of-memory errors that the run survived."""
        return sum(step.num_ooms for step in self.steps)

    def header_line(self) -> str:
        """The first line of the file."""
        header = {k: value for k, value in vars(self).items() if k not in ("steps", "notes")}
        return json.dumps({"memfit": KIND, "version": VERSION, **header}) + "\n"

    def save(self, path: Path, *, force: bool = False) -> None:
        """Writes the whole log as one file."""
        lines = [(step.step, 1, step_line(step)) for step in self.steps]
        lines += [(note.step, 0, note_line(note)) for note in self.notes]
        lines.sort(key=lambda line: line[:2])  # a note is written before the line of its step
        text = self.header_line() + "".join(line for _, _, line in lines)
        write_text(path, text, force=force)

    @classmethod
    def load(cls, path: Path) -> RunLog:
        """Reads a log, without a last line that was cut short.

        A resumed run may have written a step again: the later line wins.  Notes all stay: what
        happened, happened.  To go on writing after a line that was cut, save the loaded log first.

        Raises:
            BadInput: no such file, or not a run log.
            DamagedFile: a line other than the last is damaged, or it is from a newer memfit.
        """
        try:
            first, *lines = path.read_bytes().splitlines(keepends=True) or [b""]
        except OSError as error:
            raise BadInput(f"cannot read {path}: {error.strerror or error}") from error
        try:
            header = json.loads(first)
            check_header(path, header, KIND, VERSION)
            log = from_plain(cls, {k: v for k, v in header.items() if k not in _HEADER_ONLY})
        except BadInput:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise DamagedFile(f"{path} is not a whole run log: line 1: {error}") from error
        steps: dict[int, StepRecord] = {}
        notes: list[Note] = []
        for number, line in enumerate(lines, start=2):
            try:
                entry = _entry(json.loads(line))
            except (ValueError, TypeError, RecursionError) as error:
                if number == len(lines) + 1 and not line.endswith(b"\n"):
                    break
                raise DamagedFile(f"{path} is damaged in line {number}: {error}") from error
            if isinstance(entry, Note):
                notes.append(entry)
            else:
                steps[entry.step] = entry
        ordered = tuple(steps[number] for number in sorted(steps))
        return replace(log, steps=ordered, notes=tuple(notes))


def _entry(data: Any) -> StepRecord | Note:
    """A note has a kind, a step has none."""
    if isinstance(data, dict) and "kind" in data:
        return from_plain(Note, data)
    if isinstance(data, dict) and "loss" in data and data["loss"] is None:
        data = {**data, "loss": math.nan}
    return from_plain(StepRecord, data)


def step_line(step: StepRecord) -> str:
    """One step as one line."""
    values = {name: _as_json(value) for name, value in asdict(step).items()}
    return json.dumps(values, allow_nan=False) + "\n"


def note_line(note: Note) -> str:
    """One note as one line."""
    return json.dumps(asdict(note)) + "\n"


def _as_json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
