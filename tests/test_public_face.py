"""The names that people may lean on, and what ``import memfit`` costs."""

import json
import subprocess
import sys

import pytest

import memfit

PUBLIC = [
    "Device",
    "Job",
    "MemfitError",
    "Plan",
    "Prediction",
    "Recipe",
    "Replay",
    "RunLog",
    "Timeline",
    "__version__",
    "apply",
    "find_batch_size",
    "job_from_config",
    "predict",
    "preset",
    "train",
]

HEAVY = ["torch", "numpy", "typer", "rich", "transformers", "plotly"]

IMPORT = f"""
import sys, time
start = time.perf_counter()
import memfit
seconds = time.perf_counter() - start
import json
print(json.dumps([seconds, [name for name in {HEAVY} if name in sys.modules]]))
"""


def test_the_public_names_are_these() -> None:
    assert sorted(memfit.__all__) == PUBLIC
    assert dir(memfit) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(memfit, name)

    assert found is getattr(memfit, name)
    if name != "__version__":
        assert found.__name__ == name
        assert found.__doc__


def test_any_other_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'memfit' has no attribute 'plam'"):
        _ = memfit.plam


def test_importing_memfit_takes_under_150_ms_and_brings_in_nothing_heavy() -> None:
    # The interpreter's own start is not counted; the best of several, as other work may run.
    runs = [
        json.loads(subprocess.check_output([sys.executable, "-c", IMPORT], text=True))
        for _ in range(4)
    ]

    assert [heavy for _, heavy in runs] == [[]] * 4
    assert min(seconds for seconds, _ in runs) < 0.15
