"""Rules of the judge: right steps count nothing, and each thing that must not be is counted under its own word."""

from __future__ import annotations

import time
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest
from chaos_world import MEMBERS, PLAN, REFERENCE, ROWS, RUN, TOKENS, judged, offer_bytes, reported, right_step

from eplb.chaos.driver import JudgeProcess
from eplb.chaos.errors import ChaosError
from eplb.chaos.judge import PLAN_S, STEP_GAP_S, Judge
from eplb.chaos.judge_steps import (
    DIVERGENCES,
    EXPERTS_LOST,
    MISMATCHES,
    STUCK,
    TOKENS_LOST,
    Outputs,
    divergences,
    lost_experts,
    lost_tokens,
    map_name,
)
from eplb.chaos.judge_store import StoreView
from eplb.chaos.load import shared_out, tokens_of
from eplb.chaos.messages import FaultNote
from eplb.chaos.rank_faults import flipped
from eplb.chaos.setup import EXPERTS, LAYERS, SLOTS_PER_RANK, TOP_K

# --- one step -----------------------------------------------------------------------------------------------------


def test_a_right_step_counts_nothing():
    assert judged(right_step(0), right_step(1), right_step(2, members=(0, 2, 3), rows=three_rank_rows())) == (
        {},
        [],
    )


