"""Every preset on five cards of different generations: its reserved peak, and whether it fits.

    python benchmarks/presets.py [--batch-size 1] [--seq-len 256] [--precision bf16] [PRESET ...]

prints a line for each preset, with what the allocator reserves at most in GiB and the answer for
each card: yes, tight or no.
"""

from __future__ import annotations

import argparse
import sys

from memfit.models.presets import PRESETS, preset
from memfit.planner.predict import predict
from memfit.records.recipe import Recipe
from memfit.units import GiB

CARDS = ("t4", "v100-32gb", "rtx-4090", "h100-80gb", "b200")
"""Turing, Volta, Ada, Hopper and Blackwell: they differ in kernels, workspaces and size."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("presets", metavar="PRESET", nargs="*", default=list(PRESETS))
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--precision", default="bf16")
    options = parser.parse_args()
    recipe = Recipe(batch_size=options.batch_size, precision=options.precision)
    width = max(map(len, options.presets))
    print(" " * width, *(f"{card:>15}" for card in CARDS))
    for name in options.presets:
        print(f"{name:{width}}", end=" ")
        for card in CARDS:
            print(f"{cell(name, card, recipe, options.seq_len):>15}", end=" ")
            sys.stdout.flush()
        print()


def cell(name: str, card: str, recipe: Recipe, seq_len: int) -> str:
    """``2.56 GiB yes``: what a preset reserves on a card, and the answer."""
    job = preset(name)
    length = min(seq_len, job.max_seq_len or seq_len)
    prediction = predict(job, recipe, device=card, seq_len=length)
    return f"{prediction.peak.reserved_bytes / GiB:.2f} GiB {prediction.fits}"


if __name__ == "__main__":
    main()
