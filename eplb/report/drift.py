"""How much of the hot set stays the same from one part of a trace to another."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eplb.offline.holdout import held_out, kinds_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from eplb.report.study import Study

HOT_PART = 0.1
"""Part of a layer's experts that make its hot set."""
MOST_PARTS = 8
"""Parts of the trace, or domains, that are compared: more would not be readable."""


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """``shared``: float64 [rows, columns], mean over layers of the part of the hot set that both have; NaN = not known.

    ``hot``: experts in a hot set. ``chance``: what two random sets would share.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    shared: NDArray[np.float64]
    hot: int
    chance: float
    left_out: int = 0

    @property
    def within(self) -> float:
        """Mean of the diagonal, NaN if nothing of it is known."""
        return _mean(np.diagonal(self.shared))

    @property
    def across(self) -> float:
        """Mean of the rest, NaN if nothing of it is known."""
        return _mean(self.shared[~np.eye(len(self.rows), dtype=np.bool_)])


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def hot_size(experts: int) -> int:
    """Experts of a hot set: a tenth of the layer's, at least one."""
    return max(1, round(experts * HOT_PART))


def hot_sets(tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The hottest experts of every layer, bool [layers, experts]; equal loads by id; none in a layer without load."""
    order = np.argsort(-tokens, axis=1, kind="stable")[:, : hot_size(tokens.shape[1])]
    hot = np.zeros(tokens.shape, dtype=np.bool_)
    np.put_along_axis(hot, order, values=True, axis=1)
    hot[~tokens.any(axis=1)] = False
    return hot


def shared_part(one: NDArray[np.int64], two: NDArray[np.int64]) -> float:
    """Mean over the layers that have load in both of the part of the hot set they share; NaN without any."""
    both = one.any(axis=1) & two.any(axis=1)
    if not both.any():
        return float("nan")
    common = (hot_sets(one) & hot_sets(two))[both].sum(axis=1)
    return float((common / hot_size(one.shape[1])).mean())


def between_parts(study: Study) -> Overlap:
    """Compare the trace's slices, in their order, as at most ``MOST_PARTS`` equal parts."""
    tokens = study.file.trace.tokens
    bounds = np.linspace(0, len(tokens), min(MOST_PARTS, len(tokens)) + 1).round().astype(int)
    parts = [tokens[a:b].sum(axis=0) for a, b in itertools.pairwise(bounds)]
    names = tuple(
        f"{a}" if b == a + 1 else f"{a}–{b - 1}"
        for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    )
    return _table(study, names, parts, parts)


def between_domains(study: Study) -> Overlap | None:
    """Compare domains: half of the slices of one (rows) with the other half of another (columns); None without two domains."""
    domains = study.file.domain
    names = () if domains is None else tuple(dict.fromkeys(name for name in domains if name))
    if domains is None or len(names) < 2:
        return None
    of, tokens, other = np.array(domains), study.file.trace.tokens, held_out(kinds_of(study.file), 0.5)
    weight = {name: int(tokens[of == name].sum()) for name in names}
    kept = tuple(name for name in names if name in sorted(names, key=lambda n: -weight[n])[:MOST_PARTS])
    rows = [tokens[(of == name) & ~other].sum(axis=0) for name in kept]
    columns = [tokens[(of == name) & other].sum(axis=0) for name in kept]
    return _table(study, kept, rows, columns, len(names) - len(kept))


def _table(
    study: Study,
    names: tuple[str, ...],
    rows: Sequence[NDArray[np.int64]],
    columns: Sequence[NDArray[np.int64]],
    left_out: int = 0,
) -> Overlap:
    experts = study.file.trace.experts
    shared = np.array([[shared_part(one, two) for two in columns] for one in rows])
    return Overlap(names, names, shared, hot_size(experts), hot_size(experts) / experts, left_out)
