"""The generators of random numbers that a run may draw from: their states as JSON, and back.

They are torch's generator of the CPU (dropout, ``torch.randint``), Python's ``random``, and
NumPy's legacy ``np.random``.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_MT19937_WORDS = 624


def rng_state() -> dict[str, Any]:
    """The states of all three, as plain data of about 20 KB."""
    legacy: dict[str, Any] = np.random.get_state(legacy=False)
    mt19937 = {"key": legacy["state"]["key"].tolist(), "pos": legacy["state"]["pos"]}
    return {
        "torch": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode("ascii"),
        "python": random.getstate(),
        "numpy": {**legacy, "state": mt19937},
    }


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Puts the states back that :func:`rng_state` gave, before or after a trip through JSON.

    Raises:
        LookupError, TypeError, ValueError: it is not such a state.
    """
    version, words, gauss = state["python"]
    legacy, mt19937 = state["numpy"], state["numpy"]["state"]
    # NumPy does not check this one, and reads outside its array.
    if not 0 <= mt19937["pos"] <= _MT19937_WORDS:
        raise ValueError(f"the position in NumPy's generator is {mt19937['pos']}")
    key = np.array(mt19937["key"], dtype=np.uint32)
    random.setstate((version, tuple(words), gauss))
    np.random.set_state({**legacy, "state": {"key": key, "pos": mt19937["pos"]}})
    packed = bytearray(base64.b64decode(state["torch"]))
    try:
        torch.set_rng_state(torch.frombuffer(packed, dtype=torch.uint8))
    except RuntimeError as error:
        raise ValueError(f"torch's generator does not take its state: {error}") from error
