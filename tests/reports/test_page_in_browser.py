"""The page in headless Chromium: it draws, it fetches nothing, and it fits a phone."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from memfit.reports.html import prediction_page
from memfit.units import format_size

pytestmark = pytest.mark.browser

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium or google-chrome on this machine")
    with playwright.sync_playwright() as running:
        arguments = ["--no-sandbox", "--disable-gpu"]
        opened = running.chromium.launch(executable_path=chromium, args=arguments)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory, prediction, runlog_of):
    """A page with all of its parts."""
    path = tmp_path_factory.mktemp("page") / "prediction.html"
    text = prediction_page(prediction, measured=prediction.timeline, runlog=runlog_of())
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def opened(browser):
    """Opens a file; what the page complained of and asked for is in its ``trouble``."""
    pages = []

    def open_page(path, *, width=1280, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        pages.append(page)
        trouble = []
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: (trouble.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: trouble.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("#memory-chart .main-svg", state="attached")
        assert trouble.pop(0) == path.as_uri()
        return page, trouble

    yield open_page
    for page in pages:
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_draws_without_a_complaint_a_request_or_an_overflow(
    opened, written, prediction, width, scheme
):
    page, trouble = opened(written, width=width, scheme=scheme)
    text = page.inner_text("body")
    assert "Fits" in text
    for num_bytes in (prediction.peak.device_bytes, *prediction.breakdown.values()):
        assert format_size(num_bytes) in text
    assert page.locator(".main-svg .trace.scatter").count() > len(prediction.breakdown)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 23)"
    assert dark == (scheme == "dark")
    assert trouble == []


def test_the_readout_starts_at_the_peak_and_follows_the_pointer(opened, written, prediction):
    page, _ = opened(written)
    assert page.inner_text("#moment").startswith(
        f"The peak, {format_size(prediction.peak.allocated_bytes)} · step 2 · backward"
    )
    shown = dict(line.split("\n") for line in page.locator("#legend li").all_inner_texts())
    assert shown["Activations"] == format_size(prediction.breakdown["activations"])
    box = page.locator("#memory-chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    page.wait_for_function("document.getElementById('moment').textContent.startsWith('Event')")
    assert "step 2 · forward" in page.inner_text("#moment")


def test_a_view_zooms_and_a_double_click_comes_back_to_it(opened, written, prediction):
    page, trouble = opened(written)
    visible = "document.getElementById('memory-chart').layout.xaxis.range"
    first = int((prediction.timeline.steps < 2).sum())
    last = len(prediction.timeline.events) - 1
    assert page.evaluate(visible) == [first, last]
    page.get_by_role("button", name="Whole run").click()
    assert page.evaluate(visible) == [0, last]
    box = page.locator("#memory-chart").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 300, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, middle, steps=4)
    page.mouse.up()
    page.wait_for_function(f"{visible}[0] > 0")
    page.mouse.dblclick(box["x"] + 400, middle)
    page.wait_for_function(f"{visible}[0] === 0")
    assert page.evaluate(visible) == [0, last]
    assert trouble == []


def test_the_button_switches_between_light_and_dark(opened, written):
    page, trouble = opened(written, scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    drawn = "document.getElementById('memory-chart').layout.paper_bgcolor"
    dark, dark_chart = page.evaluate(background), page.evaluate(drawn)
    page.click("#theme")
    assert page.evaluate(background) != dark
    assert page.evaluate(drawn) != dark_chart
    page.click("#theme")
    assert (page.evaluate(background), page.evaluate(drawn)) == (dark, dark_chart)
    assert trouble == []


def test_a_hostile_name_is_shown_and_not_run(opened, tmp_path, prediction, renamed):
    path = tmp_path / "hostile.html"
    hostile = replace(renamed(prediction, "lm_head", HOSTILE), job=HOSTILE)
    path.write_text(prediction_page(hostile), encoding="utf-8")
    page, trouble = opened(path)
    assert HOSTILE in page.inner_text(".subject")
    assert HOSTILE in page.inner_text("#largest")
    assert page.locator("img").count() == 0
    assert trouble == []


def test_the_script_writes_sizes_as_python_does(opened, written):
    page, _ = opened(written)
    sizes = [0, 17, 1024, 1536, -2048, (9 << 20) + (1 << 18), (1 << 30) + (1 << 27)]
    sizes += [(1 << 30) + (3 << 27), 10_962_166_816, (1 << 40) + (1 << 37), 16 << 40]
    assert page.evaluate("sizes => sizes.map(memfit.size)", sizes) == [*map(format_size, sizes)]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_gpu_draws_its_segments_without_an_overflow(
    opened, tmp_path, gpu_prediction, width
):
    path = tmp_path / "gpu.html"
    path.write_text(prediction_page(gpu_prediction), encoding="utf-8")
    page, trouble = opened(path, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    bars = page.locator("#segments .segment")
    box = page.locator("#segments").bounding_box()
    boxes = [bar.bounding_box() for bar in bars.all()]
    right = max(bar["x"] + bar["width"] for bar in boxes)
    assert right <= box["x"] + box["width"] + 1
    shown = dict(line.split("\n") for line in page.locator("#legend li").all_inner_texts())
    assert shown["Allocated"] == format_size(gpu_prediction.peak.allocated_bytes)
    assert trouble == []
