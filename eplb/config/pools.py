"""One pool and the daemon that serves several of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from collectors.errors import FactsError
from collectors.facts import Kind, Phase, PoolFacts
from eplb.config.sections import (
    AlertConfig,
    GateConfig,
    HistoryConfig,
    HttpConfig,
    LogConfig,
    MetricsConfig,
    MigrationConfig,
    Section,
    SolverConfig,
    StoreConfig,
    WindowConfig,
)
from eplb.errors import PlanError
from eplb.formats.layers import MOST_LAYERS
from eplb.migration.memory import check_headroom, memory_estimate
from eplb.migration.status import GRACE_S
from eplb.migration.waves import wave_slots

if TYPE_CHECKING:
    from collections.abc import Iterable

LEASE_USED = 0.75
"""Part of its life after which a leader that could not renew its lease steps down."""


def parse_layers(value: Any) -> Any:
    """Layer numbers from a list, a number or a text of ranges such as ``"3-60,62"``; anything else is left to pydantic."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if not isinstance(value, str):
        return value
    layers: list[int] = []
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{value!r} is not a list of layers; write 3-60 or 3-60,62 or [3, 4, 5]")
        low, high = int(first), int(last or first)
        if high < low or high >= MOST_LAYERS:
            raise ValueError(f"the range {part.strip()!r} is empty or ends above layer {MOST_LAYERS - 1}")
        layers.extend(range(low, high + 1))
    return tuple(layers)


def format_layers(layers: Iterable[int]) -> str:
    """The shortest text of ranges that :func:`parse_layers` reads as the same numbers in the same order."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


Layers = Annotated[tuple[int, ...], BeforeValidator(parse_layers), PlainSerializer(format_layers)]


class TopologyConfig(Section):
    """The EP group: its ranks, the groups of ranks with fast links, and what each rank holds."""

    ranks: int = Field(ge=1)
    """Members of the EP group (not of a tensor-parallel group), one per GPU."""
    nodes: int = Field(ge=1)
    """Groups of ranks with fast links (hosts, or NVLink domains), in rank order."""
    slots_per_rank: int = Field(ge=1)
    """Physical experts of one layer on one rank, redundant ones included."""

    @model_validator(mode="after")
    def _nodes_divide_ranks(self) -> TopologyConfig:
        if self.ranks % self.nodes:
            raise ValueError(
                f"{self.ranks} ranks do not divide over {self.nodes} nodes; every node has the same number"
            )
        return self


class ModelConfig(Section):
    """The model state that the pool serves."""

    experts: int = Field(ge=1)
    """Logical experts of one layer."""
    top_k: int = Field(ge=1)
    """Routed experts per token, shared experts not counted."""
    moe_layers: Layers
    """Numbers of the model's MoE layers, in order: 3-60, or 3-60,62, or a list."""
    bytes_per_expert: int = Field(default=0, ge=0)
    """All tensors of one expert of one layer, scales included; 0 = unknown, then prices are in moves."""

    @model_validator(mode="after")
    def _sensible(self) -> ModelConfig:
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts of a layer")
        if not self.moe_layers:
            raise ValueError("moe_layers is empty; name the model's MoE layers, for example 3-60")
        return self


