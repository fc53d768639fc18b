"""Rules of the judge about shares: all ranks use the same, each expert's add up to one, and its tokens go where they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chaos_world import MEMBERS, ROWS, RUN, even, judged, judgement, reported, right_step
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.digests import layer_map_digest
from collectors.shares import all_shares
from eplb.chaos.judge_shares import Arrivals, unsound_shares
from eplb.chaos.judge_steps import DIVERGENCES, row_digest
from eplb.chaos.load import shared_out, tokens_of
from eplb.chaos.messages import FaultNote, GroupStep
from eplb.chaos.setup import EXPERTS, LAYERS, SLOTS_PER_RANK
from eplb.demo.dispatch import Dispatcher, Source

SLOTS = RUN.facts.slots


def tilted(first):
    """Shares of the start map: ``first`` for the lower copy of each expert that has two."""
    copies = np.bincount(ROWS[0])[ROWS[0]]
    each = np.where(copies == 1, 1.0, np.where(np.arange(SLOTS) < EXPERTS, first, 1.0 - first))
    return all_shares(ROWS, np.tile(each, (LAYERS, 1)))


TILTED = tilted(0.7)

# --- one step -----------------------------------------------------------------------------------------------------


def test_a_right_step_under_shares_counts_nothing():
    assert judged(right_step(0, shares=TILTED), right_step(1, shares=TILTED)) == ({}, [])


def test_a_rank_with_other_shares_diverges_from_the_others_and_from_what_its_agent_reports():
    """An engine that kept its old shares: its agent reports the new ones, like all the others."""
    counts, findings = judged(right_step(0, shares=TILTED, rank2={"shares": even(ROWS)}))
    assert counts == {DIVERGENCES: 2}
    assert "ranks 2 and 0 served one map with other shares in rows [0, 1, 2, 3]" in findings[0].sentence


def test_a_group_whose_engines_did_not_take_shares_over_diverges_from_what_its_agents_report():
    told = {"digests": reported(ROWS, TILTED)}
    assert judged(right_step(0, rank0=told, rank1=told, rank2=told, rank3=told))[0] == {DIVERGENCES: 4}


@pytest.mark.parametrize("wrong", [0.0, 0.2, -0.3, np.nan])
def test_shares_of_an_expert_that_do_not_add_up_to_one_diverge(wrong):
    shares = TILTED.copy()
    shares[1, EXPERTS + 3] = wrong
    step = right_step(0)
    parts = {rank: replace(part, shares=shares) for rank, part in step.parts.items()}
    found = unsound_shares(replace(step, parts=parts), EXPERTS, SLOTS_PER_RANK)
    assert [(word, weight) for word, weight, _ in found] == [(DIVERGENCES, 1)] * 4
    assert all("row 1: shares of experts do not add up to one: 3 " in sentence for _, _, sentence in found)


def test_a_share_that_was_left_on_a_rank_that_is_gone_diverges():
    """The group goes on without rank 2 and does not deal its part anew: the rest of each expert's shares is less than one."""
    members = (0, 1, 3)
    rows = ROWS.copy()
    rows[:, 2 * SLOTS_PER_RANK : 3 * SLOTS_PER_RANK] = -1
    step = right_step(0)
    parts = {rank: replace(step.parts[rank], rows=rows, shares=TILTED) for rank in members}
    found = unsound_shares(replace(step, members=members, parts=parts), EXPERTS, SLOTS_PER_RANK)
    assert len(found) == len(members) * LAYERS


@settings(max_examples=50)
@given(st.lists(st.integers(0, 1_000_000), min_size=3, max_size=3), st.integers(0, 99))
def test_the_judges_own_digest_is_the_one_that_sound_agents_report(cuts, seed):
    row = np.random.default_rng(seed).permutation(np.repeat(np.arange(4), 4)).astype(np.int32)
    parts = np.diff([0, *sorted(cuts), 1_000_000]) / 1e6
    shares = np.zeros(len(row))
    for expert in range(4):
        shares[row == expert] = parts
    for given_shares in (shares, np.full(len(row), 0.25)):
        assert row_digest(7, row, given_shares) == layer_map_digest(7, row, given_shares)


# --- where tokens go ----------------------------------------------------------------------------------------------


