"""What PyTorch reads from PYTORCH_ALLOC_CONF, and its reasons for refusing."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.allocator.settings import Settings, parse_settings, settings_from_environment
from memfit.allocator.version import NEWEST, OLDEST, TorchVersion
from memfit.errors import BadInput
from memfit.units import MiB

V2_8, V2_11, V2_13 = TorchVersion(2, 8), TorchVersion(2, 11), TorchVersion(2, 13)


@pytest.mark.parametrize("version", [OLDEST, V2_8, V2_11, NEWEST])
def test_all_options_that_every_release_has(version: TorchVersion) -> None:
    text = (
        "max_split_size_mb:64, max_non_split_rounding_mb:32,garbage_collection_threshold:0.8,"
        "roundup_power2_divisions:4,expandable_segments:True,backend:native"
    )
    assert parse_settings(text, version) == Settings(
        max_split_size_bytes=64 * MiB,
        max_non_split_rounding_bytes=32 * MiB,
        garbage_collection_threshold=0.8,
        roundup_power2_divisions=(4,) * 16,
        expandable_segments=True,
    )


@pytest.mark.parametrize("text", ["", " ", "expandable_segments:False", "max_split_size_mb:-5"])
def test_settings_that_change_nothing(text: str) -> None:
    settings = parse_settings(text, V2_13)
    largest = ((1 << 64) - 1) // MiB * MiB
    assert settings == Settings() or settings == Settings(max_split_size_bytes=largest)


def test_later_options() -> None:
    text = "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True,large_segment_size_mb:32"
    assert parse_settings(text, V2_13) == Settings(
        per_process_memory_fraction=0.5,
        throw_on_cudamalloc_oom=True,
        large_segment_bytes=32 * MiB,
        max_non_split_rounding_bytes=32 * MiB,
    )


def test_options_about_the_host_and_graph_capture_are_passed_over() -> None:
    text = (
        "pinned_use_cuda_host_register:True,pinned_num_register_threads:8,"
        "release_lock_on_cudamalloc:True,pinned_use_background_threads:True,"
        "graph_capture_record_stream_reuse:True"
    )
    assert parse_settings(text, V2_13) == Settings()
    assert parse_settings("pinned_reserve_segment_size_mb:64", V2_13) == Settings()


def test_a_list_of_divisions_names_sizes_in_mb_and_the_first_one_fills_those_below() -> None:
    text = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    divisions = parse_settings(text, V2_11).roundup_power2_divisions
    assert divisions == (1,) * 9 + (2,) + (8,) * 6


def test_the_mark_for_all_larger_sizes_starts_at_the_last_size_named() -> None:
    text = "roundup_power2_divisions:[2:4,>:8],max_split_size_mb:20"
    assert parse_settings(text, V2_11) == Settings(
        roundup_power2_divisions=(4,) + (8,) * 15, max_split_size_bytes=20 * MiB
    )


def test_divisions_of_none_or_one_round_nothing_more() -> None:
    assert parse_settings("roundup_power2_divisions:1", V2_11) == Settings()
    assert parse_settings("roundup_power2_divisions:[256:0,>:1]", V2_11) == Settings()


def test_numbers_are_read_as_c_reads_them() -> None:
    assert parse_settings("max_split_size_mb:64abc", V2_13).max_split_size_bytes == 64 * MiB
    assert parse_settings("max_split_size_mb:64.9", V2_13).max_split_size_bytes == 64 * MiB


@pytest.mark.parametrize(
    ("text", "version", "reason"),
    [
        ("max_split_size_mb:19", V2_13, "max_split_size_mb too small, must be >= 20"),
        ("max_split_size_mb:20", V2_8, "max_split_size_mb too small, must be > 20"),
        ("max_split_size_mb:1e3", V2_13, "max_split_size_mb too small, must be >= 20"),
        (
            "max_split_size_mb:25,large_segment_size_mb:30",
            V2_13,
            "max_split_size_mb too small, must be >= 30",
        ),
        ("large_segment_size_mb:10", V2_13, "large_segment_size_mb must be > 10 MB"),
        (
            "max_non_split_rounding_mb:1",
            V2_13,
            "max_non_split_rounding_mb too small, must be >= 20",
        ),
        (
            "garbage_collection_threshold:1",
            V2_13,
            r"garbage_collect_threshold is invalid, set it in \(0.0, 1.0\)",
        ),
        ("garbage_collection_threshold:0", V2_8, "too small, set it 0.0~1.0"),
        ("garbage_collection_threshold:1.5", V2_8, "too big, set it 0.0~1.0"),
        ("garbage_collection_threshold:much", V2_13, "'much' is not a number"),
        ("roundup_power2_divisions:3", V2_13, "the divisions has to be power of 2"),
        ("roundup_power2_divisions:0", V2_13, "the divisions has to be power of 2"),
        ("roundup_power2_divisions:[256:3]", V2_13, "power of 2 or 0 to disable roundup"),
        ("roundup_power2_divisions:[255:2]", V2_13, "the intervals have to be power of 2"),
        ("roundup_power2_divisions:[256:2", V2_13, "expecting roundup_power2_divisions value"),
        (
            "expandable_segments:true",
            V2_13,
            "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'",
        ),
        ("expandable_segments:1", V2_8, "a single True/False argument for expandable_segments"),
        ("pinned_use_background_threads:yes", V2_8, "argument for pinned_use_background_threads"),
        ("release_lock_on_cudamalloc:1", V2_13, "Expected 'True' or 'False' at index 2"),
        ("pinned_num_register_threads:3", V2_13, "register threads has to be power of 2"),
        ("pinned_num_register_threads:256", V2_8, "should be less than or equal to 128"),
        ("pinned_reserve_segment_size_mb:0", V2_13, "size has to be greater than 0"),
        ("per_process_memory_fraction:1.5", V2_13, r"is invalid, set it in \[0.0, 1.0\]"),
        ("expandable_segment:True", V2_13, "Unrecognized key 'expandable_segment' in CUDA alloc"),
        ("expandable_segment:True", V2_13, "nearest: expandable_segments"),
        ("whatever:1", V2_8, "Unrecognized CachingAllocator option: whatever"),
        ("large_segment_size_mb:32", V2_8, r"it exists from PyTorch 2\.11 on"),
        ("backend:jemalloc", V2_13, "options are native and cudaMallocAsync"),
        ("max_split_size_mb", V2_13, "ends where ':' belongs"),
        ("max_split_size_mb:", V2_13, "expecting max_split_size_mb value"),
        ("max_split_size_mb=64", V2_8, "Unrecognized CachingAllocator option"),
        ("max_split_size_mb:64;expandable_segments:True", V2_8, "expected ,"),
        ("max_split_size_mb:x", V2_13, "'x' is not a whole number"),
        ("max_split_size_mb:99999999999999999999999", V2_13, "is out of range"),
    ],
)
def test_bad_settings_are_refused_with_the_reason_of_that_release(
    text: str, version: TorchVersion, reason: str
) -> None:
    with pytest.raises(BadInput, match=reason):
        parse_settings(text, version)


def test_a_refusal_names_the_version_and_the_settings() -> None:
    with pytest.raises(BadInput, match=r"PyTorch 2\.13 refuses the allocator settings 'a:1': "):
        parse_settings("a:1", V2_13)


def test_cudas_own_pool_is_refused_because_it_is_not_predicted() -> None:
    with pytest.raises(BadInput, match=r"cudaMallocAsync.*only backend:native"):
        parse_settings("backend:cudaMallocAsync", V2_13)


def test_the_older_name_of_the_variable_wins_and_they_are_not_merged() -> None:
    both = {
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:50",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    assert settings_from_environment(both, V2_13) == Settings(expandable_segments=True)
    assert settings_from_environment(both | {"PYTORCH_CUDA_ALLOC_CONF": ""}, V2_13) == Settings()


def test_the_newer_name_is_read_from_2_9_on() -> None:
    environ = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:50"}
    assert settings_from_environment(environ, V2_8) == Settings()
    assert settings_from_environment(environ, TorchVersion(2, 9)) == Settings(
        max_split_size_bytes=50 * MiB
    )
    assert settings_from_environment({}, V2_13) == Settings()


def test_switching_the_cache_off_is_refused() -> None:
    with pytest.raises(BadInput, match="PYTORCH_NO_CUDA_MEMORY_CACHING"):
        settings_from_environment({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, V2_13)


@given(
    st.text(alphabet="max_split:size_mb,roundup[]>0123456789. TrueFals", max_size=60)
    | st.lists(
        st.sampled_from(
            [
                "max_split_size_mb",
                "roundup_power2_divisions",
                "garbage_collection_threshold",
                "expandable_segments",
                "large_segment_size_mb",
                *",:[]>",
                "1",
                "64",
                "0.5",
                "True",
            ]
        ),
        max_size=14,
    ).map("".join),
    st.sampled_from([V2_8, V2_11, V2_13]),
)
def test_any_text_is_read_or_refused(text: str, version: TorchVersion) -> None:
    with contextlib.suppress(BadInput):
        assert isinstance(parse_settings(text, version), Settings)
