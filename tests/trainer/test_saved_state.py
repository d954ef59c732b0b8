"""A run that goes on from its saved state is the run that was never stopped, to the last bit."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from memfit.errors import BadInput
from memfit.job import Job
from memfit.records.recipe import Recipe
from memfit.techniques.apply import Applied, apply
from memfit.trainer import saved_state, state_file
from memfit.trainer.rng import rng_state
from memfit.trainer.saved_state import latest, restore, save
from memfit.trainer.schedule import Schedule
from memfit.trainer.state_file import RunIdentity

RECIPE = Recipe(batch_size=2, accumulate=2, learning_rate=0.01)
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


class Tiny(nn.Module):
    """Dropout draws random numbers, batch norm has buffers, ``mix`` is not contiguous."""

    def __init__(self, *, tied: bool = False, width: int = 4, frozen: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, width)
        self.norm = nn.BatchNorm1d(width)
        self.mix = nn.Parameter(torch.randn(width, width).t())
        self.head = nn.Linear(width, 8, bias=False)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.norm.weight.requires_grad_(not frozen)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.dropout(self.norm(self.embedding(tokens)), 0.5, self.training)
        return self.head(x + x @ self.mix)


def tiny_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens), (tokens + 1) % 8)


def build(recipe: Recipe = RECIPE, **settings: Any) -> Applied:
    job = Job(
        model=lambda: Tiny(**settings), batch=lambda size, _: torch.zeros(size), loss=tiny_loss
    )
    return apply(job, recipe)


def run_of(recipe: Recipe = RECIPE) -> RunIdentity:
    return RunIdentity(job_name="tiny", recipe=recipe, seq_len=16, seed=1, data_hash="1f" * 32)


def train(applied: Applied, first: int, last: int) -> list[float]:
    """The losses of the steps, whose batches follow from their numbers."""
    losses = []
    for step in range(first, last + 1):
        batch = torch.randint(8, (4,), generator=torch.Generator().manual_seed(step))
        losses.append(applied.step(batch).loss)
    return losses


def saved(folder: Path, *steps: int, keep: int = 3, **settings: Any) -> Applied:
    """Trains from scratch and saves after each of ``steps``."""
    torch.manual_seed(0)
    applied, done = build(**settings), 0
    for step in steps:
        train(applied, done + 1, step)
        save_again(folder, step, applied, keep=keep)
        done = step
    return applied


def save_again(folder: Path, step: int, applied: Applied, keep: int = 3) -> Path:
    run = run_of(applied.step.recipe)
    return save(
        folder,
        step=step,
        model=applied.model,
        optimizer=applied.optimizer,
        run=run,
        keep=keep,
        extra={"tokenizer": "tokenizer.json"},
    )


def go_on(folder: Path, applied: Applied, **changes: Any) -> saved_state.Restored:
    run = replace(run_of(applied.step.recipe), **changes)
    return restore(folder, model=applied.model, optimizer=applied.optimizer, run=run)


def everything(applied: Applied) -> dict[str, Any]:
    """All that the next step hangs on, as bytes where it is tensors."""
    names = {parameter: name for name, parameter in applied.model.named_parameters()}
    optimizer = {
        (names[parameter], kind): value
        for parameter, state in applied.optimizer.state.items()
        for kind, value in state.items()
    }
    tensors = {**applied.model.state_dict(), **optimizer}
    return {"rng": rng_state()} | {
        name: (t.dtype, t.shape, t.contiguous().flatten().view(torch.uint8).tolist())
        for name, t in tensors.items()
    }


# Bit for bit


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_three_steps_saved_and_three_more_are_six_steps(tmp_path, optimizer, precision, tied):
    recipe = RECIPE.but(optimizer=optimizer, precision=precision)
    straight = saved(tmp_path, 3, recipe=recipe, tied=tied)
    losses = train(straight, 4, 6)
    finished = everything(straight)

    torch.manual_seed(123)  # another process has drawn other numbers
    resumed = build(recipe, tied=tied)
    restored = go_on(tmp_path, resumed)

    assert restored == saved_state.Restored(
        step=3,
        path=tmp_path / "step-00000003",
        extra={"tokenizer": "tokenizer.json"},
        notes=(),
    )
    assert train(resumed, 4, 6) == losses
    assert everything(resumed) == finished


def test_what_was_trained_since_is_undone(tmp_path):
    applied = saved(tmp_path, 2)
    then = everything(applied)
    train(applied, 3, 5)
    assert everything(applied) != then

    go_on(tmp_path, applied)

    assert everything(applied) == then


def test_a_state_from_before_the_first_step_takes_the_optimizer_back_to_nothing(tmp_path):
    applied = saved(tmp_path, 0)
    train(applied, 1, 1)

    go_on(tmp_path, applied)

    assert not any(applied.optimizer.state.values())


def test_parameters_in_bf16_come_back_in_bf16(tmp_path):
    linear = nn.Linear(3, 3, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1, momentum=0.9)
    linear(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    momentum = optimizer.state[linear.weight]["momentum_buffer"]
    then = linear.weight.tolist(), momentum.tolist()
    save(tmp_path, step=1, model=linear, optimizer=optimizer, run=run_of(), keep=1)
    optimizer.step()

    restore(tmp_path, model=linear, optimizer=optimizer, run=run_of())

    restored = optimizer.state[linear.weight]["momentum_buffer"]
    assert (linear.weight.tolist(), restored.tolist()) == then
    assert restored is not momentum and restored.dtype == torch.bfloat16


def test_optimizer_state_that_is_no_tensor_comes_back_too(tmp_path):
    linear = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    state = {"momentum_buffer": None, "rounds": 3, "scale": 0.1}
    optimizer.state[linear.weight].update(state)
    save(tmp_path, step=1, model=linear, optimizer=optimizer, run=run_of(), keep=1)
    optimizer.state.clear()

    restore(tmp_path, model=linear, optimizer=optimizer, run=run_of())

    assert optimizer.state[linear.weight] == state


# What is in the files, and what they cost


@pytest.mark.parametrize("share", ["parameter", "memory"])
def test_a_tied_tensor_is_saved_once_and_stays_tied(tmp_path, share):
    applied = saved(tmp_path, 1, tied=True)
    if share == "memory":
        applied.model.head.weight = nn.Parameter(applied.model.embedding.weight.data)
        shutil.rmtree(tmp_path / "step-00000001")
        save_again(tmp_path, 1, applied)

    go_on(tmp_path, applied)

    with safe_open(tmp_path / "step-00000001" / FILES[0], "pt") as file:
        assert "embedding.weight" in file.keys() and "head.weight" not in file.keys()  # noqa: SIM118
    model = applied.model
    assert latest(tmp_path).model["head.weight"] == "tied to embedding.weight"
    assert model.head.weight.data_ptr() == model.embedding.weight.data_ptr()


def test_the_files_hold_parameters_persistent_buffers_and_state_by_name(tmp_path):
    saved(tmp_path, 1, recipe=RECIPE.but(optimizer="sgd"), frozen=True)
    names = []
    for name in FILES[:2]:
        with safe_open(tmp_path / "step-00000001" / name, "pt") as file:
            names.append(sorted(file.keys()))

    assert names == [
        [
            "embedding.weight",
            "head.weight",
            "mix",
            "norm.bias",
            "norm.num_batches_tracked",
            "norm.running_mean",
            "norm.running_var",
            "norm.weight",
        ],
        [
            "momentum_buffer.embedding.weight",
            "momentum_buffer.head.weight",
            "momentum_buffer.mix",
            "momentum_buffer.norm.bias",
        ],
    ]
    assert sorted(path.name for path in (tmp_path / "step-00000001").iterdir()) == sorted(FILES)


def test_whoever_may_read_one_file_may_read_all(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / "plain").write_text("")

    modes = {path.stat().st_mode for path in (tmp_path / "step-00000001").iterdir()}
    assert modes == {(tmp_path / "plain").stat().st_mode}


def test_neither_way_makes_a_second_copy_of_the_weights(tmp_path):
    model = nn.Linear(256, 256, bias=False)  # 256 KiB
    optimizer = torch.optim.AdamW(model.parameters())
    model.weight.grad = torch.ones(256, 256)
    optimizer.step()
    settings = {"model": model, "optimizer": optimizer, "run": run_of()}

    saving = peak_bytes(lambda: save(tmp_path, step=1, keep=1, **settings))
    optimizer.state.clear()
    restoring = peak_bytes(lambda: restore(tmp_path, **settings))

    generator = torch.get_rng_state().nbytes
    assert saving == generator
    assert restoring == 2 * 256 * 1024 + 4  # the optimizer's state


def peak_bytes(function) -> int:
    """The highest bytes of tensors above those at the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def test_only_the_last_states_are_kept(tmp_path):
    saved(tmp_path, 1, 2, 3, keep=2)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    with pytest.raises(BadInput, match="cannot keep the last 0 saved states: keep at least 1"):
        saved(tmp_path, 4, keep=0)


