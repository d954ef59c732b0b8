from __future__ import annotations

import numpy as np

from memfit.allocator.cpu import replay_on_cpu
from memfit.records.timeline import Timeline


def test_the_cpu_hands_out_what_is_asked_for_and_keeps_nothing_back() -> None:
    zeros = {name: np.zeros(2, dtype=np.int32) for name in ("ops", "modules", "tensors")}
    timeline = Timeline(
        device="cpu",
        events=np.array([1, 2, -1], dtype=np.int32),
        phases=np.zeros(3, dtype=np.uint8),
        steps=np.zeros(3, dtype=np.int32),
        num_bytes=np.array([100, 1], dtype=np.int64),
        categories=np.zeros(2, dtype=np.uint8),
        origins=np.zeros(2, dtype=np.uint8),
        **zeros,
    )
    replay = replay_on_cpu(timeline)
    for curve in (replay.requested, replay.allocated, replay.reserved):
        assert curve.tolist() == [100, 101, 1]
    assert replay.peak_event == 1
