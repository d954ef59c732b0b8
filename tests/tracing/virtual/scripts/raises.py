"""Raises in the second step, inside a module."""

import torch
from torch import nn


class Layer(nn.Module):
    num_calls = 0

    def forward(self, x):
        self.num_calls += 1
        if self.num_calls == 2:
            raise KeyError("the second call")
        return x


model = nn.Sequential(nn.Linear(4, 4), Layer()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.randn(2, 4, device="cuda")).sum().backward()
    optimizer.step()
