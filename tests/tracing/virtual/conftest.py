"""Runs a function on a virtual GPU, in a child process, since torch does not come back from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  # once here, or every child would import it

from memfit.allocator.version import TorchVersion
from memfit.devices.catalog import find
from memfit.records.timeline import Timeline
from memfit.tracing.virtual.run import trace_on_gpu


def run_on_gpu(
    function: Callable[[], Any], card: str = "rtx-4090", version: str = "2.13"
) -> tuple[Any, Timeline]:
    """What ``function()`` returns on the virtual card, which must pickle, and its Timeline."""
    traced = trace_on_gpu(
        lambda observer: function(), card=find(card), version=TorchVersion.parse(version)
    )
    return traced.value, traced.timeline


@pytest.fixture
def on_gpu() -> Callable[..., Any]:
    """``on_gpu(function, card=..., version=...)`` -> what ``function()`` returns there."""
    return lambda function, card="rtx-4090", version="2.13": run_on_gpu(function, card, version)[0]


@pytest.fixture
def traced_on_gpu() -> Callable[..., tuple[Any, Timeline]]:
    """Like ``on_gpu``, with the Timeline beside it."""
    return run_on_gpu
