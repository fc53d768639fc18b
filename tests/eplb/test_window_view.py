"""What the window shows, and what it keeps out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from window_world import World, deliver, facts_of

from collectors.digests import layer_map_digests
from collectors.facts import Kind, Phase, PoolFacts
from collectors.frame import decode_frame
from eplb.agent.header import MAX_TERM
from eplb.errors import ConfigError, WindowError
from eplb.window import Window, check_size


def served(kind=Kind.RECEIVED_SLOTS, steps=4, *, window=None, tokens=(2, 1, 3, 2), **options):
    """A world after some steps, all of them published, and a window that took them."""
    world = World(facts_of(), kind, **options)
    for _ in range(steps):
        world.serve(tokens=tokens)
    window = window or Window(world.facts)
    world.add_maps(window)
    deliver(window, world.publish_all())
    return world, window


# --- quality ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.RECEIVED_SLOTS, Kind.ROUTED_SLOTS])
def test_a_ratio_is_exact_when_every_step_is_a_slice(kind):
    """Stride 1 and no step missing between the first slice and the last."""
    world, window = served(kind)
    assert window.view(world.time_ms).quality == "exact"


def test_a_ratio_of_every_third_step_says_so():
    """The stride is shown."""
    world, window = served(steps=9, stride=3)
    view = window.view(world.time_ms)
    assert (view.quality, view.group_steps.tolist()) == ("sampled 1/3", [0, 3, 6])


def test_a_ratio_with_steps_missing_is_not_called_exact():
    """A lost frame takes its steps' samples, and the label tells."""
    world, window = served()
    world.serve(tokens=[1, 1, 1, 1])
    _lost, *others = world.publish_all()
    deliver(window, others)
    world.serve(tokens=[1, 1, 1, 1])
    deliver(window, world.publish_all())
    view = window.view(world.time_ms)
    assert view.group_steps.tolist() == [0, 1, 2, 3, 5]
    assert view.quality == "sampled 1/1"


def test_loads_of_kind_routed_are_predicted_from_the_map_by_even_split():
    """Each replica gets the same part of its expert's tokens; numpy says the same."""
    world, window = served(Kind.ROUTED)
    view = window.view(world.time_ms)
    assert view.quality == "predicted"
    facts = world.facts
    for place in range(view.slices):
        load = np.zeros((facts.layers, facts.slots))
        for layer in range(facts.layers):
            replicas = np.bincount(world.rows[layer], minlength=facts.experts)
            load[layer] = (view.tokens[place, layer] / replicas)[world.rows[layer]]
        by_rank = load.reshape(facts.layers, facts.ranks, -1).sum(axis=2)
        np.testing.assert_allclose(view.ratio[place], by_rank.max(axis=1) / by_rank.mean(axis=1))


def test_shares_of_the_map_are_used_for_prediction():
    """A replica with share 1 takes all of its expert's tokens, its twin none."""
    facts = PoolFacts("p", 2, 1, 1, 1, 1, (0,))
    rows = np.zeros((1, 2), dtype=np.int32)
    window = Window(facts, Kind.ROUTED)
    shares = np.array([[1.0, 0.0]])
    window.add_map(layer_map_digests((0,), rows, shares), rows, shares)
    world = World(facts, Kind.ROUTED)
    world.serve(tokens=[3, 1])
    deliver(window, world.publish_all())
    view = window.view(world.time_ms)
    assert view.ratio.tolist() == [[2.0]]
    assert view.rank_load.tolist() == [[4.0, 0.0]]


def test_without_a_map_kind_routed_has_tokens_but_no_ratio():
    """Unknown is NaN, not balanced."""
    world = World(facts_of(), Kind.ROUTED)
    world.serve(tokens=[1, 2, 1, 2])
    window = Window(world.facts)
    deliver(window, world.publish_all())
    view = window.view(world.time_ms)
    assert np.array_equal(view.tokens[0], world.step_tokens[0])
    assert np.isnan(view.ratio).all()
    assert np.isnan(view.rank_load).all()


# --- slices -------------------------------------------------------------------------------------------------------


def test_a_view_of_one_phase_has_only_its_steps():
    """Phases are properties of steps."""
    world = World(facts_of(), Kind.RECEIVED_SLOTS)
    for phase in (Phase.DECODE, Phase.PREFILL, Phase.DECODE):
        world.serve(phase, tokens=[1, 2, 3, 4])
    window = Window(world.facts)
    world.add_maps(window)
    deliver(window, world.publish_all())
    assert window.view(world.time_ms, Phase.DECODE).group_steps.tolist() == [0, 2]
    assert window.view(world.time_ms, Phase.PREFILL).group_steps.tolist() == [1]
    assert window.view(world.time_ms, Phase.PREFILL).total_tokens == 10
    assert window.view(world.time_ms).phases.tolist() == [2, 1, 2]


