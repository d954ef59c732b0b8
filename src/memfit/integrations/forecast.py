"""Predicts the step of another trainer from what can be seen of it, once its first batch is known.

It is memfit's own step with the same model, batch and settings that is predicted.  Where the other
trainer does something else (keeps the logits, updates leaf by leaf), the two are apart by that;
``memfit predict train.py --gpu NAME`` runs the trainer itself on the virtual GPU, and is exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from memfit.devices.catalog import matches
from memfit.integrations.comparison import Comparison
from memfit.job import Job
from memfit.planner.predict import predict
from memfit.records.recipe import Recipe
from memfit.trainer.rng import rng_state, set_rng_state


class CannotTell(Exception):
    """The trainer cannot be predicted; the text says why."""


def forecast(
    comparison: Comparison,
    name: str,
    build: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    settings: Callable[[int], Recipe],
    device: torch.device,
) -> None:
    """Fills in ``comparison.predicted``, or why it cannot be.

    Training must not end for want of a prediction, so nothing is raised.

    Args:
        build: builds the model anew.
        batch: of the first micro-batch: tensors, or what stands for them on ``meta``.
        settings: the recipe, from the number of samples of a micro-batch.
    """
    rng = rng_state()
    try:
        size = _num_samples(batch)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            job = Job(name=name, model=build, loss=loss, batch=_maker(batch, size))
            prediction = predict(job, settings(size), device=_name(device))
        comparison.predicted = prediction.peak.allocated_bytes
    except Exception as error:
        comparison.why_not = " ".join(str(error).split()) or type(error).__name__
    finally:
        set_rng_state(rng)


def like(batch: Any) -> Any:
    """The shapes and dtypes of a batch, without its memory."""
    return tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, batch)


def _num_samples(batch: Any) -> int:
    sizes = {
        leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()
    }
    if len(sizes) != 1:
        raise CannotTell(
            f"the first dimension of its batch is no number of samples: {sorted(sizes)}"
        )
    return int(sizes.pop())


def _maker(batch: Any, size: int) -> Callable[[int, int], Any]:
    def make(batch_size: int, seq_len: int) -> Any:
        return tree_map(
            lambda x: (
                torch.zeros((batch_size, *x.shape[1:]), dtype=x.dtype)
                if isinstance(x, Tensor) and x.dim()
                else x
            ),
            batch,
        )

    return make


def _name(device: torch.device) -> str:
    """What memfit calls the device."""
    if device.type != "cuda":
        return device.type
    called = torch.cuda.get_device_name(device)
    meant = matches(called)
    if len(meant) != 1:
        raise CannotTell(f"{called} is not in the catalog ('memfit gpus' lists it)")
    return meant[0].name
