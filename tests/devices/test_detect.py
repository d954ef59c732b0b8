"""What this machine has: control groups in a temporary folder, and a driver that is not there."""

import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from memfit.devices import detect
from memfit.devices.catalog import catalog, find
from memfit.devices.detect import gpus, machine
from memfit.errors import BadInput, UnknownName
from memfit.records.device import Device
from memfit.units import GiB, MiB

RAM = psutil.virtual_memory().total
NO_LIMIT_V1 = "9223372036854771712"


@pytest.fixture
def linux(tmp_path):
    """Writes a machine's files below ``tmp_path`` and gives what ``machine`` makes of them."""

    def read(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return machine(proc=tmp_path / "proc", cgroups=tmp_path / "cgroup")

    return read


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/user/job\n", "cgroup/user/job/memory.max"),
        ("0::/user/job\n", "cgroup/user/memory.max"),
        ("0::/not/mounted/here\n", "cgroup/memory.max"),
        ("0::/\n", "cgroup/memory.max"),
        ("5:cpu:/\n4:memory:/job\n0::/\n", "cgroup/memory/job/memory.limit_in_bytes"),
        ("4:cpu,memory:/docker/1a2b\n", "cgroup/memory/memory.limit_in_bytes"),
    ],
)
def test_a_control_group_limit_of_the_process_or_a_parent_is_its_memory(linux, groups, file):
    cpu = linux({"proc/self/cgroup": groups, file: f"{64 * MiB}\n"})
    assert cpu.total_bytes == 64 * MiB
    assert "control group" in cpu.sources["total_bytes"]


@pytest.mark.parametrize(("own", "parent", "lowest"), [(32, 64, 32), (64, 32, 32), ("max", 64, 64)])
def test_the_lowest_limit_on_the_way_up_counts(linux, own, parent, lowest):
    cpu = linux(
        {
            "proc/self/cgroup": "0::/a/b\n",
            "cgroup/a/b/memory.max": f"{own if own == 'max' else own * MiB}\n",
            "cgroup/a/memory.max": f"{parent * MiB}\n",
            "cgroup/memory.max": f"{128 * MiB}\n",
        }
    )
    assert cpu.total_bytes == lowest * MiB


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/job\n", "cgroup/job/memory.max": "max\n"},
        {"proc/self/cgroup": "0::/job\n", "cgroup/job/memory.max": f"{2 * RAM}\n"},
        {
            "proc/self/cgroup": "4:memory:/\n",
            "cgroup/memory/memory.limit_in_bytes": f"{NO_LIMIT_V1}\n",
        },
        {"proc/self/cgroup": "4:cpu:/\n", "cgroup/memory.max": f"{64 * MiB}\n"},
    ],
    ids=["not Linux", "max", "above the RAM", "version 1 without a limit", "no memory control"],
)
def test_without_a_lower_limit_the_memory_is_the_ram(linux, files):
    cpu = linux(files)
    assert cpu.total_bytes == RAM
    assert cpu.sources["total_bytes"].startswith("RAM")


def test_the_label_is_the_processor_model(linux):
    text = "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\nprocessor\t: 1\n"
    cpu = linux({"proc/cpuinfo": text})
    assert (cpu.name, cpu.kind, cpu.label) == ("cpu", "cpu", "AMD EPYC 9654 96-Core Processor")


class NVMLError(Exception):
    pass


class NotSupported(NVMLError):
    pass


def nvml(*cards):
    """A stand-in for pynvml: each card is a dict of answers, an exception among them is raised."""

    def answer(query):
        def ask(card, *_):
            if isinstance(card[query], Exception):
                raise card[query]
            return card[query]

        return ask

    module = ModuleType("pynvml")
    module.closed = 0

    def shutdown():
        module.closed += 1

    vars(module).update(
        NVMLError=NVMLError,
        NVMLError_NotSupported=NotSupported,
        NVML_CLOCK_MEM=2,
        NVML_FEATURE_ENABLED=1,
        nvmlMemory_v2=0x02000028,
        nvmlInit=lambda: None,
        nvmlShutdown=shutdown,
        nvmlSystemGetDriverVersion=lambda: "580.65.06",
        nvmlDeviceGetCount=lambda: len(cards),
        nvmlDeviceGetHandleByIndex=lambda index: cards[index],
        nvmlDeviceGetName=answer("name"),
        nvmlDeviceGetMemoryInfo=answer("memory"),
        nvmlDeviceGetCudaComputeCapability=answer("capability"),
        nvmlDeviceGetNumGpuCores=answer("cores"),
        nvmlDeviceGetMaxClockInfo=answer("clock"),
        nvmlDeviceGetMemoryBusWidth=answer("bus"),
        nvmlDeviceGetMaxPcieLinkGeneration=answer("generation"),
        nvmlDeviceGetMaxPcieLinkWidth=answer("lanes"),
        nvmlDeviceGetNvLinkState=answer("nvlink"),
    )
    return module


