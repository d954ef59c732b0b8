"""A generator whose state was put back draws what it drew."""

import json
import random

import numpy as np
import pytest
import torch

from memfit.trainer.rng import rng_state, set_rng_state


def draws() -> tuple[object, ...]:
    """From all generators, the halves of Gaussian pairs that they keep among them."""
    return (
        torch.rand(3).tolist(),
        torch.randn(1).item(),
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.standard_normal(),
    )


def test_all_generators_go_on_from_a_state_that_went_through_json():
    draws()  # leaves half a Gaussian pair in each
    text = json.dumps(rng_state())
    drawn = draws()
    draws()

    set_rng_state(json.loads(text))

    assert draws() == drawn
    assert len(text) < 30_000


@pytest.mark.parametrize(
    ("generator", "state"),
    [
        ("torch", "AAAA"),
        ("torch", "not base64"),
        ("python", [3, [1, 2], None]),
        ("numpy", {"bit_generator": "MT19937", "state": {"key": [1], "pos": 2}}),
        ("numpy", {"bit_generator": "MT19937", "state": {"key": [1] * 624, "pos": 10**6}}),
        ("numpy", {"bit_generator": "MT19937", "state": {"key": [1] * 624, "pos": -1}}),
        ("numpy", {}),
    ],
)
def test_what_is_no_state_is_refused(generator, state):
    with pytest.raises((LookupError, TypeError, ValueError)):
        set_rng_state({**rng_state(), generator: state})


def test_the_generator_of_a_gpu_is_kept_too_and_a_run_may_go_on_without_one(monkeypatch):
    states = [torch.arange(16, dtype=torch.uint8)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: states[-1])
    monkeypatch.setattr(torch.cuda, "set_rng_state", states.append)

    state = json.loads(json.dumps(rng_state()))
    set_rng_state(state)
    set_rng_state({name: value for name, value in state.items() if name != "cuda"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    set_rng_state(state)

    assert len(states) == 2
    assert torch.equal(states[0], states[1])
