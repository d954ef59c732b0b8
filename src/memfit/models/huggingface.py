"""Hugging Face models as jobs: from a ``config.json``, without weights and without network.

The configuration names a model type and perhaps an architecture; the objective follows from it:
masked language models, causal language models, image classifiers.  transformers builds the model
from its own code with fresh weights, in fp32 and with its default attention (sdpa).  The
configuration is data and nothing more: it cannot name code to run, or a kernel or file to fetch.

Leans on transformers' Auto classes and their lists of names.  transformers is imported when a job
is made, which takes a second, and its modelling code when the model is built, another two.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from memfit.errors import BadInput, MemfitError, UnknownName
from memfit.job import Job
from memfit.models import objectives
from memfit.records.recipe import SEQUENCES

SUPPORTED = "memfit trains masked and causal language models and image classifiers"

_FOR_THE_RECIPE_TO_SAY = frozenset(
    {
        "gradient_checkpointing",
        "quantization_config",
        "attn_implementation",
        "_attn_implementation",
        "experts_implementation",
        "_experts_implementation",
    }
)
"""Techniques that a configuration may carry; the last four could name a kernel to download."""

_POSITIONS_AFTER_PADDING = frozenset(
    {"camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta"}
    | {"roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"}
)
"""Model types that number positions from pad_token_id + 1 on, and so hold that many tokens less."""


KEEPS_DOCUMENTS_APART = frozenset(
    {"arcee", "biogpt", "cohere", "ctrl", "ernie4_5", "gemma", "gemma2", "gemma3_text", "glm"}
    | {"glm4", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "llama", "mistral", "mixtral", "mpt"}
    | {"nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "phimoe"}
    | {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2"}
    | {"xglm"}
)
"""Model types for which a test has found that a document in a row changes nothing of the others.

Not there are those with a state that runs through the row (mamba, jamba, rwkv, qwen3_next), with
masks of their own (bloom, openai-gpt), and those that nobody has tested.
"""


@contextlib.contextmanager
def _sealed() -> Iterator[None]:
    """Keeps transformers off the network, and its remarks off stderr, while it runs."""
    from huggingface_hub import constants
    from transformers.utils import logging as remarks

    offline, verbosity = constants.HF_HUB_OFFLINE, remarks.get_verbosity()
    constants.HF_HUB_OFFLINE = True
    remarks.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        remarks.set_verbosity(verbosity)


def job_from_config(
    source: str | Path | Mapping[str, Any], *, vocab_size: int | None = None
) -> Job:
    """The job of training, from scratch, the model that a Hugging Face configuration describes.

    Args:
        source: a ``config.json``, the folder that holds one, or its content as a dict.
        vocab_size: the tokenizer's, to take the place of the configuration's.

    Raises:
        BadInput: there is no such file, it is not a configuration, it wants code of its own to be
            run, or its architecture is not supported.
    """
    fields, name = _read(source)
    if "auto_map" in fields:
        raise BadInput(
            f"the configuration of {name} names code of its own (auto_map), which memfit does not "
            "run: remove auto_map to train transformers' own model of this type, or write the "
            "job in Python and name it as file.py:name"
        )
    task, architecture = _choose(fields, name)
    with _blaming(name), _sealed():
        config = _config({**fields, "architectures": [architecture]})
        if vocab_size is not None:
            if not task.reads_tokens:
                raise BadInput(f"{name} reads images: no vocabulary can be set to {vocab_size}")
            _set_vocab_size(config.get_text_config(), vocab_size)
        return task.job(config, partial(_build, task.auto_class, config, name), name)


def _causal_lm_job(config: Any, model: Callable[[], nn.Module], name: str) -> Job:
    text = config.get_text_config()
    return Job(
        model=model,
        batch=partial(objectives.token_batch, text.vocab_size),
        loss=partial(_causal_lm_loss, windows=_windows(text)),
        name=name,
        seq_len=_usual_seq_len(text, at_most=2048),
        max_seq_len=_max_seq_len(text),
        vocab_size=text.vocab_size,
        sequences=(
            SEQUENCES
            if text.model_type in KEEPS_DOCUMENTS_APART
            else tuple(kind for kind in SEQUENCES if kind != "packed")
        ),
    )


Windows: TypeAlias = int | dict[str, int | None] | None
"""How many tokens a layer's queries see, None for all; or that for each kind of layer."""


def _windows(config: Any) -> Windows:
    window: int | None = getattr(config, "sliding_window", None) or None
    kinds = getattr(config, "layer_types", None)
    if window is None or not kinds:
        return window
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(set(kinds))}


def _masks(model: nn.Module, position_ids: Tensor, windows: Windows) -> Tensor | dict[str, Tensor]:
    """The mask of all layers, or of each kind of layer.

    Not left to transformers, which would make one of positions that begin again: OPT, BioGPT, XGLM
    and MPT do not, and of those it makes each layer keeps a copy.
    """
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    dtype = objectives.compute_dtype(embedding.weight)
    if isinstance(windows, dict):
        return {
            kind: objectives.document_mask(position_ids, dtype, window)
            for kind, window in windows.items()
        }
    return objectives.document_mask(position_ids, dtype, windows)


@_sealed()
def _causal_lm_loss(
    model: nn.Module, batch: Tensor | objectives.TensorDict, *, windows: Windows
) -> tuple[Tensor, int]:
    if isinstance(batch, Tensor):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        return objectives.token_loss(logits, batch[:, 1:])
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"]}
    if "position_ids" in batch:
        inputs["position_ids"] = batch["position_ids"]
        inputs["attention_mask"] = _masks(model, batch["position_ids"], windows)
    logits = model(**inputs, use_cache=False).logits
    return objectives.labelled_loss(logits, batch)


