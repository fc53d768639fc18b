"""What a migration costs the steps that are served meanwhile: interleaved pairs of stretches, idle and migrating.

Rerun:  python benchmarks/migrating_steps.py [--pairs 10] [--steps 100] [--ranks 4] [--hidden 256] [--inter 256] [--json]

The demo's ranks serve a seeded model with larger experts (786 kB each by default), real processes over gloo with the real
agent; this process writes the offers, as the daemon's actuator does, and nothing else runs. A pair is one stretch of steps
without an offer and one in which whole layers are moved to the rank opposite and back: every slot of the layers gets another
expert. The order within a pair alternates. A step's time is that of its slowest rank, gate included; of each stretch the
95th percentile is taken, and of each pair the ratio migrating / idle. The received MB are counted from the maps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from eplb.demo.director import Command
from eplb.demo.facts import RankStep, RankSwitch
from eplb.demo.generator import synthetic
from eplb.demo.model import ModelSpec
from eplb.demo.moves import arrivals
from eplb.demo.rank_group import Assembly, RankGroup
from eplb.demo.setup import RankPlan, RunFacts, run_facts
from eplb.migration import Actuator, make_plan, observe, read_desired
from eplb.migration.status import State
from eplb.ranks import LiveRanks
from eplb.store.client import Store
from eplb.store.embedded import EmbeddedStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eplb.demo.facts import GroupStep

REQUESTS = 16
WARM_UP_STEPS = 60
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps of one kind; times in milliseconds, ``received_mb`` per rank, the rank that received least."""

    migrating: bool
    p50_ms: float
    p95_ms: float
    worst_ms: float
    received_mb: float
    waves: int


@dataclass(frozen=True, slots=True)
class Pair:
    """An idle and a migrating stretch, one after the other."""

    idle: Stretch
    moving: Stretch

    @property
    def p95_ratio(self) -> float:
        """Slowdown of the slow steps while weights move."""
        return self.moving.p95_ms / self.idle.p95_ms


def run_of(args: argparse.Namespace) -> RunFacts:
    """The demo's facts with larger experts and fewer requests, so that the generated sequences last."""
    run = run_facts(
        synthetic(args.seed),
        ranks=args.ranks,
        seed=args.seed,
        dispatch="even",
        run_id=time.time_ns() // 1_000_000,
    )
    spec = ModelSpec(
        run.spec.layers, run.spec.experts, run.spec.top_k, args.seed, hidden=args.hidden, inter=args.inter
    )
    facts = replace(run.facts, bytes_per_expert=spec.bytes_per_expert)
    return replace(run, facts=facts, spec=spec, requests=REQUESTS)


