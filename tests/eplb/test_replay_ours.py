"""Our policy: the daemon's own loop over simulated ranks."""

import numpy as np
import pytest
from replay_world import EXPERTS, LAYERS, options, recording

from collectors.facts import Kind, Phase
from eplb.errors import ReplayError, StoreFenced
from eplb.migration import Actuator, make_plan, observe, read_desired
from eplb.ranks import LiveRanks
from eplb.replay.options import daemon_config, policy_of
from eplb.replay.schedule import schedule
from eplb.replay.world import Clock, Group, MemoryStore, SoleLead
from eplb.start_map import start_map
from eplb.window import Window
from placement import Placement, violations

HELD, OPTIONS = recording(each=300), options(steps=400)
START = start_map(LAYERS, EXPERTS, OPTIONS.topology().slots)


def serve(word, asked=OPTIONS):
    """The policy after a run, and the maps that served it."""
    policy = policy_of(word, HELD, asked, 0)
    maps = []
    for steps in schedule(HELD, asked.schedule, asked.ranks, 0):
        for part in steps.parts(policy.at_a_time):
            maps.append(policy.map_for(part))
            policy.seen(part)
    policy.close()
    return policy, maps


def test_a_skewed_load_is_planned_offered_and_served_by_the_daemon_s_own_loop():
    """The decisions are the daemon's, and every map that serves is valid."""
    policy, maps = serve("ours:min_slices=8,min_tokens=1000")
    assert {"elected", "not_enough_data", "planning", "offered", "applied", "settled"} <= set(
        policy.decisions
    )
    assert not np.array_equal(maps[-1], START)
    for rows in maps:
        assert not [v for v in violations(Placement(rows), OPTIONS.topology(), EXPERTS) if v.code != "twin"]


def plans_of(word):
    """What every plan of a run was made on."""
    policy = policy_of(word, HELD, OPTIONS, 0)
    seen = {}
    for steps in schedule(HELD, OPTIONS.schedule, OPTIONS.ranks, 0):
        for part in steps.parts(policy.at_a_time):
            policy.map_for(part)
            policy.seen(part)
            plan = policy._pool._last.decision["plan"]
            if plan is not None:
                seen[plan["plan_id"]] = plan
    policy.close()
    return list(seen.values())


@pytest.mark.parametrize("use", ["off", "pooled", "regimes"])
def test_every_plan_says_which_history_it_was_made_on(use):
    """In numbers and as a reason; later plans rest on more than the window."""
    plans = plans_of(
        f"ours:min_slices=8,min_tokens=1000,cooldown_s=60,min_gain=0.001,trigger_excess=0.06,use={use}"
    )
    assert len(plans) > 1
    for plan in plans:
        told = plan["planned_on"]
        assert told["use"] == use
        assert told["window_slices"] + told["history_slices"] == plan["slices_planned"]
        assert [sentence for code, sentence in plan["reasons"] if code == "history"]
    last = plans[-1]["planned_on"]
    assert (last["history_slices"] > 0) == (use != "off")
    assert bool(last["regimes"]) == (use == "regimes")


def test_the_gate_s_settings_are_the_daemon_s():
    """Mode observe never moves, and a long cooldown lets one plan through."""
    _, maps = serve("ours:mode=observe,min_slices=8,min_tokens=1000")
    assert all(np.array_equal(rows, START) for rows in maps)
    policy, _ = serve("ours:min_slices=20,min_tokens=1000,cooldown_s=100000")
    assert policy.decisions["offered"] == 1


def test_a_plan_for_which_the_waves_are_too_small_is_refused_and_nothing_moves():
    """Not even one expert fits into a wave of one byte."""
    policy, maps = serve("ours:min_slices=8,min_tokens=1000,bytes_per_rank=1")
    assert policy.decisions["needs_staging"] > 0
    assert policy.decisions["offered"] == 0
    assert all(np.array_equal(rows, START) for rows in maps)


def test_settings_that_the_daemon_does_not_have_are_refused():
    """By name, or by the bound that the configuration states."""
    with pytest.raises(ReplayError, match=r"no setting 'speed'; it has .*cooldown_s"):
        daemon_config("speed=3", HELD, OPTIONS, 0)
    with pytest.raises(ReplayError, match=r"gate\.coverage"):
        daemon_config("coverage=2", HELD, OPTIONS, 0)


def test_the_ranks_switch_a_wave_once_and_report_it():
    """An offer of the real actuator, read back by the daemon's own status."""
    facts = daemon_config("", HELD, OPTIONS, 0).facts()
    store = MemoryStore(Clock())
    group = Group(facts, Phase.DECODE, START, store, OPTIONS.prices()[0].kernels)
    target = START.copy()
    target[:, [0, 3]] = target[:, [3, 0]]
    plan = make_plan(facts, START, target, created_ms=1)
    live = LiveRanks.read(store.read_live(), facts).records
    actuator = Actuator(facts, store.write_desired)
    actuator.begin(plan, read_desired(store.read_desired()), live, term=1, now_ms=store.time_ms())
    for _ in range(2):
        group.take_offer()
        assert np.array_equal(group.live.rows, target)
    ranks = LiveRanks.read(store.read_live(), facts)
    status = observe(facts, read_desired(store.read_desired()), ranks.records, store.time_ms())
    assert (str(status.state), ranks.map_version, ranks.mismatch) == ("all_live", 1, "")


def test_the_daemon_s_window_holds_every_token_that_was_served():
    """The ranks' frames pass the window's own proofs: no step is refused, misaligned or left incomplete."""
    facts, clock = daemon_config("", HELD, OPTIONS, 0).facts(), Clock()
    store = MemoryStore(clock)
    group = Group(facts, Phase.DECODE, START, store, OPTIONS.prices()[0].kernels)
    window = Window(facts, Kind.ROUTED)
    served = list(schedule(HELD, OPTIONS.schedule, OPTIONS.ranks, 0))[:20]
    for steps in served:
        clock.now_ms += 1000
        group.publish(steps, clock.now_ms)
    for time_ms, node, frame in store.tail_load(range(facts.nodes)):
        assert window.ingest(time_ms, node, frame)
    view, routed = window.view(clock.now_ms), np.concatenate([steps.routed() for steps in served])
    assert np.array_equal(view.tokens, routed)
    assert np.array_equal(window.sums(), routed.sum(axis=0))
    assert (view.misaligned_steps, view.incomplete_steps, view.coverage) == (0, 0, 1.0)


def test_the_store_in_memory_refuses_an_older_term():
    """The same fence as the store's script."""
    store = MemoryStore(Clock())
    store.write_desired(3, {"map_version": b"1"})
    with pytest.raises(StoreFenced, match="term 3 exists"):
        store.write_desired(2, {"map_version": b"2"})
    assert store.read_desired() == {"map_version": b"1", "term": b"3"}


def test_a_lead_begins_above_the_floor_and_ends_when_it_is_given_back():
    """As a lease does, without a rival."""
    lead = SoleLead()
    assert (lead.renew(), lead.acquire(floor=4), lead.renew()) == (False, 5, True)
    lead.release()
    assert lead.term is None
