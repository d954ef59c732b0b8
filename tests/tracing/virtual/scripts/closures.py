"""Passes in a closure that the optimizer calls, as Lightning does and LBFGS needs."""

import torch
from torch import nn

model = nn.Linear(16, 16).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(100):
    x = torch.randn(8, 16).cuda()

    def passes(x=x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(passes)