def test_an_idle_rank_has_no_phase_and_ranks_in_different_phases_make_a_mixed_step():
    """Conservation proves the step, the phase only describes it."""
    world = World(facts_of(ranks=2, experts=4), Kind.ROUTED)
    for idle in (True, False):
        world.serve(Phase.DECODE, tokens=[2, 0 if idle else 1])
        first, second = world.publish_all()
        frame = decode_frame(second.payload)
        sample = replace(frame.samples[0], phase=Phase.PREFILL)
        window = Window(world.facts)
        window.ingest(first.time_ms, 0, first.payload)
        window.ingest(second.time_ms, 0, replace(frame, samples=(sample,)))
        assert window.view(world.time_ms).phases.tolist() == [int(Phase.DECODE if idle else Phase.MIXED)]


def test_only_the_newest_slices_are_kept():
    """The ring holds max_slices complete steps."""
    world = World(facts_of(), Kind.RECEIVED_SLOTS)
    window = Window(world.facts, max_slices=3)
    world.add_maps(window)
    for _ in range(5):
        world.serve(tokens=[1, 1, 1, 1])
        deliver(window, world.publish_all())
    view = window.view(world.time_ms)
    assert view.group_steps.tolist() == [2, 3, 4]
    assert view.complete_steps == 5


def test_what_is_older_than_the_window_is_gone():
    """Sums, slices, coverage and step counts slide; counters stay."""
    world, window = served()
    later = world.time_ms + 61_000
    view = window.view(later)
    assert (view.slices, view.complete_steps, view.total_tokens, view.coverage) == (0, 0, 0, 0.0)
    assert view.stale_ranks == (0, 1, 2, 3)
    assert view.counters["complete"] == 4
    assert not window.sums().any()


def test_sums_slide_with_the_window():
    """A frame each second for 100 s: the sums are what the frames of the last 60 s added, to an interval's resolution."""
    world = World(facts_of(), Kind.ROUTED)
    window = Window(world.facts, window_s=60.0)
    world.time_ms = 1_000_500
    for _ in range(100):
        world.time_ms += 1000 - 10 - 4
        world.serve(tokens=[1, 2, 0, 1])
        deliver(window, world.publish_all())
    # Frames come in the middle of intervals of 1 s; the oldest interval kept holds the time one window ago.
    expected = sum(world.step_tokens[step] for step in range(100 - 61, 100))
    assert np.array_equal(window.sums(), expected)


def test_steps_of_two_runs_never_meet():
    """The same number in another life of the group is another step."""
    first = World(facts_of(), Kind.RECEIVED_SLOTS, run_id=1)
    second = World(facts_of(), Kind.RECEIVED_SLOTS, run_id=2, time_ms=first.time_ms + 100)
    for world in (first, second):
        world.lives = [world.run_id] * 4
        world.recorders = [world._recorder(rank) for rank in range(4)]
        world.serve(tokens=[1, 2, 3, 4])
    window = Window(first.facts)
    first.add_maps(window)
    sent = first.publish_all()[:3] + second.publish_all()[3:]
    deliver(window, sent)
    assert window.view(second.time_ms).slices == 0
    assert window.view(second.time_ms + 20_000).incomplete_steps == 2


def test_a_step_that_a_rank_still_owes_becomes_incomplete_after_the_limit():
    """Open until then, counted once, and a sample that comes afterwards changes nothing."""
    world = World(facts_of(), Kind.RECEIVED_SLOTS)
    world.serve(tokens=[1, 1, 1, 1])
    window = Window(world.facts, stale_after_s=15.0)
    world.add_maps(window)
    *most, last = world.publish_all()
    deliver(window, most)
    assert window.view(world.time_ms + 14_000).incomplete_steps == 0
    assert window.view(world.time_ms + 16_000).incomplete_steps == 1
    deliver(window, [last])
    view = window.view(world.time_ms + 16_000)
    assert (view.incomplete_steps, view.slices) == (1, 0)


def test_times_are_means_over_ranks_and_slices_and_absent_is_not_zero():
    """What no rank measured is None."""
    world = World(facts_of(), Kind.RECEIVED_SLOTS)
    world.serve(tokens=[1, 1, 1, 1], step_us=100.0, moe_wait_us=0.0)
    world.serve(tokens=[1, 1, 1, 1], step_us=300.0)
    window = Window(world.facts)
    world.add_maps(window)
    deliver(window, world.publish_all())
    view = window.view(world.time_ms)
    assert (view.step_us, view.moe_wait_us, view.a2a_us, view.expert_us) == (200.0, 0.0, None, None)
    assert view.step_us_by_slice.tolist() == [100.0, 300.0]


