"""Records to draw: the step of a GPT with L layers, written down as a run would leave it.

B samples, T tokens, C channels, V words.  The sizes are those of GPT-2 in fp32: parameters while
the model is built, a ramp of activations in forward, the logits and their gradient, the descent of
backward, and the states that the optimizer makes in its first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from memfit.allocator.replay import replay_on_cuda
from memfit.allocator.version import TorchVersion
from memfit.records.device import Device
from memfit.records.prediction import (
    LargeTensor,
    Moment,
    Outside,
    Peak,
    Prediction,
    Simulation,
    Uncertainty,
)
from memfit.records.recipe import Recipe
from memfit.records.replay import Replay
from memfit.records.runlog import RunLog, StepRecord
from memfit.records.timeline import CATEGORIES, PHASES, Timeline

B, T, C, V = 8, 1024, 768, 50257


class Notebook:
    """Writes events down and makes a Timeline of them."""

    def __init__(self) -> None:
        self.step, self.phase = 0, "init"
        self.names = {"": 0}
        self.events: list[tuple[int, int, int]] = []
        self.blocks: list[tuple[int, ...]] = []

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def take(self, shape: tuple[int, ...], category: str, module: str, op: str) -> int:
        tensor = f"float32[{', '.join(map(str, shape))}]"
        codes = (CATEGORIES.index(category), 0, *map(self.name, (op, module, tensor)))
        self.blocks.append((4 * math.prod(shape), *codes))
        self._event(len(self.blocks))
        return len(self.blocks)

    def free(self, *blocks: int) -> None:
        for block in blocks:
            self._event(-block)

    def _event(self, event: int) -> None:
        self.events.append((event, PHASES.index(self.phase), self.step))

    def timeline(self, **facts: str) -> Timeline:
        events, phases, steps = np.array(self.events, dtype=np.int64).reshape(-1, 3).T
        sizes, categories, origins, ops, modules, tensors = (
            np.array(self.blocks, dtype=np.int64).reshape(-1, 6).T
        )
        return Timeline(
            device="cpu",
            events=events.astype("int32"),
            phases=phases.astype("uint8"),
            steps=steps.astype("int32"),
            num_bytes=sizes,
            categories=categories.astype("uint8"),
            origins=origins.astype("uint8"),
            ops=ops.astype("int32"),
            modules=modules.astype("int32"),
            tensors=tensors.astype("int32"),
            names=tuple(self.names),
            facts=facts,
        )


class GptRun(Notebook):
    """Steps of a GPT."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.shapes: dict[str, tuple[int, ...]] = {"wte": (V, C), "wpe": (T, C)}
        for i in range(layers):
            self.shapes |= {
                f"h.{i}.attn.c_attn": (C, 3 * C),
                f"h.{i}.attn.c_proj": (C, C),
                f"h.{i}.mlp.c_fc": (C, 4 * C),
                f"h.{i}.mlp.c_proj": (4 * C, C),
            }
        self.layers = layers
        self.gradients: list[int] = []
        for module, shape in self.shapes.items():
            self.take(shape, "parameters", module, "aten::empty")

    def run_step(self, accumulate: int) -> None:
        self.step += 1
        for _ in range(accumulate):
            self._backward(*self._forward())
        self.phase = "optimizer"
        for module, shape in self.shapes.items():
            if self.step == 1:
                for _ in range(2):
                    self.take(shape, "optimizer_state", module, "aten::zeros_like")
            self.free(self.take(shape, "temporaries", module, "aten::sqrt"))
        self.free(*self.gradients)
        self.gradients = []

    def _forward(self) -> tuple[list[list[int]], list[int]]:
        self.phase = "forward"
        tokens = self.take((B, T + 1), "inputs", "", "aten::randint")
        kept = []
        for i in range(self.layers):
            block = []
            for part, width, op in (
                ("ln_1", C, "aten::native_layer_norm"),
                ("attn.c_attn", 3 * C, "aten::addmm"),
                ("attn", C, "aten::scaled_dot_product_attention"),
                ("ln_2", C, "aten::native_layer_norm"),
                ("mlp.c_fc", 4 * C, "aten::addmm"),
                ("mlp.act", 4 * C, "aten::gelu"),
                ("mlp.c_proj", C, "aten::addmm"),
            ):
                scratch = self.take((B, T, width), "workspace", f"h.{i}.{part}", op)
                block.append(self.take((B, T, width), "activations", f"h.{i}.{part}", op))
                self.free(scratch)
            kept.append(block)
        logits = self.take((B, T, V), "loss", "lm_head", "aten::mm")
        return kept, [tokens, logits, self.take((B, T, V), "loss", "", "aten::_log_softmax")]

    def _backward(self, kept: list[list[int]], rest: list[int]) -> None:
        self.phase = "backward"
        tokens, logits, log_softmax = rest
        slope = self.take((B, T, V), "loss", "", "aten::_log_softmax_backward_data")
        self.free(log_softmax, logits)
        first = not self.gradients
        if first:
            self.gradients += [
                self.take(self.shapes[m], "gradients", m, "aten::mm") for m in ("wte", "wpe")
            ]
        self.free(slope)
        modules = list(self.shapes)[2:]
        for block in reversed(kept):
            mine = [modules.pop() for _ in range(4)]
            for k, block_id in enumerate(reversed(block)):
                scratch = self.take((B, T, 4 * C), "temporaries", mine[0], "aten::gelu_backward")
                if first and k < len(mine):
                    shape = self.shapes[mine[k]]
                    self.gradients.append(self.take(shape, "gradients", mine[k], "aten::mm"))
                self.free(scratch, block_id)
        self.free(tokens)


