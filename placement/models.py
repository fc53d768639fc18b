"""Names of the dispatch rules and cost models, and which of them are built."""

from __future__ import annotations

from placement.errors import UnsupportedError

DISPATCH = ("even", "weighted")
DISPATCH_LATER = ("hash_row", "nearest", "per_source", "block_round_robin", "optimal")
COST = ("tokens",)
COST_LATER = ("roofline",)
EFFORTS = ("fast", "normal", "thorough")


def check_models(dispatch: str, cost: str) -> None:
    """Refuse a dispatch rule or a cost model that cannot be used.

    Raises:
        UnsupportedError: names what is unknown or not built, and what can be used.
    """
    _check("dispatch", dispatch, DISPATCH, DISPATCH_LATER)
    _check("cost", cost, COST, COST_LATER)


def check_effort(effort: str) -> None:
    """Refuse an unknown effort.

    Raises:
        UnsupportedError: names the efforts.
    """
    _check("effort", effort, EFFORTS, ())


def _check(what: str, name: str, built: tuple[str, ...], later: tuple[str, ...]) -> None:
    if name in built:
        return
    state = "is known but not built yet" if name in later else "is unknown"
    raise UnsupportedError(f"{what} {name!r} {state}: use one of {', '.join(built)}")
