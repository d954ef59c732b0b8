"""What memfit predicts for its contenders: python -m benchmarks.techniques.predict GROUP [quick]

A process of its own, which prints ``{key: tensor peak of the second step}``.
"""

from __future__ import annotations

import json
import os
import sys

from benchmarks.techniques.contenders import GROUPS, Contender, Size, quick
from benchmarks.techniques.jobs import job_of, recipe_of
from benchmarks.techniques.turns import CAPTURED_STEPS
from memfit.planner.predict import predict

PREDICTED = ("memfit", "engine")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    group = {group.name: group for group in GROUPS}[sys.argv[1]]
    group = quick(group) if "quick" in sys.argv[2:] else group
    peaks = {
        one.key: predicted_peak(one, group.size)
        for one in group.contenders
        if one.kind in PREDICTED
    }
    answers.write(json.dumps(peaks))
    answers.close()


def predicted_peak(contender: Contender, size: Size) -> int | None:
    """Bytes of tensors at the peak of the second step; None where memfit refuses."""
    from memfit.errors import MemfitError

    try:
        prediction = predict(
            job_of(contender, size), recipe_of(contender, size), seq_len=size.seq_len
        )
    except MemfitError as error:
        print(f"{contender.key}: {error}", file=sys.stderr)
        return None
    timeline = prediction.timeline
    return int(timeline.curve()[timeline.steps == CAPTURED_STEPS].max())


if __name__ == "__main__":
    main()
