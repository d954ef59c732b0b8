"""Configurations become jobs: offline, quietly, and without running anything they name."""

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from memfit.errors import BadInput, UnknownName
from memfit.models.huggingface import job_from_config

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 60,
}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60}
BERT = {**LLAMA, "model_type": "bert", "max_position_embeddings": 40}
ROBERTA = {**BERT, "model_type": "roberta"}
VIT = {**LLAMA, "model_type": "vit", "image_size": 16, "patch_size": 8, "num_labels": 5}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "num_labels": 5,
}
SMALL = [
    (GPT2, "GPT2LMHeadModel", 2 * 12),
    (LLAMA, "LlamaForCausalLM", 2 * 12),
    (BERT, "BertForMaskedLM", 2 * 2),
    (ROBERTA, "RobertaForMaskedLM", 2 * 2),
    (VIT, "ViTForImageClassification", 2),
    (RESNET, "ResNetForImageClassification", 2),
]
MODEL_TYPES = [config["model_type"] for config, _, _ in SMALL]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"reached for the network: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize(("config", "architecture", "num_targets"), SMALL, ids=MODEL_TYPES)
def test_a_model_type_gives_its_usual_model_and_a_loss_with_gradients(
    config: dict[str, Any], architecture: str, num_targets: int
) -> None:
    job = job_from_config(config)
    model = job.model()

    assert type(model).__name__ == architecture
    assert model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    loss_sum, counted = job.loss(model, job.batch(2, 12))
    assert counted == num_targets
    loss_sum.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_next_token_loss_is_the_one_that_transformers_computes() -> None:
    job = job_from_config(LLAMA)
    model = job.model()
    batch = job.batch(3, 9)

    loss_sum, num_targets = job.loss(model, batch)

    theirs = model(input_ids=batch, labels=batch).loss
    torch.testing.assert_close(loss_sum / num_targets, theirs)


def test_the_masked_loss_is_the_one_that_transformers_computes() -> None:
    job = job_from_config({**BERT, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0})
    model = job.model()
    batch = job.batch(3, 20)

    loss_sum, num_targets = job.loss(model, batch)

    torch.testing.assert_close(loss_sum / num_targets, model(**batch).loss)


def test_the_image_loss_is_the_one_that_transformers_computes() -> None:
    job = job_from_config(VIT)
    model = job.model()
    batch = job.batch(3, 1)
    assert batch["pixel_values"].shape == (3, 3, 16, 16)

    loss_sum, num_targets = job.loss(model, batch)

    torch.testing.assert_close(loss_sum / num_targets, model(**batch).loss)


def test_architectures_decides_between_the_models_of_a_type() -> None:
    job = job_from_config({**BERT, "architectures": ["BertLMHeadModel"]})

    assert type(job.model()).__name__ == "BertLMHeadModel"
    assert job.batch(2, 10).shape == (2, 11)
    assert job.vocab_size == 60


def test_a_file_its_folder_and_its_content_are_the_same_job(tmp_path: Path) -> None:
    folder = tmp_path / "small-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "tiny.json").write_text(json.dumps(LLAMA))

    jobs = [job_from_config(source) for source in (folder, str(folder / "config.json"), LLAMA)]

    assert [job.name for job in jobs] == ["small-llama", "small-llama", "llama"]
    assert job_from_config(tmp_path / "tiny.json").name == "tiny"
    assert len({sum(p.numel() for p in job.model().parameters()) for job in jobs}) == 1


def test_the_tokenizers_vocabulary_takes_the_place_of_the_models() -> None:
    job = job_from_config({**LLAMA, "pad_token_id": 59}, vocab_size=20)

    assert job.vocab_size == 20
    assert job.model().get_input_embeddings().weight.shape == (20, 32)
    assert job.batch(1, 500).max() < 20


@pytest.mark.parametrize(
    ("config", "usual", "longest"),
    [
        ({**GPT2, "n_positions": 64}, 64, 64),
        ({**LLAMA, "max_position_embeddings": 131_072}, 2048, None),
        (LLAMA | {"max_position_embeddings": 64}, 64, None),
        (BERT, 40, 40),
        ({**ROBERTA, "pad_token_id": 1}, 38, 38),
        (VIT, 1, None),
    ],
    ids=["gpt2", "long llama", "short llama", "bert", "roberta", "vit"],
)
def test_a_sequence_is_limited_where_positions_are_learnt(
    config: dict[str, Any], usual: int, longest: int | None
) -> None:
    job = job_from_config(config)

    assert (job.check_seq_len(None), job.max_seq_len) == (usual, longest)


