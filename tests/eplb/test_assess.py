"""Rules of the assessment: only what the live map served counts, and noise is not blamed on the map."""

from dataclasses import replace

import numpy as np
import pytest

from collectors.digests import layer_map_digests, live_map_digest
from collectors.facts import Frame, FrameHeader, Kind, Phase, PhaseTotals, PoolFacts, StepSample
from eplb.assess import assess, read_phase, served_by
from eplb.window import Window

FACTS = PoolFacts("p", ranks=4, nodes=2, slots_per_rank=3, experts=8, top_k=2, model_layers=(3, 4))
ROWS = np.tile(np.arange(12, dtype=np.int32) % 8, (2, 1))
OTHER = np.roll(ROWS, 3, axis=1)
STEPS, TOKENS = 40, 64


def counts_of(step, rows, weights):
    """Exact tokens by slot of one step: int64 [layers, slots]."""
    rng = np.random.default_rng(step)
    keys = rng.exponential(size=(TOKENS, 8)) / weights
    experts = keys.argsort(axis=1)[:, :2].ravel()
    counts = np.zeros(rows.shape, dtype=np.int64)
    for layer in range(len(rows)):
        for expert in experts:
            slots = np.flatnonzero(rows[layer] == expert)
            counts[layer, slots[rng.integers(len(slots))]] += 1
    return counts


def frame_of(rank, rows, counts, first_step, digests):
    own = slice(rank * 3, rank * 3 + 3)
    samples = tuple(
        StepSample(
            first_step + n,
            Phase.DECODE,
            TOKENS // 4,
            live_map_digest(digests),
            step[:, own].copy(),
            step_us=100.0,
        )
        for n, step in enumerate(counts)
    )
    last = first_step + len(counts) - 1
    totals = PhaseTotals(
        Phase.DECODE, last, last * TOKENS // 4, np.sum(counts, axis=0)[:, own].astype(np.int64)
    )
    header = FrameHeader(
        "p",
        rank,
        4,
        Kind.RECEIVED_SLOTS,
        1,
        rank + 1,
        9,
        0,
        first_step,
        last,
        last * 10,
        1,
        live_map_digest(digests),
    )
    return Frame(header, digests, (totals,), (), samples)


