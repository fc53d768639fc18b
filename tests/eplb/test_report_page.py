"""The page as text: whole, small, self-contained, safe, and the same for the same input."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from report_world import HOSTILE, compared, even, routes_of, skewed, spread_map, studied

from eplb.report.build import build
from eplb.report.page import render
from eplb.report.study import Named
from placement import Placement, Topology

MOST_BYTES = 300_000
FIGURES = (
    "expert-heat",
    "skew",
    "hottest",
    "forecast",
    "over-time",
    "rank-heat",
    "compared",
    "frontier",
    "fan-out",
    "hot-set",
)


class Elements(HTMLParser):
    """Every element with its attributes; complains about what is not closed."""

    VOID = frozenset({"meta", "link", "img", "source", "path", "br"})

    def __init__(self):
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page_of(study, name="trace.npz"):
    return render(build(study, name))


def elements(text):
    parser = Elements()
    parser.feed(text)
    assert parser.open == []
    return parser.found


ODD = {
    "no load": lambda: studied(np.zeros((4, 2, 16), dtype=np.int64)),
    "a layer without load": lambda: studied(
        np.concatenate([skewed(), np.zeros((8, 1, 16), dtype=np.int64)], axis=1)
    ),
    "one slice": lambda: studied(skewed(1)),
    "one rank": lambda: studied(topology=Topology.uniform(ranks=1, slots_per_rank=17)),
    "one expert": lambda: studied(np.full((4, 1, 1), 7), Topology.uniform(ranks=2, slots_per_rank=1)),
    "one expert takes all": lambda: studied(skewed(spread=12.0)),
    "many slices": lambda: studied(even(400, 1)),
    "domains and phases": lambda: compared(
        domain=("law", "") * 4, phase=("prefill", "decode") * 4, routes=routes_of()
    ),
    "five maps": lambda: studied(
        maps=tuple(Named(f"map{at}.json", spread_map()) for at in range(4)), plan=True
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_every_trace_gives_a_whole_page(case):
    """All figures, each with a title, a help and a summary; nothing reads nan or None."""
    text = page_of(ODD[case]())
    found = elements(text)
    keys = [attributes["id"] for tag, attributes in found if tag == "figure"]
    assert keys[: len(FIGURES)] == list(FIGURES)
    words = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL)
    assert not re.search(r"\b(nan|None|inf|Undefined)\b", words)
    assert text.count('class="help"') == text.count('class="summary"') == len(keys)
    assert len({attributes["id"] for _, attributes in found if "id" in attributes}) == sum(
        "id" in a for _, a in found
    )


def test_nothing_is_fetched_from_anywhere():
    """No address but data, no element that loads, and a policy that forbids it."""
    found = elements(page_of(studied(routes=routes_of())))
    for _, attributes in found:
        for name in ("src", "srcset", "href"):
            assert attributes.get(name, "#").startswith(("data:", "#"))
    policy = next(a["content"] for tag, a in found if tag == "meta" and a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.partition("script-src")[2]


def test_names_from_files_are_text():
    """In the title, in domains, in the names of maps."""
    study = compared(domain=(HOSTILE, "law") * 4, maps=(Named(HOSTILE, spread_map()),))
    text = page_of(study, HOSTILE)
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert [tag for tag, _ in elements(text)].count("script") == 1


def test_the_page_of_a_large_model_is_small():
    """58 layers of 256 experts on 64 ranks, and three times as many experts."""
    rng = np.random.default_rng(0)
    for experts, slots in ((256, 5), (768, 13)):
        tokens = rng.poisson(rng.lognormal(3, 1, (58, experts)), (6, 58, experts))
        topology = Topology.uniform(ranks=64, nodes=8, slots_per_rank=slots)
        row = np.arange(64 * slots).reshape(slots, 64).T.ravel() % experts
        given = (Named("dealt.json", Placement(np.tile(row, (58, 1)))),)
        text = page_of(compared(tokens, topology=topology, maps=given))
        assert len(text.encode()) < MOST_BYTES


def test_equal_input_gives_equal_bytes():
    """No clock, no address of the machine."""
    assert page_of(studied()) == page_of(studied())
