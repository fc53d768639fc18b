"""Serve one and the same schedule under every policy, seed by seed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from eplb.errors import ReplayError
from eplb.replay.ledger import Ledger, Terms
from eplb.replay.options import policy_of
from eplb.replay.ours import Ours
from eplb.replay.schedule import schedule
from eplb.start_map import start_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from eplb.replay.ledger import Account
    from eplb.replay.options import ReplayOptions
    from eplb.replay.policies import Policy
    from eplb.replay.recording import Recording

MOST_CELLS = 2**28
"""Counts of one window: 2 GiB."""


def replay(
    recording: Recording,
    options: ReplayOptions,
    words: Sequence[str],
    seeds: Sequence[int],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Account, ...]:
    """The account of every policy, seed after seed; ``progress`` is told (seed, windows served).

    Raises:
        ReplayError: a policy is unknown, or the schedule of a seed cannot be served; said before any of them is.
        placement.PlacementError: the pool cannot hold the experts.
    """
    _check(recording, options, words, seeds)
    return tuple(account for seed in seeds for account in _run(recording, options, words, seed, progress))


def _check(recording: Recording, options: ReplayOptions, words: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse what would fail after minutes of work."""
    options.topology().check_holds(recording.experts)
    cells = options.schedule.window_steps * options.ranks * recording.layers * recording.experts
    if cells > MOST_CELLS:
        raise ReplayError(
            f"a window of {options.schedule.window_steps} steps has {cells:,} counts by rank, layer and expert, at most {MOST_CELLS:,} "
            "can be held: use smaller windows"
        )
    for word in words:
        policy_of(word, recording, options, seed=0).close()
    for seed in seeds:
        if not sum(1 for _ in schedule(recording, options.schedule, options.ranks, seed)):
            raise ReplayError(
                f"the arrivals end before one window of {options.schedule.window_steps} steps is served; give more of them"
            )


def _run(
    recording: Recording,
    options: ReplayOptions,
    words: Sequence[str],
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[Account]:
    topology = options.topology()
    start = start_map(recording.layers, recording.experts, topology.slots)
    terms = Terms(topology, recording.experts, options.prices(), options.undone_within)
    with ExitStack() as stack:
        runs: list[tuple[Policy, Ledger]] = []
        for word in words:
            policy = policy_of(word, recording, options, seed)
            stack.callback(policy.close)
            ledger = Ledger(word, seed, start, terms, free=policy.free)
            runs.append((policy, ledger))
        for steps in schedule(recording, options.schedule, options.ranks, seed):
            for policy, ledger in runs:
                for part in steps.parts(policy.at_a_time or len(steps.batch)):
                    ledger.change(part.index, policy.map_for(part))
                    ledger.serve(part)
                    policy.seen(part)
            if progress is not None:
                progress(seed, steps.index + 1)
        for policy, ledger in runs:
            decisions = policy.decisions if isinstance(policy, Ours) else {}
            yield replace(ledger.account(), decisions=tuple(sorted(decisions.items())))
