"""Failures that others had in public, one test a case; the test's name begins with the case's id."""

from __future__ import annotations

import numpy as np
import pytest
from window_world import World, deliver, facts_of

from collectors.digests import layer_map_digests, live_map_digest
from collectors.facts import (
    NO_MAP_DIGEST,
    Frame,
    FrameHeader,
    Kind,
    Phase,
    PhaseTotals,
    PoolFacts,
    StepSample,
)
from collectors.frame import encode_frame
from collectors.keys import FRAME_FIELD, load_key
from collectors.recorder import Recorder
from eplb.assess import assess
from eplb.config import GateConfig
from eplb.decisions import Code
from eplb.gate import Rest, before_planning
from eplb.store.client import Store
from eplb.window import Window

NOW = 1_000_000


def frame_of(
    facts, rank, kind, counts, *, tokens=0, steps=1, seq=0, copies=1, phases=None, samples=(), digests=None
):
    """One young frame; ``counts`` [layers, width] of DECODE, or ``phases`` {phase: counts}."""
    by_phase = {Phase.DECODE: counts} if phases is None else phases
    digests = np.full(facts.layers, NO_MAP_DIGEST, dtype=np.uint64) if digests is None else digests
    totals = tuple(
        PhaseTotals(phase, steps, tokens, np.asarray(of, dtype=np.int64)) for phase, of in by_phase.items()
    )
    header = FrameHeader(facts.pool, rank, facts.ranks, kind, copies, rank + 1, 7, 0, seq, steps, 100, 1, 0)
    return Frame(header, digests, totals, (), tuple(samples))


def step_of(counts, tokens, step=0, digest=NO_MAP_DIGEST, phase=Phase.DECODE):
    return StepSample(step, phase, tokens, digest, np.asarray(counts, dtype=np.int64))


def one_layer(ranks, experts, slots_per_rank, top_k=2):
    return PoolFacts("p", ranks, 1, slots_per_rank, experts, top_k, (0,))


def test_win_03_sums_and_sizes_are_exact_beyond_32_bits():
    """WIN-03: 32 reports of 80,000,000 are 2,560,000,000, and a product of sizes is not negative."""
    facts = one_layer(32, 32, 1)
    window = Window(facts)
    for rank in range(32):
        window.ingest(NOW, 0, frame_of(facts, rank, Kind.ROUTED, [[80_000_000] + [0] * 31]))
    assert window.sums()[0, 0] == 2_560_000_000
    facts = PoolFacts("p", 32, 4, 9, 256, 8, tuple(range(58)))
    from eplb.window.size import window_size

    size = window_size(
        facts, Kind.ROUTED, phases=1, window_s=60, max_slices=10_240 * 7, publish_bytes_per_s=2e6
    )
    assert size.ring_bytes == 71_680 * 58 * 258 * 8 > 2**31


def test_win_04_ranks_that_did_not_report_are_missing_and_not_zero():
    """WIN-04: one rank of four gives no complete step, covers a quarter, and the gate plans nothing and names ranks 1, 2, 3."""
    facts = one_layer(4, 8, 2)
    window = Window(facts, Kind.ROUTED)
    counts = [[5, 3, 0, 0, 0, 0, 0, 0]]
    window.ingest(NOW, 0, frame_of(facts, 0, Kind.ROUTED, counts, tokens=4, samples=[step_of(counts, 4)]))
    view = window.view(NOW + 1)
    assert (view.coverage, view.ranks_seen, view.ranks_expected) == (0.25, 1, 4)
    assert view.stale_ranks == (1, 2, 3)
    assert view.slices == 0
    assert view.newest_age_s is None
    seen = assess(view, facts, live_digest=0, trigger_slices=3)
    verdict = before_planning(GateConfig(mode="auto"), seen, time_ms=NOW, rest=Rest())
    assert (verdict.passed, verdict.code) == (False, Code.LOW_COVERAGE)
    assert verdict.sentence.endswith("missing: 1, 2, 3")


@pytest.mark.redis
def test_win_05_an_entry_that_is_read_twice_counts_once_and_the_trimmed_one_is_lost(store_url):
    """WIN-05: a repeat is known by (rank, incarnation, number), the trimmed frame by the gap."""
    world = World(facts_of(ranks=1, experts=2), Kind.ROUTED)
    window = Window(world.facts)
    with Store(store_url, "p") as store:
        for _ in range(6):
            world.serve(tokens=[2])
            frame = world.publish(0)
            if frame.seq != 1:
                store.redis.xadd(load_key("p", 0), {FRAME_FIELD: frame.payload})
        entries = store.tail_load([0])
    for time_ms, node, payload in [*entries, entries[-1]]:
        window.ingest(time_ms, node, payload)
    assert (window.counters["lost"], window.counters["duplicates"]) == (1, 1)
    assert window.sums().sum() == 6 * 2 * 2 * world.facts.layers


