"""Each parameter goes to the optimizer and the rate that its place in the model asks for."""

import math

import pytest
import torch
from small_jobs import JOBS, OTHER_JOBS
from torch import nn
from torch.nn import functional as F

from memfit.errors import BadInput
from memfit.models.gpt import GPT, GPTConfig
from memfit.optimizers.muon import MuonGroups, muon_adamw, muon_groups
from memfit.optimizers.muon_8bit import Muon8bit, RoundedMuon8bit
from memfit.optimizers.stochastic import RoundedAdamW, RoundedMuon


def names(model: nn.Module) -> dict[str, set[str]]:
    """The names of the parameters in each group, without the numbers of blocks."""
    by_parameter = {id(p): name for name, p in model.named_parameters()}
    return {
        group: {by_parameter[id(p)].replace("h.1.", "h.0.") for p in parameters}
        for group, parameters in muon_groups(model)._asdict().items()
    }


@pytest.mark.parametrize("name", [*JOBS, *OTHER_JOBS])
def test_every_parameter_is_in_one_group_and_matrices_alone_are_muons(name):
    model = {**JOBS, **OTHER_JOBS}[name]().model()

    groups = muon_groups(model)

    sorted_out = [id(p) for group in groups for p in group]
    assert sorted(sorted_out) == sorted(id(p) for p in model.parameters())
    assert all(p.dim() == 2 for p in groups.matrices + groups.transposed)
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    assert not {id(p) for p in groups.matrices + groups.transposed} & {id(t) for t in tables}


def test_gpt2_has_transposed_matrices_and_a_head_that_is_its_embedding():
    assert names(JOBS["gpt2"]().model()) == {
        "matrices": set(),
        "transposed": {
            f"transformer.h.0.{layer}.weight"
            for layer in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        },
        "embeddings": set(),
        "heads": {"transformer.wte.weight", "transformer.wpe.weight"},
        "others": {
            *(f"transformer.h.0.{norm}.{p}" for norm in ("ln_1", "ln_2") for p in WEIGHT_BIAS),
            *(f"transformer.ln_f.{p}" for p in WEIGHT_BIAS),
            *(
                f"transformer.h.0.{layer}.bias"
                for layer in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
            ),
        },
    }


WEIGHT_BIAS = ("weight", "bias")


@pytest.mark.parametrize(
    ("name", "head", "embedding"),
    [
        ("gpt", "head.weight", "embedding.weight"),
        ("llama", "lm_head.weight", "model.embed_tokens.weight"),
        ("mixtral", "lm_head.weight", "model.embed_tokens.weight"),
        ("vit", "classifier.weight", None),
    ],
)
def test_head_and_embedding_are_found(name, head, embedding):
    found = names({**JOBS, **OTHER_JOBS}[name]().model())

    assert found["heads"] == {head}
    assert found["embeddings"] == ({embedding} if embedding else set())


