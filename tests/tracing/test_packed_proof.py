"""Training on packed rows and padded documents is predicted as it is measured, on real text."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from small_jobs import JOBS, OTHER_JOBS, SEQ_LEN

from memfit.data.feed import Feed, open_feed
from memfit.data.text import TextData
from memfit.job import Job
from memfit.models.huggingface import job_from_config
from memfit.models.sequences import with_sequences
from memfit.profiler.capture import Capture
from memfit.records.recipe import Recipe
from memfit.records.timeline import Timeline
from memfit.techniques import run
from memfit.tracing.step import trace

WINDOWS = {
    "model_type": "mistral",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 8,
}
NAMES = {**{name: JOBS[name] for name in ("gpt", "gpt2", "llama")}, "qwen3": OTHER_JOBS["qwen3"]}
NAMES["windows"] = partial(job_from_config, WINDOWS)


def text() -> TextData:
    """Documents of 2 to 60 tokens."""
    generator = np.random.default_rng(0)
    documents = [[*generator.integers(1, 96, generator.integers(1, 60)), 0] for _ in range(200)]
    tokens = np.array(list(itertools.chain(*documents)), dtype=np.uint16)
    return TextData(
        train_tokens=tokens[:-500],
        eval_tokens=tokens[-500:],
        tokenizer_path=Path(),
        vocab_size=96,
        end_of_text_id=0,
        num_documents=200,
        num_bytes=len(tokens),
        content_hash="",
    )


def measured_run(job: Job, recipe: Recipe, feed: Feed):
    def steps(observer) -> None:
        applied = run.build(job, recipe, observer)
        for number in (1, 2):
            run.take_step(applied, number, partial(feed.batch, number - 1), observer)
        run.evaluate(applied, feed.held_out[:1], observer)

    return steps


def predicted_run(job: Job, recipe: Recipe):
    def steps(observer) -> None:
        applied = run.build(job, recipe, observer)
        for number in (1, 2):
            make_batch = partial(job.batch, recipe.samples_per_step, SEQ_LEN)
            run.take_step(applied, number, make_batch, observer)
        run.evaluate(applied, [partial(job.batch, recipe.batch_size, SEQ_LEN)], observer)

    return steps


def measured(steps) -> Timeline:
    steps(Capture())  # PyTorch's own one-time buffers are not the run's
    capture = Capture()
    with capture:
        steps(capture)
    return capture.timeline


def events(timeline: Timeline) -> list[list[tuple[int, int, int]]]:
    rows = zip(
        timeline.deltas().tolist(),
        timeline.phases.tolist(),
        timeline.steps.tolist(),
        strict=True,
    )
    runs = itertools.groupby(rows, key=lambda event: event[0] > 0)
    return [list(run) if allocates else sorted(run) for allocates, run in runs]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("name", NAMES)
def test_rows_of_whole_documents_take_what_is_predicted(name, checkpointing, precision) -> None:
    recipe = Recipe(batch_size=2, accumulate=2, checkpointing=checkpointing, precision=precision)
    job = NAMES[name]()
    feed = open_feed(text(), recipe=recipe, seq_len=SEQ_LEN, seed=0, sequences="packed")

    predicted = trace(predicted_run(with_sequences(job, "packed"), recipe))
    real = measured(measured_run(job, recipe, feed))

    assert int(predicted.curve().max()) == int(real.curve().max())
    assert events(predicted) == events(real)


def test_a_batch_of_the_longest_documents_takes_what_is_predicted() -> None:
    recipe = Recipe(batch_size=2)
    job = JOBS["gpt"]()
    feed = open_feed(text(), recipe=recipe, seq_len=SEQ_LEN, seed=0, sequences="documents")

    def longest(observer) -> None:
        applied = run.build(job, recipe, observer)
        for number in (1, 2):
            run.take_step(applied, number, feed.longest, observer)
        run.evaluate(applied, [feed.longest], observer)

    predicted = trace(predicted_run(with_sequences(job, "documents"), recipe))

    assert events(predicted) == events(measured(longest))
