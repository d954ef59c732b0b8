"""Predicts the step of another trainer, once its first batch is known.

What is traced is a twin of its model and optimizer, taking steps in the trainer's own order.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from memfit.allocator.cpu import replay_on_cpu
from memfit.data.batch_tree import map_leaves
from memfit.devices.catalog import matches
from memfit.integrations.comparison import Comparison
from memfit.integrations.twin import CannotTell, twins
from memfit.observer import Observer
from memfit.planner.predict import NUM_STEPS
from memfit.planner.rig import rig_of
from memfit.planner.simulate import simulate
from memfit.trainer.rng import rng_state, set_rng_state

TakeStep: TypeAlias = Callable[[nn.Module, torch.optim.Optimizer, Iterator[Any]], None]
"""``(model, optimizer, micro-batches)``: one optimizer step, as the trainer takes it.  Each batch
is made when it is asked for."""


def forecast(
    comparison: Comparison,
    model: nn.Module,
    optimizers: list[Any],
    batch: Any,
    accumulate: int,
    take_step: TakeStep,
) -> None:
    """Fills in ``comparison.predicted``, or why it cannot be.

    Training must not end for want of a prediction, so nothing is raised.

    Args:
        model: as it is trained, on its device.
        optimizers: of the trainer; only one can be predicted.
        batch: of the first micro-batch, or what stands for it on ``meta``.
        accumulate: micro-batches of a step.
        take_step: what the trainer does with them.
    """
    rng = rng_state()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def run(observer: Observer) -> None:
        observer.phase("init")
        model_twin, optimizer_twin = twins(model, _only(optimizers), device.type)
        model_twin.train()
        observer.model(model_twin)
        for number in range(1, NUM_STEPS + 1):
            observer.step(number)
            observer.phase("forward")
            batches = (_without_data(batch, device.type) for _ in range(accumulate))
            take_step(model_twin, optimizer_twin, batches)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            comparison.predicted = _peak_bytes(run, device)
    except Exception as error:
        comparison.why_not = " ".join(str(error).split()) or type(error).__name__
    finally:
        set_rng_state(rng)


def like(batch: Any) -> Any:
    """The shapes and dtypes of a batch, without its memory."""
    return map_leaves(lambda x: x.to("meta") if isinstance(x, Tensor) else x, batch)


def _peak_bytes(run: Callable[[Observer], None], device: torch.device) -> int:
    """The allocated peak of a run."""
    if device.type == "cpu":
        from memfit.tracing.step import trace

        return replay_on_cpu(trace(run)).peak_allocated_bytes
    from memfit.tracing.virtual.run import trace_on_gpu

    rig = rig_of(_name(device))
    traced = trace_on_gpu(run, card=rig.card, version=rig.version, settings=rig.unlimited)
    return simulate(traced.timeline, rig).replay.peak_allocated_bytes


def _only(optimizers: list[Any]) -> torch.optim.Optimizer:
    if len(optimizers) != 1:
        raise CannotTell(f"it has {len(optimizers)} optimizers, and only one can be predicted")
    optimizer = getattr(optimizers[0], "optimizer", optimizers[0])  # accelerate wraps it
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise CannotTell(f"{type(optimizer).__name__} is no optimizer of PyTorch")
    return optimizer


def _without_data(batch: Any, device: str) -> Any:
    return map_leaves(
        lambda x: (
            torch.zeros(x.shape, dtype=x.dtype, device=device) if isinstance(x, Tensor) else x
        ),
        batch,
    )


def _name(device: torch.device) -> str:
    """What memfit calls a GPU."""
    called = torch.cuda.get_device_name(device)
    meant = matches(called)
    if len(meant) != 1:
        raise CannotTell(f"{called} is not in the catalog ('memfit gpus' lists it)")
    return meant[0].name
