"""``memfit gpus``, run as a command with a machine that has one known card."""

import dataclasses
import json

import pytest
import typer
from typer.testing import CliRunner

from memfit.cli.gpus import gpus
from memfit.devices import detect
from memfit.devices.catalog import catalog, find
from memfit.errors import BadInput, UnknownName
from memfit.records.device import Device
from memfit.units import GiB

CPU = Device(name="cpu", kind="cpu", total_bytes=16 * GiB, label="AMD EPYC 9654")
MINE = dataclasses.replace(
    find("rtx-4090"), total_bytes=23 * GiB, sources={"total_bytes": "NVML, driver 580"}
)
PRO_6000 = ["rtx-pro-6000", "rtx-pro-6000-max-q", "rtx-pro-6000-server"]


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
        assert sum(line.partition(": ")[2] == source for line in lines) == 1


def test_one_card_is_shown_with_every_figure(run):
    shown = run("h100").stdout
    _, *rows = shown[: shown.index("sources")].splitlines()
    assert [" ".join(row.split()) for row in rows] == [
        "memory, GiB 79.20",
        "compute capability 9.0",
        "SMs 132",
        "threads of an SM 2,048",
        "shared memory of a block, KiB 227",
        "L2 cache, MiB 50.00",
        "bandwidth, GB/s 3,352",
        "fp32, TFLOP/s 66.9",
        "tf32, TFLOP/s 494.7",
        "fp16, TFLOP/s 989.4",
        "bf16, TFLOP/s 989.4",
        "fp8, TFLOP/s 1,978.9",
        "link NVLink 4",
        "link one way, GB/s 450.0",
        "CUDA context, MiB 564",
        "CUDA context, more or less by MiB 80",
    ]


def test_of_a_processor_only_what_it_has_is_shown(run):
    assert run("cpu").stdout.splitlines() == ["cpu: AMD EPYC 9654", "memory, GiB  16.00", "sources"]


def names(result):
    return [row.split()[0] for row in result.stdout.splitlines()[1:]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--min-memory", "120GiB"], ["h200", "b200"]),
        (["--architecture", "volta"], ["titan-v", "v100-16gb", "v100-32gb"]),
        (["v100*"], ["v100-16gb", "v100-32gb"]),
        (["RTX-4090*"], ["rtx-4090", "rtx-4090", "rtx-4090-laptop"]),
        (["h?00*", "--min-memory", "94GB"], ["h100-nvl-94gb", "h200"]),
        (["*", "--architecture", "Ada", "--min-memory", "46GiB"], ["rtx-6000-ada"]),
        (["*pro*", "--architecture", "Blackwell", "--min-memory", "90GiB"], PRO_6000),
    ],
)
def test_a_filter_leaves_what_passes_it(run, arguments, expected):
    assert names(run(*arguments)) == expected


def test_a_filter_counts_for_this_machine_too(run):
    result = run("--min-memory", "20GiB", "--architecture", "Ada", "--json")
    document = json.loads(result.stdout)
    assert document["this_machine"] == [MINE.as_dict()]
    assert {card["architecture"] for card in document["catalog"]} == {"Ada"}


def test_filters_that_nothing_passes_give_the_largest_card(run):
    refusal = run("--min-memory", "1TiB").exception
    assert isinstance(refusal, BadInput)
    assert str(refusal).startswith("none of 70 GPUs is so: the largest is b200 with 178.35 GiB")
    assert json.loads(run("--min-memory", "1TiB", "--json").stdout)["catalog"] == []


@pytest.mark.parametrize("arguments", [["--min-memory", "1GiB"], ["--architecture", "Hopper"]])
def test_one_card_is_not_filtered(run, arguments):
    refusal = run("h100", *arguments).exception
    assert isinstance(refusal, BadInput)
    assert "'h100*'" in str(refusal)


def test_an_unknown_architecture_is_refused_with_all_of_them(run):
    refusal = run("--architecture", "Adda").exception
    assert isinstance(refusal, UnknownName)
    assert "nearest: Ada; Turing, Volta, Pascal, Ampere, Ada, Hopper, Blackwell" in str(refusal)


def test_one_card_as_json_is_one_object(run):
    result = run("h100", "--json")
    assert json.loads(result.stdout) == {"device": find("h100-80gb").as_dict()}


@pytest.mark.parametrize(("typed", "device"), [("cpu", CPU), ("CPU", CPU), ("rtx-4090", MINE)])
def test_a_name_of_this_machine_shows_this_machines_device(run, typed, device):
    assert json.loads(run(typed, "--json").stdout) == {"device": device.as_dict()}


def test_an_unknown_card_is_refused(run):
    assert isinstance(run("rtx-4091").exception, UnknownName)
