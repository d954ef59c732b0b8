"""Who is compared with whom: the contenders, in groups that take turns.  No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from memfit.records.recipe import OPTIMIZERS as RECIPE_OPTIMIZERS

STOCK_GELU = "gelu_new"
"""GPT-2's own in transformers: written out in Python, six temporaries an activation."""

FUSED_GELU = "gelu_pytorch_tanh"
"""The same function as one kernel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """A GPT-2 and what a step of it sees."""

    vocab_size: int
    batch_size: int
    num_layers: int = 6
    dim: int = 384
    num_heads: int = 6
    seq_len: int = 1024

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch_size * self.seq_len


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One way to train.

    ``key`` is its row, which pages under docs/how-to name in ``<!-- measured: KEY -->``.
    """

    key: str
    title: str
    kind: str = "memfit"
    """``loop``: a plain PyTorch loop; ``trainer``: Hugging Face's; ``memfit``: ``memfit.apply``;
    ``engine``: ``memfit train``; ``feed``: ``memfit.apply`` on documents; ``loss``: the head and
    the loss without a model."""

    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the Recipe, beside the batch size; a Trainer takes batch size and accumulation."""

    gelu: str = FUSED_GELU
    checkpointing: bool = False
    """Of a Trainer."""

    loss: str = ""
    """Of kind ``loss``: ``full``, ``chunked``, ``torch``, the first two also with ``-capped``."""

    pads: bool = False
    """Of kind ``feed``: every row to the longest length, as without batches by tokens."""

    gives_back: bool = False
    """Whether freed tensors go back to the system (``memfit.trainer.resident``)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Contenders that take turns."""

    name: str
    title: str
    size: Size
    contenders: tuple[Contender, ...]
    baseline: str
    """The key of the contender that ratios are given to."""

    timed_rounds: int = 3


LOOP = Contender(key="plain-loop", title="plain PyTorch loop", kind="loop")
TRAINERS = (
    Contender(key="trainer", title="Trainer, stock", kind="trainer", gelu=STOCK_GELU),
    Contender(key="trainer-tanh", title="Trainer, fused tanh GELU", kind="trainer"),
    Contender(
        key="trainer-checkpointed",
        title="Trainer, checkpointed",
        kind="trainer",
        gelu=STOCK_GELU,
        checkpointing=True,
    ),
)
PLAIN = Contender(key="memfit", title="memfit with nothing applied")
CHUNKED = Contender(key="loss-chunked", title="loss chunked", recipe={"loss": "chunked"})
SELECTIVE = Contender(
    key="loss-chunked-selective",
    title="loss chunked, checkpointing selective",
    recipe={"loss": "chunked", "checkpointing": "selective"},
)
FULL = Contender(
    key="loss-chunked-full",
    title="loss chunked, checkpointing full",
    recipe={"loss": "chunked", "checkpointing": "full"},
)

HALF = Contender(
    key="loss-chunked-half",
    title="loss chunked, checkpointing budget:512MiB",
    recipe={"loss": "chunked", "checkpointing": "budget:512MiB"},
)
"""Half of what the checkpointed Trainer takes is 513 MiB."""

_IN_PIECES = {"batch_size": 2, "accumulate": 4}
PIECES = replace(
    SELECTIVE,
    key="loss-chunked-pieces",
    title=f"{SELECTIVE.title}, 4 x 2 samples",
    recipe={**SELECTIVE.recipe, **_IN_PIECES},
)

_IN_BACKWARD = {"clip_norm": None, "optimizer_in_backward": True}

ENGINE = Contender(key="engine", title="memfit train with nothing applied", kind="engine")

MAIN = Group(
    name="vocabulary-8192",
    title="Vocabulary 8,192",
    size=Size(vocab_size=8_192, batch_size=8),
    baseline="trainer",
    contenders=(*TRAINERS, PLAIN, SELECTIVE, FULL),
)

AT_HALF = Group(
    name="at half",
    title="At half the peak of the checkpointed Trainer",
    size=MAIN.size,
    baseline="trainer-checkpointed",
    contenders=(
        TRAINERS[2],
        replace(
            TRAINERS[2],
            key="trainer-pieces",
            title=f"{TRAINERS[2].title}, 4 x 2 samples",
            recipe=_IN_PIECES,
        ),
        FULL,
        HALF,
        PIECES,
    ),
)

LOSS = Group(
    name="loss",
    title="The loss alone",
    size=Size(vocab_size=50_257, batch_size=4),
    baseline="loss-alone-full",
    contenders=tuple(
        Contender(key=f"loss-alone-{loss}", title=title, kind="loss", loss=loss)
        for loss, title in (
            ("full", "cross_entropy(linear(...))"),
            ("chunked", "memfit's chunks"),
            ("torch", "torch's linear_cross_entropy"),
            ("full-capped", "full, softcap 15"),
            ("chunked-capped", "memfit's chunks, softcap 15"),
        )
    ),
)

OVERHEAD = Group(
    name="engine",
    title="The engine",
    size=Size(vocab_size=8_192, batch_size=4),
    baseline="plain-loop",
    contenders=(LOOP, PLAIN, ENGINE),
    timed_rounds=7,
)

LOSS_IN_A_MODEL = Group(
    name="loss in a model",
    title="The loss in a model, and freed memory",
    size=OVERHEAD.size,
    baseline="memfit",
    contenders=(
        PLAIN,
        CHUNKED,
        FULL,
        replace(
            FULL, key="resident", title=f"{FULL.title}, freed memory given back", gives_back=True
        ),
    ),
)

CHECKPOINTING = Group(
    name="checkpointing",
    title="Checkpointing",
    size=OVERHEAD.size,
    baseline="memfit",
    contenders=(
        PLAIN,
        *(
            Contender(
                key=f"checkpointing-{key}",
                title=f"checkpointing {checkpointing}",
                recipe={"checkpointing": checkpointing},
            )
            for key, checkpointing in (
                ("selective", "selective"),
                ("full", "full"),
                ("every-2", "every:2"),
                ("budget", "budget:800MiB"),
            )
        ),
    ),
)

SEQUENCES = Group(
    name="sequences",
    title="Sequences",
    size=Size(vocab_size=8_192, batch_size=2),
    baseline="sequences-padded",
    contenders=(
        Contender(
            key="sequences-padded",
            title="a document a row, padded to 1,024",
            kind="feed",
            pads=True,
            recipe={"sequences": "documents"},
        ),
        Contender(
            key="sequences-documents",
            title="documents by a token budget",
            kind="feed",
            recipe={"sequences": "documents"},
        ),
        Contender(
            key="packing",
            title="documents packed",
            kind="feed",
            recipe={"sequences": "packed"},
        ),
        Contender(
            key="staged-lengths",
            title="packed, staged: 256 of 1,024 tokens",
            kind="feed",
            recipe={"sequences": "packed", "seq_schedule": "256:1000,1024"},
        ),
    ),
    timed_rounds=6,
)

_SLOW = ("lion-8bit", "muon", "muon-8bit")
_ADAMW = Contender(key="optimizer-adamw", title="adamw", recipe={"optimizer": "adamw"})

OPTIMIZERS = Group(
    name="optimizers",
    title="Optimizers",
    size=Size(vocab_size=8_192, batch_size=1),
    baseline="optimizer-adamw",
    contenders=(
        _ADAMW,
        *(
            Contender(key=f"optimizer-{name}", title=name, recipe={"optimizer": name})
            for name in RECIPE_OPTIMIZERS
            if name not in ("adamw", *_SLOW)
        ),
        Contender(key="optimizer-in-backward", title="adamw in backward", recipe=_IN_BACKWARD),
    ),
)

MUON = Group(
    name="muon",
    title="Optimizers: Muon and Lion",
    size=OPTIMIZERS.size,
    baseline="optimizer-adamw",
    contenders=(
        _ADAMW,
        *(
            Contender(key=f"optimizer-{name}", title=name, recipe={"optimizer": name})
            for name in _SLOW
        ),
    ),
    timed_rounds=1,
)

_FP32 = Contender(key="fp32", title="fp32, 2 samples")

CLAIMS = Group(
    name="precision",
    title="Precision and accumulation",
    size=Size(vocab_size=8_192, batch_size=2),
    baseline="fp32",
    contenders=(
        _FP32,
        Contender(
            key="accumulation",
            title="2 samples as 2 x 1",
            recipe={"batch_size": 1, "accumulate": 2},
        ),
        Contender(
            key="accumulate-8",
            title="8 samples as 8 x 1",
            recipe={"batch_size": 1, "accumulate": 8},
        ),
        Contender(key="one-sample", title="1 sample", recipe={"batch_size": 1}),
        Contender(key="bf16", title="bf16 autocast", recipe={"precision": "bf16"}),
        Contender(key="bf16-pure", title="bf16-pure", recipe={"precision": "bf16-pure"}),
    ),
    timed_rounds=2,
)

OFFLOAD = Group(
    name="offload",
    title="Offload",
    size=CLAIMS.size,
    baseline="fp32",
    contenders=(
        _FP32,
        Contender(
            key="offload-activations",
            title="offload activations",
            recipe={"offload": "activations"},
        ),
        Contender(
            key="offload-optimizer", title="offload optimizer", recipe={"offload": "optimizer"}
        ),
    ),
)

LARGE = Group(
    name="vocabulary-50257",
    title="Vocabulary 50,257",
    size=Size(vocab_size=50_257, batch_size=8),
    baseline="trainer",
    contenders=(*TRAINERS, SELECTIVE, FULL),
    timed_rounds=1,
)

GROUPS = (
    MAIN,
    AT_HALF,
    LOSS,
    OVERHEAD,
    LOSS_IN_A_MODEL,
    CHECKPOINTING,
    SEQUENCES,
    OPTIMIZERS,
    MUON,
    CLAIMS,
    OFFLOAD,
    LARGE,
)
"""In the order they run: what a stopped run must not miss comes first, the dearest last.  A group
has at most six contenders, which is what memory holds side by side."""


_QUICK = {
    "256:1000,1024": "32:1000,128",
    "budget:512MiB": "budget:12MiB",
    "budget:800MiB": "budget:12MiB",
}
"""What stands in the recipes for a model of milliseconds."""


def quick(group: Group) -> Group:
    """The same contenders on a model of milliseconds a step, to try the benchmark itself."""
    size = replace(group.size, vocab_size=512, num_layers=2, dim=64, num_heads=2, seq_len=128)
    contenders = tuple(
        replace(one, recipe={name: _QUICK.get(value, value) for name, value in one.recipe.items()})
        for one in group.contenders
    )
    return replace(group, size=size, contenders=contenders, timed_rounds=2)


def samples_of(contender: Contender, size: Size) -> int:
    """Samples of a step."""
    batch_size = int(contender.recipe.get("batch_size", size.batch_size))
    return batch_size * int(contender.recipe.get("accumulate", 1))
