"""What a migration moves, in how many rounds and waves and how long: DeepSeek-V3's sizes on paper, small ones for real.

    python benchmarks/migration_rounds.py [--layers N] [--no-real]

On paper, links are simulated; the plans come from the solver, for load that has drifted, or lead to a map that has nothing to do
with the live one. For real, four processes move bytes over gloo; the bandwidth of their links is measured first.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collectors.facts import PoolFacts
from eplb.agent.rounds import contention_free_rounds, fewest_rounds, wave_copies
from eplb.agent.wire import LayerChange, Offer, encode_offer
from eplb.migration import Plan, make_plan, waves
from eplb.migration.align import newcomers
from eplb.migration.duration import Links, plan_seconds
from eplb.models import MODELS
from placement import Limits, LoadTrace, Placement, Topology, solve

MODEL = MODELS["deepseek-v3"]
POOLS = ((32, 4, 9), (320, 40, 1), (320, 40, 2))
SLICES = 8
STEP_S, GATE_STEPS = 0.02, 20
TCP = Links(node_bytes_per_s=2.5e9, bytes_per_s=1.25e9, gate_s=STEP_S * GATE_STEPS)
RDMA = Links(node_bytes_per_s=160e9, bytes_per_s=50e9, copy_bytes_per_s=1e12, gate_s=STEP_S * GATE_STEPS)


@dataclass(frozen=True, slots=True)
class Row:
    """One plan in numbers; ``least`` moves and rounds are lower bounds."""

    name: str
    as_labelled: int
    moves: int
    least_moves: int
    gigabytes: float
    waves: int
    rounds: int
    least_rounds: int
    tcp_s: float
    rdma_s: float
    plan_s: float


def load_of(seed: int, layers: int) -> np.ndarray:
    """Skewed tokens by expert, int64 [slices, layers, experts], with a hot set of its own for each seed."""
    hot = np.random.default_rng(seed).pareto(1.8, (layers, MODEL.experts)) + 0.2
    rng = np.random.default_rng(seed + 1000)
    return rng.poisson(
        hot * 4096 * MODEL.top_k / hot.sum(axis=1, keepdims=True), (SLICES, *hot.shape)
    ).astype(np.int64)


def solved(facts: PoolFacts, tokens: np.ndarray, current: np.ndarray | None) -> np.ndarray:
    """The solver's map for a load."""
    topology = Topology.uniform(ranks=facts.ranks, nodes=facts.nodes, slots_per_rank=facts.slots_per_rank)
    given = None if current is None else Placement(current)
    result = solve(LoadTrace(tokens), topology, current=given, limits=Limits(slack=0.02), effort="fast")
    return np.asarray(result.placement.physical_to_logical, dtype=np.int32)


def on_paper(name: str, facts: PoolFacts, base: np.ndarray, target: np.ndarray, load: np.ndarray) -> Row:
    """All waves of one plan: copies, rounds and predicted seconds."""
    started_s = time.process_time()
    plan = make_plan(facts, base, target, created_ms=1, load=load.sum(axis=0).astype(float))
    parts = waves(facts, plan, base, plan.base_digests)
    made_s = time.process_time() - started_s
    moves, rounds, least = walked(facts, base, parts)
    return Row(
        name=name,
        as_labelled=int(((target != base) & (target >= 0)).sum()),
        moves=moves,
        least_moves=int(newcomers(facts, base, target).sum()),
        gigabytes=moves * facts.bytes_per_expert / 1e9,
        waves=len(parts),
        rounds=rounds,
        least_rounds=least,
        tcp_s=plan_seconds(facts, TCP, base, parts),
        rdma_s=plan_seconds(facts, RDMA, base, parts),
        plan_s=made_s,
    )


