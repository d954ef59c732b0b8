"""``memfit predict``, typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import memfit
from tiny_runs import TARGET, tiny_gpt

from memfit.models.presets import PRESETS
from memfit.planner import predict as planner
from memfit.records.recipe import Recipe
from memfit.units import format_size


def test_json_is_one_object_on_stdout_and_nothing_else():
    said = memfit("predict", TARGET, "--batch-size", 2, "--seq-len", 8, "--json")

    prediction = planner.predict(tiny_gpt(), Recipe(batch_size=2), seq_len=8)
    expected = prediction.as_dict()
    found = json.loads(said.out)
    assert found.pop("seconds") > 0
    assert found == {key: value for key, value in expected.items() if key != "seconds"}
    assert (said.exit_code, said.err) == (0, "")


def test_people_get_the_verdict_first_and_the_numbers_after():
    said = memfit("predict", TARGET, "--memory", "1GiB")

    assert said.exit_code == 0
    assert said.err == ""
    assert said.out.startswith("Fits: ")
    for part in ("of 1.00 GiB", "tiny", "The peak is in step", "At the peak", "Parameters"):
        assert part in said.out


def test_every_recipe_option_reaches_the_recipe():
    options = ["--precision", "bf16", "--batch-size", 2, "--accumulate", 3]
    options += ["--checkpointing", "every:2", "--optimizer", "sgd"]

    recipe = json.loads(memfit("predict", TARGET, *options, "--json").out)["recipe"]

    assert (
        recipe
        == Recipe(
            precision="bf16", batch_size=2, accumulate=3, checkpointing="every:2", optimizer="sgd"
        ).as_dict()
    )


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_run_that_does_not_fit_is_told_like_any_other_and_exits_with_3(flags):
    said = memfit("predict", TARGET, "--memory", "100KiB", *flags)

    assert (said.exit_code, said.err) == (3, "")
    if flags:
        assert json.loads(said.out)["fits"] == "no"
    else:
        assert said.out.startswith("Does not fit: ")


def test_the_presets_are_listed():
    said = memfit("predict", "--list")

    assert [line.split()[0] for line in said.out.splitlines()] == list(PRESETS)
    assert json.loads(memfit("predict", "--list", "--json").out) == {
        name: preset.description for name, preset in PRESETS.items()
    }


# On a GPU

ON_GPU = ("--gpu", "rtx-4090", "--torch", "2.12")


def test_a_gpu_is_answered_with_all_its_layers_and_its_range():
    said = memfit("predict", TARGET, *ON_GPU, "--batch-size", 2, "--json")

    found = json.loads(said.out)
    assert (said.exit_code, found["fits"]) == (0, "yes")
    peak = found["peak"]
    assert 0 < peak["requested_bytes"] <= peak["allocated_bytes"] <= peak["reserved_bytes"]
    assert peak["device_bytes"] == peak["reserved_bytes"] + sum(found["outside"].values())
    assert sum(found["breakdown"].values()) == peak["allocated_bytes"]
    least, most = found["range"]["device_bytes"]
    assert least < peak["device_bytes"] < most
    assert found["device"]["name"] == "rtx-4090"
    assert found["simulation"]["torch"] == "2.12"
    assert set(found["facts"]) >= {"torch"}


def test_a_gpu_that_is_too_small_ends_with_3_and_says_where_memory_runs_out():
    said = memfit("predict", TARGET, *ON_GPU, "--memory", "1MiB")

    assert said.exit_code == 3
    assert said.out.startswith("Does not fit: ")
    assert "It runs out of memory before the first step, init" in said.out


CHATTY = """
import torch
import memfit

print("the file is read")


def loss(model, batch):
    print("a loss is asked for")
    return model(batch).sum()


def end(model, batch):
    raise SystemExit(3)


def rows(batch_size, seq_len):
    return torch.zeros(batch_size, 4)


def linear():
    return torch.nn.Linear(4, 4)


