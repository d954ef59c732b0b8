"""Make it fit, first version: the micro-batch and the checkpointing that a budget allows.

The samples of a step stay as asked; only how many of them go through at once, and how much is
computed twice, is chosen.  Recomputing costs time and accumulating nearly none, so the least
checkpointing that fits at any micro-batch wins, with the largest micro-batch it allows.  Every
choice is predicted, never estimated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from memfit.devices.detect import available_bytes
from memfit.errors import BadInput, DoesNotFit
from memfit.job import Job
from memfit.planner.predict import NUM_STEPS, predict
from memfit.planner.steps import lengths_of
from memfit.records.plan import Plan, Rejected
from memfit.records.prediction import Prediction
from memfit.records.recipe import Recipe
from memfit.units import MiB, format_size

LADDER = ("none", "selective", "every:2", "full")
"""Checkpointing, from the fastest to the leanest."""


def fit_to_budget(
    job: Job,
    recipe: Recipe,
    *,
    target: str,
    budget_bytes: int | None,
    samples_per_step: int,
    seq_len: int | None = None,
    num_steps: int | None = None,
    keep_batch_size: bool = False,
    keep_checkpointing: bool = False,
    on_progress: Callable[[str], None] | None = None,
    on_learning: Callable[[int, int], None] | None = None,
) -> tuple[Plan, Prediction]:
    """The fastest recipe whose predicted peak is inside the budget, and its prediction.

    Args:
        job: what is trained.
        recipe: everything but what is chosen here.
        target: what the command line was given, kept in the plan.
        budget_bytes: the most that tensors may take; what the machine has free when left out.
        samples_per_step: samples behind one optimizer step.
        seq_len: tokens of a sample; the job's own length when left out.
        num_steps: optimizer steps of the run, which its prediction is of.  What is chosen holds
            for any number of them: a short trial is the beginning of the long run.
        keep_batch_size: keep the recipe's micro-batch, which must divide the samples of a step.
        keep_checkpointing: keep the recipe's checkpointing.
        on_progress: called with a line on each prediction.
        on_learning: called with (ops learnt, ops to learn) when scratch memory must be learnt.

    Raises:
        DoesNotFit: no choice fits; it carries the smallest peak that was found.
        BadInput: what a prediction refuses.
    """
    search = _Search(
        job=job,
        recipe=recipe,
        budget_bytes=available_bytes() if budget_bytes is None else budget_bytes,
        samples_per_step=samples_per_step,
        seq_len=seq_len,
        on_progress=on_progress,
        on_learning=on_learning,
    )
    rungs = (recipe.checkpointing,) if keep_checkpointing else LADDER
    sizes = _sizes(recipe, samples_per_step, keep_batch_size)
    for checkpointing in rungs:
        try:
            found = search.largest_batch(checkpointing, sizes)
        except BadInput:
            # The model has no blocks to checkpoint: only "none" can be had.
            if checkpointing == rungs[0]:
                raise
            break
        if found is not None:
            reason = _reason(_recipe(found), keep_batch_size, keep_checkpointing)
            plan = _plan(job, found, search.tried, target, reason)
            prediction = search.of_run(found, num_steps)
            return replace(plan, predicted_peak_bytes=prediction.peak.device_bytes), prediction
    if not search.tried:
        # No choice is inside the budget that the recipe itself sets to a technique.
        raise min(search.refused, key=lambda error: error.smallest_bytes)
    raise _does_not_fit(search.tried)


@dataclass(kw_only=True)
class _Search:
    """Predicts one recipe after the other, and keeps what was predicted."""

    job: Job
    recipe: Recipe
    budget_bytes: int
    samples_per_step: int
    seq_len: int | None
    on_progress: Callable[[str], None] | None
    on_learning: Callable[[int, int], None] | None
    tried: list[Prediction] = field(default_factory=list)
    refused: list[DoesNotFit] = field(default_factory=list)
    """What a budget inside the recipe (of checkpointing, of offload) left no choice for."""

    def largest_batch(self, checkpointing: str, sizes: list[int]) -> Prediction | None:
        """The prediction of the largest of ``sizes`` (ascending) that fits; None if none does.

        The peak grows with the micro-batch, so the sizes are halved.  The whole step comes first:
        it is the quickest to trace, and where there is room the answer.
        """
        best, low, high = None, 0, len(sizes) - 1
        guess = high
        while low <= high:
            prediction = self._predict(checkpointing, sizes[guess])
            if prediction is not None and prediction.fits == "yes":
                best, low = prediction, guess + 1
            else:
                high = guess - 1
            guess = (low + high) // 2
        return best

    def of_run(self, found: Prediction, num_steps: int | None) -> Prediction:
        """The prediction where the run has so many steps; the same where that is long enough."""
        recipe = _recipe(found)
        length = self.job.check_seq_len(self.seq_len)
        steps = lengths_of(recipe, length, NUM_STEPS, num_steps)
        if steps == lengths_of(recipe, length, NUM_STEPS):
            return found
        return predict(
            self.job,
            recipe,
            seq_len=self.seq_len,
            budget_bytes=self.budget_bytes,
            num_steps=num_steps,
            on_progress=self.on_learning,
        )

    def _predict(self, checkpointing: str, batch_size: int) -> Prediction | None:
        recipe = self.recipe.but(
            checkpointing=checkpointing,
            batch_size=batch_size,
            accumulate=self.samples_per_step // batch_size,
        )
        try:
            prediction = predict(
                self.job,
                recipe,
                seq_len=self.seq_len,
                budget_bytes=self.budget_bytes,
                on_progress=self.on_learning,
            )
        except DoesNotFit as error:
            self.refused.append(error)
            self._say(recipe, error.smallest_bytes, fits=False)
            return None
        self.tried.append(prediction)
        self._say(recipe, prediction.peak.device_bytes, fits=prediction.fits == "yes")
        return prediction

    def _say(self, recipe: Recipe, peak_bytes: int, *, fits: bool) -> None:
        if self.on_progress is not None:
            self.on_progress(
                f"{recipe.batch_size} × {recipe.accumulate} samples, checkpointing "
                f"{recipe.checkpointing}: {format_size(peak_bytes)}, "
                f"{'fits' if fits else 'does not fit'}"
            )


def _plan(job: Job, chosen: Prediction, tried: list[Prediction], target: str, reason: str) -> Plan:
    return Plan(
        target=target,
        recipe=_recipe(chosen),
        device=chosen.device.name,
        seq_len=chosen.seq_len,
        vocab_size=job.vocab_size,
        budget_bytes=chosen.budget_bytes,
        predicted_peak_bytes=chosen.peak.device_bytes,
        reason=reason,
        rejected=tuple(
            Rejected(
                batch_size=_recipe(prediction).batch_size,
                checkpointing=_recipe(prediction).checkpointing,
                peak_bytes=prediction.peak.device_bytes,
                reason=_why_not(prediction),
            )
            for prediction in tried
            if prediction is not chosen
        ),
    )


def _reason(chosen: Recipe, keep_batch_size: bool, keep_checkpointing: bool) -> str:
    if keep_checkpointing:
        twice = "checkpointing is as asked"
    elif chosen.checkpointing == "none":
        twice = "nothing is computed twice"
    else:
        twice = f"checkpointing {chosen.checkpointing} is the least that fits"
    if keep_batch_size:
        batch = "the micro-batch is as asked"
    elif chosen.accumulate == 1:
        batch = "the whole step goes through at once"
    else:
        batch = f"{chosen.batch_size} at a time is the largest micro-batch that fits"
    return f"{twice}, and {batch}"


def _why_not(prediction: Prediction) -> str:
    over = prediction.peak.device_bytes - prediction.budget_bytes
    return f"{format_size(over)} over the budget" if over > 0 else "fits, but is a smaller batch"


def _does_not_fit(tried: list[Prediction]) -> DoesNotFit:
    smallest = min(tried, key=lambda prediction: prediction.peak.device_bytes)
    recipe, peak_bytes = _recipe(smallest), smallest.peak.device_bytes
    samples = "one sample" if recipe.batch_size == 1 else f"{recipe.batch_size} samples"
    return DoesNotFit(
        f"{smallest.job} does not fit {format_size(smallest.budget_bytes)}: the smallest run that "
        f"was found, {samples} at a time with checkpointing {recipe.checkpointing}, needs "
        f"{format_size(peak_bytes)}; give --memory {-(-peak_bytes // MiB)}MiB or more, or make "
        "the sequence shorter with --seq-len",
        peak_bytes,
    )


def _recipe(prediction: Prediction) -> Recipe:
    """The recipe of a job's prediction; only a script's has none."""
    assert prediction.recipe is not None
    return prediction.recipe


def _sizes(recipe: Recipe, samples_per_step: int, keep_batch_size: bool) -> list[int]:
    """Micro-batches to choose from, ascending."""
    if keep_batch_size:
        return [recipe.batch_size]
    if recipe.optimizer_in_backward:  # each micro-batch would update the weights
        return [samples_per_step]
    return _divisors(samples_per_step)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
