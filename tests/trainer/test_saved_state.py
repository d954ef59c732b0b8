"""A run that goes on from its saved state is the run that was never stopped, to the last bit."""

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tiny_states import (
    FILES,
    RECIPE,
    build,
    everything,
    go_on,
    run_of,
    save_again,
    saved,
    train,
    truncate,
)
from torch import nn
from torch.profiler import ProfilerActivity, profile

from memfit.errors import BadInput
from memfit.trainer import saved_state, state_file
from memfit.trainer.saved_state import latest, restore, save

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
