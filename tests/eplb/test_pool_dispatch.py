"""A pool that is said to dispatch by shares, with an engine that does and with one that does not, through the daemon's own loop."""

from __future__ import annotations

import numpy as np
import pytest
from loop_world import KERNELS, Loop

from collectors.digests import live_map_digest
from collectors.facts import Frame, FrameHeader, Kind, Phase, PhaseTotals, StepSample
from collectors.shares import even_shares
from eplb.config.pools import PoolConfig
from eplb.decisions import Code
from eplb.replay.world import ORIGIN_MS, RUN_ID, Group

ROWS = [[0, 1, 2], [0, 3, 4], [1, 5, 6], [2, 7, 3]]
"""Experts 0 to 3 have two copies each."""
LOADS = np.array([90, 60, 20, 50, 10, 70, 10, 20])
CHANGED = np.array([30, 120, 90, 20, 60, 10, 20, 20])
OFFERS = {Code.OFFERED, Code.SHARES_OFFERED}


class DealingGroup(Group):
    """Ranks that deal tokens over slots at random, by the live shares or evenly whatever they are, and count by slot."""

    follows = True

    def _frame(self, rank, steps, step_us, live_digest, now_ms):
        header = FrameHeader(
            pool=self._facts.pool, rank=rank, ranks=self._facts.ranks, kind=Kind.ROUTED_SLOTS, scope_copies=1,
            incarnation=1 + rank, run_id=RUN_ID, term_seen=self._term, seq=self._frames, group_step=self._steps,
            age_ms=now_ms - ORIGIN_MS, stride=1, live_digest=live_digest,
        )  # fmt: skip
        assert live_digest == live_map_digest(self.live.digests)
        row = self.live.rows[0]
        shares = even_shares(row)
        if self.follows and self.live.shares is not None:
            shares = self.live.shares[0]
        samples, dealt = [], np.zeros((1, len(row)), dtype=np.int64)
        for at in range(len(steps.batch)):
            counts = np.zeros((1, len(row)), dtype=np.int64)
            for expert in range(self._facts.experts):
                slots, number = np.flatnonzero(row == expert), int(steps.tokens[at, rank, 0, expert])
                rng = np.random.default_rng([steps.first_step + at, rank, expert])
                counts[0, slots] = rng.multinomial(number, shares[slots] / shares[slots].sum())
            dealt += counts
            samples.append(
                StepSample(
                    steps.first_step + at + 1, Phase.DECODE, int(steps.batch[at, rank]), live_digest, counts,
                    step_us=float(step_us[at]),
                )
            )  # fmt: skip
        totals = PhaseTotals(Phase.DECODE, self._steps, int(self._tokens[rank]), dealt)
        return Frame(header, self.live.digests.copy(), (totals,), samples=tuple(samples))


class DealingLoop(Loop):
    """The loop over such a group."""

    def __init__(self, *, follows, dispatch="weighted"):
        super().__init__(ROWS, ranks=4, experts=8, min_gain=0.01, window_s=40.0)
        body = self.config.model_dump()
        self.config = PoolConfig.model_validate({**body, "kind": "routed_slots", "dispatch": dispatch})
        rows = self.group.live.rows
        self.group = DealingGroup(self.facts, Phase.DECODE, rows, self.store, KERNELS)
        self.group.follows = follows
        self.pool = self.new_pool()


def served(loop):
    """Traffic that changes once and back."""
    for loads in (LOADS, CHANGED, LOADS):
        loop.serve(loads, 20)
    return loop.codes


def test_an_engine_that_ignores_shares_is_offered_no_plan_once_that_was_seen():
    codes = served(DealingLoop(follows=False))
    first = codes.index(Code.SHARES_IGNORED)
    assert OFFERS.intersection(codes[:first])
    assert not OFFERS.intersection(codes[first:])


@pytest.mark.parametrize(
    ("follows", "dispatch"), [(True, "weighted"), (False, "even")], ids=["by shares", "evenly"]
)
def test_an_engine_that_dispatches_as_the_configuration_says_is_planned_for(follows, dispatch):
    loop = DealingLoop(follows=follows, dispatch=dispatch)
    codes = served(loop)
    assert Code.SHARES_IGNORED not in codes
    assert OFFERS.intersection(codes)
    followed = loop.pool._window.view(loop.clock.now_ms).shares_followed
    assert followed == pytest.approx(1.0, abs=0.1) if follows else np.isnan(followed)