job = memfit.Job(model=linear, batch=rows, loss=loss)
ends = memfit.Job(model=linear, batch=rows, loss=end)
"""


@pytest.mark.parametrize("device", [("--gpu", "t4"), ()])
def test_what_a_job_prints_is_not_the_answer(tmp_path, device):
    (tmp_path / "chatty.py").write_text(CHATTY)

    said = memfit("predict", f"{tmp_path}/chatty.py:job", *device, "--json")

    assert json.loads(said.out)["fits"] == "yes"
    assert said.err.startswith("the file is read\n")


def test_a_job_that_exits_is_a_failure_with_its_place(tmp_path):
    (tmp_path / "chatty.py").write_text(CHATTY)

    said = memfit("predict", f"{tmp_path}/chatty.py:ends", "--gpu", "t4")

    assert said.exit_code == 1
    assert "ended its process with sys.exit(3). This was in step 1, forward." in said.err


def test_an_empty_name_is_no_gpu_and_not_the_cpu():
    said = memfit("predict", TARGET, "--gpu", "", "--seq-len", 4)

    assert said.exit_code == 2
    assert "no GPU is called ''" in said.err


def test_lengths_that_vary_are_told_beside_the_longest():
    said = memfit("predict", TARGET, *ON_GPU, "--seq-len", "4..16", "--json")

    lengths = json.loads(said.out)["lengths"]
    assert (lengths["shortest"], lengths["longest"]) == (4, 16)


SCRIPT = """
import sys
import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(10):
    model(torch.randn(int(sys.argv[2]), 1024).cuda()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("done", file=sys.stderr)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_is_run_as_it_is_with_its_own_arguments(script):
    said = memfit("predict", script, *ON_GPU, "--json", "--steps", 2, "--", "--rows", 4096)

    found = json.loads(said.out)
    assert said.exit_code == 0
    assert found["job"] == f"{script} --rows 4096"
    assert found["recipe"] is None
    assert found["breakdown"]["parameters"] == 4 * 1024 * 1024 + 4096
    assert "float32[4096, 1024]" in {t["dtype"] + t["shape"] for t in found["largest"]}


def test_a_script_without_a_gpu_asks_for_one(script):
    said = memfit("predict", script)

    assert said.exit_code == 2
    assert f"say which, as in memfit predict {script} --gpu rtx-4090" in said.err


def test_what_is_for_jobs_cannot_be_applied_to_a_script(script):
    said = memfit("predict", script, *ON_GPU, "--batch-size", 4, "--seq-len", 8, "--", 1)

    assert said.exit_code == 2
    assert "so --batch-size, --seq-len cannot be applied to it" in said.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["more"], "takes no arguments of its own, and was given more"),
        (["--steps", 3], "--steps says when a script is stopped"),
        (["--torch", "2.11"], "the version of torch and the settings of its allocator are rules"),
        ([*ON_GPU, "--torch", "1.13"], "the memory rules of PyTorch 1.13 are not known"),
        (["--seq-len", "4-8"], "--seq-len is '4-8': write a number of tokens, as in 1024, or"),
        (["--seq-len", "4..8"], "the CPU's keeps nothing: give the longest, 8"),
        ([*ON_GPU, "--seq-len", "8..4"], "write the shortest first"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_write(options, why):
    said = memfit("predict", TARGET, *options)

    assert (said.exit_code, said.out) == (2, "")
    assert why in said.err


# The page


def test_a_page_is_written_with_its_folder(tmp_path):
    page = tmp_path / "new" / "page.html"

    said = memfit("predict", TARGET, "--html", page, "--json")

    assert said.err == f"Wrote {page}\n"
    peak = json.loads(said.out)["peak"]["device_bytes"]
    assert format_size(peak) in page.read_text()


@pytest.fixture
def _no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(*_: object, **__: object) -> None:
        pytest.fail("it should have been refused before the work")

    monkeypatch.setattr(planner, "predict", predict)


@pytest.mark.usefixtures("_no_prediction")
def test_a_page_that_exists_is_refused_before_the_work(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("mine")

    said = memfit("predict", TARGET, "--html", page)

    assert said == (
        2,
        "",
        f"memfit: {page} exists: choose another name, or overwrite it with --force\n",
    )
    assert page.read_text() == "mine"


def test_with_force_a_page_is_replaced(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("mine")

    assert memfit("predict", TARGET, "--html", page, "--force").exit_code == 0
    assert page.read_text() != "mine"


@pytest.mark.usefixtures("_no_prediction")
@pytest.mark.parametrize(
    ("place", "why"),
    [("file/page.html", "file is not a folder"), (".", "it is a folder; name a file in it")],
)
def test_a_page_that_cannot_be_written_is_refused_before_the_work(tmp_path, place, why):
    (tmp_path / "file").touch()

    said = memfit("predict", TARGET, "--html", tmp_path / place, "--force")

    assert said.exit_code == 2
    assert f"cannot write {tmp_path / place}: " in said.err
    assert why in said.err


@pytest.mark.usefixtures("_no_prediction")
def test_a_page_in_a_read_only_folder_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)

    said = memfit("predict", TARGET, "--html", tmp_path / "new" / "page.html")

    assert said.exit_code == 2
    assert f"the folder {tmp_path} is read-only for you" in said.err