# A disk that refuses


def test_a_disk_that_fills_up_leaves_the_states_before_and_nothing_half_written(tmp_path):
    resource = pytest.importorskip("resource", reason="limits are a POSIX matter")
    applied = saved(tmp_path, 1)
    then = everything(applied)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        with pytest.raises(BadInput) as refused:
            save_again(tmp_path, 2, applied)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert str(refused.value) == (
        f"cannot save step 2 in {tmp_path}: Error while serializing: I/O error: File too large "
        "(os error 27). A state takes 1.1 KiB: make room, or choose another folder with --out "
        "(the states saved before are as they were)"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert go_on(tmp_path, applied).step == 1
    assert everything(applied) == then


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(BadInput, match=r"cannot save step 1 in .*/file/state: Not a directory\. "):
        saved(tmp_path / "file" / "state", 1)


# Damage


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


CHECKSUM = "is damaged: its contents do not have their checksum"


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        (FILES[0], truncate, "{} has {} bytes, not the {} that were saved"),
        (FILES[1], truncate, "{} has {} bytes, not the {} that were saved"),
        (FILES[2], truncate, "{} is damaged: not a whole JSON document ("),
        (FILES[0], alter, "{} " + CHECKSUM),
        (FILES[1], alter, "{} " + CHECKSUM),
        (FILES[2], alter, "{} " + CHECKSUM),
        (FILES[0], Path.unlink, "cannot read {}: No such file or directory"),
        (FILES[1], Path.unlink, "cannot read {}: No such file or directory"),
        (FILES[2], Path.unlink, "cannot read {}: No such file or directory"),
        (FILES[2], lambda path: path.write_text("[]"), "{} is not a memfit file: it does not say"),
        (FILES[2], lambda path: path.write_bytes(b"\xff"), "{} is not a memfit saved_state: it is"),
    ],
)
def test_a_damaged_state_gives_way_to_the_one_before_and_says_so(tmp_path, name, damage, said):
    before = everything(saved(tmp_path, 1))
    saved(tmp_path, 1, 2)
    path = tmp_path / "step-00000002" / name
    num_bytes = path.stat().st_size
    damage(path)
    applied = build()

    restored = go_on(tmp_path, applied)

    cannot, instead = restored.notes
    wanted = said.format(path, f"{num_bytes - 2:,}", f"{num_bytes:,}")
    assert cannot.startswith(f"step-00000002 cannot be used: {wanted}")
    assert instead == "going on from step 1 instead"
    assert restored.step == 1
    assert everything(applied) == before


