"""Documents in one row know nothing of each other: changing one changes no logit of another."""

import pytest
import torch
from torch import Tensor, nn

from memfit.errors import BadInput
from memfit.job import IGNORED, Job
from memfit.models.gpt import GPTConfig, gpt_job
from memfit.models.huggingface import KEEPS_DOCUMENTS_APART, job_from_config
from memfit.models.objectives import document_mask
from memfit.models.sequences import packed_job, with_sequences
from memfit.records.recipe import SEQUENCES

LENGTHS = (7, 9, 8)
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS]).expand(2, -1).contiguous()

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
OWN_SIZES = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "ctrl": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "dff": 64},
    "gpt_bigcode": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64},
    "mixtral": {"num_local_experts": 4},
    "gemma2": {"sliding_window": 4},
    "gemma3_text": {"sliding_window": 4},
    "mistral": {"sliding_window": 4},
    "olmo3": {"sliding_window": 4},
    "phi3": {"sliding_window": 4},
    **{name: {"head_dim": 16} for name in ("qwen3", "gemma", "glm", "glm4")},
}
ROUTED = {"mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"}
"""Of experts: how many tokens an expert gets sets the order in which its products are summed."""


def small(model_type: str) -> Job:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    fields = {**SIZES, **OWN_SIZES.get(model_type, {}), "model_type": model_type}
    return job_from_config({**fields, "architectures": [NAMES[model_type]]})


def gpt() -> Job:
    sizes = {"num_layers": 2, "dim": 32, "num_heads": 4, "num_kv_heads": 2}
    return gpt_job(GPTConfig(**sizes, vocab_size=96, seq_len=24))


def trained_a_little(job: Job) -> nn.Module:
    torch.manual_seed(0)
    model = job.model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    return model


class Seen:
    """The logits that a job's loss is computed from."""

    def __init__(self, job: Job, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        from memfit.models import objectives

        self.logits: list[Tensor] = []
        inner = objectives._summed_cross_entropy

        def spy(logits: Tensor, targets: Tensor) -> Tensor:
            self.logits.append(logits.detach())
            return inner(logits, targets)

        monkeypatch.setattr(objectives, "_summed_cross_entropy", spy)
        self._job, self._model = job, model

    def of(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        batch = {"input_ids": tokens, "labels": tokens, "num_targets": torch.ones(len(tokens))}
        if positions is not None:
            batch["position_ids"] = positions
        with torch.no_grad():
            self._job.loss(self._model, batch)
        return self.logits[-1].view(*tokens.shape, -1)


def seen_of(job: Job, monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(job, trained_a_little(job), monkeypatch)


JOBS = {"gpt": gpt, **{name: lambda name=name: small(name) for name in KEEPS_DOCUMENTS_APART}}


@pytest.mark.parametrize("name", sorted(JOBS))
def test_changing_one_document_changes_no_logit_of_another(name, monkeypatch) -> None:
    seen = seen_of(JOBS[name](), monkeypatch)
    tokens = torch.randint(1, 96, (2, 24))
    other = tokens.clone()
    other[:, 7:16] = tokens[:, 7:16] % 95 + 1

    before, after = seen.of(tokens, POSITIONS), seen.of(other, POSITIONS)

    for here in (slice(0, 7), slice(16, 24)):
        if name in ROUTED:
            torch.testing.assert_close(before[:, here], after[:, here], rtol=1e-4, atol=1e-4)
        else:
            assert torch.equal(before[:, here], after[:, here])
    assert (before[:, 7:16] != after[:, 7:16]).any(dim=-1).all()


@pytest.mark.parametrize("name", sorted(JOBS))
def test_a_document_in_a_row_has_the_logits_that_it_has_alone(name, monkeypatch) -> None:
    seen = seen_of(JOBS[name](), monkeypatch)
    tokens = torch.randint(1, 96, (2, 24))

    packed = seen.of(tokens, POSITIONS)

    for start, stop in ((0, 7), (7, 16), (16, 24)):
        alone = seen.of(tokens[:, start:stop])
        torch.testing.assert_close(packed[:, start:stop], alone, rtol=1e-3, atol=1e-4)


def test_the_mask_shows_a_token_what_stands_before_it_in_its_document() -> None:
    mask = document_mask(POSITIONS, torch.bfloat16)

    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))
    same = documents[:, None] == documents
    shown = same & torch.ones(24, 24).tril().bool()
    assert mask.shape == (2, 1, 24, 24) and mask.dtype == torch.bfloat16
    assert torch.equal(mask[0, 0] == 0, shown) and torch.equal(mask[1, 0] == 0, shown)
    assert (mask[0, 0][~shown] == -torch.inf).all()


@pytest.mark.parametrize("name", ["gpt", "gpt2", "llama"])
def test_labels_are_taken_as_they_are_and_counted_by_the_host(name) -> None:
    job = JOBS[name]()
    model = trained_a_little(job)
    tokens = torch.randint(1, 96, (3, 13))
    labels = tokens[:, 1:].clone()
    labels[0, 4:] = IGNORED
    batch = {
        "input_ids": tokens[:, :-1],
        "labels": labels,
        "num_targets": torch.tensor([4, 12, 12]),
    }

    loss_sum, num_targets = job.loss(model, batch)

    rest, num_rest = job.loss(model, tokens[1:])
    first, num_first = job.loss(model, tokens[:1, :5])
    assert (num_targets, num_rest, num_first) == (28, 24, 4)
    torch.testing.assert_close(loss_sum, rest + first)


@pytest.mark.parametrize("name", ["gpt", "gpt2", "llama"])
def test_random_packed_batches_are_of_the_form_that_data_has(name) -> None:
    job = packed_job(JOBS[name]())

    batch = job.batch(3, 10)

    assert list(batch) == ["input_ids", "labels", "position_ids", "num_targets"]
    assert {tuple(tensor.shape) for tensor in batch.values()} == {(3, 10), (3,)}
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert job.loss(job.model(), batch)[1] == 30


def test_a_type_whose_state_runs_through_the_row_is_not_packed() -> None:
    fields = {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 1}
    job = job_from_config(fields)

    assert gpt().sequences == SEQUENCES and job.sequences == ("rows", "documents")
    with pytest.raises(BadInput, match="cannot train on sequences packed: it takes rows, doc"):
        packed_job(job)
    with pytest.raises(BadInput, match="choose one of rows, packed, documents"):
        with_sequences(job, "lines")
    assert with_sequences(job, "rows") is job
