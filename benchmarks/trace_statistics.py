"""Statistics of recorded and synthetic traces beside the targets, as the table of docs/generate.md.

    python benchmarks/trace_statistics.py [--data ../shared/data] [--sequences 240]

Recorded traces are read from the folder; those that are not there are left out. Synthetic ones are made with the defaults of
``eplb generate`` and three seeds, and shown by their lowest and highest value. Exit code 1 when a synthetic trace misses a target.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eplb.formats import registry
from eplb.formats.facts import Layers, ReadOptions, TraceFile
from eplb.formats.slicing import slices_of
from eplb.generate.recipe import Recipe, Shape
from eplb.generate.sequences import sequences_of
from eplb.generate.statistics import Statistics, statistics_of
from eplb.generate.targets import TARGETS, misses
from eplb.models import MODELS
from placement import LoadTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDED = ("gptoss20b_decode.npz", "dsv2lite_prefill.npz")
COUNTS = "ling256_counts.npz"
DENSE_LAYERS, ODD_LAYERS = 4, 12
"""Of the counts: rows without experts, and rows after them in many of which one expert has nearly everything."""
COUNTS_TOP_K = 8
SYNTHETIC = ("deepseek-v3", "kimi-k2", "qwen3-235b-a22b", "gpt-oss-20b", "deepseek-v2-lite")
SEEDS = (0, 1, 2)
MOST_ROUTES = 20_000


def recorded(folder: Path) -> Iterator[tuple[str, list[Statistics]]]:
    """Name and statistics of every recorded trace that is there."""
    for name in RECORDED:
        if (folder / name).is_file():
            file = registry.read_trace(folder / name, ReadOptions(most_routes=MOST_ROUTES))
            yield name, [statistics_of(file)]
    if (folder / COUNTS).is_file():
        with np.load(folder / COUNTS) as arrays:
            names = arrays.files
            tokens = np.stack([arrays[name][DENSE_LAYERS + ODD_LAYERS :] for name in names])
        domain = tuple(name.partition("_")[0] for name in names)
        file = TraceFile(LoadTrace(tokens), Layers(), "", "npz", domain=domain)
        yield COUNTS, [statistics_of(file, COUNTS_TOP_K)]


def synthetic(name: str, sequences: int) -> tuple[list[Statistics], set[str]]:
    """Statistics of a preset for every seed, and the names of those that miss their target."""
    model = MODELS[name]
    shape = Shape(model.layers, model.experts, model.top_k)
    found, missed = [], set()
    for seed in SEEDS:
        options = ReadOptions(experts=model.experts, most_routes=MOST_ROUTES)
        slices = slices_of(sequences_of(Recipe(shape, seed=seed), sequences), options)
        found.append(statistics_of(slices.as_file("npz", Layers(), options)))
        missed |= set(misses(found[-1], shape))
    return found, missed


def shown(found: list[Statistics], name: str) -> str:
    """Lowest and highest value, or one."""
    values = sorted(value for each in found if (value := getattr(each, name)) is not None)
    if not values:
        return "-"
    low, high = (f"{value:.2f}" for value in (values[0], values[-1]))
    return low if low == high else f"{low} to {high}"


def main() -> int:
    """Measure all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, default=Path("..", "shared", "data"))
    parser.add_argument("--sequences", type=int, default=240)
    options = parser.parse_args()
    columns = list(recorded(options.data))
    failed = False
    for name in SYNTHETIC:
        found, missed = synthetic(name, options.sequences)
        columns.append((f"synthetic {name}", found))
        if missed:
            failed = True
            print(f"{name} misses {sorted(missed)}", file=sys.stderr)
    targets = {target.name: f"{target.low:g} to {target.high:g}" for target in TARGETS}
    print(f"| statistic | target | {' | '.join(name for name, _ in columns)} |")
    print("|---" * (len(columns) + 2) + "|")
    for field in fields(Statistics):
        cells = " | ".join(shown(found, field.name) for _, found in columns)
        print(f"| {field.name} | {targets.get(field.name, '-')} | {cells} |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
