"""The recorder: totals only grow, and bad input is refused by name without an exception."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_examples import GOOD, digests, pool, recorder, spread, taken, totals_of

from collectors import (
    NO_MAP_DIGEST,
    CollectorError,
    FactsError,
    Kind,
    Phase,
    Recorder,
)
from collectors.checks import MAX_STEP_COUNT
from collectors.digests import live_map_digest

# --- totals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
@given(tokens=st.lists(st.integers(0, 50), min_size=1, max_size=12), cuts=st.sets(st.integers(0, 11)))
def test_totals_are_the_sum_of_all_steps_wherever_snapshots_fall(kind, tokens, cuts):
    """Running totals do not depend on when they are read, and never fall."""
    rec = recorder(kind)
    seen = [np.zeros(rec.facts.width(kind), dtype=np.int64)]
    for step, count in enumerate(tokens):
        rec.record_step(step, Phase.DECODE, spread(kind, count), count)
        if step in cuts:
            seen.append(totals_of(taken(rec)).counts[0])
    last = totals_of(taken(rec))
    assert last.counts.tolist() == sum(spread(kind, count) for count in tokens).tolist()
    assert (last.tokens, last.steps) == (sum(tokens), len(tokens))
    assert all(
        (after >= before).all() for before, after in zip(seen, [*seen[1:], last.counts[0]], strict=True)
    )
    assert not rec.refused


def test_the_caller_may_reuse_its_buffer():
    """Neither totals nor samples are a view of the engine's counters."""
    rec = recorder()
    buffer = spread(Kind.ROUTED, 3)
    expected = buffer.tolist()
    rec.record_step(0, Phase.DECODE, buffer, 3)
    buffer[:] = 0
    frame = rec.snapshot(0)
    rec.record_step(1, Phase.DECODE, spread(Kind.ROUTED, 3), 3)
    assert totals_of(frame).counts.tolist() == frame.samples[0].counts.tolist() == expected


def test_headers_say_who_speaks():
    """Identity, sequence, step, age and live digest are the rank's own."""
    now = [10.0]
    rec = recorder(Kind.ROUTED_SLOTS, rank=1, incarnation=5, stride=2, scope_copies=3, clock=lambda: now[0])
    rec.record_step(8, Phase.DECODE, spread(Kind.ROUTED_SLOTS, 1), 1)
    now[0] = 12.5
    first, second = rec.snapshot(4).header, rec.snapshot(6).header
    assert (first.pool, first.rank, first.ranks, first.kind) == ("main", 1, 2, Kind.ROUTED_SLOTS)
    assert (first.incarnation, first.run_id, first.group_step, first.age_ms) == (5, 7, 8, 2500)
    assert (first.stride, first.scope_copies, first.live_digest) == (2, 3, live_map_digest(digests(101, 102)))
    assert (first.seq, first.term_seen, second.seq, second.term_seen) == (0, 4, 1, 6)


def test_logical_counts_need_no_map():
    """A rank that does not know its map counts logical ids; its header says so."""
    rec = Recorder(pool(), 0, Kind.ROUTED)
    assert rec.register(7, -1)
    assert rec.snapshot(0).header.live_digest == NO_MAP_DIGEST


def test_two_lives_of_a_rank_differ():
    """An incarnation is drawn for each recorder."""
    lives = {Recorder(pool(), 0, Kind.ROUTED).incarnation for _ in range(20)}
    assert len(lives) == 20


def test_col_10_phases_are_kept_apart():
    """Prefill and decode are separate series; only their sum mixes them."""
    facts = pool(model_layers=(0,), top_k=1)
    rec = recorder(facts=facts)
    rec.record_step(0, Phase.PREFILL, [[9000, 50, 50, 50]], 9150)
    rec.record_step(1, Phase.DECODE, [[10, 20, 30, 900]], 960)
    frame = taken(rec)
    decode = totals_of(frame, Phase.DECODE).counts[0]
    assert (int(decode.argmax()), decode.max() / decode.sum()) == (3, 0.9375)
    assert sum(t.counts[0] for t in frame.totals).tolist() == [9010, 70, 80, 950]
    assert [(t.tokens, t.steps) for t in frame.totals] == [(9150, 1), (960, 1)]


