"""How long a Timeline of 100,000 events takes to save and to load, and how large its file is.

    python benchmarks/records.py

The best of several runs.  Under half a second for both together is the aim.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from memfit.records.timeline import CATEGORIES, PHASES, Timeline
from memfit.units import format_size

NUM_EVENTS = 100_000
NUM_RUNS = 5


def main() -> None:
    timeline = random_timeline(NUM_EVENTS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        save_seconds = best_seconds(lambda: timeline.save(path, force=True))
        load_seconds = best_seconds(lambda: Timeline.load(path))
        file_bytes = path.stat().st_size
    print(f"a Timeline of {NUM_EVENTS:,} events, best of {NUM_RUNS}")
    print(f"  save   {save_seconds:6.3f} s")
    print(f"  load   {load_seconds:6.3f} s")
    print(f"  both   {save_seconds + load_seconds:6.3f} s   (wanted: under 0.5 s)")
    print(f"  file   {format_size(file_bytes)}")


def random_timeline(num_events: int) -> Timeline:
    """Blocks that come and go with random sizes and names, as hard to compress as any."""
    rng = np.random.default_rng(0)
    num_blocks = num_events // 2
    events: list[int] = []
    live: list[int] = []
    born = 0
    while len(events) < 2 * num_blocks:
        if born < num_blocks and (not live or rng.random() < 0.55):
            born += 1
            live.append(born)
            events.append(born)
        else:
            events.append(-live.pop(int(rng.integers(len(live)))))
    names = ("", *(f"blocks.{layer}.mlp" for layer in range(999)))
    return Timeline(
        device="cpu",
        events=np.array(events, dtype="int32"),
        phases=rng.integers(0, len(PHASES), len(events), dtype="uint8"),
        steps=rng.integers(0, 3, len(events), dtype="int32"),
        num_bytes=rng.integers(1, 1 << 32, num_blocks, dtype="int64"),
        categories=rng.integers(0, len(CATEGORIES), num_blocks, dtype="uint8"),
        origins=np.zeros(num_blocks, dtype="uint8"),
        ops=rng.integers(0, len(names), num_blocks, dtype="int32"),
        modules=rng.integers(0, len(names), num_blocks, dtype="int32"),
        tensors=rng.integers(0, len(names), num_blocks, dtype="int32"),
        names=names,
    )


def best_seconds(work: Callable[[], object]) -> float:
    """The shortest of several runs of ``work``."""
    runs = []
    for _ in range(NUM_RUNS):
        start = time.perf_counter()
        work()
        runs.append(time.perf_counter() - start)
    return min(runs)


if __name__ == "__main__":
    main()
