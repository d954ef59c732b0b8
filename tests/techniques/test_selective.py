"""Selective checkpointing keeps products, runs the rest again, and lets go in time."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_jobs import JOBS, OTHER_JOBS, run_of
from torch import Tensor, nn
from torch.nn import functional as F

from memfit.profiler.capture import Capture
from memfit.records.recipe import Recipe
from memfit.records.timeline import Timeline
from memfit.techniques.checkpointing import checkpoint_blocks
from memfit.techniques.selective import CAST_BY_AUTOCAST
from memfit.tracing.step import trace


class Row(nn.Module):
    """Two blocks of whatever ``forward`` does."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.widen = nn.Linear(16, 32)
        self.narrow = nn.Linear(32, 16)


class InPlace(Base):
    """Writes into results of products."""

    def forward(self, x: Tensor) -> Tensor:
        wide = self.widen(self.norm(x))
        wide.mul_(3)
        wide.relu_()
        narrow = self.narrow(wide * 2)
        narrow += x
        return narrow.tanh()


class Heads(Base):
    """Views of one product, attention with a mask or with dropout, and products of tensors."""

    def __init__(self, dropout: float = 0.0, eager: bool = False) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.dropout, self.eager = dropout, eager

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        if self.eager:
            y = (q @ k.transpose(-2, -1) / 3).softmax(-1) @ v
            y = torch.einsum("bhtd,bhts->bhsd", y, y @ y.transpose(-2, -1))
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        x = x + F.dropout(y.transpose(1, 2).flatten(2), 0.3)
        return x + self.narrow(F.gelu(self.widen(self.norm(x))))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.back = nn.Conv1d(5, 5, 3, padding=1), nn.ConvTranspose1d(5, 5, 1)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.back(F.relu(self.norm(self.conv(x)), inplace=True))


class Experts(Base):
    """The rows of a token go where its values say."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = (x.sum(-1) > 0).nonzero(as_tuple=True)
        update = self.narrow(F.silu(self.widen(self.norm(x)[chosen])))
        return x.index_put(chosen, update.to(x.dtype), accumulate=True)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "in place": InPlace,
    "heads": Heads,
    "dropout in attention": lambda: Heads(dropout=0.2),
    "eager attention": lambda: Heads(eager=True),
    "convolutions": Convolutions,
    "experts": Experts,
    "nested autocast": lambda: Fp32Inside(),
}


class Fp32Inside(Base):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            wide = self.widen(self.norm(x.float()))
        return x + self.narrow(wide.sin())


def passes(block: Callable[[], nn.Module], checkpointing: str, **how: Any) -> list[Tensor]:
    """The result, the gradients and the generator's state after two passes."""
    torch.manual_seed(0)
    model = Row(block)
    checkpoint_blocks(model, Recipe(checkpointing=checkpointing))
    x = torch.randn(4, 5, 16, requires_grad=True)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16, **how):
            y = model(x)
        y.float().square().sum().backward()
    grads = [tensor.grad for tensor in (x, *model.parameters()) if tensor.grad is not None]
    return [y, *grads, *model.buffers(), torch.get_rng_state()]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_every_bit_is_that_of_the_plain_run(name, autocast):
    plain = passes(BLOCKS[name], "none", enabled=autocast)
    selective = passes(BLOCKS[name], "selective", enabled=autocast)

    torch.testing.assert_close(selective, plain, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["gpt", "llama", "vit", "qwen3"])  # without dropout
def test_no_product_runs_twice_and_everything_cheap_does(name):
    job = {**JOBS, **OTHER_JOBS}[name]()

    def products(checkpointing: str) -> dict[str, int]:
        torch.manual_seed(0)
        model = job.model()
        checkpoint_blocks(model, Recipe(checkpointing=checkpointing))
        batch = job.batch(2, 32)
        with torch.profiler.profile() as profile:
            loss = job.loss(model, batch)
            (loss[0] if isinstance(loss, tuple) else loss).backward()
        named = ("aten::mm", "aten::addmm", "aten::bmm", "aten::gelu", "aten::silu")
        attention = "aten::_scaled_dot_product_flash_attention_for_cpu"
        return {e.key: e.count for e in profile.key_averages() if e.key in (*named, attention)}

    plain, selective, full = (products(kind) for kind in ("none", "selective", "full"))
    for op, count in plain.items():
        if op in ("aten::gelu", "aten::silu"):
            assert selective[op] == 2 * count
        else:
            assert selective[op] == count
    assert full != selective


def peak_of(job: Any, checkpointing: str) -> int:
    recipe = Recipe(batch_size=8, checkpointing=checkpointing, optimizer="sgd")
    return int(trace(run_of(job, recipe)).curve().max())


