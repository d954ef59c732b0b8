"""Fine-tuning a causal language model from transformers with a loop of one's own."""

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, LlamaConfig, get_linear_schedule_with_warmup

config = LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=128,
)
lengths = [5, 9, 7, 12, 6, 8, 10, 4]


def collate(examples):
    longest = max(len(example) for example in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, example in enumerate(examples):
        ids[row, : len(example)] = labels[row, : len(example)] = example
        mask[row, : len(example)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


model = AutoModelForCausalLM.from_config(config)
model.to("cuda")
model.train()
examples = [torch.randint(5, 128, (length,)) for length in lengths]
loader = DataLoader(examples, batch_size=2, collate_fn=collate, pin_memory=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 100)
num_tokens = []
for batch in loader:
    batch = {name: value.to("cuda", non_blocking=True) for name, value in batch.items()}
    num_tokens.append(batch["attention_mask"].sum().item())
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = model(**batch).loss
    if torch.isnan(loss):
        raise SystemExit("the loss is not a number")
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
assert num_tokens == [14, 19, 14, 14]
model.eval()
with torch.no_grad():
    prompt = batch["input_ids"][:1, :3]
    assert model.generate(prompt, max_new_tokens=4, do_sample=False).shape == (1, 7)