def memory(total_mib, reserved_mib):
    return SimpleNamespace(total=total_mib * MiB, reserved=reserved_mib * MiB)


RTX_4090 = {
    "name": "NVIDIA GeForce RTX 4090",
    "memory": memory(24564, 483),
    "capability": (8, 9),
    "cores": 16384,
    "clock": 10501,
    "bus": 384,
    "generation": 4,
    "lanes": 16,
    "nvlink": NotSupported(),
}
V100 = {
    "name": "Tesla V100-SXM2-16GB",
    "memory": memory(16384, 239),
    "capability": (7, 0),
    "cores": 5120,
    "clock": 877,
    "bus": 4096,
    "generation": 3,
    "lanes": 16,
    "nvlink": 1,
}


@pytest.mark.parametrize(("answers", "name"), [(RTX_4090, "rtx-4090"), (V100, "v100-16gb")])
def test_a_card_of_the_catalog_keeps_its_name_and_brings_its_own_memory(monkeypatch, answers, name):
    driver = nvml(answers)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    [card] = gpus()
    known = find(name)
    assert card.total_bytes == answers["memory"].total - answers["memory"].reserved
    assert card.total_bytes != known.total_bytes
    own = {"total_bytes": card.total_bytes, "sources": card.sources}
    assert card == dataclasses.replace(known, **own)
    assert set(card.sources) == set(known.sources)
    assert "580.65.06" in card.sources["total_bytes"]
    assert card.sources["fp16_flops"] == known.sources["fp16_flops"]
    assert driver.closed == 1


@pytest.mark.parametrize("down", [0, NotSupported(), NVMLError("invalid argument")])
def test_a_link_that_is_down_is_not_used_the_slot_is(monkeypatch, down):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(V100 | {"nvlink": down}))
    [card] = gpus()
    assert (card.link, card.link_bytes_per_second) == ("PCIe 3.0 x16", 15_753_846_152)
    assert "580.65.06" in card.sources["link"]
    assert "PCIe 3.0 x16" in card.sources["link_bytes_per_second"]


def test_a_narrow_slot_slows_the_card_down(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(RTX_4090 | {"generation": 3, "lanes": 4}))
    [card] = gpus()
    assert (card.link, card.link_bytes_per_second) == ("PCIe 3.0 x4", 3_938_461_538)


def test_a_card_that_is_not_listed_has_what_its_capability_says(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(RTX_4090 | {"name": "NVIDIA RTX 4500 Ada"}))
    [card] = gpus()
    ada = find("rtx-4090")
    assert card.name == "nvidia-rtx-4500-ada"
    for figure in ("architecture", "threads_per_sm", "shared_memory_per_block_bytes"):
        assert getattr(card, figure) == getattr(ada, figure)
    assert (card.context_bytes, card.context_spread_bytes) == (
        ada.context_bytes,
        ada.context_spread_bytes,
    )
    assert (card.l2_bytes, card.fp32_flops, card.fp8_flops) == (0, 0, 0)
    assert "l2_bytes" not in card.sources


def test_a_card_of_an_unknown_capability_is_taken_with_a_wide_context(monkeypatch):
    future = RTX_4090 | {"name": "NVIDIA RTX 9090", "capability": (15, 0)}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(future))
    [card] = gpus()
    assert (card.architecture, card.threads_per_sm) == ("", 0)
    assert card.context_bytes == 400 * MiB


