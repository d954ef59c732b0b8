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
