"""The generators of random numbers that a run may draw from: their states as JSON, and back.

They are torch's generators of the CPU and of the current CUDA device (dropout, ``torch.randint``),
Python's ``random``, and NumPy's legacy ``np.random``.
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
    """The states of all of them, as plain data of about 20 KB; ``cuda`` is None without one."""
    legacy: dict[str, Any] = np.random.get_state(legacy=False)
    mt19937 = {"key": legacy["state"]["key"].tolist(), "pos": legacy["state"]["pos"]}
    has_cuda = torch.cuda.is_available()
    return {
        "torch": _encoded(torch.get_rng_state()),
        "cuda": _encoded(torch.cuda.get_rng_state()) if has_cuda else None,
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
    try:
        torch.set_rng_state(_decoded(state["torch"]))
        # States of an older memfit have none, and a run may go on without the GPU it began on.
        if state.get("cuda") and torch.cuda.is_available():
            torch.cuda.set_rng_state(_decoded(state["cuda"]))
    except RuntimeError as error:
        raise ValueError(f"torch's generator does not take its state: {error}") from error


def _encoded(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decoded(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
