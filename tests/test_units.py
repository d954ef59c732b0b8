"""Sizes and durations, as people write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import BadInput
from memfit.units import GiB, KiB, MiB, TiB, format_duration, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("24GiB", 24 * 2**30),
        ("24GB", 24 * 10**9),
        ("1.5g", 3 * 2**29),
        ("1.5 GiB", 3 * 2**29),
        (" 512mib ", 512 * 2**20),
        ("80K", 80 * 2**10),
        ("2tb", 2 * 10**12),
        ("1000", 1000),
        ("17 B", 17),
        ("0.1GB", 100_000_000),  # 0.1 has no exact float
    ],
)
def test_a_size_is_read_exactly(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "1,5g", "24 Gib it", "1e3", "1.g", "nan", "24Gbit"]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"is not a size: write for example 24GiB, 24GB or 1\.5g"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.1b"])
def test_zero_bytes_is_no_size(text: str) -> None:
    with pytest.raises(BadInput, match="zero bytes"):
        parse_size(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "8388608TiB", "9" * 400 + "GiB"])
def test_a_size_that_no_column_can_hold_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="more bytes than any machine has"):
        parse_size(text)


@given(st.integers(1, 2**62))
def test_a_written_size_reads_back_to_what_is_shown(num_bytes: int) -> None:
    shown = parse_size(format_size(num_bytes))
    step = next((unit for unit in (TiB, GiB) if num_bytes >= unit), None)
    rounding = step / 200 if step else next((u / 20 for u in (MiB, KiB) if num_bytes >= u), 0)
    assert abs(shown - num_bytes) <= rounding + 1


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (642 * MiB, "642.0 MiB"),
        (3 * GiB // 2, "1.50 GiB"),
        (2 * TiB, "2.00 TiB"),
        (-3 * GiB // 2, "-1.50 GiB"),
    ],
)
def test_a_size_is_written_in_the_largest_unit_it_fills(num_bytes: int, text: str) -> None:
    assert format_size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (4.24, "4.2 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7800, "2 h 10 min"),
    ],
)
def test_a_duration_is_written_in_two_units_at_most(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
