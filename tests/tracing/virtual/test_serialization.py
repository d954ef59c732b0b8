"""What a trace saves is kept aside; what it loads goes where a run would put it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

OnGpu = Callable[..., Any]


def test_a_saved_file_is_found_by_the_trace_and_by_nobody_else(
    on_gpu: OnGpu, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(b"the real one")

    def ask() -> Any:
        model = nn.Linear(3, 3).cuda()
        torch.save({"model": model.state_dict(), "step": 7}, path)
        loaded = torch.load(path)
        return loaded["step"], str(loaded["model"]["weight"].device), path.stat().st_size > 12

    assert on_gpu(ask) == (7, "cuda:0", True)
    assert path.read_bytes() == b"the real one"


def test_saved_files_can_be_moved_and_removed(on_gpu: OnGpu, tmp_path: Path) -> None:
    first, second = tmp_path / "first.pt", tmp_path / "second.pt"

    def ask() -> Any:
        torch.save([1, 2], str(first))
        os.replace(first, second)
        found = os.path.exists(first), os.path.isfile(second), torch.load(second)
        os.remove(second)
        return found, second.exists()

    assert on_gpu(ask) == ((False, True, [1, 2]), False)
    assert not list(tmp_path.iterdir())


def test_a_model_that_the_trace_saved_is_read_by_safe_open(on_gpu: OnGpu, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    path = str(tmp_path / "model.safetensors")

    def ask() -> Any:
        from safetensors.torch import save_file

        save_file({"weight": torch.randn(600, 600, device="cuda")}, path)
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            part = file.get_slice("weight")[:2]
            return list(file.keys()), tuple(part.shape), str(part.device)

    assert on_gpu(ask) == (["weight"], (2, 600), "cpu")


def test_a_file_that_is_there_is_not_written_over_by_python(on_gpu: OnGpu, tmp_path: Path) -> None:
    real, log, fresh = tmp_path / "real.pt", tmp_path / "log.txt", tmp_path / "fresh.txt"
    real.write_bytes(b"the real one")
    log.write_text("of the real run")

    def ask() -> Any:
        with open(real, "wb") as file:
            torch.save([1, 2], file)
        fresh.write_text("written")
        moved = tmp_path / "moved.txt"
        moved.write_text("moved")
        os.replace(moved, log)
        return torch.load(real), log.read_text(), moved.exists()

    assert on_gpu(ask) == ([1, 2], "moved", False)
    assert (real.read_bytes(), log.read_text()) == (b"the real one", "of the real run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh.txt", "log.txt", "real.pt"]


def test_tensors_are_loaded_where_map_location_says(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        file = io.BytesIO()
        torch.save({"unknown": torch.randn(600, 600, device="cuda"), "known": 3}, file)
        places: list[str] = []
        for where in (None, "cpu", "cuda", {"cuda:0": "cpu"}, lambda storage, place: storage):
            file.seek(0)
            loaded = torch.load(file, map_location=where)["unknown"]
            places.append(f"{loaded.device} {tuple(loaded.shape)}")
        return places

    assert on_gpu(ask) == [
        f"{place} (600, 600)" for place in ("cuda:0", "cpu", "cuda:0", "cpu", "cpu")
    ]


def test_real_files_are_loaded_to_the_gpu_storage_by_storage(on_gpu: OnGpu, tmp_path: Path) -> None:
    path = tmp_path / "real.pt"
    both = torch.arange(1000)
    torch.save({"whole": both, "half": both[:500], "scalar": torch.tensor(5.0)}, path)

    def ask() -> Any:
        loaded = torch.load(path, map_location="cuda")
        shares = loaded["whole"].data_ptr() == loaded["half"].data_ptr()
        on_host = torch.load(path, map_location="cpu")["whole"].sum().item()
        known = loaded["whole"].sum().item(), loaded["scalar"].item()
        return torch.cuda.memory_allocated(), shares, on_host, known

    # 8,000 bytes for both views, and a scalar: in blocks of 512.
    assert on_gpu(ask) == (8192 + 512, True, 499500, (499500, 5.0))


def test_optimizers_and_random_states_survive_a_checkpoint(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model(torch.randn(2, 4, device="cuda")).sum().backward()
        optimizer.step()
        file = io.BytesIO()
        saved = {
            "optimizer": optimizer.state_dict(),
            "host": torch.get_rng_state(),
            "gpu": torch.cuda.get_rng_state_all(),
        }
        torch.save(saved, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True, map_location="cpu")
        optimizer.load_state_dict(loaded["optimizer"])
        torch.set_rng_state(loaded["host"])
        torch.cuda.set_rng_state_all(loaded["gpu"])
        state = optimizer.state[model.weight]
        return str(state["exp_avg"].device), str(state["step"].device), state["step"].item()

    assert on_gpu(ask) == ("cuda:0", "cuda:0", 1.0)


def test_safetensors_are_kept_aside_too(on_gpu: OnGpu, tmp_path: Path) -> None:
    format_module = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.safetensors"

    def ask() -> Any:
        format_module.save_file({"weight": torch.randn(3, 3, device="cuda")}, path)
        return str(format_module.load_file(path)["weight"].device), path.exists()

    assert on_gpu(ask) == ("cpu", True)
    assert not path.exists()
