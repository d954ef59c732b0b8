"""The convolutional cellular automaton of a recording: 3-D, at two scales, without gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memfit.observer import Observer

NUM_CHANNELS, NUM_HIDDEN = 16, 64
NUM_FIXED = 1
"""Channels of the image itself, which no step changes."""


class Automaton(nn.Module):
    """Each cell looks at its neighbours through a depthwise convolution."""

    def __init__(self, kernel_size: int) -> None:
        super().__init__()
        self.wide = nn.Linear(2 * NUM_CHANNELS, NUM_HIDDEN)
        self.narrow = nn.Linear(NUM_HIDDEN, NUM_CHANNELS, bias=False)
        self.norm = nn.BatchNorm3d(NUM_HIDDEN, track_running_stats=False)
        self.neighbours = nn.Conv3d(
            NUM_CHANNELS,
            NUM_CHANNELS,
            kernel_size,
            padding=kernel_size // 2,
            padding_mode="reflect",
            groups=NUM_CHANNELS,
        )

    def perceive(self, x: Tensor) -> Tensor:
        seen = self.neighbours(x)
        return torch.cat((x, seen), 1)

    def update(self, state: Tensor) -> Tensor:
        x = state.transpose(1, 4)
        change = self.perceive(x)
        change = change.transpose(1, 4)
        change = self.wide(change)
        change = self.norm(change.transpose(1, 4)).transpose(1, 4)
        change = self.narrow(F.relu_(change))
        fires = torch.zeros([*change.shape[:4], 1], device="cpu")  # which cells change, by chance
        fires = fires.to(change.device)
        change = change * fires
        x = x + change.transpose(1, 4)
        return x.transpose(1, 4)

    def forward(self, x: Tensor, num_steps: int) -> Tensor:  # (B, X, Y, Z, C)
        for _ in range(num_steps):
            new = self.update(x).clone()
            x = torch.concat((x[..., :NUM_FIXED], new[..., NUM_FIXED:]), 4)
        return x


def segment(observer: Observer) -> None:
    """40 steps at a quarter of the size, then 20 at the whole."""
    observer.phase("init")
    low, high = Automaton(7).cuda(), Automaton(3).cuda()
    x = torch.rand(1, 60, 50, 106, NUM_CHANNELS, device="cuda")
    upsample = nn.Upsample(scale_factor=4, mode="nearest")
    with torch.no_grad():
        observer.step(1)
        observer.phase("forward")
        small = low(x, 40)
        start = upsample(small.transpose(1, 4)).permute(0, 2, 3, 4, 1)
        del small
        start = high(start, 20)
    observer.phase("eval")
