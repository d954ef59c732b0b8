"""Functions whose result's dtype autocast decides, each over one 8 x 8 operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fake_cuda import is_fakes_fault

Case = Callable[[torch.Tensor], Any]

UNKNOWN = "unknown"
"""Of a case that fake tensors cannot run."""


def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device="cuda:0")


CASES: dict[str, Case] = {
    "mm": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "addmm": lambda x: torch.addmm(x, x, x),
    "matmul": lambda x: torch.matmul(x[None], x),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None]),
    "prelu": lambda x: F.prelu(x, x[0, :1]),
    "outer": lambda x: torch.outer(x[0], x[0]),
    "tensordot": lambda x: torch.tensordot(x, x.float(), 1),
    "dot": lambda x: torch.dot(x[0], x[0].float()),
    "double": lambda x: x.double() @ x.double(),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None]
    ),
    "softmax": lambda x: x.softmax(-1),
    "F.softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: x.logsumexp(0),
    "sum": lambda x: x.sum(),
    "sum over a dim": lambda x: x.sum(0),
    "sum as fp16": lambda x: x.sum(0, dtype=torch.float16),
    "prod": lambda x: x.prod(),
    "cumsum": lambda x: x.cumsum(0),
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(),
    "var": lambda x: x.var(0),
    "norm": lambda x: x.norm(),
    "norm over a dim": lambda x: x.norm(dim=0),
    "vector_norm": lambda x: torch.linalg.vector_norm(x),
    "linalg.norm": lambda x: torch.linalg.norm(x),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x[None], 8),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "exp": lambda x: x.exp(),
    "log": lambda x: x.log(),
    "pow": lambda x: x.pow(2),
    "pow of a number": lambda x: 2**x,
    "rsqrt": lambda x: x.rsqrt(),
    "softplus": lambda x: F.softplus(x),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "l1_loss": lambda x: F.l1_loss(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
    "kl_div": lambda x: F.kl_div(x, x, reduction="batchmean"),
    "nll_loss": lambda x: F.nll_loss(x, _zeros(8)),
    "cross_entropy": lambda x: F.cross_entropy(x, _zeros(8)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "cdist": lambda x: torch.cdist(x, x),
    "addcmul": lambda x: torch.addcmul(x, x.float(), x),
    "cat": lambda x: torch.cat([x, x.float()]),
    "stack": lambda x: torch.stack([x, x.float()]),
    "add": lambda x: x + x.float(),
    "scatter_add": lambda x: x.scatter_add(0, _zeros(1, 8), x.float()),
    "index_put": lambda x: x.clone().index_put((_zeros(1),), x[:1].float()),
    "gelu": lambda x: F.gelu(x),
    "silu": lambda x: F.silu(x),
    "relu": lambda x: x.relu(),
    "sigmoid": lambda x: x.sigmoid(),
    "dropout": lambda x: F.dropout(x, 0.1),
    "embedding": lambda x: F.embedding(_zeros(2), x),
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "grid_sample": lambda x: F.grid_sample(
        x[None, None],
        torch.zeros(1, 2, 2, 2, device="cuda:0", dtype=x.dtype),
        align_corners=False,
    ),
}


def dtypes_under_autocast() -> dict[tuple[str, str, str], str]:
    """(case, operand's dtype, region's dtype) -> the result's dtype, or the error's type."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for region in (torch.bfloat16, torch.float16):
            for name, case in CASES.items():
                with torch.autocast("cuda", dtype=region):
                    found[name, str(dtype), str(region)] = _dtype_of(case, dtype)
    return found


def _dtype_of(case: Case, dtype: torch.dtype) -> str:
    try:
        return str(case(torch.ones(8, 8, device="cuda:0", dtype=dtype)).dtype)
    except (NotImplementedError, RuntimeError) as error:
        return UNKNOWN if is_fakes_fault(error) else str(error).splitlines()[0]
