from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from memfit.tracing.calls import Call, TensorSpec
from memfit.tracing.hidden import scratch
from memfit.tracing.hidden.encoding import call_from_json, call_to_json
from memfit.tracing.hidden.sequences import Output


def tensor(*shape: int, dtype: torch.dtype = torch.float32, storage: int = 0) -> TensorSpec:
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return TensorSpec(shape, tuple(strides), dtype, 0, storage)


def convolution(num_channels: int = 3) -> Call:
    data, weight = tensor(1, 3, 32, 32), tensor(num_channels, 3, 3, 3, storage=1)
    return Call(
        "aten::convolution",
        (data, weight, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1),
        (),
    )


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path))
    return tmp_path


def test_an_op_without_a_formula_is_run_once_and_remembered(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    (first,) = scratch.sequences_of([convolution()], [1], lambda *done: told.append(done))
    assert first.origin == "learnt"
    assert Output(0) in first.events
    assert told == [(1, 1)]
    monkeypatch.setattr(scratch, "_learn", None)
    assert scratch.sequences_of([convolution()], [1]) == [first]


def test_an_op_that_cannot_run_is_taken_to_allocate_its_outputs(own_cache: Path) -> None:
    broken = Call("aten::convolution", (tensor(1, 1), tensor(1, 1)), ())
    unknown = Call("nowhere::such", (tensor(2),), ())
    plain, good, other = scratch.sequences_of([broken, convolution(4), unknown], [1, 1, 2])
    assert plain.events == (Output(0),)
    assert plain.origin == other.origin == "unknown"
    (file,) = (own_cache / "scratch").iterdir()
    assert "error" not in file.read_text()  # it may be of the moment: it is tried again
    assert good.origin == "learnt"
    assert other.events == (Output(0), Output(1))


def test_a_damaged_cache_is_learnt_again(own_cache: Path) -> None:
    (first,) = scratch.sequences_of([convolution()], [1])
    (file,) = (own_cache / "scratch").iterdir()
    file.write_text(file.read_text()[:20])
    assert scratch.sequences_of([convolution()], [1]) == [first]
    json.loads(file.read_text())


def test_a_call_on_more_than_the_limit_is_not_run(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "_learn", None)
    huge = Call("aten::convolution", (tensor(1 << 30), tensor(1, 1, storage=1)), ())
    (plain,) = scratch.sequences_of([huge], [1])
    assert plain.events == (Output(0),)
    assert plain.origin == "unknown"


def test_a_call_is_the_same_after_it_was_sent() -> None:
    call = Call(
        "aten::_to_copy",
        (tensor(2, 3, dtype=torch.bfloat16), (1, None, True), float("-inf")),
        (("dtype", torch.float64), ("memory_format", torch.preserve_format)),
    )
    assert call_from_json(json.loads(json.dumps(call_to_json(call)))) == call
