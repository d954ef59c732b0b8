from __future__ import annotations

from memfit.devices.cpu_allocations import MARK_BYTES, Allocation
from memfit.tracing.host import HostEvent, host_events

OPEN, CLOSE = (1, MARK_BYTES), (1, -MARK_BYTES)


def stream(*events: tuple[int, int]) -> list[Allocation]:
    return [Allocation(address, num_bytes, 0) for address, num_bytes in events]


def test_what_is_taken_between_ops_is_the_hosts() -> None:
    found = host_events(stream((64, 8), OPEN, CLOSE, (64, -8)), {})
    assert found == [HostEvent(0, 0, 8), HostEvent(1, 0, -8)]


def test_what_is_taken_inside_an_op_is_not() -> None:
    assert host_events(stream(OPEN, (64, 8), CLOSE, (64, -8)), {}) == []


def test_the_death_of_a_tensor_made_for_real_is_told() -> None:
    found = host_events(stream(OPEN, (64, 40), CLOSE, OPEN, CLOSE, (64, -40)), {1: {64: 7}})
    assert found == [HostEvent(2, -8, -40)]


def test_scratch_at_the_address_of_the_output_is_no_death_of_it() -> None:
    events = stream(OPEN, (64, 40), (64, -40), (64, 40), CLOSE, (64, -40))
    assert host_events(events, {1: {64: 0}}) == [HostEvent(1, -1, -40)]


def test_marks_may_lie_inside_marks() -> None:
    found = host_events(stream(OPEN, (2, MARK_BYTES), (2, -MARK_BYTES), CLOSE, (64, 8)), {})
    assert found == [HostEvent(2, 0, 8)]


def test_an_address_may_be_used_again() -> None:
    found = host_events(stream((64, 8), (64, -8), OPEN, (64, 4), CLOSE, (64, -4)), {})
    assert found == [HostEvent(0, 0, 8), HostEvent(0, 0, -8)]
