"""What to change when even one sample is too large: each change, with its predicted peak."""

from __future__ import annotations

from memfit.errors import MemfitError
from memfit.job import Job
from memfit.planner.predict import predict
from memfit.records.recipe import Recipe
from memfit.units import format_size

_CHANGES = (
    {"checkpointing": "full"},
    {"loss": "chunked"},
    {"precision": "bf16"},
    {"optimizer": "muon"},
    {"precision": "bf16-pure"},
    {"checkpointing": "full", "loss": "chunked"},
)
"""Changes of a recipe, one at a time and the two that change no result together."""


def advise(job: Job, recipe: Recipe, *, device: str = "cpu", seq_len: int | None = None) -> str:
    """A sentence with the changes that make the peak smaller, the smallest peak first.

    Args:
        job: what is trained.
        recipe: what was tried; one sample at a time is looked at.
        device: where it runs.
        seq_len: tokens of a sample; the job's own length when left out.
    """
    one = _one_sample(recipe)
    now = _peak_bytes(job, one, device, seq_len)
    if now is None:
        return "make the sequence shorter, or the model smaller"
    found: dict[str, int] = {}
    for change in _CHANGES:
        if all(getattr(one, name) == value for name, value in change.items()):
            continue
        try:
            changed = one.but(**change)
        except MemfitError:  # it does not go with the rest of the recipe
            continue
        peak = _peak_bytes(job, changed, device, seq_len)
        if peak is not None and peak < now:
            flags = " ".join(f"--{name} {value}" for name, value in change.items())
            found[flags] = peak
    length = job.check_seq_len(seq_len)
    if job.seq_len is not None and length > 1:
        peak = _peak_bytes(job, one, device, length // 2)
        if peak is not None and peak < now:
            found[f"--seq-len {length // 2}"] = peak
    if not found:
        return f"one sample needs {format_size(now)}, and no technique makes that smaller"
    ordered = sorted(found.items(), key=lambda item: item[1])
    changes = "; ".join(f"{flags} needs {format_size(peak)}" for flags, peak in ordered)
    return f"one sample needs {format_size(now)} as predicted: {changes}"


def _one_sample(recipe: Recipe) -> Recipe:
    """One sample at a time, and no more of them than the stages of a schedule ask for."""
    fewest = recipe.stages.fewest_samples if recipe.stages else 1
    if recipe.optimizer_in_backward:  # each micro-batch would update the weights
        return recipe.but(batch_size=fewest, accumulate=1)
    return recipe.but(batch_size=1, accumulate=fewest)


def _peak_bytes(job: Job, recipe: Recipe, device: str, seq_len: int | None) -> int | None:
    try:
        return predict(job, recipe, device=device, seq_len=seq_len).peak.device_bytes
    except MemfitError:
        return None
