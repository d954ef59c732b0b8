from __future__ import annotations

import pytest
import torch

from memfit.devices.cpu_allocations import CpuAllocations
from memfit.errors import MemfitError
from memfit.profiler.capture import Capture
from memfit.records.timeline import CATEGORIES, ORIGINS, PHASES


def test_a_recording_knows_bytes_order_phase_and_step() -> None:
    capture = Capture()
    with capture:
        kept = torch.empty(100)
        capture.step(1)
        capture.phase("forward")
        passing = torch.empty(50)
        del passing
        capture.phase("backward")
        del kept
    timeline = capture.timeline
    assert timeline.deltas().tolist() == [400, 200, -200, -400]
    assert [PHASES[p] for p in timeline.phases] == ["init", "forward", "forward", "backward"]
    assert timeline.steps.tolist() == [0, 1, 1, 1]
    assert {CATEGORIES[c] for c in timeline.categories} == {"other"}
    assert {ORIGINS[o] for o in timeline.origins} == {"measured"}


def test_it_sees_the_same_as_torchs_own_profiler() -> None:
    def body() -> None:
        x = torch.randn(200, 200, requires_grad=True)
        (x @ x).relu().sum().backward()

    body()
    capture = Capture()
    with capture:
        body()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        body()
    events = profile.profiler.kineto_results.events()
    memory = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
    assert capture.timeline.deltas().tolist() == [e.nbytes() for e in memory]


def test_what_was_allocated_before_and_is_freed_within_is_left_out() -> None:
    before = torch.empty(100)
    capture = Capture()
    with capture:
        del before
    assert len(capture.timeline.events) == 0


def test_a_range_that_the_optimizer_names_hides_nothing() -> None:
    listener = CpuAllocations()
    with listener, torch.autograd.profiler.record_function("Optimizer.step"):
        torch.empty(100)
    assert [event.num_bytes for event in listener.events] == [400, -400]


def test_two_listeners_at_once_are_refused() -> None:
    with (
        CpuAllocations(),
        pytest.raises(MemfitError, match="one at a time"),
        CpuAllocations(),
    ):
        pass
