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
    """Median over the timed steps; over documents, all tokens that count by all the time."""

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
        tokens_per_cpu_second=_speed(contender, timed),
    )


def _speed(contender: Contender, timed: Sequence[Mapping[str, Any]]) -> float:
    if contender.kind == "feed":  # steps differ in what counts, and all of it is the answer
        return float(
            sum(one["num_tokens"] for one in timed) / sum(one["cpu_seconds"] for one in timed)
        )
    return float(median(one["num_tokens"] / one["cpu_seconds"] for one in timed))


_HALVES = (
    ("trainer", "loss-chunked-selective", 0.95),
    ("trainer-tanh", "loss-chunked-selective", 0.95),
    ("trainer-checkpointed", "loss-chunked-half", 1.2),
    ("trainer-checkpointed", "loss-chunked-pieces", 1.2),
)
"""A Trainer, the row of memfit's that is held against it, and the least part of its speed."""

_MOST_TIMES = (
    ("loss-chunked", "memfit", 1.15),
    ("loss-alone-chunked", "loss-alone-full", 1.15),
    ("checkpointing-full", "memfit", 1.35),
    ("memfit", "plain-loop", 1.02),
    ("engine", "plain-loop", 1.02),
)
"""A row, the one whose time it is held against, and the most of that."""

_TENTHS = (
    ("loss-alone-chunked", "loss-alone-full"),
    ("loss-alone-chunked-capped", "loss-alone-full-capped"),
)


def aims(group: Group, results: Sequence[Result]) -> list[Aim]:
    """The aims that the rows of a group speak of; those with a row missing are left out."""
    by_key = {one.contender.key: one for one in results if not one.error}
    found = [
        _half_the_peak(by_key[ours], by_key[theirs], least)
        for theirs, ours, least in _HALVES
        if {theirs, ours} <= set(by_key)
    ]
    found += [
        _a_tenth(by_key[chunked], by_key[full])
        for chunked, full in _TENTHS
        if {chunked, full} <= set(by_key)
    ]
    found += [
        _at_most(by_key[key], by_key[base], most)
        for key, base, most in _MOST_TIMES
        if {key, base} <= set(by_key)
    ]
    if {"loss-chunked-full", "resident"} <= set(by_key):
        found.append(_half_above(by_key["resident"], by_key["loss-chunked-full"]))
    return found


def _half_the_peak(ours: Result, theirs: Result, least_speed: float) -> Aim:
    """The row is fixed beforehand: to take the best of many would flatter it."""
    assert ours.tensor_peak_bytes and theirs.tensor_peak_bytes
    part = ours.tensor_peak_bytes / theirs.tensor_peak_bytes
    speed = ours.tokens_per_cpu_second / theirs.tokens_per_cpu_second
    return Aim(
        words=f"{ours.contender.title}: half the peak of {theirs.contender.title} "
        f"at {least_speed} of its speed",
        found=f"{part:.2f} of the peak, {speed:.2f} of the speed",
        passed=part <= 0.5 and speed >= least_speed,
    )


def _a_tenth(chunked: Result, full: Result) -> Aim:
    """Of the loss alone, gradients of hidden states and head included."""
    assert chunked.tensor_peak_bytes and full.tensor_peak_bytes
    times = full.tensor_peak_bytes / chunked.tensor_peak_bytes
    return Aim(
        words=f"{chunked.contender.title}: a tenth of the memory of {full.contender.title}",
        found=f"{times:.1f} times less",
        passed=times >= 10,
    )


def _half_above(given_back: Result, kept: Result) -> Aim:
    return Aim(
        words="freed memory given back: half of what is resident above tensors and imports",
        found=f"{given_back.above_bytes / kept.above_bytes:.2f} of it",
        passed=given_back.above_bytes * 2 <= kept.above_bytes,
    )


def _at_most(one: Result, base: Result, most: float) -> Aim:
    time = base.tokens_per_cpu_second / one.tokens_per_cpu_second
    return Aim(
        words=f"{one.contender.title}: at most {most} of the time of {base.contender.title}",
        found=f"{time:.3f}",
        passed=time <= most,
    )
