"""Training scripts that know nothing of memfit run on the virtual GPU."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from script_traces import SCRIPTS, VERSION, bytes_at_end, course, requests_of_step, trace

from memfit.allocator.replay import replay_on_cuda
from memfit.devices.catalog import find
from memfit.errors import BadInput
from memfit.records.timeline import Timeline
from memfit.tracing.virtual.script import ScriptFailed, trace_script


def names_of(timeline: Timeline, column: np.ndarray) -> set[str]:
    return {timeline.names[index] for index in column.tolist()}


def lines_with(script: str, text: str) -> list[int]:
    lines = (SCRIPTS / f"{script}.py").read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if text in line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("script")


def test_the_replayed_timeline_has_the_peaks_that_the_script_was_told(folder: Path) -> None:
    traced = trace("pretraining", str(folder), "bfloat16")
    replay = replay_on_cuda(traced.timeline, version=VERSION)
    assert (replay.peak_allocated_bytes, replay.peak_reserved_bytes) == (
        traced.stats["allocated_bytes.all.peak"],
        traced.stats["reserved_bytes.all.peak"],
    )


def test_a_script_is_stopped_after_so_many_whole_steps(folder: Path) -> None:
    traced = trace("pretraining", str(folder), "bfloat16")
    passes = ["forward", "backward"] * 2 + ["optimizer"]
    assert traced.value == 3
    assert course(traced.timeline) == [
        (0, "init"),
        *((1, phase) for phase in passes),
        (1, "eval"),
        *((2, phase) for phase in passes),
        *((3, phase) for phase in passes),
    ]


def test_parameters_gradients_and_state_are_told_apart(folder: Path) -> None:
    # 512 x 64 tied, 64 x 64 positions, two blocks of (128 + 192 x 65 + 64 x 65); fp32.
    num_bytes = 4 * (512 * 64 + 64 * 64 + 2 * (128 + 192 * 65 + 64 * 65))
    alive = bytes_at_end(trace("pretraining", str(folder), "bfloat16").timeline)
    assert (alive["parameters"], alive["gradients"], alive["optimizer_state"]) == (
        num_bytes,
        num_bytes,  # they live until the next step drops them
        2 * num_bytes,  # Adam's step counters are on the host
    )


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_gradient_scaler_lets_every_step_be_taken(folder: Path, dtype: str) -> None:
    traced = trace("pretraining", str(folder), dtype)
    alive = bytes_at_end(traced.timeline)
    assert traced.value == 3
    assert alive["optimizer_state"] == 2 * alive["parameters"]


def test_compiled_models_are_traced_eagerly_and_the_trace_says_so(folder: Path) -> None:
    facts = trace("pretraining", str(folder), "bfloat16").timeline.facts
    assert facts["compile"].startswith("torch.compile was traced eagerly")


def test_checkpoints_of_a_trace_are_not_left_behind(folder: Path) -> None:
    trace("pretraining", str(folder), "bfloat16")
    assert [path.name for path in folder.iterdir()] == ["train.bin"]


def test_numbers_that_nobody_knows_are_named_by_their_lines(folder: Path) -> None:
    told = trace("pretraining", str(folder), "bfloat16").timeline.facts["unknown values read"]
    reads = lines_with("pretraining", ".item()")
    assert set(told.removesuffix(" (answered with 1.0, 1 or False)").split(", ")) == {
        f"{SCRIPTS / 'pretraining.py'}:{line}" for line in reads
    }


def test_a_leak_grows_by_the_same_bytes_in_every_step() -> None:
    timeline = trace("leaks", num_steps=4).timeline
    alive = replay_on_cuda(timeline, version=VERSION).allocated
    ends = [int(alive[np.flatnonzero(timeline.steps == step)[-1]]) for step in (2, 3, 4)]
    # The loss, and of the graph: activations 128 x 64 after Linear and ReLU, log-probabilities
    # 128 x 8 and the weight's total, inputs and labels.
    assert ends[1] - ends[0] == ends[2] - ends[1] > 0


def test_a_network_of_images_loads_them_with_workers() -> None:
    timeline = trace("images").timeline
    assert course(timeline) == [
        (0, "init"),
        (1, "forward"),
        (1, "backward"),
        (1, "optimizer"),  # makes the momentum; later steps allocate nothing
        *((step, phase) for step in (2, 3) for phase in ("forward", "backward")),
        (3, "eval"),
    ]
    assert requests_of_step(timeline, 2) == requests_of_step(timeline, 3)


def test_modules_are_named_from_the_one_that_runs_outside_any_other() -> None:
    timeline = trace("images").timeline
    modules = names_of(timeline, timeline.modules)
    assert {"0", "1", "6", "6.weight"} <= modules


@pytest.mark.parametrize("kind", ["reentrant", "plain"])
def test_checkpointed_layers_run_again_in_backward(kind: str) -> None:
    timeline = trace("checkpointing", kind, num_steps=3).timeline
    assert requests_of_step(timeline, 2) == requests_of_step(timeline, 3)
    assert "layers.1.linear1" in names_of(timeline, timeline.modules)


def test_recurrent_networks_repeat_their_steps() -> None:
    timeline = trace("recurrent").timeline
    assert requests_of_step(timeline, 2) == requests_of_step(timeline, 3)


def test_a_rank_of_torchrun_holds_its_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    timeline = trace("one_rank").timeline
    num_bytes = 4 * 64 * 129
    alive = bytes_at_end(timeline)
    # Gradients, and the bucket that they are reduced in.
    assert (alive["parameters"], alive["gradients"]) == (num_bytes, 2 * num_bytes)
    assert "module" in names_of(timeline, timeline.modules)


def test_steps_are_counted_by_the_optimizer_that_takes_most() -> None:
    traced = trace("adversarial", num_steps=4)
    assert traced.value == 4
    assert requests_of_step(traced.timeline, 2) == requests_of_step(traced.timeline, 4)


def test_passes_in_a_closure_belong_to_the_step_that_calls_it() -> None:
    timeline = trace("closures").timeline
    passes = ["forward", "backward", "optimizer"]
    assert course(timeline) == [
        (0, "init"),  # makes the first batch
        *((1, phase) for phase in passes),
        *((step, phase) for step in (2, 3) for phase in ["optimizer", *passes]),
    ]
    assert requests_of_step(timeline, 2) == requests_of_step(timeline, 3)
    alive = bytes_at_end(timeline)
    assert (alive["gradients"], alive["optimizer_state"]) == (4 * 16 * 17, 2 * 4 * 16 * 17)


@pytest.mark.slow
def test_ragged_batches_have_the_lengths_of_their_data() -> None:
    pytest.importorskip("transformers")
    traced = trace("ragged", num_steps=100)
    assert traced.value == 4
    assert traced.timeline.facts["transformers"]


@pytest.mark.slow
def test_trainer_runs_and_its_checkpoints_hold_no_weights(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="Trainer needs accelerate")
    traced = trace("trainer", str(tmp_path), num_steps=100)
    assert traced.value == 2
    assert not list(tmp_path.rglob("*.safetensors")) and not list(tmp_path.rglob("*.pt"))


# ------------------------------------------------------------------ ends


def test_a_script_that_raises_shows_its_own_traceback_and_where_it_was() -> None:
    with pytest.raises(ScriptFailed) as caught:
        trace("raises")
    message = str(caught.value)
    script = str(SCRIPTS / "raises.py")
    (line,) = lines_with("raises", "raise KeyError")
    assert message.startswith(
        f"{script} raised an error. This was in step 2, forward, in module 1.\n"
        "Traceback (most recent call last):\n"
    )
    assert f'File "{script}", line {line}, in forward' in message
    assert message.endswith("\nKeyError: 'the second call'")
    assert "memfit/tracing" not in message


def test_a_script_may_end_by_itself_and_need_not_train() -> None:
    traced = trace("inference")
    assert traced.value == 0
    assert traced.timeline.facts["no steps"] == "inference.py took no optimizer step"
    assert course(traced.timeline) == [(0, "init"), (0, "eval")]


def test_a_script_without_a_gpu_is_said_to_have_none() -> None:
    traced = trace("on_cpu")
    assert traced.value == 2
    assert len(traced.timeline.events) == 0
    assert traced.timeline.facts["no GPU"] == "on_cpu.py put nothing on the GPU"


def write(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def run(path: Path, *arguments: str, num_steps: int = 3):  # type: ignore[no-untyped-def]
    return trace_script(
        path, arguments, card=find("rtx-4090"), version=VERSION, num_steps=num_steps
    )


def test_an_exit_code_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ScriptFailed, match=r"script\.py ended itself with exit code 3"):
        run(write(tmp_path, "raise SystemExit(3)"))


def test_a_message_at_exit_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(ScriptFailed, match="ended itself with the message 'no data'"):
        run(write(tmp_path, "import sys\nsys.exit('no data')"))


def test_a_missing_package_is_the_scripts_own_error(tmp_path: Path) -> None:
    with pytest.raises(ScriptFailed, match="No module named 'flash_attn'"):
        run(write(tmp_path, "import flash_attn"))


def test_a_script_that_does_not_compile_says_where(tmp_path: Path) -> None:
    with pytest.raises(ScriptFailed, match=r"(?s)script\.py.*line 2.*SyntaxError"):
        run(write(tmp_path, "x = 1\nx ="))


def test_a_second_gpu_is_the_error_that_it_would_be(tmp_path: Path) -> None:
    text = "import torch\ntorch.zeros(1, device='cuda:1')"
    with pytest.raises(ScriptFailed, match="CUDA error: invalid device ordinal"):
        run(write(tmp_path, text))


def test_a_script_that_catches_everything_ends_nevertheless(tmp_path: Path) -> None:
    text = """