def test_win_06_entries_without_a_frame_are_lost_and_the_reader_goes_on():
    """WIN-06: two ids without payload, then a good one."""
    world = World(facts_of(ranks=1, experts=2), Kind.ROUTED)
    world.serve(tokens=[3])
    world.publish(0), world.publish(0)
    third = world.publish(0)
    window = Window(world.facts)
    assert [window.ingest(NOW, 0, payload) for payload in (None, None, third.payload)] == [False, False, True]
    assert (window.counters["lost"], window.counters["frames"]) == (2, 1)


@pytest.mark.redis
def test_win_07_trimmed_entries_are_counted_as_lost(store_url):
    """WIN-07: five written, one read, two to four trimmed, the fifth read: lost 3 once newer frames have come."""
    world = World(facts_of(ranks=1, experts=2), Kind.ROUTED)
    window = Window(world.facts)
    with Store(store_url, "p") as store:
        for number in range(5):
            store.redis.xadd(
                load_key("p", 0), {FRAME_FIELD: world.publish(0).payload}, id=f"{NOW + number}-0"
            )
        store._cursors[0] = b"0-0"
        for time_ms, node, payload in store.tail_load([0], limit=1):
            window.ingest(time_ms, node, payload)
        store.redis.xtrim(load_key("p", 0), maxlen=1, approximate=False)
        for _ in range(3):
            store.redis.xadd(load_key("p", 0), {FRAME_FIELD: world.publish(0).payload})
        for time_ms, node, payload in store.tail_load([0]):
            window.ingest(time_ms, node, payload)
        assert store.backlog_ms([0]) == 0
    assert window.counters["lost"] == 3


def test_win_08_frames_trimmed_while_the_reader_was_down_are_counted_and_cost_no_tokens():
    """WIN-08: 2400 written, the last 100 kept: lost 2300 from the gaps, and the sums are whole."""
    world = World(facts_of(ranks=8, experts=8), Kind.ROUTED)
    window = Window(world.facts)
    deliver(window, world.publish_all())
    written = []
    for number in range(300):
        if number % 100 == 0:
            world.serve(tokens=[1] * 8)
        written += world.publish_all()
    deliver(window, written[-100:])
    assert len(written) == 2400
    assert window.counters["lost"] == 2300
    assert np.array_equal(window.sums(), sum(world.step_tokens.values()))
    view = window.view(world.time_ms)
    assert (view.complete_steps, view.quality) == (0, "predicted")


def test_win_09_ages_are_of_one_clock_and_never_negative():
    """WIN-09: a store whose clock stepped back behind its own entries gives age 0."""
    world = World(facts_of(ranks=1, experts=2), Kind.RECEIVED_SLOTS)
    world.serve(tokens=[2])
    window = Window(world.facts)
    world.add_maps(window)
    deliver(window, [world.publish(0)])
    view = window.view(world.time_ms - 10_000)
    assert (view.newest_age_s, view.stale_ranks, view.slices) == (0.0, (), 1)


def test_win_11_a_resized_pool_keeps_its_loads_and_plans_within_one_interval():
    """WIN-11: four ranks become six: tokens stay keyed by (layer, expert), ranks 4 and 5 are new and not missing."""
    before = World(facts_of(ranks=4, experts=8), Kind.RECEIVED_SLOTS)
    for _ in range(3):
        before.serve(tokens=[3, 1, 2, 4])
    window = Window(before.facts)
    before.add_maps(window)
    deliver(window, before.publish_all())
    sums = window.sums()
    window.refit(facts_of(ranks=6, experts=8))
    after = World(facts_of(ranks=6, experts=8), Kind.RECEIVED_SLOTS, time_ms=before.time_ms, run_id=78)
    after.add_maps(window)
    deliver(window, [after.publish(rank) for rank in range(4)])
    view = window.view(after.time_ms)
    assert np.array_equal(view.tokens, [before.step_tokens[step] for step in range(3)])
    assert np.array_equal(window.sums(), sums)
    assert (view.coverage, view.stale_ranks) == (1.0, ())
    assert np.isnan(view.ratio).all()
    late = window.view(after.time_ms + 16_000)
    assert late.ranks_expected == 6
    assert {4, 5} <= set(late.stale_ranks)


def test_col_04_a_step_whose_counts_are_not_tokens_times_top_k_is_no_slice():
    """COL-04: two ranks that count all picks give [3, 2, 3, 2]; if they kept only their own experts, nothing is shown."""
    facts = one_layer(2, 4, 2)
    whole = {0: [1, 1, 2, 2], 1: [2, 1, 1, 0]}
    own = {0: [1, 1, 0, 0], 1: [0, 0, 1, 0]}
    for counts, slices in ((whole, 1), (own, 0)):
        window = Window(facts, Kind.ROUTED)
        for rank, tokens in ((0, 3), (1, 2)):
            sample = step_of([counts[rank]], tokens)
            window.ingest(NOW, 0, frame_of(facts, rank, Kind.ROUTED, [counts[rank]], samples=[sample]))
        view = window.view(NOW)
        assert view.slices == slices
        assert view.misaligned_steps == 1 - slices
        if slices:
            assert view.tokens.tolist() == [[[3, 2, 3, 2]]]


