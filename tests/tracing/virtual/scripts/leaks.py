"""Keeps the graph of every step, and predictions of an evaluation without no_grad."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(4):
    x, y = torch.randn(128, 64).cuda(), torch.randint(0, 8, (128,)).cuda()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(loss)
    print(torch.cuda.memory_allocated())
