"""Small presets on cards of five generations: kernels, workspaces and dtypes differ."""

from __future__ import annotations

import pytest
import torch._dynamo
from transformers.models.gpt2 import modeling_gpt2

from memfit.models.presets import preset
from memfit.planner.predict import predict
from memfit.records.recipe import Recipe

IMPORTED_ONCE = (torch._dynamo, modeling_gpt2)
"""Here and not in every child that traces."""

CARDS = ("t4", "v100-32gb", "rtx-4090", "h100-80gb", "b200")


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("name", ["gpt2", "nanochat-d4"])
def test_a_preset_is_predicted_on_every_generation(name: str, card: str) -> None:
    recipe = Recipe(batch_size=1, precision="bf16")
    prediction = predict(preset(name), recipe, device=card, seq_len=64)

    peak, outside = prediction.peak, prediction.outside.total_bytes
    assert prediction.fits == "yes"
    assert peak.requested_bytes <= peak.allocated_bytes <= peak.reserved_bytes
    assert peak.device_bytes == peak.reserved_bytes + outside
    assert sum(prediction.breakdown.values()) == peak.allocated_bytes
    assert prediction.simulation is not None
    assert prediction.simulation.is_steady
    assert "scratch unknown" not in prediction.timeline.facts
