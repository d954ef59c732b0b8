"""Muon for the hidden matrices, AdamW for everything else: who gets what, at which rates.

Muon turns the momentum of a matrix into a nearby orthogonal one before it steps (Jordan et al.
2024, https://kellerjordan.github.io/posts/muon/).  That is for matrices between hidden states.
Embeddings, whose rows are looked up one at a time, the head, vectors, and whatever else is not a
matrix are AdamW's.

Groups, rates and settings are nanochat's (https://github.com/karpathy/nanochat, nanochat/gpt.py,
``setup_optimizers``), as of its first release in October 2025.  Its Muon was then the one that
``torch.optim.Muon`` is; the later one, with a second moment and other iterations, goes with other
rates (head 0.008, embedding 0.3, momentum 0.97).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from memfit.errors import BadInput
from memfit.optimizers.forms import has_fused
from memfit.optimizers.muon_8bit import Muon8bit, RoundedMuon8bit
from memfit.optimizers.stochastic import RoundedAdamW, RoundedMuon
from memfit.optimizers.together import Together

_MATRIX_RATE = 0.02
"""nanochat's ``matrix_lr``: the other rates are given beside it, and keep their ratio to it."""

_HEAD_RATE = 0.004
"""``unembedding_lr``.  Here also for a head that is the embedding too, and for tables of other
things than tokens, such as positions."""

_EMBEDDING_RATE = 0.2
"""``embedding_lr``, for embeddings that begin with standard deviation 1, as nanochat's do.  AdamW
moves a number by about its rate, whatever its size, so the rate goes with the size of the numbers:
a small Llama whose embeddings begin at 0.02 came to a loss of 2.28 in 120 steps with 0.2 * 0.02, to
2.41 with 0.2."""

_VECTOR_RATE = 0.005
"""nanochat's first release has no vectors.  Later ones have scalars in the residual stream, with
0.01 * ``scalar_lr`` = 0.005, not scaled by the width."""

_REFERENCE_WIDTH = 768
"""The width nanochat's rates were found at; those of AdamW's matrices go with 1/sqrt(width)."""

_BETAS = (0.8, 0.95)
_EPS = 1e-10

PEAK_MOMENTUM = 0.95
"""Muon's momentum once it is warm."""


class MuonGroups(NamedTuple):
    """The parameters of a model that are trained, each in one list."""

    matrices: list[nn.Parameter]
    """Hidden matrices, (out, in)."""

    transposed: list[nn.Parameter]
    """Hidden matrices that are kept as (in, out), as GPT-2's are."""

    embeddings: list[nn.Parameter]
    """Embeddings of tokens, where they are not the head as well."""

    heads: list[nn.Parameter]
    """The matrix behind the logits, and tables of other things than tokens."""

    others: list[nn.Parameter]
    """Whatever is not a matrix: vectors, convolutions, stacks of experts."""


def muon_groups(model: nn.Module) -> MuonGroups:
    """Sorts the parameters of ``model`` that are trained, by what their modules do.

    The head is what a Hugging Face model says it is; or a linear layer that shares its weight with
    an embedding, or has as many outputs as an embedding has rows; or the last linear layer that is
    not in a list of blocks.  Embeddings of tokens are those with as many rows as the head has
    outputs, or all where none has.
    """
    head = _head(model)
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    num_outputs = None if head is None else head.shape[0]
    of_tokens = {id(table) for table in tables if table.shape[0] == num_outputs}
    transposed = {id(matrix) for matrix in _transposed(model)}
    all_tables = {id(table) for table in tables}
    groups = MuonGroups([], [], [], [], [])
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter is head:
            group = groups.heads
        elif id(parameter) in all_tables:
            is_of_tokens = id(parameter) in (of_tokens or all_tables)
            group = groups.embeddings if is_of_tokens else groups.heads
        elif parameter.dim() != 2:
            group = groups.others
        else:
            group = groups.transposed if id(parameter) in transposed else groups.matrices
        group.append(parameter)
    return groups


