"""Steps as sound ranks report them, and what the judge makes of them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np

from collectors.digests import layer_map_digests
from collectors.shares import even_shares
from eplb.chaos.judge import Judge
from eplb.chaos.load import shared_out, tokens_of
from eplb.chaos.messages import GroupStep, JudgePlan, Served
from eplb.chaos.setup import EXPERTS, LAYERS, POOL, SLOTS_PER_RANK, TOP_K, run_facts
from eplb.demo.dispatch import Dispatcher, Source
from eplb.demo.reference import Reference
from eplb.start_map import start_map

RUN = run_facts(3)
REFERENCE = Reference(RUN.spec)
MEMBERS, TOKENS = (0, 1, 2, 3), 24
ROWS = start_map(LAYERS, EXPERTS, RUN.facts.slots)
PLAN = JudgePlan(
    seed=3, socket="/nowhere", pool=POOL, ranks=4, slots_per_rank=SLOTS_PER_RANK, experts=EXPERTS, top_k=TOP_K,
    model_layers=RUN.facts.model_layers, hidden=RUN.spec.hidden, inter=RUN.spec.inter,
)  # fmt: skip


def right_step(number, members=MEMBERS, *, rows=ROWS, shares=None, done_s=None, **changes):
    """A step as sound ranks would report it; ``shares`` None = even; ``changes`` by rank, fields to replace."""
    inputs = shared_out(tokens_of(3, number, TOKENS), members)
    shares = even(rows) if shares is None else shares
    received = arrivals(inputs, rows, shares)
    parts = {}
    for rank, tokens in inputs.items():
        picks = RUN.routing.picks_of(tokens.sequences, tokens.positions)
        states = REFERENCE.states(tokens.sequences, tokens.positions, picks)
        parts[rank] = Served(
            rank=rank, run_id=7, step=number, tokens=tokens, outputs=states[-1], received=received[:, rank],
            sent=picks.size, combined=picks.size, rows=rows, shares=shares, digests=reported(rows, shares), term_seen=1,
            map_version=0, agent_state="serving",
        )  # fmt: skip
    for rank, fields in changes.items():
        place = int(rank.removeprefix("rank"))
        parts[place] = replace(parts[place], **fields)
    return GroupStep(number, 7, members, inputs, parts, time.monotonic() if done_s is None else done_s)


def even(rows):
    return np.stack([even_shares(row) for row in rows])


def arrivals(inputs, rows, shares):
    """What arrives at each slot when every rank deals its tokens by these shares: int64 [layers, ranks, slots_per_rank]."""
    arrived = np.zeros((LAYERS, RUN.facts.slots), dtype=np.int64)
    for rank, tokens in inputs.items():
        dispatcher = Dispatcher("weighted", Source(rank, 4, 2, SLOTS_PER_RANK), EXPERTS, LAYERS)
        picks = RUN.routing.picks_of(tokens.sequences, tokens.positions)
        for layer, row in enumerate(rows):
            dispatcher.rebuild(layer, row, shares[layer].tolist())
            arrived[layer] += np.bincount(
                dispatcher.choose(layer, picks[:, layer]).ravel(), minlength=RUN.facts.slots
            )
    return arrived.reshape(LAYERS, 4, SLOTS_PER_RANK)


def reported(rows, shares=None):
    """What sound agents report that they serve."""
    return tuple(int(digest) for digest in layer_map_digests(RUN.facts.model_layers, rows, shares))


def judged(*steps, notes=(), view=None):
    """The judge's counts and findings after these steps; ``view`` prepares what it has read in the store."""
    tally, findings = judgement(*steps, notes=notes, view=view)
    return {word: count for word, count in tally.counts.items() if count}, findings


def judgement(*steps, notes=(), view=None):
    """The judge's tally and findings."""
    ours, theirs = Pipe()
    judge = Judge(PLAN, theirs)
    if view is not None:
        view(judge._watch.view)
    for note in notes:
        judge.note(note)
    judge.steps(list(steps))
    judge.tick()
    findings = []
    while ours.poll(0):
        findings.append(ours.recv())
    return judge.tally(), findings


def offer_bytes(plan, wave, term):
    return json.dumps({"body": {"plan_id": plan, "wave": wave, "term": term}}).encode()