def test_counts_without_samples_give_slices_of_time():
    """Intervals of the window, said to be predicted, with the tokens that the totals grew by."""
    world, window = World(facts_of(), Kind.RECEIVED_SLOTS, stride=1_000_000), Window(facts_of())
    world.add_maps(window)
    world.step = 0
    for recorder in world.recorders:
        recorder.register(77, 0, world.digests)
    for _ in range(5):
        world.serve(tokens=[2, 1, 3, 2])
        deliver(window, world.publish_all())
        world.time_ms += 1000
    view = window.view(world.time_ms)
    assert view.quality == "predicted"
    assert view.slices >= 1
    assert np.array_equal(view.tokens.sum(axis=0), window.sums())
    assert view.batch_tokens.sum() == view.total_tokens == 40
    assert view.steps == 5
    assert not view.live_digests.any()
    assert 0.0 <= view.newest_age_s <= 2.0


def test_the_view_names_the_live_map_of_each_slice_and_of_the_newest():
    """So that readings before and after a switch can be told apart."""
    world = World(facts_of(), Kind.RECEIVED_SLOTS)
    window = Window(world.facts)
    world.serve(tokens=[1, 2, 3, 4])
    world.switch(0, world.new_row())
    world.serve(tokens=[1, 2, 3, 4])
    world.add_maps(window)
    deliver(window, world.publish_all())
    view = window.view(world.time_ms)
    assert len(set(view.live_digests.tolist())) == 2
    assert view.live_digest == int(view.live_digests[-1])


def test_a_view_does_not_change_when_the_window_goes_on():
    """Readers keep what they were given."""
    world, window = served()
    view = window.view(world.time_ms)
    tokens, ratio = view.tokens.copy(), view.ratio.copy()
    for _ in range(300):
        world.serve(tokens=[1, 1, 1, 1])
    deliver(window, world.publish_all())
    assert np.array_equal(view.tokens, tokens)
    assert np.array_equal(view.ratio, ratio)


# --- what stays out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pool": "other"}, "pool"),
        ({"ranks": 8}, "shape"),
        ({"kind": Kind.ROUTED}, "kind"),
        ({"scope_copies": 3}, "scope"),
    ],
)
def test_a_frame_of_another_pool_shape_kind_or_scope_is_refused_by_name(change, reason):
    """Counted by reason and said in a sentence; what was counted stays."""
    world, window = served()
    world.serve()
    frame = decode_frame(world.publish(0).payload)
    before = window.sums()
    assert not window.ingest(world.time_ms, 3, replace(frame, header=replace(frame.header, **change)))
    assert (window.counters["refused"], window.counters[f"refused_{reason}"]) == (1, 1)
    assert window.last_refusal.startswith("node 3: frame of rank 0")
    assert np.array_equal(window.sums(), before)


def test_refused_frames_speak_for_silent_ranks_only_while_they_come():
    """Not once a window has passed without one, nor for a store that was emptied since."""
    world, window = served()
    assert not window.refuses(world.time_ms)
    window.ingest(world.time_ms, 0, b"no frame")
    assert window.refuses(world.time_ms + 60_000)
    assert not window.refuses(world.time_ms + 60_001)
    window.clear()
    assert not window.refuses(world.time_ms)


@pytest.mark.parametrize("value", [-1, 2**53 + 1])
def test_a_count_that_no_pool_reaches_is_refused(value):
    """Negative, or so large that sums over ranks could overflow."""
    world, window = served()
    frame = decode_frame(world.publish(0).payload)
    counts = frame.totals[0].counts.copy()
    counts[0, 0] = value
    assert not window.ingest(
        world.time_ms, 0, replace(frame, totals=(replace(frame.totals[0], counts=counts),))
    )
    assert window.counters["refused_counts"] == 1


def test_a_given_kind_is_not_learned_from_a_frame():
    """The configuration decides."""
    world = World(facts_of(), Kind.ROUTED)
    world.serve()
    window = Window(world.facts, Kind.RECEIVED_SLOTS)
    deliver(window, world.publish_all())
    assert window.counters["refused_kind"] == 4
    assert window.kind is Kind.RECEIVED_SLOTS


def test_a_life_whose_closing_total_was_never_told_is_counted():
    """A frame gap longer than the repeats of a closed row loses tokens, and says so."""
    world = World(facts_of(), Kind.RECEIVED_SLOTS)
    world.serve(tokens=[2, 2, 2, 2])
    window = Window(world.facts)
    world.add_maps(window)
    deliver(window, [world.publish(rank) for rank in range(4)])
    world.serve(tokens=[2, 2, 2, 2])
    world.switch(0, world.new_row())
    world.add_maps(window)
    for _ in range(31):
        last = world.publish_all()
    deliver(window, last)
    assert window.counters["lost_rows"] == 4


