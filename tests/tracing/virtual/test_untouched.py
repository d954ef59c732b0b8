"""Nothing of a trace is left in the caller's process: not after its end, an error, an interrupt."""

from __future__ import annotations

import builtins
import gc
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
import torch.profiler
import torch.utils._device
from script_traces import VERSION
from torch import nn

from memfit.devices.catalog import find
from memfit.tracing.virtual.child import in_child
from memfit.tracing.virtual.run import trace_on_gpu
from memfit.tracing.virtual.script import ScriptFailed, trace_script

PATCHED = (
    torch,
    torch._C,
    torch._utils,
    torch.Tensor,
    torch.UntypedStorage,
    torch.nn.Module,
    torch.nn.Parameter,
    torch.nn.DataParallel,
    torch.nn.parallel.DistributedDataParallel,
    torch.nn.modules.module,
    torch.optim.Optimizer,
    torch.cuda,
    torch.cuda.memory,
    torch.cuda.streams,
    torch.cuda.graphs,
    torch.cuda.nvtx,
    torch.accelerator,
    torch.backends.cuda,
    torch.backends.cudnn,
    torch.version,
    torch.serialization,
    torch.jit,
    torch.profiler,
    torch.autograd,
    torch.autograd.graph,
    torch.autograd.profiler.profile,
    torch.distributed,
    torch.distributed.distributed_c10d,
    torch.multiprocessing,
    torch.utils._device.DeviceContext,
    os,
    sys,
    builtins,
)
"""Everything of which the virtual GPU replaces something, and some that it leaves alone."""


def state() -> dict[str, Any]:
    """What PyTorch and the process are, as far as a trace could change them."""
    found: dict[str, Any] = {
        f"{owner!r}.{name}": id(value)
        for owner in PATCHED
        for name, value in vars(owner).items()
        if not name.startswith("__") and name not in ("_modules_seen", "last_value")
    }
    found["hooks"] = {
        name: len(value)
        for name, value in vars(torch.nn.modules.module).items()
        if name.startswith("_global_") and hasattr(value, "__len__")
    }
    found["backend"] = torch._C._get_privateuse1_backend_name()
    found["device"] = str(torch.zeros(1).device), torch.cuda.is_available()
    found["collects garbage"] = gc.isenabled()
    found["threads"] = torch.get_num_threads()
    found["folder"] = os.getcwd()
    found["environment"] = dict(os.environ)
    found["path"] = list(sys.path)
    return found


def train() -> None:
    model = nn.Linear(4, 4).cuda()
    model(torch.zeros(1, 4, device="cuda")).sum().backward()
    assert torch.cuda.memory_allocated() > 0


def test_a_trace_leaves_torch_as_it_was() -> None:
    before = state()
    trace_on_gpu(lambda observer: train(), card=find("rtx-4090"), version=VERSION)
    assert state() == before


def test_an_error_in_a_job_leaves_torch_as_it_was() -> None:
    def fail(observer: object) -> None:
        train()
        raise ZeroDivisionError("in the job")

    before = state()
    with pytest.raises(ZeroDivisionError, match="in the job") as caught:
        trace_on_gpu(fail, card=find("rtx-4090"), version=VERSION)
    assert state() == before
    assert caught.value.__notes__[0] == "This was before the first step, init."


def test_a_script_leaves_torch_as_it_was(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.zeros(3).cuda()\nraise ValueError('in the script')")
    before = state()
    with pytest.raises(ScriptFailed, match="in the script"):
        trace_script(script, card=find("rtx-4090"), version=VERSION)
    assert state() == before


def test_an_interrupt_leaves_torch_as_it_was_and_ends_the_child(tmp_path: Path) -> None:
    script, started = tmp_path / "script.py", tmp_path / "started"
    script.write_text(
        "import os, pathlib, time, torch\n"
        "torch.zeros(3).cuda()\n"
        f"pathlib.Path({str(started)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(60)"
    )

    def interrupt() -> None:
        while not (started.exists() and started.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = state()
    thread = threading.Thread(target=interrupt)
    # What a shell starts in the background ignores interrupts, and so would the tests in it.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            trace_script(script, card=find("rtx-4090"), version=VERSION)
    finally:
        signal.signal(signal.SIGINT, former)
    thread.join()
    assert state() == before
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_trace_ends_with_a_caller_that_is_killed(tmp_path: Path) -> None:
    started = tmp_path / "started"

    def wait() -> None:
        started.write_text(str(os.getpid()))
        time.sleep(60)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads, of which it uses none
        caller = os.fork()
    if caller == 0:
        in_child(wait)
        os._exit(0)
    while not (started.exists() and started.read_text()):
        time.sleep(0.01)
    os.kill(caller, signal.SIGKILL)
    os.waitpid(caller, 0)
    stat = Path(f"/proc/{started.read_text()}/stat")
    deadline = time.monotonic() + 10
    while stat.exists() and ") Z " not in stat.read_text():  # nobody may collect it here
        assert time.monotonic() < deadline
        time.sleep(0.01)
