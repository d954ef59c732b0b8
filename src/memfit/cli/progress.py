"""A bar on the terminal while something that may take long is done; elsewhere, nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

LEARNING = "learning what some ops allocate on this machine, once"
ENCODING = "encoding the text, once"


@contextlib.contextmanager
def shown_progress(console: Console, doing: str) -> Iterator[Callable[[int, int], None]]:
    """Gives the callback that is told ``(done, total)``; the bar comes with its first call."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        tasks: list[TaskID] = []

        def on_progress(done: int, total: int) -> None:
            if not tasks:
                tasks.append(bar.add_task(doing))
            bar.update(tasks[0], completed=done, total=total)
            if done == total:
                bar.remove_task(tasks.pop())

        yield on_progress
