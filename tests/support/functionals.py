"""Differentiable functions that training code calls, with the shapes of their operands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Shape = tuple[int, ...]
MATRIX, VECTOR, IMAGE = (4, 8), (8,), (2, 3, 8, 8)


@dataclass(frozen=True)
class Functional:
    """``function(device, *operands)``; operands need gradients."""

    function: Callable[..., torch.Tensor]
    shapes: tuple[Shape, ...]


def _of(function: Callable[..., Any], *shapes: Shape) -> Functional:
    """A function of tensors alone."""
    return Functional(lambda device, *tensors: function(*tensors), shapes)


def _ids(device: str, *shape: int, below: int = 8) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), device=device).reshape(shape) % below


def _with_ids(
    function: Callable[..., Any], ids: Shape, *shapes: Shape, below: int = 8
) -> Functional:
    """A function of indices and tensors."""
    return Functional(
        lambda device, *tensors: function(_ids(device, *ids, below=below), *tensors), shapes
    )


def _ones(function: Callable[..., Any], ones: Shape, *shapes: Shape) -> Functional:
    """A function of a constant tensor, of the operands' dtype, and tensors."""
    return Functional(
        lambda device, *tensors: function(tensors[0].new_ones(ones), *tensors), shapes
    )


_POINTWISE = """
relu gelu silu sigmoid tanh elu leaky_relu softplus mish hardswish hardtanh relu6 selu celu
logsigmoid softsign tanhshrink hardshrink hardsigmoid glu normalize
"""

_UNARY = """
exp log sqrt rsqrt square abs cos sin erf expm1 log1p sinh tan reciprocal neg tanh prod sum mean std
norm tril
"""

_PAIRS = """
mse_loss l1_loss smooth_l1_loss huber_loss cosine_similarity pairwise_distance gaussian
"""

PRODUCTS = {
    "linear": _of(F.linear, (4, 8), (6, 8), (6,)),
    "linear of a sequence": _of(F.linear, (2, 4, 8), (6, 8), (6,)),
    "matmul": _of(torch.matmul, (2, 4, 8), (2, 8, 5)),
    "matmul spread": _of(torch.matmul, (3, 2, 4, 8), (8, 5)),
    "bmm": _of(torch.bmm, (2, 4, 8), (2, 8, 5)),
    "baddbmm": _of(torch.baddbmm, (2, 4, 5), (2, 4, 8), (2, 8, 5)),
    "addmm": _of(torch.addmm, (5,), (4, 8), (8, 5)),
    "einsum": _of(lambda x, y: torch.einsum("bij,bkj->bik", x, y), (2, 4, 8), (2, 5, 8)),
    "bilinear": _of(F.bilinear, (4, 3), (4, 5), (6, 3, 5), (6,)),
    "outer": _of(torch.outer, (4,), (8,)),
    "dot": _of(torch.dot, VECTOR, VECTOR),
    "mv": _of(torch.mv, MATRIX, VECTOR),
    "tensordot": _of(lambda x, y: torch.tensordot(x, y, 1), MATRIX, (8, 3)),
    "multi_dot": _of(lambda *xs: torch.linalg.multi_dot(xs), MATRIX, (8, 3), (3, 5)),
    "conv1d": _of(F.conv1d, (2, 3, 16), (6, 3, 3), (6,)),
    "conv2d": _of(F.conv2d, IMAGE, (6, 3, 3, 3), (6,)),
    "conv2d with strides": _of(lambda x, w: F.conv2d(x, w, stride=2), IMAGE, (6, 3, 3, 3)),
    "conv2d of each channel": _of(lambda x, w: F.conv2d(x, w, groups=3), IMAGE, (3, 1, 3, 3)),
    "conv2d dilated": _of(lambda x, w: F.conv2d(x, w, dilation=2), IMAGE, (6, 3, 3, 3)),
    "conv3d": _of(F.conv3d, (1, 2, 4, 6, 6), (3, 2, 2, 3, 3), (3,)),
    "conv_transpose1d": _of(F.conv_transpose1d, (2, 4, 5), (4, 6, 3)),
    "conv_transpose2d": _of(F.conv_transpose2d, (2, 4, 5, 5), (4, 6, 3, 3), (6,)),
    "attention": _of(F.scaled_dot_product_attention, *((2, 4, 8, 16),) * 3),
    "causal attention": _of(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        *((2, 4, 8, 16),) * 3,
    ),
}

