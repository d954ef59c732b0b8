"""transformers 4.51.3 in a folder of its own, for the rows that were measured with it.

The library's version is part of the model: newer ones keep other tensors.  It is installed without
its dependencies into ``build/``, beside the torch of the environment that runs the table, and goes
first on the path of the processes that predict.  Nothing is fetched when models are made.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "transformers-4.51.3"

PACKAGES = (
    "transformers==4.51.3",
    "huggingface-hub==0.30.2",  # what that transformers accepts: >= 0.30, < 1.0
    "tokenizers==0.21.1",  # >= 0.21, < 0.22
    "requests",  # what that huggingface-hub imports; its version changes nothing here
    "urllib3",
    "charset-normalizer",
    "certifi",
)

MODELS = (
    "BertForSequenceClassification",
    "GPT2LMHeadModel",
    "GPTNeoForCausalLM",
    "OPTForCausalLM",
    "T5ForConditionalGeneration",
)
"""The classes of the rows' models."""


def install() -> Path:
    """Makes the folder if it is not there yet, and returns it.

    Raises:
        CalledProcessError: pip could not.
    """
    stamp = FOLDER / ".installed"
    if not stamp.is_file() or stamp.read_text() != "\n".join(PACKAGES):
        print(f"Installing {PACKAGES[0]} into {FOLDER.relative_to(FOLDER.parents[1])}: once")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", str(FOLDER), *PACKAGES], check=True)
        stamp.write_text("\n".join(PACKAGES))
    return FOLDER


def enter(folder: Path) -> None:
    """Puts the folder first on this process's path, and loads what predictions fork with."""
    sys.path.insert(0, str(folder))
    import torch._dynamo  # noqa: F401  # torch.optim loads it: once here, not in every fork

    transformers = import_module("transformers")
    transformers.logging.set_verbosity_error()
    for name in MODELS:
        getattr(transformers, name)
