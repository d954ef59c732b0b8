"""The built-in GPT: positions are relative, the future is unseen, sizes follow the depth."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from memfit.errors import BadInput
from memfit.models.gpt import (
    GPT,
    SOFTCAP,
    Attention,
    GPTConfig,
    gpt_job,
    norm,
    rotary_tables,
    rotate,
)

SMALL = GPTConfig(num_layers=2, dim=32, num_heads=4, num_kv_heads=2, vocab_size=50, seq_len=8)


def trained_a_little(config: GPTConfig = SMALL) -> GPT:
    """A GPT whose blocks and head do something, as new ones are zero or nearly so."""
    torch.manual_seed(0)
    model = GPT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model


def reference_attention(attention: Attention, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same attention one head at a time, with the mask and the softmax written out."""
    T, D = x.size(1), attention.head_dim
    q, k, v = (
        layer(x).unflatten(-1, (-1, D))
        for layer in (attention.query, attention.key, attention.value)
    )
    q, k = norm(rotate(q, cos, sin)), norm(rotate(k, cos, sin))
    future = torch.ones(T, T).triu(1).bool()
    heads = []
    for head in range(q.size(2)):
        shared = head * k.size(2) // q.size(2)
        scores = q[:, :, head] @ k[:, :, shared].mT / math.sqrt(D)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        heads.append(weights @ v[:, :, shared])
    return F.linear(torch.cat(heads, -1), attention.out.weight)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_attention_is_the_softmax_over_the_past_with_heads_sharing_keys(num_kv_heads: int) -> None:
    config = GPTConfig(num_layers=1, dim=32, num_heads=4, num_kv_heads=num_kv_heads)
    attention = trained_a_little(config).blocks[0].attention
    assert isinstance(attention, Attention)
    assert attention.key.weight.shape == (num_kv_heads * 8, 32)
    x = torch.randn(2, 6, 32)
    cos, sin = rotary_tables(6, 8)

    torch.testing.assert_close(
        attention(x, cos, sin), reference_attention(attention, x, cos, sin), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("changed", [0, 3, 7])
def test_changing_a_token_changes_no_logits_before_it_and_all_after(changed: int) -> None:
    model = trained_a_little()
    tokens = torch.randint(50, (1, 8))
    other = tokens.clone()
    other[0, changed] = (other[0, changed] + 1) % 50

    before, after = model(tokens), model(other)

    assert torch.equal(before[:, :changed], after[:, :changed])
    assert (before[:, changed:] != after[:, changed:]).any(dim=-1).all()


@settings(deadline=None, max_examples=30)
@given(first=st.integers(0, 40), second=st.integers(0, 40), shift=st.integers(0, 40))
def test_scores_depend_on_the_distance_of_positions_only(
    first: int, second: int, shift: int
) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    cos, sin = (table.double() for table in rotary_tables(81, 16))

    def at(x: Tensor, position: int) -> Tensor:
        return rotate(x.view(1, 1, 1, 16), cos[[position]], sin[[position]]).flatten()

    torch.testing.assert_close(
        at(q, first) @ at(k, second),
        at(q, first + shift) @ at(k, second + shift),
        # The tables are fp32.
        rtol=0,
        atol=1e-4,
    )


def test_a_rotation_keeps_lengths_and_position_zero_stays() -> None:
    x = torch.randn(2, 5, 3, 16)

    turned = rotate(x, *rotary_tables(5, 16))

    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, 0], x[:, 0])
    assert not torch.allclose(turned[:, 1:], x[:, 1:])


def test_logits_stay_inside_the_softcap_and_are_fp32() -> None:
    model = trained_a_little()
    with torch.no_grad():
        model.head.weight.mul_(1000)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(torch.randint(50, (2, 8)))

    assert logits.dtype == torch.float32
    assert logits.shape == (2, 8, 50)
    assert logits.abs().max() <= SOFTCAP
    assert logits.abs().max() > SOFTCAP - 0.1


def test_queries_stay_in_bf16_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    attend = F.scaled_dot_product_attention
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda q, k, v, **rest: seen.append({q.dtype, k.dtype, v.dtype}) or attend(q, k, v, **rest),
    )

    with torch.autocast("cpu", dtype=torch.bfloat16):
        trained_a_little()(torch.randint(50, (1, 4)))

    assert seen == [{torch.bfloat16}] * 2


