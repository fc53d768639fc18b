"""Peak memory and seconds of ``eplb inspect`` and ``eplb place`` on traces of a gigabyte.

    python benchmarks/large_traces.py [--gigabytes 1] [--formats npz,counts,jsonl]

Makes synthetic traces of DeepSeek-V3's shape (58 layers, 256 experts, top-8; skewed, by seed) in a temporary folder, runs each command
on each in a process of its own, and prints what the operating system says of it. ``npz`` = picks, ``counts`` = slices in npz. Exit code 1
when a command needs 2 GB or more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eplb.formats import registry
from eplb.formats.facts import Layers, Sequence, TraceFile
from placement import LoadTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS, EXPERTS, TOP_K = 58, 256, 8
MODEL = Layers(tuple(range(3, 61)), 61)
SEQUENCE_TOKENS = 512
MOST_BYTES = 2 * 10**9
DOMAINS = ("code", "law", "chat")
POOL = ("--ranks", "32", "--nodes", "4", "--slots-per-rank", "9", "--effort", "fast")
PICKS_BYTES = {"npz": 1, "jsonl": 5, "parquet": 1}
"""Roughly, for each pick."""


LAUNCHER = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""A process starts with the peak of the one that started it, so a small one has to."""


def sequences(count: int, seed: int = 0) -> Iterator[Sequence]:
    """Requests whose tokens prefer some experts, those of their domain most; eight different tokens a request, to be quick."""
    rng = np.random.default_rng(seed)
    favour = rng.lognormal(0.0, 1.0, (len(DOMAINS), LAYERS, EXPERTS))
    for at in range(count):
        of = at % len(DOMAINS)
        # The k smallest exponential clocks are k distinct experts, drawn by their rates.
        tokens = []
        for _ in range(8):
            clocks = rng.exponential(1.0, (LAYERS, EXPERTS)) / favour[of]
            tokens.append(np.argpartition(clocks, TOP_K, axis=1)[:, :TOP_K])
        few = np.stack(tokens).astype(np.uint8)
        picks = few[rng.integers(0, len(few), SEQUENCE_TOKENS)]
        yield Sequence(picks, DOMAINS[of], "decode" if at % 2 else "prefill")


def counts(slices: int, seed: int = 0) -> TraceFile:
    """Slices of one step each."""
    rng = np.random.default_rng(seed)
    tokens = rng.poisson(rng.lognormal(3.0, 1.0, (1, LAYERS, EXPERTS)), (slices, LAYERS, EXPERTS))
    return TraceFile(LoadTrace(tokens, steps_per_slice=np.ones(slices, dtype=int)), MODEL, "", "npz")


def write(folder: Path, kind: str, size: int) -> Path:
    """One trace of about ``size`` bytes."""
    if kind == "counts":
        path = folder / "counts.npz"
        registry.write_trace(path, counts(size // (LAYERS * EXPERTS * 8)), "npz")
        return path
    path = folder / f"picks.{kind}"
    count = size // (SEQUENCE_TOKENS * LAYERS * TOP_K * PICKS_BYTES[kind])
    registry.write_sequences(path, sequences(count), kind, layers=MODEL, experts=EXPERTS)
    return path


def measured(*arguments: object) -> tuple[int, float, int, int]:
    """Exit code, seconds, peak bytes and lines of progress of one command."""
    command = [sys.executable, "-c", LAUNCHER, sys.executable, "-m", "eplb", *map(str, arguments)]
    start_s = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - start_s
    code, peak_kib = map(int, done.stdout.splitlines()[-1].split())
    if code:
        print(done.stderr, file=sys.stderr)
    return code, seconds, peak_kib * 1024, len(done.stderr.splitlines())


def main() -> int:
    """Run all and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--formats", default="npz,counts")
    options = parser.parse_args()
    failed = False
    print("trace          file MB  command   seconds  peak MB  lines of progress")
    with tempfile.TemporaryDirectory(prefix="eplb-large-") as name:
        folder = Path(name)
        for kind in options.formats.split(","):
            path = write(folder, kind, int(options.gigabytes * 1e9))
            for command in (
                ("inspect", path, "--ranks", 32),
                ("place", path, *POOL, "-o", folder / "map.json"),
            ):
                code, seconds, peak, lines = measured(*command)
                failed |= code != 0 or peak >= MOST_BYTES
                size = path.stat().st_size / 1e6
                print(
                    f"{path.name:<13}  {size:7.0f}  {command[0]:<8}  {seconds:7.1f}  {peak / 1e6:7.0f}  {lines}",
                    flush=True,
                )
            path.unlink()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
