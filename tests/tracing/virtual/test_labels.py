"""What a copy from the host is called: an input, what backward needs, or a gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from memfit.records.timeline import CATEGORIES, Timeline

TracedOnGpu = Callable[..., tuple[None, Timeline]]


def labels_of(timeline: Timeline) -> list[str]:
    """The category of each block of a kilobyte that a copy made, in order."""
    copies = [timeline.names.index(name) for name in timeline.names if "copy" in name]
    return [
        CATEGORIES[category]
        for category, op, num_bytes in zip(
            timeline.categories, timeline.ops, timeline.num_bytes, strict=True
        )
        if op in copies and num_bytes == 1024
    ]


def test_what_was_saved_on_the_host_comes_back_as_activations(traced_on_gpu: TracedOnGpu) -> None:
    def steps() -> None:
        x = torch.zeros(256).to("cuda").requires_grad_()
        for pinned in (False, True):
            with torch.autograd.graph.save_on_cpu(pin_memory=pinned):
                y = x.exp().sum()
            y.backward()

    _, timeline = traced_on_gpu(steps)
    assert labels_of(timeline) == ["inputs", "activations", "activations"]


def test_the_gradient_of_what_moved_to_the_host_is_no_activation(
    traced_on_gpu: TracedOnGpu,
) -> None:
    def steps() -> None:
        weight = nn.Parameter(torch.ones(256, device="cuda"))
        (weight * 2).cpu().sum().backward()
        torch.empty(256).copy_(weight * 2).sum().backward()

    _, timeline = traced_on_gpu(steps)
    labels = labels_of(timeline)
    assert labels and not {"inputs", "activations"} & set(labels)
