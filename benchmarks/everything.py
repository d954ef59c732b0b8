"""A run with everything on, beside the plain run: does it reach the same loss?

    python -m benchmarks.everything [--steps 300]

Trains a small GPT three times on the demo's text: plainly with AdamW, plainly with Muon, and with
packing, staged lengths, Muon, the loss in chunks, every block checkpointed, and memory that runs
out again and again.  Every run sees as many tokens a step.  The weights at the end are evaluated on
the same held-out text, as rows and as packed documents; the aim is within 2 % of the plain run with
Muon, on both.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from memfit.data.feed import open_feed
from memfit.data.text import TextData, load
from memfit.job import Job
from memfit.models.presets import preset
from memfit.records.recipe import Recipe
from memfit.records.runlog import RunLog
from memfit.techniques.accumulation import micro_batches
from memfit.techniques.returned_loss import loss_and_targets
from memfit.trainer.engine import train
from memfit.trainer.options import TrainOptions
from memfit.units import MiB

if TYPE_CHECKING:
    from memfit.job import Loss

SEQ_LEN = 256
TOKENS_PER_STEP = 2_048
VOCAB_SIZE = 4_096
TOLERANCE = 0.02

PLAIN = Recipe(batch_size=TOKENS_PER_STEP // SEQ_LEN, learning_rate=2e-3)
MUON = PLAIN.but(optimizer="muon", learning_rate=None)
EVERYTHING = MUON.but(
    loss="chunked", checkpointing="full", sequences="packed", seq_schedule="128:100,256"
)

OUT_OF_MEMORY_CALLS = (50, 300, 450)
"""Forward passes that memory runs out in: each halves the micro-batch, 8 samples at first."""


@dataclass
class Watched:
    """A job whose model can be looked at afterwards, and whose memory runs out when asked to."""

    job: Job
    fails_at: Sequence[int] = ()
    model: nn.Module | None = None
    num_calls: int = 0
    failed: list[int] = field(default_factory=list)

    def as_job(self) -> Job:
        """The job to train."""
        return replace(self.job, model=self._build, loss=self._loss)

    def _build(self) -> nn.Module:
        self.model = self.job.model()
        return self.model

    def _loss(self, model: nn.Module, batch: Any) -> Loss:
        loss = self.job.loss(model, batch)
        self.num_calls += 1
        if self.num_calls in self.fails_at:
            self.failed.append(self.num_calls)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        return loss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    job = preset("nanochat-d2", seq_len=SEQ_LEN, vocab_size=VOCAB_SIZE)
    data = load(["python"], vocab_size=VOCAB_SIZE, seq_len=SEQ_LEN)
    print(
        f"{'run':34}{'rows':>8}{'packed':>8}{'peak':>10}{'seconds':>9}  ran out of memory",
        flush=True,
    )
    plain = run("plain, AdamW", Watched(job), PLAIN, data, steps)
    muon = run("plain, Muon", Watched(job), MUON, data, steps)
    watched = Watched(job, OUT_OF_MEMORY_CALLS)
    everything = run("everything on, Muon", watched, EVERYTHING, data, steps)
    worst = max(one / other - 1 for one, other in zip(everything, muon, strict=True))
    best = max(one / other - 1 for one, other in zip(everything, plain, strict=True))
    print(f"everything on is at worst {worst:+.2%} from Muon's plain run, {best:+.2%} from AdamW's")
    return int(worst > TOLERANCE)


def run(
    title: str, watched: Watched, recipe: Recipe, data: TextData, steps: int
) -> tuple[float, float]:
    """Trains, prints a line, and gives the held-out losses on rows and on packed documents."""
    started = time.perf_counter()
    options = TrainOptions(num_steps=steps, eval_every=steps, save_every=steps)
    with tempfile.TemporaryDirectory() as folder:
        log: RunLog = train(
            watched.as_job(), recipe, data, Path(folder) / "run", options=options, seq_len=SEQ_LEN
        )
    seconds = time.perf_counter() - started
    assert watched.model is not None
    rows = held_out_loss(watched.job, watched.model, data, "rows")
    packed = held_out_loss(watched.job, watched.model, data, "packed")
    peak = (log.peak_bytes or 0) / MiB
    print(
        f"{title:34}{rows:8.3f}{packed:8.3f}{peak:6.0f} MiB{seconds:9.0f}  {watched.failed}",
        flush=True,
    )
    return rows, packed


def held_out_loss(job: Job, model: nn.Module, data: TextData, sequences: str) -> float:
    """Nats a target of the weights as they are, on the held-out text in the one form."""
    recipe = PLAIN.but(sequences=sequences)
    feed = open_feed(data, recipe=recipe, seq_len=SEQ_LEN, seed=0, sequences=sequences)
    total, num_targets = 0.0, 0
    model.eval()
    with torch.inference_mode():
        for make in feed.held_out:
            for micro, _ in micro_batches(make(), recipe.batch_size):
                loss, targets = loss_and_targets(job.loss(model, micro))
                assert targets is not None
                total += loss.item()
                num_targets += targets
    return total / num_targets


if __name__ == "__main__":
    sys.exit(main())