NORMS = {
    "layer_norm": _of(lambda x, w, b: F.layer_norm(x, (8,), w, b), (2, 4, 8), VECTOR, VECTOR),
    "layer_norm without weights": _of(lambda x: F.layer_norm(x, (4, 8)), (2, 4, 8)),
    "rms_norm": _of(lambda x, w: F.rms_norm(x, (8,), w), (2, 4, 8), VECTOR),
    "group_norm": _of(lambda x, w, b: F.group_norm(x, 2, w, b), (2, 8, 4, 4), VECTOR, VECTOR),
    "batch_norm": Functional(
        lambda device, x, w, b: F.batch_norm(
            x, torch.zeros(8, device=device), torch.ones(8, device=device), w, b, training=True
        ),
        ((2, 8, 4, 4), VECTOR, VECTOR),
    ),
    "batch_norm in use": Functional(
        lambda device, x, w, b: F.batch_norm(
            x, torch.zeros(8, device=device), torch.ones(8, device=device), w, b
        ),
        ((2, 8, 4, 4), VECTOR, VECTOR),
    ),
    "instance_norm": _of(F.instance_norm, (2, 8, 4, 4)),
    "local_response_norm": _of(lambda x: F.local_response_norm(x, 2), (2, 8, 4, 4)),
    "renorm": _of(lambda x: x.renorm(2, 0, 1.0), MATRIX),
}

IMAGES = {
    "max_pool1d": _of(lambda x: F.max_pool1d(x, 2), (2, 3, 8)),
    "max_pool2d": _of(lambda x: F.max_pool2d(x, 2), IMAGE),
    "max_pool3d": _of(lambda x: F.max_pool3d(x, 2), (2, 3, 4, 8, 8)),
    "avg_pool1d": _of(lambda x: F.avg_pool1d(x, 2), (2, 3, 8)),
    "avg_pool2d": _of(lambda x: F.avg_pool2d(x, 2), IMAGE),
    "adaptive_avg_pool2d": _of(lambda x: F.adaptive_avg_pool2d(x, 3), IMAGE),
    "adaptive_avg_pool2d to 1": _of(lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    "adaptive_max_pool2d": _of(lambda x: F.adaptive_max_pool2d(x, 3), IMAGE),
    "lp_pool2d": _of(lambda x: F.lp_pool2d(x, 2, 2), IMAGE),
    "pixel_shuffle": _of(lambda x: F.pixel_shuffle(x, 2), (2, 8, 4, 4)),
    "pad": _of(lambda x: F.pad(x, (1, 1)), IMAGE),
    "pad by reflection": _of(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), IMAGE),
    "pad by repetition": _of(lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), IMAGE),
    "pad around": _of(lambda x: F.pad(x, (1, 1), mode="circular"), (2, 3, 4)),
    "unfold": _of(lambda x: F.unfold(x, 3), IMAGE),
    "fold": _of(lambda x: F.fold(x, (8, 8), 2, stride=2), (2, 12, 16)),
    "grid_sample": _of(lambda x, g: F.grid_sample(x, g, align_corners=False), IMAGE, (2, 5, 5, 2)),
    "affine_grid": _of(lambda t: F.affine_grid(t, [2, 3, 4, 4], align_corners=False), (2, 2, 3)),
    **{
        f"interpolate, {mode}": _of(
            lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode), shape
        )
        for mode, shape in (
            ("nearest", IMAGE),
            ("nearest-exact", IMAGE),
            ("linear", (2, 3, 8)),
            ("bilinear", IMAGE),
            ("bicubic", IMAGE),
            ("area", IMAGE),
            ("trilinear", (2, 3, 4, 4, 4)),
        )
    },
}

