"""The batches of a run: every target once an epoch, whatever the stages; a function of the step."""

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from memfit.data.batches import Batches, EvalBatches
from memfit.data.documents import Documents
from memfit.data.feed import open_feed
from memfit.data.text import TextData
from memfit.errors import BadInput
from memfit.job import IGNORED
from memfit.records.recipe import Recipe

END = 0


def text_of(lengths: list[int]) -> TextData:
    """Documents of these many tokens, in which each token is a number of its own but the ends."""
    numbers = itertools.count(1)
    tokens = [t for n in lengths for t in [*itertools.islice(numbers, n - 1), END]]
    aside = [t for n in [7, 30, 3] for t in [*itertools.islice(numbers, n - 1), END]]
    return TextData(
        train_tokens=np.array(tokens, dtype=np.uint32),
        eval_tokens=np.array(aside, dtype=np.uint32),
        tokenizer_path=Path(),
        vocab_size=1 << 20,
        end_of_text_id=END,
        num_documents=len(lengths),
        num_bytes=0,
        content_hash="",
    )


def chat_of(lengths: list[int]) -> TextData:
    """Conversations in which the last two tokens are targets."""
    text = text_of(lengths)
    targets = np.zeros(sum(lengths), dtype=np.bool_)
    ends = np.cumsum(lengths)
    targets[ends - 1] = targets[ends - 2] = True
    chat = Documents(tokens=text.train_tokens, starts=np.array([0, *ends]), targets=targets)
    return TextData(
        **{
            name: getattr(text, name)
            for name in (
                *("train_tokens", "eval_tokens", "tokenizer_path", "vocab_size"),
                *("end_of_text_id", "num_documents", "num_bytes", "content_hash"),
            )
        },
        chat=(chat, chat),
    )


def feed(data: TextData, *, seed: int = 0, seq_len: int = 16, **fields):
    sequences = fields.pop("sequences", "packed")
    truncate = fields.pop("truncate", "head")
    recipe = Recipe(**{"batch_size": 2, **fields})
    return open_feed(
        data, recipe=recipe, seq_len=seq_len, seed=seed, sequences=sequences, truncate=truncate
    )


def asked(batches: list) -> Counter:
    """How often each (input, label) that counts is there; numbers tell positions apart."""
    pairs: Counter = Counter()
    for batch in batches:
        counts = batch["labels"] != IGNORED
        assert torch.equal(counts.sum(dim=1), batch["num_targets"])
        inputs, labels = batch["input_ids"][counts].tolist(), batch["labels"][counts].tolist()
        pairs.update(zip(inputs, labels, strict=True))
    return pairs


def pairs_of(data: TextData) -> Counter:
    tokens = data.train_tokens.tolist()
    return Counter((a, b) for a, b in itertools.pairwise(tokens) if a != END)


LENGTHS = st.lists(st.integers(2, 50), min_size=3, max_size=30)


@given(lengths=LENGTHS, seed=st.integers(-3, 3))
def test_packed_rows_have_every_target_once_an_epoch(lengths, seed) -> None:
    data = text_of(lengths)
    packed = feed(data, seed=seed, batch_size=1)
    num_rows = len(packed._stretches[0].whole)

    epochs = [
        asked([packed.batch(step) for step in range(epoch * num_rows, (epoch + 1) * num_rows)])
        for epoch in range(2)
    ]

    assert epochs[0] == epochs[1] == pairs_of(data)


@given(
    lengths=st.lists(st.integers(2, 40), min_size=20, max_size=40),
    ends=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    seed=st.integers(0, 3),
)
def test_stages_of_packed_rows_go_on_in_the_epoch_where_the_one_before_ended(
    lengths, ends, seed
) -> None:
    data = text_of(lengths)
    schedule = f"4:{ends[0]},8:{ends[0] + ends[1]},16"
    staged = feed(data, seed=seed, batch_size=1, seq_schedule=schedule)
    last = staged._stretches[-1]
    num_steps = last.first_step + (len(last.rest) if last.rest is not None else 0)

    seen = asked([staged.batch(step) for step in range(num_steps)])

    whole_epochs = set(seen.values())
    assert seen == Counter({pair: min(whole_epochs) for pair in pairs_of(data)})
    assert len(whole_epochs) == 1


