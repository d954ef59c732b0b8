"""``memfit gpus``, run as a command with a machine that has one known card."""

import dataclasses
import json

import pytest
import typer
from typer.testing import CliRunner

from memfit.cli.gpus import gpus
from memfit.devices import detect
from memfit.devices.catalog import catalog, find
from memfit.errors import UnknownName
from memfit.records.device import Device
from memfit.units import GiB

CPU = Device(name="cpu", kind="cpu", total_bytes=16 * GiB, label="AMD EPYC 9654")
MINE = dataclasses.replace(
    find("rtx-4090"), total_bytes=23 * GiB, sources={"total_bytes": "NVML, driver 580"}
)


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(detect, "machine", lambda: CPU)
    monkeypatch.setattr(detect, "gpus", lambda: [MINE])
    app = typer.Typer()
    app.command()(gpus)

    def invoke(*arguments):
        return CliRunner().invoke(app, arguments)

    return invoke


def test_this_machines_devices_come_first_and_are_marked(run):
    result = run()
    heading, *rows = result.stdout.splitlines()
    assert result.exit_code == 0
    assert " ".join(heading.split()) == "name memory GiB compute SMs GB/s bf16 TFLOP/s"
    assert [row.split()[0] for row in rows] == ["rtx-4090", "cpu", *catalog()]
    assert [row.split()[0] for row in rows if "this machine" in row] == ["rtx-4090", "cpu"]
    assert all("this machine" in row for row in rows[:2])


def test_a_row_holds_the_figures_in_the_units_of_the_heading(run):
    assert ["rtx-5090", "31.37", "12.0", "170", "1,792", "209.5"] in [
        row.split() for row in run().stdout.splitlines()
    ]
    assert ["t4", "14.58", "7.5", "40", "320", "-"] in [
        row.split() for row in run().stdout.splitlines()
    ]


def test_the_table_fits_80_columns(run):
    assert max(map(len, run().stdout.splitlines())) <= 80


def test_the_json_is_one_object_with_every_device_whole(run):
    result = run("--json")
    assert json.loads(result.stdout) == {
        "this_machine": [MINE.as_dict(), CPU.as_dict()],
        "catalog": [card.as_dict() for card in catalog().values()],
    }
    assert result.stderr == ""


@pytest.mark.parametrize("card", catalog().values(), ids=catalog())
def test_one_card_is_shown_with_every_source_on_one_line(run, card):
    if card.name == MINE.name:
        card = MINE
    result = run(card.name)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert f"{card.total_bytes / GiB:.2f}" in lines[1]
    for source in card.sources.values():
        assert sum(line.endswith(f": {source}") for line in lines) == 1


def test_one_card_as_json_is_one_object(run):
    result = run("h100", "--json")
    assert json.loads(result.stdout) == {"device": find("h100-80gb").as_dict()}


@pytest.mark.parametrize(("typed", "device"), [("cpu", CPU), ("CPU", CPU), ("rtx-4090", MINE)])
def test_a_name_of_this_machine_shows_this_machines_device(run, typed, device):
    assert json.loads(run(typed, "--json").stdout) == {"device": device.as_dict()}


def test_an_unknown_card_is_refused(run):
    assert isinstance(run("rtx-4091").exception, UnknownName)