import torch
weight = torch.nn.Parameter(torch.zeros(4, device="cuda"))
optimizer = torch.optim.SGD([weight])
while True:
    try:
        weight.sum().backward()
        optimizer.step()
    except:
        pass
"""
    assert run(write(tmp_path, text), num_steps=2).value == 2


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no script"):
        run(tmp_path / "nothing.py")


def test_a_script_starts_as_python_starts_it(tmp_path: Path) -> None:
    answer = tmp_path / "answer.json"
    trace("as_main", str(answer), "--flag", "x")
    path = SCRIPTS / "as_main.py"
    assert json.loads(answer.read_text()) == {
        "name": "__main__",
        "file": str(path),
        "argv": [str(path), str(answer), "--flag", "x"],
        "first on the path": str(SCRIPTS),
        "folder": os.getcwd(),
        "beside": "found",
        "main": str(path),
    }


def test_what_a_script_prints_is_kept_apart_from_the_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(write(tmp_path, "import os\nprint('from python')\nos.system('echo from a process')"))
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "from python\n" in shown.err and "from a process\n" in shown.err


def test_settings_of_its_own_are_told(tmp_path: Path) -> None:
    text = "import os\nos.environ['PYTORCH_ALLOC_CONF'] = 'expandable_segments:True'"
    facts = run(write(tmp_path, text)).timeline.facts
    assert facts["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_the_caller_keeps_its_own_modules_and_arguments(tmp_path: Path) -> None:
    before = (list(sys.argv), list(sys.path), sys.modules["__main__"], os.getcwd())
    run(write(tmp_path, "import sys, os\nos.chdir('/')\nsys.argv = []"))
    assert (list(sys.argv), list(sys.path), sys.modules["__main__"], os.getcwd()) == before
