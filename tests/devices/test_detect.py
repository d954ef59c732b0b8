"""What this machine has: control groups in a temporary folder, and a driver that is not there."""

import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from memfit.devices.catalog import find
from memfit.devices.detect import gpus, machine
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
}
V100 = {
    "name": "Tesla V100-SXM2-16GB",
    "memory": memory(16384, 239),
    "capability": (7, 0),
    "cores": 5120,
    "clock": 877,
    "bus": 4096,
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
    assert "580.65.06" in card.sources["total_bytes"]
    assert driver.closed == 1


def test_cards_come_in_the_drivers_order(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(V100, RTX_4090, V100))
    assert [card.name for card in gpus()] == ["v100-16gb", "rtx-4090", "v100-16gb"]


def test_a_card_of_another_size_under_the_same_label_is_not_the_catalogs(monkeypatch):
    modded = RTX_4090 | {"memory": memory(49140, 500)}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(modded))
    [card] = gpus()
    assert (card.name, card.bf16_flops, card.sms) == ("nvidia-geforce-rtx-4090", 0, 128)
    assert card.total_bytes > 47 * GiB


def test_a_figure_that_the_driver_does_not_give_is_zero(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml(RTX_4090 | {"bus": NotSupported()}))
    assert gpus()[0].bandwidth_bytes_per_second == 0


def test_a_card_that_does_not_tell_its_memory_is_left_out(monkeypatch):
    driver = nvml(RTX_4090 | {"memory": NotSupported()}, V100)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert [card.name for card in gpus()] == ["v100-16gb"]


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
