"""``torch.cuda`` answers as on the card."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from memfit.devices.catalog import find

OnGpu = Callable[..., Any]
MIB = 2**20


def test_the_card_tells_its_name_capability_and_properties(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        of_card = torch.cuda.get_device_properties("cuda")
        return (
            torch.cuda.is_available(),
            torch.cuda.device_count(),
            torch.cuda.get_device_name(0),
            torch.cuda.get_device_capability(),
            (of_card.total_memory, of_card.multi_processor_count, of_card.major, of_card.minor),
            (of_card.L2_cache_size, of_card.max_threads_per_multi_processor, of_card.warp_size),
        )

    card = find("rtx-4090")
    assert on_gpu(ask) == (
        True,
        1,
        "NVIDIA GeForce RTX 4090",
        (8, 9),
        (card.total_bytes, 128, 8, 9),
        (card.l2_bytes, 1536, 32),
    )


@pytest.mark.parametrize(
    ("card", "native", "emulated"), [("t4", False, True), ("a100-40gb", True, True)]
)
def test_bf16_is_native_from_capability_8_on(
    on_gpu: OnGpu, card: str, native: bool, emulated: bool
) -> None:
    def ask() -> Any:
        return (
            torch.cuda.is_bf16_supported(including_emulation=False),
            torch.cuda.is_bf16_supported(),
            torch.cuda.is_tf32_supported(),
        )

    assert on_gpu(ask, card=card) == (native, emulated, native)


def test_free_memory_is_what_neither_the_context_nor_segments_hold(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        before = torch.cuda.mem_get_info()
        kept = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        after = torch.cuda.mem_get_info("cuda:0")
        del kept
        return before, after

    card = find("rtx-4090")
    room = card.total_bytes - card.context_bytes
    assert on_gpu(ask) == ((room, card.total_bytes), (room - 20 * MIB, card.total_bytes))


def test_memory_is_counted_as_the_caching_allocator_counts(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        first = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        second = torch.empty(100, dtype=torch.uint8, device="cuda")
        del first
        answers = [
            torch.cuda.memory_allocated(),
            torch.cuda.max_memory_allocated(),
            torch.cuda.memory_reserved(),
        ]
        torch.cuda.reset_peak_memory_stats()
        answers.append(torch.cuda.max_memory_allocated())
        torch.cuda.empty_cache()
        answers += [torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()]
        del second
        return answers

    assert on_gpu(ask) == [512, 3 * MIB + 512, 22 * MIB, 512, 2 * MIB, 22 * MIB]


def test_statistics_and_the_summary_have_pytorchs_names(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        kept = torch.empty(100, device="cuda")
        stats = torch.cuda.memory_stats()
        nested = torch.cuda.memory_stats_as_nested_dict()
        summary = torch.cuda.memory_summary()
        del kept
        return stats, nested["requested_bytes"]["small_pool"]["peak"], summary

    stats, nested, summary = on_gpu(ask)
    assert list(stats) == sorted(stats)
    assert (stats["requested_bytes.small_pool.peak"], nested) == (400, 400)
    assert stats["active_bytes.all.allocated"] == 512
    assert re.search(r"\| Allocated memory +\| +512 B +\| +512 B +\|", summary)


def test_blocks_belong_to_the_stream_that_was_current(traced_on_gpu: OnGpu) -> None:
    def ask() -> Any:
        side = torch.cuda.Stream()
        kept = [torch.empty(10, device="cuda")]
        with torch.cuda.stream(side):
            kept.append(torch.empty(20, device="cuda"))
            inside = torch.cuda.current_stream() == side
        torch.cuda.current_stream().wait_stream(side)
        kept[1].record_stream(torch.cuda.current_stream())
        outside = torch.cuda.current_stream() == torch.cuda.default_stream()
        return inside, outside

    answer, timeline = traced_on_gpu(ask)
    assert answer == (True, True)
    assert (timeline.num_bytes.tolist(), timeline.streams.tolist()) == ([40, 80], [0, 1])


def test_events_tell_time(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda.synchronize()
        end.record()
        end.synchronize()
        untimed = torch.cuda.Event()
        untimed.record()
        with pytest.raises(ValueError, match="enable_timing=True"):
            untimed.elapsed_time(end)
        return begin.elapsed_time(end)

    assert on_gpu(ask) > 0


def test_random_states_come_back(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        torch.cuda.manual_seed_all(7)
        state = torch.cuda.get_rng_state()
        with torch.random.fork_rng(devices=[0]):
            torch.manual_seed(1)
        torch.cuda.set_rng_state(state)
        generator = torch.Generator(device="cuda").manual_seed(3)
        drawn = torch.randn(4, device="cuda", generator=generator)
        return (
            torch.cuda.initial_seed(),
            state.shape,
            str(generator.device),
            generator.initial_seed(),
            drawn.shape,
            isinstance(torch.default_generator, torch.Generator),
        )

    assert on_gpu(ask) == (7, (16,), "cuda:0", 3, (4,), True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.cuda.set_device(1),
        lambda: torch.zeros(1, device="cuda:1"),
        lambda: torch.zeros(1).to("cuda:1"),
        lambda: torch.zeros(1).cuda(1),
        lambda: torch.nn.Linear(1, 1).to(torch.device("cuda", 3)),
    ],
)
def test_a_second_card_is_an_invalid_ordinal(on_gpu: OnGpu, ask: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
        on_gpu(ask)


def test_the_accelerator_is_the_card(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        kept = torch.empty(10, device="cuda")
        answer = (
            str(torch.accelerator.current_accelerator()),
            torch.accelerator.is_available(),
            torch.accelerator.device_count(),
            torch.accelerator.current_device_index(),
            torch.accelerator.memory_allocated(),
        )
        torch.accelerator.synchronize()
        del kept
        return answer

    assert on_gpu(ask) == ("cuda", True, 1, 0, 512)


def test_backends_speak_of_cuda(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        with torch.cuda.nvtx.range("a range"):
            torch.cuda.nvtx.mark("a mark")
        return (
            torch.backends.cuda.is_built(),
            torch.backends.cudnn.is_available(),
            torch.backends.cudnn.version() > 90000,
            torch.version.cuda is not None,
            torch.cuda.get_arch_list(),
            torch.cuda.memory.get_allocator_backend(),
        )

    assert on_gpu(ask) == (True, True, True, True, ["sm_89"], "native")


def test_a_snapshot_shows_the_segments(on_gpu: OnGpu) -> None:
    def ask() -> Any:
        torch.cuda.memory._record_memory_history()
        kept = torch.empty(100, device="cuda")
        snapshot = torch.cuda.memory._snapshot()
        del kept
        return [
            (segment["total_size"], segment["allocated_size"], len(segment["blocks"]))
            for segment in snapshot["segments"]
        ]

    assert on_gpu(ask) == [(2 * MIB, 512, 2)]


def test_a_share_of_the_card_is_kept_as_a_fact(traced_on_gpu: OnGpu) -> None:
    def ask() -> float:
        torch.cuda.set_per_process_memory_fraction(0.5)
        return torch.cuda.get_per_process_memory_fraction()

    share, timeline = traced_on_gpu(ask)
    assert (share, timeline.facts["per_process_memory_fraction"]) == (0.5, "0.5")


def test_a_captured_graph_runs_once(traced_on_gpu: OnGpu) -> None:
    def ask() -> Any:
        x = torch.empty(10, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        before = torch.cuda.memory_allocated()
        graph.replay()
        return y.shape, torch.cuda.memory_allocated() - before

    answer, timeline = traced_on_gpu(ask)
    assert answer == ((10,), 0)
    assert timeline.facts["CUDA graphs"].startswith("captured work was run once")