def _masked_lm_job(config: Any, model: Callable[[], nn.Module], name: str) -> Job:
    return Job(
        model=model,
        batch=partial(objectives.masked_batch, config.vocab_size),
        loss=_masked_lm_loss,
        name=name,
        seq_len=_usual_seq_len(config, at_most=512),
        max_seq_len=_max_seq_len(config),
    )


@_sealed()
def _masked_lm_loss(model: nn.Module, batch: objectives.TensorDict) -> tuple[Tensor, int]:
    logits = model(input_ids=batch["input_ids"]).logits
    return objectives.masked_loss(logits, batch["labels"])


def _image_job(config: Any, model: Callable[[], nn.Module], name: str) -> Job:
    size = getattr(config, "image_size", None) or 224
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    shape = (getattr(config, "num_channels", 3), height, width)
    return Job(
        model=model,
        batch=partial(objectives.image_batch, shape, config.num_labels),
        loss=_image_loss,
        name=name,
    )


@_sealed()
def _image_loss(model: nn.Module, batch: objectives.TensorDict) -> tuple[Tensor, int]:
    logits = model(pixel_values=batch["pixel_values"]).logits
    return objectives.image_loss(logits, batch["labels"])


@dataclass(frozen=True, slots=True)
class _Task:
    """An objective: transformers' names for its models, and the job of training one."""

    auto_class: str
    mapping: str
    job: Callable[[Any, Callable[[], nn.Module], str], Job]
    reads_tokens: bool = True

    def architectures(self) -> dict[str, list[str]]:
        """Model type -> names of its classes that have this objective."""
        from transformers.models.auto import modeling_auto

        mapping = getattr(modeling_auto, self.mapping)
        return {
            model_type: [
                name
                for name in ([names] if isinstance(names, str) else names)
                # These read something else first: a source sentence, an image, a sound.
                if not name.endswith("ForConditionalGeneration")
            ]
            for model_type, names in mapping.items()
        }


_TASKS = (  # of a type that has several, the first is its usual one
    _Task("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", _masked_lm_job),
    _Task("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", _causal_lm_job),
    _Task(
        "AutoModelForImageClassification",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        _image_job,
        reads_tokens=False,
    ),
)


def _read(source: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The fields of a configuration, without techniques, and what to call the model."""
    if isinstance(source, Mapping):
        return _without_techniques(source), str(source.get("model_type", "the model"))
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not a configuration: it is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise BadInput(f"{path} is not a configuration: it holds no JSON object")
    name = path.absolute().parent.name if path.name == "config.json" else path.stem
    return _without_techniques(fields), name


def _without_techniques(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_techniques(value) if isinstance(value, dict) else value
        for key, value in fields.items()
        if key not in _FOR_THE_RECIPE_TO_SAY
    }


def _choose(fields: Mapping[str, Any], name: str) -> tuple[_Task, str]:
    """The objective and the class: the one that ``architectures`` names, else the type's usual."""
    model_type = fields.get("model_type")
    if not isinstance(model_type, str):
        raise BadInput(
            f"the configuration of {name} does not say its model_type, for example "
            '"model_type": "llama"'
        )
    known = [task.architectures() for task in _TASKS]
    choices = [
        (architecture, task)
        for task, architectures in zip(_TASKS, known, strict=True)
        for architecture in architectures.get(model_type, [])
    ]
    if not choices:
        raise UnknownName(
            "supported model type", model_type, sorted(set().union(*known)), SUPPORTED
        )
    asked = fields.get("architectures")
    if not isinstance(asked, list) or not asked:
        return choices[0][1], choices[0][0]
    for architecture, task in choices:
        if architecture in asked:
            return task, architecture
    raise BadInput(
        f"the architecture of {name}, {', '.join(map(repr, asked))}, is not supported: "
        f"{SUPPORTED}; for {model_type} write {' or '.join(choice for choice, _ in choices)}"
    )


def _config(fields: dict[str, Any]) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[fields["model_type"]].from_dict(fields)


def _build(auto_class: str, config: Any, name: str) -> nn.Module:
    import transformers

    with _blaming(name), _sealed():
        # A copy, as building writes into the configuration.
        model: nn.Module = getattr(transformers, auto_class).from_config(
            copy.deepcopy(config), dtype=torch.get_default_dtype()
        )
        return model


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Turns any error into one about the configuration, which may hold anything."""
    try:
        yield
    except MemfitError:
        raise
    except Exception as error:
        raise BadInput(
            f"transformers cannot make a model of the configuration of {name}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _set_vocab_size(config: Any, vocab_size: int) -> None:
    config.vocab_size = vocab_size
    if (config.pad_token_id or 0) >= vocab_size:
        config.pad_token_id = None


def _usual_seq_len(config: Any, *, at_most: int) -> int:
    declared = getattr(config, "max_position_embeddings", None) or at_most
    return min(at_most, declared, _max_seq_len(config) or at_most)


def _max_seq_len(config: Any) -> int | None:
    """Where learnt positions end; rotary ones go on, whatever length the model was made for."""
    positions: int | None = getattr(config, "max_position_embeddings", None)
    if positions is None or getattr(config, "rope_parameters", None):
        return None
    if config.model_type in _POSITIONS_AFTER_PADDING:
        return positions - int(config.pad_token_id) - 1
    return positions
