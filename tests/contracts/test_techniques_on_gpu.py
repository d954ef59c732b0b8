"""Every technique is predicted for a GPU that is not there, and saves there what it says."""

from __future__ import annotations

from typing import Any

import pytest

from memfit.models.gpt import GPTConfig, gpt_job
from memfit.planner.predict import predict
from memfit.records.prediction import Prediction
from memfit.records.recipe import Recipe
from memfit.techniques.optimizer import import_library

JOB = gpt_job(
    GPTConfig(num_layers=4, dim=128, num_heads=2, num_kv_heads=2, vocab_size=4096, seq_len=256)
)
PLAIN = Recipe(batch_size=4)

TECHNIQUES: dict[str, dict[str, Any]] = {
    "bf16-pure": {"precision": "bf16-pure"},
    "fp16": {"precision": "fp16"},
    "full": {"checkpointing": "full"},
    "selective": {"checkpointing": "selective"},
    "blocks": {"checkpointing": "blocks:2:1"},
    "chunked": {"loss": "chunked"},
    "adafactor": {"optimizer": "adafactor"},
    "adamw-8bit": {"optimizer": "adamw-8bit"},
    "lion-8bit": {"optimizer": "lion-8bit"},
    "muon": {"optimizer": "muon"},
    "muon-8bit": {"optimizer": "muon-8bit"},
    "in-backward": {"optimizer_in_backward": True, "clip_norm": None},
    "offload-activations": {"offload": "activations"},
    "offload-optimizer": {"offload": "optimizer"},
    "packed": {"sequences": "packed"},
    "staged": {"seq_schedule": "64:10,256"},
}


def on_gpu(**changes: Any) -> Prediction:
    recipe = PLAIN.but(**changes)
    import_library(recipe)  # before the fork, as `predict` in a process of its own would
    return predict(JOB, recipe, device="rtx-4090", seq_len=256)


@pytest.fixture(scope="module")
def plain() -> Prediction:
    return on_gpu()


@pytest.mark.parametrize("name", TECHNIQUES)
def test_it_runs_on_the_virtual_gpu_and_guesses_no_value(name: str) -> None:
    prediction = on_gpu(**TECHNIQUES[name])

    assert prediction.peak.allocated_bytes > 0
    assert prediction.timeline is not None
    assert "unknown values read" not in prediction.timeline.facts


def activations(prediction: Prediction) -> int:
    return prediction.breakdown.get("activations", 0)


def test_selective_keeps_less_than_none_and_more_than_full(plain: Prediction) -> None:
    chunked = {"loss": "chunked"}
    none, selective, full = (
        on_gpu(checkpointing=kind, **chunked).peak.allocated_bytes
        for kind in ("none", "selective", "full")
    )

    assert full < selective < none < plain.peak.allocated_bytes


def test_offloaded_state_takes_no_byte_of_the_device(plain: Prediction) -> None:
    offloaded = on_gpu(offload="optimizer")

    assert plain.breakdown["optimizer_state"] > 0
    assert offloaded.breakdown.get("optimizer_state", 0) == 0


def test_offloaded_activations_make_the_peak_smaller() -> None:
    kept, moved = on_gpu(loss="chunked"), on_gpu(loss="chunked", offload="activations")

    assert moved.peak.allocated_bytes < kept.peak.allocated_bytes
    assert activations(moved) < activations(kept)