LOSSES = {
    "cross_entropy": _with_ids(lambda ids, x: F.cross_entropy(x, ids), (4,), MATRIX),
    "cross_entropy smoothed": _with_ids(
        lambda ids, x: F.cross_entropy(x, ids, label_smoothing=0.1), (4,), MATRIX
    ),
    "cross_entropy weighted": _with_ids(
        lambda ids, x: F.cross_entropy(x, ids, weight=x.new_ones(8)), (4,), MATRIX
    ),
    "cross_entropy of an image": _with_ids(
        lambda ids, x: F.cross_entropy(x, ids), (2, 3, 3), (2, 8, 3, 3)
    ),
    "cross_entropy of probabilities": _ones(lambda p, x: F.cross_entropy(x, p), MATRIX, MATRIX),
    "nll_loss": _with_ids(lambda ids, x: F.nll_loss(x, ids), (4,), MATRIX),
    "multi_margin_loss": _with_ids(lambda ids, x: F.multi_margin_loss(x, ids), (4,), MATRIX),
    "kl_div": _of(lambda x, y: F.kl_div(x, y, reduction="batchmean"), MATRIX, MATRIX),
    "binary_cross_entropy_with_logits": _ones(
        lambda y, x: F.binary_cross_entropy_with_logits(x, y), MATRIX, MATRIX
    ),
    "hinge_embedding_loss": _ones(lambda y, x: F.hinge_embedding_loss(x, y), MATRIX, MATRIX),
    "soft_margin_loss": _ones(lambda y, x: F.soft_margin_loss(x, y), MATRIX, MATRIX),
    "margin_ranking_loss": _ones(lambda y, a, b: F.margin_ranking_loss(a, b, y), (4,), (4,), (4,)),
    "cosine_embedding_loss": _ones(
        lambda y, a, b: F.cosine_embedding_loss(a, b, y), (4,), MATRIX, MATRIX
    ),
    "triplet_margin_loss": _of(F.triplet_margin_loss, MATRIX, MATRIX, MATRIX),
    "poisson_nll_loss": _ones(lambda y, x: F.poisson_nll_loss(x, y), MATRIX, MATRIX),
    "ctc_loss": _with_ids(
        lambda ids, x: F.ctc_loss(
            F.log_softmax(x.float(), -1), ids + 1, torch.tensor([10, 10]), torch.tensor([4, 3])
        ),
        (2, 4),
        (10, 2, 9),
    ),
    "cdist": _of(torch.cdist, (2, 4, 8), (2, 5, 8)),
    "pdist": _of(F.pdist, MATRIX),
    **{name: _of(getattr(F, name), MATRIX, MATRIX) for name in _PAIRS.split()[:-1]},
    "gaussian_nll_loss": _ones(
        lambda v, x, y: F.gaussian_nll_loss(x, y, v), MATRIX, MATRIX, MATRIX
    ),
}

LOOKUPS = {
    "embedding": _with_ids(F.embedding, (2, 5), (8, 4)),
    "embedding with padding": _with_ids(
        lambda ids, w: F.embedding(ids, w, padding_idx=0), (2, 5), (8, 4)
    ),
    "embedding_bag": _with_ids(F.embedding_bag, (2, 5), (8, 4)),
    "embedding_bag, sum": _with_ids(
        lambda ids, w: F.embedding_bag(ids, w, mode="sum"), (2, 5), (8, 4)
    ),
    "gather": _with_ids(lambda ids, x: x.gather(1, ids), (4, 3), MATRIX),
    "scatter": _with_ids(lambda ids, x, y: x.scatter(1, ids, y), (4, 3), MATRIX, (4, 3)),
    "scatter_add": _with_ids(lambda ids, x, y: x.scatter_add(1, ids, y), (4, 3), MATRIX, (4, 3)),
    "index_select": _with_ids(lambda ids, x: x.index_select(0, ids), (3,), MATRIX),
    "index": _with_ids(lambda ids, x: x[ids], (3,), MATRIX),
    "index_put": _with_ids(lambda ids, x, y: x.index_put((ids,), y), (3,), MATRIX, (3, 8)),
    "index_add": _with_ids(lambda ids, x, y: x.index_add(0, ids, y), (3,), MATRIX, (3, 8)),
}

REDUCTIONS = {
    "sum over a dim": _of(lambda x: x.sum(1), MATRIX),
    "mean over a dim": _of(lambda x: x.mean(-1, keepdim=True), MATRIX),
    "var": _of(lambda x: x.var(0), MATRIX),
    "norm over a dim": _of(lambda x: x.norm(dim=-1), MATRIX),
    "vector_norm": _of(lambda x: torch.linalg.vector_norm(x, dim=-1), MATRIX),
    "logsumexp": _of(lambda x: x.logsumexp(-1), MATRIX),
    "softmax": _of(lambda x: F.softmax(x, -1), MATRIX),
    "softmax in fp32": _of(lambda x: F.softmax(x, -1, dtype=torch.float32), MATRIX),
    "log_softmax": _of(lambda x: F.log_softmax(x, 1), (4, 8, 3)),
    "gumbel_softmax": _of(F.gumbel_softmax, MATRIX),
    "cumsum": _of(lambda x: x.cumsum(-1), MATRIX),
    "cumprod": _of(lambda x: x.cumprod(-1), MATRIX),
    "logcumsumexp": _of(lambda x: x.logcumsumexp(-1), MATRIX),
    "max": _of(lambda x: x.max(), MATRIX),
    "max over a dim": _of(lambda x: x.max(-1)[0], MATRIX),
    "amax": _of(lambda x: x.amax(-1), MATRIX),
    "sort": _of(lambda x: x.sort(-1)[0], MATRIX),
    "topk": _of(lambda x: x.topk(3)[0], MATRIX),
    "median": _of(lambda x: x.median(-1)[0], MATRIX),
}