class Plain(nn.Module):
    """A model of one's own, with names that say nothing."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.a = nn.Embedding(50, 16)
        self.b = nn.Embedding(8, 16)
        self.c = nn.ModuleList([nn.Linear(16, 16, bias=False)])
        self.e = nn.Linear(16, 50, bias=False)
        self.d = nn.Linear(16, 16)
        if tied:
            self.e.weight = self.a.weight


def test_a_model_of_ones_own_is_sorted_by_its_structure_not_by_names():
    assert names(Plain()) == {
        "matrices": {"c.0.weight", "d.weight"},
        "transposed": set(),
        "embeddings": {"a.weight"},
        "heads": {"e.weight", "b.weight"},
        "others": {"d.bias"},
    }
    assert names(Plain(tied=True))["heads"] == {"a.weight", "b.weight"}


def test_without_an_embedding_the_last_layer_outside_of_blocks_is_the_head():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert names(model)["heads"] == {"2.weight"}
    assert names(model)["matrices"] == {"0.weight"}


def test_what_is_frozen_is_in_no_group():
    model = Plain()
    model.c[0].weight.requires_grad_(False)
    assert names(model)["matrices"] == {"d.weight"}


def test_the_rates_are_nanochats():
    model = GPT(GPTConfig(num_layers=1, dim=192, num_heads=2, num_kv_heads=2, vocab_size=64))

    optimizer = muon_adamw(model, learning_rate=0.02, weight_decay=0.1)

    muon, adamw = optimizer.parts
    assert [(g["kind"], g["lr"], g["weight_decay"]) for g in muon.param_groups] == [
        ("muon", 0.02, 0.1)
    ]
    assert muon.param_groups[0]["momentum"] == 0.95 and muon.param_groups[0]["nesterov"]
    # 192 is a quarter of 768: AdamW's rates are twice as high.
    assert [g["lr"] for g in adamw.param_groups] == pytest.approx([2 * 0.004, 2 * 0.2])
    for group in adamw.param_groups:
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.95), 1e-10, 0)
    for group in optimizer.param_groups:
        assert group["initial_lr"] == group["lr"]
        assert group["initial_weight_decay"] == group["weight_decay"]


def test_all_rates_keep_their_ratio_to_muons():
    def rates(learning_rate: float) -> list[float]:
        optimizer = muon_adamw(
            JOBS["llama"]().model(), learning_rate=learning_rate, weight_decay=0.1
        )
        return [group["lr"] for group in optimizer.param_groups]

    assert rates(0.04) == pytest.approx([2 * rate for rate in rates(0.02)])


def test_an_embedding_that_begins_small_has_a_rate_that_is_small():
    model = JOBS["llama"]().model()
    assert model.config.initializer_range == 0.02
    groups = muon_adamw(model, learning_rate=0.02, weight_decay=0.1).param_groups

    (rate,) = (g["lr"] for g in groups if g["params"][0] is model.model.embed_tokens.weight)
    assert rate == pytest.approx(0.2 * 0.02 * math.sqrt(768 / 32))


class Transposed(nn.Module):
    """A linear layer that keeps its weight as (in, out)."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_in, num_out))
        self.bias = nn.Parameter(torch.zeros(num_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


def test_a_matrix_kept_as_in_out_moves_as_the_same_matrix_kept_as_out_in():
    torch.manual_seed(0)
    as_rows = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 8), nn.Linear(8, 3))
    as_columns = nn.Sequential(Transposed(8, 24), nn.Tanh(), Transposed(24, 8), nn.Linear(8, 3))
    with torch.no_grad():
        for rows, columns in zip(as_rows, as_columns, strict=True):
            if isinstance(columns, Transposed):
                columns.weight.copy_(rows.weight.T)
                columns.bias.copy_(rows.bias)
        as_columns[3].load_state_dict(as_rows[3].state_dict())
    for model in (as_rows, as_columns):
        assert isinstance(muon_groups(model), MuonGroups)
        optimizer = muon_adamw(model, learning_rate=0.02, weight_decay=0.5)
        for number in range(3):
            x = torch.randn(5, 8, generator=torch.Generator().manual_seed(number))
            F.mse_loss(model(x), torch.ones(5, 3)).backward()
            optimizer.step()
            optimizer.zero_grad()

    for rows, columns in zip(as_rows, as_columns, strict=True):
        if isinstance(columns, Transposed):
            # The iteration runs in bfloat16, in another order: equal to its precision.
            torch.testing.assert_close(columns.weight.T, rows.weight, rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("dtype", "eight_bit", "muon", "adamw"),
    [
        (torch.float32, False, torch.optim.Muon, torch.optim.AdamW),
        (torch.float32, True, Muon8bit, torch.optim.AdamW),
        (torch.bfloat16, False, RoundedMuon, RoundedAdamW),
        (torch.bfloat16, True, RoundedMuon8bit, RoundedAdamW),
    ],
)
def test_the_classes_go_by_the_dtype_of_the_parameters(dtype, eight_bit, muon, adamw):
    model = Plain().to(dtype)
    optimizer = muon_adamw(model, learning_rate=0.02, weight_decay=0.1, eight_bit=eight_bit)
    assert [type(part) for part in optimizer.parts] == [muon, adamw]


def test_state_is_4_bytes_a_number_of_a_matrix_and_8_of_the_rest():
    model = Plain()
    optimizer = muon_adamw(model, learning_rate=0.02, weight_decay=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

    for part, per_number in zip(optimizer.parts, (4, 8), strict=True):
        for parameter, state in part.state.items():
            tensors = [t for name, t in state.items() if name != "step"]
            assert sum(t.nbytes for t in tensors) == per_number * parameter.numel()


def test_a_model_without_a_hidden_matrix_is_refused():
    with pytest.raises(BadInput, match="Sequential has no hidden matrix that is trained"):
        muon_adamw(nn.Sequential(nn.Linear(3, 2)), learning_rate=0.02, weight_decay=0.1)
