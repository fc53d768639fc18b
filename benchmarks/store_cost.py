"""What streaming the load costs: bytes, store memory, CPU of store and reader, and the age of what the reader knows.

Rerun:  python benchmarks/store_cost.py [--ranks 32 72 320] [--kinds routed routed_slots received_slots] [--seconds 6]
            [--step-ms 100] [--tokens 64] [--budget 2000000] [--poll-s 0.25] [--store URL] [--seed 0] [--json]

One process plays all ranks of a pool: real recorders, real publishers (one thread and connection a rank, default byte
budget, their own rule for interval and stride), honest counts of 58 layers, 256 experts and top-8 under a skewed router.
The store is a process of its own (embedded Valkey, or ``--store``). The reader is this process: it tails the streams and
feeds a window every ``--poll-s`` seconds. A cell is measured over whole publishing intervals, about ``--seconds`` and at
least three sampled steps, after each rank has published twice.

``store MB`` is what the ranks would keep there (default retention): bytes/s x seconds x measured memory per byte.
``age`` is the time since the newest complete step was *served*, seen at every poll. CPU is in percent of one core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from collectors.digests import layer_map_digests
from collectors.facts import Kind, Phase, PoolFacts
from collectors.keys import load_key
from collectors.publisher import RETENTION_S, Publisher
from collectors.recorder import Recorder
from eplb.store.client import Store
from eplb.store.embedded import EmbeddedStore
from eplb.window import Window

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from numpy.typing import NDArray

LAYERS, EXPERTS, TOP_K, SLOTS = 58, 256, 8, 288
RANKS_PER_NODE = 8
BANK_STEPS = 2
OLD_PAIRS_PER_LAYER = 50_000_000
STEPS_REMEMBERED = 1 << 16
LONGEST_CELL_S = 60.0
SAMPLED_STEPS_MIN = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table."""

    ranks: int
    slots: int
    kind: str
    interval_s: float
    stride: int
    frames_per_s: float
    bytes_per_s: float
    store_bytes: float
    memory_per_byte: float
    server_cpu_percent: float
    reader_cpu_percent: float
    age_p50_s: float
    age_p99_s: float
    steps_per_s: float
    lost: int
    misaligned: int
    measured_s: float


