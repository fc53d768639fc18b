"""What it is worth to plan for the engine's own dispatch rule: held-out excess under that rule.

    python benchmarks/dispatch_rules.py                               rule optimal, every 6th layer, seeds 0 to 2
    python benchmarks/dispatch_rules.py --rules optimal hash_row block_round_robin --layer-step 1
    python benchmarks/dispatch_rules.py --flashlb vllm_ascend-*.whl

Rows and slices are those of ``solver_table.py heldout``. All maps are scored on unseen slices under the rule: greedy on sums,
FlashLB (with its wheel, see flashlb.py), ours planned as if copies shared evenly, and ours planned for the rule.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import flashlb
import numpy as np
from solver_table import DATA, HELD_OUT, check_folder, each_layer, halves, on_sums

from placement import LoadTrace, Topology, compile_kernels, evaluate, solve


def main() -> None:
    """Print a table for every rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rules", nargs="+", default=["optimal"])
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--layer-step", type=int, default=6)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--flashlb", type=Path)
    options = parser.parse_args()
    check_folder(options.data)
    compile_kernels()
    for rule in options.rules:
        compile_kernels(rule)
        table(rule, options)


def table(rule: str, options: argparse.Namespace) -> None:
    """Print one rule's rows."""
    print(
        f"dispatch {rule}, effort {options.effort}, seeds {options.seeds}, every {options.layer_step}. layer; held-out excess"
    )
    print(
        "trace              ranks +red  greedy FlashLB planned-even planned-for-it  /even  CPU s even, for it"
    )
    parts = []
    for row in HELD_OUT:
        found = np.mean([one_seed(row, rule, seed, options) for seed in options.seeds], axis=0)
        greedy, flash, even, own, even_s, own_s = found
        parts.append(own / even)
        print(
            f"{row[0]:18s} {row[2]:5d} {row[3]:4d} {greedy:7.4f} {flash:7.4f} {even:12.4f} {own:14.4f} "
            f"{own / even:6.3f}  {even_s:.2f} {own_s:.2f}",
            flush=True,
        )
    print(f"{rule}: mean of planned for it / planned even {np.mean(parts):.3f}")


def one_seed(
    row: tuple[str, int, int, int, int], rule: str, seed: int, options: argparse.Namespace
) -> list[float]:
    """Held-out excess of four maps under the rule, then the CPU seconds of our two solves."""
    name, experts, ranks, redundant, group = row
    slots = (experts + redundant) // ranks
    topology = Topology.uniform(ranks=ranks, slots_per_rank=slots)
    plan, score = (
        LoadTrace(part.tokens[:, :: options.layer_step])
        for part in halves(options.data / f"{name}.npz", experts, group, seed)
    )
    maps, seconds = [on_sums(plan, ranks, slots)], []
    if options.flashlb is not None:
        solved = flashlb.load(options.flashlb)
        maps.append(each_layer(plan, lambda tokens: solved(tokens, ranks, slots)))
    for planned in ("even", rule):
        started_s = time.process_time()
        maps.append(solve(plan, topology, dispatch=planned, effort=options.effort).placement)
        seconds.append(time.process_time() - started_s)
    excess = [evaluate(map_, score, topology, dispatch=rule).mean_ratio - 1 for map_ in maps]
    if options.flashlb is None:
        excess.insert(1, float("nan"))
    return excess + seconds


if __name__ == "__main__":
    main()
