"""Write the page: one HTML text that needs nothing else."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from eplb.report import draw

if TYPE_CHECKING:
    from eplb.report.build import Page

TEMPLATE = "page.html.j2"


def render(page: Page) -> str:
    """The page as HTML; equal pages give equal text. Every name from a file is escaped."""
    css, script = _own("page.css") + _palette(), _own("page.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["kind"] = lambda chart: type(chart).__name__
    environment.filters["percent"] = lambda part: f"{100 * part:.2f}%"
    template = environment.from_string(_own(TEMPLATE))
    # Both are files of this package, not input.
    text = template.render(page=page, draw=draw, css=Markup(css), script=Markup(script), digest=digest)  # noqa: S704
    return f"{text.strip()}\n"


def _own(name: str) -> str:
    return files("eplb.report").joinpath(name).read_text(encoding="utf-8")


def _palette() -> str:
    def rules(colours: tuple[str, ...]) -> str:
        return "".join(f".k{at}{{background:{colour}}}" for at, colour in enumerate(colours))

    return f"{rules(draw.LIGHT)}@media (prefers-color-scheme:dark){{{rules(draw.DARK)}}}"
