"""What a link carries, in bytes per second and direction."""

import pytest

from memfit.devices.links import link_bytes_per_second


@pytest.mark.parametrize(
    ("link", "gb_per_second"),
    [
        ("PCIe 1.0 x16", 4.0),
        ("PCIe 3.0 x16", 15.754),
        ("PCIe 4.0 x8", 15.754),
        ("PCIe 4.0 x16", 31.508),
        ("PCIe 5.0 x16", 63.015),
        ("NVLink 2", 150.0),
        ("NVLink 3", 300.0),
        ("NVLink 4", 450.0),
        ("NVLink 5", 900.0),
    ],
)
def test_a_link_carries_what_its_generation_and_width_say(link, gb_per_second):
    assert link_bytes_per_second(link) / 10**9 == pytest.approx(gb_per_second, abs=0.001)


@pytest.mark.parametrize("link", ["", "NVLink", "NVLink 9", "PCIe 9.0 x16", "PCIe 4.0", "SLI"])
def test_a_link_that_is_not_known_is_zero(link):
    assert link_bytes_per_second(link) == 0
