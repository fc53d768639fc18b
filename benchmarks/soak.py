"""Does anything grow? The runtime of `make chaos` without a fault for half an hour, two daemons, plans moving all the time.

Rerun:  python benchmarks/soak.py [--minutes 30] [--seed 0] [--readings FILE]

Every ten seconds: anonymous memory (all that a process has asked for; what it shares with the server that it was forked from counts
in full, so that pages which part over time are no growth, and what others map is not in it), open files and threads of each process, and of the store its
memory, connections and the bytes of the pool's streams. Memory counts as flat when the least of the last quarter, what stays between two solves, is at
most 2 MB or 5 % above that of the second quarter; the first quarter is the warm-up (window, caches, solver). Files, threads and
connections may not be more in the last quarter's maximum than in the second's. The decision log fills up to its 10,000 records,
so its memory is left out and its length held against that. Exit status 1 when something grew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from calm_pool import calm_pool

from collectors.keys import log_key
from eplb.chaos.setup import EVEN, POOL, daemon_config, run_facts
from eplb.config.sections import WindowConfig
from eplb.store.client import LOG_KEPT

if TYPE_CHECKING:
    import redis
    from calm_pool import CalmPool

SAMPLE_S = 10.0
MEMORY_SHARE, MEMORY_MB = 1.05, 2.0
LOG_RECORDS = LOG_KEPT + 100
"""What the decision log keeps, and one node of the stream, by which the store trims."""


@dataclass(slots=True)
class Readings:
    """One number over time, for one process or the store.

    ``exact`` = no more than before, else within the tolerance of memory; ``most`` = it fills up to here and is not held against before.
    """

    name: str
    exact: bool
    most: float | None = None
    values: list[float] = field(default_factory=list)

    def _part(self, quarter: int) -> list[float]:
        size = max(1, len(self.values) // 4)
        return self.values[quarter * size : (quarter + 1) * size] or self.values[-1:]

    @property
    def before(self) -> float:
        """Of the second quarter: the maximum of a count, the least of a memory."""
        return self._of(1)

    @property
    def after(self) -> float:
        """Of the last quarter."""
        return self._of(3)

    def _of(self, quarter: int) -> float:
        part = self._part(quarter)
        return max(part) if self.exact else min(part)

    @property
    def grew(self) -> bool:
        """Whether it is more at the end than the tolerance, or what it may fill up to, allows."""
        if self.most is not None:
            return max(self.values) > self.most
        limit = self.before if self.exact else max(self.before * MEMORY_SHARE, self.before + MEMORY_MB)
        return self.after > limit


class Book:
    """All readings by name."""

    def __init__(self) -> None:
        self.readings: dict[str, Readings] = {}

    def add(self, name: str, value: float, *, exact: bool, most: float | None = None) -> None:
        """Note one value."""
        self.readings.setdefault(name, Readings(name, exact, most)).values.append(value)

    def process(self, name: str, pid: int) -> None:
        """Memory in MB, files and threads of one process."""
        with suppress(OSError, ValueError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            own_kb = next(
                int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Anonymous:")
            )
            files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
            self.add(f"{name} memory MB", own_kb / 1e3, exact=False)
            self.add(f"{name} files", files, exact=True)
            self.add(f"{name} threads", threads, exact=True)

    def store(self, client: redis.Redis) -> None:
        """Memory in MB, connections, and the bytes of the pool's streams."""
        memory, clients = client.info("memory"), client.info("clients")
        log = int(client.memory_usage(log_key(POOL), samples=0) or 0)
        self.add("store memory MB without log", (int(memory["used_memory"]) - log) / 1e6, exact=False)
        self.add("store log records", int(client.xlen(log_key(POOL))), exact=True, most=LOG_RECORDS)
        self.add("store connections", int(clients["connected_clients"]), exact=True)
        streams = sum(
            int(client.memory_usage(key) or 0) for key in client.scan_iter(f"eplb:{{{POOL}}}:load:*")
        )
        self.add("store load streams MB", streams / 1e6, exact=False)


def solvers_of(pid: int) -> list[int]:
    """Solver processes that a daemon has started and that live: its children but for the one that takes its log and the library's tracker."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += [int(word) for word in (task / "children").read_text().split()]
    return [child for child in found if b"spawn_main" in _command(child)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def soak(minutes: float, seed: int) -> tuple[Book, int, int]:
    """Serve for so long: the readings, steps served and plans completed; progress on stderr."""
    run, book = run_facts(seed), Book()
    with calm_pool(run, lambda url, home: daemon_config(run.facts, url, EVEN, home)) as pool:
        began_s = sampled_s = time.monotonic()
        while (now_s := time.monotonic()) - began_s < minutes * 60:
            if now_s - sampled_s >= SAMPLE_S:
                sampled_s = now_s
                _sample(book, pool)
                print(
                    f"{now_s - began_s:6.0f} s  {pool.step} steps  {pool.version} plans",
                    file=sys.stderr,
                    flush=True,
                )
            pool.serve()
        return book, pool.step, pool.version


def _sample(book: Book, pool: CalmPool) -> None:
    for rank, pid in pool.ranks.pids.items():
        book.process(f"rank {rank}", pid)
    for place, daemon in enumerate(pool.daemons):
        book.process(f"daemon {place}", daemon.pid)
        for solver in solvers_of(daemon.pid):
            book.process(f"solver {place}", solver)
    book.store(pool.client)


def window_bytes(seed: int) -> int:
    """The configuration's limit for a pool's window in the store."""
    pool = daemon_config(run_facts(seed).facts, "", EVEN, Path())["pools"][0]
    return WindowConfig.model_validate(pool["window"]).window_bytes


def main() -> int:
    """Print the table, or JSON; 1 when something grew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readings", type=Path, help="file for all readings, JSON")
    args = parser.parse_args()
    book, steps, plans = soak(args.minutes, args.seed)
    limit_mb = window_bytes(args.seed) / 1e6
    rows = list(book.readings.values())
    if args.readings is not None:
        args.readings.write_text(json.dumps({row.name: row.values for row in rows}))
    print(f"{args.minutes:g} minutes, {steps} steps, {plans} plans completed")
    print(f"{'':<28}{'2nd quarter':>12}{'last':>10}")
    for row in rows:
        print(f"{row.name:<28}{row.before:>12.1f}{row.after:>10.1f}{'  GREW' if row.grew else ''}")
    streams = book.readings.get("store load streams MB")
    over = streams is not None and max(streams.values) > limit_mb
    grown = [row.name for row in rows if row.grew]
    print(
        f"grew: {', '.join(grown) or 'nothing'}; streams within window_bytes ({limit_mb:.0f} MB): {'NO' if over else 'yes'}"
    )
    return 1 if grown or over else 0


if __name__ == "__main__":
    sys.exit(main())