def window_with(*parts):
    """A window that saw (rows, weights) parts of STEPS steps each, one after the other."""
    window = Window(FACTS, Kind.RECEIVED_SLOTS)
    step = 1
    for number, (rows, weights) in enumerate(parts):
        digests = layer_map_digests(FACTS.model_layers, rows)
        window.add_map(digests, rows)
        counts = [counts_of(step + n, rows, weights) for n in range(STEPS)]
        for rank in range(4):
            window.ingest(1_000 + number, rank // 2, frame_of(rank, rows, counts, step, digests))
        step += STEPS
    return window.view(2_000)


EVEN = np.ones(8)
SKEWED = np.array([9, 1, 1, 1, 9, 1, 1, 1.0])


def digest_of(rows):
    return live_map_digest(layer_map_digests(FACTS.model_layers, rows))


def test_only_slices_of_the_live_map_count():
    """Slices served by the map before are left out of ratio, tokens and trigger."""
    view = window_with((ROWS, SKEWED), (OTHER, SKEWED))
    seen = assess(view, FACTS, live_digest=digest_of(OTHER), trigger_slices=3)
    assert (view.slices, seen.slices) == (2 * STEPS, STEPS)
    assert seen.tokens == STEPS * TOKENS
    assert seen.excess == pytest.approx(float(view.ratio[STEPS:].mean()) - 1.0)


def test_unknown_live_map_counts_every_slice():
    """Digest 0 means that nobody said which map is live."""
    view = window_with((ROWS, SKEWED), (OTHER, SKEWED))
    assert served_by(view, 0).all()


def test_skew_is_recoverable_and_noise_is_not():
    """Routing that is even up to chance leaves no recoverable excess worth a plan; skew does."""
    rows = np.tile(np.concatenate([np.arange(8), [1, 2, 3, 0]]).astype(np.int32), (2, 1))
    skewed = assess(window_with((ROWS, SKEWED)), FACTS, live_digest=digest_of(ROWS), trigger_slices=3)
    even = assess(window_with((rows, EVEN)), FACTS, live_digest=digest_of(rows), trigger_slices=3)
    assert skewed.recoverable_excess > 0.3
    assert even.excess > 0.1
    assert even.recoverable_excess < even.excess - 0.1


def test_trigger_looks_at_the_worst_of_the_newest_slices():
    """The smallest recoverable excess of the newest slices is what must exceed the target."""
    view = window_with((ROWS, SKEWED))
    by_count = [
        assess(view, FACTS, live_digest=0, trigger_slices=n).recent_recoverable for n in (1, 5, STEPS)
    ]
    assert by_count == sorted(by_count, reverse=True)


def test_a_window_is_full_when_the_live_map_served_all_that_it_keeps():
    view = window_with((ROWS, SKEWED))
    kinds = {
        n: assess(view, FACTS, live_digest=0, trigger_slices=3, max_slices=n).full for n in (STEPS, STEPS + 1)
    }
    assert kinds == {STEPS: True, STEPS + 1: False}
    assert not assess(view, FACTS, live_digest=0, trigger_slices=3).full


def test_reading_adds_up():
    """Node loads, ranks and layers in a reading are those of the counts."""
    view = window_with((ROWS, SKEWED))
    reading = read_phase(view, FACTS, "decode", live_digest=digest_of(ROWS))
    assert reading.node_mean_tokens.sum() * 2 == pytest.approx(TOKENS * 2 * len(FACTS.model_layers))
    assert reading.layer_rank_load.mean() == pytest.approx(1.0)
    assert [load for _, load in reading.top_ranks] == sorted(
        (load for _, load in reading.top_ranks), reverse=True
    )
    assert 0.0 < reading.waste_share < reading.excess
    assert reading.quality == "exact"
    assert reading.step_us == 100.0


def test_the_busiest_ranks_are_compared_with_those_that_serve():
    """A lost rank takes no tokens, and must not make the others look busier than they are."""
    view = window_with((ROWS, SKEWED))
    load = view.rank_load.copy()
    load[:, 3] = 0.0
    reading = read_phase(replace(view, rank_load=load, members=(0, 1, 2)), FACTS, "decode", live_digest=0)
    assert sum(share for rank, share in reading.top_ranks) == pytest.approx(3.0)


def test_a_hot_expert_that_no_map_can_spread_leaves_nothing_to_fix():
    """One expert takes part in every token: four spare slots spread it, no spare slot does not."""
    one = np.array([90, 1, 1, 1, 1, 1, 1, 1.0])
    facts = PoolFacts("p", ranks=4, nodes=2, slots_per_rank=2, experts=8, top_k=2, model_layers=(3, 4))
    view = window_with((ROWS, one))
    spare = assess(view, FACTS, live_digest=digest_of(ROWS), trigger_slices=3)
    none = assess(view, facts, live_digest=digest_of(ROWS), trigger_slices=3)
    assert none.fixable_excess < spare.fixable_excess
    assert (spare.hot_expert.layer, spare.hot_expert.expert) == (3, 0)
    assert spare.hot_expert.load_ratio == pytest.approx(2.0, abs=0.1)


def test_drift_needs_a_plan_to_compare_with_and_enough_new_slices():
    """Without either it is not known; with both it is the load that the hot experts of then do not carry now."""
    view = window_with((ROWS, SKEWED))
    then = view.tokens.sum(axis=0)
    facts = {"live_digest": digest_of(ROWS), "trigger_slices": 3}
    assert np.isnan(assess(view, FACTS, **facts).drift)
    assert np.isnan(
        assess(view, FACTS, live_digest=digest_of(ROWS), trigger_slices=STEPS, planned_tokens=then).drift
    )
    assert assess(view, FACTS, **facts, planned_tokens=then).drift < 0.1
    assert assess(view, FACTS, **facts, planned_tokens=then[:, ::-1]).drift > 0.2


def test_no_slices_give_no_numbers():
    """An empty window gives NaN and not a made-up balance."""
    seen = assess(Window(FACTS, Kind.RECEIVED_SLOTS).view(1_000), FACTS, live_digest=0, trigger_slices=3)
    assert np.isnan(
        [seen.excess, seen.recoverable_excess, seen.recent_recoverable, seen.fixable_excess]
    ).all()
    assert replace(seen, slices=0) == seen
