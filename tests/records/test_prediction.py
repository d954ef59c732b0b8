"""What ``memfit predict --json`` prints."""

import json

import numpy as np
import pytest

from memfit.records.device import Device
from memfit.records.prediction import LargeTensor, Moment, Peak, Prediction
from memfit.records.recipe import Recipe
from memfit.records.replay import Replay
from memfit.records.timeline import Timeline


def prediction(device_bytes: int, budget_bytes: int) -> Prediction:
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
    )


@pytest.mark.parametrize(
    ("device_bytes", "budget_bytes", "fits"), [(9, 10, True), (10, 10, True), (11, 10, False)]
)
def test_a_run_fits_up_to_the_last_byte_of_its_budget(
    device_bytes: int, budget_bytes: int, fits: bool
) -> None:
    assert prediction(device_bytes, budget_bytes).fits is fits


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
