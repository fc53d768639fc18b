"""Rules of the report: the last line in exactly these words, every minimum checked, and nothing passed that was found or missed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from eplb.chaos.driver import Options, Outcome
from eplb.chaos.faults import FRAME_KINDS, KILL_LEADER, KINDS
from eplb.chaos.injector import Injector, KindRecord
from eplb.chaos.judge_steps import COUNTS
from eplb.chaos.messages import Tally
from eplb.chaos.report import as_dict, last_line, missed, text
from eplb.chaos.schedule import FULL, shares_alone
from eplb.chaos.setup import EVEN, WEIGHTED
from eplb.chaos.watch import PROTOCOL_STATES, SHARES_STATES

OPTIONS = Options()
KILLS = {**dict.fromkeys(PROTOCOL_STATES, 3), **{shares_alone(state): 2 for state in SHARES_STATES}}
TALLY = Tally(waves=30, shares_only=6, refused=4, aborted=2, counts=dict.fromkeys(COUNTS, 0))


def outcome(tally=TALLY, **records):
    """A full run that reached everything, some kinds' records replaced."""
    injector = Injector(FULL, OPTIONS.kinds, 0, lambda _: None)
    for kind in KINDS:
        injector.records[kind] = KindRecord(injected=9, healed=9, rest_s=[1.0, 2.0])
    injector.records[KILL_LEADER] = KindRecord(injected=21, healed=21, rest_s=[2.0], details=Counter(KILLS))
    injector.records.update(records)
    return Outcome(injector, tally)


def test_the_last_line_in_exactly_these_words():
    """Faults of frames are not among the faults; kinds are those that came."""
    line = last_line(outcome(replace(TALLY, counts={**TALLY.counts, "experts lost": 3})))
    faults = 9 * (len(KINDS) - len(FRAME_KINDS) - 1) + 21
    assert line == (
        f"faults {faults}, kinds 14, waves 30, tokens lost 0, experts lost 3, map divergences 0, output mismatches 0, stuck 0"
    )
    assert text(OPTIONS, outcome()).splitlines()[-1] == last_line(outcome())


def test_a_line_a_kind():
    lines = text(OPTIONS, outcome()).splitlines()
    assert [line.split()[0] for line in lines[: len(KINDS)]] == list(KINDS)


def test_a_run_that_reached_everything_missed_nothing():
    assert missed(OPTIONS, outcome()) == []


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        (outcome(store_pause=KindRecord(injected=9, healed=4)), "store_pause: 4 of 5"),
        (outcome(replace(TALLY, waves=19)), "waves committed: 19 of 20"),
        (outcome(replace(TALLY, shares_only=4)), "waves of shares alone: 4 of 5"),
        (outcome(replace(TALLY, refused=2, aborted=2)), "waves refused or aborted: 4 of 5"),
        (outcome(clock_jump=KindRecord(injected=0, healed=9)), "faults: 93 of 100"),
        (
            outcome(
                kill_leader=KindRecord(injected=20, healed=20, details=Counter({**KILLS, "planning": 0}))
            ),
            "leader killed in planning: 0 of 3",
        ),
    ],
    ids=["kind", "waves", "shares", "refused", "faults", "state"],
)
def test_a_minimum_that_was_not_reached_is_said(broken, word):
    assert word in missed(OPTIONS, broken)
    assert f"MISSED {word}" in text(OPTIONS, broken)


def test_where_dispatch_is_even_no_wave_of_shares_is_due():
    moved = outcome(replace(TALLY, shares_only=0))
    assert missed(replace(OPTIONS, scale=FULL.of(EVEN)), moved) == []
    assert missed(replace(OPTIONS, scale=FULL.of(WEIGHTED)), moved) == ["waves of shares alone: 0 of 5"]


def test_a_pool_that_did_not_recover_is_missed():
    broken = outcome()
    broken.injector.unrecovered.append("store_restart: not at rest")
    assert missed(OPTIONS, broken) == ["store_restart: not at rest"]


def test_the_report_is_json():
    assert json.loads(json.dumps(as_dict(OPTIONS, outcome())))["line"] == last_line(outcome())
