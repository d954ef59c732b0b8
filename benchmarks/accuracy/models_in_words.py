"""What docs/accuracy.md says around its tables: how it is made, and what each group assumes."""

INTRODUCTION = """\
# How true the predictions are

Peaks that others measured on their GPUs, beside what memfit predicts for the same runs without a GPU. `make accuracy`
makes this page anew: it traces each run on the virtual GPU, replays what it allocated, and prints
the same figures. The rows with their sources are in `benchmarks/accuracy/rows.toml`, the models and loops beside
it. No constant was fitted to a row.

*Exact* means equal to the byte, or to the last digit where the source prints MiB or GiB.
"""

METHOD = """\
## How to read the tables

- **allocated** is `torch.cuda.memory_allocated()` or its peak, **reserved** the same of
  `memory_reserved()`; stages (`after forward`, ...) are allocated bytes when that part of the last step ends. A row
  that resets the peak is read from there on.
- **range**: up to torch 2.12 the allocator decides ties among equal free blocks by address, and
  CUDA does not say where it puts segments. Predictions are made for fresh segments at ascending
  addresses; the range holds descending ones too, and for xMem's rows batches of other lengths.
- **device** is what nvidia-smi shows: reserved memory and the CUDA context.
- verdicts: the allocator is given the card's memory less the context and the driver's growth; a run
  that asks for more, after all cached memory was given back, does not fit.
"""

GROUPS = {
    "Course model A on a B200": """\
A decoder written out op by op (einsum linears, RMSNorm, rotary embedding, eager softmax, SwiGLU), built inside
`torch.device("cuda")`. Fifteen steps, gradients zeroed, the peak reset, and a sixteenth step that
is measured; other rows of the source run fewer. Its AdamW is a loop in Python whose names keep tensors alive. Data-parallel rows:
one rank; an all-reduce in place per gradient allocates nothing, before or after backward, and NCCL's buffers
are outside the allocator. Checkpointed rows: `torch.utils.checkpoint` without re-entry over runs of layers.""",
    "Attention alone, before backward": """\
Query, key and value (8, T, width) in fp32, `softmax(q k^T / sqrt(width)) v` without heads, read after forward.
What is alive is one (8, T, T) matrix, the four tensors of that call and cuBLAS workspaces. The source with
bytes had run backward before (two workspaces, no gradients left); it does not name its GPU. The B200
source had not (one workspace); its figures hold a fifth tensor of the size of the output, taken to
be the gradient that backward starts from.""",
    "Course model B, recorded from an empty allocator": """\
Another decoder of the course: tables of the rotary embedding and the causal mask are made on the CPU and moved at each
call; its Adam makes new moments and parameters. The recordings name no GPU: its generation is known from the size of
the cuBLAS workspace (not Hopper), and an RTX 3090 is assumed. Torch 2.6 recorded a node for each full slice of
`logits[:, -1, :]`; newer torch does not, so the run makes them by hand.""",
    "Head and cross entropy alone": """\
Gemma 2's head on 8,192 tokens: bf16 logits, softcapping by `tanh` in bf16, cross entropy in fp32. Peaks above what is
allocated before. Measured with torch 2.4.1; predicted by the rules of 2.6.""",
    "bert-large by nvidia-smi on a V100": """\
Hugging Face's Trainer of early 2022, so a torch of about 1.11, predicted by the rules of 2.6: eager attention,
gradients zeroed in place and kept, clipping by a loop, `transformers.AdamW` as a loop in place. bitsandbytes' Adam8bit
is modelled by the layout of its states: two bytes per element and a float32 per block of 2,048 elements and state;
parameters below 4,096 elements keep float32 states. The context of 1,343 MiB was measured by the source.""",
    "xMem's published measurements": """\
Models of transformers 4.51.3 from their configurations, torch 2.6, fp32, four iterations; outputs, loss and batch
of one stay alive until the next has its own. The figure is NVML's growth from before the model was moved, so reserved memory and what the
driver takes as kernels load: 30 MiB, the 26 and 4 MiB seen on a T4 at the first calls of cuBLAS and cuDNN. Batches are lines
padded to the longest, at most 128 tokens; predicted with 128 throughout, and the range holds runs whose first
batch has 112 or 96. Rows without a recorded mode of `zero_grad` take mode 0.""",
    "Recorded streams": """\
The events of a recording (each allocation and free, in order, with the bytes asked for) beside
the predicted ones.""",
}
