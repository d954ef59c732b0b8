"""What was measured of a contender, and the aims that were set.  No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.techniques.contenders import Contender, Group


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One contender's figures.  Bytes are None where a contender failed."""

    contender: Contender
    error: str = ""
    tensor_peak_bytes: int | None = None
    """Of the second step, as the CPU allocator counts."""

    predicted_peak_bytes: int | None = None
    live_bytes: int | None = None
    """Of tensors between two steps."""

    resident_peak_bytes: int = 0
    """The highest of the timed steps."""

    floor_bytes: int = 0
    """Resident when all is imported, before the model is built."""

    state_bytes: int | None = None
    """Of the optimizer."""

    tokens_per_cpu_second: float = 0.0
    """Median over the timed steps; tokens that count, where not all do."""

    @property
    def above_bytes(self) -> int:
        """Resident above imports and tensors."""
        return self.resident_peak_bytes - self.floor_bytes - (self.tensor_peak_bytes or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """An aim, and whether it was reached."""

    words: str
    found: str
    passed: bool


def summarise(
    contender: Contender,
    hello: Mapping[str, Any],
    answers: Sequence[Mapping[str, Any]],
    predicted_peak_bytes: int | None,
) -> Result:
    """Takes the answers of all rounds together; the first is warm-up."""
    timed = [one for one in answers[1:] if one.get("is_timed", True)]
    memory = next(one for one in answers[1:] if one.get("tensor_peak_bytes"))
    return Result(
        contender=contender,
        tensor_peak_bytes=memory["tensor_peak_bytes"],
        predicted_peak_bytes=predicted_peak_bytes,
        live_bytes=memory["live_bytes"],
        resident_peak_bytes=max(one["resident_peak_bytes"] for one in timed),
        floor_bytes=hello["floor_bytes"],
        state_bytes=answers[-1].get("state_bytes"),
        tokens_per_cpu_second=median(one["num_tokens"] / one["cpu_seconds"] for one in timed),
    )


def aims(group: Group, results: Sequence[Result]) -> list[Aim]:
    """The aims that the rows of a group speak of; those with a row missing are left out."""
    by_key = {one.contender.key: one for one in results if not one.error}
    found = []
    if "trainer" in by_key:
        for key, speed in (
            ("trainer", 0.95),
            ("trainer-tanh", 0.95),
            ("trainer-checkpointed", 1.2),
        ):
            found += _half_the_peak(by_key, key, speed)
    if {"memfit", "loss-chunked"} <= set(by_key):
        found += _loss_memory(group, by_key)
    if {"memfit", "checkpointing-full"} <= set(by_key):
        found.append(
            _at_most(by_key, "checkpointing-full", "memfit", 1.35, "checkpointing every block")
        )
    if {"memfit", "plain-loop"} <= set(by_key):
        for key in ("memfit", "engine"):
            if key in by_key:
                title = by_key[key].contender.title
                found.append(_at_most(by_key, key, "plain-loop", 1.02, title))
    return found


def _half_the_peak(by_key: Mapping[str, Result], key: str, least_speed: float) -> list[Aim]:
    """The best of memfit's rows: of those with at most half the peak, the fastest."""
    if key not in by_key:
        return []
    other = by_key[key]
    assert other.tensor_peak_bytes is not None
    candidates = [
        one
        for one in by_key.values()
        if one.contender.kind == "memfit"
        and one.tensor_peak_bytes is not None
        and one.tensor_peak_bytes * 2 <= other.tensor_peak_bytes
    ]
    words = f"half the peak of {other.contender.title} at {least_speed} of its speed"
    if not candidates:
        return [Aim(words=words, found="no row has half the peak", passed=False)]
    best = max(candidates, key=lambda one: one.tokens_per_cpu_second)
    assert best.tensor_peak_bytes is not None
    speed = best.tokens_per_cpu_second / other.tokens_per_cpu_second
    part = best.tensor_peak_bytes / other.tensor_peak_bytes
    return [
        Aim(
            words=words,
            found=f"{best.contender.title}: {part:.2f} of the peak, {speed:.2f} of the speed",
            passed=speed >= least_speed,
        )
    ]


def _loss_memory(group: Group, by_key: Mapping[str, Result]) -> list[Aim]:
    """Loss memory: what the peak is above that of a loss without any.

    The full loss holds the logits, their log-softmax and gradients of both at worst; the chunked
    one's own is what it has above the rest at its peak, bounded by what its chunks take.
    """
    full, chunked = by_key["memfit"], by_key["loss-chunked"]
    assert full.tensor_peak_bytes and chunked.tensor_peak_bytes
    logits = group.size.tokens * group.size.vocab_size * 4
    saved = full.tensor_peak_bytes - chunked.tensor_peak_bytes
    time = full.tokens_per_cpu_second / chunked.tokens_per_cpu_second
    return [
        Aim(
            words="chunked loss: the peak falls by nine tenths of the logits and their gradient",
            found=f"it falls by {saved / logits:.2f} times the logits",
            passed=saved >= 0.9 * 2 * logits,
        ),
        Aim(
            words="chunked loss at most 1.15 of the step's time",
            found=f"{time:.2f}",
            passed=time <= 1.15,
        ),
    ]


def _at_most(by_key: Mapping[str, Result], key: str, base: str, most: float, what: str) -> Aim:
    time = by_key[base].tokens_per_cpu_second / by_key[key].tokens_per_cpu_second
    return Aim(
        words=f"{what} at most {most} of the time of {by_key[base].contender.title}",
        found=f"{time:.3f}",
        passed=time <= most,
    )