def three_rank_rows():
    """A map of a pool that lost rank 1: its slots are empty, the experts lie on the others."""
    rows = np.full_like(ROWS, -1)
    mine = [slot for slot in range(RUN.facts.slots) if slot // SLOTS_PER_RANK != 1]
    rows[:, mine] = np.arange(len(mine)) % EXPERTS
    return rows


def test_a_rank_without_outputs_has_lost_its_tokens():
    step = right_step(0)
    del step.parts[2]
    assert sum(weight for _, weight, _ in lost_tokens(step, TOP_K)) >= TOKENS // 4


def test_a_contribution_that_does_not_come_back_is_a_lost_token():
    sent = right_step(0).parts[1].sent
    assert judged(right_step(0, rank1={"combined": sent - 1}))[0] == {TOKENS_LOST: 1}


def test_a_row_that_does_not_arrive_is_a_lost_token():
    received = right_step(0).parts[3].received.copy()
    received[2, received[2].argmax()] -= 1
    assert judged(right_step(0, rank3={"received": received}))[0] == {TOKENS_LOST: 1}


def test_tokens_that_were_not_given_are_lost_tokens():
    other = shared_out(tokens_of(3, 9, TOKENS), MEMBERS)[0]
    found = lost_tokens(right_step(0, rank0={"tokens": other}), TOP_K)
    assert [word for word, _, _ in found] == [TOKENS_LOST]


def test_a_step_that_is_left_out_is_lost():
    assert judged(right_step(0), right_step(2))[0] == {TOKENS_LOST: 1}


def test_ranks_with_other_rows_diverge():
    rows = ROWS.copy()
    rows[1, [0, 1]] = rows[1, [1, 0]]
    found = divergences(right_step(0, rank2={"rows": rows}))
    assert [(word, weight) for word, weight, _ in found] == [(DIVERGENCES, 1)]
    assert map_name(right_step(0, rank2={"rows": rows}).parts[2]) in found[0][2]


def test_a_rank_that_reports_other_digests_diverges_from_the_others_and_from_its_own_rows():
    assert judged(right_step(0, rank2={"digests": (1, 2, 3, 5)}))[0] == {DIVERGENCES: 2}


def test_a_group_whose_engines_did_not_take_a_switch_over_diverges_from_what_its_agents_report():
    """All ranks agree with each other: the rows are one map, the digests another."""
    moved = ROWS.copy()
    moved[1, [0, 1]] = moved[1, [1, 0]]
    told = {"digests": reported(moved)}
    assert judged(right_step(0, rank0=told, rank1=told, rank2=told, rank3=told))[0] == {DIVERGENCES: 4}


def test_an_expert_without_a_copy_on_a_member_is_lost():
    """The map of four ranks served by three: what lay on rank 1 alone is lost, in the eyes of each."""
    step = right_step(0, members=(0, 2, 3))
    found = lost_experts(step, EXPERTS, SLOTS_PER_RANK)
    mine = set(ROWS[0].reshape(4, -1)[[0, 2, 3]].ravel().tolist())
    assert {weight for _, weight, _ in found} == {EXPERTS - len(mine)}
    assert len(found) == 3 * LAYERS
    assert {word for word, _, _ in found} == {EXPERTS_LOST}


def test_an_output_of_damaged_weights_is_a_mismatch():
    """One parcel as chaos damages it, put where the reference has its first expert: outputs that used it are wrong, the others right."""
    step = right_step(0)
    outputs = Outputs(PLAN)
    assert outputs.check([step]) == [[]]
    expert = REFERENCE._experts[0][int(RUN.routing.picks_of(*pair(step, 0))[0, 0, 0])]
    sound = expert["gate"].copy()
    expert["gate"][:] = flipped(sound.reshape(-1).view(np.uint8)).view(np.float32).reshape(sound.shape)
    try:
        wrong = right_step(0)
    finally:
        expert["gate"][:] = sound
    found = outputs.check([wrong])[0]
    assert {word for word, _, _ in found} == {MISMATCHES}
    assert 0 < sum(weight for _, weight, _ in found) < TOKENS
    assert outputs.outputs == 2 * TOKENS


def pair(step, rank):
    tokens = step.parts[rank].tokens
    return tokens.sequences, tokens.positions


def test_an_output_that_is_no_number_is_a_mismatch():
    bad = np.full((TOKENS // 4, RUN.spec.hidden), np.nan, dtype=np.float32)
    assert judged(right_step(0, rank0={"outputs": bad}))[0] == {MISMATCHES: TOKENS // 4}


# --- terms --------------------------------------------------------------------------------------------------------


def switched_under(term, *, granted_before_s, offer_seen_after):
    """Counts when the group switches to an offer of ``term`` now and term 5 was granted some seconds ago."""
    now_s = time.monotonic()

    def view(store):
        if offer_seen_after:
            store.see_term(5, now_s - granted_before_s)
            store.see_offer(offer_bytes("p", 0, term), now_s - 0.5)
        else:
            store.see_offer(offer_bytes("p", 0, term), now_s - granted_before_s - 1)
            store.see_term(5, now_s - granted_before_s)

    fields = {"switched": f"p/0@{term}", "switched_s": now_s}
    return judged(right_step(0, rank0=fields, rank1=fields), view=view)[0]


@pytest.mark.parametrize(
    ("term", "granted_before_s", "offer_seen_after", "counts"),
    [
        (5, 1.0, True, {}),
        (4, 1.0, True, {DIVERGENCES: 1}),
        (4, 1.0, False, {}),
        (4, 20.0, False, {DIVERGENCES: 1}),
    ],
    ids=["present leader", "written by a deposed leader", "still in the first rank's cache", "long deposed"],
)
def test_a_switch_must_be_the_present_leaders(term, granted_before_s, offer_seen_after, counts):
    found = switched_under(term, granted_before_s=granted_before_s, offer_seen_after=offer_seen_after)
    assert found == counts


def test_after_an_emptied_store_only_terms_that_ranks_have_seen_count():
    """A term that died with the store and its leader binds nobody; one that a rank has seen does."""
    now_s = time.monotonic()
    emptied = FaultNote(1, "store_restart", "", now_s - 20, healed=False)

    def view(store):
        store.see_term(9, now_s - 60)

    fields = {"switched": "p/0@4", "switched_s": now_s}
    for seen, counts in ((3, {}), (6, {DIVERGENCES: 1})):
        ours, theirs = Pipe()
        judge = Judge(PLAN, theirs)
        view(judge._watch.view)
        judge.steps([right_step(0, rank0={"term_seen": seen})])
        judge.note(emptied)
        judge.steps([right_step(1, rank0=fields)])
        assert {word: count for word, count in judge.tally().counts.items() if count} == counts
        ours.close()


# --- what does not happen -----------------------------------------------------------------------------------------


def test_a_long_time_without_a_step_is_stuck_once():
    now_s = time.monotonic()
    late = right_step(0, done_s=now_s - STEP_GAP_S - 5)
    assert judged(late)[0] == {STUCK: 1}
    assert judged(late, right_step(1))[0] == {STUCK: 1}


def plan_from(begun_s, ended_s=None):
    def view(store):
        store.see_offer(offer_bytes("p", 0, 1), begun_s)
        if ended_s is not None:
            store.see_offer(b"", ended_s)

    return view


def notes(begun_s, healed_s):
    fault = FaultNote(1, "kill_leader", "staging", begun_s, healed=False)
    return (fault, replace(fault, at_s=healed_s, healed=True)) if healed_s else (fault,)


@pytest.mark.parametrize(
    ("begun_ago_s", "ended_ago_s", "fault_ago_s", "healed_ago_s", "stuck"),
    [
        (PLAN_S - 5, None, None, None, False),
        (PLAN_S + 5, None, None, None, True),
        (PLAN_S + 5, 10, None, None, False),
        (PLAN_S + 20, None, PLAN_S + 15, PLAN_S + 5, True),
        (PLAN_S + 20, None, PLAN_S + 15, 5, False),
        (PLAN_S + 20, None, PLAN_S + 15, None, False),
    ],
    ids=["young", "old", "old but over", "healed long ago", "healed just now", "fault under way"],
)
def test_a_plan_must_end_in_time_after_its_fault_was_healed(
    begun_ago_s, ended_ago_s, fault_ago_s, healed_ago_s, stuck
):
    now_s = time.monotonic()
    given = [ago and now_s - ago for ago in (begun_ago_s, ended_ago_s, fault_ago_s, healed_ago_s)]
    told = () if fault_ago_s is None else notes(given[2], given[3])
    assert judged(right_step(0), notes=told, view=plan_from(*given[:2]))[0] == ({STUCK: 1} if stuck else {})


# --- the store ----------------------------------------------------------------------------------------------------


def test_offers_are_told_apart_by_how_they_ended():
    view = StoreView()
    for at_s, (plan, wave, term) in enumerate((("a", 0, 1), ("a", 1, 1), ("a", 1, 2), ("b", 0, 2)), start=1):
        view.see_offer(offer_bytes(plan, wave, term), float(at_s))
    view.see_offer(b"", 9.0)
    view.refused.add("b/0@2")
    ours, theirs = Pipe()
    judge = Judge(PLAN, theirs)
    judge._watch.view = view
    fields = [{"switched": key, "switched_s": 0.0} for key in ("a/0@1", "a/1@2")]
    judge.steps([right_step(number, rank0=field) for number, field in enumerate(fields)])
    tally = judge.tally()
    assert (tally.waves, tally.refused, tally.aborted) == (2, 1, 1)
    assert view.plans["a"].ended_s == 4.0
    ours.close()


def test_what_cannot_be_read_is_no_offer():
    view = StoreView()
    for raw in (b"", b"{", b'{"body": 3}', b'{"body": {"plan_id": "p", "wave": "x", "term": 1}}'):
        view.see_offer(raw, 1.0)
    assert view.offers == {}


def test_a_judge_that_can_no_longer_read_the_store_says_so_instead_of_counting_nothing():
    ours, theirs = Pipe()
    judge = Judge(PLAN, theirs)

    def broken():
        raise ValueError("not a number")

    judge._watch._look = broken
    judge._watch._run()
    with pytest.raises(RuntimeError, match="can no longer read the store"):
        judge.tick()
    ours.close()


def test_a_judge_that_did_not_come_to_its_end_has_judged_nothing(tmp_path):
    process = JudgeProcess(PLAN, tmp_path / "judge.log")
    process.pipe.send(replace(right_step(0), parts={}))
    with pytest.raises(ChaosError, match="nothing is judged"):
        process.end()
    process.pipe.close()