class Mover:
    """Keeps one plan after another on offer while it is asked to, through the store and the actuator."""

    def __init__(self, run: RunFacts, store: Store, layers: int) -> None:
        self._run, self._store, self._layers = run, store, layers
        self._actuator = Actuator(
            run.facts, store.write_desired, staging_slots=layers * run.facts.slots_per_rank
        )
        self._plans = 0

    def work(self, *, wanted: bool) -> bool:
        """Look once, act once; whether anything is still on offer."""
        facts, now_ms = self._run.facts, self._store.time_ms()
        ranks = LiveRanks.read(self._store.read_live(), facts)
        desired = read_desired(self._store.read_desired())
        status = observe(facts, desired, ranks.records, now_ms)
        if status.state is State.ALL_LIVE:
            self._actuator.close(desired, ranks.records, term=1, now_ms=now_ms)
        elif status.state is State.WAVE_LIVE:
            self._actuator.offer_next(desired, ranks.records, term=1, now_ms=now_ms)
        elif status.state in (State.REFUSED, State.EXPIRED, State.UNVERIFIED):
            raise SystemExit(f"the ranks did not take a wave: {status.sentence}")
        elif status.state is State.IDLE and wanted and ranks.rows is not None and ranks.agree:
            plan = make_plan(facts, ranks.rows, self._turned(ranks.rows), created_ms=now_ms)
            self._actuator.begin(plan, desired, ranks.records, term=1, now_ms=now_ms)
            self._plans += 1
            return True
        return status.state is not State.IDLE

    def _turned(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Some layers, in turn, with every rank's experts on the rank opposite, which held none of them."""
        target = rows.copy()
        for place in range(self._layers):
            layer = (self._plans * self._layers + place) % len(rows)
            target[layer] = np.roll(rows[layer], self._run.facts.slots // 2)
        return target


class Bench:
    """Serves, moves and reads the times."""

    def __init__(self, args: argparse.Namespace, run: RunFacts, ranks: RankGroup, store: Store) -> None:
        self._args, self._run, self._ranks = args, run, ranks
        self._mover = Mover(run, store, args.layers)
        self._assembly = Assembly(run.facts.ranks)
        self._rows = run.start_map()
        self._received = np.zeros(run.facts.ranks, dtype=np.int64)
        self._waves = 0
        self._looked_s = 0.0

    def pairs(self) -> Iterator[Pair]:
        """Pairs in the order in which they are measured."""
        self._serve(WARM_UP_STEPS, migrating=False)
        for number in range(self._args.pairs):
            if number == self._args.pairs // 2:
                self._ranks.order(Command.SHIFT)  # the first domain's sequences would not last
            order = (False, True) if number % 2 == 0 else (True, False)
            first, second = (self._stretch(migrating=migrating) for migrating in order)
            yield Pair(*((first, second) if not first.migrating else (second, first)))

    def _stretch(self, *, migrating: bool) -> Stretch:
        self._received[:] = 0
        self._waves = 0
        steps = self._serve(self._args.steps, migrating=migrating)
        times = np.array([step.step_us / 1e3 for step in steps])
        stretch = Stretch(
            migrating,
            float(np.percentile(times, 50)),
            float(np.percentile(times, 95)),
            float(times.max()),
            float(self._received.min()) / 1e6,
            self._waves,
        )
        while self._mover.work(wanted=False):  # a wave that has begun ends outside of the stretches
            self._serve(5, migrating=False)
        self._serve(10, migrating=False)
        return stretch

    def _serve(self, count: int, *, migrating: bool) -> list[GroupStep]:
        found: list[GroupStep] = []
        while len(found) < count:
            for message in self._ranks.messages(LOOK_S):
                if isinstance(message, RankSwitch) and message.rank == 0:
                    self._switched(message)
                elif isinstance(message, RankStep) and (whole := self._assembly.add(message)):
                    found.append(whole)
            if migrating and time.monotonic() - self._looked_s > LOOK_S:
                self._looked_s = time.monotonic()
                self._mover.work(wanted=True)
        return found

    def _switched(self, switch: RankSwitch) -> None:
        width = self._run.facts.slots_per_rank
        self._waves += 1
        for place, layer in enumerate(switch.layers):
            before = self._rows[layer].reshape(-1, width)
            after = switch.rows[place].reshape(-1, width)
            for rank, (old, new) in enumerate(zip(before, after, strict=True)):
                self._received[rank] += arrivals(old, new, width) * self._run.facts.bytes_per_expert
            self._rows[layer] = switch.rows[place]


def measure(args: argparse.Namespace) -> list[Pair]:
    """Run store and ranks, and read all pairs; progress on stderr."""
    run = run_of(args)
    found: list[Pair] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eplb-bench-")))
        server = stack.enter_context(EmbeddedStore())
        store = stack.enter_context(Store(server.url, run.facts.pool))
        plans = [
            RankPlan(rank, run, server.url, str(folder / "rendezvous"), "") for rank in range(run.facts.ranks)
        ]
        ranks = stack.enter_context(RankGroup(plans))
        for pair in Bench(args, run, ranks, store).pairs():
            found.append(pair)
            print(_line(len(found), pair), file=sys.stderr, flush=True)
    return found


def _line(number: int, pair: Pair) -> str:
    idle, moving = pair.idle, pair.moving
    return (
        f"{number:>4}  {idle.p50_ms:>7.1f} {idle.p95_ms:>7.1f} {idle.worst_ms:>7.1f}   {moving.p50_ms:>7.1f} "
        f"{moving.p95_ms:>7.1f} {moving.worst_ms:>7.1f}   {moving.received_mb:>6.1f} {moving.waves:>5}   {pair.p95_ratio:>5.2f}"
    )


def main() -> None:
    """Print the pairs, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=3, help="layers of one plan")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--inter", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    print(
        "pair     idle p50     p95   worst   moving p50   p95   worst   MB/rank waves   p95 ratio",
        file=sys.stderr,
    )
    pairs = measure(args)
    if args.json:
        print(json.dumps([{**asdict(pair), "p95_ratio": pair.p95_ratio} for pair in pairs], indent=1))
        return
    print("pair     idle p50     p95   worst   moving p50   p95   worst   MB/rank waves   p95 ratio")
    for number, pair in enumerate(pairs, 1):
        print(_line(number, pair))
    worst_ms = max(max(pair.idle.worst_ms, pair.moving.worst_ms) for pair in pairs)
    least_mb = min(pair.moving.received_mb for pair in pairs)
    print(
        f"\nmedian p95 ratio {statistics.median(pair.p95_ratio for pair in pairs):.2f}, worst step {worst_ms:.0f} ms, "
        f"at least {least_mb:.1f} MB received per rank in a migrating stretch"
    )


if __name__ == "__main__":
    main()
