import io
import json
import os
import subprocess
import sys
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from memfit.data import corpus as corpus_module
from memfit.data import tokenizer as tokenizer_module
from memfit.data.corpus import open_corpus
from memfit.data.tokenizer import (
    cached_tokenizer,
    end_of_text_id,
    open_tokenizer,
    train_tokenizer,
    vocab_size_of,
)
from memfit.errors import BadInput, DamagedFile

TOPIC = "The quick brown fox's 12345 tails\n\n    it jumped -- over the lazy dogs.\n" * 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text(TOPIC)
    saved = path.with_name("tokenizer.json")
    saved.write_text(train_tokenizer(open_corpus([path]), 320).to_str())
    return open_tokenizer(saved)


@given(text=st.text())
def test_any_text_comes_back_as_it_was(trained, text):
    ids = trained.encode(text, add_special_tokens=False).ids

    assert trained.decode(ids, skip_special_tokens=False) == text


@given(
    lines=st.lists(
        st.tuples(
            st.sampled_from("a'1;é"),
            st.text(alphabet=" \tab'1;\r", max_size=6),
            st.sampled_from(["\n", "\n\n", "\n    \n"]),
        ),
        min_size=6,
    )
)
def test_cutting_a_document_into_pieces_does_not_change_its_tokens(trained, lines):
    text = "".join(start + rest + end for start, rest, end in lines)
    with mock.patch.object(corpus_module, "PIECE_CHARS", 16):
        pieces = [piece.text for piece in corpus_module._cut(io.StringIO(text))]

    assert len(pieces) > 1 or len(text) <= 16
    pieced = [token for piece in pieces for token in trained.encode(piece).ids]
    assert pieced == trained.encode(text).ids


def test_the_end_of_text_written_in_a_text_is_only_text(trained):
    ids = trained.encode("a<|endoftext|>b").ids

    assert end_of_text_id(trained) not in ids
    assert trained.decode(ids) == "a<|endoftext|>b"


def test_threads_do_not_change_the_trained_file(corpus_of, tmp_path):
    path = cached_tokenizer(corpus_of(*[TOPIC[shift:] for shift in range(50)]), 400)
    code = (
        "import sys; from memfit.data.tokenizer import *; from memfit.data.corpus import *; "
        "cached_tokenizer(open_corpus([sys.argv[1]]), 400)"
    )
    environment = {**os.environ, "MEMFIT_CACHE": str(tmp_path / "b"), "RAYON_NUM_THREADS": "1"}
    text = str(tmp_path / "documents.jsonl")
    subprocess.run([sys.executable, "-c", code, text], check=True, env=environment)

    assert (tmp_path / "b" / "tokenizers" / path.name).read_bytes() == path.read_bytes()


def test_a_tokenizer_is_trained_once_for_the_same_text_and_size(corpus_of):
    first = cached_tokenizer(corpus_of("some text"), 300)
    with mock.patch.object(tokenizer_module, "train_tokenizer", side_effect=AssertionError):
        assert cached_tokenizer(corpus_of("some text"), 300) == first

    assert cached_tokenizer(corpus_of("some text"), 301) != first
    assert cached_tokenizer(corpus_of("some texts"), 300) != first


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"version": "1.0", "trunc', b"\xff\xfe"])
def test_a_damaged_cached_tokenizer_is_trained_again(corpus_of, damage):
    corpus = corpus_of("some text")
    path = cached_tokenizer(corpus, 300)
    good = path.read_bytes()
    path.write_bytes(damage)

    assert cached_tokenizer(corpus, 300).read_bytes() == good
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_vocabulary_is_as_large_as_asked_when_the_text_allows(corpus_of):
    assert vocab_size_of(train_tokenizer(corpus_of(TOPIC), 300)) == 300
    assert vocab_size_of(train_tokenizer(corpus_of("ab"), 300)) == 258


def test_a_vocabulary_without_room_for_all_bytes_is_refused(corpus_of):
    with pytest.raises(BadInput, match=r"vocabulary of 256 .* write 257 or more"):
        cached_tokenizer(corpus_of("text"), 256)


def test_a_long_text_is_sampled_evenly(corpus_of, monkeypatch):
    monkeypatch.setattr(tokenizer_module, "SAMPLE_BYTES", 100)
    corpus = corpus_of(*[f"document {number:02}" for number in range(50)])  # 11 bytes each

    sample = list(tokenizer_module._sample(corpus.pieces(), corpus.num_bytes))

    assert sample == [f"document {number:02}" for number in (0, 6, 11, 17, 22, 28, 33, 39, 44)]


def test_a_given_tokenizer_neither_truncates_nor_pads(trained, tmp_path):
    given_one = Tokenizer.from_str(trained.to_str())
    given_one.enable_truncation(4)
    given_one.enable_padding(length=64)
    given_one.save(str(tmp_path / "tokenizer.json"))

    opened = open_tokenizer(tmp_path)

    for text in ("a", TOPIC):
        assert opened.encode(text).ids == trained.encode(text).ids


def test_a_missing_or_damaged_given_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": "none"}))

    with pytest.raises(DamagedFile, match="does not hold a tokenizer"):
        open_tokenizer(tmp_path)
    with pytest.raises(BadInput, match=r"cannot read the tokenizer .*: name a tokenizer\.json"):
        open_tokenizer(tmp_path / "missing.json")


def test_a_tokenizer_without_an_end_of_text_is_refused():
    with pytest.raises(BadInput, match="no token that ends a document: add one of"):
        end_of_text_id(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