def facts_of(ranks: int) -> PoolFacts:
    """58 layers of 256 experts over the fewest slots per rank that reach 288, or the experts at least."""
    per_rank = max(-(-EXPERTS // ranks), SLOTS // ranks)
    nodes = -(-ranks // RANKS_PER_NODE)
    return PoolFacts("bench", ranks, nodes, per_rank, EXPERTS, TOP_K, tuple(range(3, 3 + LAYERS)))


def placed(facts: PoolFacts, popularity: NDArray[np.float64], seed: int) -> NDArray[np.int32]:
    """A map with a second copy of the hottest experts: int32 [layers, slots]."""
    rng = np.random.default_rng(seed)
    extra = facts.slots - facts.experts
    hottest = np.argsort(-popularity, axis=1)[:, :extra]
    rows = [rng.permutation(np.concatenate([np.arange(facts.experts), hot])) for hot in hottest]
    return np.array(rows, dtype=np.int32)


class Load:
    """Honest counts: every layer of a step holds tokens x top_k pairs, whatever the kind."""

    def __init__(self, facts: PoolFacts, kind: Kind, seed: int) -> None:
        self.facts, self.kind = facts, kind
        self._rng = np.random.default_rng(seed)
        skewed = np.random.default_rng(seed).lognormal(0.0, 1.0, (facts.layers, facts.experts))
        popularity = skewed / skewed.sum(axis=1, keepdims=True)
        self.rows = placed(facts, popularity, seed)
        self._by_column = popularity if kind is Kind.ROUTED else self._by_slot(popularity)

    def _by_slot(self, popularity: NDArray[np.float64]) -> NDArray[np.float64]:
        out = np.zeros((self.facts.layers, self.facts.slots))
        for layer, row in enumerate(self.rows):
            replicas = np.bincount(row, minlength=self.facts.experts)
            out[layer] = (popularity[layer] / replicas)[row]
        return out / out.sum(axis=1, keepdims=True)

    def step(self, tokens_per_rank: int) -> list[NDArray[np.int64]]:
        """One step's counts of every rank, int64 [layers, width] each."""
        ranks, pairs = self.facts.ranks, tokens_per_rank * self.facts.top_k
        if self.kind is Kind.RECEIVED_SLOTS:
            received = self._rng.multinomial(pairs * ranks, self._by_column)
            return [np.ascontiguousarray(part) for part in np.split(received, ranks, axis=1)]
        return [self._rng.multinomial(pairs, self._by_column) for _ in range(ranks)]


@dataclass(frozen=True, slots=True)
class Order:
    """What the ranks' process is to play."""

    url: str
    ranks: int
    kind: int
    budget: float
    step_ms: float
    tokens: int
    seed: int


def play_ranks(order: Order, served_s: Any, pace: Any, stop: Event) -> None:
    """Serve steps until told to stop; ``served_s`` the time of each step, ``pace`` the shortest published count, interval, stride."""
    facts, kind = facts_of(order.ranks), Kind(order.kind)
    load = Load(facts, kind, order.seed)
    digests = None if kind is Kind.ROUTED else layer_map_digests(facts.model_layers, load.rows)
    recorders = [Recorder(facts, rank, kind, layer_digests=digests) for rank in range(facts.ranks)]
    old_tokens = OLD_PAIRS_PER_LAYER // (TOP_K * facts.ranks)
    bank = [load.step(old_tokens), *(load.step(order.tokens) for _ in range(BANK_STEPS))]
    publishers = [
        Publisher(recorder, url=order.url, node=rank // RANKS_PER_NODE, publish_bytes_per_s=order.budget)
        for rank, recorder in enumerate(recorders)
    ]
    for recorder, counts in zip(recorders, bank[0], strict=True):
        recorder.register(1, -1)
        recorder.record_step(0, Phase.DECODE, counts, old_tokens)
    for publisher in publishers:
        publisher.start()
    step, begin_s = 0, time.monotonic()
    while not stop.wait(max(0.0, begin_s + step * order.step_ms / 1000 - time.monotonic())):
        step += 1
        for recorder, counts in zip(recorders, bank[1 + step % BANK_STEPS], strict=True):
            recorder.record_step(step, Phase.DECODE, counts, order.tokens)
        served_s[step % STEPS_REMEMBERED] = time.monotonic()
        stats = [publisher.stats for publisher in publishers]
        pace[0] = min(s.published for s in stats)
        pace[1] = statistics.fmean(s.interval_s for s in stats)
        pace[2] = max(s.stride for s in stats)
        pace[3] = sum(s.dropped for s in stats) + sum(sum(r.refused.values()) for r in recorders)
    for publisher in publishers:
        publisher.stop()


class Reader:
    """The daemon's side: tail, feed the window, look at the age of the newest complete step."""

    def __init__(self, store: Store, window: Window, served_s: Any, poll_s: float) -> None:
        self.store, self.window, self._served_s, self._poll_s = store, window, served_s, poll_s
        self.ages_s: list[float] = []
        self._nodes = range(window.facts.nodes)

    def poll(self) -> None:
        """One poll, then wait for the next."""
        began_s = time.monotonic()
        while entries := self.store.tail_load(self._nodes):
            for time_ms, node, payload in entries:
                self.window.ingest(time_ms, node, payload)
        steps = self.window.view(self.store.time_ms()).group_steps
        if len(steps) and steps[-1] > 0:
            self.ages_s.append(time.monotonic() - self._served_s[int(steps[-1]) % STEPS_REMEMBERED])
        time.sleep(max(0.0, began_s + self._poll_s - time.monotonic()))


def measure(url: str, ranks: int, kind: Kind, args: argparse.Namespace) -> Cell:
    """One cell of the table."""
    facts = facts_of(ranks)
    context = multiprocessing.get_context("spawn")
    served_s, pace, stop = (
        context.Array("d", STEPS_REMEMBERED, lock=False),
        context.Array("d", 4, lock=False),
        context.Event(),
    )
    order = Order(url, ranks, int(kind), args.budget, args.step_ms, args.tokens, args.seed)
    with Store(url, facts.pool) as store:
        memory_before = _emptied(store, facts)
        window = Window(facts, kind)
        rows = Load(facts, kind, args.seed).rows
        window.add_map(layer_map_digests(facts.model_layers, rows), rows)
        reader = Reader(store, window, served_s, args.poll_s)
        process = context.Process(target=play_ranks, args=(order, served_s, pace, stop), daemon=True)
        process.start()
        try:
            return _measured(reader, pace, args, memory_before)
        finally:
            stop.set()
            process.join(30)


def _emptied(store: Store, facts: PoolFacts) -> int:
    """Delete this benchmark's own streams, and nothing else; bytes that the store then uses."""
    client: Any = store.redis
    client.delete(*(load_key(facts.pool, node) for node in range(facts.nodes)))
    while client.info("memory")["lazyfree_pending_objects"]:
        time.sleep(0.05)
    return int(client.info("memory")["used_memory"])


def _measured(reader: Reader, pace: Any, args: argparse.Namespace, memory_before: int) -> Cell:
    window, client = reader.window, reader.store.redis
    give_up_s = time.monotonic() + LONGEST_CELL_S
    while pace[0] < 2 or not reader.ages_s:
        reader.poll()
        if time.monotonic() > give_up_s:
            raise SystemExit(
                f"no complete step in {LONGEST_CELL_S} s: {window.counters} {window.last_refusal}"
            )
    sampled_s = SAMPLED_STEPS_MIN * pace[2] * args.step_ms / 1000
    length_s = max(1, round(max(args.seconds, sampled_s) / pace[1])) * pace[1]
    reader.ages_s.clear()
    before, server_before_s, reader_before_s = window.counters, _server_cpu_s(client), time.process_time()
    began_s = time.monotonic()
    while time.monotonic() - began_s < length_s:
        reader.poll()
    reader_s, took_s = time.process_time() - reader_before_s, time.monotonic() - began_s
    server_s, after = _server_cpu_s(client) - server_before_s, window.counters
    if pace[3]:
        raise SystemExit(
            f"ranks dropped or refused {int(pace[3])} frames or steps: the machine is too slow for this cell"
        )
    grown = {name: after[name] - before[name] for name in after}
    memory_per_byte = (client.info("memory")["used_memory"] - memory_before) / after["bytes"]
    return Cell(
        ranks=window.facts.ranks,
        slots=window.facts.slots,
        kind=str(window.kind.name).lower() if window.kind else "",
        interval_s=pace[1],
        stride=int(pace[2]),
        frames_per_s=grown["frames"] / took_s,
        bytes_per_s=grown["bytes"] / took_s,
        store_bytes=grown["bytes"] / took_s * RETENTION_S * memory_per_byte,
        memory_per_byte=memory_per_byte,
        server_cpu_percent=100 * server_s / took_s,
        reader_cpu_percent=100 * reader_s / took_s,
        age_p50_s=float(np.percentile(reader.ages_s, 50)),
        age_p99_s=float(np.percentile(reader.ages_s, 99)),
        steps_per_s=grown["complete"] / took_s,
        lost=grown["lost"],
        misaligned=grown["misaligned"],
        measured_s=took_s,
    )


def _server_cpu_s(client: Any) -> float:
    usage = client.info("cpu")
    return float(usage["used_cpu_user"] + usage["used_cpu_sys"])


HEAD = "ranks slots kind            interval stride frames/s   kB/s store MB server reader  age p50  age p99 steps/s lost misaligned"


def line(cell: Cell) -> str:
    """One row as text."""
    return (
        f"{cell.ranks:5d} {cell.slots:5d} {cell.kind:15s} {cell.interval_s:6.1f} s {cell.stride:6d} {cell.frames_per_s:8.1f} "
        f"{cell.bytes_per_s / 1e3:6.0f} {cell.store_bytes / 1e6:8.0f} {cell.server_cpu_percent:5.1f}% {cell.reader_cpu_percent:5.1f}% "
        f"{cell.age_p50_s:6.2f} s {cell.age_p99_s:6.2f} s {cell.steps_per_s:7.2f} {cell.lost:4d} {cell.misaligned:10d}"
    )


def main() -> None:
    """Measure the cells that were asked for, and print each as it is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[32, 72, 320])
    parser.add_argument(
        "--kinds", nargs="+", default=[k.name.lower() for k in Kind], choices=[k.name.lower() for k in Kind]
    )
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--budget", type=float, default=2_000_000.0)
    parser.add_argument("--poll-s", type=float, default=0.25)
    parser.add_argument("--store", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not args.json:
        print(HEAD, flush=True)
    with EmbeddedStore(maxmemory_bytes=2_000_000_000) as embedded:
        for ranks in args.ranks:
            for kind in args.kinds:
                cell = measure(args.store or embedded.url, ranks, Kind[kind.upper()], args)
                print(json.dumps(asdict(cell)) if args.json else line(cell), flush=True)


if __name__ == "__main__":
    main()
