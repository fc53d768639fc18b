"""Print the solver's figures: held-out excess, balance of sums, moves under noise, time and memory.

    python benchmarks/solver_table.py                    all rows (about ten minutes on two cores)
    python benchmarks/solver_table.py heldout --effort fast
    python benchmarks/solver_table.py heldout --seeds 100 101 102 103 104
    python benchmarks/solver_table.py sums noise large speed shares
    python benchmarks/solver_table.py why                what a plan on sums is worth, slice by slice
    python benchmarks/solver_table.py heldout --flashlb vllm_ascend-*.whl

``heldout``, ``why`` and ``fan_out`` need the recorded routing data in ../shared/data (or --data). A slice is a group of
sequences of one domain; half of each domain's groups plan, the other half score; excess = mean over unseen slices and layers
of max / mean rank load - 1 with copies sharing evenly. Greedy is the published EPLB algorithm on the summed load
(``eplb.replay.policies``); FlashLB runs from its own wheel when that is given (see flashlb.py).
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import fan_out
import flashlb
import numpy as np

from eplb.replay.policies import greedy_row
from eplb.start_map import start_map
from placement import Limits, LoadTrace, Placement, Topology, compile_kernels, evaluate, exact_shares, solve
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


ROWS = ("why", "heldout", "sums", "noise", "large", "speed", "shares", "fan_out")


def main() -> None:
    """Print the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", default=ROWS)
    parser.add_argument("--effort", nargs="+", default=["fast", "normal"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument(
        "--flashlb", type=Path, help="wheel of vllm-ascend, whose FlashLB then runs beside ours"
    )
    options = parser.parse_args()
    compile_kernels()
    tables: dict[str, Callable[[], None]] = {
        "heldout": lambda: held_out(options.data, options.effort, options.seeds, options.flashlb),
        "why": lambda: why(options.data, options.seeds),
        "sums": lambda: sums(options.effort),
        "noise": noise,
        "large": lambda: large(options.effort),
        "speed": speed,
        "shares": shares,
        "fan_out": fan_out.main,
    }
    for row in options.rows:
        if row not in tables:
            parser.error(f"unknown row {row!r}: use {', '.join(tables)}")
        tables[row]()


# --- rows ---------------------------------------------------------------------------------------------------------


def held_out(data: Path, efforts: list[str], seeds: list[int], wheel: Path | None) -> None:
    """Held-out excess of identity, greedy, FlashLB and ours, mean over the seeds."""
    check_folder(data)
    flash = None if wheel is None else flashlb.load(wheel)
    known = seeds == [0, 1, 2]
    print(f"held-out excess, seeds {seeds}; FlashLB {'as measured before' if flash is None else 'run now'}")
    print(
        f"{'trace':18s} ranks +red  effort  identity  greedy FlashLB    ours  in-sample  /greedy /FlashLB  CPU s"
    )
    for effort in efforts:
        rows = [_held_out_row(data, row, effort, seeds, flash) for row in HELD_OUT]
        if flash is None:
            rows = [
                replace(row, flash=past if known else float("nan"))
                for row, past in zip(rows, FLASHLB, strict=True)
            ]
        for (name, _, ranks, redundant, _), row in zip(HELD_OUT, rows, strict=True):
            print(
                f"{name:18s} {ranks:5d} {redundant:4d}  {effort:7s}{row.identity:9.4f} {row.base:7.4f} {row.flash:7.4f} "
                f"{row.ours:7.4f} {row.seen:10.4f} {row.ours / row.base:8.3f} {row.ours / row.flash:8.3f} {row.cpu_s:6.2f}"
            )
        print(
            f"{effort}: mean of ours / greedy {np.mean([row.ours / row.base for row in rows]):.3f}, "
            f"of ours / FlashLB {np.mean([row.ours / row.flash for row in rows]):.3f}"
        )


def check_folder(data: Path) -> None:
    if not data.is_dir():
        sys.exit(f"{data} is not here: name the folder of recorded routing data with --data")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Excess on unseen slices of four maps, of ours also on the seen ones, and the CPU time of our solve."""

    identity: float
    base: float
    flash: float
    ours: float
    seen: float
    cpu_s: float


def _held_out_row(
    data: Path,
    row: tuple[str, int, int, int, int],
    effort: str,
    seeds: list[int],
    flash: Callable[[NDArray[np.int64], int, int], NDArray[np.int64]] | None,
) -> HeldOut:
    name, experts, ranks, redundant, group = row
    slots = (experts + redundant) // ranks
    topology = Topology.uniform(ranks=ranks, slots_per_rank=slots)
    found = []
    for seed in seeds:
        plan, score = halves(data / f"{name}.npz", experts, group, seed)
        started_s = time.process_time()
        ours = solve(plan, topology, effort=effort).placement
        cpu_s = time.process_time() - started_s
        identity = Placement(start_map(plan.layers, experts, ranks * slots))
        maps = [identity, on_sums(plan, ranks, slots)]
        if flash is not None:
            maps.append(each_layer(plan, lambda tokens: flash(tokens, ranks, slots)))
        excess = [evaluate(map_, score, topology).mean_ratio - 1 for map_ in maps]
        excess += [float("nan")] * (3 - len(maps))
        excess += [evaluate(ours, part, topology).mean_ratio - 1 for part in (score, plan)]
        found.append([*excess, cpu_s])
    return HeldOut(*(float(value) for value in np.mean(found, axis=0)))


def each_layer(trace: LoadTrace, solved: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Placement:
    """The map of a method that solves one layer's tokens, int64 [slices, experts]."""
    return Placement(np.stack([solved(trace.tokens[:, at]) for at in range(trace.layers)]))


def on_sums(trace: LoadTrace, ranks: int, slots_per_rank: int) -> Placement:
    """The map of the greedy baseline, which sees the sum of all slices."""
    return each_layer(
        trace, lambda tokens: greedy_row(tokens.sum(axis=0).astype(float), ranks, slots_per_rank)
    )


def why(data: Path, seeds: list[int]) -> None:
    """The ratio of plans on sums and on slices, measured both ways, on seen and unseen load."""
    check_folder(data)
    print(f"ratio, seeds {seeds}: plan summed, unseen summed, plan by slice, unseen by slice")
    for name, experts, ranks, redundant, group in (HELD_OUT[0], HELD_OUT[4]):
        slots = (experts + redundant) // ranks
        topology = Topology.uniform(ranks=ranks, slots_per_rank=slots)
        found = []
        for seed in seeds:
            plan, score = halves(data / f"{name}.npz", experts, group, seed)
            summed, later = (LoadTrace(part.tokens.sum(axis=0, keepdims=True)) for part in (plan, score))
            maps = (
                on_sums(plan, ranks, slots),
                solve(summed, topology).placement,
                solve(plan, topology).placement,
            )
            views = (summed, later, plan, score)
            found.append([[evaluate(map_, view, topology).mean_ratio for view in views] for map_ in maps])
        methods = ("greedy on sums", "ours on sums", "ours on slices")
        for method, values in zip(methods, np.mean(found, axis=0), strict=True):
            print(f"{name} {ranks} x {slots}, {method:15s}" + "".join(f" {value:.4f}" for value in values))


def shares() -> None:
    """Exact shares of a map of 58 layers x 288 slots under load off its plan, on one core."""
    trace, topology = _lognormal(58), Topology.uniform(ranks=32, slots_per_rank=9)
    map_ = solve(trace, topology, effort="fast").placement
    change = np.exp(0.5 * np.random.default_rng(7).standard_normal(trace.tokens.shape))
    later = LoadTrace(np.rint(trace.tokens * change).astype(np.int64))
    started_s = time.process_time()
    split = exact_shares(map_, later, topology)
    cpu_s = time.process_time() - started_s
    before, after = (
        evaluate(map_, later, topology).mean_ratio,
        evaluate(split.placement, later, topology, dispatch="weighted").mean_ratio,
    )
    print(f"exact shares, 58 x 288: CPU {cpu_s:.3f} s; even {before:.4f}, exact {after:.4f}")


def halves(file: Path, experts: int, group: int, seed: int) -> tuple[LoadTrace, LoadTrace]:
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
        base = evaluate(on_sums(trace, ranks, slots), trace, topology).mean_ratio
        print(f"sums {layers} x 256, {ranks} x {slots}: greedy {base:.5f}")
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
