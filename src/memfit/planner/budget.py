"""Make it fit, first version: the micro-batch and the checkpointing that a budget allows.

The samples of a step stay as asked; only how many of them go through at once, and how much is
computed twice, is chosen.  Recomputing costs time and accumulating nearly none, so the least
checkpointing that fits at any micro-batch wins, with the largest micro-batch it allows.  Every
choice is predicted, never estimated.
"""

from __future__ import annotations

from collections.abc import Callable

from memfit.devices.detect import machine
from memfit.errors import BadInput, DoesNotFit
from memfit.job import Job
from memfit.planner.predict import predict
from memfit.records.plan import Plan, Rejected
from memfit.records.prediction import Prediction
from memfit.records.recipe import Recipe
from memfit.units import format_size

LADDER = ("none", "every:4", "every:2", "full")
"""Checkpointing, from the fastest to the leanest."""


def fit_to_budget(
    job: Job,
    recipe: Recipe,
    *,
    target: str,
    budget_bytes: int | None,
    samples_per_step: int,
    seq_len: int | None = None,
    keep_batch_size: bool = False,
    keep_checkpointing: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> tuple[Plan, Prediction]:
    """The fastest recipe whose predicted peak is inside the budget, and its prediction.

    Args:
        job: what is trained.
        recipe: everything but what is chosen here.
        target: what the command line was given, kept in the plan.
        budget_bytes: the most that tensors may take; all of the machine's when left out.
        samples_per_step: samples behind one optimizer step.
        seq_len: tokens of a sample; the job's own length when left out.
        keep_batch_size: keep the recipe's micro-batch.
        keep_checkpointing: keep the recipe's checkpointing.
        on_progress: called with a line on each prediction.

    Raises:
        DoesNotFit: no choice fits; it carries the smallest peak that was found.
    """
    budget_bytes = budget_bytes or machine().total_bytes
    search = _Search(job, recipe, budget_bytes, samples_per_step, seq_len, on_progress)
    rungs = (recipe.checkpointing,) if keep_checkpointing else LADDER
    sizes = [recipe.batch_size] if keep_batch_size else _divisors(samples_per_step)
    for checkpointing in rungs:
        try:
            found = search.largest_batch(checkpointing, sizes)
        except BadInput:
            # The model has no blocks to checkpoint: only "none" can be had.
            if checkpointing == rungs[0]:
                raise
            break
        if found is not None:
            return search.plan(found, target), found
    raise search.does_not_fit()


class _Search:
    """Predictions made so far."""

    def __init__(
        self,
        job: Job,
        recipe: Recipe,
        budget_bytes: int,
        samples_per_step: int,
        seq_len: int | None,
        on_progress: Callable[[str], None] | None,
    ) -> None:
        self._job = job
        self._recipe = recipe
        self._budget_bytes = budget_bytes
        self._samples = samples_per_step
        self._seq_len = seq_len
        self._say = on_progress or (lambda line: None)
        self._found: dict[tuple[str, int], Prediction] = {}

    def largest_batch(self, checkpointing: str, sizes: list[int]) -> Prediction | None:
        """The prediction of the largest of ``sizes`` (ascending) that fits; None if none does.

        Activations grow in proportion to the micro-batch, so a straight line through two
        predictions says where to look; what is returned has been predicted itself.
        """
        smallest = self._predict(checkpointing, sizes[0])
        if not smallest.fits:
            return None
        low, high = 0, len(sizes) - 1
        best, guess = smallest, min(1, high)
        while low < high:
            prediction = self._predict(checkpointing, sizes[guess])
            if prediction.fits:
                best, low = prediction, guess
            else:
                high = guess - 1
            per_sample = self._bytes_per_sample(smallest, prediction)
            spare = self._budget_bytes - smallest.peak.device_bytes
            affordable = smallest.recipe.batch_size + spare / max(per_sample, 1)
            fitting = [index for index in range(low + 1, high + 1) if sizes[index] <= affordable]
            guess = fitting[-1] if fitting else low + 1
        return best

    def plan(self, chosen: Prediction, target: str) -> Plan:
        recipe = chosen.recipe
        rejected = tuple(
            Rejected(
                batch_size=prediction.recipe.batch_size,
                checkpointing=prediction.recipe.checkpointing,
                peak_bytes=prediction.peak.device_bytes,
                reason=self._why_not(prediction),
            )
            for prediction in self._found.values()
            if prediction is not chosen
        )
        return Plan(
            target=target,
            recipe=recipe,
            device=chosen.device.name,
            seq_len=chosen.seq_len,
            budget_bytes=self._budget_bytes,
            predicted_peak_bytes=chosen.peak.device_bytes,
            reason=self._why(chosen),
            rejected=rejected,
        )

    def does_not_fit(self) -> DoesNotFit:
        smallest = min(self._found.values(), key=lambda p: p.peak.device_bytes)
        recipe, peak = smallest.recipe, smallest.peak.device_bytes
        samples = "one sample" if recipe.batch_size == 1 else f"{recipe.batch_size} samples"
        return DoesNotFit(
            f"{self._job.name} does not fit {format_size(self._budget_bytes)}: the smallest run "
            f"that was found, {samples} at a time with checkpointing {recipe.checkpointing}, "
            f"needs {format_size(peak)}; give --memory {-(-peak // (1 << 20))}MiB or more, or a "
            "shorter --seq-len",
            peak,
        )

    def _predict(self, checkpointing: str, batch_size: int) -> Prediction:
        key = (checkpointing, batch_size)
        if key not in self._found:
            recipe = self._recipe.but(
                checkpointing=checkpointing,
                batch_size=batch_size,
                accumulate=-(-self._samples // batch_size),
            )
            prediction = predict(
                self._job, recipe, seq_len=self._seq_len, budget_bytes=self._budget_bytes
            )
            self._found[key] = prediction
            verdict = "fits" if prediction.fits else "does not fit"
            self._say(
                f"{batch_size} x {recipe.accumulate} samples, checkpointing {checkpointing}: "
                f"{format_size(prediction.peak.device_bytes)}, {verdict}"
            )
        return self._found[key]

    @staticmethod
    def _bytes_per_sample(one: Prediction, other: Prediction) -> float:
        samples = other.recipe.batch_size - one.recipe.batch_size
        return (other.peak.device_bytes - one.peak.device_bytes) / max(samples, 1)

    def _why(self, chosen: Prediction) -> str:
        recipe = chosen.recipe
        again = {"none": "nothing is computed twice", "full": "every block is computed twice"}.get(
            recipe.checkpointing, f"one block in {recipe.checkpoint_every} is computed twice"
        )
        batch = f"{recipe.batch_size} at a time is the largest micro-batch that fits"
        if recipe.batch_size == self._samples:
            batch = "the whole step goes through at once"
        return f"{again}, and {batch}"

    def _why_not(self, prediction: Prediction) -> str:
        if not prediction.fits:
            over = prediction.peak.device_bytes - self._budget_bytes
            return f"{format_size(over)} over the budget"
        return "fits, with a smaller micro-batch"


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
