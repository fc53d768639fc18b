"""Names of the dispatch rules, cost models and efforts."""

from __future__ import annotations

from placement.checks import whole
from placement.errors import UnsupportedError

DISPATCH = ("even", "weighted", "hash_row", "nearest", "per_source", "block_round_robin", "optimal")
"""Rules that ``evaluate`` can apply to a map and ``solve`` can minimise."""
COST = ("tokens", "roofline")
"""Cost models, likewise."""
EFFORTS = ("fast", "normal", "thorough")


def check_dispatch(dispatch: str, tensor_parallel: int = 1) -> None:
    """Refuse an unknown dispatch rule.

    Raises:
        UnsupportedError: names the rules.
    """
    _check("dispatch", dispatch, DISPATCH)
    whole("tensor_parallel", tensor_parallel, 1, UnsupportedError)


def check_cost(cost: str) -> None:
    """Refuse an unknown cost model.

    Raises:
        UnsupportedError: names the models.
    """
    _check("cost", cost, COST)


def check_effort(effort: str) -> None:
    """Refuse an unknown effort.

    Raises:
        UnsupportedError: names the efforts.
    """
    _check("effort", effort, EFFORTS)


def _check(what: str, name: str, known: tuple[str, ...]) -> None:
    if not (isinstance(name, str) and name in known):
        raise UnsupportedError(f"{what} {name!r} is unknown: use one of {', '.join(known)}")
