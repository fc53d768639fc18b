"""The page in a real browser, headless: quiet, readable in every light and width, usable by keyboard, printable."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import sync_playwright
from report_world import HOSTILE, even, routes_of, skewed, spread_map, studied

from eplb.report.build import build
from eplb.report.load_figures import over_mean
from eplb.report.page import render
from eplb.report.study import Named
from placement import Topology

pytestmark = pytest.mark.slow

PROBES = Path(__file__).with_name("browser_probes.js").read_text()
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LONG = "a very long domain name that somebody wrote down in full"


def rich():
    """Everything that a page can show, with names that are long or hostile."""
    maps = (
        Named("a rather long name of a map file, version 2.json", spread_map()),
        Named(HOSTILE, spread_map()),
    )
    domain = (HOSTILE, LONG, "law", "humanities_and_social_sciences") * 4
    phase = ("prefill", "prefill", "prefill", "prefill", "decode", "decode", "decode", "decode") * 2
    return studied(skewed(16), domain=domain, phase=phase, routes=routes_of(), maps=maps, plan=True)


WORLDS = {
    "rich": rich,
    "wide": lambda: studied(
        skewed(4, 12, 256, tokens=20000),
        Topology.uniform(ranks=32, nodes=4, slots_per_rank=9),
        layers=tuple(range(3, 15)),
    ),
    "long": lambda: studied(even(170, 1)),
    "empty": lambda: studied(np.zeros((1, 2, 16), dtype=np.int64)),
}


@pytest.fixture(scope="module")
def chromium():
    """A browser that looks for nothing in the background."""
    binary = shutil.which("chromium")
    if binary is None:
        pytest.skip("chromium is not on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def studies():
    return {}


@pytest.fixture
def opened(chromium, studies, tmp_path):
    """Open the page of one of ``WORLDS``; at the end it must have been silent on the console and the network."""
    contexts, told = [], []

    def open_page(world, *, width=1280, scheme="light", **options):
        if world not in studies:
            studies[world] = WORLDS[world]()
        file = tmp_path / "page.html"
        file.write_text(render(build(studies[world], f"{world} {HOSTILE}.npz")))
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: told.append(("console", message.text)))
        page.on("pageerror", lambda error: told.append(("error", str(error))))
        page.on("dialog", lambda dialog: told.append(("dialog", dialog.message)))
        page.on("request", lambda request: told.append(("request", request.url)))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    asked = [url for kind, url in told if kind == "request" and not url.startswith("data:")]
    assert all(url.endswith("/page.html") for url in asked)
    assert len(asked) == len(contexts)
    assert [each for each in told if each[0] != "request"] == []


def probe(page, question):
    return page.evaluate(f"() => {PROBES.strip()}.{question}()")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_at_every_width_and_in_every_light(opened, world, width, scheme):
    """Nothing lies on anything else or leaves the window, contrast is enough, no text is tiny; tables opened too."""
    page = opened(world, width=width, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert probe(page, "overlaps") == []
    assert probe(page, "outside") == []
    assert probe(page, "faint") == []
    assert probe(page, "smallest") >= 12
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_light_and_dark_pages_have_their_own_pictures(opened):
    """The heat maps follow the scheme."""
    pages = [opened("rich", scheme=scheme) for scheme in ("light", "dark")]
    backgrounds, pictures = (
        [page.evaluate(what) for page in pages]
        for what in (
            "getComputedStyle(document.body).backgroundColor",
            "document.querySelector('.heat img').currentSrc",
        )
    )
    assert backgrounds[0] != backgrounds[1]
    assert pictures[0] != pictures[1]


def test_the_tab_key_reaches_every_chart_in_order(opened):
    """And shows where it is."""
    page = opened("rich")
    charts = page.evaluate(
        "[...document.querySelectorAll('[tabindex=\"0\"]')].filter((each) => each.checkVisibility()).length"
    )
    reached = []
    for _ in range(charts + 40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                """() => { const at = document.activeElement;
                return at.tabIndex === 0 && at.hasAttribute("tabindex") && getComputedStyle(at).outlineStyle !== "none"
                  ? [...document.querySelectorAll('[tabindex="0"]')].filter((each) => each.checkVisibility()).indexOf(at) : -1; }"""
            )
        )
    seen = [at for at in reached if at >= 0]
    assert seen[:charts] == list(range(charts))


def test_arrow_keys_read_the_cells_of_a_heat_map(opened, studies):
    """The first key shows the first cell; then right, down, and to the end of the row."""
    page = opened("rich")
    values = over_mean(studies["rich"].file.trace.tokens.sum(axis=0))
    page.focus("#expert-heat .heat")
    for keys, layer, expert in (
        ("ArrowRight", 0, 0),
        ("ArrowRight", 0, 1),
        ("ArrowDown", 1, 1),
        ("End", 1, 15),
        ("ArrowRight", 1, 15),
    ):
        page.keyboard.press(keys)
        assert (
            page.inner_text("#expert-heat output")
            == f"layer {layer}, expert {expert}: {values[layer, expert]:.2f} × the mean"
        )


def test_the_pointer_reads_the_same_cells(opened, studies):
    """The cell under it, not a neighbour."""
    page = opened("rich", width=360)
    values = over_mean(studies["rich"].file.trace.tokens.sum(axis=0))
    page.locator("#expert-heat .heat").scroll_into_view_if_needed()
    box = page.locator("#expert-heat .heat").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 5.5 / 16, box["y"] + box["height"] * 2.5 / 3)
    assert page.inner_text("#expert-heat output") == f"layer 2, expert 5: {values[2, 5]:.2f} × the mean"


def test_arrow_keys_read_the_points_of_a_line(opened, studies):
    """Slice by slice, with every map's ratio."""
    page = opened("rich")
    study = studies["rich"]
    page.focus("#over-time .lines")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    text = page.inner_text("#over-time output")
    assert text.startswith(f"slice 1 ({LONG}, prefill), ")
    assert f"new plan {study.after.ratio[1].mean():.3f}" in text


def test_it_prints_without_what_only_a_screen_can_do(opened, tmp_path):
    """Figures and tables stay, links and hints go, and the PDF has pages."""
    page = opened("rich")
    page.emulate_media(media="print")
    hidden = page.evaluate(
        "['nav', '.reading', 'details'].map((each) => document.querySelector(each).checkVisibility())"
    )
    assert hidden == [False, False, False]
    assert page.evaluate("[...document.querySelectorAll('figure')].every((each) => each.checkVisibility())")
    assert probe(page, "overlaps") == []
    assert probe(page, "faint") == []
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_without_scripts_every_number_is_still_there(opened):
    """Tables open by themselves, charts are drawn."""
    page = opened("rich", java_script_enabled=False)
    assert page.locator("figure table").count() >= 10
    assert page.locator("svg path.line").count() >= 5
    page.locator("#skew summary").click()
    assert page.locator("#skew table").is_visible()
