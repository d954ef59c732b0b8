"""The accuracy table: peaks that others measured on their GPUs, beside what memfit predicts.

    python -m benchmarks.accuracy     (make accuracy does this, and what it needs, from scratch)

Each row is a run described in ``rows.toml``: its figures with their source, the model and the loop
in words.  The run is ordinary PyTorch code that asks for ``cuda``; it is traced on the virtual GPU,
and what it allocated is replayed by the allocator of the row's torch.  ``docs/accuracy.md`` is
written from the result.
"""
