"""What recording costs an engine: microseconds a step, and what a frame costs the publisher's thread.

Rerun:  python benchmarks/recording_cost.py [--steps 400] [--repeats 7] [--layers 58] [--experts 256] [--ranks 32] [--json]

Each case is one kind of count at one stride, on honest counts of 1,024 tokens a rank and step (top-8). A step's cost is
timed over a whole run of steps on the recording thread, publisher's thread asleep, and repeated; min and median are over
the repeats. ``of 20 ms`` is the median over a decode step of 20 ms. A frame holds the totals and the samples of one second.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from collectors import Frame, Kind, Phase, PoolFacts, Recorder, decode_frame, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

TOP_K = 8
TOKENS = 1024
NO_SAMPLES = 1 << 30
"""A stride that no step of the benchmark reaches."""
STEP_MS = 20.0
STEPS_A_FRAME = int(1000 / STEP_MS)


@dataclass(frozen=True, slots=True)
class Reading:
    """One row of the table; times in microseconds, sizes in bytes."""

    kind: str
    layers: int
    width: int
    stride: int
    step_us_min: float
    step_us_median: float
    step_ratio: float
    snapshot_us: float
    encode_us: float
    decode_us: float
    samples: int
    frame_bytes: int


def pool(args: argparse.Namespace) -> PoolFacts:
    """The smallest even pool of so many ranks with one redundant slot a rank."""
    slots = -(-args.experts // args.ranks) + 1
    return PoolFacts(
        "bench", args.ranks, max(1, args.ranks // 8), slots, args.experts, TOP_K, tuple(range(args.layers))
    )


def honest_counts(facts: PoolFacts, kind: Kind, steps: int) -> list[NDArray[np.int64]]:
    """Counts of so many steps: int64 [layers, width], skewed, equal totals in every layer."""
    rng = np.random.default_rng(0)
    width = facts.width(kind)
    shares = rng.dirichlet(np.full(width, 0.7), size=facts.layers)
    return [
        np.stack([rng.multinomial(TOKENS * TOP_K, row) for row in shares]).astype(np.int64)
        for _ in range(steps)
    ]


def recorder(facts: PoolFacts, kind: Kind, stride: int) -> Recorder:
    """A registered recorder."""
    made = Recorder(facts, 0, kind, stride=stride)
    made.register(1, -1, np.arange(1, facts.layers + 1, dtype=np.uint64))
    return made


def time_steps(made: Recorder, counts: list[NDArray[np.int64]], first: int, steps: int) -> float:
    """Microseconds a step over so many steps."""
    begun_s = time.perf_counter()
    for step in range(first, first + steps):
        made.record_step(step, Phase.DECODE, counts[step % len(counts)], TOKENS, step_us=STEP_MS * 1000)
    return (time.perf_counter() - begun_s) / steps * 1e6


def time_call(call: Callable[[], object], repeats: int) -> float:
    """Median microseconds of a call."""
    spans_us = []
    for _ in range(repeats):
        begun_s = time.perf_counter()
        call()
        spans_us.append((time.perf_counter() - begun_s) * 1e6)
    return statistics.median(spans_us)


def one_second(
    facts: PoolFacts, kind: Kind, stride: int, counts: list[NDArray[np.int64]]
) -> tuple[Frame, float]:
    """The second frame of a rank, each of one second, and what its snapshot took in microseconds."""
    made = recorder(facts, kind, stride)
    time_steps(made, counts, 0, STEPS_A_FRAME)
    made.snapshot(1)
    time_steps(made, counts, STEPS_A_FRAME, STEPS_A_FRAME)
    begun_s = time.perf_counter()
    frame = made.snapshot(1)
    return frame, (time.perf_counter() - begun_s) * 1e6


def measure(facts: PoolFacts, kind: Kind, stride: int, steps: int, repeats: int) -> Reading:
    """One kind at one stride."""
    counts = honest_counts(facts, kind, 32)
    made = recorder(facts, kind, stride)
    time_steps(made, counts, 0, steps)
    spans_us = [time_steps(made, counts, (turn + 1) * steps, steps) for turn in range(repeats)]
    if made.refused:
        raise SystemExit(f"the benchmark's own counts were refused: {made.last_refusal}")
    frames = [one_second(facts, kind, stride, counts) for _ in range(repeats)]
    frame, payload = frames[0][0], encode_frame(frames[0][0])
    median_us = statistics.median(spans_us)
    return Reading(
        kind=kind.name.lower(),
        layers=facts.layers,
        width=facts.width(kind),
        stride=stride,
        step_us_min=min(spans_us),
        step_us_median=median_us,
        step_ratio=median_us / (STEP_MS * 1000),
        snapshot_us=statistics.median(span_us for _, span_us in frames),
        encode_us=time_call(lambda: encode_frame(frame), repeats),
        decode_us=time_call(lambda: decode_frame(payload), repeats),
        samples=len(frame.samples),
        frame_bytes=len(payload),
    )


def show(readings: list[Reading]) -> None:
    """The table on stdout."""
    print(
        f"{'kind':<15}{'shape':>9}{'stride':>7} |{'us/step min':>12}{'median':>8}{'of 20 ms':>10} |", end=""
    )
    print(f"{'snapshot us':>12}{'encode us':>10}{'decode us':>10}{'samples':>8}{'bytes':>9}")
    for r in readings:
        shape, stride = f"{r.layers}x{r.width}", "none" if r.stride == NO_SAMPLES else r.stride
        print(f"{r.kind:<15}{shape:>9}{stride:>7} |{r.step_us_min:>12.1f}{r.step_us_median:>8.1f}", end="")
        print(
            f"{r.step_ratio:>10.3%} |{r.snapshot_us:>12.0f}{r.encode_us:>10.0f}{r.decode_us:>10.0f}", end=""
        )
        print(f"{r.samples:>8}{r.frame_bytes:>9}")


def main() -> None:
    """Measure every kind at stride 1, 16 and without samples."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in (("steps", 400), ("repeats", 7), ("layers", 58), ("experts", 256), ("ranks", 32)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", action="store_true", help="readings as JSON instead of a table")
    args = parser.parse_args()
    facts = pool(args)
    gc.disable()
    readings = [
        measure(facts, kind, stride, args.steps, args.repeats)
        for kind in Kind
        for stride in (1, 16, NO_SAMPLES)
    ]
    if args.json:
        print(json.dumps([asdict(reading) for reading in readings], indent=1))
    else:
        print(
            f"python {sys.version.split()[0]}, numpy {np.__version__}, {args.repeats} repeats of {args.steps} steps"
        )
        show(readings)


if __name__ == "__main__":
    main()
