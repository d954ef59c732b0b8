"""What a Device refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from memfit.records.device import Device


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "tpu"}, "a device is 'cpu' or 'cuda', not 'tpu'"),
        ({"total_bytes": 0}, "card has 0 bytes of memory"),
        ({"sms": -1}, "card: sms is negative"),
        ({"bandwidth_bytes_per_second": -1}, "bandwidth_bytes_per_second is negative"),
        ({"bf16_flops": -1}, "bf16_flops is negative"),
        ({"threads_per_sm": -1}, "threads_per_sm is negative"),
        ({"l2_bytes": -1}, "l2_bytes is negative"),
        ({"link_bytes_per_second": -1}, "link_bytes_per_second is negative"),
        ({"context_bytes": 7, "context_spread_bytes": 8}, "7 bytes may be off by at most as much"),
    ],
)
def test_a_device_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Device(**({"name": "card", "kind": "cuda", "total_bytes": 1} | change))


def test_a_device_survives_its_file(tmp_path: Path) -> None:
    device = Device(
        name="card",
        kind="cuda",
        total_bytes=24 << 30,
        compute_capability="8.9",
        threads_per_sm=1536,
        fp8_flops=10**14,
        link="PCIe 4.0 x16",
        context_bytes=400 << 20,
        context_spread_bytes=100 << 20,
        sources={"link": "a document"},
    )
    device.save(tmp_path / "card.json")
    assert Device.load(tmp_path / "card.json") == device


def test_a_file_from_before_the_newer_figures_still_loads(tmp_path: Path) -> None:
    old = {"name": "card", "kind": "cuda", "total_bytes": 1, "bf16_flops": 2, "sources": {}}
    text = json.dumps({"memfit": "device", "version": 1, "device": old})
    (tmp_path / "card.json").write_text(text)
    device = Device.load(tmp_path / "card.json")
    assert (device.bf16_flops, device.link, device.context_bytes) == (2, "", 0)
