"""Error texts: which say that memory ran out, and what else they say."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import OutOfMemory
from memfit.profiler.messages import Message, is_out_of_memory, parse

CASES = Path(__file__).parents[3] / "shared/cases/oom_messages.jsonl"
MIB, GIB = 2**20, 2**30

# The words of c10/cuda/CUDACachingAllocator.cpp, in three ages of PyTorch.
V1_3 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 2; 8.00 GiB total "
    "capacity; 6.50 GiB already allocated; 32.00 MiB free; 512.00 MiB cached)"
)
V1_12 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 16.00 GiB total "
    "capacity; 12.00 GiB already allocated; 1.00 GiB free; 14.50 GiB reserved in total by "
    "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
    "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
V2_6 = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total "
    "capacity of 24.00 GiB of which 8.00 MiB is free. Process 17 has 16.00 GiB memory in use. "
    "Including non-PyTorch memory, this process has 7.50 GiB memory in use. 12.00 GiB allowed; Of "
    "the allocated memory 7.00 GiB is allocated by PyTorch, with 256.00 MiB allocated in private "
    "pools (e.g., CUDA Graphs), and 12.50 MiB is reserved by PyTorch but unallocated."
)


def read(text: str) -> Message:
    message = parse(text)
    assert message is not None, f"nothing was found in {text!r}"
    return message


def test_each_number_of_a_text_of_today_is_read() -> None:
    assert read(V2_6) == Message(
        is_oom=True,
        where="device",
        backend="cuda",
        cause="other_process",
        device=1,
        tried_bytes=20 * MIB,
        total_bytes=24 * GIB,
        free_bytes=8 * MIB,
        this_process_bytes=7 * GIB + 512 * MIB,
        other_processes=(16 * GIB,),
        allowed_bytes=12 * GIB,
        allocated_bytes=7 * GIB,
        private_pools_bytes=256 * MIB,
        unallocated_bytes=12 * MIB + 512 * 1024,
    )


def test_each_number_of_older_texts_is_read() -> None:
    old, older = read(V1_12), read(V1_3)

    assert (old.device, old.tried_bytes, old.total_bytes) == (0, 2 * GIB, 16 * GIB)
    assert (old.allocated_bytes, old.free_bytes) == (12 * GIB, GIB)
    assert (old.reserved_bytes, old.unallocated_bytes) == (14 * GIB + 512 * MIB, None)
    assert (older.device, older.tried_bytes, older.free_bytes) == (2, 64 * MIB, 32 * MIB)
    assert (older.reserved_bytes, older.unallocated_bytes) == (None, 512 * MIB)


def test_cached_of_torch_1_3_is_what_is_held_unused_and_not_what_is_reserved() -> None:
    assert read(V1_3).pieces_bytes == 512 * MIB
    assert read(V1_12).pieces_bytes == 2 * GIB + 512 * MIB


def test_pieces_explain_a_request_only_where_they_would_have_held_it() -> None:
    assert read(V1_12).fragmentation
    assert not read(V1_12.replace("Tried to allocate 2.00", "Tried to allocate 2.75")).fragmentation
    assert not read(V2_6).fragmentation, "12.5 MiB of 24 GiB are nothing"


def test_more_free_than_asked_is_no_fragmentation() -> None:
    odd = read(V1_12.replace("1.00 GiB free", "3.00 GiB free"))

    assert odd.free_ge_tried and not odd.fragmentation


def test_a_request_of_20_mib_stands_for_a_tensor_of_1_to_10() -> None:
    assert read(V2_6).request_class == "1-10 MiB"
    assert read(V2_6.replace("allocate 20.00 MiB", "allocate 2.00 MiB")).request_class == (
        "up to 1 MiB"
    )
    assert read(V1_12).request_class is None


def test_a_process_that_cannot_but_be_this_one_is_no_other() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 40.00 GiB "
        "of which 0 bytes is free. Process 99 has {} GiB memory in use. Of the allocated memory "
        "30.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )

    assert read(text.format("39.00")).cause is None
    assert read(text.format("20.00")).cause is None
    neighbour = "Process 98 has 38.00 GiB memory in use. Process 99 has"
    assert read(text.replace("Process 99 has", neighbour).format("31.00")).cause == "other_process"


def test_a_size_that_the_driver_does_not_know_is_unknown() -> None:
    text = V2_6.replace("this process has 7.50 GiB", "this process has 17179869184.00 GiB")

    assert read(text).this_process_bytes is None


def test_a_text_that_was_cut_short_gives_what_is_there() -> None:
    cut = read(V2_6[: V2_6.index("this process")])

    assert (cut.tried_bytes, cut.free_bytes, cut.allocated_bytes) == (20 * MIB, 8 * MIB, None)


@given(st.integers(0, len(V2_6)))
def test_any_part_of_a_text_can_be_read(cut: int) -> None:
    whole = read(V2_6)
    part = parse(V2_6[:cut])

    assert part is None or part.tried_bytes in (whole.tried_bytes, None)


@pytest.mark.parametrize(
    ("text", "where", "backend"),
    [
        ("THCudaCheck FAIL file=THCStorage.cu line=58 error=2 : out of memory", "device", "cuda"),
        ("CUDA error: out of memory\nCUDA kernel errors might be reported", "device", "cuda"),
        ("CUDA driver error: out of memory", "device", "cuda"),
        ("CUDA_ERROR_OUT_OF_MEMORY", "device", "cuda"),
        ("cudaErrorMemoryAllocation: out of memory", "device", "cuda"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "device",
         "cuda"),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "device", "cuda"),
        ("expandable_segments: memory mapping failed with OOM on device 3", "device", "cuda"),
        ("HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total", "device", "hip"),
        ("HIP error: out of memory", "device", "hip"),
        ("XPU out of memory. Tried to allocate 16.00 GiB", "device", "xpu"),
        ("Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)", "device", "xpu"),
        ("MPS backend out of memory (MPS allocated: 5.00 GB)", "device", "mps"),
        ("Invalid buffer size: 20.00 GB", "device", "mps"),
        ("ncclUnhandledCudaError: Call failed.\nLast error:\nCuda failure 2 'out of memory'",
         "device", "cuda"),
        ("CUDA error: out of memory\n  in buffer.pin_memory()", "pinned_host", "cuda"),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes", "host",
         "cpu"),
        ("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.", "host", "cpu"),
        ("std::bad_alloc", "host", "cpu"),
        ("[Errno 12] Cannot allocate memory", "host", "cpu"),
        ("Unable to allocate 1.41 TiB for an array with shape (9, 9)", "host", "cpu"),
        ("Out of memory: Killed process 12 (python) total-vm:4kB, anon-rss:2kB", "host", "cpu"),
        ("failed (exitcode: -9) local_rank: 0 (pid: 4) of binary: python", "host", "cpu"),
        ("command terminated with exit code 137", "host", "cpu"),
        ("process 0 terminated with signal SIGKILL", "host", "cpu"),
        ("DataLoader worker (pid 3) is killed by signal: Killed. ", "host", "cpu"),
        ("DataLoader worker (pid 3) is killed by signal: Bus error.", "shared_memory", "cpu"),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.", "device", "jax"),
        ("ResourceExhaustedError: OOM when allocating tensor with shape[2,3]", "device", "tf"),
        ("No available memory for the cache blocks.", "kv_cache", "cuda"),
    ],
)  # fmt: skip
def test_a_text_that_says_so_is_an_out_of_memory(text: str, where: str, backend: str) -> None:
    message = read(text)

    assert (message.is_oom, message.where, message.backend) == (True, where, backend)
    assert is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: no kernel image is available for execution on the device",
        "CUDA error: device-side assert triggered",
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "Error invalid configuration argument at line 8 in file csrc/ops.cu",
        "Attempting to unscale FP16 gradients.",
        "unscale_() has already been called on this optimizer since the last update().",
        "torch.utils.checkpoint: A different number of tensors was saved during",
        "out of resource: shared memory, Required: 147456, Hardware limit: 101376.",
        "NCCL communicator was aborted on rank 0.",
        "DataLoader worker (pid 3) is killed by signal: Segmentation fault.",
        "[enforce fail at inline_container.cc:595] . unexpected pos 64 vs 0",
        "[Errno 28] No space left on device",
        "exit code 1",
        "choose a smaller batch to avoid out of memory",
        "index 4 is out of memory bounds",
        "mat1 and mat2 shapes cannot be multiplied (4x3 and 4x3)",
        "",
    ],
)
def test_a_text_of_another_trouble_is_none(text: str) -> None:
    message = parse(text)

    assert message is None or message.is_oom is False
    assert not is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize(
    "text",
    [
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "CUDA driver error: invalid argument",
        "buffer.pin_memory()\nRuntimeError: CUDA error: invalid argument",
        "Unable to find a valid cuDNN algorithm to run convolution",
    ],
)
def test_what_may_hide_one_is_said_and_not_recovered_from(text: str) -> None:
    assert read(text).is_oom == "maybe"
    assert not is_out_of_memory(RuntimeError(text))


def test_a_cpu_allocation_that_really_fails_is_recognised() -> None:
    with pytest.raises(RuntimeError) as failed:
        torch.empty(2**52, dtype=torch.uint8)

    assert is_out_of_memory(failed.value)
    assert read(str(failed.value)).tried_bytes == 2**52


def test_errors_are_known_by_type_whatever_they_say() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("no words"))
    assert is_out_of_memory(OSError(errno.ENOMEM, "fork"))
    assert not is_out_of_memory(OSError(errno.ENOSPC, "No space left on device"))


def test_the_end_of_a_recovery_is_not_recovered_from() -> None:
    assert not is_out_of_memory(OutOfMemory("memory ran out (CUDA out of memory)"))
    assert not is_out_of_memory(KeyboardInterrupt("out of memory"))


@pytest.mark.skipif(not CASES.is_file(), reason="no public reports in ../shared/cases")
@pytest.mark.parametrize("line", CASES.read_text().splitlines() if CASES.is_file() else ())
def test_a_text_of_a_public_report_is_read_as_it_should_be(line: str) -> None:
    case = json.loads(line)
    message, expected = read(case["text"]), case["expect"]
    expected.pop("note", None)
    got = {
        name: getattr(message, name)
        for name in expected.keys() - {"unaccounted_gib", "n_other_processes"}
    }
    if "n_other_processes" in expected:
        got["n_other_processes"] = len(message.other_processes)
    if "unaccounted_gib" in expected:
        unaccounted = message.unaccounted_bytes or math.nan
        got["unaccounted_gib"] = round(unaccounted / GIB, 2)

    assert got == expected
    assert is_out_of_memory(RuntimeError(case["text"])) == (expected["is_oom"] is True)