def test_col_05_the_scope_is_declared_so_that_copies_divide_exactly():
    """Eight ranks that report the same tokens say so; the sum divided once gives the counts, without rounding."""
    facts = pool(ranks=8, slots_per_rank=1, model_layers=(0,), top_k=1)
    frames = []
    for rank in range(8):
        rec = recorder(facts=facts, rank=rank, scope_copies=8)
        rec.record_step(0, Phase.DECODE, [[7, 16, 0, 33]], 56)
        frames.append(taken(rec))
    assert {f.header.scope_copies for f in frames} == {8}
    total = sum(totals_of(f).counts[0] for f in frames)
    assert (total % 8 == 0).all()
    assert (total // 8).tolist() == [7, 16, 0, 33]


def test_col_04_counts_that_keep_only_local_experts_are_refused():
    """Tokens sent to other ranks belong to the counts of the rank that routed them."""
    facts = pool(model_layers=(0,), slots_per_rank=2)
    full = [[[2, 2, 1, 1]], [[1, 1, 1, 1]]]
    whole = []
    for rank, (counts, tokens) in enumerate(zip(full, (3, 2), strict=True)):
        rec = recorder(facts=facts, rank=rank)
        rec.record_step(0, Phase.DECODE, counts, tokens)
        whole.append(totals_of(taken(rec)).counts[0])
    assert sum(whole).sum() == 10
    local_only = recorder(facts=facts)
    local_only.record_step(0, Phase.DECODE, [[2, 2, 0, 0]], 3)
    assert local_only.refused == {"totals_mismatch": 1}
    assert "expected 3 tokens x top-2 = 6" in local_only.last_refusal


def test_col_11_a_stage_without_moe_layers_reports_an_empty_frame():
    """A pipeline stage with no expert layer records, samples and publishes without a refusal."""
    facts = pool(model_layers=())
    rec = recorder(facts=facts)
    rec.record_step(0, Phase.DECODE, np.zeros((0, 4), dtype=np.int64), 6)
    rec.skip_step(1)
    frame = taken(rec)
    assert not rec.refused
    assert frame.layer_digests.shape == (0,)
    assert totals_of(frame).counts.shape == (0, 4)
    assert [s.group_step for s in frame.samples] == [0, 1]


# --- refusals -----------------------------------------------------------------------------------------------------


def with_first(value, dtype):
    counts = GOOD.astype(dtype)
    counts[0, 0] = value
    return counts


@pytest.mark.parametrize(
    ("reason", "counts", "tokens"),
    [
        ("negative", with_first(-1, np.int64), 4),
        ("negative", with_first(-3.0, np.float64), 4),
        ("not_finite", with_first(np.nan, np.float64), 4),
        ("not_finite", with_first(np.inf, np.float32), 4),
        ("not_whole", with_first(1.5, np.float64), 4),
        ("overflow", with_first(MAX_STEP_COUNT + 1, np.int64), 4),
        ("overflow", with_first(2**63, np.uint64), 4),
        ("overflow", with_first(1e300, np.float64), 4),
        ("wrong_shape", GOOD[:1], 4),
        ("wrong_shape", 5, 4),
        ("wrong_type", GOOD.astype(str), 4),
        ("wrong_type", None, 4),
        ("internal", [[1, 2], [3]], 4),
        ("totals_mismatch", GOOD, 5),
        ("one_layer_only", GOOD * np.array([[1], [0]]), 4),
        ("bad_tokens", GOOD, -1),
        ("bad_tokens", GOOD, 4.0),
        ("bad_tokens", GOOD, None),
        ("bad_tokens", GOOD, 2**63),
    ],
)
def test_bad_counts_are_refused_by_name_and_change_nothing(reason, counts, tokens):
    """No exception, no wrap-around, one count of the reason, and a sentence."""
    rec = recorder()
    rec.record_step(0, Phase.DECODE, GOOD, 4)
    before = taken(rec)
    rec.record_step(1, Phase.DECODE, counts, tokens)
    after = taken(rec)
    assert rec.refused == {reason: 1}
    assert rec.last_refusal
    assert totals_of(after).counts.tolist() == totals_of(before).counts.tolist()
    assert (totals_of(after).tokens, totals_of(after).steps, after.samples) == (4, 1, ())
    assert after.header.group_step == 0


@pytest.mark.parametrize(
    ("reason", "group_step", "phase"),
    [
        ("bad_step", -1, Phase.DECODE),
        ("bad_step", 1.0, Phase.DECODE),
        ("bad_step", None, Phase.DECODE),
        ("bad_step", 2**62, Phase.DECODE),
        ("stale_step", 3, Phase.DECODE),
        ("stale_step", 2, Phase.DECODE),
        ("bad_phase", 4, 9),
        ("bad_phase", 4, "decode"),
    ],
)
def test_bad_steps_are_refused_by_name(reason, group_step, phase):
    """A step counts once, in order, with a phase."""
    rec = recorder()
    rec.record_step(3, Phase.DECODE, GOOD, 4)
    rec.record_step(group_step, phase, GOOD, 4)
    assert rec.refused == {reason: 1}
    assert totals_of(rec.snapshot(0)).steps == 1


def test_whole_numbers_of_any_type_are_counted():
    """Engines hand over int32, unsigned and float counters; whole values are what counts."""
    rec = recorder()
    for step, dtype in enumerate((np.int32, np.uint16, np.float32, np.int64)):
        rec.record_step(step, 2, GOOD.astype(dtype), np.int32(4))
    rec.record_step(4, Phase.DECODE, np.asfortranarray(GOOD), 4)
    rec.record_step(5, Phase.DECODE, GOOD.tolist(), 4)
    assert not rec.refused
    assert totals_of(taken(rec)).counts.tolist() == (GOOD * 6).tolist()


def test_a_total_that_would_overflow_is_refused_before_it_does():
    """Totals are 64-bit and never wrap around."""
    rec = recorder(Kind.RECEIVED_SLOTS)
    rec._largest_possible = 2**63 - 1 - 5
    rec.record_step(0, Phase.DECODE, spread(Kind.RECEIVED_SLOTS, 3), 3)
    rec.record_step(1, Phase.DECODE, spread(Kind.RECEIVED_SLOTS, 6), 6)
    assert rec.refused == {"total_overflow": 1}
    assert totals_of(taken(rec)).tokens == 3


def test_received_slots_need_not_conserve_on_one_rank():
    """What a rank's slots receive is not what it routed; the group proves it together."""
    rec = recorder(Kind.RECEIVED_SLOTS)
    rec.record_step(0, Phase.DECODE, [[0, 0, 0], [9, 0, 1]], 0)
    assert not rec.refused
    assert totals_of(taken(rec)).counts.tolist() == [[0, 0, 0], [9, 0, 1]]


def test_warm_up_before_registration_is_refused():
    """Counts mean nothing before the group gave its run, and there is nothing to publish."""
    rec = Recorder(pool(), 0, Kind.ROUTED)
    rec.record_step(0, Phase.DECODE, GOOD, 4)
    rec.skip_step(1)
    assert rec.refused == {"not_registered": 2}
    with pytest.raises(CollectorError, match="call register"):
        rec.snapshot(0)


@pytest.mark.parametrize("wrong_us", [-1.0, float("nan"), float("inf"), "fast"])
def test_a_bad_time_is_left_out_and_the_counts_stay(wrong_us):
    """A time that cannot be is counted as refused and absent in the sample."""
    rec = recorder()
    rec.record_step(0, Phase.DECODE, GOOD, 4, step_us=wrong_us, a2a_us=3)
    sample = taken(rec).samples[0]
    assert (sample.step_us, sample.a2a_us, rec.refused) == (None, 3.0, {"bad_time": 1})


@pytest.mark.parametrize(
    ("rank", "options"),
    [(2, {}), (-1, {}), (0, {"stride": 0}), (0, {"scope_copies": 0}), (0, {"sample_capacity": 0})],
)
def test_a_recorder_of_impossible_facts_is_not_made(rank, options):
    """Set-up mistakes are named at set-up."""
    with pytest.raises(FactsError):
        Recorder(pool(), rank, Kind.ROUTED, **options)


def test_slots_that_cannot_hold_the_experts_are_refused_with_what_to_do():
    """The facts themselves say how many slots would do."""
    with pytest.raises(FactsError, match="at least 2 slots per rank"):
        pool(slots_per_rank=1)


@pytest.mark.parametrize("call", ["switch", "begin_flight", "end_flight"])
def test_layers_that_are_not_there_are_refused(call):
    """A position outside the rows changes nothing."""
    rec = recorder(Kind.ROUTED_SLOTS)
    getattr(rec, call)({2: 9} if call == "switch" else [2])
    getattr(rec, call)({-1: 9} if call == "switch" else [-1])
    assert rec.refused == {"bad_layer": 2}
    assert rec.snapshot(0).header.layers_in_flight == ()


@pytest.mark.parametrize(
    ("reason", "run_id", "group_step", "layer_digests"),
    [
        ("bad_digests", 7, -1, digests(1)),
        ("bad_digests", 7, -1, digests(1, NO_MAP_DIGEST)),
        ("bad_digests", 7, -1, None),
        ("bad_run", -1, -1, digests(1, 2)),
        ("bad_run", 2**64, -1, digests(1, 2)),
        ("bad_run", 7, -2, digests(1, 2)),
    ],
)
def test_a_bad_registration_is_refused(reason, run_id, group_step, layer_digests):
    """Counts by slot need a digest for every layer, and a run needs the group's numbers."""
    rec = Recorder(pool(), 0, Kind.ROUTED_SLOTS)
    assert not rec.register(run_id, group_step, layer_digests)
    assert (rec.registered, rec.refused) == (False, {reason: 1})
