"""The built-in GPT: nanochat's Transformer, from token ids to logits.

    tokens -> embedding -> norm -> blocks: x + attention(norm(x)), x + mlp(norm(x)) -> norm -> head

Positions enter through rotary embeddings of queries and keys (RoPE), which are then normalised
(QK-norm).  Norms have no weights, linear layers no biases, the MLP squares a ReLU, embedding and
head are not tied, and the logits are capped softly at +-15.  One number, the depth, sets every
size.  Layers and sizes are those of nanochat's first release, the initialisation that of its later
ones (https://github.com/karpathy/nanochat, nanochat/gpt.py); all is fp32, as precision is a matter
of the recipe.

Letters of shapes: B samples, T tokens, C width, H query heads, G key/value heads, D channels of a
head (H * D = C), V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memfit.errors import BadInput
from memfit.job import Job
from memfit.models.objectives import (
    TensorDict,
    compute_dtype,
    document_mask,
    labelled_loss,
    token_batch,
    token_loss,
)
from memfit.records.recipe import SEQUENCES

HEAD_DIM = 128
DIM_PER_LAYER = 64
ROPE_BASE = 10_000
SOFTCAP = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class GPTConfig:
    """The sizes of a :class:`GPT`.

    Raises:
        BadInput: a size is below 1, or the heads do not divide the width evenly.
    """

    num_layers: int
    """Blocks, one after the other."""

    dim: int
    """Width of the residual stream, C."""

    num_heads: int
    """Query heads, H; each has dim / num_heads channels."""

    num_kv_heads: int
    """Heads of keys and values, G; each serves num_heads / num_kv_heads query heads."""

    vocab_size: int = 32_768
    """Token ids are below this."""

    seq_len: int = 2_048
    """Tokens of a training sequence.  Up to ten times as many can be run: see max_seq_len."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "dim", "num_heads", "num_kv_heads", "vocab_size", "seq_len"):
            if getattr(self, name) < 1:
                raise BadInput(f"GPTConfig.{name} is {getattr(self, name)}: it must be at least 1")
        if self.dim % (2 * self.num_heads):
            raise BadInput(
                f"dim {self.dim} cannot be split among {self.num_heads} heads: rotary embeddings "
                f"need an even number of channels each, so choose a multiple of "
                f"{2 * self.num_heads}"
            )
        if self.num_heads % self.num_kv_heads:
            raise BadInput(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads "
                f"evenly: choose a divisor of {self.num_heads}"
            )

    @classmethod
    def of_depth(cls, depth: int, *, vocab_size: int = 32_768, seq_len: int = 2_048) -> GPTConfig:
        """The sizes that nanochat gives a model of ``depth`` layers: 64 channels a layer, rounded
        up to whole heads of 128."""
        num_heads = math.ceil(depth * DIM_PER_LAYER / HEAD_DIM)
        return cls(
            num_layers=depth,
            dim=num_heads * HEAD_DIM,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            vocab_size=vocab_size,
            seq_len=seq_len,
        )

    @property
    def head_dim(self) -> int:
        """Channels of a head, D."""
        return self.dim // self.num_heads

    @property
    def max_seq_len(self) -> int:
        """Positions of the rotary tables: nanochat's room for longer sequences later on."""
        return 10 * self.seq_len


class GPT(nn.Module):
    """Token ids (B, T) to logits (B, T, V), in fp32."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.head = Linear(config.dim, config.vocab_size)
        # All tokens begin about equally likely: the first loss is ln(V).
        nn.init.normal_(self.head.weight, std=0.001)
        cos, sin = rotary_tables(config.max_seq_len, config.head_dim)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) of the token after each of ``tokens`` (B, T), fp32.

        ``position_ids`` (B, T) begin again at each document, which then sees itself alone; where
        they are left out a row is one document.
        """
        x = norm(self.embedding(tokens))  # (B, T, C)
        if position_ids is None:
            T = tokens.size(1)
            cos, sin, mask = self.cos[:T], self.sin[:T], None  # (T, 1, D/2)
        else:
            cos, sin = self.cos[position_ids], self.sin[position_ids]  # (B, T, 1, D/2)
            mask = document_mask(position_ids, compute_dtype(x))  # (B, 1, T, T)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        # One expression: each (B, T, V) tensor is let go as soon as the next one exists.
        return SOFTCAP * torch.tanh(self.head(norm(x)).float() / SOFTCAP)


class Block(nn.Module):
    """Attention, then the MLP, each added to the residual stream (B, T, C)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.mlp = MLP(config.dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(norm(x), cos, sin, mask)
        y: Tensor = x + self.mlp(norm(x))
        return y


class Attention(nn.Module):
    """Causal self-attention with rotary positions, normalised queries and keys, shared kv heads."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.shares_kv = config.num_kv_heads < config.num_heads
        self.query = Linear(config.dim, config.num_heads * config.head_dim)
        self.key = Linear(config.dim, config.num_kv_heads * config.head_dim)
        self.value = Linear(config.dim, config.num_kv_heads * config.head_dim)
        self.out = Linear(config.dim, config.dim)
        nn.init.zeros_(self.out.weight)  # a new block changes nothing

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        q = self.query(x).unflatten(-1, (-1, self.head_dim))  # (B, T, H, D)
        k = self.key(x).unflatten(-1, (-1, self.head_dim))  # (B, T, G, D)
        v = self.value(x).unflatten(-1, (-1, self.head_dim))  # (B, T, G, D)
        # Autocast leaves the tables in fp32, and fp32 times bf16 would make queries fp32 again.
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        q, k = norm(rotate(q, cos, sin)), norm(rotate(k, cos, sin))
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2),  # (B, H, T, D)
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=self.shares_kv,
        )
        joined: Tensor = self.out(y.transpose(1, 2).flatten(2))  # (B, T, C)
        return joined


class MLP(nn.Module):
    """Four times as wide inside, with the square of a ReLU between."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.widen = Linear(dim, 4 * dim)
        self.narrow = Linear(4 * dim, dim)
        nn.init.zeros_(self.narrow.weight)  # a new block changes nothing

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.narrow(F.relu(self.widen(x)).square())
        return y


class Linear(nn.Linear):
    """A linear layer without bias, its weights uniform with standard deviation 1/sqrt(fan in)."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        bound = math.sqrt(3 / self.in_features)
        nn.init.uniform_(self.weight, -bound, bound)


def norm(x: Tensor) -> Tensor:
    """RMSNorm over the last dim, without weights."""
    return F.rms_norm(x, (x.size(-1),))


def rotary_tables(num_positions: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine (num_positions, 1, D/2), fp32, of position * base**(-2i/D) for pair i."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, ROPE_BASE**-exponents).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs of channels (i, i + D/2) of x (B, T, H, D) by the angle of their position."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


def gpt_job(config: GPTConfig, name: str = "gpt") -> Job:
    """Trains a new GPT to predict the next token."""
    return Job(
        model=partial(GPT, config),
        batch=partial(token_batch, config.vocab_size),
        loss=next_token_loss,
        name=name,
        seq_len=config.seq_len,
        max_seq_len=config.max_seq_len,
        vocab_size=config.vocab_size,
        sequences=SEQUENCES,
    )


def next_token_loss(model: nn.Module, batch: Tensor | TensorDict) -> tuple[Tensor, int]:
    """``(sum of losses, number of targets)`` for token ids (B, T+1), or a dict with labels."""
    if isinstance(batch, Tensor):
        return token_loss(model(batch[:, :-1]), batch[:, 1:])
    return labelled_loss(model(batch["input_ids"], batch.get("position_ids")), batch)