def test_selective_holds_less_than_the_plain_run_and_more_than_whole_blocks():
    job = JOBS["gpt2"]()

    assert peak_of(job, "full") < peak_of(job, "selective") < peak_of(job, "none")


def test_what_is_kept_is_the_products_and_nothing_else():
    tensors = {"none": 0, "selective": 0}
    for checkpointing in tensors:
        model = Row(Heads)
        checkpoint_blocks(model, Recipe(checkpointing=checkpointing))
        x = torch.randn(64, 128, 16, requires_grad=True)
        capture = Capture()
        with capture:
            y = model(x)
        tensors[checkpointing] = int(capture.timeline.curve()[-1])
        y.sum().backward()
    unit = 64 * 128 * 16 * 4
    # A block's result, qkv 3, attention 1, the MLP's wide 2; not the last product, which no second
    # run needs.  Row sums of attention and states of generators are small.
    per_block = (1 + 3 + 1 + 2) * unit
    assert 2 * per_block <= tensors["selective"] < 2 * per_block + unit
    assert tensors["none"] > 2 * (per_block + 5 * unit)


def test_nothing_is_left_when_backward_is_done():
    model = Row(Heads)
    checkpoint_blocks(model, Recipe(checkpointing="selective"))
    x = torch.randn(4, 5, 16)

    def run() -> None:
        model.zero_grad()
        model(x).sum().backward()

    run()
    gc.collect()
    gc.disable()
    try:
        capture = Capture()
        with capture:
            run()
            model.zero_grad()
    finally:
        gc.enable()
    freed_of_before = sum(p.numel() * 4 for p in model.parameters())
    assert int(capture.timeline.curve()[-1]) <= freed_of_before
    assert not [o for o in gc.get_objects() if type(o).__name__ == "Region"]


def test_backward_can_be_taken_twice_where_the_graph_is_kept():
    torch.manual_seed(0)
    model = Row(Heads)
    checkpoint_blocks(model, Recipe(checkpointing="selective"))
    loss = model(torch.randn(4, 5, 16)).sum()

    first = torch.autograd.grad(
        loss, list(model.parameters()), retain_graph=True, allow_unused=True
    )
    second = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    torch.testing.assert_close(second, first, rtol=0, atol=0)


def test_a_kept_tensor_that_is_written_to_later_is_an_error_as_in_a_plain_run():
    class Overwrites(Base):
        def forward(self, x: Tensor) -> Tensor:
            wide = self.widen(x)
            self.wide = wide
            return self.narrow(wide)

    model = Row(Overwrites)
    checkpoint_blocks(model, Recipe(checkpointing="selective"))
    y = model(torch.randn(4, 16))
    with torch.no_grad():
        model.blocks[1].wide.zero_()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    "func", sorted(CAST_BY_AUTOCAST, key=lambda f: f.__name__), ids=lambda f: f.__name__
)
def test_the_products_that_are_cast_early_are_those_that_autocast_casts(func):
    square = torch.randn(1, 4, 4)
    arguments: dict[str, tuple[Tensor, ...]] = {
        **dict.fromkeys(("addmm",), (square[0],) * 3),
        **dict.fromkeys(("mm", "linear"), (square[0],) * 2),
        **dict.fromkeys(("addbmm",), (square[0], square, square)),
        **dict.fromkeys(("baddbmm", "scaled_dot_product_attention"), (square,) * 3),
        **dict.fromkeys(("bmm", "matmul", "__matmul__", "__rmatmul__"), (square,) * 2),
    }
    name = func.__name__
    if name.startswith("conv"):
        size = (4,) * int(name[-2])
        given: tuple[Tensor, ...] = (torch.randn(1, 2, *size), torch.randn(2, 2, *size))
    else:
        given = arguments[name]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert func(*given).dtype == torch.bfloat16


# Predicted


def measured(steps: Callable[[Capture], None]) -> Timeline:
    capture = Capture()
    with capture:
        steps(capture)
    return capture.timeline


@pytest.mark.parametrize("checkpointing", ["selective", "blocks:1:1"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [*JOBS, *OTHER_JOBS])
def test_the_predicted_curve_is_the_measured_one(name, precision, checkpointing):
    job = {**JOBS, **OTHER_JOBS}[name]()
    recipe = Recipe(precision=precision, batch_size=2, accumulate=2, checkpointing=checkpointing)
    steps = run_of(job, recipe)
    steps(Capture())
    predicted, real = trace(steps), measured(steps)

    if precision == "fp32":
        assert predicted.deltas().tolist() == real.deltas().tolist()
    else:  # where autocast ends, the order of frees is chance
        assert sorted(predicted.deltas().tolist()) == sorted(real.deltas().tolist())
        assert int(predicted.curve().max()) == int(real.curve().max())
