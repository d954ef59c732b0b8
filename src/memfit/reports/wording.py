"""The sentences and labels that terminal and page share, so that both say the same numbers.

Every function takes records and returns plain text; who prints it escapes it.
"""

from __future__ import annotations

from memfit.records.prediction import Moment, Prediction
from memfit.records.recipe import Recipe
from memfit.records.runlog import RunLog
from memfit.units import format_duration, format_size

STACK = (
    "parameters",
    "optimizer_state",
    "gradients",
    "inputs",
    "other",
    "activations",
    "loss",
    "temporaries",
    "workspace",
)
"""Categories from the bottom of a chart: what stays first, what comes and goes on top."""

LABELS = {name: name.replace("_", " ").capitalize() for name in STACK}
"""Category -> what people read."""


def verdict(prediction: Prediction) -> str:
    """``fits: 10.21 GiB of 16.00 GiB, 5.79 GiB to spare``."""
    need, budget = prediction.peak.device_bytes, prediction.budget_bytes
    sizes = f"{format_size(need)} of {format_size(budget)}"
    if prediction.fits:
        return f"fits: {sizes}, {format_size(budget - need)} to spare"
    return f"does not fit: {sizes}, {format_size(need - budget)} too much"


def setting(prediction: Prediction) -> str:
    """``1,024 tokens · batch 8 · fp32 · adamw · on cpu``."""
    tokens = [] if prediction.seq_len is None else [f"{prediction.seq_len:,} tokens"]
    return " · ".join([*tokens, techniques(prediction.recipe), f"on {prediction.device.name}"])


def techniques(recipe: Recipe) -> str:
    """``batch 8 × 4 · bf16 · adamw · checkpointing every:2``, without what is not used."""
    times = f" × {recipe.accumulate}" if recipe.accumulate > 1 else ""
    words = [f"batch {recipe.batch_size}{times}", recipe.precision, recipe.optimizer]
    if recipe.checkpoint_every is not None:
        words.append(f"checkpointing {recipe.checkpointing}")
    return " · ".join(words)


def where(moment: Moment) -> str:
    """``step 2, backward, in h.11.mlp, at aten::gelu_backward``, without what is unknown."""
    words = [f"step {moment.step}" if moment.step else "before the first step", moment.phase]
    if moment.module:
        words.append(f"in {moment.module}")
    if moment.op:
        words.append(f"at {moment.op}")
    return ", ".join(words)


def share(part: int, whole: int) -> str:
    """``36 %``; ``<1 %`` for a little, ``0 %`` for nothing."""
    percent = 100 * part / whole if whole else 0.0
    return "<1 %" if 0 < percent < 1 else f"{percent:.0f} %"


def difference(predicted: int, measured: int) -> str:
    """``equal to the byte``, or ``predicted 1.0 KiB (1,024 bytes) above measured``."""
    if predicted == measured:
        return "equal to the byte"
    gap = abs(predicted - measured)
    side = "above" if predicted > measured else "below"
    return f"predicted {format_size(gap)} ({gap:,} bytes) {side} measured"


def run_summary(runlog: RunLog) -> dict[str, str]:
    """What a run came to, in a handful of labelled values; without what was not measured."""
    steps = runlog.steps
    if not steps:
        return {"Steps": "none yet"}
    seconds = sum(row.seconds for row in steps)
    targets = sum(row.num_targets for row in steps)
    evaluations = [row.eval_loss for row in steps if row.eval_loss is not None]
    resident = [row.resident_bytes for row in steps if row.resident_bytes is not None]
    sizes = {
        "Tensor peak, measured": runlog.peak_bytes,
        "Tensor peak, predicted": runlog.predicted_peak_bytes,
        "Budget": runlog.budget_bytes,
        "Whole process": max(resident, default=None),
    }
    values = {
        "Steps": f"{len(steps):,}",
        "Time": format_duration(seconds),
        "Training loss": f"{steps[0].loss:.3f} → {steps[-1].loss:.3f}",
        "Evaluation loss": f"{evaluations[-1]:.3f}" if evaluations else "",
        "Targets per second": f"{targets / seconds:,.0f}" if seconds else "",
        **{label: format_size(size) for label, size in sizes.items() if size is not None},
    }
    if runlog.peak_bytes is not None and runlog.predicted_peak_bytes is not None:
        values["Difference"] = difference(runlog.predicted_peak_bytes, runlog.peak_bytes)
    return {label: value for label, value in values.items() if value}
