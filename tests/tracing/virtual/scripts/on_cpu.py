"""Trains on the CPU, whatever else is there."""

import torch
from torch import nn

model = nn.Linear(1024, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.randn(2, 1024)).square().mean()
    loss.backward()
    optimizer.step()
assert torch.isfinite(loss)