@given(lengths=LENGTHS, step=st.integers(0, 30), kind=st.sampled_from(["packed", "documents"]))
def test_a_batch_of_documents_depends_on_its_step_and_seed_alone(lengths, step, kind) -> None:
    data = text_of(lengths)
    schedule = "8:5,16" if kind == "packed" else None
    walked = feed(data, sequences=kind, seq_schedule=schedule)
    for earlier in range(step):
        walked.batch(earlier)

    jumped = feed(data, sequences=kind, seq_schedule=schedule).batch(step)

    for name, tensor in walked.batch(step).items():
        assert torch.equal(tensor, jumped[name])


def test_epochs_and_seeds_have_their_own_orders() -> None:
    data = text_of([5] * 40)

    for kind in ("packed", "documents"):
        one, other = feed(data, sequences=kind), feed(data, seed=1, sequences=kind)
        rows = len(one._stretches[0].whole) // 2 if kind == "packed" else one.num_batches
        assert not torch.equal(one.batch(0)["input_ids"], one.batch(rows)["input_ids"])
        assert not torch.equal(one.batch(0)["input_ids"], other.batch(0)["input_ids"])


def test_positions_begin_again_at_each_document_and_padding_is_no_target() -> None:
    packed = feed(text_of([7, 6, 12, 5]), batch_size=3, seq_len=16)

    batch = packed.batch(0)
    inputs, labels = batch["input_ids"], batch["labels"]

    assert (batch["position_ids"] == 0).sum() > 3
    for row, positions in enumerate(batch["position_ids"].tolist()):
        starts = [place for place, position in enumerate(positions) if position == 0]
        for start, stop in itertools.pairwise([*starts, 16]):
            piece = inputs[row, start:stop]
            if (piece == END).all():
                assert (labels[row, start:stop] == IGNORED).all()
            else:
                assert torch.equal(piece[1:], labels[row, start : stop - 1])
                assert labels[row, stop - 1] == END


