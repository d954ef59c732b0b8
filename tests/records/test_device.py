"""What a Device refuses."""

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
    ],
)
def test_a_device_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Device(**({"name": "card", "kind": "cuda", "total_bytes": 1} | change))
