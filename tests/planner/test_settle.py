"""A budget becomes the least recomputation, or offload, whose predicted peak is inside it."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_jobs import JOBS
from tiny_runs import tiny_gpt

from memfit.errors import DoesNotFit
from memfit.models.gpt import GPTConfig, gpt_job
from memfit.planner.predict import predict
from memfit.planner.recomputation import recomputation_of
from memfit.planner.settle import _first, fewest_flops, settle
from memfit.records.recipe import Recipe

# The search, over a table of peaks


@st.composite
def tables(draw, *, falling):
    """Peaks of all (W, S), and the FLOPs of a block: whole and selectively."""
    num_blocks = draw(st.integers(1, 7))
    candidates = [(w, s) for w in range(num_blocks + 1) for s in range(num_blocks + 1 - w)]
    if falling:
        whole, selective, rest = sorted(draw(st.tuples(*[st.integers(0, 20)] * 3)))
        peaks = {
            (w, s): w * whole + s * selective + (num_blocks - w - s) * rest for w, s in candidates
        }
    else:
        peaks = {candidate: draw(st.integers(0, 30)) for candidate in candidates}
    selective_flops = draw(st.integers(0, 40))
    return num_blocks, peaks, selective_flops + draw(st.integers(1, 60)), selective_flops


def cost(found, whole, selective):
    return float("inf") if found is None else found[0] * whole + found[1] * selective


@given(tables(falling=True), st.integers(-1, 150))
def test_the_search_finds_the_fewest_flops_of_all(table, size):
    num_blocks, peaks, whole, selective = table

    found = fewest_flops(lambda w, s: peaks[w, s] <= size, num_blocks, whole, selective)

    inside = [candidate for candidate, peak in peaks.items() if peak <= size]
    best = min((cost(c, whole, selective) for c in inside), default=float("inf"))
    assert cost(found, whole, selective) == best
    assert found is None or found in inside


@given(tables(falling=False), st.integers(-1, 31), st.integers(0, 31))
def test_a_larger_budget_never_recomputes_more_whatever_the_peaks_are(table, size, more):
    num_blocks, peaks, whole, selective = table

    smaller, larger = (
        fewest_flops(lambda w, s: peaks[w, s] <= budget, num_blocks, whole, selective)  # noqa: B023
        for budget in (size, size + more)
    )

    assert cost(larger, whole, selective) <= cost(smaller, whole, selective)
    assert smaller is None or peaks[smaller] <= size


@given(tables(falling=True), st.integers(-1, 150))
def test_the_search_asks_for_few_peaks(table, size):
    num_blocks, peaks, _, _ = table
    asked = set()

    def fits(w, s):
        asked.add((w, s))
        return peaks[w, s] <= size

    fewest_flops(fits, num_blocks, 1000, 1)

    assert len(asked) <= 3 + 2 * num_blocks.bit_length()


# The recipe, over predictions


@pytest.fixture(scope="module")
def job():
    sizes = {"num_layers": 3, "dim": 32, "num_heads": 2, "num_kv_heads": 2}
    return gpt_job(GPTConfig(**sizes, vocab_size=32, seq_len=64))


RECIPE = Recipe(batch_size=4, optimizer="sgd")


_FOUND = {}


def predicted_once(job, recipe, **how):
    """Predicts a recipe of the module's one job once."""
    if recipe not in _FOUND:
        _FOUND[recipe] = predict(job, recipe, **how)
    return _FOUND[recipe]


@pytest.fixture(scope="module")
def peaks(job):
    return {
        f"blocks:{w}:{s}": predicted_once(
            job, RECIPE.but(checkpointing=f"blocks:{w}:{s}")
        ).peak.device_bytes
        for w in range(4)
        for s in range(4 - w)
    }


def with_numbers(recipe):
    numbers = {"none": (0, 0), "full": (3, 0)}
    return numbers.get(recipe.checkpointing) or recipe.checkpoint_blocks


