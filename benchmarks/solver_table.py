"""Print the solver's figures: held-out excess, balance of sums, moves under noise, time and memory.

    python benchmarks/solver_table.py                    all rows (about ten minutes on two cores)
    python benchmarks/solver_table.py heldout --effort fast
    python benchmarks/solver_table.py heldout --seeds 100 101 102 103 104
    python benchmarks/solver_table.py sums noise large speed

``heldout`` needs the recorded routing data in ../shared/data (or --data). A slice is a group of sequences of one domain; half
of each domain's groups plan, the other half score; excess = mean over unseen slices and layers of max / mean rank load - 1
with copies sharing evenly. Greedy is the published EPLB algorithm on the summed load (`eplb.replay.policies`).
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eplb.replay.policies import greedy_row
from placement import Limits, LoadTrace, Placement, Topology, compile_kernels, evaluate, solve
from placement.kernel import COOLING, TEMPERATURE
from placement.kernel_anneal import anneal
from placement.kernel_state import make_state
from placement.layer import make_layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from placement import Result

DATA = Path(__file__).parents[2] / "shared" / "data"

HELD_OUT = (
    ("gptoss20b_decode", 32, 8, 8, 4),
    ("gptoss20b_decode", 32, 8, 16, 4),
    ("dsv2lite_prefill", 64, 8, 8, 2),
    ("dsv2lite_prefill", 64, 8, 16, 2),
    ("dsv2lite_prefill", 64, 16, 16, 2),
)
"""Trace, experts, ranks, redundant slots, sequences per slice."""

FLASHLB = (0.2979, 0.2546, 0.1295, 0.1199, 0.2437)
"""Held-out excess of FlashLB (vllm-ascend, default settings) in these rows, mean of seeds 0 to 2; it was run apart."""


def main() -> None:
    """Print the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", default=["heldout", "sums", "noise", "large", "speed"])
    parser.add_argument("--effort", nargs="+", default=["fast", "normal"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    compile_kernels()
    tables: dict[str, Callable[[], None]] = {
        "heldout": lambda: held_out(options.data, options.effort, options.seeds),
        "sums": lambda: sums(options.effort),
        "noise": noise,
        "large": lambda: large(options.effort),
        "speed": speed,
    }
    for row in options.rows:
        if row not in tables:
            parser.error(f"unknown row {row!r}: use {', '.join(tables)}")
        tables[row]()


# --- rows ---------------------------------------------------------------------------------------------------------


def held_out(data: Path, efforts: list[str], seeds: list[int]) -> None:
    """Held-out excess of identity, greedy and ours, mean over the seeds."""
    if not data.is_dir():
        sys.exit(f"{data} is not here: name the folder of recorded routing data with --data")
    print(f"held-out excess, seeds {seeds}")
    print(f"{'trace':18s} ranks +red  effort  identity  greedy    ours  in-sample  /greedy  CPU s")
    for effort in efforts:
        rows = [_held_out_row(data, row, effort, seeds) for row in HELD_OUT]
        for (name, _, ranks, red, _), (identity, base, ours, seen, cpu_s) in zip(HELD_OUT, rows, strict=True):
            numbers = f"{identity:9.4f} {base:7.4f} {ours:7.4f} {seen:10.4f} {ours / base:8.3f} {cpu_s:6.2f}"
            print(f"{name:18s} {ranks:5d} {red:4d}  {effort:7s}{numbers}")
        print(f"{effort}: mean of ours / greedy {np.mean([row[2] / row[1] for row in rows]):.3f}")
        if seeds == [0, 1, 2]:
            parts = [row[2] / flash for row, flash in zip(rows, FLASHLB, strict=True)]
            print(f"{effort}: mean of ours / FlashLB {np.mean(parts):.3f}")


def _held_out_row(
    data: Path, row: tuple[str, int, int, int, int], effort: str, seeds: list[int]
) -> list[float]:
    name, experts, ranks, redundant, group = row
    slots = (experts + redundant) // ranks
    topology = Topology.uniform(ranks=ranks, slots_per_rank=slots)
    found = []
    for seed in seeds:
        plan, score = _slices(data / f"{name}.npz", experts, group, seed)
        started_s = time.process_time()
        ours = solve(plan, topology, effort=effort).placement
        cpu_s = time.process_time() - started_s
        identity = Placement(np.tile(np.arange(ranks * slots) % experts, (plan.layers, 1)))
        base = Placement(
            np.stack(
                [
                    greedy_row(plan.tokens[:, at].sum(axis=0).astype(float), ranks, slots)
                    for at in range(plan.layers)
                ]
            )
        )
        excess = [evaluate(map_, score, topology).mean_ratio - 1 for map_ in (identity, base, ours)]
        found.append([*excess, evaluate(ours, plan, topology).mean_ratio - 1, cpu_s])
    return [float(value) for value in np.mean(found, axis=0)]


def _slices(file: Path, experts: int, group: int, seed: int) -> tuple[LoadTrace, LoadTrace]:
    """Plan and score slices of one domain each, every slice and layer scaled to 10 000 tokens."""
    with np.load(file) as stored:
        picks, offsets, domain = stored["picks"], stored["offsets"], stored["domain"]
    rng = np.random.default_rng(seed)
    counts = np.zeros((len(offsets) - 1, picks.shape[1], experts))
    for at, (first, last) in enumerate(pairwise(offsets)):
        for layer in range(picks.shape[1]):
            counts[at, layer] = np.bincount(picks[first:last, layer].ravel(), minlength=experts)
    parts: tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]] = ([], [])
    for one in np.unique(domain):
        ids = rng.permutation(np.flatnonzero(domain == one))
        half = len(ids) // 2
        for chosen, part in zip((ids[:half], ids[half:]), parts, strict=True):
            part += [
                counts[chosen[k : k + group]].sum(axis=0) for k in range(0, len(chosen) - group + 1, group)
            ]
    plan, score = (np.stack(part) for part in parts)
    plan, score = (np.rint(x / x.sum(axis=2, keepdims=True) * 1e4).astype(np.int64) for x in (plan, score))
    return LoadTrace(plan), LoadTrace(score)


