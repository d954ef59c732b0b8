"""A contender's process: python -m benchmarks.techniques.worker GROUP KEY [quick]"""

from __future__ import annotations

import sys
from importlib import import_module

import torch

from benchmarks.techniques import baselines, loss_runs, memfit_runs
from benchmarks.techniques.contenders import GROUPS, quick
from benchmarks.techniques.turns import Turns

RUNS = {
    "loop": baselines.run_loop,
    "trainer": baselines.run_trainer,
    "memfit": memfit_runs.run_memfit,
    "feed": memfit_runs.run_feed,
    "engine": memfit_runs.run_engine,
    "loss": loss_runs.run_loss,
}

RECORD_THEMSELVES = ("engine", "loss")
PREPARE_BEFORE = ("memfit", "feed", "loss")
"""What they do before the first turn is not the run's: data read, a budget settled."""


def main() -> None:
    group = {group.name: group for group in GROUPS}[sys.argv[1]]
    group = quick(group) if "quick" in sys.argv[3:] else group
    contender = {one.key: one for one in group.contenders}[sys.argv[2]]
    turns = Turns(captures=contender.kind not in RECORD_THEMSELVES)
    _import_everything(contender.kind)
    if contender.gives_back:
        from memfit.trainer.resident import give_freed_tensors_back

        assert give_freed_tensors_back()
    if contender.kind not in PREPARE_BEFORE:
        turns.ready()
    RUNS[contender.kind](contender, group.size, turns)


def _import_everything(kind: str) -> None:
    """What would be imported at the first step: torch's compiler comes with any optimizer."""
    if kind == "loss":
        return
    import_module("transformers.models.gpt2.modeling_gpt2")
    if kind == "trainer":
        import_module("transformers.trainer")
    if kind == "engine":
        import_module("memfit.trainer.engine")
    weight = torch.zeros(2, requires_grad=True)
    torch.optim.AdamW([weight])
    weight.sum().backward()


if __name__ == "__main__":
    main()
