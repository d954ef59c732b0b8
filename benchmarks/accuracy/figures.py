"""What the figures of a row mean: where on a replayed Timeline each is read.

The names that ``read`` knows: ``init allocated``, ``init reserved`` (the model and its inputs are
there, nothing has run), ``after forward``, ``after backward``, ``after optimizer``, ``end`` (of the
last step; allocated), ``peak allocated``, ``peak reserved``, ``peak after forward`` (allocated,
since the reset), ``peak above start`` (allocated, above what it was at the reset).  What a run does
in its phase ``save`` is its taking down and counts for nothing.
"""

from __future__ import annotations

import numpy as np

from memfit.records.replay import Replay
from memfit.records.timeline import PHASES, Timeline

NAMES = (
    "init allocated",
    "init reserved",
    "after forward",
    "after backward",
    "after optimizer",
    "end",
    "peak after forward",
    "peak allocated",
    "peak reserved",
    "peak above start",
    "device",
    "device growth",
)
"""All names of figures; the last two are of what is outside the allocator (``predict``)."""

_END_OF = {
    "after forward": "forward",
    "after backward": "backward",
    "after optimizer": "optimizer",
    "end": "eval",
}


def read(name: str, timeline: Timeline, replay: Replay) -> int:
    """The predicted figure in bytes.

    Raises:
        ValueError: a name that is not in the list above, or a phase that the run never had.
    """
    if name.startswith("init "):
        return int(_curve(name, replay)[_last_event(timeline, 0, "init")])
    if name in _END_OF:
        return int(replay.allocated[_last_event(timeline, _last_step(timeline), _END_OF[name])])
    start = reset_event(timeline)
    if name in ("peak allocated", "peak reserved"):
        return int(_curve(name, replay)[max(start - 1, 0) : end_event(timeline)].max())
    if name == "peak after forward":
        end = _last_event(timeline, _last_step(timeline), "forward")
        return int(replay.allocated[max(start - 1, 0) : end + 1].max())
    if name == "peak above start":
        window = replay.allocated[start - 1 : end_event(timeline)]
        return int(window.max() - window[0])
    raise ValueError(f"no figure is called {name!r}")


def reset_event(timeline: Timeline) -> int:
    """The first event after the last ``reset_peak_memory_stats``, 0 where there was none."""
    return max((event for event, name in timeline.actions if name == "reset_peak"), default=0)


def end_event(timeline: Timeline) -> int:
    """The first event of the taking down, or the number of events."""
    saving = np.flatnonzero(timeline.phases == PHASES.index("save"))
    return int(saving[0]) if len(saving) else len(timeline.events)


def _curve(name: str, replay: Replay) -> np.ndarray:
    return replay.reserved if name.endswith("reserved") else replay.allocated


def _last_step(timeline: Timeline) -> int:
    return int(timeline.steps.max())


def _last_event(timeline: Timeline, step: int, phase: str) -> int:
    """The last event up to the end of ``phase`` in ``step``, empty phases included."""
    order = PHASES.index(phase)
    known = (timeline.steps < step) | ((timeline.steps == step) & (timeline.phases <= order))
    events = np.flatnonzero(known[: end_event(timeline)])
    if not len(events):
        raise ValueError(f"nothing happens before the end of phase {phase} in step {step}")
    return int(events[-1])
