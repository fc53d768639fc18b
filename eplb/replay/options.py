"""What is replayed: the pool, the schedule, the machines, and policies by their words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from eplb.config.pools import DaemonConfig, PoolConfig
from eplb.config.sections import (
    GateConfig,
    HistoryConfig,
    MigrationConfig,
    Section,
    SolverConfig,
    WindowConfig,
)
from eplb.errors import ReplayError
from eplb.models import MODELS
from eplb.replay.ledger import Price
from eplb.replay.ours import Ours
from eplb.replay.policies import EveryN, Never, Oracle, greedy, solver
from eplb.replay.presets import MACHINES, kernels
from eplb.replay.schedule import ScheduleOptions
from eplb.start_map import start_map
from placement import Topology

if TYPE_CHECKING:
    from eplb.replay.policies import Policy
    from eplb.replay.recording import Recording

WORDS = "never, every:N, greedy:N, ours, ours:SETTING=VALUE,... or oracle"
PHASES = ("decode", "prefill", "mixed")
LARGEST_WINDOW_BYTES = 2**40
"""A replay's window lies in this process; the store's limit means nothing here."""

_SECTIONS: dict[str, type[Section]] = {
    "gate": GateConfig,
    "history": HistoryConfig,
    "migration": MigrationConfig,
    "solver": SolverConfig,
    "window": WindowConfig,
}


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The pool that serves the schedule and what its time costs.

    ``memory_windows``: newest windows whose slices every policy plans on; it is the daemon's ``window_s``. ``effort``: of every
    solve. ``undone_within``: windows within which a move that is taken back counts as undone. ``model``, ``machines``: names
    of presets.

    Raises:
        ReplayError: a name is unknown or a number below its least value.
    """

    ranks: int
    slots_per_rank: int
    nodes: int = 1
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    phase: str = "decode"
    model: str = "gpt-oss-20b"
    machines: tuple[str, ...] = ("H800", "GB200")
    memory_windows: int = 8
    effort: str = "fast"
    undone_within: int = 10

    def __post_init__(self) -> None:
        _check("model", self.model, MODELS)
        _check("phase", self.phase, PHASES)
        for machine in self.machines:
            _check("machine", machine, MACHINES)
        if self.memory_windows < 1 or self.undone_within < 1 or not self.machines:
            raise ReplayError(
                f"memory_windows {self.memory_windows}, undone_within {self.undone_within} and the number of machines "
                f"{len(self.machines)} must be at least 1"
            )

    def topology(self) -> Topology:
        """The ranks of the pool."""
        return Topology.uniform(ranks=self.ranks, nodes=self.nodes, slots_per_rank=self.slots_per_rank)

    def prices(self) -> tuple[Price, ...]:
        """What each machine asks."""
        model = MODELS[self.model]
        return tuple(
            Price(
                machine=MACHINES[name],
                kernels=kernels(model, MACHINES[name], self.phase),
                bytes_per_expert=model.bytes_per_expert,
                link_bytes_per_s=MACHINES[name].link_bytes_per_s(self.ranks),
            )
            for name in self.machines
        )


def _check(what: str, name: str, known: Any) -> None:
    if name not in known:
        raise ReplayError(f"{what} {name!r} is unknown: use one of {', '.join(known)}")


def policy_of(word: str, recording: Recording, options: ReplayOptions, seed: int) -> Policy:
    """A policy by its word, ready for a run.

    Raises:
        ReplayError: the word or a setting is unknown, or a value is out of range.
    """
    topology = options.topology()
    start = start_map(recording.layers, recording.experts, topology.slots)
    name, _, rest = word.partition(":")
    if word == "never":
        return Never(start)
    if word == "oracle":
        return Oracle(solver(topology, options.effort, seed))
    if name in ("every", "greedy") and re.fullmatch(r"[1-9][0-9]{0,8}", rest):
        plan = solver(topology, options.effort, seed) if name == "every" else greedy(topology)
        return EveryN(word, plan, start, topology, every=int(rest), memory=options.memory_windows)
    if name == "ours" and (rest or word == "ours"):
        config = daemon_config(rest, recording, options, seed)
        return Ours(word, config, start, _cycle_steps(options), options.prices()[0].kernels)
    raise ReplayError(f"policy {word!r} is unknown: use {WORDS}")


def _cycle_steps(options: ReplayOptions) -> int:
    """Steps between two cycles of the daemon: as many as its default ``cycle_s`` spans, 1 to a whole window."""
    cycle_ms = float(DaemonConfig.model_fields["cycle_s"].default) * 1000
    return min(max(1, round(cycle_ms / options.schedule.step_ms)), options.schedule.window_steps)


def daemon_config(settings: str, recording: Recording, options: ReplayOptions, seed: int) -> PoolConfig:
    """The daemon's configuration with its own defaults, mode auto, and ``settings`` (``name=value,...``) on top.

    Raises:
        ReplayError: a setting is unknown or out of range.
    """
    schedule = options.schedule
    sections: dict[str, dict[str, Any]] = {
        "gate": {"mode": "auto"},
        "history": {},
        # One run of the daemon stands for all machines, so its prices are those of the first.
        "migration": dict.fromkeys(
            ("link_bytes_per_s", "node_link_bytes_per_s"), options.prices()[0].link_bytes_per_s
        ),
        "solver": {"effort": options.effort, "seed": seed},
        "window": {
            "window_s": options.memory_windows * schedule.window_steps * schedule.step_ms / 1000,
            "max_slices": max(2, options.memory_windows * schedule.window_steps),
            "window_bytes": LARGEST_WINDOW_BYTES,
        },
    }
    for pair in filter(None, settings.split(",")):
        name, _, value = pair.partition("=")
        section = next((key for key, model in _SECTIONS.items() if name in model.model_fields), None)
        if section is None:
            known = sorted(name for model in _SECTIONS.values() for name in model.model_fields)
            raise ReplayError(f"ours has no setting {name!r}; it has {', '.join(known)}")
        sections[section][name] = value
    body = {
        "name": "replay",
        "topology": {
            "ranks": options.ranks,
            "nodes": options.nodes,
            "slots_per_rank": options.slots_per_rank,
        },
        "model": {
            "experts": recording.experts,
            "top_k": recording.top_k,
            "moe_layers": list(range(recording.layers)),
            "bytes_per_expert": MODELS[options.model].bytes_per_expert,
        },
        "kind": "routed",
        "phases": [options.phase],
        **sections,
    }
    try:
        return PoolConfig.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ReplayError(f"the daemon cannot be set up so: {place}: {first['msg']}") from error
