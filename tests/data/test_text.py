from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from memfit.data import text, tokens
from memfit.data.tokenizer import open_tokenizer, train_tokenizer
from memfit.data.tokens import encoded_tokens
from memfit.errors import BadInput

DOCUMENTS = [f"Document {number} says {number * number}.\n" for number in range(400)]


def decoded(data: text.TextData) -> list[str]:
    """The documents, those moved to the end last."""
    ids = np.concatenate([data.train_tokens, data.eval_tokens])
    ends = np.flatnonzero(ids == data.end_of_text_id)
    assert ends[-1] == len(ids) - 1
    tokenizer = open_tokenizer(data.tokenizer_path)
    return [tokenizer.decode(part[:-1].tolist()) for part in np.split(ids, ends[:-1] + 1)]


@pytest.fixture
def path(corpus_of, tmp_path) -> Path:
    corpus_of(*DOCUMENTS)
    return tmp_path / "documents.jsonl"


def test_every_document_is_encoded_once_and_followed_by_the_end_of_text(path):
    data = text.load([path], vocab_size=300, seq_len=8)

    assert sorted(decoded(data)) == sorted(DOCUMENTS)
    assert (data.num_documents, data.num_bytes) == (400, sum(map(len, DOCUMENTS)))


def test_the_tail_is_made_of_documents_from_everywhere(path):
    documents = decoded(text.load([path], vocab_size=300, seq_len=8))

    stayed = [document for document in documents if tokens.zlib.crc32(document.encode()) % 100]
    moved = documents[len(stayed) :]
    assert documents[: len(stayed)] == stayed == [d for d in DOCUMENTS if d in stayed]
    assert 1 <= len(moved) <= 12 and moved == [d for d in DOCUMENTS if d in moved]


@pytest.mark.parametrize(("seq_len", "num_eval"), [(8, 1 / 100), (500, 501)])
def test_one_percent_is_held_out_or_one_row_if_that_is_more(path, seq_len, num_eval):
    data = text.load([path], vocab_size=300, seq_len=seq_len)

    num_tokens = len(data.train_tokens) + len(data.eval_tokens)
    assert len(data.eval_tokens) == (num_eval if num_eval > 1 else num_tokens // 100)


def test_a_second_run_reads_the_same_tokens_from_the_cache(path):
    first = text.load([path], vocab_size=300, seq_len=8)
    with mock.patch.object(tokens, "_write", side_effect=AssertionError):
        second = text.load([path], vocab_size=300, seq_len=8)

    assert isinstance(second.train_tokens, np.memmap)
    assert np.array_equal(first.train_tokens, second.train_tokens)
    assert np.array_equal(first.eval_tokens, second.eval_tokens)
    assert first.content_hash == second.content_hash


@pytest.mark.parametrize("kept_bytes", [0, 5, 300])
def test_damaged_tokens_in_the_cache_are_encoded_again(corpus_of, kept_bytes, tmp_path):
    corpus = corpus_of(*DOCUMENTS)
    tokenizer = train_tokenizer(corpus, 300)
    good = encoded_tokens(corpus, tokenizer).copy()
    (path,) = (tmp_path / "cache" / "tokens").iterdir()
    path.write_bytes(path.read_bytes()[:kept_bytes])

    assert np.array_equal(encoded_tokens(corpus, tokenizer), good)
    assert list(path.parent.iterdir()) == [path]


def test_progress_is_counted_in_bytes_of_text(path):
    seen = []

    def on_progress(done_bytes: int, total_bytes: int) -> None:
        seen.append((done_bytes, total_bytes))

    data = text.load([path], vocab_size=300, seq_len=8, on_progress=on_progress)

    assert seen[-1] == (data.num_bytes, data.num_bytes) and seen == sorted(seen)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65536, np.uint16), (65537, np.uint32)])
def test_ids_take_two_bytes_until_the_vocabulary_is_larger(corpus_of, vocab_size, dtype):
    corpus = corpus_of("some text")
    with mock.patch.object(tokens, "vocab_size_of", return_value=vocab_size):
        assert encoded_tokens(corpus, train_tokenizer(corpus, 300)).dtype == dtype


def test_a_failure_while_encoding_leaves_nothing_behind(path, corpus_of, tmp_path):
    corpus = corpus_of(*DOCUMENTS)
    tokenizer = train_tokenizer(corpus, 300)
    path.write_text('{"text": "other"}')

    with pytest.raises(BadInput, match="changed while it was read"):
        encoded_tokens(corpus, tokenizer)
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []


def test_text_too_short_for_the_sequence_is_refused_with_both_numbers(corpus_of, tmp_path):
    corpus_of("abcdefghi")
    path = tmp_path / "documents.jsonl"

    with pytest.raises(BadInput, match=r"text has 10 tokens, .* of 5 need at least 12 .*len 4"):
        text.load([path], vocab_size=257, seq_len=5)
    assert len(text.load([path], vocab_size=257, seq_len=4).train_tokens) == 5


def test_a_given_tokenizer_is_used_and_must_fit_the_model(path, tmp_path):
    own = text.load([path], vocab_size=300, seq_len=8)
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "tokenizer.json").write_bytes(own.tokenizer_path.read_bytes())

    given_one = text.load([path], vocab_size=512, seq_len=8, tokenizer=tmp_path / "given")

    assert given_one.tokenizer_path == tmp_path / "given" / "tokenizer.json"
    assert given_one.vocab_size == 300
    with pytest.raises(BadInput, match="has 300 tokens and the model only 299"):
        text.load([path], vocab_size=299, seq_len=8, tokenizer=tmp_path / "given")


def test_a_cache_that_cannot_be_made_names_the_variable_to_set(path, monkeypatch):
    monkeypatch.setenv("MEMFIT_CACHE", str(path / "below a file"))

    with pytest.raises(BadInput, match=r"cannot make the cache folder .* MEMFIT_CACHE"):
        text.load([path], vocab_size=300, seq_len=8)