def gpt_timeline(*, layers: int = 12, accumulate: int = 1, steps: int = 2) -> Timeline:
    run = GptRun(layers)
    for _ in range(steps):
        run.run_step(accumulate)
    return run.timeline(torch="2.13.0", processor="Intel Xeon @ 2.60 GHz", threads="2")


def prediction_of(timeline: Timeline, **changes: Any) -> Prediction:
    """What the planner would say of a timeline whose allocator is the CPU's."""
    curve = timeline.curve()
    replay = Replay(allocator="cpu", requested=curve, allocated=curve, reserved=curve)
    event = replay.peak_event
    names = timeline.names
    live = timeline.live_blocks(event)
    block = int(abs(timeline.events[event])) - 1
    largest = sorted(live, key=lambda b: -timeline.num_bytes[b])[:12]
    peak = replay.peak_allocated_bytes
    known: dict[str, Any] = {
        "job": "gpt2",
        "seq_len": T,
        "recipe": Recipe(batch_size=B),
        "device": Device(name="cpu", kind="cpu", total_bytes=16 << 30, label="Intel Xeon"),
        "budget_bytes": 16 << 30,
        "peak": Peak(
            requested_bytes=peak, allocated_bytes=peak, reserved_bytes=peak, device_bytes=peak
        ),
        "at_peak": Moment(
            step=int(timeline.steps[event]),
            phase=PHASES[timeline.phases[event]],
            op=names[timeline.ops[block]],
            module=names[timeline.modules[block]],
        ),
        "breakdown": timeline.breakdown(event),
        "phases": timeline.phase_peaks(),
        "largest": tuple(
            LargeTensor(
                num_bytes=int(timeline.num_bytes[b]),
                shape=names[timeline.tensors[b]].removeprefix("float32"),
                dtype="float32",
                op=names[timeline.ops[b]],
                module=names[timeline.modules[b]],
                category=CATEGORIES[timeline.categories[b]],
            )
            for b in largest
        ),
        "num_parameters": 124_439_808,
        "learnt_bytes": 0,
        "seconds": 3.41,
        "timeline": timeline,
        "replay": replay,
    }
    return Prediction(**(known | changes))


def renamed(prediction: Prediction, old: str, new: str) -> Prediction:
    """The same prediction, its module ``old`` called ``new`` wherever it is named."""
    names = tuple(new if name == old else name for name in prediction.timeline.names)
    return replace(
        prediction,
        timeline=replace(prediction.timeline, names=names),
        largest=tuple(replace(t, module=new) if t.module == old else t for t in prediction.largest),
    )