def sums(efforts: list[str]) -> None:
    """Summed loads, lognormal with sigma 1, 256 experts: ratio without slack."""
    exact, layers = Limits(slack=0.0), 58
    for ranks, slots, some in (
        (32, 9, efforts),
        (144, 3, ["normal"]),
        (320, 2, ["normal"]),
    ):
        trace, topology = _lognormal(layers), Topology.uniform(ranks=ranks, slots_per_rank=slots)
        base = np.stack([greedy_row(trace.tokens[0, at].astype(float), ranks, slots) for at in range(layers)])
        print(
            f"sums {layers} x 256, {ranks} x {slots}: greedy {evaluate(Placement(base), trace, topology).mean_ratio:.5f}"
        )
        for effort in some:
            run = partial(solve, trace, topology, limits=exact, effort=effort, threads=1)
            _line(f"  {effort}, one core", run)


def noise() -> None:
    """From a good map, after every expert's load changed at random: moves in a layer of 288 slots."""
    trace, topology = _lognormal(16), Topology.uniform(ranks=32, slots_per_rank=9)
    good = solve(trace, topology, limits=Limits(slack=0.0)).placement
    for percent in (1, 5, 20):
        change = np.exp(percent / 100 * np.random.default_rng(7).standard_normal(trace.tokens.shape))
        later = LoadTrace(np.rint(trace.tokens * change).astype(np.int64))
        result = _line(f"noise {percent} %, 16 layers", partial(solve, later, topology, good))
        print(
            f"  ratio before {result.objective_start:.5f}, moves a layer {result.moves / trace.layers:.2f} of 288"
        )


def large(efforts: list[str]) -> None:
    """75 layers of 256 experts, 50 slices, 32 ranks of 9 slots, all cores."""
    rng = np.random.default_rng(0)
    tokens = rng.lognormal(6.9, 1, (1, 75, 256)) * rng.lognormal(0, 0.5, (50, 75, 256))
    trace, topology = (
        LoadTrace(np.rint(tokens).astype(np.int64)),
        Topology.uniform(ranks=32, slots_per_rank=9),
    )
    for effort in efforts:
        _line(f"75 x 256, 50 slices, {effort}", partial(solve, trace, topology, effort=effort))
    print(f"  peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


def speed() -> None:
    """Annealing proposals a second on one core: 50 slices, 256 experts, 288 slots."""
    rng = np.random.default_rng(0)
    tokens = np.rint(rng.lognormal(6.9, 1, (1, 256)) * rng.lognormal(0, 0.5, (50, 256))).astype(np.int64)
    layer = make_layer(tokens, np.ones(50), Topology.uniform(ranks=32, slots_per_rank=9))
    row = greedy_row(tokens.sum(axis=0).astype(float), 32, 9)
    result = solve(
        LoadTrace(tokens[:, None]), Topology.uniform(ranks=32, slots_per_rank=9), row[None], effort="fast"
    )
    state = make_state(layer, result.placement.physical_to_logical[0].astype(np.int64), seed=0)
    proposals = 1_000_000
    state.now[TEMPERATURE], state.now[COOLING] = 1e-3, 30.0 ** (-64 / proposals)
    started_s = time.process_time()
    anneal(state, proposals, 50, 77, 0)
    print(f"proposals a second, one core: {proposals / (time.process_time() - started_s) / 1e6:.2f} million")


def _lognormal(layers: int) -> LoadTrace:
    tokens = 1e5 * np.random.default_rng(0).lognormal(0, 1, (1, layers, 256))
    return LoadTrace(np.rint(tokens).astype(np.int64))


def _line(what: str, run: Callable[[], Result]) -> Result:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = run()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(
        f"{what}: ratio {result.objective:.5f} (bound {result.bound:.5f}), {wall_s:.2f} s, CPU {cpu_s:.2f} s",
        flush=True,
    )
    return result


if __name__ == "__main__":
    main()
