"""Models of transformers that rows name, from their configurations, so that nothing is fetched.

Each configuration holds what differs from the defaults of its class in transformers; the numbers
are those of the ``config.json`` at huggingface.co under the name that is the key.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import nn

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai-community/gpt2": ("GPT2Config", {}),
    "distilbert/distilgpt2": ("GPT2Config", {"n_layer": 6}),
    "cerebras/Cerebras-GPT-111M": (
        "GPT2Config",
        {
            "n_layer": 10,
            "n_inner": 3072,
            "n_positions": 2048,
            "activation_function": "gelu",
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        },
    ),
    "facebook/opt-125m": ("OPTConfig", {}),
    "facebook/opt-350m": (
        "OPTConfig",
        {
            "hidden_size": 1024,
            "ffn_dim": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
    ),
    "EleutherAI/gpt-neo-125M": (
        "GPTNeoConfig",
        {
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "attention_types": [[["global", "local"], 6]],
            "attention_dropout": 0.0,
            "embed_dropout": 0.0,
            "resid_dropout": 0.0,
        },
    ),
    "T5-small": ("T5Config", {"decoder_start_token_id": 0}),
    "t5-base": (
        "T5Config",
        {
            "d_model": 768,
            "d_ff": 3072,
            "num_layers": 12,
            "num_heads": 12,
            "decoder_start_token_id": 0,
        },
    ),
    "bert-large-uncased": (
        "BertConfig",
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
    ),
}

PARAMETERS = {
    "openai-community/gpt2": 124_439_808,
    "distilbert/distilgpt2": 81_912_576,
    "cerebras/Cerebras-GPT-111M": 111_050_496,
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-350m": 331_196_416,
    "EleutherAI/gpt-neo-125M": 125_198_592,
    "T5-small": 60_506_624,
    "t5-base": 222_903_552,
    "bert-large-uncased": 335_143_938,
}
"""Parameters, those that are tied counted once; BERT with a head for two classes."""


def from_config(name: str, auto: str, **options: Any) -> nn.Module:
    """The model ``name`` of the class ``auto``, on the host, its values left undefined.

    Weights that are tied are tied; transformers leaves that out when it leaves out the values.
    """
    transformers = import_module("transformers")
    kind, changes = CONFIGS[name]
    config = getattr(transformers, kind)(**changes)
    with import_module("transformers.modeling_utils").no_init_weights():
        model: Any = getattr(transformers, auto).from_config(config, **options)
    model.tie_weights()
    return model  # type: ignore[no-any-return]
