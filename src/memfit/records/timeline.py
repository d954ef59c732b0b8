"""Timeline: allocations and frees in order, each with bytes, category, module, op, phase, step.

The same record comes out of a prediction and out of a recording, so "how wrong were we" is a
difference of two columns.  It is stored as columns: one row per *block* (an allocation and all
that is known of it) and one row per *event* (a block comes, or goes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memfit.records.files import decode_column, encode_column, load_document, save_document
from memfit.records.plain import from_plain

KIND, VERSION = "timeline", 2
"""Version 1 had no ``streams`` and no ``actions``: its files load with none."""

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "loss",
    "temporaries",
    "workspace",
    "inputs",
    "other",
)
"""What a block is for.  ``workspace`` is scratch memory inside one op; ``loss`` is the logits and
what the loss keeps of them; ``parameters`` holds the buffers too."""

PHASES = ("init", "forward", "backward", "optimizer", "eval", "save", "load")

ORIGINS = ("traced", "host", "formula", "learnt", "measured", "estimate")
"""How a block is known: an op's output seen by the trace; made by torch beside the ops (Python
scalars, generator states); scratch from a formula; scratch learnt by running the op once;
recorded from a real run; or scratch whose size nobody states: between nothing and twice this."""

ACTIONS = ("empty_cache", "reset_peak", "synchronize")
"""What a run may ask of the allocator between two events, as ``torch.cuda`` names it."""

_EVENT_COLUMNS = {"events": "int32", "phases": "uint8", "steps": "int32"}
_BLOCK_COLUMNS = {
    "num_bytes": "int64",
    "categories": "uint8",
    "origins": "uint8",
    "ops": "int32",
    "modules": "int32",
    "tensors": "int32",
    "streams": "int32",
}


class Action(NamedTuple):
    """Something that a run asks of the allocator, besides blocks."""

    event: int
    """It happens before this event of the Timeline; E: after the last one."""

    name: str
    """One of ACTIONS."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """Allocations and frees, in order.  E events of B blocks; blocks are numbered as they come.

    Raises:
        ValueError: the columns contradict each other (a free before its allocation, a length, an
            index out of range, a negative size).
    """

    device: str
    """What the memory belongs to: ``cpu``, or a GPU's name."""

    events: np.ndarray
    """(E,) int32: ``k + 1`` when block ``k`` is allocated, ``-(k + 1)`` when it is freed."""

    phases: np.ndarray
    """(E,) uint8: index into PHASES."""

    steps: np.ndarray
    """(E,) int32: 0 while the model is built, then the number of the optimizer step from 1."""

    num_bytes: np.ndarray
    """(B,) int64: requested bytes."""

    categories: np.ndarray
    """(B,) uint8: index into CATEGORIES."""

    origins: np.ndarray
    """(B,) uint8: index into ORIGINS."""

    ops: np.ndarray
    """(B,) int32: index into ``names``: the op that allocated, e.g. ``aten::addmm``."""

    modules: np.ndarray
    """(B,) int32: index into ``names``: the module path, e.g. ``blocks.3.mlp``."""

    tensors: np.ndarray
    """(B,) int32: index into ``names``: dtype and shape, e.g. ``float32[8, 1024, 768]``."""

    streams: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    """(B,) int32: the CUDA stream that a block belongs to, 0 the default one; not given: zeros."""

    actions: tuple[Action, ...] = ()
    """What else was asked of the allocator, in order; plain pairs (event, name) will do."""

    names: tuple[str, ...] = ("",)
    """The strings of the three columns above; names[0] is the empty string: unknown."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """What the figures hang on: versions of torch and transformers, threads, processor."""

    def __post_init__(self) -> None:
        num_events, num_blocks = len(self.events), len(self.num_bytes)
        if not len(self.streams):
            object.__setattr__(self, "streams", np.zeros(num_blocks, dtype=np.int32))
        object.__setattr__(self, "actions", tuple(Action(*action) for action in self.actions))
        for columns, length in ((_EVENT_COLUMNS, num_events), (_BLOCK_COLUMNS, num_blocks)):
            for name, dtype in columns.items():
                column = getattr(self, name)
                if column.dtype.name != dtype or column.shape != (length,):
                    raise ValueError(
                        f"column {name} is {column.dtype}{column.shape}, not {dtype}({length},)"
                    )
        if self.names[:1] != ("",):
            raise ValueError("names must begin with the empty string, which stands for unknown")
        for name, limit in (
            ("phases", len(PHASES)),
            ("categories", len(CATEGORIES)),
            ("origins", len(ORIGINS)),
            ("ops", len(self.names)),
            ("modules", len(self.names)),
            ("tensors", len(self.names)),
        ):
            column = getattr(self, name)
            if len(column) and not 0 <= int(column.min()) <= int(column.max()) < limit:
                raise ValueError(f"column {name} points outside its {limit} names")
        if num_blocks and int(self.num_bytes.min()) < 0:
            raise ValueError("a block has a negative size")
        born = self.events[self.events > 0]
        if not np.array_equal(born, np.arange(1, num_blocks + 1)):
            raise ValueError("blocks must be allocated once each, in the order of their numbers")
        freed = -self.events[self.events < 0].astype(np.int64) - 1
        if len(np.unique(freed)) != len(freed) or (len(freed) and int(freed.max()) >= num_blocks):
            raise ValueError("a block is freed twice, or was never allocated")
        if len(freed):
            birth = np.flatnonzero(self.events > 0)
            if np.any(np.flatnonzero(self.events < 0) < birth[freed]):
                raise ValueError("a block is freed before it is allocated")
        if np.any(self.events == 0):
            raise ValueError("an event names no block")
        self._check_actions()

    def _check_actions(self) -> None:
        moments = [action.event for action in self.actions]
        if any(action.name not in ACTIONS for action in self.actions):
            raise ValueError(f"an action is none of {', '.join(ACTIONS)}")
        if moments != sorted(moments):
            raise ValueError("the actions are not in the order of their events")
        if moments and not 0 <= moments[0] <= moments[-1] <= len(self.events):
            raise ValueError(f"an action lies outside the {len(self.events)} events")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timeline):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name))
            if isinstance(getattr(self, f.name), np.ndarray)
            else getattr(self, f.name) == getattr(other, f.name)
            for f in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]

    def deltas(self) -> np.ndarray:
        """(E,) int64: signed bytes of each event."""
        sizes = self.num_bytes[np.abs(self.events) - 1]
        deltas: np.ndarray = np.where(self.events > 0, sizes, -sizes)
        return deltas

    def curve(self) -> np.ndarray:
        """(E,) int64: live requested bytes after each event."""
        return np.cumsum(self.deltas())

    def peak_event(self) -> int:
        """The first event after which the most bytes are live; -1 when there is no event."""
        return int(np.argmax(self.curve())) if len(self.events) else -1

    def live_blocks(self, event: int) -> np.ndarray:
        """The blocks that are live after ``event``, ascending."""
        seen = self.events[: event + 1]
        live = np.zeros(len(self.num_bytes), dtype=bool)
        live[seen[seen > 0] - 1] = True
        live[-seen[seen < 0] - 1] = False
        return np.flatnonzero(live)

    def breakdown(self, event: int) -> dict[str, int]:
        """Bytes live after ``event`` by category, zero ones left out; they sum to the curve."""
        live = self.live_blocks(event)
        totals = np.zeros(len(CATEGORIES), dtype=np.int64)
        np.add.at(totals, self.categories[live], self.num_bytes[live])
        return {name: int(total) for name, total in zip(CATEGORIES, totals, strict=True) if total}

    def phase_peaks(self) -> dict[str, int]:
        """The highest live bytes seen in each phase that occurs."""
        curve = self.curve()
        return {
            name: int(curve[self.phases == code].max())
            for code, name in enumerate(PHASES)
            if np.any(self.phases == code)
        }

    def save(self, path: Path, *, force: bool = False) -> None:
        """Writes the timeline as one versioned file."""
        columns = {
            name: encode_column(getattr(self, name)) for name in _EVENT_COLUMNS | _BLOCK_COLUMNS
        }
        body = {
            "device": self.device,
            "names": self.names,
            "facts": dict(self.facts),
            "actions": self.actions,
            "columns": columns,
        }
        save_document(path, KIND, VERSION, body, force=force)

    @classmethod
    def load(cls, path: Path) -> Timeline:
        """Reads a timeline.

        Raises:
            BadInput: no such file, or not a timeline.
            DamagedFile: cut short, altered, or from a newer memfit.
        """
        return load_document(path, KIND, VERSION, cls._from_document)

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> Timeline:
        encoded = document["columns"]
        columns = {
            name: decode_column(encoded[name], dtype)
            for name, dtype in (_EVENT_COLUMNS | _BLOCK_COLUMNS).items()
            if name != "streams" or document["version"] > 1
        }
        others = {key: document[key] for key in ("device", "facts")}
        if document["version"] > 1:
            others["actions"] = tuple(_action(*action) for action in document["actions"])
        return from_plain(cls, {"names": tuple(document["names"]), **others, **columns})


def _action(event: Any, name: Any) -> Action:
    if type(event) is not int or not isinstance(name, str):
        raise TypeError(f"an action is ({event!r:.40}, {name!r:.40}), not (event, name)")
    return Action(event, name)
