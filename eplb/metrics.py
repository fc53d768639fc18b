"""Prometheus metrics: one collector that reads the newest snapshots at each scrape and keeps nothing of its own.

Nothing is cached between scrapes, so a value that can no longer be measured has no sample instead of its last good one.
Series per pool are at most (layers + 2 x nodes + 4) x phases + :data:`MOST_AGGREGATES`; layer x rank only on request, layer x
expert never (that is JSON, see ``/state``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from eplb import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric

    from eplb.snapshot import PhaseReading, PoolSnapshot

PHASE_AGGREGATES = 4
"""Series of a phase beside those per layer and per node: excess, its recoverable part, noise floor, waste share."""

MOST_AGGREGATES = 48
"""Series of a pool beside those of its phases."""

PLACES = 8
"""How many of the most loaded ranks have a series; a place, not a rank, is the label, so that series stay the same."""

WINDOW_COUNTERS = {
    "frames": "Frames read.",
    "bytes": "Bytes of frames read.",
    "lost": "Frames that a gap in their numbers shows as lost; totals are running sums, so only resolution is lost.",
    "refused": "Frames refused as damaged, of another shape, or of another kind of count.",
    "misaligned": "Step samples dropped because the ranks' counts do not add up to the tokens routed.",
    "unknown_map": "Rows counted under a map that the daemon does not know.",
}
"""Counters of ``PoolSnapshot.counters`` that have a series; all of them are in ``/state``."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """One metric: its name, help and labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ("pool",)


IMBALANCE = _Shape(
    "eplb_imbalance_ratio",
    "Max over mean rank load of one layer, mean over the window's slices; 1 = perfect. Of one layer it is the inverse of "
    "what vLLM and SGLang call balancedness (mean over max); a mean of inverses is not the inverse of the mean.",
    ("pool", "phase", "layer"),
)
LAYER_RANK = _Shape(
    "eplb_layer_rank_load_ratio",
    "Load of one rank in one layer over the mean rank's; only with metrics.layer_rank.",
    ("pool", "phase", "layer", "rank"),
)
EXCESS = _Shape("eplb_excess_ratio", "Mean over layers of the imbalance ratio - 1.", ("pool", "phase"))
RECOVERABLE = _Shape(
    "eplb_recoverable_excess_ratio",
    "The part of the excess that a balanced map would not show on the same steps.",
    ("pool", "phase"),
)
NOISE = _Shape(
    "eplb_noise_floor_ratio",
    "The excess that sampling noise alone shows on the same steps.",
    ("pool", "phase"),
)
WASTE = _Shape(
    "eplb_waste_share_ratio",
    "Share of MoE time that the mean rank waits: mean over layers of 1 - 1 / imbalance ratio.",
    ("pool", "phase"),
)
NODE_MAX = _Shape(
    "eplb_node_max_tokens", "Tokens a step on the most loaded rank of a node.", ("pool", "phase", "node")
)
NODE_MEAN = _Shape(
    "eplb_node_mean_tokens", "Tokens a step on the mean rank of a node.", ("pool", "phase", "node")
)
TOP_RANK = _Shape(
    "eplb_top_rank_load_ratio",
    "Load of the 1st to 8th most loaded rank over the mean rank's, in the phase with the most tokens; which ranks they "
    "are is in /state.",
    ("pool", "place"),
)
IDLE = _Shape("eplb_idle", "1 = no tokens in the window, so that no ratio is shown; 0 otherwise.")
COVERAGE = _Shape("eplb_coverage_ratio", "Ranks seen in the window over ranks expected.")
AGE = _Shape(
    "eplb_collector_age_seconds",
    "Age of the newest frame; grows as well while the daemon's loop stands still.",
)
RANKS_LOST = _Shape(
    "eplb_ranks_lost", "Ranks of the configuration that are no members of the group that serves."
)
STALE = _Shape("eplb_stale_ranks", "Ranks without a frame for longer than alert.stale_after_s.")
LEADER = _Shape("eplb_leader", "1 = this daemon leads the pool, 0 = it stands by.")
TERM = _Shape("eplb_term", "Leadership term that this daemon knows.")
MAP_VERSION = _Shape("eplb_map_version", "Completed switches of the map.")
PAUSED = _Shape("eplb_paused", "1 = an operator or a guard stopped acting; measuring goes on.")
STORE_UP = _Shape("eplb_store_up", "1 = the store answered in the last cycle.")
STATE_SAVED = _Shape(
    "eplb_state_saved",
    "1 = the last good map is on disk, 0 = it could not be written; absent without state_folder.",
)
STORE_MAY_EVICT = _Shape(
    "eplb_store_may_evict", "1 = the store may drop keys when it is full; absent if this user may not ask."
)
STORE_USED = _Shape(
    "eplb_store_used_ratio", "Memory of the store over its maxmemory; absent without a limit."
)
RECORDS_REFUSED = _Shape(
    "eplb_records_refused", "Live records of ranks that are damaged or not signed as asked."
)
MIGRATION = _Shape(
    "eplb_migration_state",
    "1 for the state that the migration is in; other states have no sample.",
    ("pool", "state"),
)
TIMES = {
    "step_us": _Shape("eplb_step_seconds", "Mean time of a sampled step."),
    "moe_wait_us": _Shape(
        "eplb_moe_wait_seconds", "Mean time a rank waited for the slowest in a sampled step."
    ),
    "a2a_us": _Shape("eplb_a2a_seconds", "Mean time of dispatch and combine in a sampled step."),
    "expert_us": _Shape("eplb_expert_seconds", "Mean time of expert computation in a sampled step."),
}
REBALANCE = {
    "stalled_s": _Shape(
        "eplb_rebalance_stalled_seconds",
        "Time for which a plan in flight, or a placement that is wanted, has been said to stand still; 0 = all is well.",
    ),
    "stalled_ranks": _Shape("eplb_rebalance_stalled_ranks", "Ranks that a stalled plan waits for."),
    "next_plan_s": _Shape("eplb_next_plan_seconds", "Time until the next plan may be looked for; 0 = now."),
    "promised_gain": _Shape(
        "eplb_plan_promised_gain_ratio", "Fall of the mean ratio that the last measured plan promised."
    ),
    "realised_gain": _Shape("eplb_plan_realised_gain_ratio", "Fall of the mean ratio that it brought."),
    "correction": _Shape(
        "eplb_plan_gain_correction_ratio",
        "Factor on what the next plans promise, by what the last ones brought.",
    ),
    "half_life_s": _Shape(
        "eplb_gain_half_life_seconds",
        "Time in which half of a gain is gone; no sample while none is known to fade.",
    ),
    "missed": _Shape("eplb_gain_missed", "1 = the last plan brought far less than it promised."),
    "rolled_back": _Shape("eplb_plans_rolled_back", "Of the last 8 plans, those that were taken back."),
}
BUILD = _Shape("eplb_build_info", "Version of the daemon.", ("version",))
LOOP_AGE = _Shape("eplb_loop_age_seconds", "Time since the daemon's loop last ended a cycle.", ())

