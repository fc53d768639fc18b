"""What must hold whatever happens to frames, ranks and maps on their way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_world import World, deliver, facts_of

from collectors.facts import Kind, Phase
from eplb.window import Window
from eplb.window.lives import LIVES_PER_RANK

WINDOW_MS = 60_000
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("serve"), st.sampled_from([Phase.PREFILL, Phase.DECODE])),
        st.tuples(st.just("publish"), st.integers(0, 2)),
        st.tuples(st.just("restart"), st.integers(0, 2)),
        st.tuples(st.just("switch"), st.integers(0, 1)),
    ),
    max_size=25,
)


def run(kind, seed, events, *, old):
    world = World(facts_of(ranks=3, experts=4, slots_per_rank=2), kind, seed=seed, old=old)
    world.publish_all()
    for what, argument in events:
        getattr(world, what)(argument)
    world.publish_all()
    return world


def at_most_restarts(events, most):
    """The events without the restarts of a rank that has had ``most`` of them."""
    kept, restarts = [], [0, 0, 0]
    for what, argument in events:
        if what == "restart":
            restarts[argument] += 1
            if restarts[argument] > most:
                continue
        kept.append((what, argument))
    return kept


def on_their_way(world, data):
    """Some frames are lost, some repeated, all reordered; only the last one of each incarnation always comes."""
    last = {(sent.rank, sent.life): sent.seq for sent in world.sent}
    kept = [sent for sent in world.sent if sent.seq == last[sent.rank, sent.life] or data.draw(st.booleans())]
    repeated = data.draw(st.lists(st.sampled_from(kept), max_size=4)) if kept else []
    return kept, data.draw(st.permutations(kept + repeated))


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("old", [False, True], ids=["born-inside", "born-before"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), events=EVENTS, data=st.data())
def test_sums_do_not_depend_on_lost_late_repeated_or_reordered_frames_restarts_or_switches(
    kind, old, seed, events, data
):
    """Tokens in the window = newest minus first totals of every incarnation, in every phase, however frames arrive."""
    world = run(kind, seed, at_most_restarts(events, LIVES_PER_RANK - 1), old=old)
    kept, arriving = on_their_way(world, data)
    window = Window(world.facts, kind)
    world.add_maps(window)
    deliver(window, arriving)
    for phase in (None, Phase.PREFILL, Phase.DECODE):
        assert np.array_equal(window.sums(phase), world.expected_sums(kept, WINDOW_MS, phase))
    assert window.counters["refused"] == 0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), restarts=st.integers(LIVES_PER_RANK, 9), data=st.data())
def test_a_rank_that_restarts_all_the_time_is_never_counted_twice(seed, restarts, data):
    """More lives than are held: late frames of those let go add nothing, so that a token counts once or not at all."""
    serve = ("serve", Phase.PREFILL)
    world = run(Kind.ROUTED, seed, [serve, *[("restart", 0), serve] * restarts], old=False)
    kept, arriving = on_their_way(world, data)
    window = Window(world.facts, Kind.ROUTED)
    deliver(window, arriving)
    assert (window.sums() <= world.expected_sums(kept, WINDOW_MS)).all()


@pytest.mark.parametrize("kind", [Kind.ROUTED_SLOTS, Kind.RECEIVED_SLOTS])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), events=EVENTS)
def test_sums_do_not_depend_on_when_the_maps_become_known(kind, seed, events):
    """Counts wait for the map of their slots and are read when it comes."""
    world = run(kind, seed, events, old=False)
    window = Window(world.facts, kind)
    deliver(window, world.sent)
    world.add_maps(window)
    assert np.array_equal(window.sums(), world.expected_sums(world.sent, WINDOW_MS))
    view = window.view(world.time_ms)
    assert view.group_steps.tolist() == world.complete_steps(world.sent)
    for tokens, step in zip(view.tokens, view.group_steps.tolist(), strict=True):
        assert np.array_equal(tokens, world.step_tokens[step])


@pytest.mark.parametrize("kind", [Kind.ROUTED_SLOTS, Kind.RECEIVED_SLOTS])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), events=EVENTS, data=st.data())
def test_ratio_and_tokens_of_every_complete_step_equal_plain_counting(kind, seed, events, data):
    """Max / mean over ranks by numpy from the true loads; steps that a lost frame took are absent, not wrong."""
    world = run(kind, seed, events, old=False)
    kept, arriving = on_their_way(world, data)
    window = Window(world.facts, kind)
    world.add_maps(window)
    deliver(window, arriving)
    view = window.view(world.time_ms)
    expected = world.complete_steps(kept)
    assert view.group_steps.tolist() == expected
    assert view.misaligned_steps == 0
    for place, step in enumerate(expected):
        load = world.step_loads[step]
        mean = load.mean(axis=1)
        ratio = np.where(mean > 0, load.max(axis=1) / np.where(mean > 0, mean, 1), np.nan)
        np.testing.assert_allclose(view.ratio[place], ratio, rtol=1e-12)
        assert np.array_equal(view.tokens[place], world.step_tokens[step])
        assert view.phases[place] == world.step_phases[step]


@pytest.mark.parametrize("kind", [Kind.ROUTED_SLOTS, Kind.RECEIVED_SLOTS])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), events=EVENTS)
def test_rank_load_of_the_window_equals_plain_counting(kind, seed, events):
    """Pairs that each rank received, over all steps, whether maps are known or not."""
    events = [event for event in events if event[0] != "restart"]
    world = run(kind, seed, events, old=False)
    window = Window(world.facts, kind)
    deliver(window, world.sent)
    expected = sum(world.step_loads.values(), np.zeros((world.facts.layers, world.facts.ranks)))
    assert np.array_equal(window.view(world.time_ms).rank_load, expected)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), step=st.integers(0, 4), rank=st.integers(0, 2), data=st.data())
def test_one_misaligned_sample_drops_its_step_and_no_other(seed, step, rank, data):
    """A sample of another step under this step's number breaks conservation, and is counted."""
    from dataclasses import replace

    from collectors.frame import decode_frame, encode_frame

    world = World(facts_of(ranks=3, experts=4), Kind.RECEIVED_SLOTS, seed=seed)
    for _ in range(5):
        world.serve(tokens=[2, 1, 3])
    sent = world.publish_all()
    frame = decode_frame(sent[rank].payload)
    samples = list(frame.samples)
    counts = samples[step].counts.copy()
    place = data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
    counts[place] += data.draw(st.integers(1, 1000))
    samples[step] = replace(samples[step], counts=counts)
    sent[rank].payload = encode_frame(replace(frame, samples=tuple(samples)))
    window = Window(world.facts)
    world.add_maps(window)
    deliver(window, sent)
    view = window.view(world.time_ms)
    assert view.group_steps.tolist() == [other for other in range(5) if other != step]
    assert view.counters["misaligned"] == view.misaligned_steps == 1
    assert view.misaligned_share == 1 / 5


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_a_damaged_frame_is_refused_and_counted_and_changes_nothing(place, bit, cut):
    """One flipped bit or a missing end anywhere in a frame; the other frames count."""
    world = World(facts_of(ranks=2, experts=4), Kind.ROUTED)
    world.serve()
    first, second = world.publish_all()
    at = int(place * len(second.payload))
    damaged = bytearray(second.payload)
    damaged[at] ^= 1 << bit
    window = Window(world.facts)
    deliver(window, [first])
    assert window.ingest(second.time_ms, 0, bytes(second.payload[:at] if cut else damaged)) is False
    assert window.counters["refused_damaged"] == window.counters["refused"] == 1
    assert "frame" in window.last_refusal
    assert np.array_equal(window.sums(), world.expected_sums([first], WINDOW_MS))
