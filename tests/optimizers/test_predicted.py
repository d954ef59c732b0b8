"""What the optimizers take is predicted to the byte, and they run on the virtual GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from small_jobs import JOBS, SEQ_LEN, run_of
from torch import nn

from memfit.optimizers.muon import muon_adamw
from memfit.optimizers.muon_8bit import Muon8bit
from memfit.planner.predict import predict
from memfit.profiler.capture import Capture
from memfit.records.recipe import Recipe
from memfit.records.timeline import Timeline
from memfit.tracing.step import trace

OPTIMIZERS = ("muon", "muon-8bit")


def events(timeline: Timeline) -> list[tuple[int, int, int]]:
    columns = (timeline.deltas(), timeline.phases, timeline.steps)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def with_frees_as_sets(timeline: Timeline) -> list[list[tuple[int, int, int]]]:
    """The order of the frees when autocast ends is chance: see tracing/test_cpu_proof.py."""
    runs = itertools.groupby(events(timeline), key=lambda event: event[0] > 0)
    return [list(run) if allocates else sorted(run) for allocates, run in runs]


def measured(steps: Callable[[Capture], None]) -> Timeline:
    capture = Capture()
    with capture:
        steps(capture)
    return capture.timeline


@pytest.mark.parametrize(
    ("name", "precision"), [("gpt", "bf16-pure"), ("gpt2", "fp32"), ("llama", "bf16")]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_predicted_curve_is_the_measured_one(name, optimizer, precision):
    steps = run_of(JOBS[name](), Recipe(batch_size=2, optimizer=optimizer, precision=precision))
    steps(Capture())  # PyTorch's own one-time buffers are not the run's

    predicted, real = trace(steps), measured(steps)

    assert int(predicted.curve().max()) == int(real.curve().max())
    if precision == "bf16":
        assert with_frees_as_sets(predicted) == with_frees_as_sets(real)
    else:
        assert events(predicted) == events(real)


@pytest.mark.parametrize("precision", ["bf16", "bf16-pure"])
def test_on_a_gpu_8_bits_of_momentum_save_what_they_should(precision):
    job = JOBS["llama"]()
    found = {
        name: predict(
            job,
            Recipe(batch_size=2, optimizer=name, precision=precision),
            device="rtx-4090",
            seq_len=SEQ_LEN,
        ).breakdown["optimizer_state"]
        for name in OPTIMIZERS
    }

    parts = muon_adamw(job.model(), learning_rate=0.02, weight_decay=0.1).parts
    numels = [p.numel() for group in parts[0].param_groups for p in group["params"]]
    per_number = 2 if precision == "bf16-pure" else 4
    plain = sum(rounded_up(per_number * n) for n in numels)
    narrow = sum(rounded_up(n) + rounded_up(4 * -(-n // 128)) for n in numels)
    assert found["muon"] - found["muon-8bit"] == plain - narrow


def rounded_up(num_bytes: int) -> int:
    """A block of CUDA's allocator is a multiple of 512 bytes."""
    return -(-num_bytes // 512) * 512


def test_a_matrix_at_a_time_is_widened_never_all_of_them():
    """The peak of an update is what stays and the widest matrix's own, however many there are."""

    def peak_above(num_matrices: int) -> int:
        def steps(observer: object) -> None:
            matrices = [nn.Parameter(torch.ones(64, 96)) for _ in range(num_matrices)]
            optimizer = Muon8bit(matrices)
            for _ in range(2):
                for matrix in matrices:
                    matrix.grad = torch.ones(64, 96)
                optimizer.step()

        curve = measured(steps).curve()
        return int(curve.max()) - num_matrices * 64 * 96 * (4 + 4 + 1) - num_matrices * 48 * 4

    # The last matrix of the first step has no codes yet while it is updated.
    assert peak_above(6) == peak_above(2)
    assert peak_above(6) < 4 * 64 * 96 * 4
