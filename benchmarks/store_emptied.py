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
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from collectors.keys import lease_key
from eplb.agent.link import HEARTBEAT_S
from eplb.chaos.load import tokens_of
from eplb.chaos.processes import DaemonProcess, StoreProcess, start_fork_server
from eplb.chaos.rank_group import RankGroup
from eplb.chaos.setup import POOL, PRICE_US_PER_TOKEN, STEP_S, TOKENS_PER_STEP, run_facts
from eplb.demo.setup import pool_shape

if TYPE_CHECKING:
    from collectors.facts import PoolFacts

PUBLISH_S = 1.0
DAEMONS = 2
CASES = ("the same leader", "another leader")
GIVE_UP_S = 300.0


class Served:
    """The ranks, stepping on, and the map that all of them serve."""

    def __init__(self, ranks: RankGroup, seed: int) -> None:
        self._ranks, self._seed = ranks, seed
        self._step = 0
        self.version = 0

    def step(self) -> None:
        """Serve one step in its time."""
        began_s = time.monotonic()
        served = self._ranks.serve(tokens_of(self._seed, self._step, TOKENS_PER_STEP))
        self.version = min(part.map_version for part in served.parts.values())
        self._step += 1
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began_s)))

    def until_after(self, version: int) -> float:
        """Serve until all ranks have a later map; the seconds that it took.

        Raises:
            TimeoutError: none came within ``GIVE_UP_S``.
        """
        began_s = time.monotonic()
        while self.version <= version:
            self.step()
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


def leader(client: redis.Redis, daemons: list[DaemonProcess]) -> DaemonProcess:
    """The daemon that holds the lease, by the process that its value names."""
    held = bytes(client.get(lease_key(POOL)) or b"").decode()
    for daemon in daemons:
        if daemon.pid and f":{daemon.pid}:" in held:
            return daemon
    raise LookupError(f"no daemon of ours holds the lease {held!r}")


def measure(rounds: int, seed: int) -> dict[str, list[float]]:
    """Seconds by case."""
    run = replace(run_facts(seed), publish_s=PUBLISH_S, heartbeat_s=HEARTBEAT_S)
    found: dict[str, list[float]] = {case: [] for case in CASES}
    start_fork_server()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eplb-emptied-")))
        store = StoreProcess(folder)
        stack.callback(store.kill)
        store.start()
        ranks = RankGroup(run, store.url, folder, guards_off=frozenset(), keep_shares=frozenset())
        stack.callback(ranks.end)

        def settings(home: Path) -> dict[str, Any]:
            return shipped_settings(run.facts, store.url, home)

        daemons = [DaemonProcess(place, folder, settings, fenced=True) for place in range(DAEMONS)]
        for daemon in daemons:
            stack.callback(daemon.end)
            daemon.start()
        ranks.start()
        client = stack.enter_context(redis.Redis(unix_socket_path=str(store.socket)))
        served = Served(ranks, seed)
        first_s = served.until_after(0)
        print(f"first wave after {first_s:.1f} s", file=sys.stderr, flush=True)
        for number in range(rounds * len(CASES)):
            case = CASES[number % len(CASES)]
            served.until_after(served.version)
            killed = leader(client, daemons) if case == CASES[1] else None
            if killed is not None:
                killed.signal(SIGKILL)
            client.flushall()
            seconds = served.until_after(served.version)
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