class PoolConfig(Section):
    """One pool: one EP group, one model state, one pipeline stage."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """Key of the pool in the store and label of its metrics: letters, digits, dot, dash, underscore."""
    topology: TopologyConfig
    model: ModelConfig
    kind: Literal["routed", "routed_slots", "received_slots"]
    """What the engine's counters hold; there is no default, because a wrong guess gives wrong loads."""
    phases: tuple[Literal["mixed", "prefill", "decode"], ...] = Field(default=("mixed",), min_length=1)
    """Phases that the pool's steps have; each is measured for itself."""
    dispatch: Literal[
        "even", "weighted", "hash_row", "nearest", "per_source", "block_round_robin", "optimal"
    ] = "even"
    """How the engine picks one replica for a token, which plans are made and judged by: even (at random or in turn), weighted (by
    shares), hash_row (vLLM), nearest (SGLang static), per_source (vllm-ascend), block_round_robin (TensorRT-LLM), optimal (split
    by load in every batch). What a rule needs and the window does not hold is assumed, and the plan says so."""
    window: WindowConfig = WindowConfig()
    history: HistoryConfig = HistoryConfig()
    gate: GateConfig = GateConfig()
    solver: SolverConfig = SolverConfig()
    migration: MigrationConfig = MigrationConfig()
    alert: AlertConfig = AlertConfig()

    @model_validator(mode="after")
    def _consistent(self) -> PoolConfig:
        if len(set(self.phases)) != len(self.phases):
            raise ValueError(f"phases names one twice: {', '.join(self.phases)}")
        try:
            self.facts()
        except FactsError as error:
            raise ValueError(str(error)) from error
        if self.gate.progress_s < self.migration.offer_expires_s + GRACE_S:
            raise ValueError(
                f"gate.progress_s {self.gate.progress_s:g} is below the {self.migration.offer_expires_s + GRACE_S:g} s that an offer may "
                "take (migration.offer_expires_s and the grace), so that a sound wave would be called stalled; raise progress_s"
            )
        if self.topology.slots_per_rank > self.model.experts:
            raise ValueError(
                f"slots_per_rank {self.topology.slots_per_rank} is more than the {self.model.experts} experts, and no "
                "expert may lie twice on a rank; lower slots_per_rank"
            )
        try:
            check_headroom(memory_estimate(self.facts(), self.wave_slots()), self.migration.headroom_bytes)
        except PlanError as error:
            raise ValueError(str(error)) from error
        return self

    def wave_slots(self) -> int:
        """Most experts that one wave may bring to a rank."""
        return wave_slots(self.facts(), self.migration.staging_slots, self.migration.bytes_per_rank)

    def facts(self) -> PoolFacts:
        """The shape of the pool as ranks and window see it."""
        return PoolFacts(
            pool=self.name,
            ranks=self.topology.ranks,
            nodes=self.topology.nodes,
            slots_per_rank=self.topology.slots_per_rank,
            experts=self.model.experts,
            top_k=self.model.top_k,
            model_layers=self.model.moe_layers,
            bytes_per_expert=self.model.bytes_per_expert,
        )

    def count_kind(self) -> Kind:
        """The kind of count as the collectors name it."""
        return Kind[self.kind.upper()]

    def served_phases(self) -> tuple[Phase, ...]:
        """The phases as the collectors name them."""
        return tuple(Phase[phase.upper()] for phase in self.phases)


class DaemonConfig(Section):
    """All settings of one daemon."""

    store: StoreConfig
    pools: tuple[PoolConfig, ...] = Field(min_length=1)
    """The pools that this daemon serves; for prefill and decode engines of one model, one pool each."""
    cycle_s: float = Field(default=5.0, gt=0, le=600)
    """Time between two assessments. Several fit into the window, and one costs milliseconds."""
    advice_folder: str = "plans"
    """Where mode advise writes its plans, one neutral map file each, in the working directory unless absolute. The newest
    100 of a pool are kept."""
    state_folder: str | None = None
    """Where the last good map of each pool is kept, one file each, so that an emptied store is repaired with its terms, versions and
    pauses; a folder on this host that outlives the process. Empty = kept in memory only."""
    map_key_file: str | None = None
    """File of one or two keys, one a line in hex, that plans, offers and live records are signed with; ranks need the same
    (EPLB_MAP_KEY_FILE serves both). What is not signed is then refused. Empty = nothing is signed."""
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    metrics: MetricsConfig = MetricsConfig()

    @model_validator(mode="after")
    def _consistent(self) -> DaemonConfig:
        names = [pool.name for pool in self.pools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two pools are named {twice[0]!r}; a pool's name is its key in the store")
        need_s = (self.cycle_s + 2 * self.store.timeout_s * len(self.pools)) / LEASE_USED
        if need_s > self.store.lease_ttl_s:
            raise ValueError(
                f"a cycle of {self.cycle_s:g} s and two slow answers for each of {len(self.pools)} pools do not fit into "
                f"{LEASE_USED:.0%} of store.lease_ttl_s {self.store.lease_ttl_s:g} s, so a slow store would cost the leader its "
                f"lease; raise store.lease_ttl_s to at least {need_s:.0f}"
            )
        for pool in self.pools:
            if pool.window.window_s < self.cycle_s:
                raise ValueError(
                    f"pool {pool.name!r}: window_s {pool.window.window_s:g} is shorter than cycle_s {self.cycle_s:g}; "
                    "frames between two cycles would be missed"
                )
        return self

    def pool(self, name: str) -> PoolConfig:
        """The pool of this name.

        Raises:
            KeyError: there is none.
        """
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)
