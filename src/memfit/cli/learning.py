"""Shows, on a terminal, that scratch memory is being learnt: it may take a minute the first time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from memfit.cli import choices


@contextlib.contextmanager
def shown_learning() -> Iterator[Callable[[int, int], None]]:
    """Gives the callback that a prediction tells of its learning."""
    console = choices.stderr()
    bar = Progress(
        TextColumn("learning what {task.total:.0f} ops allocate on this machine, once"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = None

        def on_progress(done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task("learning", total=total)
            bar.update(task, completed=done)

        yield on_progress
