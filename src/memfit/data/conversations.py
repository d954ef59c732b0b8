"""A corpus of chat as arrays of token ids, encoded once and kept in the cache.

One conversation in a hundred, chosen by a hash of its content, is held out, and at least one.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from memfit.data.cache import cache_path
from memfit.data.chat import Template, encoded, template_beside
from memfit.data.corpus import Corpus
from memfit.data.documents import Documents
from memfit.data.readers import Conversation
from memfit.data.tokenizer import open_tokenizer
from memfit.errors import BadInput
from memfit.records.files import replacing

_FORMAT = 1
"""Part of the cache key: to be raised when the same chat would give other arrays."""


def encoded_conversations(corpus: Corpus, tokenizer: Path) -> tuple[Documents, Documents, str]:
    """Conversations to train and to evaluate on, and the SHA-256 of them and of their template.

    Raises:
        BadInput: fewer than two have a word of the assistant, the template does not take one, or
            the cache cannot be written.
    """
    template = template_beside(tokenizer)
    content_hash = _hash(corpus, template)
    made_from = (_FORMAT, content_hash, open_tokenizer(tokenizer).to_str())
    path = cache_path("chat", made_from, ".npz")
    try:
        arrays = _open(path)
    except (OSError, ValueError, EOFError, KeyError):  # missing, or cut short
        made = _encode(corpus, tokenizer, template)
        with replacing(path, force=True) as temporary, open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, **made)
        arrays = _open(path)
    tokens, starts, targets = (arrays[name] for name in ("tokens", "starts", "targets"))
    num_train = int(arrays["num_train"])
    split = int(starts[num_train])
    train = Documents(
        tokens=tokens[:split], starts=starts[: num_train + 1], targets=targets[:split]
    )
    held_out = Documents(
        tokens=tokens[split:], starts=starts[num_train:] - split, targets=targets[split:]
    )
    return train, held_out, content_hash


def _open(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _hash(corpus: Corpus, template: Template | None) -> str:
    sha256 = hashlib.sha256(template.source.encode() if template else b"")
    for conversation in corpus.conversations():
        sha256.update(_canonical(conversation))
    return sha256.hexdigest()


def _canonical(conversation: Conversation) -> bytes:
    return json.dumps(conversation.messages, sort_keys=True).encode() + b"\n"


def _encode(corpus: Corpus, tokenizer: Path, template: Template | None) -> dict[str, np.ndarray]:
    """Tokens, targets and starts, those held out last, and how many are not."""
    hashes: list[int] = []

    def noted() -> Iterator[Conversation]:
        for conversation in corpus.conversations():
            hashes.append(zlib.crc32(_canonical(conversation)))
            yield conversation

    found = list(encoded(noted(), tokenizer, template))
    answered = [number for number, one in enumerate(found) if any(one.is_target[1:])]
    if len(answered) < 2:
        raise BadInput(
            f"{len(answered)} of {len(found):,} conversations have a word of the assistant: at "
            'least 2 must have a message with the role "assistant", one to train on and one held '
            "out"
        )
    chosen = [number for number in answered if hashes[number] % 100 == 0] or answered[-1:]
    held_out = set(chosen[: max(1, len(answered) // 100)])
    order = sorted(range(len(found)), key=lambda number: number in held_out)
    lengths = [len(found[number].ids) for number in order]
    return {
        "tokens": np.array([id_ for n in order for id_ in found[n].ids], dtype=np.uint32),
        "targets": np.array([is_ for n in order for is_ in found[n].is_target], dtype=np.bool_),
        "starts": np.cumsum([0, *lengths], dtype=np.int64),
        "num_train": np.array(len(found) - len(held_out)),
    }
