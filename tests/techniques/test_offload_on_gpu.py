"""What offload leaves on a GPU, seen on one that is not there."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch._dynamo  # noqa: F401  # once here, or every child would import it

from memfit.allocator.version import TorchVersion
from memfit.devices.catalog import find
from memfit.models.gpt import GPTConfig, gpt_job
from memfit.records.recipe import Recipe
from memfit.records.timeline import CATEGORIES, PHASES, Timeline
from memfit.techniques import run
from memfit.tracing.virtual.run import Traced, trace_on_gpu

SEQ_LEN = 48
JOB = gpt_job(
    GPTConfig(num_layers=3, dim=64, num_heads=2, num_kv_heads=2, vocab_size=2048, seq_len=SEQ_LEN)
)
NUM_STEPS, ACCUMULATE = 2, 2


def traced(**changes: Any) -> Traced:
    """Two steps of two micro-batches; the value is what the last forward pass moved, in bytes."""
    recipe = Recipe(batch_size=4, accumulate=ACCUMULATE, **changes)

    def steps(observer: Any) -> int:
        applied = run.build(JOB, recipe, observer, device="cuda")
        make_batch = partial(JOB.batch, recipe.samples_per_step, SEQ_LEN)
        for number in range(1, NUM_STEPS + 1):
            run.take_step(applied, number, make_batch, observer)
        return applied.step._offload.moved_bytes

    return trace_on_gpu(steps, card=find("rtx-4090"), version=TorchVersion.parse("2.13"))


def live_bytes(timeline: Timeline, category: str) -> np.ndarray:
    """(E,) bytes of a category that are live after each event."""
    blocks = np.abs(timeline.events) - 1
    is_its = timeline.categories[blocks] == CATEGORIES.index(category)
    live: np.ndarray = np.cumsum(np.where(is_its, timeline.deltas(), 0))
    return live


def born_in(timeline: Timeline, phase: str) -> np.ndarray:
    """(B,) whether a block was allocated in a phase."""
    births = timeline.phases[timeline.events > 0]
    is_born: np.ndarray = births == PHASES.index(phase)
    return is_born


@pytest.fixture(scope="module")
def moved() -> Traced:
    return traced(offload="activations")


def test_what_comes_back_for_backward_is_activations_and_comes_once(moved: Traced) -> None:
    timeline = moved.timeline
    came = born_in(timeline, "backward") & (timeline.ops == timeline.names.index("aten::copy_"))
    names = {CATEGORIES[code] for code in timeline.categories[came]}

    assert names == {"activations"}
    assert timeline.num_bytes[came].sum() == NUM_STEPS * ACCUMULATE * moved.value > 0


def test_the_batch_is_an_input_still(moved: Traced) -> None:
    timeline = moved.timeline
    is_input = timeline.categories == CATEGORIES.index("inputs")

    assert not (is_input & born_in(timeline, "backward")).any()
    assert {timeline.names[name] for name in timeline.tensors[is_input]} == {"int64[4, 49]"}


def test_few_of_them_are_there_at_once(moved: Traced) -> None:
    timeline = moved.timeline
    came = born_in(timeline, "backward") & (timeline.ops == timeline.names.index("aten::copy_"))
    blocks = np.abs(timeline.events) - 1
    live = np.cumsum(np.where(came[blocks], timeline.deltas(), 0))

    # What one op reads, what the op before it will, and what both hold for a third.
    largest = np.sort(timeline.num_bytes[came])[-1]
    assert live.max() <= 4 * largest < 0.3 * moved.value
    assert live[-1] == 0


def test_gradients_are_never_all_on_the_device() -> None:
    timeline = traced(offload="optimizer").timeline
    gradients = timeline.num_bytes[timeline.categories == CATEGORIES.index("gradients")].tolist()
    live = live_bytes(timeline, "gradients")
    parameters = sum(p.numel() * 4 for p in JOB.model().parameters())

    assert sum(gradients) == NUM_STEPS * ACCUMULATE * parameters
    # Two whose copies may still run, and the one that was made just now.
    # The most are the head's and those of the last block's two wide layers.
    head, wide = 2048 * 64 * 4, 4 * 64 * 64 * 4
    assert gradients[:3] == [head, wide, wide]
    assert live.max() == head + 2 * wide
    assert live.max() < parameters / 2
    # None waits for the next pass, in which all activations join it.
    assert set(live[timeline.phases != PHASES.index("backward")]) == {0}


@pytest.mark.parametrize(
    ("optimizer", "precision"), [("adamw", "fp32"), ("adafactor", "fp32"), ("muon", "bf16-pure")]
)
def test_no_byte_of_the_optimizer_is_ever_on_the_device(optimizer: str, precision: str) -> None:
    changes = {"optimizer": optimizer, "precision": precision}
    kept, gone = traced(**changes), traced(**changes, offload="optimizer")

    assert live_bytes(kept.timeline, "optimizer_state").max() > 0
    assert live_bytes(gone.timeline, "optimizer_state").max() == 0
    assert not born_in(gone.timeline, "optimizer").any()