def runlog_of(*, steps: int = 200, predicted: int = 1_500 << 20, **changes: Any) -> RunLog:
    """A run whose loss falls from 10.8 towards 3, measured at every step."""
    wave = np.random.default_rng(0).normal(scale=0.06, size=steps)
    rows = [
        StepRecord(
            step=i,
            loss=round(3 + 7.8 * math.exp(-i / 40) + float(wave[i - 1]), 4),
            learning_rate=6e-4,
            grad_norm=1.0,
            num_targets=8192,
            seconds=0.5,
            live_bytes=420 << 20,
            peak_bytes=(predicted - (96 << 20)) if i == 1 else predicted,
            resident_bytes=2_100 << 20,
            eval_loss=round(3.1 + 7.8 * math.exp(-i / 40), 4) if i % 50 == 0 else None,
        )
        for i in range(1, steps + 1)
    ]
    known: dict[str, Any] = {
        "job": "gpt2",
        "predicted_peak_bytes": predicted,
        "budget_bytes": 2 << 30,
        "facts": {"torch": "2.13.0"},
        "steps": tuple(rows),
    }
    return RunLog(**(known | changes))


@pytest.fixture(name="gpt_timeline", scope="session")
def _gpt_timeline() -> Callable[..., Timeline]:
    return gpt_timeline


@pytest.fixture(name="prediction_of", scope="session")
def _prediction_of() -> Callable[..., Prediction]:
    return prediction_of


@pytest.fixture(name="renamed", scope="session")
def _renamed() -> Callable[..., Prediction]:
    return renamed


@pytest.fixture(name="runlog_of", scope="session")
def _runlog_of() -> Callable[..., RunLog]:
    return runlog_of


@pytest.fixture(scope="session")
def prediction() -> Prediction:
    return prediction_of(gpt_timeline())


def gpu_prediction_of(timeline: Timeline, *, budget: int = 24 << 30, **changes: Any) -> Prediction:
    """What the planner would say of a timeline on a GPU with torch 2.12."""
    replay = replay_on_cuda(timeline, version=TorchVersion(2, 12))
    event = replay.peak_event
    live = timeline.live_blocks(event)
    codes, block_bytes = timeline.categories[live], replay.block_bytes[live]
    outside = Outside(context_bytes=400 << 20, growth_bytes=100 << 20)
    known: dict[str, Any] = {
        "device": Device(
            name="rtx-4090", kind="cuda", total_bytes=24 << 30, label="NVIDIA GeForce RTX 4090"
        ),
        "budget_bytes": budget,
        "peak": Peak(
            requested_bytes=replay.peak_requested_bytes,
            allocated_bytes=replay.peak_allocated_bytes,
            reserved_bytes=replay.peak_reserved_bytes,
            device_bytes=replay.peak_reserved_bytes + outside.total_bytes,
        ),
        "breakdown": {
            CATEGORIES[code]: int(block_bytes[codes == code].sum()) for code in np.unique(codes)
        },
        "phases": {
            name: int(replay.allocated[timeline.phases == PHASES.index(name)].max())
            for name in timeline.phase_peaks()
        },
        "outside": outside,
        "uncertainty": (
            Uncertainty(
                name="segment addresses",
                below_bytes=0,
                above_bytes=20 << 20,
                reason="the driver decides",
            ),
            Uncertainty(
                name="CUDA context",
                below_bytes=150 << 20,
                above_bytes=150 << 20,
                reason="measured by others",
                is_outside=True,
            ),
            Uncertainty(
                name="unknown values read", below_bytes=0, above_bytes=None, reason="train.py:7"
            ),
        ),
        "allocated_range": (replay.peak_allocated_bytes, replay.peak_allocated_bytes + 1024),
        "simulation": Simulation(
            torch="2.12",
            alloc_conf="expandable_segments:False",
            addresses="ascending",
            num_steps=3,
            is_steady=True,
        ),
        "replay": replay,
    }
    return prediction_of(timeline, **(known | changes))


@pytest.fixture(name="gpu_prediction_of", scope="session")
def _gpu_prediction_of() -> Callable[..., Prediction]:
    return gpu_prediction_of


@pytest.fixture(scope="session")
def gpu_prediction() -> Prediction:
    return gpu_prediction_of(gpt_timeline())
