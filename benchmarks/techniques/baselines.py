"""What memfit is compared with: a plain PyTorch loop, and Hugging Face's Trainer.

Both use torch's fused AdamW as memfit sets it, decay matrices only, and clip gradients to norm 1.
The Trainer's learning rate falls to 0, which costs nothing.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn

from benchmarks.techniques.contenders import Contender, Size
from benchmarks.techniques.jobs import gpt2_config
from benchmarks.techniques.turns import Turns
from memfit.records.recipe import Recipe

RECIPE = Recipe(batch_size=1)
BETAS = (0.9, 0.95)
"""As memfit.techniques.optimizer has them."""


def build(contender: Contender, size: Size) -> nn.Module:
    """A fresh GPT2LMHeadModel."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model: nn.Module = GPT2LMHeadModel(GPT2Config(**gpt2_config(size, contender.gelu)))
    return model


def run_loop(contender: Contender, size: Size, turns: Turns) -> None:
    """The loop that everybody writes."""
    model = build(contender, size)
    groups = [
        {
            "params": [p for p in model.parameters() if p.dim() >= 2],
            "weight_decay": RECIPE.weight_decay,
        },
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RECIPE.peak_learning_rate, betas=BETAS, fused=True)
    while turns.wait():
        ids = torch.randint(size.vocab_size, (size.batch_size, size.seq_len))
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        del loss, ids
        turns.done(size.tokens)


def run_trainer(contender: Contender, size: Size, turns: Turns) -> None:
    """One call of ``Trainer.train``, which waits for its turn between steps."""
    import transformers

    class WaitsForItsTurn(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._wait(control)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            turns.done(size.tokens)
            self._wait(control)

        def _wait(self, control: Any) -> None:
            control.should_training_stop = not turns.wait()

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=contender.recipe.get("batch_size", size.batch_size),
            gradient_accumulation_steps=contender.recipe.get("accumulate", 1),
            optim="adamw_torch_fused",
            learning_rate=RECIPE.peak_learning_rate,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            weight_decay=RECIPE.weight_decay,
            max_grad_norm=1.0,
            max_steps=10_000,
            gradient_checkpointing=contender.checkpointing,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        transformers.Trainer(
            model=build(contender, size),
            args=arguments,
            train_dataset=_RandomTokens(size),
            callbacks=[WaitsForItsTurn()],
        ).train()


class _RandomTokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, size: Size) -> None:
        self._size = size

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(self._size.vocab_size, (self._size.seq_len,))
        return {"input_ids": ids, "labels": ids}