PHASE_SHAPES = (IMBALANCE, EXCESS, RECOVERABLE, NOISE, WASTE, NODE_MAX, NODE_MEAN, LAYER_RANK)
POOL_SHAPES = (
    TOP_RANK,
    IDLE,
    COVERAGE,
    AGE,
    STALE,
    RANKS_LOST,
    LEADER,
    TERM,
    MAP_VERSION,
    PAUSED,
    STORE_UP,
    STATE_SAVED,
    STORE_MAY_EVICT,
    STORE_USED,
    RECORDS_REFUSED,
    MIGRATION,
    *TIMES.values(),
    *REBALANCE.values(),
)


def metric_names() -> frozenset[str]:
    """Every series name that can be exported, as rules and dashboards write it."""
    shapes = (*PHASE_SHAPES, *POOL_SHAPES, BUILD, LOOP_AGE)
    return frozenset(shape.name for shape in shapes) | {
        f"eplb_window_{name}_total" for name in WINDOW_COUNTERS
    }


class SnapshotCollector(Collector):
    """Metrics of the snapshots that ``snapshots()`` returns at the moment of the scrape.

    ``loop_age_s()`` is the time in seconds since the daemon's loop last ended a cycle.
    """

    def __init__(
        self,
        snapshots: Callable[[], tuple[PoolSnapshot, ...]],
        loop_age_s: Callable[[], float],
        *,
        layer_rank: bool = False,
    ) -> None:
        self._snapshots = snapshots
        self._loop_age_s = loop_age_s
        self._layer_rank = layer_rank

    def collect(self) -> Iterator[Metric]:
        """All families, in a fixed order."""
        age_s = self._loop_age_s()
        families = _Families()
        families.add(BUILD, (__version__,), 1)
        families.add(LOOP_AGE, (), age_s)
        for snapshot in self._snapshots():
            for reading in snapshot.readings:
                _add_reading(families, snapshot, reading, layer_rank=self._layer_rank)
            _add_pool(families, snapshot, age_s)
            _add_times(families, snapshot)
        return families.all()

    def describe(self) -> Iterator[Metric]:
        """Nothing: names are fixed, and registering must not read a snapshot."""
        return iter(())


def registry(collector: SnapshotCollector) -> CollectorRegistry:
    """A registry of its own with this collector, so that nothing else in the process is exported by accident."""
    own = CollectorRegistry(auto_describe=False)
    own.register(collector)
    return own


