"""From paths to token ids, in one call: the corpus, its tokenizer, a training and a held-out part.

Held out is the tail of the encoded corpus: 1 % of the tokens, at least one row and at most
2**20 tokens.  The tail is made of documents from everywhere (see ``memfit.data.tokens``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memfit.data.conversations import encoded_conversations
from memfit.data.corpus import open_corpus
from memfit.data.documents import Documents, documents_of
from memfit.data.tokenizer import (
    cached_tokenizer,
    end_of_text_id,
    open_tokenizer,
    vocab_size_of,
)
from memfit.data.tokens import Progress, encoded_tokens
from memfit.errors import BadInput

_LARGEST_EVAL_TOKENS = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class TextData:
    """What a run trains and evaluates on."""

    train_tokens: np.ndarray
    """(N,) uint16 or uint32, memory-mapped."""

    eval_tokens: np.ndarray
    """(M,) of the same type: held out, in no training row."""

    tokenizer_path: Path
    """The ``tokenizer.json`` that encoded them."""

    vocab_size: int
    """Of the tokenizer: ids are below this."""

    end_of_text_id: int
    num_documents: int
    num_bytes: int
    """Of the text as UTF-8."""

    content_hash: str
    """SHA-256 of the documents."""

    chat: tuple[Documents, Documents] | None = None
    """Conversations to train and to evaluate on; None for text."""

    @property
    def is_chat(self) -> bool:
        """Whether documents are conversations, in which only the assistant's tokens are targets."""
        return self.chat is not None

    @property
    def train_documents(self) -> Documents:
        """Where documents begin and end in ``train_tokens``."""
        return self.chat[0] if self.chat else documents_of(self.train_tokens, self.end_of_text_id)

    @property
    def eval_documents(self) -> Documents:
        """Where documents begin and end in ``eval_tokens``."""
        return self.chat[1] if self.chat else documents_of(self.eval_tokens, self.end_of_text_id)


def load(
    paths: Sequence[str | Path],
    *,
    vocab_size: int,
    seq_len: int,
    tokenizer: Path | None = None,
    on_progress: Progress | None = None,
) -> TextData:
    """Reads, tokenizes and splits the text; what was done before comes from the cache.

    Args:
        paths: files or folders of txt, md, jsonl and parquet, or the word ``python``; or of jsonl
            and parquet that hold chat.
        vocab_size: the model's: a tokenizer of at most this size is trained.
        seq_len: the sequence length, in tokens.
        tokenizer: a ``tokenizer.json``, or a folder holding one, to use in place of training; chat
            is written with the template beside it.
        on_progress: called with ``(done_bytes, total_bytes)`` while text is encoded.

    Raises:
        BadInput: there is no text, too little of it, or the tokenizer does not suit the model.
        MissingExtra: a parquet file was found and pyarrow is not installed.
    """
    corpus = open_corpus(paths)
    path = tokenizer or cached_tokenizer(corpus, vocab_size)
    path = path / "tokenizer.json" if path.is_dir() else path
    opened = open_tokenizer(path)
    used_vocab = vocab_size_of(opened)
    if used_vocab > vocab_size:
        raise BadInput(
            f"the tokenizer {path} has {used_vocab:,} tokens and the model only {vocab_size:,}: "
            "choose a model with a larger vocabulary, or leave the tokenizer out to train one"
        )
    end = end_of_text_id(opened)
    if corpus.is_chat:
        train, held_out, content_hash = encoded_conversations(corpus, path)
        return TextData(
            train_tokens=train.tokens,
            eval_tokens=held_out.tokens,
            tokenizer_path=path,
            vocab_size=used_vocab,
            end_of_text_id=end,
            num_documents=corpus.num_documents,
            num_bytes=corpus.num_bytes,
            content_hash=content_hash,
            chat=(train, held_out),
        )
    tokens = encoded_tokens(corpus, opened, on_progress)
    num_eval = _num_eval_tokens(len(tokens), seq_len)
    return TextData(
        train_tokens=tokens[:-num_eval],
        eval_tokens=tokens[-num_eval:],
        tokenizer_path=path,
        vocab_size=used_vocab,
        end_of_text_id=end,
        num_documents=corpus.num_documents,
        num_bytes=corpus.num_bytes,
        content_hash=corpus.content_hash,
    )


def _num_eval_tokens(num_tokens: int, seq_len: int) -> int:
    row = seq_len + 1
    if num_tokens < 2 * row:
        raise BadInput(
            f"the text has {num_tokens:,} tokens, and sequences of {seq_len:,} need at least "
            f"{2 * row:,} (one row to train on, one held out): write --seq-len "
            f"{max(1, num_tokens // 2 - 1)} or less, or give more text"
        )
    return max(row, min(num_tokens // 100, _LARGEST_EVAL_TOKENS))
