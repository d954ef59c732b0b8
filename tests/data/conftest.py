import json
from collections.abc import Callable
from pathlib import Path

import pytest

from memfit.data.corpus import Corpus, open_corpus


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def corpus_of(tmp_path: Path) -> Callable[..., Corpus]:
    """Builds a corpus with one document for each text."""

    def build(*texts: str) -> Corpus:
        path = tmp_path / "documents.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return open_corpus([path])

    return build
