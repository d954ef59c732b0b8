"""Numbers in 8 bits: a block of 128 shares one scale.

Each block is divided by its largest magnitude and rounded to the nearest of 255 equal steps (the
blocks are those of Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization",
https://arxiv.org/abs/2110.02861, the equal steps what Muon is content with: Gupta et al. 2025,
"Effective Quantization of Muon Optimizer States", https://arxiv.org/abs/2509.23106).  A block goes
along the memory of a contiguous tensor, over the ends of rows; the last one is as short as it
comes, so small tensors are not padded.

A number takes 1 byte and a block 4 more: 1.03125 bytes a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK_SIZE = 128
"""Numbers that share a scale: the smallest power of two with at most 1.04 bytes a number."""

LARGEST_CODE = 127


class Quantised(NamedTuple):
    """A tensor in 8 bits."""

    codes: Tensor
    """int8 from -127 to 127, in the tensor's shape, contiguous."""

    scales: Tensor
    """fp32 (blocks,): the largest magnitude of each block."""


def empty(shape: torch.Size, device: torch.device) -> Quantised:
    """Room for a tensor of this shape, not filled."""
    codes = torch.empty(shape, dtype=torch.int8, device=device)
    num_blocks = -(-codes.numel() // BLOCK_SIZE)
    return Quantised(codes, torch.empty(num_blocks, dtype=torch.float32, device=device))


def quantise_(x: Tensor, out: Quantised) -> None:
    """Writes ``x`` (fp32, contiguous) into ``out``; ``x`` is used up.

    The error of a number is at most 1/254 of its block's largest magnitude.  A block with a NaN or
    an infinity comes back as such.  Takes no memory beside the scales.
    """
    for block, code, scale in _blocks(x, out):
        # The largest magnitude, without a tensor of all of them.
        torch.linalg.vector_norm(block, float("inf"), dim=1, keepdim=True, out=scale)
        divisor = scale.masked_fill(scale == 0, 1)  # a block of zeros stays zeros
        block.div_(divisor).mul_(LARGEST_CODE).round_()
        code.copy_(block)


def dequantise(quantised: Quantised) -> Tensor:
    """The numbers in fp32, in a new contiguous tensor."""
    x = quantised.codes.float()
    for block, _, scale in _blocks(x, quantised):
        # In this order the largest of a block comes back exactly.
        block.div_(LARGEST_CODE).mul_(scale)
    return x


def _blocks(x: Tensor, quantised: Quantised) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Views of numbers and codes (blocks, numbers of a block) and scales (blocks, 1).

    First all whole blocks, then the short one at the end.
    """
    numbers, codes, scales = x.view(-1), quantised.codes.view(-1), quantised.scales
    num_whole, rest = divmod(numbers.numel(), BLOCK_SIZE)
    if num_whole:
        size = num_whole * BLOCK_SIZE
        shape = (num_whole, BLOCK_SIZE)
        yield (
            numbers[:size].view(shape),
            codes[:size].view(shape),
            scales[:num_whole].unsqueeze(1),
        )
    if rest:
        yield (
            numbers[-rest:].unsqueeze(0),
            codes[-rest:].unsqueeze(0),
            scales[-1:].unsqueeze(1),
        )
