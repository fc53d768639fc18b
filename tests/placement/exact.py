"""The exact optimum of a small layer, by CP-SAT: any copies, no twins, every slot filled."""

from dataclasses import dataclass
from math import lcm

import numpy as np
from ortools.sat.python import cp_model

SCALE = 1_000_000
"""Objective units of 1.0 = perfect balance."""


@dataclass(frozen=True)
class Optimum:
    """Best value found and the value that no map is below, 1.0 = perfect balance; equal when proven."""

    best: float
    floor: float


def optimum(loads, topology, *, work=20.0):
    """Solve for loads, whole numbers [slices, experts]; every slice has load and every rank at most as many slots as experts.

    ``work``: CP-SAT's deterministic time. Groups of the topology stay whole on a node when its policy is ``hierarchical``.
    """
    loads = np.atleast_2d(np.array(loads))
    slices, experts = loads.shape
    speeds = np.array(topology.speeds or (1.0,) * topology.ranks)
    slowness = np.rint(20 / speeds).astype(int)
    assert (slowness * speeds == 20).all(), "speeds must divide 20"
    model = cp_model.CpModel()
    copies = range(1, min(topology.ranks, topology.slots - experts + 1) + 1)
    whole = lcm(*copies)
    holds = [[model.new_bool_var("") for _ in range(topology.ranks)] for _ in range(experts)]
    cost = [[[] for _ in range(topology.ranks)] for _ in range(slices)]
    for expert in range(experts):
        has = [model.new_bool_var("") for _ in copies]
        model.add_exactly_one(has)
        model.add(sum(holds[expert]) == sum(k * h for k, h in zip(copies, has, strict=True)))
        for rank in range(topology.ranks):
            parts = [model.new_bool_var("") for _ in copies]
            model.add(sum(parts) == holds[expert][rank])
            for part, h in zip(parts, has, strict=True):
                model.add_implication(part, h)
            for t in range(slices):
                share = int(loads[t, expert]) * int(slowness[rank])
                cost[t][rank] += [share * (whole // k) * part for k, part in zip(copies, parts, strict=True)]
    for rank, size in enumerate(topology.slots_of_rank):
        model.add(sum(holds[expert][rank] for expert in range(experts)) == size)
    if topology.policy == "hierarchical":
        _keep_whole(model, holds, topology)
    mean = loads.sum(axis=1) / speeds.sum() * 20 * whole
    worst = [
        model.new_int_var(int(np.ceil(mean[t] - 1e-9)), int(loads[t].sum()) * whole * int(slowness.max()), "")
        for t in range(slices)
    ]
    for t in range(slices):
        for rank in range(topology.ranks):
            model.add(sum(cost[t][rank]) <= worst[t])
    model.minimize(sum(w * (SCALE / m / slices) for w, m in zip(worst, mean, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = work
    solver.parameters.relative_gap_limit = 1e-3
    status = solver.solve(model)
    assert status in {cp_model.OPTIMAL, cp_model.FEASIBLE}
    return Optimum(solver.objective_value / SCALE, solver.best_objective_bound / SCALE)


def _keep_whole(model, holds, topology):
    size = len(holds) // topology.expert_groups
    for group in range(topology.expert_groups):
        home = [model.new_bool_var("") for _ in range(topology.nodes)]
        model.add_exactly_one(home)
        for expert in range(group * size, (group + 1) * size):
            for rank, node in enumerate(topology.node_of_rank):
                model.add_implication(holds[expert][rank], home[node])