def test_a_new_model_finds_all_tokens_about_equally_likely() -> None:
    torch.manual_seed(0)
    job = gpt_job(SMALL)

    loss_sum, num_targets = job.loss(job.model(), job.batch(4, 8))

    assert num_targets == 32
    assert loss_sum.item() / num_targets == pytest.approx(math.log(50), abs=0.01)


def test_new_blocks_pass_their_input_on_unchanged() -> None:
    model = GPT(SMALL)
    x = torch.randn(1, 8, 32)

    assert torch.equal(model.blocks[0](x, model.cos[:8], model.sin[:8]), x)


def test_linear_layers_start_with_a_standard_deviation_of_one_over_sqrt_fan_in() -> None:
    torch.manual_seed(0)
    weight = GPT(GPTConfig.of_depth(2, vocab_size=8, seq_len=8)).blocks[0].mlp.widen.weight

    assert weight.std().item() == pytest.approx(128**-0.5, rel=0.01)
    assert weight.abs().max().item() <= (3 / 128) ** 0.5


def test_the_loss_is_the_sum_over_targets_shifted_by_one() -> None:
    job = gpt_job(SMALL)
    model = trained_a_little()
    batch = job.batch(3, 5)
    assert batch.shape == (3, 6) and batch.dtype == torch.int64 and batch.max() < 50

    loss_sum, num_targets = job.loss(model, batch)

    log_probs = model(batch[:, :5]).log_softmax(-1)
    expected = -sum(log_probs[b, t, batch[b, t + 1]] for b in range(3) for t in range(5))
    torch.testing.assert_close(loss_sum, expected)
    assert num_targets == 15


def test_building_and_training_do_not_depend_on_the_values_of_a_tensor() -> None:
    # Fake tensors have none, and say so when asked.
    with FakeTensorMode():
        job = gpt_job(SMALL)
        model = job.model()
        loss_sum, _ = job.loss(model, job.batch(2, 8))
        loss_sum.backward()

    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("depth", "width", "num_heads"),
    [(1, 128, 1), (4, 256, 2), (5, 384, 3), (12, 768, 6), (20, 1280, 10), (26, 1664, 13)],
)
def test_width_is_64_channels_a_layer_rounded_up_to_whole_heads_of_128(
    depth: int, width: int, num_heads: int
) -> None:
    config = GPTConfig.of_depth(depth)

    assert (config.dim, config.num_heads, config.num_kv_heads) == (width, num_heads, num_heads)
    assert config.head_dim == 128


@pytest.mark.parametrize(("depth", "published"), [(20, 560_988_160), (32, 1_879_048_192)])
def test_models_are_as_large_as_nanochats(depth: int, published: int) -> None:
    with torch.device("meta"):
        model = GPT(GPTConfig.of_depth(depth, vocab_size=65_536))

    assert sum(p.numel() for p in model.parameters()) == published


def test_rotary_tables_are_neither_trained_nor_saved() -> None:
    model = GPT(SMALL)

    assert [name for name, _ in model.named_buffers()] == ["cos", "sin"]
    assert {name.split(".")[0] for name in model.state_dict()} == {"embedding", "blocks", "head"}
    assert isinstance(model.blocks, nn.ModuleList)


def test_a_sequence_may_be_ten_times_as_long_as_asked_and_no_longer() -> None:
    job = gpt_job(SMALL, "small")

    assert job.check_seq_len(None) == 8
    assert job.model()(torch.zeros(1, 80, dtype=torch.int64)).shape == (1, 80, 50)
    with pytest.raises(BadInput, match=r"small cannot take a sequence of 81 tokens: .* 80;"):
        job.check_seq_len(81)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0: it must be at least 1"),
        ({"dim": 30}, "dim 30 cannot be split among 4 heads: .* multiple of 8"),
        ({"num_kv_heads": 3}, "4 query heads cannot share 3 key/value heads"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(changes: dict[str, int], message: str) -> None:
    sizes = {"num_layers": 2, "dim": 32, "num_heads": 4, "num_kv_heads": 2}

    with pytest.raises(BadInput, match=message):
        GPTConfig(**{**sizes, **changes})
