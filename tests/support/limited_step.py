"""Takes one step under a limit of memory, and prints what came of it: a process of its own."""

from __future__ import annotations

import hashlib
import json
import resource
import sys

import psutil
import torch
from torch import Tensor, nn

from memfit.errors import OutOfMemory
from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.apply import apply

MiB = 1 << 20


class Net(nn.Module):
    """40 MiB of activations a sample."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.widen, self.narrow = nn.Linear(64, 1024), nn.Linear(1024, 64)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + self.narrow(nn.functional.dropout(self.widen(x).tanh(), 0.1, self.training))
        return x


def main() -> None:
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    job = Job(
        model=Net,
        batch=lambda size, seq_len: torch.zeros(size, 2048, 64),
        loss=lambda model, batch: (model(batch).square().sum(), batch.numel()),
    )
    model, _, step = apply(job, Recipe(batch_size=asked["batch_size"], optimizer="sgd"))
    batch = torch.randn(16, 2048, 64, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    if asked["room_mib"] is not None:
        used = psutil.Process().memory_info().data
        resource.setrlimit(resource.RLIMIT_DATA, (used + asked["room_mib"] * MiB, -1))
    try:
        outcome = step(batch)
    except OutOfMemory as error:
        print(json.dumps({"error": str(error)}))
        return
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(
        json.dumps(
            {
                "batch_size": outcome.batch_size,
                "notes": outcome.notes,
                "weights": hashlib.sha256(weights).hexdigest(),
            }
        )
    )


if __name__ == "__main__":
    main()
