"""The recorder: samples are bounded, layers in flight and switches lose no token, and the engine never waits or fails for it."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_examples import GOOD, PHYSICAL, digests, pool, recorder, spread, taken, totals_of

from collectors import (
    NO_MAP_DIGEST,
    Kind,
    Phase,
    PoolFacts,
)
from collectors.digests import live_map_digest
from collectors.recorder import PENDING_STEPS

# --- samples ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
def test_sampled_steps_are_those_that_the_stride_divides(kind):
    """All ranks choose the same steps from their number alone, wherever they began."""
    rec = recorder(kind, stride=4)
    for step in range(2, 14):
        rec.record_step(step, Phase.DECODE, spread(kind, step), step, step_us=float(step))
    samples = taken(rec).samples
    assert [s.group_step for s in samples] == [4, 8, 12]
    assert [s.tokens for s in samples] == [4, 8, 12]
    assert samples[1].counts.tolist() == spread(kind, 8).tolist()
    expected = NO_MAP_DIGEST if kind is Kind.ROUTED else live_map_digest(digests(101, 102))
    assert {s.live_digest for s in samples} == {expected}
    assert samples[2].step_us == 12.0


def test_samples_are_sent_once():
    """A sample belongs to one frame; totals to all."""
    rec = recorder()
    rec.record_step(0, Phase.DECODE, GOOD, 4)
    assert len(rec.snapshot(0).samples) == 1
    assert rec.snapshot(0).samples == ()


def test_samples_are_bounded_and_the_oldest_goes_first():
    """A full ring drops its oldest sample and counts it; totals lose nothing."""
    rec = recorder(sample_capacity=3)
    for step in range(10):
        rec.record_step(step, Phase.DECODE, GOOD, 4)
    frame = rec.snapshot(0)
    assert [s.group_step for s in frame.samples] == [7, 8, 9]
    assert rec.dropped == {"samples_full": 7}
    assert totals_of(frame).steps == 10


def test_samples_of_any_pool_fit_into_a_frame():
    """A full ring of a large pool still encodes."""
    facts = PoolFacts("big", 72, 9, 8, 512, 8, tuple(range(60)))
    rec = recorder(Kind.ROUTED_SLOTS, facts=facts, sample_capacity=10_000)
    counts = np.full((60, facts.slots), 8, dtype=np.int64)
    for step in range(80):
        rec.record_step(step, Phase(step % 3), counts, facts.slots)
    assert not rec.refused
    assert 1 < len(taken(rec).samples) < 80


@pytest.mark.parametrize("kind", [Kind.ROUTED, Kind.ROUTED_SLOTS])
def test_an_idle_rank_is_seen_in_every_sampled_step(kind):
    """Skipped steps advance the step, add nothing, and send a sample of zeros."""
    rec = recorder(kind, stride=2)
    rec.record_step(0, Phase.DECODE, spread(kind, 4), 4)
    before = totals_of(rec.snapshot(0))
    for step in (1, 2, 3):
        rec.skip_step(step, Phase.DECODE)
    frame = taken(rec)
    assert frame.header.group_step == 3
    assert totals_of(frame).counts.tolist() == before.counts.tolist()
    assert (totals_of(frame).tokens, totals_of(frame).steps) == (4, 1)
    assert [(s.group_step, s.tokens, int(s.counts.sum())) for s in frame.samples] == [(2, 0, 0)]


def test_an_idle_rank_does_not_deny_what_its_slots_received():
    """For received slots a skipped step is no sample; an idle rank records what it received with no tokens."""
    rec = recorder(Kind.RECEIVED_SLOTS)
    rec.skip_step(0)
    rec.record_step(1, Phase.DECODE, [[1, 0, 2], [0, 3, 0]], 0)
    frame = taken(rec)
    assert [(s.group_step, s.tokens, int(s.counts.sum())) for s in frame.samples] == [(1, 0, 6)]
    assert totals_of(frame).tokens == 0


def test_an_idle_rank_still_sends_frames():
    """A rank without a token sends frames of no totals: seen, not missing."""
    rec = recorder()
    frame = taken(rec)
    assert (frame.totals, frame.samples, frame.header.group_step) == ((), (), -1)


def test_samples_of_an_earlier_run_are_dropped():
    """Samples of different runs never meet; totals of the same life go on."""
    rec = recorder()
    rec.record_step(5, Phase.DECODE, GOOD, 4)
    assert rec.register(8, -1, digests(101, 102))
    rec.record_step(0, Phase.DECODE, GOOD, 4)
    frame = taken(rec)
    assert (frame.header.run_id, frame.header.group_step) == (8, 0)
    assert [s.group_step for s in frame.samples] == [0]
    assert totals_of(frame).steps == 2
    assert rec.dropped == {"samples_old_run": 1}


# --- layers in flight and switches --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", PHYSICAL)
def test_physical_counts_of_layers_in_flight_are_dropped(kind):
    """Slot ids between two maps mean nothing: their rows are left out and counted, the others stay."""
    rec = recorder(kind)
    rec.record_step(0, Phase.DECODE, spread(kind, 6), 6)
    rec.begin_flight([1])
    rec.record_step(1, Phase.DECODE, spread(kind, 6), 6)
    frame = taken(rec)
    rec.end_flight([1])
    rec.record_step(2, Phase.DECODE, spread(kind, 6), 6)
    row = spread(kind, 6)[0]
    assert totals_of(frame).counts.tolist() == [(row * 2).tolist(), row.tolist()]
    assert frame.header.layers_in_flight == (1,)
    assert [s.group_step for s in frame.samples] == [0]
    assert rec.dropped == {"rows_in_flight": 1, "samples_in_flight": 1}
    after = taken(rec)
    assert totals_of(after).counts.tolist() == [(row * 3).tolist(), (row * 2).tolist()]
    assert (after.header.layers_in_flight, [s.group_step for s in after.samples]) == ((), [2])
    assert (totals_of(after).tokens, totals_of(after).steps) == (18, 3)


def test_logical_counts_of_layers_in_flight_are_kept():
    """Logical ids mean the same under every map; only the header tells of the flight."""
    rec = recorder()
    rec.begin_flight([0, 1])
    rec.record_step(0, Phase.DECODE, GOOD, 4)
    rec.switch({0: 201, 1: 202})
    frame = taken(rec)
    assert totals_of(frame).counts.tolist() == GOOD.tolist()
    assert len(frame.samples) == 1
    assert frame.closed == ()
    assert frame.layer_digests.tolist() == [NO_MAP_DIGEST, NO_MAP_DIGEST]
    assert frame.header.live_digest == live_map_digest(digests(201, 202))
    assert not rec.dropped


@pytest.mark.parametrize("kind", PHYSICAL)
def test_a_switch_closes_the_rows_and_starts_them_at_zero(kind):
    """The final totals of a layer travel under the old map digest, its new row under the new one."""
    rec = recorder(kind, closed_keep_frames=2)
    rec.record_step(0, Phase.DECODE, spread(kind, 6), 6)
    rec.record_step(1, Phase.PREFILL, spread(kind, 9), 9)
    rec.switch({1: 202})
    rec.record_step(2, Phase.DECODE, spread(kind, 3), 3)
    frame = taken(rec)
    closed = {(c.layer, c.phase, c.digest): c.counts.tolist() for c in frame.closed}
    assert closed == {
        (1, Phase.DECODE, 102): spread(kind, 6)[1].tolist(),
        (1, Phase.PREFILL, 102): spread(kind, 9)[1].tolist(),
    }
    decode = totals_of(frame)
    assert decode.counts.tolist() == [
        (spread(kind, 6) + spread(kind, 3))[0].tolist(),
        spread(kind, 3)[1].tolist(),
    ]
    assert (decode.tokens, decode.steps) == (9, 2)
    assert totals_of(frame, Phase.PREFILL).counts[1].tolist() == [0] * rec.facts.width(kind)
    assert frame.layer_digests.tolist() == [101, 202]
    assert frame.samples[-1].live_digest == live_map_digest(digests(101, 202))
    assert [len(taken(rec).closed) for _ in range(3)] == [2, 0, 0]


def test_a_frame_that_was_lost_does_not_use_up_closed_rows():
    """Closed rows are repeated in as many frames as reached the store."""
    rec = recorder(Kind.ROUTED_SLOTS, closed_keep_frames=1)
    rec.record_step(0, Phase.DECODE, spread(Kind.ROUTED_SLOTS, 6), 6)
    rec.switch({0: 201, 1: 202})
    for _ in range(5):
        lost = rec.snapshot(0)
        assert len(lost.closed) == 2
        rec.undelivered(lost)
    assert len(rec.snapshot(0).closed) == 2
    assert rec.snapshot(0).closed == ()


def test_a_layer_that_returns_to_its_map_takes_its_row_up_again():
    """Per map digest the published value never falls, so that a rollback is not counted twice or lost."""
    rec = recorder(Kind.ROUTED_SLOTS)
    counts = spread(Kind.ROUTED_SLOTS, 6)
    for step, digest in enumerate((101, 201, 101, 201)):
        rec.switch({0: digest})
        rec.record_step(step, Phase.DECODE, counts, 6)
        frame = rec.snapshot(0)
    values = {c.digest: c.counts.tolist() for c in frame.closed}
    assert values == {101: (counts[0] * 2).tolist()}
    assert totals_of(frame).counts[0].tolist() == (counts[0] * 2).tolist()
    assert frame.layer_digests[0] == 201


def test_closed_rows_are_bounded():
    """A map that switches without end drops its oldest closed rows and counts them."""
    facts = pool(ranks=64, slots_per_rank=4096, model_layers=(0,), top_k=1)
    rec = recorder(Kind.ROUTED_SLOTS, facts=facts)
    counts = np.zeros((1, facts.slots), dtype=np.int64)
    counts[0, 0] = 1
    for step in range(8):
        rec.record_step(step, Phase.DECODE, counts, 1)
        rec.switch({0: 1000 + step})
    kept = rec.snapshot(0).closed
    assert kept[-1].digest == 1006
    assert len(kept) + rec.dropped["closed_full"] == 8
    assert rec.dropped["closed_full"] > 0


def test_a_new_run_under_another_map_closes_the_rows():
    """Registration with other digests is a switch for the layers that differ."""
    rec = recorder(Kind.ROUTED_SLOTS)
    rec.record_step(0, Phase.DECODE, spread(Kind.ROUTED_SLOTS, 6), 6)
    rec.register(8, -1, digests(101, 302))
    frame = rec.snapshot(0)
    assert [(c.layer, c.digest) for c in frame.closed] == [(1, 102)]
    assert frame.layer_digests.tolist() == [101, 302]


@pytest.mark.parametrize("kind", PHYSICAL)
@given(data=st.data())
def test_every_token_is_in_one_row_of_one_map(kind, data):
    """Over switches, flights and snapshots: closed plus running counts = recorded minus those in flight."""
    rec = recorder(kind, closed_keep_frames=1000)
    in_flight: set[int] = set()
    recorded = np.zeros(2, dtype=np.int64)
    actions = st.lists(st.sampled_from(["step", "begin", "end", "switch", "snapshot"]), max_size=25)
    for step, action in enumerate(data.draw(actions)):
        layer = data.draw(st.integers(0, 1))
        if action == "step":
            rec.record_step(step, Phase.DECODE, spread(kind, 5), 5)
            recorded += [0 if at in in_flight else 10 for at in range(2)]
        elif action == "begin":
            rec.begin_flight([layer])
            in_flight.add(layer)
        elif action == "end":
            rec.end_flight([layer])
            in_flight.discard(layer)
        elif action == "switch":
            rec.switch({layer: data.draw(st.integers(300, 304))})
        else:
            rec.snapshot(0)
    frame = taken(rec)
    keys = [(c.layer, c.phase, c.digest) for c in frame.closed]
    running = [(layer, Phase.DECODE, int(digest)) for layer, digest in enumerate(frame.layer_digests)]
    assert len({*keys, *running}) == len(keys) + len(running)
    counted = sum((t.counts.sum(axis=1) for t in frame.totals), np.zeros(2, dtype=np.int64))
    for row in frame.closed:
        counted[row.layer] += row.counts.sum()
    assert counted.tolist() == recorded.tolist()


# --- never hurts the engine ---------------------------------------------------------------------------------------


def test_recording_does_not_wait_for_a_snapshot():
    """While a snapshot holds the lock, steps are put aside and counted once it is free, in order."""
    rec = recorder()
    rec.record_step(0, Phase.DECODE, GOOD, 4)
    buffer = GOOD.copy()
    with rec._lock:
        rec.record_step(1, Phase.DECODE, buffer, 4)
        rec.skip_step(2, Phase.DECODE)
        buffer[:] = 0
    frame = taken(rec)
    assert [(s.group_step, s.tokens) for s in frame.samples] == [(0, 4), (1, 4), (2, 0)]
    assert totals_of(frame).counts.tolist() == (GOOD * 2).tolist()


def test_steps_put_aside_are_bounded():
    """Steps beyond the limit are refused as busy, not kept without bound."""
    rec = recorder()
    with rec._lock:
        for step in range(PENDING_STEPS + 3):
            rec.record_step(step, Phase.DECODE, GOOD, 4)
    assert rec.refused == {"busy": 3}
    assert totals_of(rec.snapshot(0)).steps == PENDING_STEPS


def test_snapshots_from_another_thread_see_whole_steps_only():
    """Totals, tokens and steps of a snapshot belong to the same step."""
    rec = recorder(sample_capacity=1)
    done = threading.Event()
    torn = []

    def whole(totals):
        return totals.counts.tolist() == (GOOD * totals.steps).tolist() and totals.tokens == 4 * totals.steps

    def read():
        while not done.is_set():
            torn.extend(t for t in rec.snapshot(0).totals if not whole(t))

    reader = threading.Thread(target=read)
    reader.start()
    steps = 3000
    for step in range(steps):
        rec.record_step(step, Phase.DECODE, GOOD, 4)
    done.set()
    reader.join()
    last = totals_of(rec.snapshot(0))
    assert not torn
    assert last.steps + rec.refused["busy"] == steps


class _Broken:
    """Counts whose conversion fails, like a tensor of a lost device."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("device lost")


def test_nothing_raises_into_the_engine():
    """Whatever the engine hands over, the answer is a counted refusal."""
    rec = recorder(Kind.ROUTED_SLOTS)
    rec.record_step(0, Phase.DECODE, _Broken(), 4)
    rec.begin_flight(["one"])
    rec.end_flight(None)
    rec.switch({0: -5})
    rec.switch(None)
    assert not rec.register("run", None, digests(1, 2))
    assert rec.refused == {"internal": 6}
    assert "device lost" not in rec.last_refusal
    frame = rec.snapshot(0)
    assert dataclasses.astuple(frame.header)[-2:] == (live_map_digest(digests(101, 102)), ())
    rec.record_step(1, Phase.DECODE, spread(Kind.ROUTED_SLOTS, 4), 4)
    assert totals_of(rec.snapshot(0)).counts.tolist() == spread(Kind.ROUTED_SLOTS, 4).tolist()
