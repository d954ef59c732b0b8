"""Real out-of-memory errors: the system gives a process no more than a limit (RLIMIT_DATA).

A step that does not fit under the limit is taken back and taken in halves; the weights are those
of a process that had room and the small micro-batch from the start, to the last bit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "limited_step.py"

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux limits the memory of a process so"
)


def run(**asked: Any) -> dict[str, Any]:
    """Takes a step in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_step_without_room_is_taken_back_and_is_the_step_of_the_small_micro_batch():
    found = run(batch_size=16, room_mib=300)

    assert 1 <= found["batch_size"] < 16
    assert len(found["notes"]) == (16 // found["batch_size"]).bit_length() - 1
    assert all("you tried to allocate" in note for note in found["notes"])
    assert found["weights"] == run(batch_size=found["batch_size"], room_mib=None)["weights"]


def test_with_room_for_nothing_it_stops_with_advice():
    found = run(batch_size=4, room_mib=20)

    assert "one sample at a time does not fit" in found["error"]