class _Families:
    """Metric families by name; a value that is None or not finite has no sample."""

    def __init__(self) -> None:
        self._by_name: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}

    def add(self, shape: _Shape, labels: tuple[str, ...], value: float | None) -> None:
        """One sample of a gauge."""
        if value is None or not math.isfinite(value):
            return
        family = self._by_name.get(shape.name)
        if family is None:
            family = self._by_name[shape.name] = GaugeMetricFamily(
                shape.name, shape.help, labels=shape.labels
            )
        family.add_metric(labels, float(value))

    def count(self, name: str, pool: str, value: int) -> None:
        """One sample of a window counter."""
        full = f"eplb_window_{name}"
        family = self._by_name.get(full)
        if family is None:
            family = self._by_name[full] = CounterMetricFamily(full, WINDOW_COUNTERS[name], labels=("pool",))
        family.add_metric((pool,), float(value))

    def all(self) -> Iterator[Metric]:
        return iter(self._by_name.values())


def _add_reading(
    families: _Families, snapshot: PoolSnapshot, reading: PhaseReading, *, layer_rank: bool
) -> None:
    labels = (snapshot.pool, reading.phase)
    names = layer_names(snapshot, len(reading.ratio_by_layer))
    for name, ratio in zip(names, reading.ratio_by_layer, strict=True):
        families.add(IMBALANCE, (*labels, name), ratio)
    if reading.tokens > 0:
        families.add(EXCESS, labels, reading.excess)
        families.add(RECOVERABLE, labels, reading.recoverable_excess)
        families.add(NOISE, labels, reading.noise_floor)
        families.add(WASTE, labels, reading.waste_share)
    for shape, tokens in ((NODE_MAX, reading.node_max_tokens), (NODE_MEAN, reading.node_mean_tokens)):
        for node, value in enumerate(tokens):
            families.add(shape, (*labels, str(node)), value)
    if layer_rank:
        for name, loads in zip(names, reading.layer_rank_load, strict=True):
            for rank, load in enumerate(loads):
                families.add(LAYER_RANK, (*labels, name, str(rank)), load)


def _add_pool(families: _Families, snapshot: PoolSnapshot, loop_age_s: float) -> None:
    pool = (snapshot.pool,)
    busiest = max(snapshot.readings, key=lambda reading: reading.tokens, default=None)
    for place, (_, load) in enumerate(busiest.top_ranks[:PLACES] if busiest else (), start=1):
        families.add(TOP_RANK, (*pool, str(place)), load)
    newest_age_s = snapshot.newest_age_s
    values: Iterable[tuple[_Shape, float | None]] = (
        (IDLE, busiest is None or busiest.tokens <= 0),
        (COVERAGE, snapshot.coverage),
        (AGE, None if newest_age_s is None else newest_age_s + loop_age_s),
        (STALE, len(snapshot.stale_ranks)),
        (RANKS_LOST, snapshot.ranks_lost),
        (LEADER, snapshot.leader),
        (TERM, snapshot.term),
        (MAP_VERSION, snapshot.map_version),
        (PAUSED, snapshot.paused),
        (STORE_UP, snapshot.store_up),
        (STATE_SAVED, snapshot.state_saved),
        (STORE_MAY_EVICT, snapshot.store_may_evict),
        (STORE_USED, snapshot.store_used_ratio),
        (RECORDS_REFUSED, snapshot.records_refused),
    )
    for shape, value in values:
        families.add(shape, pool, value)
    for field, shape in REBALANCE.items():
        found = getattr(snapshot.rebalance, field)
        families.add(shape, pool, len(found) if isinstance(found, tuple) else found)
    families.add(MIGRATION, (*pool, snapshot.migration_state), 1)
    for name in WINDOW_COUNTERS:
        families.count(name, snapshot.pool, snapshot.counters.get(name, 0))


def _add_times(families: _Families, snapshot: PoolSnapshot) -> None:
    """Times of the pool: the mean over the phases that measured one, each weighted by its steps; microseconds in."""
    for field, shape in TIMES.items():
        measured = [
            (getattr(reading, field), reading.steps)
            for reading in snapshot.readings
            if getattr(reading, field) is not None
        ]
        steps = sum(weight for _, weight in measured)
        if steps > 0:
            mean_us = sum(time_us * weight for time_us, weight in measured) / steps
            families.add(shape, (snapshot.pool,), mean_us / 1e6)


def layer_names(snapshot: PoolSnapshot, layers: int) -> tuple[str, ...]:
    """The model's layer number of every row, or the row's position where the snapshot does not know it."""
    numbers = snapshot.model_layers if len(snapshot.model_layers) == layers else range(layers)
    return tuple(str(number) for number in numbers)
