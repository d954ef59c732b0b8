"""Trainer from transformers: bf16, checkpointing, accumulation, evaluation, two workers."""

import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        tokens = torch.randint(0, 128, (16,))
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=128))
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    per_device_train_batch_size=2,
    per_device_eval_batch_size=16,
    gradient_accumulation_steps=2,
    max_steps=2,
    logging_steps=1,
    bf16=True,
    report_to=[],
    save_strategy="steps",
    save_steps=1,
    dataloader_num_workers=2,
    eval_strategy="steps",
    eval_steps=2,
    gradient_checkpointing=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens())
trainer.train()
assert str(arguments.device) == "cuda:0"
