"""Ctrl-C as a request: the step is finished and the run saved before it ends.

SIGTERM, which job schedulers and containers send before they kill, asks for the same.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupt:
    """A context in which the first SIGINT or SIGTERM only sets ``requested``.

    A SIGINT after that raises KeyboardInterrupt at once; a SIGTERM after that changes nothing,
    as schedulers repeat it.  Leaving the context puts the former handlers back.  Python lets only
    the main thread handle signals: in another one, this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        """Whether the loop should save and leave after the step it is in."""
        self._former: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal() gave is right

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
