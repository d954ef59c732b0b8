"""RunLog: what a training run did, step by step.  On disk it is JSON lines, appended as it goes.

The first line says what was run; each later line is one step.  A run that is killed leaves at
most its last line cut short, which is dropped on loading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from memfit.errors import BadInput, DamagedFile
from memfit.records.files import check_header, write_text
from memfit.records.plain import from_plain

KIND, VERSION = "runlog", 1
_HEADER_ONLY = ("memfit", "version")


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
    """Global norm before clipping; None when gradients are not clipped."""

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

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError(f"steps are counted from 1, not {self.step}")


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """A run: what was asked, what was predicted, and its steps."""

    job: str
    recipe: Mapping[str, Any] = field(default_factory=dict)
    predicted_peak_bytes: int | None = None
    budget_bytes: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[StepRecord, ...] = ()

    @property
    def peak_bytes(self) -> int | None:
        """The highest measured tensor bytes of all steps; None when none was measured."""
        measured = [s.peak_bytes for s in self.steps if s.peak_bytes is not None]
        return max(measured, default=None)

    def header_line(self) -> str:
        """The first line of the file."""
        header = {key: value for key, value in vars(self).items() if key != "steps"}
        return json.dumps({"memfit": KIND, "version": VERSION, **header}) + "\n"

    def save(self, path: Path, *, force: bool = False) -> None:
        """Writes the whole log as one file."""
        text = self.header_line() + "".join(step_line(step) for step in self.steps)
        write_text(path, text, force=force)

    @classmethod
    def load(cls, path: Path) -> RunLog:
        """Reads a log, without a last line that was cut short.

        A resumed run may have written a step again: the later line wins.  To go on writing after
        a line that was cut, save the loaded log first.

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
        for number, line in enumerate(lines, start=2):
            try:
                step = from_plain(StepRecord, json.loads(line))
            except (ValueError, TypeError, RecursionError) as error:
                if number == len(lines) + 1 and not line.endswith(b"\n"):
                    break
                raise DamagedFile(f"{path} is damaged in line {number}: {error}") from error
            steps[step.step] = step
        return replace(log, steps=tuple(steps[number] for number in sorted(steps)))


def step_line(step: StepRecord) -> str:
    """One step as one line."""
    return json.dumps(asdict(step)) + "\n"
