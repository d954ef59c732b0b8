"""Slices that take everything: nodes of their own up to torch 2.9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_events import allocations, mark

from memfit.records.timeline import Timeline
from memfit.tracing.virtual.old_indexing import _applied

TracedOnGpu = Callable[..., tuple[Any, Timeline]]


def _last_position() -> list[int]:
    logits = torch.empty(2, 8, 100, device="cuda", requires_grad=True)
    last = logits[:, -1, :]
    gradient = torch.empty_like(last)
    mark()
    last.backward(gradient)
    return list(last.shape)


def test_the_last_position_costs_zeros_for_every_colon_up_to_torch_2_9(
    traced_on_gpu: TracedOnGpu,
) -> None:
    """As recorded in torch 2.6: of the last position, of the logits twice."""
    shape, timeline = traced_on_gpu(_last_position, version="2.9")
    last, logits = 2 * 100 * 4, 2 * 8 * 100 * 4
    assert shape == [2, 100]
    assert [num_bytes for _, num_bytes in allocations(timeline)] == [last, logits, logits]


def test_the_last_position_costs_zeros_once_from_torch_2_10_on(traced_on_gpu: TracedOnGpu) -> None:
    _, timeline = traced_on_gpu(_last_position, version="2.10")
    assert [num_bytes for _, num_bytes in allocations(timeline)] == [2 * 8 * 100 * 4]


INDICES = (
    (slice(None), -1, slice(None)),
    (slice(None), slice(0, 100), 2),
    (Ellipsis, None, slice(None)),
    (slice(1, 3), slice(None), None, torch.tensor([0, 2])),
    (torch.tensor([[0, 1], [3, 2]]), slice(None)),
    (slice(None), [0, 1], slice(1, None, 2)),
    (0, Ellipsis, slice(None)),
    (slice(None), torch.tensor(2), slice(None)),
)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_step_by_step_gives_what_indexing_gives(index: tuple[Any, ...]) -> None:
    x = torch.arange(4 * 5 * 6.0).reshape(4, 5, 6)
    torch.testing.assert_close(_applied(x, index, torch.Tensor.__getitem__), x[index])
