"""Lets the contenders of a group take turns, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.techniques.contenders import Contender, Group
from benchmarks.techniques.results import Result, summarise

ENVIRONMENT = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
"""A thread that waits sleeps: spinning would count as CPU time."""

UNTIMED_ROUNDS = 2
"""At most: the trainer's engine hands out its first two steps together."""

Progress = Callable[[str], None]


class Child:
    """A contender's process."""

    def __init__(self, group: Group, contender: Contender, *, is_quick: bool) -> None:
        self.contender = contender
        self.answers: list[dict[str, Any]] = []
        self.error = ""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the child
        self._process = subprocess.Popen(
            _command("worker", group.name, contender.key, *(["quick"] if is_quick else [])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
        self.hello: dict[str, Any] = {}

    def greet(self) -> None:
        """Waits until all is imported."""
        self.hello = self._read()

    def step(self) -> None:
        """One step; nothing once the contender has failed."""
        if self.error:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("step\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self._read()
        if not self.error:
            self.answers.append(answer)

    def end(self) -> None:
        """No more turns."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._errors.seek(0)
        said = [text for text in self._errors.read().splitlines() if text.strip()]
        self.error = said[-1] if said else "it ended without a word"
        return {}


def run_group(group: Group, on_progress: Progress, *, is_quick: bool = False) -> list[Result]:
    """Starts all contenders, and gives each its turn in every round."""
    on_progress(f"{group.title}: {len(group.contenders)} contenders import, memfit predicts")
    children: list[Child] = []
    try:
        children += [Child(group, contender, is_quick=is_quick) for contender in group.contenders]
        predicted = _predicted(group, is_quick=is_quick)
        for child in children:  # they have imported side by side
            child.greet()
        for number in range(group.timed_rounds + UNTIMED_ROUNDS - 1):
            for child in children:
                child.step()
                on_progress(f"{group.title}: round {number + 1}, {child.contender.title}")
    finally:
        for child in children:
            child.end()
    return [
        Result(contender=child.contender, error=child.error)
        if child.error
        else summarise(
            child.contender, child.hello, child.answers, predicted.get(child.contender.key)
        )
        for child in children
    ]


def _predicted(group: Group, *, is_quick: bool) -> dict[str, int | None]:
    done = subprocess.run(
        _command("predict", group.name, *(["quick"] if is_quick else [])),
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        check=False,
    )
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return {}
    found: dict[str, int | None] = json.loads(done.stdout)
    return found


def _command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", f"benchmarks.techniques.{module}", *arguments]
