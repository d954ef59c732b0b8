"""Where on a Timeline each figure of the accuracy table is read."""

import numpy as np
import pytest

from benchmarks.accuracy import figures
from memfit.records.replay import Replay
from memfit.records.timeline import PHASES, Timeline

# Two steps: a block of 512 B stays; each step takes and gives back more; then all is taken down.
EVENTS = [
    # (event, bytes of the block, step, phase)
    (1, 512, 0, "init"),
    (2, 1024, 1, "forward"),
    (-2, 1024, 1, "backward"),
    (3, 2048, 2, "forward"),
    (4, 512, 2, "forward"),
    (-4, 512, 2, "forward"),
    (5, 1024, 2, "backward"),
    (-3, 2048, 2, "backward"),
    (6, 4096, 2, "optimizer"),
    (-6, 4096, 2, "optimizer"),
    (-5, 1024, 2, "eval"),
    (7, 65536, 2, "save"),
]
RESET_AFTER = 3  # events: the peak of the first step does not count


def timeline() -> Timeline:
    num_blocks = max(event for event, *_ in EVENTS)
    sizes = {event: num_bytes for event, num_bytes, *_ in EVENTS if event > 0}
    zeros = np.zeros(num_blocks, dtype="int32")
    return Timeline(
        device="b200",
        events=np.array([event for event, *_ in EVENTS], dtype="int32"),
        phases=np.array([PHASES.index(phase) for *_, phase in EVENTS], dtype="uint8"),
        steps=np.array([step for *_, step, _ in EVENTS], dtype="int32"),
        num_bytes=np.array([sizes[k + 1] for k in range(num_blocks)], dtype="int64"),
        categories=zeros.astype("uint8"),
        origins=zeros.astype("uint8"),
        ops=zeros,
        modules=zeros,
        tensors=zeros,
        actions=((RESET_AFTER, "reset_peak"),),
    )


def replay() -> Replay:
    live = timeline().curve()
    reserved = np.maximum.accumulate(live) + 4096
    return Replay(allocator="cuda 2.11", requested=live, allocated=live, reserved=reserved)


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("init allocated", 512),
        ("init reserved", 512 + 4096),
        ("after forward", 512 + 2048),
        ("after backward", 512 + 1024),
        ("after optimizer", 512 + 1024),
        ("end", 512),
        ("peak after forward", 512 + 2048 + 512),
        ("peak allocated", 512 + 1024 + 4096),
        ("peak above start", 1024 + 4096),
        ("peak reserved", 512 + 1024 + 4096 + 4096),
    ],
)
def test_a_figure_is_read_where_its_name_says(name: str, num_bytes: int) -> None:
    assert figures.read(name, timeline(), replay()) == num_bytes


def test_the_taking_down_counts_for_nothing() -> None:
    assert figures.end_event(timeline()) == len(EVENTS) - 1


def test_a_figure_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="no figure is called 'peak'"):
        figures.read("peak", timeline(), replay())
