"""Steps: writes down, in order, what happens inside one call."""

from __future__ import annotations

from memfit.records.timeline import ORIGINS
from memfit.tracing.hidden.sequences import Event, Give, Keep, Output, Sequence, Take

ESTIMATE = "estimate" if "estimate" in ORIGINS else "formula"
"""Origin of scratch whose size nobody states, such as cuDNN's workspaces."""


class Steps:
    """The events inside a call that places ``num_outputs`` outputs, in the making.

    Sizes of 0 bytes leave no event, as in the allocator.
    """

    def __init__(self, num_outputs: int) -> None:
        self._num_outputs = num_outputs
        self._events: list[Event] = []
        self._placed: set[int] = set()
        self._num_slots = 0

    def output(self, index: int) -> None:
        """The output ``index`` is allocated; nothing where C++ has allocated it before the call."""
        if index < self._num_outputs and index not in self._placed:
            self._placed.add(index)
            self._events.append(Output(index))

    def outputs(self) -> None:
        """All outputs that are not placed yet, in order."""
        for index in range(self._num_outputs):
            self.output(index)

    def take(self, num_bytes: int) -> int:
        """Scratch of ``num_bytes``; the slot to give back."""
        slot = self._num_slots
        self._num_slots += 1
        if num_bytes > 0:
            self._events.append(Take(slot, num_bytes))
        return slot

    def give(self, *slots: int) -> None:
        """The slots are freed, in this order."""
        taken = {event.slot for event in self._events if isinstance(event, Take)}
        self._events.extend(Give(slot) for slot in slots if slot in taken)

    def passing(self, *sizes: int) -> None:
        """Scratch taken in this order and given back in reverse at once."""
        self.give(*reversed([self.take(size) for size in sizes]))

    def keep(self, name: str, num_bytes: int) -> None:
        """A block that stays, once per thread and stream."""
        if num_bytes > 0:
            self._events.append(Keep(name, num_bytes))

    def sequence(self, origin: str = "formula") -> Sequence | None:
        """The sequence, with the outputs not placed yet at its end; None if it is outputs only."""
        self.outputs()
        if self._events == [Output(index) for index in range(self._num_outputs)]:
            return None
        return Sequence(tuple(self._events), origin)