SHAPES = {
    "cat": _of(lambda *xs: torch.cat(xs), MATRIX, (2, 8)),
    "stack": _of(lambda *xs: torch.stack(xs), MATRIX, MATRIX),
    "chunk": _of(lambda x: x.chunk(2, -1)[1] * 2, MATRIX),
    "roll": _of(lambda x: x.roll(1, 0), MATRIX),
    "flip": _of(lambda x: x.flip(0), MATRIX),
    "repeat": _of(lambda x: x.repeat(2, 1), MATRIX),
    "repeat_interleave": _of(lambda x: x.repeat_interleave(2, 0), MATRIX),
    "transposed copy": _of(lambda x: x.t().contiguous(), MATRIX),
    "diagonal": _of(lambda x: x.diagonal() * 2, MATRIX),
    "where": _of(lambda x, y: torch.where(x > 0, x, y), MATRIX, MATRIX),
    "where with a number": _of(lambda x: torch.where(x > 0, x, 0.0), MATRIX),
    "masked_fill": _of(lambda x: x.masked_fill(x > 0, -1.0), MATRIX),
    "clamp": _of(lambda x: x.clamp(0, 1), MATRIX),
    "float": _of(lambda x: x.float(), MATRIX),
    "dropout": _of(lambda x: F.dropout(x, 0.3), MATRIX),
    "dropout2d": _of(lambda x: F.dropout2d(x, 0.3), IMAGE),
    "alpha_dropout": _of(lambda x: F.alpha_dropout(x, 0.3, True), MATRIX),
}

POINTWISE = {
    **{name: _of(getattr(F, name), MATRIX) for name in _POINTWISE.split()},
    **{f"torch.{name}": _of(getattr(torch, name), MATRIX) for name in _UNARY.split()},
    "gelu by tanh": _of(lambda x: F.gelu(x, approximate="tanh"), MATRIX),
    "prelu": _of(F.prelu, MATRIX, VECTOR),
    "add": _of(torch.add, MATRIX, VECTOR),
    "div": _of(torch.div, MATRIX, (4, 1)),
    "pow": _of(lambda x: x**3, MATRIX),
    "pow of a number": _of(lambda x: 2**x, MATRIX),
    "lerp": _of(lambda x, y: torch.lerp(x, y, 0.5), MATRIX, MATRIX),
    "addcmul": _of(torch.addcmul, MATRIX, MATRIX, MATRIX),
    "addcdiv": _of(torch.addcdiv, MATRIX, MATRIX, MATRIX),
    "atan2": _of(torch.atan2, MATRIX, MATRIX),
    "maximum": _of(torch.maximum, MATRIX, MATRIX),
    "cross": _of(torch.linalg.cross, (4, 3), (4, 3)),
}

FUNCTIONALS: dict[str, Functional] = {
    **PRODUCTS,
    **NORMS,
    **IMAGES,
    **LOSSES,
    **LOOKUPS,
    **REDUCTIONS,
    **SHAPES,
    **POINTWISE,
}

Described = list[tuple[Shape, str]]


def train(
    name: str, device: str, dtype: torch.dtype, autocast: torch.dtype | None = None
) -> Described:
    """Forward and backward; (shape, dtype) of the output and of the operands' gradients."""
    functional = FUNCTIONALS[name]
    operands = [
        torch.rand(shape, device=device, dtype=dtype, requires_grad=True)
        for shape in functional.shapes
    ]
    region = torch.autocast(device, dtype=autocast) if autocast else contextlib.nullcontext()
    with region:
        output = functional.function(device, *operands)
    if output.requires_grad:
        output.float().sum().backward()
    made = [output, *(operand.grad for operand in operands)]
    return [(tuple(t.shape), str(t.dtype)) for t in made if t is not None]
