"""What a Replay says about peaks and fragmentation, and which curves it refuses."""

import numpy as np
import pytest

from memfit.records.replay import Replay


def replay(*moments: tuple[int, int, int]) -> Replay:
    """One (requested, allocated, reserved) a moment."""
    curves = np.array(moments, dtype="int64").reshape(-1, 3)
    return Replay(
        allocator="cpu", requested=curves[:, 0], allocated=curves[:, 1], reserved=curves[:, 2]
    )


def test_each_peak_is_the_highest_of_its_own_curve() -> None:
    seen = replay((10, 512, 2048), (300, 512, 2048), (20, 1024, 2048), (5, 1024, 4096))

    assert (seen.peak_requested_bytes, seen.peak_allocated_bytes, seen.peak_reserved_bytes) == (
        300,
        1024,
        4096,
    )


def test_the_peak_event_is_the_first_with_the_most_bytes_allocated() -> None:
    assert replay((1, 1, 1), (2, 9, 9), (3, 9, 20)).peak_event == 1


def test_fragmentation_is_what_is_not_handed_out_when_the_most_is_reserved() -> None:
    assert replay((1, 1, 1), (2, 9, 20), (3, 19, 20)).fragmentation_bytes == 11


def test_an_empty_replay_has_no_peak() -> None:
    empty = replay()

    assert (empty.peak_event, empty.peak_allocated_bytes, empty.fragmentation_bytes) == (-1, 0, 0)


@pytest.mark.parametrize("moment", [(2, 1, 3), (1, 3, 2)])
def test_requested_is_within_allocated_and_allocated_within_reserved(
    moment: tuple[int, int, int],
) -> None:
    with pytest.raises(ValueError, match="requested <= allocated <= reserved does not hold"):
        replay((1, 1, 1), moment)


def test_curves_of_unequal_length_or_type_are_refused() -> None:
    three, two = np.zeros(3, dtype="int64"), np.zeros(2, dtype="int64")

    with pytest.raises(ValueError, match="int64 and of one length"):
        Replay(allocator="cpu", requested=three, allocated=three, reserved=two)
    with pytest.raises(ValueError, match="int64 and of one length"):
        Replay(allocator="cpu", requested=three, allocated=three, reserved=three.astype("int32"))


def test_two_replays_are_equal_when_allocator_and_curves_are() -> None:
    assert replay((1, 2, 3)) == replay((1, 2, 3))
    assert replay((1, 2, 3)) != replay((1, 2, 4))
    assert replay((1, 2, 3)) != "a replay"