@given(name=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_wrong_bit_anywhere_is_noticed_or_changes_nothing(two_states, name, place, bit):
    folder, states = two_states
    path = folder / "step-00000002" / name
    sound = path.read_bytes()
    data = bytearray(sound)
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(data)
    applied = build()
    try:
        restored = go_on(folder, applied)
    finally:
        path.write_bytes(sound)

    assert everything(applied) == states[restored.step]
    assert restored.step == 1 or name == "state.json"  # there, white space may change


@pytest.fixture(scope="module")
def two_states(tmp_path_factory):
    """A folder with the states of steps 1 and 2, and what they are."""
    folder = tmp_path_factory.mktemp("state")
    return folder, {1: everything(saved(folder, 1)), 2: everything(saved(folder, 1, 2))}


def test_when_no_state_can_be_used_each_is_named(tmp_path):
    saved(tmp_path, 1, 2)
    num_bytes = (tmp_path / "step-00000001" / "model.safetensors").stat().st_size
    for step in (1, 2):
        (tmp_path / f"step-{step:08d}" / "model.safetensors").write_text("short")

    with pytest.raises(BadInput) as refused:
        go_on(tmp_path, build())

    short = f"model.safetensors has 5 bytes, not the {num_bytes:,} that were saved"
    assert str(refused.value) == (
        f"no saved state in {tmp_path} can be used, so the run has to begin anew, without "
        f"--resume: step-00000002 cannot be used: {tmp_path}/step-00000002/{short}; "
        f"step-00000001 cannot be used: {tmp_path}/step-00000001/{short}"
    )


def test_where_there_is_no_state_it_says_so(tmp_path):
    with pytest.raises(BadInput, match=r"there is no saved state in .*: leave out --resume"):
        go_on(tmp_path / "nothing", build())
    assert latest(tmp_path / "nothing") is None


def test_a_checksum_that_was_forged_does_not_let_tensors_of_another_shape_in(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    applied = build(width=6)
    with monkeypatch.context() as patch:
        patch.setattr(state_file.StateFile, "check_belongs", lambda *_: None)
        with pytest.raises(
            BadInput, match=r"ValueError: mix is float32\[4, 4\], not float32\[6, 6\]"
        ):
            go_on(tmp_path, applied)


# Whose state it is


def resign(path: Path, **changes: Any) -> None:
    """Changes state.json and gives it the checksum of its new contents."""
    document = json.loads(path.read_text()) | changes
    del document["checksum"]
    document["checksum"] = hashlib.sha256(json.dumps(document).encode()).hexdigest()
    path.write_text(json.dumps(document))


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
