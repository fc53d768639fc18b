"""Figures of how long a plan lasts: whether the same experts stay hot."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from eplb.report.charts import Figure, Matrix, Part
from eplb.report.drift import between_domains, between_parts
from eplb.report.verdict import hottest_neighbours
from eplb.report.words import percent, some

if TYPE_CHECKING:
    from eplb.report.drift import Overlap
    from eplb.report.study import Study


def drift_part(study: Study) -> Part:
    """The fourth part of the page."""
    domains = between_domains(study)
    figures = (drift(study), *(() if domains is None else (domain_drift(domains),)))
    return Part("drift", "Will it last", "Do the same experts stay hot?", figures)


def drift(study: Study) -> Figure:
    """Parts of the trace against each other."""
    parts, kept = between_parts(study), hottest_neighbours(study)
    words = (
        "There is only one part with load, so nothing can be compared."
        if isnan(kept)
        else f"From one part to the next {percent(kept, 0)} of the hot set stay the same; two random sets would share {percent(parts.chance, 0)}."
    )
    return Figure(
        "hot-set",
        "Do the same experts stay hot over the trace?",
        f"The trace is cut into parts in its order. A cell says how much of the hot set (the {some(parts.hot, 'hottest expert')} of each layer) two parts share, in percent. "
        "High everywhere: a plan lasts. High only near the diagonal: the hot experts change, so plan again.",
        words,
        () if isnan(kept) else (_matrix(parts, "slices of the part"),),
    )


def domain_drift(domains: Overlap) -> Figure:
    """Domains against each other."""
    return Figure(
        "domains",
        "Does a plan for one domain serve another?",
        "Row: the hot set in one half of the slices of a domain. Column: in the other half of a domain. The diagonal is one domain twice and shows how well "
        "a hot set can be known at all. Where a cell is far below the diagonal of its row, a plan for the row does not suit the column.",
        "There are too few slices to compare domains."
        if isnan(domains.within) or isnan(domains.across)
        else f"Within a domain {percent(domains.within, 0)} of the hot set is found again, in another domain {percent(domains.across, 0)}; chance would give {percent(domains.chance, 0)}.",
        (_matrix(domains, "one half (row) against the other half (column)"),),
        notes=_notes(domains),
    )


def _notes(domains: Overlap) -> tuple[str, ...]:
    left = (
        (f"{some(domains.left_out, 'domain')} with fewer tokens are left out.",) if domains.left_out else ()
    )
    unknown = (
        ("A dash: the domain has no slice on that side.",)
        if any(isnan(v) for v in domains.shared.ravel())
        else ()
    )
    return left + unknown


def _matrix(overlap: Overlap, corner: str) -> Matrix:
    cells = tuple(
        tuple(None if isnan(value) else float(value) for value in row) for row in overlap.shared.tolist()
    )
    return Matrix(corner, overlap.rows, overlap.columns, cells)
