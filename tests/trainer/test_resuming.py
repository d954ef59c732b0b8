"""Whose state it is: another run is refused, and what changes results is said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_states import (
    RECIPE,
    build,
    everything,
    go_on,
    resign,
    run_of,
    save_again,
    saved,
    truncate,
)
from torch import nn

from memfit.errors import BadInput
from memfit.records.recipe import Recipe
from memfit.techniques.apply import Applied
from memfit.trainer.saved_state import latest, restore, save
from memfit.trainer.schedule import Schedule


def test_a_state_of_a_newer_memfit_is_refused_and_none_before_it_taken(tmp_path):
    saved(tmp_path, 1, 2)
    path = tmp_path / "step-00000002" / "state.json"
    resign(path, version=2)
    said = f"{path} was written by a newer memfit (version 2; this one reads up to 1)"

    for read in (lambda: go_on(tmp_path, build()), lambda: latest(tmp_path)):
        with pytest.raises(BadInput) as refused:
            read()
        assert str(refused.value) == f"{said}: upgrade memfit to resume"


def test_a_field_of_the_wrong_type_is_damage(tmp_path):
    saved(tmp_path, 1)
    resign(tmp_path / "step-00000001" / "state.json", step="1")

    with pytest.raises(BadInput, match=r"state\.json is damaged: StateFile\.step is '1', not int"):
        go_on(tmp_path, build())


@pytest.mark.parametrize(
    ("recipe", "changes", "said"),
    [
        (RECIPE.but(optimizer="sgd"), {}, "--optimizer was adamw and is sgd"),
        (RECIPE.but(accumulate=3), {}, "batch size times accumulation was 4 and is 6"),
        (RECIPE, {"seq_len": 32}, "--seq-len was 16 and is 32"),
        (RECIPE, {"seed": 2}, "the seed was 1 and is 2"),
        (
            RECIPE,
            {"data_hash": "77"},
            f"the hash of data and tokenizer was {'1f' * 32} and is 77",
        ),
        (
            RECIPE,
            {"seed": 2, "seq_len": 8},
            "--seq-len was 16 and is 8; the seed was 1 and is 2",
        ),
    ],
)
def test_another_run_is_told_what_differs(tmp_path, recipe, changes, said):
    saved(tmp_path, 1)

    with pytest.raises(BadInput) as refused:
        go_on(tmp_path, build(recipe), **changes)

    assert str(refused.value) == (
        f"cannot go on from {tmp_path}/step-00000001, a state of tiny: {said}. Give what was given "
        "then; or, to train anew, another folder with --out"
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"width": 6}, "7 differ, first mix, which was float32[4, 4] and is float32[6, 6]"),
        ({"tied": True}, "1 differ, first head.weight, which was float32[8, 4] and is tied to "),
        (
            {"frozen": True},
            "1 differ, first norm.weight, which was float32[4] and is float32[4] fr",
        ),
    ],
)
def test_another_model_is_told_which_tensor_differs(tmp_path, settings, said):
    saved(tmp_path, 1)
    applied = build(**settings)
    then = everything(applied)

    with pytest.raises(BadInput) as refused:
        go_on(tmp_path, applied)

    assert f"a state of tiny: of the model's tensors {said}" in str(refused.value)
    assert everything(applied) == then


def test_a_model_with_other_names_is_another_model(tmp_path):
    saved(tmp_path, 1)
    linear = nn.Linear(2, 2)

    with pytest.raises(BadInput, match=r"10 differ, first mix, which was .* and is not there"):
        restore(
            tmp_path, model=linear, optimizer=torch.optim.AdamW(linear.parameters()), run=run_of()
        )


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [("none", "optimizer", "was off and is on"), ("optimizer", "none", "was on and is off")],
)
def test_the_state_of_narrow_parameters_does_not_move_to_the_host_nor_back(
    tmp_path, then, now, said
):
    """As fp32 on the host it is twice as large, and its fused update takes nothing else."""
    pure = RECIPE.but(precision="bf16-pure")
    applied = saved(tmp_path, 2, recipe=pure.but(offload=then))
    before = everything(applied)

    with pytest.raises(BadInput) as refused:
        go_on(tmp_path, build(pure.but(offload=now)))

    assert (
        f"a state of tiny: --offload optimizer {said}, and the state of parameters in bfloat16 has "
        "another form there. Give what was given then"
    ) in str(refused.value)
    again = build(pure.but(offload=f"activations,{then}" if then != "none" else "activations"))
    go_on(tmp_path, again)
    assert everything(again) == before


def test_the_state_of_fp32_parameters_moves_to_the_host_and_back(tmp_path):
    before = everything(saved(tmp_path, 2))
    moved = build(RECIPE.but(offload="optimizer"))

    (note,) = go_on(tmp_path, moved).notes

    assert note.endswith("not those of one run: offload was none and is optimizer")
    assert everything(moved) == before
    save_again(tmp_path, 2, moved)
    back = build()
    go_on(tmp_path, back)
    assert everything(back) == before


def test_checkpointing_may_change_without_a_word_and_the_micro_batch_with_one(tmp_path):
    saved(tmp_path, 1)
    recomputed = RECIPE.but(checkpointing="full")
    sliced = RECIPE.but(batch_size=1, accumulate=4)

    assert go_on(tmp_path, build(), recipe=recomputed).notes == ()
    assert go_on(tmp_path, build(), recipe=sliced).notes == (
        "from here on the results are not those of one run: batch_size was 2 and is 1",
    )


def test_what_changes_the_results_is_said(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    recipe = RECIPE.but(learning_rate=0.02, precision="bf16")
    monkeypatch.setattr(torch, "__version__", "9.9.9")

    restored = go_on(tmp_path, build(), recipe=recipe, job_name="mine")

    version = latest(tmp_path).conditions["torch"]
    (note,) = restored.notes
    assert note == (
        "from here on the results are not those of one run: job was tiny and is mine, torch was "
        f"{version} and is 9.9.9, precision was fp32 and is bf16, "
        "learning_rate was 0.01 and is 0.02"
    )


SCHEDULE = Schedule(20, 4)
MUON = RECIPE.but(optimizer="muon")
NOT_ONE_RUN = "from here on the results are not those of one run: "


def saved_under(folder: Path, step: int, recipe: Recipe = RECIPE, **conditions: Any) -> Applied:
    """A state whose run also knew these."""
    applied = saved(folder, step, recipe=recipe)
    run = replace(run_of(recipe), **conditions)
    save(folder, step=step, model=applied.model, optimizer=applied.optimizer, run=run, keep=1)
    return applied


@pytest.mark.parametrize(
    ("recipe", "step", "schedule", "said"),
    [
        (RECIPE, 3, SCHEDULE, None),
        # Up to here the rates rose alike; it is as if the run had been that long from the start.
        (RECIPE, 4, Schedule(400, 4), None),
        (RECIPE, 5, Schedule(400, 4), "num_steps was 20 and is 400"),
        (RECIPE, 1, Schedule(20, 5), "warmup_steps was 4 and is 5"),
        (RECIPE, 0, Schedule(400, 40), None),
        # No step follows.
        (RECIPE, 5, Schedule(5, 4), None),
        # Muon's weight decay falls from the second step on.
        (MUON, 1, Schedule(400, 4), None),
        (MUON, 2, Schedule(400, 4), "num_steps was 20 and is 400"),
        (MUON.but(weight_decay=0.0), 2, Schedule(400, 4), None),
    ],
)
def test_another_length_of_the_run_is_said_where_the_steps_done_had_other_rates(
    tmp_path, recipe, step, schedule, said
):
    saved_under(tmp_path, step, recipe, schedule=SCHEDULE)

    restored = go_on(tmp_path, build(recipe), schedule=schedule)

    assert restored.notes == ((NOT_ONE_RUN + said,) if said else ())


def test_who_trains_longer_at_one_rate_is_not_told(tmp_path):
    saved_under(tmp_path, 5, schedule=Schedule(5, 0, final_fraction=1.0))

    assert go_on(tmp_path, build(), schedule=Schedule(90, 0, final_fraction=1.0)).notes == ()


def test_another_end_that_is_cut_off_is_said_where_samples_are_cut(tmp_path):
    saved_under(tmp_path, 1, truncate="head")

    assert go_on(tmp_path, build(), truncate="head").notes == ()
    assert go_on(tmp_path, build(), truncate="tail").notes == (
        NOT_ONE_RUN + "truncate was head and is tail",
    )


def test_a_state_of_before_the_schedule_was_kept_says_nothing_of_it(tmp_path):
    saved(tmp_path, 5)

    restored = go_on(tmp_path, build(), truncate="tail", schedule=Schedule(9, 1))

    assert restored.notes == ()


def test_activations_may_be_moved_or_not_without_a_word(tmp_path):
    saved(tmp_path, 1)

    assert go_on(tmp_path, build(), recipe=RECIPE.but(offload="activations")).notes == ()


def test_the_newest_state_tells_what_it_is_before_there_is_a_model(tmp_path):
    saved(tmp_path, 1, 2, 3)
    truncate(tmp_path / "step-00000003" / "state.json")

    newest = latest(tmp_path)

    assert (newest.step, newest.extra) == (2, {"tokenizer": "tokenizer.json"})
    assert Recipe(**newest.recipe) == RECIPE