def walked(facts: PoolFacts, base: np.ndarray, parts: list[tuple[LayerChange, ...]]) -> tuple[int, int, int]:
    """Copies between ranks, rounds and their lower bound, over all waves."""
    rows, moves, rounds, least = base.copy(), 0, 0, 0
    width = facts.slots_per_rank
    for part in parts:
        copies = wave_copies(facts, rows, part)
        moves += sum(copy.source // width != copy.destination // width for copy in copies)
        rounds += len(contention_free_rounds(facts, copies))
        least += fewest_rounds(facts, copies)
        for change in part:
            rows[change.layer] = change.target
    return moves, rounds, least


def paper(layers: int) -> None:
    """Print the table of simulated pools."""
    print(
        f"{layers} layers x {MODEL.experts} experts of {MODEL.bytes_per_expert} bytes, gates every {STEP_S * GATE_STEPS:g} s\n"
    )
    print(
        "| ranks x slots | target | slots as labelled | moves | bound | GB | waves | rounds | bound | s over TCP | s over RDMA | CPU s to plan |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for ranks, nodes, width in POOLS:
        facts = PoolFacts(
            "paper",
            ranks,
            nodes,
            width,
            MODEL.experts,
            8,
            tuple(range(3, 3 + layers)),
            MODEL.bytes_per_expert,
        )
        before, after = load_of(1, layers), load_of(1, layers) // 2 + load_of(2, layers) // 2
        base = solved(facts, before, None)
        targets = (
            ("drifted load", solved(facts, after, base)),
            ("unrelated map", solved(facts, load_of(3, layers), None)),
        )
        for name, target in targets:
            row = on_paper(f"{ranks} x {width} | {name}", facts, base, target, after)
            print(
                f"| {row.name} | {row.as_labelled} | {row.moves} | {row.least_moves} | {row.gigabytes:.1f} | {row.waves} "
                f"| {row.rounds} | {row.least_rounds} | {row.tcp_s:.1f} | {row.rdma_s:.1f} | {row.plan_s:.2f} |",
                flush=True,
            )


REAL = PoolFacts("real", 4, 2, 6, 16, 2, tuple(range(6)), bytes_per_expert=4 << 20)


class Weights:
    """One tensor an expert, whose bytes say which layer and expert it is."""

    def __init__(self, rank: int, rows: np.ndarray) -> None:
        self._first = rank * REAL.slots_per_rank
        self._storage = np.zeros((REAL.layers, REAL.slots_per_rank, REAL.bytes_per_expert), dtype=np.uint8)
        for layer in range(REAL.layers):
            for place in range(REAL.slots_per_rank):
                self._storage[layer, place] = 1 + layer * REAL.experts + rows[layer, self._first + place]

    def names(self) -> tuple[str, ...]:
        """The one tensor."""
        return ("w",)

    def tensors(self, layer: int, slot: int) -> dict[str, np.ndarray]:
        """Its bytes."""
        return {"w": self._storage[layer, slot - self._first]}


def real_maps() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two maps and a load, int32 [layers, slots] twice and float64 [layers, experts]."""
    rng = np.random.default_rng(5)
    deal = [
        rng.permutation(REAL.experts)[np.arange(REAL.slots) % REAL.experts] for _ in range(2 * REAL.layers)
    ]
    rows = np.array(deal, dtype=np.int32).reshape(2, REAL.layers, REAL.slots)
    return rows[0], rows[1], rng.pareto(1.8, (REAL.layers, REAL.experts))


def run_rank(rank: int, rendezvous: str, results: multiprocessing.Queue) -> None:
    """One process: measure the link, then serve forwards until every wave has switched."""
    import torch.distributed as dist

    from eplb.agent import Agent, LocalLink
    from eplb.agent.torch_group import TorchGroup
    from eplb.agent.torch_transport import TorchTransport

    class Counted(TorchTransport):
        sent_bytes = rounds = 0

        def exchange(self, sends, receives):  # noqa: ANN001, ANN202
            self.sent_bytes += sum(parcel[2].nbytes for parcel in sends)
            self.rounds += 1
            super().exchange(sends, receives)

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=REAL.ranks)
    gate, transport, link = TorchGroup.create(timeout_s=60.0), Counted.create(timeout_s=60.0), LocalLink()
    bandwidth = measured_link(rank, transport)
    transport.sent_bytes = transport.rounds = 0
    base, target, load = real_maps()
    plan = make_plan(REAL, base, target, created_ms=1, load=load)
    memory = Weights(rank, base)
    agent = Agent(REAL, gate, transport, memory, base, run_id=1, incarnation=rank + 1, link=link)
    times_s = [
        serve_wave(agent, link, plan, wave, parts)
        for wave, parts in enumerate(waves(REAL, plan, base, plan.base_digests))
    ]
    right = all(
        bool((memory.tensors(layer, slot)["w"] == 1 + layer * REAL.experts + agent.live[layer, slot]).all())
        for layer in range(REAL.layers)
        for slot in range(rank * REAL.slots_per_rank, (rank + 1) * REAL.slots_per_rank)
    )
    results.put((rank, transport.sent_bytes, transport.rounds, times_s, bandwidth, right))
    agent.close()
    dist.barrier()
    dist.destroy_process_group()


def measured_link(rank: int, transport) -> float:  # noqa: ANN001
    """Bytes per second while all ranks send one expert to the next and receive one; the best of five."""
    parcel, space = (np.ones(REAL.bytes_per_expert, dtype=np.uint8) for _ in range(2))
    best_s = np.inf
    for _ in range(5):
        started_s = time.perf_counter()
        transport.exchange([((rank + 1) % REAL.ranks, 1, parcel)], [((rank - 1) % REAL.ranks, 1, space)])
        best_s = min(best_s, time.perf_counter() - started_s)
    return REAL.bytes_per_expert / best_s


def serve_wave(agent, link, plan: Plan, wave: int, part: tuple[LayerChange, ...]) -> float:  # noqa: ANN001
    """Forwards of 1 ms from the offer of a wave to its switch; seconds."""
    mine = link.records[agent.rank]
    offer = Offer(REAL.pool, mine.run_id, mine.model_digest, 1, plan.plan_id, wave, 99, 1, 60.0, part)
    link.offer(encode_offer(offer), 1)
    started_s = time.perf_counter()
    for step in range(wave * 10**6, (wave + 1) * 10**6):
        if agent.before_forward(step) is not None:
            return time.perf_counter() - started_s
        if agent.state in {"refused", "stuck"}:
            raise RuntimeError(f"wave {wave}: {agent.state}: {agent.refusals}")
        time.sleep(0.001)
    raise RuntimeError(f"wave {wave} never switched")


def real() -> None:
    """Run four processes and print what they moved beside the bounds and the prediction."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder) / "rendezvous")
        processes = [
            context.Process(target=run_rank, args=(rank, rendezvous, results)) for rank in range(REAL.ranks)
        ]
        for process in processes:
            process.start()
        answers = sorted(results.get(timeout=300) for _ in processes)
        for process in processes:
            process.join(timeout=60)
    base, target, load = real_maps()
    plan = make_plan(REAL, base, target, created_ms=1, load=load)
    parts = waves(REAL, plan, base, plan.base_digests)
    _, rounds, least = walked(REAL, base, parts)
    bandwidth = min(answer[4] for answer in answers)
    links = Links(bandwidth, bandwidth, copy_bytes_per_s=2e9, gate_s=GATE_STEPS * 0.00115)
    took_s = sum(max(answer[3][wave] for answer in answers) for wave in range(len(parts)))
    print(
        f"\nfor real: {REAL.ranks} processes x {REAL.slots_per_rank} slots, {REAL.layers} layers x {REAL.experts} experts of {REAL.bytes_per_expert >> 20} MiB over gloo"
    )
    print(f"  bytes between ranks {sum(answer[1] for answer in answers)}, bound {plan.bytes}")
    print(
        f"  rounds {rounds}, bound {least}; the busiest rank took part in {max(answer[2] for answer in answers)}"
    )
    print(
        f"  waves {len(parts)}, seconds {took_s:.2f}, predicted {plan_seconds(REAL, links, base, parts):.2f} at {bandwidth / 1e9:.2f} GB/s a link"
    )
    print(f"  every slot of every rank holds its expert: {all(answer[5] for answer in answers)}")


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=MODEL.layers)
    parser.add_argument("--no-real", action="store_true")
    options = parser.parse_args()
    paper(options.layers)
    if not options.no_real:
        real()


if __name__ == "__main__":
    main()
