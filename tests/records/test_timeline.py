"""What a Timeline says about memory, and which columns it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import DamagedFile
from memfit.records.timeline import CATEGORIES, ORIGINS, PHASES, Action, Timeline

PARAMETERS, GRADIENTS = CATEGORIES.index("parameters"), CATEGORIES.index("gradients")
INIT, FORWARD, BACKWARD = (PHASES.index(name) for name in ("init", "forward", "backward"))


def timeline(events: list[int], sizes: list[int], **columns: Any) -> Timeline:
    """Blocks of ``sizes`` that come and go; a column that is not given is zeros."""
    given_ = {
        "device": "cpu",
        "events": np.array(events, dtype="int32"),
        "num_bytes": np.array(sizes, dtype="int64"),
        "phases": np.zeros(len(events), dtype="uint8"),
        "steps": np.zeros(len(events), dtype="int32"),
        "categories": np.zeros(len(sizes), dtype="uint8"),
        "origins": np.zeros(len(sizes), dtype="uint8"),
        **{name: np.zeros(len(sizes), dtype="int32") for name in ("ops", "modules", "tensors")},
    }
    for name, values in columns.items():
        old = given_.get(name)
        given_[name] = np.array(values, dtype=old.dtype) if old is not None else values
    return Timeline(**given_)


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int]]:
    """Events, sizes, categories and phases of blocks that come and go at random."""
    events: list[int] = []
    live: list[int] = []
    for choice in draw(st.lists(st.integers(0, 9), max_size=40)):
        if choice < 5 or not live:
            live.append(1 + sum(event > 0 for event in events))
            events.append(live[-1])
        else:
            events.append(-live.pop(choice % len(live)))
    num_blocks = sum(event > 0 for event in events)

    def integers(high: int, length: int) -> list[int]:
        return draw(st.lists(st.integers(0, high), min_size=length, max_size=length))

    return (
        events,
        integers(1000, num_blocks),
        integers(len(CATEGORIES) - 1, num_blocks),
        integers(len(PHASES) - 1, len(events)),
    )


@given(lives())
def test_curve_breakdown_and_peaks_agree_with_a_walk_over_the_events(
    life: tuple[list[int], list[int], list[int], list[int]],
) -> None:
    events, sizes, categories, phases = life
    walked = timeline(events, sizes, categories=categories, phases=phases)
    live: set[int] = set()
    curve: list[int] = []
    for index, event in enumerate(events):
        if event > 0:
            live.add(event - 1)
        else:
            live.remove(-event - 1)
        curve.append(sum(sizes[block] for block in live))
        by_category = {
            name: total
            for code, name in enumerate(CATEGORIES)
            if (total := sum(sizes[block] for block in live if categories[block] == code))
        }
        assert list(walked.live_blocks(index)) == sorted(live)
        assert walked.breakdown(index) == by_category
        assert sum(by_category.values()) == curve[-1]

    assert walked.curve().tolist() == curve
    assert walked.peak_event() == (curve.index(max(curve)) if curve else -1)
    assert walked.phase_peaks() == {
        PHASES[code]: max(c for c, phase in zip(curve, phases, strict=True) if phase == code)
        for code in set(phases)
    }


def test_a_gradient_that_comes_beside_its_parameter_makes_the_peak() -> None:
    step = timeline(
        events=[1, 2, 3, -2, -3],
        sizes=[100, 40, 100],
        categories=[PARAMETERS, CATEGORIES.index("activations"), GRADIENTS],
        phases=[INIT, FORWARD, BACKWARD, BACKWARD, BACKWARD],
        steps=[0, 1, 1, 1, 1],
    )

    assert step.deltas().tolist() == [100, 40, 100, -40, -100]
    assert step.curve().tolist() == [100, 140, 240, 200, 100]
    assert step.peak_event() == 2
    assert step.breakdown(2) == {"parameters": 100, "gradients": 100, "activations": 40}
    assert step.phase_peaks() == {"init": 100, "forward": 140, "backward": 240}


def test_a_timeline_without_events_has_no_peak() -> None:
    empty = timeline([], [])

    assert (empty.peak_event(), empty.curve().tolist(), empty.phase_peaks()) == (-1, [], {})


def test_two_timelines_are_equal_when_every_column_is() -> None:
    one = timeline([1, -1], [8], names=("", "aten::mm"), ops=[1])

    assert one == timeline([1, -1], [8], names=("", "aten::mm"), ops=[1])
    assert one != timeline([1, -1], [9], names=("", "aten::mm"), ops=[1])
    assert one != timeline([1, -1], [8], names=("", "aten::bmm"), ops=[1])
    assert one != timeline([1], [8], names=("", "aten::mm"), ops=[1])
    assert one != "a timeline"


@pytest.mark.parametrize(
    ("events", "sizes", "message"),
    [
        ([-1, 1], [8], "freed before it is allocated"),
        ([1, -1, -1], [8], "freed twice, or was never allocated"),
        ([1, -2], [8], "freed twice, or was never allocated"),
        ([1, -(2**31)], [8], "freed twice, or was never allocated"),
        ([1, 1], [8], "allocated once each, in the order of their numbers"),
        ([2, 1], [8, 8], "allocated once each, in the order of their numbers"),
        ([1], [8, 8], "allocated once each, in the order of their numbers"),
        ([1, 0], [8], "an event names no block"),
        ([1], [-8], "a block has a negative size"),
    ],
)
def test_events_that_contradict_each_other_are_refused(
    events: list[int], sizes: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        timeline(events, sizes)


@pytest.mark.parametrize(
    ("column", "code"),
    [
        ("phases", len(PHASES)),
        ("categories", len(CATEGORIES)),
        ("origins", len(ORIGINS)),
        ("ops", 1),
        ("modules", 1),
        ("tensors", -1),
    ],
)
def test_a_code_that_stands_for_nothing_is_refused(column: str, code: int) -> None:
    with pytest.raises(ValueError, match=f"column {column} points outside its"):
        timeline([1], [8], **{column: [code]})


def test_a_column_of_another_length_or_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"column phases is uint8\(2,\), not uint8\(1,\)"):
        timeline([1], [8], phases=[0, 0])
    with pytest.raises(ValueError, match=r"column steps is int64\(1,\), not int32\(1,\)"):
        Timeline(**{**vars(timeline([1], [8])), "steps": np.zeros(1, dtype="int64")})


def test_names_begin_with_the_one_that_stands_for_unknown() -> None:
    with pytest.raises(ValueError, match="names must begin with the empty string"):
        timeline([1], [8], names=("aten::mm",))


def test_a_saved_timeline_with_a_contradiction_names_the_file_and_the_contradiction(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.json"
    saved = timeline([1, -1], [8])
    saved.events[1] = -2  # after the checks
    saved.save(path)

    with pytest.raises(DamagedFile, match=r"t\.json is damaged: .* was never allocated"):
        Timeline.load(path)


def test_100_000_events_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    rng = np.random.default_rng(0)
    blocks = np.arange(1, 50_001)
    large = timeline(
        np.stack([blocks, -blocks], axis=1).ravel().tolist(),
        rng.integers(1, 1 << 30, 50_000).tolist(),
        categories=rng.integers(0, len(CATEGORIES), 50_000).tolist(),
        phases=rng.integers(0, len(PHASES), 100_000).tolist(),
    )

    large.save(path)

    assert Timeline.load(path) == large
    assert path.stat().st_size < 2**20


def test_streams_that_are_not_given_are_the_default_one() -> None:
    assert timeline([1, 2], [8, 8]).streams.tolist() == [0, 0]
    assert timeline([1, 2], [8, 8], streams=np.array([0, 3], dtype="int32")).streams[1] == 3


def test_actions_lie_between_events_in_order() -> None:
    actions = [(0, "empty_cache"), (1, "synchronize"), (1, "reset_peak")]
    assert timeline([1], [8], actions=actions).actions[2] == Action(1, "reset_peak")


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([(0, "rest")], "an action is none of empty_cache, reset_peak, synchronize"),
        ([(1, "empty_cache"), (0, "empty_cache")], "not in the order of their events"),
        ([(2, "empty_cache")], "outside the 1 events"),
        ([(-1, "empty_cache")], "outside the 1 events"),
    ],
)
def test_an_action_that_cannot_be_is_refused(actions: list[tuple[int, str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timeline([1], [8], actions=actions)


def test_a_file_of_version_1_has_the_default_stream_and_no_actions(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    wanted = timeline([1, 2, -1], [8, 9])
    wanted.save(path)
    document = json.loads(path.read_text())
    del document["actions"], document["columns"]["streams"]
    path.write_text(json.dumps({**document, "version": 1}))
    assert Timeline.load(path) == wanted


def test_an_action_in_a_file_that_is_no_pair_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    timeline([1], [8]).save(path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "actions": [["0", "empty_cache"]]}))
    with pytest.raises(DamagedFile, match=r"an action is \('0', 'empty_cache'\)"):
        Timeline.load(path)