def test_col_05_copies_of_the_same_tokens_count_once_and_small_experts_survive():
    """COL-05: eight ranks that each report the group's counts give those counts, summed before they are divided."""
    facts = one_layer(8, 4, 1)
    counts = [[7, 16, 0, 33]]
    window = Window(facts)
    for rank in range(8):
        frame = frame_of(facts, rank, Kind.ROUTED, counts, tokens=28, copies=8, samples=[step_of(counts, 28)])
        window.ingest(NOW, 0, frame)
    assert window.sums().tolist() == counts
    view = window.view(NOW)
    assert view.tokens.tolist() == [counts]
    assert (view.batch_tokens.tolist(), view.total_tokens, view.scope_copies) == ([28], 28, 8)


def test_col_05_mixed_scopes_are_refused():
    """COL-05: a rank that declares another scope stays out, and is named."""
    facts = one_layer(2, 4, 2)
    window = Window(facts)
    assert window.ingest(NOW, 0, frame_of(facts, 0, Kind.ROUTED, [[1, 1, 1, 1]]))
    assert not window.ingest(NOW, 0, frame_of(facts, 1, Kind.ROUTED, [[1, 1, 1, 1]], copies=2))
    assert window.counters["refused_scope"] == 1
    assert "scopes cannot be mixed" in window.last_refusal
    assert window.sums().tolist() == [[1, 1, 1, 1]]


def test_col_10_phases_are_kept_apart():
    """COL-10: the hottest expert of decode is not that of prefill, which has far more tokens."""
    facts = one_layer(1, 4, 4)
    window = Window(facts)
    phases = {Phase.PREFILL: [[9000, 50, 50, 50]], Phase.DECODE: [[10, 20, 30, 900]]}
    window.ingest(NOW, 0, frame_of(facts, 0, Kind.ROUTED, None, phases=phases))
    decode, everything = window.sums(Phase.DECODE)[0], window.sums()[0]
    assert (int(decode.argmax()), decode.max() / decode.sum()) == (3, 0.9375)
    assert everything.tolist() == [9010, 70, 80, 950]
    view = window.view(NOW, Phase.DECODE)
    assert (view.slices, view.quality) == (1, "predicted")
    assert view.tokens.tolist() == [[[10, 20, 30, 900]]]


def test_col_11_a_pipeline_stage_without_moe_layers_is_complete():
    """COL-11: empty frames are accepted, coverage is 1, and there is nothing to plan."""
    facts = PoolFacts("stage0", 4, 1, 1, 1, 1, ())
    window = Window(facts)
    for rank in range(4):
        recorder = Recorder(facts, rank, Kind.RECEIVED_SLOTS, layer_digests=np.zeros(0, dtype=np.uint64))
        assert recorder.register(7, -1)
        recorder.record_step(0, Phase.DECODE, np.zeros((0, 1), dtype=np.int64), 5)
        assert window.ingest(NOW, 0, encode_frame(recorder.snapshot(0)))
    view = window.view(NOW)
    assert view.coverage == 1.0
    assert view.tokens.shape[1:] == (0, 1)
    assert view.misaligned_steps == 0


def test_met_02_an_idle_step_shows_no_ratio_and_hides_no_later_one():
    """MET-02: [1.0, 1.6], then nothing, then [1.2, 1.8]."""
    facts = PoolFacts("p", 2, 1, 1, 2, 1, (0, 1))
    rows = np.array([[0, 1], [0, 1]], dtype=np.int32)
    digests = layer_map_digests(facts.model_layers, rows)
    window = Window(facts)
    window.add_map(digests, rows)
    steps = [[[5, 5], [8, 2]], [[0, 0], [0, 0]], [[6, 4], [9, 1]]]
    for rank in range(2):
        samples = [
            step_of(
                [[layer[rank]] for layer in step],
                sum(step[0]) if rank == 0 else 0,
                number,
                live_map_digest(digests),
            )
            for number, step in enumerate(steps)
        ]
        frame = frame_of(facts, rank, Kind.RECEIVED_SLOTS, [[0], [0]], samples=samples, digests=digests)
        window.ingest(NOW, 0, frame)
    ratio = window.view(NOW).ratio
    assert ratio[0].tolist() == [1.0, 1.6]
    assert np.isnan(ratio[1]).all()
    assert ratio[2].tolist() == [1.2, 1.8]
