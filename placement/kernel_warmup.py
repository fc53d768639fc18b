"""Compile the search ahead of the first solve: while an image is built, or when a daemon starts."""

from __future__ import annotations

import numpy as np

from placement.kernel import FEW_SLICES
from placement.routes import Routes
from placement.solver import solve
from placement.topology import Topology
from placement.trace import LoadTrace


def compile_kernels(dispatch: str = "even", *, traffic: bool = False) -> None:
    """Compile the search for both of its number types, which takes about half a minute where no machine code is kept.

    ``dispatch``: ``optimal`` has a search of its own beside the plain one and takes twice as long; all others need the plain one.
    ``traffic``: also the search for the nodes of experts, which solves with a ``traffic_weight`` need and takes about as long again.
    Call it at the end of an image build as the user who owns the installed files: later processes, read-only ones included,
    then load the machine code in a fraction of a second (``kernel_cache.compiled``). It is specific to the CPU model; an image
    for several models sets NUMBA_CPU_NAME in build and run (for example x86-64-v3) or compiles at each start.
    """
    topology = Topology.uniform(ranks=2, slots_per_rank=3)
    for slices in (1, 2, FEW_SLICES):
        tokens = np.arange(slices * 4).reshape(slices, 1, 4) % 5 + 1
        for current in (None, [[0, 1, 2, 3, 0, 1]]):
            solve(LoadTrace(tokens), topology, current, dispatch=dispatch, effort="fast", threads=1)
    if traffic:
        two_nodes = Topology.uniform(ranks=2, nodes=2, slots_per_rank=3)
        routes = Routes(np.arange(8).reshape(4, 1, 2) % 4, np.arange(4))
        trace = LoadTrace(np.ones((2, 1, 4), dtype=np.int64), routes=routes)
        solve(trace, two_nodes, dispatch=dispatch, traffic_weight=1.0, effort="fast", threads=1)
