"""A budget in a recipe becomes what is applied: the least that a predicted peak inside it needs.

``checkpointing budget:SIZE`` becomes none, blocks:W:S or full with the fewest recomputed FLOPs;
``offload activations:budget:SIZE`` becomes none, activations:BYTES or activations with the fewest
bytes.  As in ``planner.budget`` the peak is that of the device: on the CPU the bytes of tensors, on
a GPU what ``nvidia-smi`` would show.

A prediction costs seconds, so peaks are searched by bisection, which supposes that more
recomputation never takes more memory.  Where that is not so, the answer still fits, and one thing
still holds for whatever peaks: a larger SIZE never recomputes more.  Two searches of one tree part
at a candidate that only the larger SIZE allows; that one goes on below it, the other above.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from memfit.errors import DoesNotFit
from memfit.job import Job
from memfit.planner.recomputation import recomputation_of
from memfit.records.prediction import Prediction
from memfit.records.recipe import Recipe
from memfit.units import MiB, format_size

NUM_GRAINS = 32
"""Activations are moved in this many parts of what a step without offload holds at its peak."""


def settle(
    job: Job,
    recipe: Recipe,
    *,
    predict: Callable[..., Prediction],
    seq_len: int | tuple[int, int] | None = None,
    **how: Any,
) -> Recipe:
    """The recipe without a budget; the same object where it has none.

    Args:
        job: what is trained.
        recipe: with or without a budget in checkpointing or offload.
        predict: ``planner.predict.predict``, which settles a recipe itself and so is handed in.
        seq_len: tokens of a sample, as for ``predict``.
        how: more arguments of ``predict``: the device and its rules.

    Raises:
        DoesNotFit: no choice is inside the budget; it carries the smallest peak that was found.
        BadInput: the model has no blocks to recompute, or what a prediction refuses.
    """
    peaks = _Peaks(job=job, predict=predict, how={"seq_len": seq_len, **how})
    if recipe.checkpoint_budget_bytes is not None:
        return _settle_checkpointing(job, recipe, recipe.checkpoint_budget_bytes, seq_len, peaks)
    if recipe.offload_budget_bytes is not None:
        return _settle_offload(recipe, recipe.offload_budget_bytes, peaks)
    return recipe


def fewest_flops(
    fits: Callable[[int, int], bool], num_blocks: int, whole: int, selective: int
) -> tuple[int, int] | None:
    """The cheapest (W, S), W blocks recomputed whole and S selectively, that ``fits``.

    Args:
        fits: whether the peak with (W, S) is inside the budget.
        num_blocks: W + S is at most this.
        whole: FLOPs of a block recomputed whole.
        selective: FLOPs of a block recomputed selectively.

    Returns:
        None where not even every block recomputed whole fits.

    For each W the fewest S that fit are found by bisection, beginning at the fewest W that fit
    when all other blocks are selective, and ending where W alone costs more than what is found.
    """
    if fits(0, 0):
        return (0, 0)
    fewest = _first(num_blocks + 1, lambda w: fits(w, num_blocks - w))
    if fewest is None:
        return None
    best, best_cost = (fewest, num_blocks - fewest), None
    for w in range(fewest, num_blocks + 1):
        if best_cost is not None and w * whole >= best_cost:
            break
        s = _first(num_blocks - w + 1, lambda s: fits(w, s))  # noqa: B023
        if s is None:
            continue
        cost = w * whole + s * selective
        if best_cost is None or cost < best_cost:
            best, best_cost = (w, s), cost
    return best


def _first(count: int, fits: Callable[[int], bool]) -> int | None:
    """The first of ``range(count)`` that fits, if those after it do; None if the last does not.

    Which are tried depends on ``count`` and the answers alone.
    """
    if not fits(count - 1):
        return None
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return high


@dataclass(kw_only=True)
class _Peaks:
    """Predicts the peak of each recipe once."""

    job: Job
    predict: Callable[..., Prediction]
    how: dict[str, Any]
    found: dict[Recipe, int] = field(default_factory=dict)
    held_activation_bytes: int = 0
    """Activations at the peak of what was predicted last."""

    def of(self, recipe: Recipe) -> int:
        """The predicted peak of the device."""
        if recipe not in self.found:
            prediction = self.predict(self.job, recipe, **self.how)
            self.found[recipe] = prediction.peak.device_bytes
            self.held_activation_bytes = prediction.breakdown.get("activations", 0)
        return self.found[recipe]

    def does_not_fit(self, budget_bytes: int, technique: str) -> DoesNotFit:
        """The error that names the smallest peak."""
        smallest = min(self.found, key=lambda recipe: (self.found[recipe], recipe.checkpointing))
        peak_bytes = self.found[smallest]
        chosen = getattr(smallest, technique)
        return DoesNotFit(
            f"{self.job.name} does not fit {format_size(budget_bytes)} by {technique} alone: the "
            f"smallest peak that was found, with {technique} {chosen}, is "
            f"{format_size(peak_bytes)}; give {-(-peak_bytes // MiB)}MiB or more, or make the "
            "micro-batch or the sequence smaller",
            peak_bytes,
        )


def _settle_checkpointing(
    job: Job,
    recipe: Recipe,
    budget_bytes: int,
    seq_len: int | tuple[int, int] | None,
    peaks: _Peaks,
) -> Recipe:
    plain = recipe.but(checkpointing="none")
    if peaks.of(plain) <= budget_bytes:
        return plain
    length = job.check_seq_len(seq_len[1] if isinstance(seq_len, tuple) else seq_len)
    num_blocks, whole, selective = recomputation_of(job, plain, length)

    def with_blocks(w: int, s: int) -> Recipe:
        if (w, s) == (0, 0):
            return plain
        full = w == num_blocks
        return recipe.but(checkpointing="full" if full else f"blocks:{w}:{s}")

    found = fewest_flops(
        lambda w, s: peaks.of(with_blocks(w, s)) <= budget_bytes, num_blocks, whole, selective
    )
    if found is None:
        raise peaks.does_not_fit(budget_bytes, "checkpointing")
    return with_blocks(*found)


def _settle_offload(recipe: Recipe, budget_bytes: int, peaks: _Peaks) -> Recipe:
    others = [part for part in recipe.offload.split(",") if not part.startswith("activations")]

    def with_activations(*parts: str) -> Recipe:
        return recipe.but(offload=",".join((*parts, *others)) or "none")

    plain = with_activations()
    if peaks.of(plain) <= budget_bytes:
        return plain
    grain = -(-peaks.held_activation_bytes // NUM_GRAINS)
    steps = [plain]
    steps += [with_activations(f"activations:{grain * n}") for n in range(1, NUM_GRAINS) if grain]
    steps.append(with_activations("activations"))
    index = _first(len(steps), lambda index: peaks.of(steps[index]) <= budget_bytes)
    if index is None:
        raise peaks.does_not_fit(budget_bytes, "offload")
    return steps[index]
