"""Activation checkpointing, fused AdamW, hooks on gradients, timing by events."""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

reentrant = sys.argv[1] == "reentrant"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(32, 64)
        layers = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(3)]
        self.layers = nn.ModuleList(layers)
        self.end = nn.Linear(64, 10)

    def forward(self, x):
        x = self.start(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=reentrant)
        return self.end(x.mean(1))


with torch.device("cuda"):
    model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
seen = []
for parameter in model.layers[0].parameters():
    parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.shape))
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for step in range(1, 4):
    torch.cuda.reset_peak_memory_stats()
    begin.record()
    x = torch.randn(4, 16, 32, device="cuda")
    y = torch.randint(10, (4,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) > 0
    assert len(seen) == step * len(list(model.layers[0].parameters()))
