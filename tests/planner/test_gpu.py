"""The answer for a GPU, from a trace that is written by hand: no virtual GPU is made here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from tiny_runs import tiny_gpt
from written_runs import training

from memfit.errors import BadInput, UnknownName
from memfit.job import Job
from memfit.planner.gpu import NUM_STEPS, predict_script
from memfit.planner.predict import predict
from memfit.records.prediction import Moment, Prediction
from memfit.records.recipe import Recipe
from memfit.records.timeline import Timeline
from memfit.units import MiB

CARD = "rtx-4090"


class Traced(NamedTuple):
    """What the virtual GPU gives."""

    timeline: Timeline
    value: Any
    stats: dict[str, int]


class Tracer:
    """Stands in for the virtual GPU: notes what it is asked for and gives what is written."""

    def __init__(self) -> None:
        self.timelines = [training(torch="2.13.0", transformers="5.24.0")]
        self.asked: list[dict[str, Any]] = []

    def trace_on_gpu(self, run: Any, **how: Any) -> Traced:
        return self._next({"run": run, **how})

    def trace_script(self, path: Path, arguments: Any, **how: Any) -> Traced:
        return self._next({"path": path, "arguments": list(arguments), **how})

    def _next(self, asked: dict[str, Any]) -> Traced:
        self.asked.append(asked)
        return Traced(self.timelines[(len(self.asked) - 1) % len(self.timelines)], 12, {})


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Tracer:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    tracer = Tracer()
    for name, trace in (("run", tracer.trace_on_gpu), ("script", tracer.trace_script)):
        module = ModuleType(f"memfit.tracing.virtual.{name}")
        setattr(module, trace.__name__, trace)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return tracer


def on_gpu(**how: Any) -> Prediction:
    return predict(tiny_gpt(), Recipe(batch_size=2), device=CARD, torch_version="2.13", **how)


def room_for(num_bytes: int, prediction: Prediction) -> int:
    """The budget that is expected to leave ``num_bytes`` to the allocator."""
    return num_bytes + prediction.outside.total_bytes


@pytest.mark.usefixtures("tracer")
def test_the_breakdown_sums_to_the_allocated_peak_block_by_block():
    found = on_gpu()

    assert found.peak.allocated_bytes == 224 * MiB + 4096
    assert sum(found.breakdown.values()) == found.peak.allocated_bytes
    assert found.breakdown == {
        "parameters": 40 * MiB,
        "gradients": 40 * MiB,
        "optimizer_state": 80 * MiB,
        "activations": 64 * MiB,
        "inputs": 4096,
    }
    assert max(found.phases.values()) == found.peak.allocated_bytes


@pytest.mark.usefixtures("tracer")
def test_the_device_holds_what_is_reserved_and_what_lies_outside_the_allocator():
    found = on_gpu()

    assert found.peak.reserved_bytes == 226 * MiB
    assert found.peak.device_bytes == 226 * MiB + found.outside.total_bytes
    assert found.at_least_bytes < found.peak.device_bytes < found.at_most_bytes
    assert found.at_peak == Moment(step=2, phase="backward", op="aten::mm", module="body.weight")
    assert found.num_parameters == 12


@pytest.mark.usefixtures("tracer")
@pytest.mark.parametrize(
    ("shortage", "fits"),
    [(0, "yes"), (1, "tight"), (10**9, "no")],
)
def test_it_fits_when_the_most_it_may_take_does(shortage, fits):
    most = on_gpu().at_most_bytes

    found = on_gpu(budget_bytes=max(most - shortage, 300 * MiB))

    assert found.fits == fits
    assert bool(found.attempts) == (fits != "yes")


@pytest.mark.usefixtures("tracer")
def test_a_run_that_does_not_fit_says_where_it_ends():
    first = on_gpu()

    found = on_gpu(budget_bytes=room_for(-200 * MiB, first))

    assert found.fits == "no"
    assert found.out_of_memory is not None
    assert found.out_of_memory.moment == Moment(
        step=0, phase="init", op="aten::empty", module="body.weight"
    )
    assert found.peak == first.peak


@pytest.mark.usefixtures("tracer")
def test_the_json_of_a_gpu_has_what_the_cpu_has_and_more():
    document = json.loads(json.dumps(on_gpu().as_dict(), allow_nan=False))

    assert document["fits"] == "yes"
    assert set(document["peak"]) == {
        *("requested_bytes", "allocated_bytes", "reserved_bytes", "device_bytes")
    }
    assert document["device"]["name"] == CARD
    assert document["segments"]["bytes"] == document["peak"]["reserved_bytes"]
    assert document["simulation"]["torch"] == "2.13"
    assert document["simulation"]["is_steady"] is True
    assert document["facts"]["transformers"] == "5.24.0"
    assert document["fragmentation_bytes"] >= 0


def test_the_run_is_traced_on_the_card_by_the_rules_of_the_version(tracer):
    on_gpu(alloc_conf="expandable_segments:True")

    (asked,) = tracer.asked
    assert asked["card"].name == CARD
    assert (str(asked["version"]), asked["settings"].expandable_segments) == ("2.13", True)


def test_lengths_that_vary_are_traced_beside_the_longest(tracer):
    tracer.timelines.append(training([length * 8 * MiB for length in (6, 4, 5, 6, 7, 8)]))

    found = on_gpu(seq_len=(4, 8))

    assert len(tracer.asked) == 2
    assert found.seq_len == 8
    assert found.lengths is not None
    assert found.lengths.varying_reserved_bytes == found.peak.reserved_bytes
    assert (found.lengths.shortest, found.lengths.longest) == (4, 8)


def test_a_range_of_one_length_is_that_length(tracer):
    found = on_gpu(seq_len=(8, 8))

    assert (len(tracer.asked), found.seq_len, found.lengths) == (1, 8, None)


def test_lengths_are_checked_before_anything_is_traced(tracer):
    with pytest.raises(BadInput, match="tiny cannot take a sequence of 1000 tokens"):
        on_gpu(seq_len=(4, 1000))
    job = Job(model=lambda: None, batch=lambda size, length: None, loss=lambda m, b: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(BadInput, match="job has no sequences"):
        predict(job, device=CARD, seq_len=(4, 8))

    assert not tracer.asked


def test_a_gpu_that_nobody_knows_is_refused_before_anything_is_traced(tracer):
    with pytest.raises(UnknownName, match="no GPU is called 'rtx-4091'"):
        predict(tiny_gpt(), device="rtx-4091")

    assert not tracer.asked


# Scripts


def test_a_script_is_run_as_it_is(tracer, tmp_path):
    script = tmp_path / "train.py"
    script.touch()

    found = predict_script(script, ["--batch", "8 x"], device=CARD, torch_version="2.13")

    (asked,) = tracer.asked
    assert (asked["path"], asked["arguments"]) == (script, ["--batch", "8 x"])
    assert asked["num_steps"] == NUM_STEPS
    assert found.job == f"{script} --batch '8 x'"
    assert (found.recipe, found.seq_len, found.num_parameters) == (None, None, None)
    assert json.loads(json.dumps(found.as_dict()))["recipe"] is None


def test_a_script_that_is_not_there_is_refused(tracer, tmp_path):
    with pytest.raises(BadInput, match="there is no script"):
        predict_script(tmp_path / "train.py", device=CARD)

    assert not tracer.asked


def test_a_script_that_leaves_the_gpu_alone_is_asked_why(tracer, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    empty = training()
    empty = type(empty)(
        device=CARD,
        names=("",),
        **{
            name: getattr(empty, name)[:0]
            for name in (
                *("events", "phases", "steps", "num_bytes", "categories", "origins"),
                *("ops", "modules", "tensors", "streams"),
            )
        },
    )
    tracer.timelines = [empty]

    with pytest.raises(
        BadInput, match="allocated nothing on the GPU: does it move its model there"
    ):
        predict_script(script, device=CARD)
