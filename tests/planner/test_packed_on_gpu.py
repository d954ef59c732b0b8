"""Packed training is predicted for a card like any other, without asking for what is not known."""

import pytest
from small_jobs import JOBS

from memfit.models.sequences import with_sequences
from memfit.planner.predict import predict
from memfit.records.recipe import Recipe


@pytest.mark.parametrize("name", ["gpt", "gpt2"])
def test_packed_rows_take_more_by_their_mask_and_read_no_unknown_value(name) -> None:
    job, recipe = JOBS[name](), Recipe(batch_size=2, precision="bf16")

    rows = predict(job, recipe, device="rtx-4090", seq_len=64)
    packed = predict(with_sequences(job, "packed"), recipe, device="rtx-4090", seq_len=64)

    # The mask, in the dtype of the queries, is there through forward and backward.
    assert packed.peak.requested_bytes - rows.peak.requested_bytes >= 2 * 64 * 64 * 2
    assert packed.as_dict()["facts"].keys() == rows.as_dict()["facts"].keys()
