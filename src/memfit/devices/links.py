"""What a link carries at most in one direction: ``PCIe 4.0 x16``, ``NVLink 4``.

A PCIe lane moves one bit a transfer, less what its line code adds; packets cost a little more, so
no copy reaches these figures.  An NVLink generation stands for all links of a card that has it.
"""

from __future__ import annotations

import re

_LANE_BITS_PER_SECOND = {
    1: 2_500_000_000 * 8 // 10,
    2: 5_000_000_000 * 8 // 10,
    3: 8_000_000_000 * 128 // 130,
    4: 16_000_000_000 * 128 // 130,
    5: 32_000_000_000 * 128 // 130,
}
"""PCI-SIG: 2.5 and 5 GT/s in 8b/10b code; 8, 16 and 32 GT/s in 128b/130b code."""

_NVLINK_BYTES_PER_SECOND = {
    "NVLink 2": 6 * 25_000_000_000,
    "NVLink 3": 12 * 25_000_000_000,
    "NVLink 4": 18 * 25_000_000_000,
    "NVLink 5": 18 * 50_000_000_000,
    "NVLink-C2C": 450_000_000_000,
}
"""Links x bytes per second and direction, of the V100, A100, H100 and B200; GH200 to its host."""

_PCIE = re.compile(r"PCIe (\d)\.0 x(\d+)")


def link_bytes_per_second(link: str) -> int:
    """The peak of ``link`` in one direction; 0 when it is not known."""
    pcie = _PCIE.fullmatch(link)
    if pcie is None:
        return _NVLINK_BYTES_PER_SECOND.get(link, 0)
    return _LANE_BITS_PER_SECOND.get(int(pcie[1]), 0) * int(pcie[2]) // 8
