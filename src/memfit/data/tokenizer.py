"""A byte-level BPE, trained on the user's text or given as a ``tokenizer.json``.

Any text can be encoded and decoded without loss, and one special token ends each document.
Training is deterministic: it does not depend on the number of threads.  Leans on the package
``tokenizers``, and imports it when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from memfit.data.cache import cache_path
from memfit.data.corpus import Corpus, Piece
from memfit.errors import BadInput, DamagedFile
from memfit.records.files import write_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCAB = 257
"""The 256 bytes and the end of text."""

SAMPLE_BYTES = 32 << 20
"""A longer text is sampled evenly: more of it hardly changes the merges, and costs time."""

_FORMAT = 1
"""Part of the cache key: to be raised when the same text would give another tokenizer."""

_SPLIT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""GPT-4's (``cl100k_base`` in openai/tiktoken): merges never cross the parts it finds."""

_KNOWN_ENDS = (
    END_OF_TEXT,  # GPT-2, Qwen
    "<|end_of_text|>",  # Llama 3
    "</s>",  # Llama 2, Mistral
    "<eos>",  # Gemma
    "<｜end▁of▁sentence｜>",  # DeepSeek
    "[SEP]",  # BERT
)


def cached_tokenizer(corpus: Corpus, vocab_size: int) -> Path:
    """The ``tokenizer.json`` trained on this very text, trained now if there is none yet.

    Raises:
        BadInput: ``vocab_size`` has no room for all bytes, or the cache cannot be written.
    """
    if vocab_size < SMALLEST_VOCAB:
        raise BadInput(
            f"a vocabulary of {vocab_size} cannot hold the 256 bytes and the end of text: "
            f"write {SMALLEST_VOCAB} or more"
        )
    path = cache_path("tokenizers", (_FORMAT, corpus.content_hash, vocab_size), ".json")
    try:
        open_tokenizer(path)
    except BadInput:  # missing or damaged
        write_text(path, train_tokenizer(corpus, vocab_size).to_str(), force=True)
    return path


def train_tokenizer(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """A tokenizer with at most ``vocab_size`` tokens: a short text has no more pairs to merge."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(corpus.pieces(), corpus.num_bytes), trainer)
    return tokenizer


def _sample(pieces: Iterator[Piece], num_bytes: int) -> Iterator[str]:
    """Pieces spread evenly over the text, about ``SAMPLE_BYTES`` of them."""
    seen = taken = 0
    for piece in pieces:
        if taken * num_bytes <= seen * SAMPLE_BYTES:
            taken += len(piece.text.encode())
            yield piece.text
        seen += len(piece.text.encode())


def open_tokenizer(path: Path) -> Tokenizer:
    """Opens a ``tokenizer.json``, or the one in a folder, to encode whole documents as they are.

    Raises:
        BadInput: there is no such file.
        DamagedFile: it does not hold a tokenizer.
    """
    from tokenizers import Tokenizer

    if path.is_dir():
        path = path / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"cannot read the tokenizer {path}: {error.strerror or error}: name a tokenizer.json, "
            "or a folder that holds one"
        ) from error
    except Exception as error:  # the package raises no narrower class
        raise DamagedFile(f"{path} does not hold a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # "<|endoftext|>" in a text is just text
    return tokenizer


def vocab_size_of(tokenizer: Tokenizer) -> int:
    """One more than the largest id."""
    return max(tokenizer.get_vocab().values()) + 1


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """The id that ends a document.

    Raises:
        BadInput: the tokenizer has no token that is known to mean this.
    """
    for token in _KNOWN_ENDS:
        found = tokenizer.token_to_id(token)
        if found is not None:
            return found
    raise BadInput(
        f"the tokenizer has no token that ends a document: add one of {', '.join(_KNOWN_ENDS)}"
    )