def test_cards_come_in_the_drivers_order(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(V100, RTX_4090, V100))
    assert [card.name for card in gpus()] == ["v100-16gb", "rtx-4090", "v100-16gb"]


def test_a_card_of_another_size_under_the_same_label_is_not_the_catalogs(monkeypatch):
    modded = RTX_4090 | {"memory": memory(49140, 500)}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(modded))
    [card] = gpus()
    assert (card.name, card.bf16_flops, card.sms) == ("nvidia-geforce-rtx-4090", 0, 128)
    assert card.total_bytes > 47 * GiB


def test_a_figure_that_the_driver_does_not_give_is_the_catalogs(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(RTX_4090 | {"bus": NotSupported()}))
    [card] = gpus()
    known = find("rtx-4090")
    assert card.bandwidth_bytes_per_second == known.bandwidth_bytes_per_second
    field = "bandwidth_bytes_per_second"
    assert card.sources[field] == known.sources[field]


def test_a_figure_that_nobody_gives_is_zero_and_has_no_source(monkeypatch):
    answers = RTX_4090 | {"name": "NVIDIA RTX 4500 Ada", "bus": NotSupported(), "lanes": 0}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(answers))
    [card] = gpus()
    assert (card.bandwidth_bytes_per_second, card.link, card.link_bytes_per_second) == (0, "", 0)
    assert not {"bandwidth_bytes_per_second", "link", "link_bytes_per_second"} & set(card.sources)


def test_a_card_that_does_not_tell_its_memory_is_left_out(monkeypatch):
    driver = nvml(RTX_4090 | {"memory": NotSupported()}, V100)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert [card.name for card in gpus()] == ["v100-16gb"]


@pytest.fixture
def with_cards(monkeypatch):
    def put(*names):
        cards = [dataclasses.replace(find(name), total_bytes=7 * GiB) for name in names]
        monkeypatch.setattr(detect, "gpus", lambda: cards)

    return put


@pytest.mark.parametrize("typed", ["rtx-4090", "4090", "RTX 4090 24GB", "NVIDIA GeForce RTX 4090"])
def test_a_card_of_this_machine_counts_before_the_catalogs(with_cards, typed):
    with_cards("t4", "rtx-4090")
    assert detect.find(typed).total_bytes == 7 * GiB


@pytest.mark.parametrize(
    ("here", "typed", "found"),
    [
        (["a100-80gb"], "a100", "a100-80gb"),
        (["rtx-6000-ada"], "rtx 6000", "rtx-6000-ada"),
        (["rtx-3080-12gb", "t4"], "3080", "rtx-3080-12gb"),
    ],
)
def test_a_short_form_of_several_cards_means_the_one_in_this_machine(
    with_cards, here, typed, found
):
    with_cards(*here)
    assert detect.find(typed).name == found


def test_a_short_form_of_two_cards_in_this_machine_is_refused(with_cards):
    with_cards("a100-40gb", "a100-80gb")
    with pytest.raises(BadInput, match="more than one GPU"):
        detect.find("a100")


def test_a_card_that_is_only_here_is_found_by_its_own_name(monkeypatch):
    mine = Device(name="nvidia-rtx-4500-ada", kind="cuda", total_bytes=24 * GiB)
    monkeypatch.setattr(detect, "gpus", lambda: [mine])
    assert detect.find("NVIDIA-RTX-4500-Ada") is mine


def test_a_card_that_is_not_here_is_the_catalogs(with_cards):
    with_cards("t4")
    assert detect.find("h100") is catalog()["h100-80gb"]
    with pytest.raises(UnknownName):
        detect.find("h101")


def test_cpu_is_this_machine(with_cards):
    with_cards()
    assert detect.find("CPU").kind == "cpu"


def test_without_a_driver_there_are_no_cards(monkeypatch):
    driver = nvml(RTX_4090)

    def no_driver():
        raise NVMLError("NVML Shared Library Not Found")

    driver.nvmlInit = no_driver
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert gpus() == []


def test_without_the_package_there_are_no_cards(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus() == []


def test_the_stand_in_has_no_name_that_the_package_lacks():
    package = pytest.importorskip("pynvml")
    assert {name for name in vars(nvml()) if "vml" in name.lower()} <= set(dir(package))
