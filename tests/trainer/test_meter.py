"""What a run takes is counted over stretches of it, from the first to the last."""

import torch

from memfit.records.stages import parse_stages
from memfit.trainer.meter import Meter, is_measured, step_memory

FLOATS = 1000
BYTES = 4 * FLOATS


def test_live_bytes_carry_over_from_one_measured_stretch_to_the_next():
    meter, kept = Meter(), []
    with meter.stretch(measured=True):
        kept.append(torch.empty(FLOATS))
    first = meter.live_bytes, meter.peak_bytes
    with meter.stretch(measured=True):
        passing = torch.empty(2 * FLOATS)
        del passing
        kept.append(torch.empty(FLOATS))

    assert first == (BYTES, BYTES)
    assert (meter.live_bytes, meter.peak_bytes) == (2 * BYTES, 3 * BYTES)


def test_what_a_stretch_frees_of_an_earlier_one_makes_room_for_what_comes():
    meter, kept = Meter(), []
    with meter.stretch(measured=True):
        kept.append(torch.empty(3 * FLOATS))
    with meter.stretch(measured=True):
        kept.clear()
        kept.append(torch.empty(FLOATS))

    assert (meter.live_bytes, meter.peak_bytes) == (BYTES, 3 * BYTES)
    with meter.stretch(measured=True):
        kept.clear()
        kept.append(torch.empty(2 * FLOATS))

    assert (meter.live_bytes, meter.peak_bytes) == (2 * BYTES, 2 * BYTES)


def test_a_stretch_that_is_not_measured_says_nothing():
    meter = Meter()
    with meter.stretch(measured=True):
        pass
    with meter.stretch(measured=False) as observer:
        observer.phase("forward")
        observer.step(1)

    assert (meter.live_bytes, meter.peak_bytes) == (None, None)


def test_the_recording_is_that_of_the_first_stretch():
    meter = Meter()
    for count in (1, 2):
        with meter.stretch(measured=True):
            blocks = [torch.empty(FLOATS) for _ in range(count)]
            del blocks

    assert meter.timeline.num_bytes.tolist() == [BYTES]


def test_a_steps_memory_is_what_it_ends_with_and_its_highest():
    meter = Meter()
    with meter.stretch(measured=True) as observer:
        weights = torch.empty(FLOATS)
        for step in (1, 2):
            observer.step(step)
            observer.phase("forward")
            activations = torch.empty(step * FLOATS)
            del activations

    found = [step_memory(meter.timeline, step) for step in (0, 1, 2, 3)]

    assert weights.nbytes == BYTES
    assert found == [
        (BYTES, BYTES),
        (BYTES, 2 * BYTES),
        (BYTES, 3 * BYTES),
        (None, None),
    ]


def test_a_step_in_ten_the_first_of_each_stage_and_those_that_evaluate_are_measured():
    def measured(schedule: str | None) -> list[int]:
        stages = parse_stages(schedule) if schedule else None
        return [step for step in range(3, 22) if is_measured(step, stages, evaluates=step == 13)]

    assert measured(None) == [10, 13, 20]
    assert measured("8:3,16:4,24:15,32") == [4, 5, 6, 10, 13, 16, 17, 20]


def test_the_resident_memory_is_that_of_the_whole_process():
    assert Meter().resident_bytes() > 50_000_000  # torch alone is more