def stretch(steps, shares, told=None, *, run_id=7):
    """Steps of one life: every rank deals by its ``shares`` (one array, or one a rank) and says that it does by ``told``."""
    each = dict.fromkeys(MEMBERS, shares) if isinstance(shares, np.ndarray) else shares
    dispatchers = {rank: dispatcher(rank, each[rank]) for rank in MEMBERS}
    like = right_step(0, shares=each[0] if told is None else told)
    for number in range(steps):
        inputs = shared_out(tokens_of(3, number, 96), MEMBERS)
        arrived = sum(dealt(dispatchers[rank], tokens) for rank, tokens in inputs.items())
        by_rank = arrived.reshape(LAYERS, len(MEMBERS), SLOTS_PER_RANK)
        parts = {
            rank: replace(part, received=by_rank[:, rank], run_id=run_id) for rank, part in like.parts.items()
        }
        yield GroupStep(number, run_id, MEMBERS, inputs, parts, 0.0)


def dispatcher(rank, shares):
    made = Dispatcher("weighted", Source(rank, 4, 2, SLOTS_PER_RANK), EXPERTS, LAYERS)
    for layer, row in enumerate(ROWS):
        made.rebuild(layer, row, shares[layer].tolist())
    return made


def dealt(by, tokens):
    picks = RUN.routing.picks_of(tokens.sequences, tokens.positions)
    return np.stack(
        [
            np.bincount(by.choose(layer, picks[:, layer]).ravel(), minlength=SLOTS)
            for layer in range(picks.shape[1])
        ]
    )


def findings(*stretches):
    arrivals = Arrivals()
    return [found for steps in stretches for step in steps for found in arrivals.check(step)]


@pytest.mark.parametrize("first", [0.0, 0.013, 0.618])
def test_tokens_that_go_where_the_shares_say_are_right(first):
    shares = tilted(first)
    assert findings(stretch(120, shares), stretch(20, even(ROWS)), stretch(20, shares, run_id=8)) == []


def test_a_group_that_deals_evenly_under_shares_is_found_once():
    found = findings(stretch(60, even(ROWS), told=TILTED))
    assert [(word, weight) for word, weight, _ in found] == [(DIVERGENCES, 1)]
    assert "its share is 0." in found[0][2]


def test_one_rank_of_four_that_deals_by_its_old_shares_is_found_even_if_it_says_otherwise():
    by_rank = {**dict.fromkeys(MEMBERS, TILTED), 2: even(ROWS)}
    assert len(findings(stretch(150, by_rank, told=TILTED))) == 1


def test_what_arrived_under_another_map_or_in_another_life_does_not_count():
    """Each stretch is too short to tell alone, together they are not."""
    short = [stretch(3, even(ROWS), told=tilted(0.6), run_id=run_id) for run_id in range(8)]
    assert findings(*short) == []
    assert findings(stretch(24, even(ROWS), told=tilted(0.6))) != []


# --- waves of shares ----------------------------------------------------------------------------------------------


def test_a_switch_that_leaves_all_rows_as_they_are_is_a_wave_of_shares_alone():
    moved = ROWS.copy()
    moved[1, [0, 1]] = moved[1, [1, 0]]
    steps = [right_step(0), switched(right_step(1, shares=TILTED), "a/0@1")]
    steps.append(switched(right_step(2, rows=moved, shares=TILTED), "b/0@1"))
    assert waves(steps) == (2, 1)


def test_a_wave_of_shares_that_came_under_a_fault_is_counted_for_itself():
    fault = FaultNote(1, "link_slow", "rank 1", 0.0, healed=False)
    steps = [right_step(0), switched(right_step(1, shares=TILTED), "a/0@1")]
    counted = [judgement(*steps, notes=notes)[0].shares_faulted for notes in ((), (fault,))]
    assert counted == [0, 1]
    over = (fault, replace(fault, healed=True))
    assert judgement(*steps, notes=over)[0].shares_faulted == 0


def test_a_switch_in_the_first_step_of_a_life_is_not_taken_for_one_of_shares():
    """What the group served before is not known then."""
    later = switched(right_step(1, shares=TILTED), "a/0@1")
    assert waves([right_step(0), replace(later, run_id=8)]) == (1, 0)


def switched(step, key):
    parts = {rank: replace(part, switched=key) for rank, part in step.parts.items()}
    return replace(step, parts=parts)


def waves(steps):
    tally, _ = judgement(*steps)
    return tally.waves, tally.shares_only
