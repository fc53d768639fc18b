"""Names of the dispatch rules, cost models and efforts, and where each can be used."""

from __future__ import annotations

from placement.checks import whole
from placement.errors import UnsupportedError

DISPATCH = ("even", "weighted")
"""Rules that a solve can minimise."""
DISPATCH_SCORED = (*DISPATCH, "hash_row", "nearest", "per_source", "block_round_robin", "optimal")
"""Rules that ``evaluate`` can apply to a map."""
COST = ("tokens",)
"""Cost models that a solve can minimise."""
COST_SCORED = (*COST, "roofline")
"""Cost models that ``evaluate`` can apply."""
EFFORTS = ("fast", "normal", "thorough")


def check_models(dispatch: str, cost: str) -> None:
    """Refuse a dispatch rule or a cost model that a solve cannot minimise.

    Raises:
        UnsupportedError: names what is unknown or can only be scored, and what can be used.
    """
    _check("dispatch", dispatch, DISPATCH, DISPATCH_SCORED)
    _check("cost", cost, COST, COST_SCORED)


def check_dispatch(dispatch: str, tensor_parallel: int = 1) -> None:
    """Refuse a dispatch rule that no map can be scored with.

    Raises:
        UnsupportedError: names the rules.
    """
    _check("dispatch", dispatch, DISPATCH_SCORED)
    whole("tensor_parallel", tensor_parallel, 1, UnsupportedError)


def check_cost(cost: str) -> None:
    """Refuse a cost model that no map can be scored with.

    Raises:
        UnsupportedError: names the models.
    """
    _check("cost", cost, COST_SCORED)


def check_effort(effort: str) -> None:
    """Refuse an unknown effort.

    Raises:
        UnsupportedError: names the efforts.
    """
    _check("effort", effort, EFFORTS)


def _check(what: str, name: str, usable: tuple[str, ...], known: tuple[str, ...] = ()) -> None:
    if isinstance(name, str) and name in usable:
        return
    scored = isinstance(name, str) and name in known
    state = "can be evaluated but not yet minimised" if scored else "is unknown"
    raise UnsupportedError(f"{what} {name!r} {state}: use one of {', '.join(usable)}")
