"""The sentences and labels that terminal and page share, so that both say the same numbers.

Every function takes records and returns plain text; who prints it escapes it.
"""

from __future__ import annotations

from memfit.records.prediction import Attempt, Lengths, Moment, Prediction, Uncertainty
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


ANSWERS = {"yes": "fits", "tight": "tight", "no": "does not fit"}
"""``Prediction.fits`` -> what people read."""


def verdict(prediction: Prediction) -> str:
    """``fits: 10.21 GiB of 16.00 GiB, 5.79 GiB to spare``; with the most it may be on a GPU."""
    need, most, budget = (
        prediction.peak.device_bytes,
        prediction.at_most_bytes,
        prediction.budget_bytes,
    )
    answer = prediction.fits
    sizes = format_size(need)
    if most > need and answer != "no":
        sizes += f", at most {format_size(most)},"
    sizes += f" of {format_size(budget)}"
    if answer == "yes":
        sizes += f", {format_size(budget - most)} to spare"
    elif answer == "no" and need > budget:  # else it is a memory fraction that forbids it
        sizes += f", {format_size(need - budget)} too much"
    return f"{ANSWERS[answer]}: {sizes}"


def why(prediction: Prediction) -> str:
    """Why it is tight, or where the memory runs out; empty when there is nothing to add."""
    answer, end = prediction.fits, prediction.out_of_memory
    if answer == "no":
        return "" if end is None else f"It runs out of memory {_end(prediction.attempts[0])}."
    if answer == "yes":
        return ""
    expected = prediction.attempts[0]
    if expected.out_of_memory is not None:
        return (
            f"As expected it runs out of memory {_end(expected)}; with the least that may lie "
            "outside the allocator it goes through."
        )
    if expected.num_alloc_retries:
        return (
            "It goes through only because the allocator gives cached memory back and asks again, "
            f"{times(expected.num_alloc_retries)} in {_steps(prediction)}: each time the GPU waits."
        )
    past = prediction.at_most_bytes - prediction.budget_bytes
    return (
        f"It goes through as expected, but what is not certain reaches {format_size(past)} past "
        "the budget."
    )


def _end(attempt: Attempt) -> str:
    end = attempt.out_of_memory
    assert end is not None
    left = max(0, attempt.room_bytes - end.reserved_bytes)
    return (
        f"{where(end.moment)}: it asks for {format_size(end.asked_bytes)}, and the device has "
        f"{format_size(left)} left"
    )


def _steps(prediction: Prediction) -> str:
    number = prediction.simulation.num_steps if prediction.simulation else 0
    return "one step" if number == 1 else f"{number} steps"


def times(number: int) -> str:
    """``once``, ``3 times``."""
    return "once" if number == 1 else f"{number:,} times"


def lengths(found: Lengths) -> str:
    """What batches of varying length come to, beside the longest length alone."""
    sizes = f"{format_size(found.varying_reserved_bytes)} reserved after {found.num_steps} steps"
    growth = found.growth_bytes
    beside = (
        f"{format_size(abs(growth))} {'more' if growth > 0 else 'less'} than"
        if growth
        else "the same as"
    )
    end = "" if found.has_settled else "; it had not stopped growing"
    return (
        f"Lengths from {found.shortest:,} to {found.longest:,}: {sizes}, {beside} with "
        f"{found.longest:,} alone ({format_size(found.constant_reserved_bytes)}){end}."
    )


def rules(prediction: Prediction) -> str:
    """Whose allocator was simulated, and what ran the step; empty on the CPU."""
    simulation = prediction.simulation
    if simulation is None:
        return ""
    conf = f" with {simulation.alloc_conf}" if simulation.alloc_conf else ""
    steps = f"; {_steps(prediction)} simulated" if simulation.num_steps else ""
    facts = prediction.timeline.facts
    ran = [f"{name} {facts[name]}" for name in ("torch", "transformers") if name in facts]
    by = f"; the step was run by {' and '.join(ran)}" if ran else ""
    if prediction.lengths is not None or simulation.num_steps < 2:
        end = ""
    elif simulation.is_steady:
        end = ", which repeat"
    else:
        end = ", which do not repeat"
    return f"The allocator is that of torch {simulation.torch}{conf}{steps}{end}{by}."


def bounds(least: int, most: int) -> str:
    """``9.50 GiB to 9.81 GiB``, ``within 1.2 MiB``; empty when there is nothing between them."""
    if least == most:
        return ""
    low, high = format_size(least), format_size(most)
    return f"within {format_size(most - least)}" if low == high else f"{low} to {high}"


def change(part: Uncertainty) -> str:
    """``-12.0 MiB, +150.0 MiB``: what a part may do to the device's peak."""
    if part.above_bytes is None:
        return "not counted"
    words = []
    if part.below_bytes:
        words.append(f"−{format_size(part.below_bytes)}")
    if part.above_bytes:
        words.append(f"+{format_size(part.above_bytes)}")
    return ", ".join(words) or "inside what is reserved"


def setting(prediction: Prediction) -> str:
    """``1,024 tokens · batch 8 · fp32 · adamw · on cpu``."""
    words = [] if prediction.seq_len is None else [f"{prediction.seq_len:,} tokens"]
    if prediction.lengths is not None:
        words = [f"{prediction.lengths.shortest:,} to {prediction.lengths.longest:,} tokens"]
    recipe = "a script, as it is" if prediction.recipe is None else techniques(prediction.recipe)
    return " · ".join([*words, recipe, f"on {prediction.device.name}"])


def techniques(recipe: Recipe) -> str:
    """``batch 8 × 4 · bf16 · adamw · checkpointing every:2``, without what is not used."""
    times = f" × {recipe.accumulate}" if recipe.accumulate > 1 else ""
    words = [f"batch {recipe.batch_size}{times}", recipe.precision, recipe.optimizer]
    if recipe.optimizer_in_backward:
        words.append("optimizer in backward")
    if recipe.checkpointing != "none":
        words.append(f"checkpointing {recipe.checkpointing}")
    if recipe.loss != "full":
        words.append(f"loss {recipe.loss}")
    if recipe.offload != "none":
        words.append(f"offload {recipe.offload}")
    if recipe.sequences != "rows":
        words.append(recipe.sequences)
    if recipe.stages is not None:
        words.append(f"lengths {recipe.stages}")
    return " · ".join(words)


def where(moment: Moment) -> str:
    """``in step 2, backward, in h.11.mlp, at aten::gelu_backward``, without what is unknown."""
    words = [f"in step {moment.step}" if moment.step else "before the first step", moment.phase]
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
