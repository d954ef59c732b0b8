"""docs/techniques.md and the how-to pages get what was measured, and nothing else changes."""

from dataclasses import replace
from pathlib import Path

from benchmarks.techniques.contenders import CHUNKED, GROUPS, MAIN, PLAIN
from benchmarks.techniques.markdown import asked_for, page, sentence, table, with_measured
from benchmarks.techniques.results import Result
from benchmarks.techniques.stored import Measured, keep, stored

MiB = 1 << 20
FOUND = [
    Result(
        contender=PLAIN,
        tensor_peak_bytes=2000 * MiB,
        predicted_peak_bytes=2000 * MiB,
        tokens_per_cpu_second=700.0,
    ),
    Result(
        contender=CHUNKED,
        tensor_peak_bytes=1400 * MiB,
        predicted_peak_bytes=1400 * MiB + 8,
        tokens_per_cpu_second=686.0,
    ),
]
PAGE = "# Loss\n\n<!-- measured: loss-chunked -->\n\nMore.\n<!-- measured: other -->\n"


def test_a_sentence_goes_below_its_mark_and_marks_its_end() -> None:
    assert asked_for(PAGE) == ["loss-chunked", "other"]
    assert with_measured(PAGE, {"loss-chunked": "Half."}) == PAGE.replace(
        "chunked -->\n", "chunked -->\nHalf.\n<!-- end measured -->\n"
    )


def test_a_second_time_replaces_the_first() -> None:
    once = with_measured(PAGE, {"loss-chunked": "Half.", "other": "A."})
    assert with_measured(once, {"loss-chunked": "A third.", "other": "A."}) == with_measured(
        PAGE, {"loss-chunked": "A third.", "other": "A."}
    )


def test_the_sentence_has_the_row_beside_the_plain_one() -> None:
    said = sentence(MAIN, FOUND[1], FOUND)
    assert "1,400 MiB (memfit with nothing applied: 2,000) at 0.98 of the speed" in said


def test_every_row_of_every_group_has_a_sentence() -> None:
    for group in GROUPS:
        found = [replace(FOUND[0], contender=one) for one in group.contenders]
        assert all(one.contender.title in sentence(group, one, found) for one in found)


def test_a_row_says_whether_the_prediction_was_exact() -> None:
    lines = table(MAIN, FOUND)
    assert "| memfit with nothing applied | 2,000 | exact |" in lines[2]
    assert "| loss chunked | 1,400 | +8 bytes |" in lines[3]


def test_a_failed_contender_says_why() -> None:
    lines = table(MAIN, [Result(contender=CHUNKED, error="MemoryError")])
    assert lines[2].startswith("| loss chunked | failed: MemoryError |")


def test_the_page_has_every_group() -> None:
    text = page({group.name: Measured(FOUND, "2026-11-30", "2.13.0") for group in GROUPS}, GROUPS)
    assert [group.title for group in GROUPS if f"## {group.title}\n" not in text] == []


def test_the_page_says_which_groups_were_not_run() -> None:
    text = page({MAIN.name: Measured(FOUND, "2026-11-30", "2.13.0")}, GROUPS)
    assert f"**Not run:** {GROUPS[1].title};" in text
    assert "Vocabulary 8,192, 8 x 1,024 tokens a step" in text and "2.13.0, 2026-11-30." in text
    assert f"## {GROUPS[1].title}\n" not in text


def test_a_sentence_speaks_of_the_recipes_own_batch() -> None:
    small = replace(FOUND[1], contender=replace(CHUNKED, recipe={"batch_size": 1}))
    assert " 1 x 1,024 tokens" in sentence(MAIN, small, FOUND)
    assert " 8 x 1,024 tokens" in sentence(MAIN, FOUND[1], FOUND)


def test_what_an_earlier_call_found_is_kept_to_the_last_figure(tmp_path: Path) -> None:
    group = replace(MAIN, contenders=(PLAIN, CHUNKED))
    keep(group, FOUND, tmp_path)
    assert stored([group, MAIN], tmp_path)[group.name].results == FOUND


def test_a_group_that_has_changed_since_counts_as_not_run(tmp_path: Path) -> None:
    keep(replace(MAIN, contenders=(PLAIN, CHUNKED)), FOUND, tmp_path)
    assert stored([MAIN], tmp_path) == {}