# --- maps, clearing, sizes ----------------------------------------------------------------------------------------


def test_a_map_that_is_not_this_pools_is_an_error():
    """Wrong shape, wrong id, wrong digest."""
    facts = facts_of()
    rows = np.zeros((facts.layers, facts.slots), dtype=np.int32)
    digests = layer_map_digests(facts.model_layers, rows)
    window = Window(facts)
    with pytest.raises(WindowError, match="expected"):
        window.add_map(digests, rows[:, 1:])
    with pytest.raises(WindowError, match="ids from"):
        window.add_map(digests, rows + facts.experts)
    with pytest.raises(WindowError, match="not those of rows and shares"):
        window.add_map(digests + np.uint64(1), rows)


def test_clearing_forgets_counts_and_scope_but_keeps_maps_and_counters():
    """For a store that was emptied: the same frames count again."""
    world, window = served(copies=1)
    window.clear()
    assert not window.sums().any()
    assert window.counters["cleared"] == 1
    assert window.counters["frames"] == 4
    deliver(window, world.sent)
    assert window.view(world.time_ms).slices == 4
    assert np.array_equal(window.sums(), sum(world.step_tokens.values()))


def test_refitting_to_another_model_is_an_error():
    """Experts that differ in number are other experts."""
    _, window = served()
    with pytest.raises(WindowError, match="another model"):
        window.refit(facts_of(ranks=4, experts=8))


def test_the_default_window_holds_the_largest_pool():
    """58 layers, 256 experts, 320 ranks of any kind fit in 256 MB."""
    for ranks, slots_per_rank in ((32, 9), (72, 4), (320, 1)):
        facts = PoolFacts("p", ranks, 1, slots_per_rank, 256, 8, tuple(range(58)))
        assert check_size(facts).reader_bytes < 256_000_000


def test_each_phase_adds_to_the_size():
    """Totals and sums by interval are kept for every phase that a pool serves."""
    facts = PoolFacts("p", 320, 1, 1, 256, 8, tuple(range(58)))
    one, two = (check_size(facts, phases=n, window_bytes=10**9) for n in (1, 2))
    assert two.totals_bytes == 2 * one.totals_bytes
    assert two.interval_bytes == 2 * one.interval_bytes
    with pytest.raises(ConfigError, match="raise window_bytes"):
        check_size(facts, phases=2)


def test_a_decoded_frame_keeps_no_more_alive_than_its_arrays():
    """The digests that a window holds on to are their own memory, not a view of the whole message."""
    world = World(facts_of(), Kind.RECEIVED_SLOTS)
    world.serve()
    frame = decode_frame(world.publish(0).payload)
    assert frame.layer_digests.base is None


def test_a_window_that_does_not_fit_says_what_to_lower():
    """In the daemon and in the store."""
    facts = PoolFacts("p", 32, 1, 9, 256, 8, tuple(range(58)))
    with pytest.raises(ConfigError, match="lower max_slices"):
        Window(facts, max_slices=10_000)
    with pytest.raises(ConfigError, match="lower window_s"):
        Window(facts, window_s=600.0)
    with pytest.raises(ConfigError, match="above 0"):
        Window(facts, max_slices=0)


def test_memory_for_open_steps_and_lives_is_bounded():
    """Ranks that never agree on a step, and a rank that restarts for ever, cost a bounded amount."""
    world = World(facts_of(), Kind.ROUTED)
    window = Window(world.facts)
    for _ in range(400):
        world.serve(tokens=[1, 1, 1, 1])
        deliver(window, [world.publish(0)])
    for _ in range(10):
        world.restart(0)
    deliver(window, world.sent[400:])
    assert len(window._ring._open) == 256
    assert window.counters["incomplete"] == 400 - 256
    assert len(window._lives._lives) <= 4
    assert window.counters["restarts"] == 9


def test_a_term_that_no_rank_follows_is_not_the_newest():
    """One forged frame must not make a leader take a term that all ranks refuse, for that would lock the pool for good."""
    world = World(facts_of(), Kind.ROUTED)
    window = Window(world.facts, world.kind)
    world.serve()
    for rank in range(world.facts.ranks):
        world.publish(rank)
    frame = decode_frame(world.sent[0].payload)
    for number, term in enumerate((7, MAX_TERM, MAX_TERM + 1, (1 << 64) - 1)):
        header = replace(frame.header, term_seen=term, seq=frame.header.seq + number)
        window.ingest(world.time_ms, 0, replace(frame, header=header))
    assert window.term_seen == MAX_TERM