def test_over_a_sweep_of_budgets_each_answer_is_the_cheapest_inside(job, peaks):
    blocks = recomputation_of(job, RECIPE, 64)
    assert blocks.num_blocks == 3
    assert 0 < blocks.selective < blocks.whole / 5
    lowest, highest = min(peaks.values()), max(peaks.values())
    costs = []
    for size in range(lowest, highest + 1, (highest - lowest) // 7):
        settled = settle(job, RECIPE.but(checkpointing=f"budget:{size}"), predict=predicted_once)
        found = with_numbers(settled)
        inside = [tuple(map(int, name.split(":")[1:])) for name in peaks if peaks[name] <= size]
        assert found in inside
        costs.append(cost(found, blocks.whole, blocks.selective))
        assert costs[-1] == min(cost(c, blocks.whole, blocks.selective) for c in inside)
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) > 3
    loosest = settle(job, RECIPE.but(checkpointing=f"budget:{highest}"), predict=predicted_once)
    assert loosest.checkpointing == "none"


def remembering(function):
    found = {}

    def call(job, recipe, **how):
        if recipe not in found:
            found[recipe] = function(job, recipe, **how)
        return found[recipe]

    return call


def test_a_budget_that_no_checkpointing_reaches_names_the_smallest_peak(job, peaks):
    with pytest.raises(DoesNotFit, match=r"smallest peak .* with checkpointing full, is") as error:
        settle(job, RECIPE.but(checkpointing="budget:100KiB"), predict=predict)

    assert error.value.smallest_bytes == min(peaks.values())


def test_a_recipe_without_a_budget_stays_as_it_is(job):
    assert settle(job, RECIPE, predict=predict) is RECIPE


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_running_a_block_again_selectively_costs_a_fraction_of_it(name):
    blocks = recomputation_of(JOBS[name](), Recipe(batch_size=2), 32)

    assert blocks.num_blocks == 2
    assert 0 < blocks.selective < blocks.whole / 3


def test_the_whole_of_a_block_is_its_products_counted_by_hand(job):
    rows, dim = 4 * 64, 32
    # Query, key, value, out and widen; narrow comes after the last tensor that is needed.
    products = 2 * rows * (4 * dim * dim + 4 * dim * dim)
    attention = 2 * 2 * 4 * 2 * 64 * 64 * 16

    found = recomputation_of(job, RECIPE, 64)

    assert found.whole - found.selective == products + attention


# Offload, over written peaks


class Written:
    """Stands in for a prediction."""

    def __init__(self, peak_bytes):
        self.peak = self
        self.device_bytes = peak_bytes
        self.breakdown = {"activations": 3200}


class Offloading:
    """Peak 5,000 bytes; what is moved is gone from it."""

    def __init__(self):
        self.asked = []

    def __call__(self, job, recipe, **how):
        self.asked.append(recipe.offload)
        moved = recipe.offloaded_activation_bytes
        return Written(5000 - (3000 if moved is None else min(moved, 3000)))


@pytest.fixture
def offloading():
    return Offloading()


@pytest.mark.parametrize(
    ("size", "offload"),
    [
        (5000, "none"),
        (4999, "activations:100"),
        (4000, "activations:1000"),
        (3950, "activations:1100"),
        (2000, "activations:3000"),
    ],
)
def test_as_few_bytes_are_moved_as_the_budget_needs(offloading, size, offload):
    recipe = Recipe(offload=f"activations:budget:{size}")

    assert settle(tiny_gpt(), recipe, predict=offloading).offload == offload
    assert len(offloading.asked) <= 8


def test_what_else_is_offloaded_stays(offloading):
    recipe = Recipe(offload="activations:budget:4500,optimizer")

    assert settle(tiny_gpt(), recipe, predict=offloading).offload == "activations:500,optimizer"


def test_offload_that_cannot_reach_the_budget_says_what_it_can(offloading):
    with pytest.raises(DoesNotFit, match="with offload activations") as error:
        settle(tiny_gpt(), Recipe(offload="activations:budget:1999"), predict=offloading)

    assert error.value.smallest_bytes == 2000


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 40))
def test_bisection_falls_with_the_budget_whatever_the_peaks_are(peaks, size):
    found = [
        _first(len(peaks), lambda n: peaks[n] <= budget)  # noqa: B023
        for budget in (size, size + 3, size + 40)
    ]

    indices = [len(peaks) if index is None else index for index in found]
    assert all(a >= b for a, b in itertools.pairwise(indices))
