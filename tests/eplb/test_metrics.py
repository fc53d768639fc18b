"""Metrics: what is shown, what is not, and how many series it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from snapshots import reading, snapshot

from eplb.metrics import MOST_AGGREGATES, PHASE_AGGREGATES, SnapshotCollector, metric_names, registry
from eplb.snapshot import Rebalance

LABELS = ("pool", "phase", "layer", "node", "rank", "place", "state")


def scrape(*snapshots, loop_age_s=0.0, layer_rank=False):
    """Samples of one scrape of the text format: {(name, label values in the order of LABELS): value}."""
    text = scrape_text(*snapshots, loop_age_s=loop_age_s, layer_rank=layer_rank)
    return {
        (sample.name, *(sample.labels[label] for label in LABELS if label in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape_text(*snapshots, loop_age_s=0.0, layer_rank=False):
    collector = SnapshotCollector(lambda: snapshots, lambda: loop_age_s, layer_rank=layer_rank)
    return generate_latest(registry(collector)).decode()


def test_met_02_an_idle_period_has_no_ratio_and_ends_with_the_next_load():
    """No NaN, no old value: no sample, and idle=1; afterwards the layers are back."""
    shown = []
    for load in ([[5, 5], [8, 2]], [[0, 0], [0, 0]], [[6, 4], [9, 1]]):
        samples = scrape(snapshot(reading(load)))
        ratios = [samples.get(("eplb_imbalance_ratio", "a", "decode", layer)) for layer in "01"]
        shown.append((ratios, samples["eplb_idle", "a"]))
        assert not any(np.isnan(value) for value in samples.values())

    assert shown[0] == (pytest.approx([1.0, 1.6]), 0)
    assert shown[1] == ([None, None], 1)
    assert shown[2] == (pytest.approx([1.2, 1.8]), 0)


def test_an_idle_pool_has_no_aggregate_of_the_last_load():
    """Excess, recoverable excess and waste share vanish with the load."""
    samples = scrape(snapshot(reading([[0, 0], [0, 0]])))

    names = {name for name, *_ in samples}
    assert not names & {"eplb_excess_ratio", "eplb_recoverable_excess_ratio", "eplb_waste_share_ratio"}


def test_one_layer_without_load_does_not_hide_the_others():
    """Zero is not missing, and missing is not zero."""
    samples = scrape(snapshot(reading([[0, 0], [9, 1]]), model_layers=(3, 4)))

    assert ("eplb_imbalance_ratio", "a", "decode", "3") not in samples
    assert samples["eplb_imbalance_ratio", "a", "decode", "4"] == pytest.approx(1.8)


def test_met_03_a_dead_rank_shows_as_stale_and_the_score_is_fresh():
    """Each scrape reads the newest snapshot; the balance is that of the ranks that live, the health says the rest."""
    snapshots = [snapshot(reading([[10, 10, 10, 10]]))]
    collector = registry(SnapshotCollector(lambda: tuple(snapshots), lambda: 0.0))
    before = collector.get_sample_value("eplb_stale_ranks", {"pool": "a"})
    living = reading([[10, 10, 10]], nodes=1)
    snapshots[:] = [snapshot(living, ranks_seen=3, coverage=0.75, stale_ranks=(2,))]

    assert before == 0
    assert collector.get_sample_value("eplb_stale_ranks", {"pool": "a"}) == 1
    assert collector.get_sample_value("eplb_coverage_ratio", {"pool": "a"}) == 0.75
    assert collector.get_sample_value(
        "eplb_imbalance_ratio", {"pool": "a", "phase": "decode", "layer": "0"}
    ) == pytest.approx(1.0)


def large(phases, layers=61, ranks=72, nodes=9):
    loads = np.random.default_rng(0).integers(1, 100, size=(layers, ranks))
    times = {"step_us": 9e3, "moe_wait_us": 1e3, "a2a_us": 2e3, "expert_us": 3e3}
    readings = (reading(loads, phase=phase, nodes=nodes, **times) for phase in phases)
    fate = Rebalance(promised_gain=0.4, realised_gain=0.3, half_life_s=900.0)
    return snapshot(
        *readings, ranks_expected=ranks, ranks_seen=ranks, model_layers=tuple(range(layers)), rebalance=fate
    )


def pool_series(samples):
    return [key for key in samples if key[0] not in ("eplb_build_info", "eplb_loop_age_seconds")]


@pytest.mark.parametrize("phases", [["decode"], ["prefill", "decode"], ["mixed", "prefill", "decode"]])
def test_met_04_series_stay_within_the_budget(phases):
    """(layers + 2 x nodes + 4) x phases + 48 for a pool of 61 layers and 72 ranks."""
    samples = scrape(large(phases))

    assert len(pool_series(samples)) <= (61 + 2 * 9 + PHASE_AGGREGATES) * len(phases) + MOST_AGGREGATES
    if len(phases) == 1:
        assert len(pool_series(samples)) <= 61 + 72 + 20


def test_met_04_layer_and_rank_together_are_shown_only_on_request():
    """4392 series are a choice, not a default; experts are never a label."""
    pool = large(["decode"])

    default, full = scrape(pool), scrape(pool, layer_rank=True)

    assert sum(key[0] == "eplb_layer_rank_load_ratio" for key in default) == 0
    assert sum(key[0] == "eplb_layer_rank_load_ratio" for key in full) == 61 * 72 == 4392
    assert "expert=" not in scrape_text(pool, layer_rank=True)


def test_series_stay_the_same_whichever_ranks_are_loaded():
    """The most loaded ranks are places 1 to 8, so that a moving hot spot makes no new series."""
    loads = np.random.default_rng(1).integers(1, 100, size=(3, 16))

    first, second = (scrape(snapshot(reading(load))) for load in (loads, loads[:, ::-1]))

    assert set(first) == set(second)
    places = [first["eplb_top_rank_load_ratio", "a", str(place)] for place in range(1, 9)]
    assert places == sorted(places, reverse=True)


def test_every_value_of_the_pool_is_shown():
    """Names, units and labels as documented."""
    samples = scrape(
        snapshot(
            reading([[6, 4, 2, 0], [3, 3, 3, 3]], balanced=0.1),
            paused=True,
            leader=False,
            migration_state="in_doubt",
            store_up=False,
        ),
        loop_age_s=2.0,
    )

    assert samples["eplb_excess_ratio", "a", "decode"] == pytest.approx(0.5)
    assert samples["eplb_recoverable_excess_ratio", "a", "decode"] == pytest.approx(0.4)
    assert samples["eplb_noise_floor_ratio", "a", "decode"] == 0.01
    assert samples["eplb_waste_share_ratio", "a", "decode"] == pytest.approx(0.25)
    assert samples["eplb_node_max_tokens", "a", "decode", "0"] == 9
    assert samples["eplb_node_mean_tokens", "a", "decode", "1"] == 4
    assert samples["eplb_top_rank_load_ratio", "a", "1"] == pytest.approx(1.5)
    assert samples["eplb_collector_age_seconds", "a"] == 2.5
    assert samples["eplb_loop_age_seconds",] == 2.0
    assert samples["eplb_leader", "a"] == 0
    assert samples["eplb_term", "a"] == 3
    assert samples["eplb_map_version", "a"] == 7
    assert samples["eplb_paused", "a"] == 1
    assert samples["eplb_store_up", "a"] == 0
    assert [key for key in samples if key[0] == "eplb_migration_state"] == [
        ("eplb_migration_state", "a", "in_doubt")
    ]
    assert samples["eplb_window_frames_total", "a"] == 12
    assert samples["eplb_window_misaligned_total", "a"] == 3


def test_the_fate_of_plans_is_shown_and_what_is_not_known_is_not():
    """A stall with its ranks, promise and fulfilment; no half-life while no gain is known to fade."""
    fate = Rebalance(
        stalled_s=30.0,
        stalled_ranks=(3, 15),
        next_plan_s=12.0,
        promised_gain=0.4,
        realised_gain=0.1,
        missed=True,
    )
    samples = scrape(snapshot(reading([[6, 4], [3, 3]]), rebalance=fate))

    assert samples["eplb_rebalance_stalled_seconds", "a"] == 30.0
    assert samples["eplb_rebalance_stalled_ranks", "a"] == 2
    assert samples["eplb_next_plan_seconds", "a"] == 12.0
    assert samples["eplb_plan_promised_gain_ratio", "a"] == 0.4
    assert samples["eplb_plan_realised_gain_ratio", "a"] == 0.1
    assert samples["eplb_gain_missed", "a"] == 1
    assert ("eplb_gain_half_life_seconds", "a") not in samples


def test_times_are_seconds_weighted_by_steps_and_absent_when_not_measured():
    """Absent is absent, not 0."""
    samples = scrape(
        snapshot(
            reading([[1, 1]], phase="prefill", steps=1, step_us=9_000.0),
            reading([[1, 1]], phase="decode", steps=3, step_us=1_000.0, a2a_us=200.0),
            reading([[1, 1]], phase="mixed", steps=5),
        )
    )

    assert samples["eplb_step_seconds", "a"] == pytest.approx(0.003)
    assert samples["eplb_a2a_seconds", "a"] == pytest.approx(0.0002)
    assert ("eplb_expert_seconds", "a") not in samples


def test_the_age_of_the_collectors_grows_while_the_loop_stands_still():
    """A frozen snapshot must not look fresh; without any frame there is no age at all."""
    assert scrape(snapshot(newest_age_s=1.0), loop_age_s=60.0)["eplb_collector_age_seconds", "a"] == 61.0
    assert ("eplb_collector_age_seconds", "a") not in scrape(snapshot(newest_age_s=None))


def test_a_daemon_before_its_first_cycle_can_be_scraped():
    """Only what is not of a pool is shown."""
    assert {name for name, *_ in scrape()} == {"eplb_build_info", "eplb_loop_age_seconds"}


def test_several_pools_share_a_family():
    """One HELP and TYPE a name, whatever the number of pools."""
    text = scrape_text(snapshot(reading([[1, 3]])), snapshot(reading([[1, 1]]), pool="b"))

    assert text.count("# TYPE eplb_imbalance_ratio gauge") == 1
    assert 'eplb_imbalance_ratio{layer="0",phase="decode",pool="b"} 1.0' in text


def test_the_help_names_the_inverse_that_engines_show():
    """A reader who compares with vLLM or SGLang finds the word."""
    line = next(
        line
        for line in scrape_text(snapshot(reading([[1, 3]]))).splitlines()
        if "HELP eplb_imbalance" in line
    )

    assert "balancedness" in line
    assert "vLLM" in line
    assert "SGLang" in line


def test_every_exported_name_is_listed():
    """Rules and dashboards are checked against this list."""
    full = replace(large(["decode"]), state_saved=True, store_may_evict=False, store_used_ratio=0.1)
    samples = scrape(full, layer_rank=True)

    assert {name for name, *_ in samples} == metric_names()


@given(
    st.lists(
        st.lists(st.integers(0, 50), min_size=4, max_size=4),
        min_size=1,
        max_size=5,
    ),
    st.floats(allow_nan=True, allow_infinity=True),
)
def test_no_sample_is_ever_nan_or_infinite(load, odd):
    """What cannot be measured is not shown."""
    samples = scrape(snapshot(reading(load, noise=odd, recoverable_excess=odd, step_us=odd), coverage=odd))

    assert all(np.isfinite(value) for value in samples.values())
