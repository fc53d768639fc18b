"""Equal input gives equal bytes: in any process, on any threads, whatever arithmetic the machine has."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from solver_inputs import skewed

import placement
from placement import LoadTrace, Placement, Routes, Topology, solve, violations


def digest(result):
    """Over all that a result says: every map of its frontier with shares, values, bounds and reasons."""
    maps = [result.placement, *(result.at(point.moves) for point in result.frontier)]
    arrays = [part for each in maps for part in (each.physical_to_logical, each.shares)]
    told = repr(
        [
            result.frontier,
            result.objective,
            result.bound,
            result.bound_reason,
            result.layer_bounds,
            result.reasons,
        ]
    )
    content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays) + told.encode()
    return hashlib.sha256(content).hexdigest()


def hard_case():
    """Several slices and layers, and a live map in the order of ids."""
    trace = skewed(24, slices=6, seed=7)
    return trace, Topology.uniform(ranks=6, slots_per_rank=5), np.tile(np.arange(30) % 24, (2, 1))


def results():
    """Solves of every kind: from a live map and cold, one slice, groups with speeds and a dead rank, own shares, traffic."""
    trace, topology, current = hard_case()
    one = LoadTrace(trace.tokens[:1])
    grouped = Topology(
        (6,) * 6, (0, 0, 0, 1, 1, 1), (1.0, 0.5, 1.25, 1.0, 1.0, 0.75), frozenset({2}), 4, "hierarchical"
    )
    rng = np.random.default_rng(5)
    picks = np.argsort(rng.random((60, 2, 24)) + np.arange(24) // 6 * rng.random((60, 1, 1)), axis=2)[
        :, :, :3
    ]
    routed = LoadTrace(trace.tokens, routes=Routes(picks, np.arange(60) // 5))
    nodes = Topology.uniform(ranks=6, nodes=3, slots_per_rank=5)
    live = Placement(current, rng.random(current.shape))
    yield solve(trace, topology, current)
    yield solve(trace, topology)
    yield solve(one, topology, current, effort="fast")
    yield solve(trace, grouped, np.tile(np.arange(36) % 24, (2, 1)))
    yield solve(trace, topology, live, dispatch="weighted", effort="fast")
    yield solve(routed, nodes, traffic_weight=0.3, effort="fast")
    yield solve(routed, nodes, current, traffic_weight=0.3, effort="fast")


def test_equal_input_gives_equal_bytes_in_any_process():
    """Two PYTHONHASHSEED, one and two threads of BLAS and solver, two OPENBLAS_CORETYPE, numpy with and without wide vectors."""
    code = "import sys; sys.path[:0] = sys.argv[1:]; import test_determinism as t; print(*map(t.digest, t.results()))"
    paths = [str(Path(__file__).parent), str(Path(placement.__file__).parents[1])]
    seen = set()
    for hash_seed, threads, core, without in (
        ("1", "1", "Haswell", ""),
        ("2", "2", "Prescott", "X86_V3 X86_V4 AVX512_ICL"),
    ):
        environment = {
            **os.environ, "PYTHONHASHSEED": hash_seed, "OPENBLAS_NUM_THREADS": threads, "OPENBLAS_CORETYPE": core,
            "NUMBA_NUM_THREADS": threads, "NPY_DISABLE_CPU_FEATURES": without,
        }  # fmt: skip
        run = subprocess.run(
            [sys.executable, "-c", code, *paths], env=environment, capture_output=True, text=True, check=True
        )
        seen.add(run.stdout.strip())
    assert seen == {" ".join(map(digest, results()))}


def test_the_seed_is_part_of_the_input():
    """The same seed gives the same bytes; any seed gives a valid map."""
    trace, topology, current = hard_case()
    one, two, other = (solve(trace, topology, current, seed=seed) for seed in (0, 0, 5))
    assert digest(one) == digest(two)
    assert violations(other.placement, topology, 24) == []


def test_the_number_of_threads_is_not_part_of_the_input():
    """One layer at a time or four: the same bytes, cold and from a live map, with few slices and with many."""
    topology = Topology.uniform(ranks=4, slots_per_rank=5)
    for slices in (1, 12):
        trace = skewed(16, slices=slices, layers=5, seed=11)
        for current in (None, np.tile(np.arange(20) % 16, (5, 1))):
            one, four = (solve(trace, topology, current, effort="fast", threads=n) for n in (1, 4))
            assert digest(one) == digest(four)