@pytest.mark.parametrize("config", [{**GPT2, "n_positions": 16}, {**ROBERTA, "pad_token_id": 1}])
def test_the_longest_sequence_runs_and_one_more_would_not(config: dict[str, Any]) -> None:
    job = job_from_config(config)
    model, longest = job.model(), job.max_seq_len
    assert longest is not None
    tokens = torch.full((1, longest + 1), 5)

    assert model(input_ids=tokens[:, 1:]).logits.shape == (1, longest, 60)

    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=tokens)
    with pytest.raises(BadInput, match=f"cannot take a sequence of {longest + 1} tokens"):
        job.check_seq_len(longest + 1)


def test_dropout_is_the_configurations() -> None:
    model = job_from_config({**GPT2, "embd_pdrop": 0.25}).model()

    assert model.transformer.drop.p == 0.25


def test_techniques_in_a_configuration_are_left_to_the_recipe() -> None:
    model = job_from_config(
        {
            **LLAMA,
            "dtype": "bfloat16",
            "torch_dtype": "float16",
            "gradient_checkpointing": True,
            "_attn_implementation": "kernels-community/flash-attn",
            "attn_implementation": "flash_attention_2",
            "_experts_implementation": "kernels-community/experts",
            "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
        }
    ).model()

    assert next(model.parameters()).dtype == torch.float32
    assert not any(getattr(part, "gradient_checkpointing", False) for part in model.modules())
    assert model.config._attn_implementation == "sdpa"
    assert "kernels-community" not in str(model.config._experts_implementation)


def test_naming_published_weights_fetches_nothing() -> None:
    job = job_from_config({**LLAMA, "_name_or_path": "meta-llama/Llama-3.2-1B"})

    assert type(job.model()).__name__ == "LlamaForCausalLM"


def test_code_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text("raise SystemExit('this must not run')")
    config = {**LLAMA, "auto_map": {"AutoModelForCausalLM": "modeling.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(BadInput, match=r"names code of its own \(auto_map\).*file\.py:name"):
        job_from_config(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "lama"}, r"'lama' \(nearest: llama.*image classifiers"),
        ({"model_type": "wav2vec2"}, "no supported model type is called 'wav2vec2'"),
        ({"model_type": "t5"}, "no supported model type is called 't5'"),
        ({**BERT, "architectures": ["BertModel"]}, "'BertModel'.*write BertForMaskedLM or BertLM"),
        ({**LLAMA, "architectures": ["os.system"]}, "'os.system'.*write LlamaForCausalLM"),
        ({}, "does not say its model_type"),
        ({"model_type": ["llama"]}, "does not say its model_type"),
        ({**LLAMA, "hidden_size": "wide"}, "of llama: .*hidden_size"),
        ({**LLAMA, "get_text_config": 1}, "of llama: "),
        ({**LLAMA, "vocab_size": 0}, "vocab_size is 0"),
    ],
)
def test_what_cannot_be_trained_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=rf"(?s){message}"):
        job_from_config(config)


def test_a_model_that_cannot_be_built_names_its_configuration() -> None:
    job = job_from_config({**LLAMA, "hidden_act": "no-such-function"})

    with pytest.raises(BadInput, match=r"of llama: KeyError: .*no-such-function"):
        job.model()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds no JSON object"),
        ("[" * 100_000, "is not JSON"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "is not JSON"),
        ("\udcff", "is not JSON"),
    ],
    ids=["cut short", "a list", "deep", "nested", "not text"],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(BadInput, match=rf"config\.json is not a configuration: .*{message}"):
        job_from_config(path)


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*config\.json: No such file"):
        job_from_config(tmp_path)


def test_images_have_no_vocabulary_to_set() -> None:
    with pytest.raises(BadInput, match="vit reads images: no vocabulary can be set to 100"):
        job_from_config(VIT, vocab_size=100)


def test_an_unknown_type_offers_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        job_from_config({"model_type": "gpt3"})

    assert "gpt2" in caught.value.nearest


def test_transformers_remarks_are_not_heard_and_its_settings_come_back() -> None:
    from transformers.utils import logging as remarks

    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    remarks.add_handler(handler)
    before = remarks.get_verbosity()
    try:
        # Mamba says at its first step that it lacks a faster kernel.
        job = job_from_config({"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 1})
        job.loss(job.model(), job.batch(1, 4))
    finally:
        remarks.remove_handler(handler)

    assert heard == []
    assert remarks.get_verbosity() == before
