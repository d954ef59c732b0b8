"""What ``memfit predict --json`` prints."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from memfit.records.device import Device
from memfit.records.prediction import (
    Attempt,
    LargeTensor,
    Moment,
    OutOfMemory,
    Peak,
    Prediction,
    Uncertainty,
)
from memfit.records.recipe import Recipe
from memfit.records.replay import Replay
from memfit.records.timeline import Timeline


def prediction(device_bytes: int, budget_bytes: int, **more: Any) -> Prediction:
    empty = {name: np.zeros(0, dtype="int32") for name in ("events", "ops", "modules", "tensors")}
    none = np.zeros(0, dtype="int64")
    return Prediction(
        job="gpt2",
        seq_len=64,
        recipe=Recipe(batch_size=2),
        device=Device(name="cpu", kind="cpu", total_bytes=1 << 30),
        budget_bytes=budget_bytes,
        peak=Peak(
            requested_bytes=device_bytes,
            allocated_bytes=device_bytes,
            reserved_bytes=device_bytes,
            device_bytes=device_bytes,
        ),
        at_peak=Moment(step=1, phase="backward", op="aten::mm", module="lm_head"),
        breakdown={"parameters": device_bytes},
        phases={"backward": device_bytes},
        largest=(
            LargeTensor(
                num_bytes=8,
                shape="[2]",
                dtype="float32",
                op="aten::mm",
                module="lm_head",
                category="parameters",
            ),
        ),
        num_parameters=2,
        learnt_bytes=0,
        seconds=0.12345,
        timeline=Timeline(
            device="cpu",
            phases=np.zeros(0, dtype="uint8"),
            steps=np.zeros(0, dtype="int32"),
            num_bytes=none,
            categories=np.zeros(0, dtype="uint8"),
            origins=np.zeros(0, dtype="uint8"),
            facts={"torch": "2.13.0"},
            **empty,
        ),
        replay=Replay(allocator="cpu", requested=none, allocated=none, reserved=none),
        **more,
    )


ROOM = Attempt(room_bytes=9, addresses="ascending", num_alloc_retries=0, out_of_memory=None)
NO_ROOM = replace(
    ROOM,
    out_of_memory=OutOfMemory(
        moment=Moment(step=1, phase="backward", op="aten::mm", module=""),
        asked_bytes=4,
        reserved_bytes=7,
    ),
)
UP_TO_2_MORE = Uncertainty(name="context", below_bytes=1, above_bytes=2, reason="", is_outside=True)


@pytest.mark.parametrize(
    ("device_bytes", "budget_bytes", "fits"), [(9, 10, "yes"), (10, 10, "yes"), (11, 10, "no")]
)
def test_a_run_fits_up_to_the_last_byte_of_its_budget(
    device_bytes: int, budget_bytes: int, fits: str
) -> None:
    assert prediction(device_bytes, budget_bytes).fits == fits


@pytest.mark.parametrize(
    ("budget_bytes", "attempts", "fits"),
    [
        (11, (), "yes"),
        (10, (ROOM,), "tight"),
        (10, (NO_ROOM, ROOM), "tight"),
        (10, (NO_ROOM, NO_ROOM), "no"),
    ],
)
def test_it_fits_when_the_most_does_and_does_not_when_every_attempt_runs_out(
    budget_bytes: int, attempts: tuple[Attempt, ...], fits: str
) -> None:
    found = prediction(9, budget_bytes, uncertainty=(UP_TO_2_MORE,), attempts=attempts)

    assert found.fits == fits
    assert (found.out_of_memory is not None) == (fits == "no")


def test_the_range_is_the_peak_and_all_that_is_uncertain_at_once() -> None:
    inside = Uncertainty(name="addresses", below_bytes=3, above_bytes=4, reason="")
    unbounded = Uncertainty(name="values", below_bytes=0, above_bytes=None, reason="")

    found = prediction(9, 100, uncertainty=(inside, UP_TO_2_MORE, unbounded))

    assert (found.at_least_bytes, found.at_most_bytes) == (9 - 3 - 1, 9 + 4 + 2)
    assert found.reserved_range == (9 - 3, 9 + 4)


def test_the_json_has_the_range_beside_the_peak() -> None:
    found = prediction(9, 10, uncertainty=(UP_TO_2_MORE,), attempts=(NO_ROOM, ROOM)).as_dict()

    assert found["fits"] == "tight"
    assert found["range"] == {
        "allocated_bytes": [9, 9],
        "reserved_bytes": [9, 9],
        "device_bytes": [8, 11],
    }
    assert found["uncertainty"] == [
        {
            "name": "context",
            "below_bytes": 1,
            "above_bytes": 2,
            "reason": "",
            "is_outside": True,
        }
    ]
    assert [attempt["out_of_memory"] is None for attempt in found["attempts"]] == [False, True]


def test_the_json_says_all_but_the_curves() -> None:
    printed = json.loads(json.dumps(prediction(9, 10).as_dict()))

    assert printed["peak"] == {
        "requested_bytes": 9,
        "allocated_bytes": 9,
        "reserved_bytes": 9,
        "device_bytes": 9,
    }
    assert printed["at_peak"] == {
        "step": 1,
        "phase": "backward",
        "op": "aten::mm",
        "module": "lm_head",
    }
    assert printed["largest"] == [
        {
            "bytes": 8,
            "shape": "[2]",
            "dtype": "float32",
            "op": "aten::mm",
            "module": "lm_head",
            "category": "parameters",
        }
    ]
    assert printed["recipe"]["batch_size"] == 2
    assert printed["facts"] == {"torch": "2.13.0"}
    assert printed["seconds"] == 0.123
    assert not {"timeline", "replay"} & printed.keys()
