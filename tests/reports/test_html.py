from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from memfit.records.prediction import Attempt
from memfit.reports.html import prediction_page
from memfit.units import format_size

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Page(HTMLParser):
    """The scripts, the links and the table cells of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.cells: dict[str, list[list[str]]] = {}
        self._open = ""
        self._table = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._open = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        elif tag == "table":
            self._table = dict(attrs)["id"] or ""
            self.cells[self._table] = []
        elif tag == "tr":
            self.cells[self._table].append([])
        elif tag == "td":
            self.cells[self._table][-1].append("")

    def handle_endtag(self, tag):
        self._open = ""
        if tag == "table":
            self._table = ""

    def handle_data(self, data):
        if self._open == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif self._table and self.cells[self._table] and self.cells[self._table][-1]:
            self.cells[self._table][-1][-1] += data.strip()

    def data(self, name: str) -> dict:
        return next(json.loads(text) for attrs, text in self.scripts if attrs.get("id") == name)


@pytest.fixture(scope="module")
def page(prediction):
    return Page(prediction_page(prediction))


def test_the_numbers_of_the_page_are_those_of_the_json(page, prediction):
    assert page.data("prediction") == json.loads(json.dumps(prediction.as_dict()))


def test_the_breakdown_on_the_page_adds_up_to_the_allocated_peak(page, prediction):
    *rows, total = [row for row in page.cells["breakdown"] if row]
    shown = [int(row[-1].replace(",", "")) for row in rows]
    assert shown == sorted(prediction.breakdown.values(), reverse=True)
    assert sum(shown) == int(total[-1].replace(",", "")) == prediction.peak.allocated_bytes


def test_the_largest_tensors_are_on_the_page_in_their_order(page, prediction):
    rows = [row for row in page.cells["largest"] if row]
    assert [row[:3] for row in rows] == [
        [format_size(t.num_bytes), f"{t.dtype}{t.shape}", t.module or "–"]
        for t in prediction.largest
    ]


def test_hostile_names_stay_text(prediction, renamed):
    hostile = replace(renamed(prediction, "lm_head", HOSTILE), job=HOSTILE)
    hostile = replace(hostile, timeline=replace(hostile.timeline, facts={HOSTILE: HOSTILE}))
    text = prediction_page(hostile, measured=hostile.timeline)
    page = Page(text)
    assert len(page.scripts) == 4
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    assert "img" not in {tag for tag, _, _ in page.attributes}
    assert page.data("prediction")["job"] == HOSTILE
    assert HOSTILE in page.data("charts")["memory"]["names"]


def test_the_page_refers_to_nothing_outside_itself(page):
    links = {value for _, name, value in page.attributes if name in ("src", "href", "data")}
    assert links == {"data:,"}


def test_the_styles_fetch_nothing(prediction):
    styles = re.search(r"<style>(.*?)</style>", prediction_page(prediction), re.DOTALL)
    assert styles
    assert not re.search(r"url\(|@import|&", styles[1])


def test_the_browser_is_told_to_run_the_two_scripts_of_the_page_and_to_fetch_nothing(page):
    policy = next(v for tag, name, v in page.attributes if (tag, name) == ("meta", "content"))
    assert policy
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for attrs, text in page.scripts
        if "type" not in attrs
    ]
    assert policy.split("; ") == [
        "default-src 'none'",
        "script-src " + " ".join(f"'sha256-{h}'" for h in hashes),
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_a_prediction_that_does_not_fit_shows_where_the_budget_ends(prediction):
    text = prediction_page(replace(prediction, budget_bytes=9 << 30))
    assert "Does not fit" in text
    assert 'class="limit"' in text


def test_the_measured_peak_stands_beside_the_predicted_one(prediction, gpt_timeline):
    equal = prediction_page(prediction, measured=prediction.timeline)
    assert "The peak: equal to the byte." in equal
    assert "equal to the byte at every measured event" in equal
    larger = prediction_page(prediction, measured=gpt_timeline(layers=13))
    assert re.search(r"The peak: predicted [\d.]+ MiB \([\d,]+ bytes\) below measured", larger)
    assert "stretched" in larger
    backward = next(r for r in Page(larger).cells["comparison"] if r and r[0] == "Backward")
    gap = prediction.phases["backward"] - gpt_timeline(layers=13).phase_peaks()["backward"]
    assert backward[3:] == [format_size(gap), f"{gap:,}"]


def test_a_phase_that_was_not_recorded_is_said_to_be_unseen(prediction, gpt_timeline):
    page = Page(prediction_page(prediction, measured=gpt_timeline(steps=0)))
    rows = {row[0]: row[2] for row in page.cells["comparison"] if row}
    assert rows["Backward"] == "not seen"


def test_the_run_is_shown_only_when_there_is_one(prediction, runlog_of, page):
    assert "training" not in page.data("charts")
    text = prediction_page(prediction, runlog=runlog_of())
    assert "10.615 → 3.088" in text
    assert len(Page(text).data("charts")["training"]["loss"]["x"]) == 200


# On a GPU


@pytest.fixture(scope="module")
def gpu_page(gpu_prediction):
    return Page(prediction_page(gpu_prediction))


def test_the_breakdown_of_a_gpu_adds_up_to_the_allocated_peak_too(gpu_page, gpu_prediction):
    *rows, total = [row for row in gpu_page.cells["breakdown"] if row]
    shown = [int(row[-1].replace(",", "")) for row in rows]
    assert sum(shown) == int(total[-1].replace(",", "")) == gpu_prediction.peak.allocated_bytes


def test_the_layers_of_the_chart_are_what_is_allocated(gpu_page, gpu_prediction):
    memory = gpu_page.data("charts")["memory"]
    heights = np.sum([layer["bytes"] for layer in memory["layers"]], axis=0).tolist()
    lines = {line["label"]: line["bytes"] for line in memory["lines"]}
    assert heights == lines["Allocated"]
    assert max(lines["Reserved"]) == gpu_prediction.peak.reserved_bytes


def test_what_is_uncertain_stands_on_the_page_with_its_bytes(gpu_page):
    rows = [row for row in gpu_page.cells["uncertainty"] if row]
    assert rows == [
        ["Segment addresses", "–", "20.0 MiB", "the driver decides"],
        ["CUDA context", "150.0 MiB", "150.0 MiB", "measured by others"],
        ["Unknown values read", "–", "not counted", "train.py:7"],
    ]


def test_the_segments_of_the_peak_are_drawn_where_there_are_any(gpu_page, page):
    drawn = [v for tag, name, v in gpu_page.attributes if (tag, name) == ("div", "class")]
    assert sum("segment" in (value or "").split() for value in drawn) > 24
    assert ("div", "id", "segments") in gpu_page.attributes
    assert ("div", "id", "segments") not in page.attributes


def test_a_tight_answer_shows_the_line_of_the_budget(gpu_prediction):
    attempt = Attempt(room_bytes=1, addresses="ascending", num_alloc_retries=0, out_of_memory=None)
    text = prediction_page(
        replace(gpu_prediction, budget_bytes=gpu_prediction.peak.device_bytes, attempts=(attempt,))
    )
    assert '<section class="verdict tight">' in text
    assert 'class="limit"' in text
    assert "reaches 170.0 MiB past the budget" in text


def test_a_script_has_no_recipe_on_its_page(gpu_prediction):
    text = prediction_page(replace(gpu_prediction, recipe=None, num_parameters=None, seq_len=None))
    assert "memfit applies nothing to it" in text
    assert "<dt>Parameters</dt>" not in text


def test_hostile_names_in_segments_stay_text(gpu_prediction, renamed):
    hostile = renamed(gpu_prediction, "lm_head", f'"{HOSTILE}')
    page = Page(prediction_page(hostile))
    assert len(page.scripts) == 4
    assert "img" not in {tag for tag, _, _ in page.attributes}
    assert any(HOSTILE in (value or "") for _, name, value in page.attributes if name == "title")
