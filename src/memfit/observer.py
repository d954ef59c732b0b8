"""What a run tells whoever watches its memory: where it is, and which tensors are what.

A run does not depend on being watched.  The tracer labels a prediction with what it hears, the
profiler a recording; ``Unwatched`` listens to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import nn


class Observer(Protocol):
    """Hears of a run's progress, in order."""

    def phase(self, name: str) -> None:
        """A phase begins: one of ``records.timeline.PHASES``."""

    def step(self, number: int) -> None:
        """Optimizer step ``number`` begins, counted from 1."""

    def model(self, model: nn.Module) -> None:
        """The model is built."""

    def inputs(self, batch: Any) -> None:
        """A batch is built."""


class Unwatched:
    """The observer of a run that nobody watches."""

    def phase(self, name: str) -> None:
        """Nothing."""

    def step(self, number: int) -> None:
        """Nothing."""

    def model(self, model: nn.Module) -> None:
        """Nothing."""

    def inputs(self, batch: Any) -> None:
        """Nothing."""
