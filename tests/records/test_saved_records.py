"""What every record that can be saved must keep: one list of records, one list of properties.

A new record is one strategy and one line in ``RECORDS``.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.errors import BadInput, DamagedFile
from memfit.records.device import Device
from memfit.records.plan import Plan, Rejected
from memfit.records.recipe import Recipe
from memfit.records.replay import Replay, Segment, SegmentBlock
from memfit.records.runlog import RunLog, StepRecord
from memfit.records.timeline import ACTIONS, CATEGORIES, ORIGINS, PHASES, Action, Timeline

text = st.text(max_size=12)
facts = st.dictionaries(text, text, max_size=3)
sizes = st.integers(0, 1 << 40)
positive_sizes = st.integers(1, 1 << 40)
finite = st.floats(allow_nan=False, allow_infinity=False)


def actions(num_events: int) -> st.SearchStrategy[Action]:
    return st.builds(Action, st.integers(0, num_events), st.sampled_from(ACTIONS))


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    blocks: list[SegmentBlock] = []
    for size, number in draw(st.lists(st.tuples(st.integers(1, 9), st.integers(-1, 5)))):
        end = blocks[-1].offset + blocks[-1].num_bytes if blocks else 0
        blocks.append(SegmentBlock(offset=end, num_bytes=size, requested_bytes=size, block=number))
    return Segment(
        address=draw(sizes),
        num_bytes=sum(block.num_bytes for block in blocks),
        stream=draw(st.integers(0, 9)),
        is_small=draw(st.booleans()),
        is_expandable=draw(st.booleans()),
        blocks=tuple(blocks),
    )


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    events: list[int] = []
    live: list[int] = []
    num_blocks = 0
    for choice in draw(st.lists(st.integers(0, 9), max_size=30)):
        if choice < 5 or not live:
            num_blocks += 1
            live.append(num_blocks)
            events.append(num_blocks)
        else:
            events.append(-live.pop(choice % len(live)))
    names = ("", *draw(st.lists(text, max_size=4)))

    def column(low: int, high: int, length: int, dtype: str) -> np.ndarray:
        values = st.lists(st.integers(low, high), min_size=length, max_size=length)
        return np.array(draw(values), dtype=dtype)

    return Timeline(
        device=draw(text),
        events=np.array(events, dtype="int32"),
        phases=column(0, len(PHASES) - 1, len(events), "uint8"),
        steps=column(0, 1000, len(events), "int32"),
        num_bytes=column(0, 1 << 40, num_blocks, "int64"),
        categories=column(0, len(CATEGORIES) - 1, num_blocks, "uint8"),
        origins=column(0, len(ORIGINS) - 1, num_blocks, "uint8"),
        ops=column(0, len(names) - 1, num_blocks, "int32"),
        modules=column(0, len(names) - 1, num_blocks, "int32"),
        tensors=column(0, len(names) - 1, num_blocks, "int32"),
        streams=column(0, 1 << 20, num_blocks, "int32"),
        actions=tuple(sorted(draw(st.lists(actions(len(events)), max_size=3)))),
        names=names,
        facts=draw(facts),
    )


@st.composite
def replays(draw: st.DrawFn) -> Replay:
    rows = draw(st.lists(st.tuples(sizes, sizes, sizes), max_size=20))
    curves = np.array([sorted(row) for row in rows], dtype="int64").reshape(-1, 3)
    return Replay(
        allocator=draw(text),
        requested=curves[:, 0],
        allocated=curves[:, 1],
        reserved=curves[:, 2],
        block_bytes=np.array(draw(st.lists(sizes, max_size=5)), dtype="int64"),
        segments=tuple(draw(st.lists(segments(), max_size=3))),
        out_of_memory_event=draw(st.integers(-1, len(rows) - 1)),
        num_alloc_retries=draw(st.integers(0, 9)),
    )


devices = st.builds(
    Device,
    name=text,
    kind=st.sampled_from(["cpu", "cuda"]),
    total_bytes=positive_sizes,
    label=text,
    sms=st.integers(0, 200),
    bandwidth_bytes_per_second=sizes,
    bf16_flops=sizes,
    sources=facts,
)
recipes = st.builds(
    Recipe,
    precision=st.sampled_from(["fp32", "bf16"]),
    batch_size=st.integers(1, 512),
    accumulate=st.integers(1, 64),
    checkpointing=st.sampled_from(["none", "full", "every:2", "every:13"]),
    optimizer=st.sampled_from(["adamw", "sgd"]),
    learning_rate=st.floats(0, 1),
    weight_decay=st.floats(0, 1),
    clip_norm=st.none() | st.floats(1e-6, 100),
)
rejected = st.builds(
    Rejected, batch_size=st.integers(1, 64), checkpointing=text, peak_bytes=sizes, reason=text
)
plans = st.tuples(positive_sizes, positive_sizes).flatmap(
    lambda pair: st.builds(
        Plan,
        target=text,
        recipe=recipes,
        device=text,
        seq_len=st.none() | st.integers(1, 1 << 20),
        budget_bytes=st.just(max(pair)),
        predicted_peak_bytes=st.just(min(pair)),
        reason=text,
        rejected=st.lists(rejected, max_size=3).map(tuple),
    )
)
step_records = st.builds(
    StepRecord,
    step=st.integers(1, 1000),
    loss=finite,
    learning_rate=finite,
    grad_norm=st.none() | finite,
    num_targets=st.integers(0, 1 << 30),
    seconds=finite,
    peak_bytes=st.none() | sizes,
    eval_loss=st.none() | finite,
)
runlogs = st.builds(
    RunLog,
    job=text,
    recipe=recipes.map(Recipe.as_dict),
    predicted_peak_bytes=st.none() | sizes,
    budget_bytes=st.none() | sizes,
    facts=facts,
    steps=st.lists(step_records, max_size=4, unique_by=lambda step: step.step).map(
        lambda steps: tuple(sorted(steps, key=lambda step: step.step))
    ),
)

RECORDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "timeline": (Timeline, timelines()),
    "replay": (Replay, replays()),
    "device": (Device, devices),
    "recipe": (Recipe, recipes),
    "plan": (Plan, plans),
    "runlog": (RunLog, runlogs),
}

every_record = pytest.mark.parametrize("kind", RECORDS)
drawn = settings(max_examples=30)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "record.json"


@every_record
@drawn
@given(data=st.data())
def test_what_is_loaded_is_what_was_saved(kind: str, path: Path, data: st.DataObject) -> None:
    record, strategy = RECORDS[kind]
    saved = data.draw(strategy)

    saved.save(path, force=True)

    assert record.load(path) == saved


@every_record
@drawn
@given(data=st.data())
def test_a_file_whose_first_line_is_cut_is_refused_by_name(
    kind: str, path: Path, data: st.DataObject
) -> None:
    record, strategy = RECORDS[kind]
    data.draw(strategy).save(path, force=True)
    whole = path.read_bytes().splitlines()[0]
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])

    with pytest.raises(DamagedFile) as refused:
        record.load(path)

    assert str(path) in str(refused.value)


@every_record
@drawn
@given(data=st.data())
def test_a_file_with_any_value_replaced_loads_or_is_refused_and_never_fails_otherwise(
    kind: str, path: Path, data: st.DataObject
) -> None:
    record, strategy = RECORDS[kind]
    data.draw(strategy).save(path, force=True)
    first, *rest = path.read_text().splitlines()
    document = replace_somewhere(json.loads(first), data)
    path.write_text("\n".join([json.dumps(document), *rest]) + "\n")

    loaded = load_unless_refused_by_name(record, path)
    assert loaded is None or isinstance(loaded, record)


def load_unless_refused_by_name(record: Any, path: Path) -> Any:
    """The record; None when it is refused with a message that names the file."""
    try:
        return record.load(path)
    except BadInput as refused:
        if str(path) not in str(refused):
            raise
        return None


def replace_somewhere(value: Any, data: st.DataObject) -> Any:
    """``value`` with something inside it, at any depth, replaced by anything."""
    if not isinstance(value, (dict, list)) or not value or data.draw(st.integers(0, 3)) == 0:
        return data.draw(json_values)
    key = data.draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
    inner = replace_somewhere(value[key], data)
    if isinstance(value, dict):
        return {**value, key: inner}
    return [inner if index == key else item for index, item in enumerate(value)]


@every_record
@drawn
@given(data=st.data())
def test_a_file_with_any_byte_changed_never_fails_without_saying_so(
    kind: str, path: Path, data: st.DataObject
) -> None:
    record, strategy = RECORDS[kind]
    data.draw(strategy).save(path, force=True)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)

    loaded = load_unless_refused_by_name(record, path)
    assert loaded is None or isinstance(loaded, record)


@pytest.mark.parametrize("kind", ["timeline", "replay"])
@drawn
@given(data=st.data())
def test_a_column_with_any_bit_flipped_is_noticed(
    kind: str, path: Path, data: st.DataObject
) -> None:
    record, strategy = RECORDS[kind]
    saved = data.draw(strategy)
    saved.save(path, force=True)
    document = json.loads(path.read_text())
    column = document["columns"][data.draw(st.sampled_from(sorted(document["columns"])))]
    packed = bytearray(base64.b64decode(column["zlib"]))
    # Past zlib's own header of two bytes, where some bits say only how hard it compressed.
    packed[data.draw(st.integers(2, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    column["zlib"] = base64.b64encode(packed).decode()
    path.write_text(json.dumps(document))

    loaded = load_unless_refused_by_name(record, path)
    assert loaded is None or loaded == saved  # a bit that pads the last block changes nothing


@every_record
@given(data=st.data())
@settings(max_examples=1)
def test_a_file_from_a_newer_memfit_says_so_and_what_to_do(
    kind: str, path: Path, data: st.DataObject
) -> None:
    record, strategy = RECORDS[kind]
    data.draw(strategy).save(path, force=True)
    first, *rest = path.read_text().splitlines()
    written = json.loads(first)
    now = written["version"]
    path.write_text("\n".join([json.dumps(written | {"version": now + 1}), *rest]))

    with pytest.raises(DamagedFile) as refused:
        record.load(path)

    assert str(refused.value) == (
        f"{path} was written by a newer memfit ({kind} version {now + 1}; this one reads up to "
        f"{now}): upgrade memfit"
    )


@every_record
@given(data=st.data())
@settings(max_examples=1)
def test_a_file_of_another_kind_says_which_one_it_is_and_which_is_needed(
    kind: str, path: Path, data: st.DataObject
) -> None:
    other = "plan" if kind != "plan" else "device"
    data.draw(RECORDS[other][1]).save(path, force=True)

    with pytest.raises(BadInput) as refused:
        RECORDS[kind][0].load(path)

    assert str(refused.value) == f"{path} holds '{other}', where '{kind}' is needed"


@every_record
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged|is not a whole run log"),
        (b"hello\n", "is damaged|is not a whole run log"),
        (b"[" * 100_000, "is damaged|is not a whole run log"),
        (b"\x80\x02]q\x00.", "is not a memfit|is not a whole run log"),  # a pickle
        (b"{}", "is not a memfit file"),
        (b"[1]", "is not a memfit file"),
        (b'{"memfit": {"a": 1}}', "holds {'a': 1}, where"),
    ],
    ids=["empty", "text", "deep", "pickle", "other JSON", "a list", "odd kind"],
)
def test_a_file_that_is_something_else_is_refused(
    kind: str, path: Path, content: bytes, message: str
) -> None:
    path.write_bytes(content)

    with pytest.raises(BadInput, match=message):
        RECORDS[kind][0].load(path)


@every_record
def test_a_file_that_is_not_there_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*nowhere\.json: No such file or directory"):
        RECORDS[kind][0].load(tmp_path / "nowhere.json")


@every_record
def test_a_folder_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*: Is a directory"):
        RECORDS[kind][0].load(tmp_path)
