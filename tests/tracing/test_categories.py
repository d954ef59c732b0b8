from __future__ import annotations

import pytest

from memfit.records.timeline import CATEGORIES
from memfit.tracing.categories import category_code
from memfit.tracing.log import PhaseSpan, Use

CASES = [
    # use, phase it was born in, died in it, a module's forward was running -> category
    (Use.PARAMETER, "init", False, False, "parameters"),
    (Use.GRADIENT, "backward", False, False, "gradients"),
    (Use.INPUT, "optimizer", False, False, "inputs"),
    (Use.LOSS, "forward", False, True, "loss"),
    (Use.LOSS, "eval", True, True, "loss"),
    (Use.LOSS, "backward", True, True, "temporaries"),
    (Use.UNKNOWN, "forward", False, True, "activations"),
    (Use.UNKNOWN, "forward", True, True, "temporaries"),
    (Use.UNKNOWN, "backward", False, True, "activations"),
    (Use.UNKNOWN, "backward", False, False, "temporaries"),
    (Use.UNKNOWN, "optimizer", False, False, "optimizer_state"),
    (Use.UNKNOWN, "optimizer", True, False, "temporaries"),
    (Use.UNKNOWN, "init", False, False, "other"),
    (Use.UNKNOWN, "init", True, False, "temporaries"),
]


@pytest.mark.parametrize(("use", "phase", "died_within", "in_module", "expected"), CASES)
def test_a_block_is_told_by_its_birth_its_death_and_what_it_became(
    use: Use, phase: str, died_within: bool, in_module: bool, expected: str
) -> None:
    span = PhaseSpan(phase, 1, 0)
    code = category_code(use, span, died_within=died_within, in_module=in_module)
    assert CATEGORIES[code] == expected