@given(
    num_tokens=st.integers(120, 400),
    ends=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    seed=st.integers(0, 3),
)
def test_staged_rows_have_the_targets_that_rows_of_the_longest_have(num_tokens, ends, seed) -> None:
    data = text_of([num_tokens, 2])
    plain = feed(data, seed=seed, sequences="rows")
    staged = feed(data, seed=seed, sequences="rows", seq_schedule=f"4:{ends[0]},8:{sum(ends)},16")

    for step in range(sum(ends) + 2):
        length = 4 if step < ends[0] else 8 if step < sum(ends) else 16
        batch = staged.batch(step)
        assert batch.shape == (2 * 16 // length, length + 1)
        assert torch.equal(batch[:, 1:].flatten(), plain.batch(step)[:, 1:].flatten())
        assert staged.batch_size(step, 2) == len(batch)


@given(num_tokens=st.integers(26, 200), step=st.integers(0, 9))
def test_lengths_that_do_not_divide_the_longest_have_every_target_once_an_epoch_too(
    num_tokens, step
) -> None:
    data = text_of([num_tokens, 2])
    staged = feed(data, sequences="rows", seq_len=12, batch_size=2, seq_schedule=f"8:{step + 1},12")
    num_units = (num_tokens + 2 - 1) // 24

    targets = torch.cat([staged.batch(number)[:, 1:].flatten() for number in range(num_units)])

    assert sorted(targets.tolist()) == sorted(data.train_tokens[1 : num_units * 24 + 1].tolist())


def test_rows_are_bit_for_bit_those_of_runs_from_before() -> None:
    data = text_of([500])
    rows = feed(data, sequences="rows", seed=7, batch_size=3, accumulate=2)
    former = Batches(data.train_tokens, samples_per_step=6, seq_len=16, seed=7)
    held_out = EvalBatches(data.eval_tokens, batch_size=3, seq_len=16)

    assert all(torch.equal(rows.batch(step), former.batch(step)) for step in range(12))
    assert torch.equal(rows.longest(), former.batch(0))
    assert [batch().tolist() for batch in rows.held_out] == [held_out.batch(0).tolist()]


@settings(max_examples=40)
@given(lengths=LENGTHS, truncate=st.sampled_from(["head", "tail"]))
def test_batches_of_documents_stay_within_the_tokens_of_a_step(lengths, truncate) -> None:
    data = text_of(lengths)
    documents = feed(data, sequences="documents", truncate=truncate, batch_size=3)

    batches = [documents.batch(step) for step in range(documents.num_batches)]

    assert sum(len(batch["input_ids"]) for batch in batches) == len(lengths)
    for step, batch in enumerate(batches):
        samples, longest = batch["input_ids"].shape
        assert samples * longest <= 3 * 16 and longest == batch["num_targets"].max()
        assert documents.batch_size(step, 3) * longest <= 3 * 16
    kept = Counter(
        batch["num_targets"][i].item()
        for batch in batches
        for i in range(len(batch["num_targets"]))
    )
    assert kept == Counter(min(16, length - 1) for length in lengths)


def test_documents_of_a_batch_are_of_similar_length() -> None:
    generator = np.random.default_rng(0)
    data = text_of(generator.integers(2, 60, 400).tolist())
    documents = feed(data, sequences="documents", seq_len=64, batch_size=16)

    batches = [documents.batch(step) for step in range(documents.num_batches)]

    padding = sum((batch["labels"] == IGNORED).sum().item() for batch in batches)
    assert padding < 0.1 * sum(batch["labels"].numel() for batch in batches)


@pytest.mark.parametrize("kind", ["packed", "documents"])
def test_no_batch_is_larger_than_the_longest(kind) -> None:
    data = text_of([40, 3, 9, 22, 5, 17, 30] * 5)
    found = feed(data, sequences=kind, accumulate=2)

    longest = found.longest()

    assert longest["input_ids"].shape == (4, 16)
    for step in range(20):
        samples, length = found.batch(step)["input_ids"].shape
        assert samples * length <= 4 * 16 and length <= 16
    assert all(len(batch()["input_ids"]) <= 2 for batch in found.held_out)


@pytest.mark.parametrize("kind", ["packed", "documents"])
def test_only_what_the_assistant_says_is_a_target_of_chat(kind) -> None:
    data = chat_of([9, 12, 5, 14, 8])
    found = feed(data, sequences=kind, batch_size=1)

    num = len(found._stretches[0].whole) if kind == "packed" else found.num_batches
    targets = asked([found.batch(step) for step in range(num)])

    assert sum(targets.values()) == 10 and len(targets) == 10


@given(st.lists(st.integers(3, 40), min_size=3, max_size=20), st.sampled_from(["head", "tail"]))
def test_a_stage_shorter_than_a_conversation_truncates_it_and_every_row_has_a_target(
    lengths, truncate
) -> None:
    data = chat_of([*lengths, 4])
    found = feed(data, truncate=truncate, seq_len=32, batch_size=1, seq_schedule="8:5,32")
    begins = {int(data.train_tokens[start]) for start in data.train_documents.starts[:-1]}

    for step in range(12):
        batch = found.batch(step)
        assert (batch["num_targets"] > 0).all()
        if truncate == "head":  # an answer comes with all that was said before
            firsts = batch["input_ids"][(batch["position_ids"] == 0) & (batch["input_ids"] != END)]
            assert set(firsts.tolist()) <= begins


def test_a_stage_in_which_no_conversation_has_a_target_is_refused() -> None:
    with pytest.raises(BadInput, match="within 8 tokens"):
        feed(chat_of([20, 20]), seq_len=32, batch_size=1, seq_schedule="8:5,32")


def with_held_out(data: TextData, lengths: list[int]) -> TextData:
    assert data.chat is not None
    return replace(data, chat=(data.chat[0], chat_of(lengths).chat[1]))


@pytest.mark.parametrize("kind", ["packed", "documents"])
@pytest.mark.parametrize("num", [2, 9, 250])
def test_conversations_that_fit_are_held_out_where_the_chosen_ones_are_too_long(kind, num) -> None:
    lengths = [5] * num
    data = with_held_out(chat_of([*lengths, 40]), [40, 40])
    found = feed(data, sequences=kind, batch_size=1)

    num_steps = len(found._stretches[0].whole) if kind == "packed" else found.num_batches
    trained_on = asked([found.batch(step) for step in range(num_steps)])
    held_out = asked([batch() for batch in found.held_out])

    # Two targets each, and those of no conversation are in both.
    assert sum(held_out.values()) == 2 * max(1, num // 100)
    assert sum(trained_on.values()) == 2 * num - sum(held_out.values())
    assert not trained_on & held_out


def test_conversations_that_were_chosen_to_be_held_out_are_where_one_of_them_fits() -> None:
    data = with_held_out(chat_of([5] * 8), [40, 7])

    assert [b()["num_targets"].tolist() for b in feed(data).held_out] == [[2]]
    assert len(feed(data, sequences="documents", batch_size=8).batch(0)["num_targets"]) == 8


@pytest.mark.parametrize(
    ("to_train_on", "held_out", "said"),
    [
        (
            [40, 41],
            [5],
            "none of 2 conversations to train on has a word of the assistant within 16",
        ),
        (
            [5, 40],
            [41],
            "none of 1 conversations held out .* tokens, and only one of those to train on has, so",
        ),
    ],
)
def test_the_part_that_has_nothing_to_learn_is_named(to_train_on, held_out, said) -> None:
    with pytest.raises(BadInput, match=said):
        feed(with_held_out(chat_of(to_train_on), held_out))


def test_a_conversation_too_long_keeps_its_tail_when_that_is_asked() -> None:
    data = chat_of([40])

    assert feed(data, truncate="tail").batch(0)["num_targets"].tolist() == [2, 2]
    with pytest.raises(BadInput, match=r'none of 1 .* within 16 tokens.*keep the "tail"'):
        feed(data, truncate="head")


@pytest.mark.parametrize("kind", ["packed", "documents"])
def test_a_batch_is_one_allocation_for_each_of_its_tensors(kind) -> None:
    found = feed(text_of([9, 12, 5, 14, 8] * 9), sequences=kind)
    expected = [tensor.numel() * 8 for tensor in found.batch(3).values()]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        found.batch(3)

    events = profiler.profiler.kineto_results.events()
    taken = [event.nbytes() for event in events if event.name() == "[memory]"]

    assert [size for size in taken if size > 0] == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seq_schedule": "6:2,16"}, "not a whole number of sequences of 6"),
        ({"seq_schedule": "4:2,8"}, "ends with 8 tokens and the sequence length is 16"),
        ({"seq_schedule": "4:2,16", "sequences": "documents"}, "choose rows or packed"),
        ({"sequences": "rows", "seq_len": 5000}, "sequences of 5,000 tokens need 5,001"),
        (
            {"sequences": "rows", "seq_len": 99, "batch_size": 70, "seq_schedule": "70:2,99"},
            "shuffles stretches of 6,930 tokens",
        ),
        ({"sequences": "lines"}, "choose one of rows, packed, documents"),
        ({"truncate": "middle"}, "choose one of head, tail"),
    ],
)
def test_what_cannot_be_fed_is_refused_with_the_reason(fields, message) -> None:
    with pytest.raises(BadInput, match=message):
        feed(text_of([40] * 30), **fields)


def test_chat_does_not_come_in_rows() -> None:
    with pytest.raises(BadInput, match="choose sequences packed or documents"):
        feed(chat_of([9, 9]), sequences="rows")
