"""What predicting costs, beside what is predicted.  Ratios are of one run on this machine.

    python benchmarks/prediction.py [--batch-size 8] [--seq-len 1024]

prints the wall time and resident memory of ``memfit predict`` for GPT-2 on the CPU and on a GPU and
for an 8B model on a GPU, imports included, what the imports alone take, and the time of tracing a
step as a part of the time of taking it.  The real step is taken with
every block checkpointed, since GPT-2 at the default size needs 28 GiB without; so is the traced
one.  Modules are compiled to bytecode first: what is measured is not Python's compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial

from memfit.models.presets import preset
from memfit.observer import Observer, Unwatched
from memfit.records.recipe import Recipe
from memfit.techniques import run
from memfit.tracing.step import trace
from memfit.units import MiB

REPEATS = 3

HEADLINE = [
    "llama-3.1-8b",
    *("--gpu", "h100-80gb", "--batch-size", "1", "--seq-len", "4096"),
    *("--precision", "bf16-pure", "--optimizer", "adamw"),
]
"""An 8B model on one card."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=1024)
    options = parser.parse_args()
    sizes = ["--batch-size", str(options.batch_size), "--seq-len", str(options.seq_len)]
    time_the_imports()
    time_the_command(["gpt2", "--device", "cpu", *sizes])
    time_the_command(["gpt2", "--gpu", "rtx-4090", *sizes, "--precision", "bf16"])
    time_the_command(HEADLINE)
    time_a_step(options.batch_size, options.seq_len)


def time_the_imports() -> None:
    """What no prediction of a model of transformers can do without."""
    imports = "import torch; from transformers.models.gpt2 import modeling_gpt2"
    seconds = [_run([sys.executable, "-c", imports])[0] for _ in range(REPEATS + 1)]
    print(f"importing torch and transformers' GPT-2\n  {_spread(seconds[1:])} s")


def time_the_command(arguments: list[str]) -> None:
    """The command as a person types it: a process of its own, three times after a first."""
    command = [sys.executable, "-m", "memfit", "predict", *arguments, "--json"]
    seconds, inside, resident = [], [], 0
    for _ in range(REPEATS + 1):
        wall, document, peak = _run(command)
        seconds.append(wall)
        inside.append(json.loads(document)["seconds"])
        resident = max(resident, peak)
    print(f"{' '.join(command[2:])}")
    print(f"  first {seconds[0]:.1f} s, then {_spread(seconds[1:])} s, imports included")
    print(
        f"  of which predicting {_spread(inside[1:])} s; {resident / MiB:,.0f} MiB resident at most"
    )


def _run(command: list[str]) -> tuple[float, str, int]:
    """Wall seconds, standard output, and resident bytes of the largest process among the command's.

    Modules are written as bytecode, also where the environment says otherwise.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        document = child.stdout.read()
        _, _, usage = os.wait4(child.pid, 0)
        child.returncode = 0
    return time.perf_counter() - started, document, usage.ru_maxrss * 1024


def time_a_step(batch_size: int, seq_len: int) -> None:
    """One optimizer step, traced and taken."""
    job = preset("gpt2", seq_len=seq_len)
    recipe = Recipe(batch_size=batch_size, checkpointing="full")
    make_batch = partial(job.batch, batch_size, seq_len)

    def steps(observer: Observer, number: int) -> None:
        applied = run.build(job, recipe, observer)
        for step in range(1, number + 1):
            run.take_step(applied, step, make_batch, observer)

    trace(partial(steps, number=1))
    traced = {}
    for number in (1, 3):
        started = time.perf_counter()
        trace(partial(steps, number=number))
        traced[number] = time.perf_counter() - started
    trace_seconds = (traced[3] - traced[1]) / 2
    applied = run.build(job, recipe, Unwatched())
    started = time.perf_counter()
    run.take_step(applied, 1, make_batch, Unwatched())
    step_seconds = time.perf_counter() - started
    print(f"a step of gpt2, {batch_size} x {seq_len}, every block checkpointed, fp32")
    print(f"  traced in {trace_seconds:.2f} s, taken in {step_seconds:.1f} s", end="")
    print(f": {100 * trace_seconds / step_seconds:.1f} % of its time")


def _spread(seconds: list[float]) -> str:
    return f"{min(seconds):.1f} to {max(seconds):.1f}"


if __name__ == "__main__":
    main()