def muon_adamw(
    model: nn.Module, *, learning_rate: float, weight_decay: float, eight_bit: bool = False
) -> Together:
    """Muon and AdamW over the parameters of ``model`` that are trained.

    State bytes per fp32 parameter: Muon 4, in 8 bits 1.03125 and a little for the last block of a
    matrix; AdamW 8.  Parameters in bfloat16 are rounded stochastically.

    Each group has ``initial_lr`` and ``initial_weight_decay``, and those of Muon ``kind`` "muon",
    which schedules go by.

    Args:
        model: on its device, in its dtypes.
        learning_rate: Muon's at the peak; those of AdamW keep their ratio to it.
        weight_decay: of the hidden matrices.  AdamW's have none, as in nanochat.
        eight_bit: whether Muon keeps its momentum in 8 bits.

    Raises:
        BadInput: no hidden matrix is trained.
    """
    groups = muon_groups(model)
    if not groups.matrices and not groups.transposed:
        raise BadInput(
            f"{type(model).__name__} has no hidden matrix that is trained, so there is nothing for "
            "Muon to do: write optimizer adamw"
        )
    scale = learning_rate / _MATRIX_RATE
    narrow = scale * (_width(model) / _REFERENCE_WIDTH) ** -0.5
    adamw = [
        _group(groups.heads, _HEAD_RATE * narrow, 0.0),
        _group(groups.embeddings, _EMBEDDING_RATE * _deviation(model) * narrow, 0.0),
        _group(groups.others, _VECTOR_RATE * scale, 0.0),
    ]
    adamw = [group for group in adamw if group["params"]]
    muon = _muon_groups(groups, learning_rate, weight_decay)
    rounded = any(p.dtype == torch.bfloat16 for group in groups for p in group)
    muon_class, adamw_class = _classes(eight_bit=eight_bit, rounded=rounded)
    made: list[torch.optim.Optimizer] = [muon_class(muon, momentum=PEAK_MOMENTUM)]
    if adamw:
        # Fused it allocates nothing beside the state.
        fused = has_fused([p for group in adamw for p in group["params"]])
        form = {"fused": True} if fused else {"foreach": False}
        made.append(adamw_class(adamw, betas=_BETAS, eps=_EPS, **form))
    return Together(made)


def _muon_groups(
    groups: MuonGroups, learning_rate: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Muon's groups, such that a matrix kept as (in, out) moves as if it were (out, in).

    Muon multiplies the rate by sqrt(max(1, rows / columns)), which is meant for (out, in).  For its
    transpose that is too much by sqrt(in / out), both ways.
    """
    by_ratio: dict[float, list[nn.Parameter]] = {1.0: groups.matrices}
    for parameter in groups.transposed:
        num_in, num_out = parameter.shape
        by_ratio.setdefault(math.sqrt(num_out / num_in), []).append(parameter)
    return [
        {"kind": "muon"} | _group(parameters, learning_rate * ratio, weight_decay / ratio)
        for ratio, parameters in by_ratio.items()
        if parameters
    ]


def _group(
    parameters: list[nn.Parameter], learning_rate: float, weight_decay: float
) -> dict[str, Any]:
    return {
        "params": parameters,
        "lr": learning_rate,
        "initial_lr": learning_rate,
        "weight_decay": weight_decay,
        "initial_weight_decay": weight_decay,
    }


def _classes(
    *, eight_bit: bool, rounded: bool
) -> tuple[type[torch.optim.Muon], type[torch.optim.AdamW]]:
    if rounded:
        return RoundedMuon8bit if eight_bit else RoundedMuon, RoundedAdamW
    return Muon8bit if eight_bit else torch.optim.Muon, torch.optim.AdamW


def _head(model: nn.Module) -> Tensor | None:
    """The matrix behind the logits."""
    ask = getattr(model, "get_output_embeddings", None)
    said = ask() if callable(ask) else None
    if isinstance(said, nn.Module) and isinstance(said.weight, Tensor):
        return said.weight
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    linear = list(_outside_of_blocks(model))
    for layer in reversed(linear):
        if any(
            layer.weight is table.weight or layer.out_features == table.num_embeddings
            for table in tables
        ):
            return layer.weight
    return linear[-1].weight if linear else None


def _outside_of_blocks(module: nn.Module) -> Iterator[nn.Linear]:
    """The linear layers of a model, but for those in lists of blocks."""
    for child in module.children():
        if isinstance(child, nn.Linear):
            yield child
        elif not isinstance(child, nn.ModuleList):
            yield from _outside_of_blocks(child)


def _transposed(model: nn.Module) -> Iterator[nn.Parameter]:
    """Matrices (in, out): those whose bias is as long as their rows are."""
    for module in model.modules():
        weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
        if weight is None or bias is None or isinstance(module, nn.Linear):
            continue
        if weight.dim() == 2 and bias.shape == weight.shape[1:]:
            yield weight


def _width(model: nn.Module) -> int:
    """Numbers of a hidden state: the length of the head's rows, or of an embedding's."""
    head = _head(model)
    if head is not None:
        return head.shape[1]
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return tables[0].embedding_dim if tables else _REFERENCE_WIDTH


def _deviation(model: nn.Module) -> float:
    """The standard deviation that embeddings begin with: PyTorch's, unless the model says so."""
    return float(getattr(getattr(model, "config", None), "initializer_range", 1.0))
