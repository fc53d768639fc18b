"""How long after a store lost everything is a further wave committed, by the same leader and by another?

Rerun:  python benchmarks/store_emptied.py [--rounds 3] [--seed 0]

The runtime of `make chaos` on one host, two daemons, ranks that publish and beat as often as they ship (1 s and 5 s). The daemons run on
the shipped settings (cycle 5 s, lease 30 s, window 60 s of 256 slices) but for mode auto, a price, least tokens for 100 of these
small steps, and the two rests between plans: with the shipped 300 s of rest no plan at all may follow another within a minute,
emptied store or not.
Rounds go by turns: the store is emptied; the store is emptied and the leader killed with SIGKILL in the same moment. The clock
runs from the emptying to the first step in which all ranks serve a later map. Prints a line a round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from signal import SIGKILL
from typing import TYPE_CHECKING, Any, cast

from calm_pool import calm_pool

from collectors.keys import lease_key
from eplb.agent.link import HEARTBEAT_S
from eplb.chaos.setup import POOL, PRICE_US_PER_TOKEN, TOKENS_PER_STEP, run_facts
from eplb.chaos.watch import leader_pid
from eplb.demo.setup import pool_shape

if TYPE_CHECKING:
    from pathlib import Path

    from calm_pool import CalmPool

    from collectors.facts import PoolFacts
    from eplb.chaos.processes import DaemonProcess

PUBLISH_S = 1.0
CASES = ("the same leader", "another leader")
GIVE_UP_S = 300.0


def until_after(pool: CalmPool, version: int) -> float:
    """Serve until all ranks have a later map; the seconds that it took.

    Raises:
        TimeoutError: none came within ``GIVE_UP_S``.
    """
    began_s = time.monotonic()
    while pool.version <= version:
        pool.serve()
        if time.monotonic() - began_s > GIVE_UP_S:
            raise TimeoutError(f"no further wave within {GIVE_UP_S:g} s")
    return time.monotonic() - began_s


def shipped_settings(facts: PoolFacts, store_url: str, folder: Path) -> dict[str, Any]:
    """What an operator of such a pool writes, and no rest between plans."""
    return {
        "store": {"url": store_url},
        "http": {"port": 0},
        "advice_folder": str(folder / "plans"),
        "state_folder": str(folder / "state"),
        "pools": [
            {
                **pool_shape(facts),
                "dispatch": "even",
                "gate": {
                    "mode": "auto",
                    "price_us_per_token": PRICE_US_PER_TOKEN,
                    "cooldown_s": 0,
                    "min_interval_s": 0,
                    "min_tokens": TOKENS_PER_STEP * 100,
                },
            }
        ],
    }


def leader(pool: CalmPool) -> DaemonProcess:
    """The daemon that holds the lease, by the process that its value names."""
    held = cast("bytes | None", pool.client.get(lease_key(POOL)))
    pid = leader_pid(held)
    for daemon in pool.daemons:
        if daemon.pid and daemon.pid == pid:
            return daemon
    raise LookupError(f"no daemon of ours holds the lease {held!r}")


def measure(rounds: int, seed: int) -> dict[str, list[float]]:
    """Seconds by case."""
    run = replace(run_facts(seed), publish_s=PUBLISH_S, heartbeat_s=HEARTBEAT_S)
    found: dict[str, list[float]] = {case: [] for case in CASES}
    with calm_pool(run, partial(shipped_settings, run.facts)) as pool:
        print(f"first wave after {until_after(pool, 0):.1f} s", file=sys.stderr, flush=True)
        for number in range(rounds * len(CASES)):
            case = CASES[number % len(CASES)]
            until_after(pool, pool.version)
            killed = leader(pool) if case == CASES[1] else None
            if killed is not None:
                killed.signal(SIGKILL)
            pool.client.flushall()
            seconds = until_after(pool, pool.version)
            found[case].append(seconds)
            print(f"{case:<16} {seconds:6.1f} s", flush=True)
            if killed is not None:
                killed.start()
    return found


def main() -> int:
    """Print all rounds and the median and worst of each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for case, seconds in measure(args.rounds, args.seed).items():
        print(
            f"{case}: median {statistics.median(seconds):.1f} s, most {max(seconds):.1f} s, {len(seconds)} rounds"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
