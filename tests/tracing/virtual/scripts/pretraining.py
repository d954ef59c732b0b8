"""Pre-training in the style of nanoGPT: tokens in a memory map, a GradScaler, accumulation, a
compiled model, evaluation and checkpoints."""

import math
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

folder, dtype = Path(sys.argv[1]), sys.argv[2]
batch_size, block_size, vocab_size, width, num_micro_steps = 2, 64, 512, 64, 2
device = "cuda" if torch.cuda.is_available() else "cpu"
half = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[dtype]
context = torch.amp.autocast(device, dtype=half) if half is not torch.float32 else nullcontext()
torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
np.arange(4096, dtype=np.uint16).tofile(folder / "train.bin")


def get_batch():
    data = np.memmap(folder / "train.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - block_size - 1, (batch_size,))
    pieces = [data[i : i + block_size + 1].astype(np.int64) % vocab_size for i in starts]
    tokens = torch.from_numpy(np.stack(pieces)).pin_memory()
    assert tokens.is_pinned() and tokens.max() < vocab_size
    x, y = tokens[:, :-1], tokens[:, 1:]
    return x.to(device, non_blocking=True), y.to(device, non_blocking=True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x):
        batch, length, _ = x.size()
        q, k, v = self.attention(self.norm(x)).split(width, dim=2)
        q, k, v = (t.view(batch, length, 2, width // 2).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.projection(y.transpose(1, 2).reshape(batch, length, width))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.tokens.weight = self.head.weight
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(block_size, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return F.cross_entropy(logits.view(-1, vocab_size), targets.reshape(-1))


model = Model().to(device)
scaler = torch.amp.GradScaler(device, enabled=half is torch.float16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model = torch.compile(model)


@torch.no_grad()
def evaluate():
    model.eval()
    losses = torch.zeros(2)
    for i in range(2):
        with context:
            losses[i] = model(*get_batch()).item()
    model.train()
    return losses.mean()


x, y = get_batch()
for step in range(100):
    if step == 1:
        assert math.isfinite(evaluate())
        saved = {"model": model._orig_mod.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(saved, folder / "new.pt")
        os.replace(folder / "new.pt", folder / "checkpoint.pt")
        model.load_state_dict(torch.load(folder / "checkpoint.pt", map_location="cpu")["model"])
        del saved
    for _ in range(num_micro_steps):
        with context:
            loss = model(x, y) / num_micro_steps
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(step, loss.item(), torch.cuda.max_memory_allocated())
