"""What bitsandbytes' optimizers take is predicted to the byte, for parameters of any layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from memfit.observer import Observer
from memfit.profiler.capture import Capture
from memfit.records.recipe import Recipe
from memfit.records.timeline import Timeline
from memfit.techniques.optimizer import build_optimizer, import_library
from memfit.tracing.step import trace

pytest.importorskip("bitsandbytes")


def measured(steps: Callable[[Observer], None]) -> Timeline:
    capture = Capture()
    with capture:
        steps(capture)
    return capture.timeline


def transposed(*shape: int) -> torch.Tensor:
    return torch.ones(*reversed(shape)).T


SIZES = {
    "whole blocks": [torch.ones(64, 128), torch.ones(4096)],
    "a short block at the end": [torch.ones(67, 123), torch.ones(4097)],
    "kept in fp32": [torch.ones(7), torch.ones(4095), torch.ones(5, 9)],
}
LAYOUTS = {
    "transposed": [transposed(64, 128), transposed(67, 123), transposed(9, 5)],
    "transposed, of a batch": [torch.ones(3, 70, 80).transpose(1, 2)],
    "every other column": [torch.ones(64, 256)[:, ::2], torch.ones(8, 10)[:, ::2]],
}
PARAMETERS = SIZES | LAYOUTS


@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
@pytest.mark.parametrize("values", PARAMETERS.values(), ids=PARAMETERS)
@pytest.mark.parametrize("optimizer", ["adamw-8bit", "lion-8bit"])
def test_the_predicted_curve_is_the_measured_one(optimizer, values, precision):
    recipe = Recipe(optimizer=optimizer, precision=precision)
    import_library(recipe)
    dtype = torch.bfloat16 if precision == "bf16-pure" else torch.float32

    def steps(observer: Observer) -> None:
        model = nn.ParameterList(
            nn.Parameter(torch.empty_strided(x.shape, x.stride(), dtype=dtype).fill_(1))
            for x in values
        )
        made = build_optimizer(model, recipe)
        for lie_alike in (True, False, True):
            for x in model:
                like = torch.ones_like(x)
                x.grad = like if lie_alike else like.contiguous()
            made.step()

    steps(Capture())
    predicted, real = trace(steps), measured(steps)

    assert predicted.deltas().tolist() == real.deltas().tolist()
