"""The layers of a model are found by where they stand, whatever they are called."""

from __future__ import annotations

import pytest
import torch
from small_jobs import JOBS, OTHER_JOBS
from torch import Tensor, nn

from memfit.records.recipe import Recipe
from memfit.techniques.blocks import repeated_blocks
from memfit.techniques.checkpointing import checkpoint_blocks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.linear(x)).relu()


class Mixer(Block):
    """Another class of layer."""


class Experts(nn.Module):
    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(num_experts))
        self.norm = nn.LayerNorm(4)


class Stack(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def lists_of(*lengths: int) -> list[nn.ModuleList]:
    return [nn.ModuleList(Block() for _ in range(length)) for length in lengths]


def test_the_layers_are_found_and_not_the_experts_inside():
    layers = nn.ModuleList(Experts(num_experts=64) for _ in range(2))

    assert repeated_blocks(Stack(layers=layers)) == list(layers)


def test_encoder_and_decoder_are_one_row_of_blocks():
    encoder, decoder = lists_of(2, 3)

    assert repeated_blocks(Stack(encoder=encoder, decoder=decoder)) == [*encoder, *decoder]


def test_stages_that_are_nothing_but_blocks_are_taken_apart():
    stages = nn.ModuleList(nn.Sequential(*blocks) for blocks in lists_of(1, 3, 2))

    found = repeated_blocks(Stack(stages=stages))

    assert found == [block for stage in stages for block in stage]


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("gpt", "Block"),
        ("gpt2", "GPT2Block"),
        ("llama", "LlamaDecoderLayer"),
        ("bert", "BertLayer"),
        ("vit", "ViTLayer"),
        ("qwen3", "Qwen3DecoderLayer"),
        ("mixtral", "MixtralDecoderLayer"),
    ],
)
def test_a_transformers_layers_are_found(name, layer):
    found = repeated_blocks({**JOBS, **OTHER_JOBS}[name]().model())

    assert [type(block).__name__ for block in found] == [layer] * 2


def test_a_block_that_stands_in_two_places_is_one():
    first, second = Block(), Block()

    assert repeated_blocks(Stack(blocks=nn.ModuleList([first, second, first]))) == [first, second]


def test_layers_of_two_classes_in_turn_are_one_row_of_blocks():
    layers = nn.ModuleList([Block(), Mixer(), Block(), Mixer(), Mixer()])

    assert repeated_blocks(Stack(layers=layers)) == list(layers)


def test_two_layers_of_two_classes_are_found_where_nothing_else_repeats():
    layers = nn.ModuleList([Block(), Mixer()])

    assert repeated_blocks(Stack(layers=layers, norms=nn.ModuleList([nn.LayerNorm(8)] * 2))) == [
        *layers
    ]


def test_encoder_and_decoder_of_two_classes_are_both_found():
    encoder = nn.ModuleList([Block(), Block()])
    decoder = nn.ModuleList([Mixer()])

    assert repeated_blocks(Stack(encoder=encoder, decoder=decoder)) == [*encoder, *decoder]


def test_layers_by_name_are_found_and_a_dict_of_different_parts_is_no_list():
    layers = nn.ModuleDict({str(index): Block() for index in range(3)})
    parts = nn.ModuleDict({"wte": nn.Embedding(8, 8), "wpe": nn.Embedding(8, 8), "h": layers})

    assert repeated_blocks(Stack(layers=layers)) == list(layers.values())
    assert repeated_blocks(Stack(transformer=parts)) == list(layers.values())


def test_layers_between_an_embedding_and_a_head_are_found():
    model = nn.Sequential(nn.Embedding(8, 8), Block(), Block(), Mixer(), nn.Linear(8, 8))

    assert repeated_blocks(model) == list(model)[1:4]


def test_the_only_layer_is_found_and_not_its_experts():
    layer = Experts(num_experts=4)
    layer.mlps = nn.ModuleList(Block() for _ in range(4))

    assert repeated_blocks(Stack(layers=nn.ModuleList([layer]))) == [layer]


def test_lists_that_nothing_calls_are_taken_apart_and_norms_left_alone():
    """A layer of some vision transformers is a list of a norm, an attention and an MLP."""
    pairs = nn.ModuleList(nn.ModuleList([nn.LayerNorm(8), Block(), Mixer()]) for _ in range(2))

    assert repeated_blocks(Stack(layers=pairs)) == [*pairs[0][1:], *pairs[1][1:]]


def test_a_shared_block_inside_of_layers_is_not_taken_beside_them():
    shared = Block()
    layers = nn.ModuleList(Stack(own=nn.Linear(8, 8), shared=shared) for _ in range(2))

    assert repeated_blocks(Stack(shared=nn.ModuleList([shared]), layers=layers)) == list(layers)


def test_heads_and_embeddings_in_lists_are_taken_only_where_nothing_else_repeats():
    heads = nn.ModuleList(nn.Linear(8, 500) for _ in range(3))
    (layers,) = lists_of(2)

    assert repeated_blocks(Stack(layers=layers, heads=heads)) == list(layers)
    assert repeated_blocks(Stack(heads=heads)) == list(heads)


def test_a_recurrent_net_is_a_block_though_it_is_a_layer_of_pytorchs():
    nets = nn.ModuleList(nn.LSTM(8, 8) for _ in range(2))

    assert repeated_blocks(Stack(nets=nets)) == list(nets)


def test_one_block_that_is_called_many_times_is_checkpointed_in_each_call():
    class Universal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.groups = nn.ModuleList([Stack(layers=nn.ModuleList([Block()]))])

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self.groups[0].layers[0](x)
            return x

    torch.manual_seed(0)
    model, x = Universal(), torch.randn(4, 8)
    model(x).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    checkpoint_blocks(model, Recipe(checkpointing="full"))
    runs: list[int] = []
    block = model.groups[0].layers[0]
    block.linear.register_forward_pre_hook(lambda *_: runs.append(1))
    model(x).sum().backward()

    assert len(runs) == 6  # of which three in backward
    assert all(map(torch.equal, (p.grad for p in model.parameters()), expected))
