"""Plans on the window alone, on all history, and on history by regime, scored on traffic that comes after them.

Rerun from the project's root, with the data of ../shared/data (or DATA=folder):

    python benchmarks/history.py plans [seeds] [every n-th layer]     held-out excess by way to plan
    python benchmarks/history.py regimes [seeds]                      regimes found, against the recorded domains
    python benchmarks/history.py cost                                 processor time and memory at 58 layers x 256 experts

The picks are recorded, the order is ours. Two streams: `decode` is a continuous batch of a few sequences, a slice is one step, so that
neighbours in time share most of their requests; `requests` cuts whole requests, one after the other, into slices, so that no request
is in two windows. A sequence is served once in a stream: no plan has seen what it is scored on. Domains are never shown to the method.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy as np

from eplb.config import HistoryConfig
from eplb.history.features import squared_distances
from eplb.history.file import Held, read_history, write_history
from eplb.history.material import Material, Past, Recent, mix
from eplb.history.moments import MOMENT_MS
from eplb.history.regimes import find_regimes
from eplb.history.reservoir import Reservoir
from eplb.replay.batch import Batch, Request
from placement import LoadTrace, Placement, Topology, evaluate, solve

DATA = Path(os.environ.get("DATA", Path(__file__).parents[2] / "shared" / "data"))
SCHEDULES = ("mixed", "A B A B", "in turn")
WAYS = ("frozen", "window", "pooled", "regimes", "oracle")
MOST_SLICES = 256


@dataclass(frozen=True, slots=True)
class Row:
    """One trace as one stream.

    ``domains`` in order of use; ``slots`` per rank of 8; ``each`` sequences in flight, or tokens of a slice; ``window`` slices that are planned on, ``turn`` slices
    that a domain is served before the next one in A B A B and in turn; ``per_moment`` slices of one minute; ``most`` slices.
    """

    trace: str
    stream: str
    domains: tuple[str, ...]
    slots: int
    each: int
    window: int
    horizon: int
    turns: tuple[int, int]
    per_moment: int
    most: int


GPT = ("humanities_law", "science_med_eng", "business_other", "math_logic")
DSV = ("law", "summary", "translation", "intent")
ROWS = (
    Row("gptoss20b_decode", "requests", GPT, 5, 600, 8, 4, (16, 8), 2, 213),
    Row("dsv2lite_prefill", "requests", DSV, 9, 160, 8, 4, (16, 8), 2, 147),
    Row("gptoss20b_decode", "decode", GPT, 5, 32, 64, 64, (192, 96), 8, 1152),
    Row("dsv2lite_prefill", "decode", DSV, 9, 8, 48, 48, (144, 72), 8, 576),
)


@dataclass(frozen=True, slots=True)
class Stream:
    """Slices in order: tokens int64 [slices, layers, experts], and the domain that most of each is of."""

    tokens: np.ndarray
    domains: np.ndarray


def stream_of(row: Row, schedule: str, seed: int) -> Stream:
    """One stream of one trace; the same seed gives the same."""
    recorded = np.load(DATA / f"{row.trace}.npz")
    picks, offsets, domain = recorded["picks"].astype(np.int64), recorded["offsets"], recorded["domain"]
    rng = np.random.default_rng([seed, 7])
    make = _requests if row.stream == "requests" else _decode
    places, names = make(row, schedule, (offsets, domain), rng)
    experts, layers = int(picks.max()) + 1, picks.shape[1]
    tokens = np.zeros((len(places), layers, experts), dtype=np.int64)
    for at, chosen in enumerate(places):
        cells = np.arange(layers)[:, None] * experts + picks[chosen]
        tokens[at] = np.bincount(cells.ravel(), minlength=layers * experts).reshape(layers, experts)
    return Stream(tokens, np.array(names))


def _requests(
    row: Row, schedule: str, recorded: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> tuple[list[np.ndarray], list[str]]:
    """Whole requests of the domain whose turn it is, cut into slices of equal size."""
    offsets, domain = recorded

    def cut(names: tuple[str, ...]) -> list[np.ndarray]:
        order = rng.permutation(np.flatnonzero(np.isin(domain, names)))
        tokens = np.concatenate([np.arange(offsets[one], offsets[one + 1]) for one in order])
        return [tokens[at : at + row.each] for at in range(0, len(tokens) - row.each + 1, row.each)]

    if schedule == "mixed":
        slices = cut(row.domains)[: row.most]
        return slices, [_most(domain, offsets, one) for one in slices]
    names, turn = (row.domains[:2], row.turns[0]) if schedule == "A B A B" else (row.domains, row.turns[1])
    piles = {name: cut((name,)) for name in names}
    out: list[np.ndarray] = []
    labels: list[str] = []
    while len(piles[name := names[len(out) // turn % len(names)]]) >= turn:
        out += piles[name][:turn]
        labels += [name] * turn
        del piles[name][:turn]
    return out, labels


def _decode(
    row: Row, schedule: str, recorded: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> tuple[list[np.ndarray], list[str]]:
    """A continuous batch: every sequence gives one token a step, and one that ends makes place for one of the domain of now."""
    offsets, domain = recorded
    piles = {name: rng.permutation(np.flatnonzero(domain == name)).tolist() for name in row.domains}
    step = 0

    def admit() -> Request:
        names = row.domains
        if schedule == "A B A B":
            names = (row.domains[step // row.turns[0] % 2],)
        elif schedule == "in turn":
            names = (row.domains[step // row.turns[1] % len(row.domains)],)
        left = np.array([len(piles[name]) for name in names], dtype=np.float64)
        sequence = piles[names[rng.choice(len(names), p=left / left.sum())]].pop()
        length = int(offsets[sequence + 1] - offsets[sequence])
        first = 0 if step else int(rng.integers(length))
        return Request(sequence, first, length)

    batch = Batch(row.each, admit)
    places: list[np.ndarray] = []
    labels: list[str] = []
    for step in range(1, row.most + 1):  # noqa: B007 - read by admit
        places.append(offsets[batch.sequences] + batch.positions)
        labels.append(_most(domain, offsets, places[-1]))
        batch.advance()
    return places, labels


def _most(domain: np.ndarray, offsets: np.ndarray, tokens: np.ndarray) -> str:
    names, counts = np.unique(domain[np.searchsorted(offsets, tokens, side="right") - 1], return_counts=True)
    return str(names[counts.argmax()])


def excess_by_way(row: Row, stream: Stream, layer_step: int) -> dict[str, float]:
    """Mean excess on the slices after each plan, by way to plan; the first third of the plans, with little history, is left out."""
    topology = Topology.uniform(ranks=8, nodes=1, slots_per_rank=row.slots)
    layers = slice(0, None, layer_step)
    reservoir = Reservoir(stream.tokens.shape[1:], most_moments=256, most_bytes=10**9, keep_ms=10**9)
    scores: dict[str, list[float]] = {way: [] for way in WAYS}
    frozen: Placement | None = None
    fed = 0

    def plan(tokens: np.ndarray, weights: np.ndarray | None = None) -> Placement:
        return solve(LoadTrace(tokens[:, layers], weights), topology, effort="fast", seed=0).placement

    for now in range(row.window, len(stream.tokens) - row.horizon + 1, row.horizon):
        for at in range(fed, now - row.window):
            one = slice(at, at + 1)
            key = np.array([1], dtype=np.uint64), np.array([at])
            reservoir.add(_time_ms(row, at), *key, stream.tokens[one])
        fed = max(fed, now - row.window)
        own, after = stream.tokens[now - row.window : now], stream.tokens[now : now + row.horizon]
        frozen = frozen or plan(own)
        plans = {"frozen": frozen, "window": plan(own), "oracle": plan(after)}
        for use in ("pooled", "regimes"):
            material = _material(row, reservoir, (own, after), use) if reservoir.moments else None
            if material is None:
                plans[use] = plans["window"]
            else:
                plans[use] = plan(material.tokens[: -material.held_out], material.weights)
        for way, placement in plans.items():
            ratio = evaluate(placement, LoadTrace(after[:, layers]), topology).ratio
            scores[way].append(float(np.nanmean(ratio)) - 1.0)
    return {way: float(np.mean(each[len(each) // 3 :])) for way, each in scores.items()}


def _material(row: Row, reservoir: Reservoir, slices: tuple[np.ndarray, np.ndarray], use: str) -> Material:
    """What a daemon would plan on now; the slices after the window only take the place of those that judge."""
    moments = reservoir.moments
    now_ms = moments[-1].number * MOMENT_MS + MOMENT_MS + _time_ms(row, len(slices[0]))
    past = Past(moments, np.full(len(moments), -1, dtype=np.int64), 0)
    horizon_s = _time_ms(row, row.horizon) / 1000
    return mix(Recent(*slices, now_ms), past, HistoryConfig(use=use), horizon_s, MOST_SLICES)


def _time_ms(row: Row, at: int) -> int:
    return at * MOMENT_MS // row.per_moment


def plans(seeds: int, layer_step: int) -> None:
    """Print the table of held-out excess."""
    print(
        f"held-out excess (mean of max/mean - 1), {seeds} seeds, every {layer_step} layer(s), 8 ranks, effort fast"
    )
    print(
        f"{'trace':18s} {'stream':9s} {'schedule':9s} "
        + " ".join(f"{way:>8s}" for way in WAYS)
        + "   regimes / window, by seed"
    )
    for row in ROWS:
        for schedule in SCHEDULES:
            runs = [excess_by_way(row, stream_of(row, schedule, seed), layer_step) for seed in range(seeds)]
            means = " ".join(f"{np.mean([run[way] for run in runs]):8.4f}" for way in WAYS)
            parts = " ".join(f"{run['regimes'] / run['window']:.3f}" for run in runs)
            print(f"{row.trace:18s} {row.stream:9s} {schedule:9s} {means}   {parts}", flush=True)


def regimes(seeds: int) -> None:
    """Print how well regimes fit the domains."""
    print(f"{'trace':18s} {'stream':9s} {'schedule':9s} seed moments domains regimes  purity  adjusted Rand")
    for row in ROWS:
        for schedule in SCHEDULES:
            for seed in range(seeds):
                stream = stream_of(row, schedule, seed)
                labels, domains = _labels(row, stream)
                print(
                    f"{row.trace:18s} {row.stream:9s} {schedule:9s} {seed:4d} {len(labels):7d} {len(set(domains)):7d} {len(set(labels)):7d}  "
                    f"{purity(labels, domains):6.2f}  {adjusted_rand(labels, domains):6.2f}"
                )


def _labels(row: Row, stream: Stream) -> tuple[list[int], list[str]]:
    reservoir = Reservoir(stream.tokens.shape[1:], most_moments=1024, most_bytes=10**9, keep_ms=10**9)
    for at, tokens in enumerate(stream.tokens):
        key = np.array([1], dtype=np.uint64), np.array([at])
        reservoir.add(_time_ms(row, at), *key, tokens[None])
    moments = reservoir.moments
    distances = squared_distances([moment.feature for moment in moments])
    noises = np.array([moment.noise for moment in moments])
    found = find_regimes(distances, noises, np.array([moment.number for moment in moments]))
    domains = [str(stream.domains[moment.steps[0].group_step]) for moment in moments]
    return found.tolist(), domains


def purity(labels: list[int], domains: list[str]) -> float:
    """Part of the moments that are of the commonest domain of their regime."""
    table = _table(labels, domains)
    return float(table.max(axis=1).sum() / table.sum())


def adjusted_rand(labels: list[int], domains: list[str]) -> float:
    """Agreement of two groupings beyond chance (Hubert and Arabie 1985): 1 = the same, 0 = chance."""
    table = _table(labels, domains)
    both, rows, columns = (
        sum(comb(int(n), 2) for n in part.ravel()) for part in (table, table.sum(1), table.sum(0))
    )
    expected, most = rows * columns / comb(len(labels), 2), (rows + columns) / 2
    return 1.0 if most == expected else (both - expected) / (most - expected)


def _table(labels: list[int], domains: list[str]) -> np.ndarray:
    names = sorted(set(domains))
    table = np.zeros((max(labels) + 1, len(names)), dtype=np.int64)
    np.add.at(table, (np.array(labels), [names.index(domain) for domain in domains]), 1)
    return table


def cost() -> None:
    """Print processor time and memory of a full history of 58 layers x 256 experts; the loads are generated."""
    layers, experts, picks = 58, 256, 512 * 8
    rng = np.random.default_rng(0)
    kinds = rng.dirichlet(np.full(experts, 0.5), size=(4, layers))
    reservoir = Reservoir((layers, experts), most_moments=256, most_bytes=64_000_000, keep_ms=10**9)
    adding: list[float] = []
    for minute in range(300):
        tokens = np.stack([rng.multinomial(picks, kinds[minute // 30 % 4]) for _ in range(8)])
        started = time.process_time()
        keys = np.full(8, 1, dtype=np.uint64), np.arange(8) + 8 * minute
        reservoir.add(minute * MOMENT_MS, *keys, tokens)
        reservoir.thin(minute * MOMENT_MS)
        adding.append(time.process_time() - started)
    moments = reservoir.moments
    slices = sum(len(moment.steps) for moment in moments)
    print(
        f"generated, {layers} x {experts}, 512 tokens a step, top-8: {len(moments)} moments, {slices} slices, {reservoir.bytes / 1e6:.1f} MB packed"
    )
    print(
        f"a minute's 8 steps taken in: median {np.median(adding) * 1e3:.1f} ms, most {max(adding) * 1e3:.1f} ms"
    )
    recent = Recent(tokens.repeat(24, axis=0), tokens, 300 * MOMENT_MS)
    past = Past(moments, np.full(len(moments), -1, dtype=np.int64), 0)
    for which in ("first plan", "next plan"):
        started = time.process_time()
        material = mix(recent, past, HistoryConfig(), 300.0, MOST_SLICES)
        print(
            f"{which}: slices chosen and weighed in {time.process_time() - started:.2f} s; {material.planned_on.sentence}"
        )
    held = Held("pool", (layers, experts), tuple(range(layers)), 8, 0, moments, (-1,) * len(moments), 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.history"
        started = time.process_time()
        write_history(path, held)
        written = time.process_time()
        read_history(path, most_bytes=64_000_000)
        print(
            f"file: {path.stat().st_size / 1e6:.1f} MB, written in {written - started:.2f} s, read and checked in {time.process_time() - written:.2f} s"
        )


def main() -> None:
    """Run the part that is asked for."""
    part, *numbers = sys.argv[1:] or ["plans"]
    given = [int(number) for number in numbers]
    if part == "plans":
        plans(*(given + [3, 2][len(given) :]))
    elif part == "regimes":
        regimes(*(given or [3]))
    else:
        cost()


if __name__ == "__main__":
    main()
