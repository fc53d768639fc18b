"""Rules of a pool's history, fed by a real window."""

import resource
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import structlog
from history_world import FACTS, Traffic

from eplb.assess import served_by
from eplb.config import HistoryConfig
from eplb.history import History
from eplb.history.file import read_history


def history(facts=FACTS, most_slices=64, **settings):
    return History(facts, HistoryConfig(**settings), horizon_s=120.0, most_slices=most_slices)


def serve(traffic, kept, kinds, cycles=9):
    """Three minutes of each kind; the last view."""
    view = None
    for kind in kinds:
        for _ in range(cycles):
            view = traffic.serve(kind)
            kept.note(view)
    return view


def material(kept, view, held_out=None):
    served = served_by(view, 0)
    return kept.material(view, served, int(served.sum()) // 4 if held_out is None else held_out)


@contextmanager
def events():
    with structlog.testing.capture_logs() as caught:
        yield caught


def test_a_step_seen_in_many_views_is_kept_once():
    """Every view shows the steps of a minute again."""
    traffic, kept = Traffic(), history()
    for _ in range(6):
        kept.note(traffic.serve(0))
        kept.note(traffic.view())
    steps = [step.key for moment in kept._reservoir.moments for step in moment.steps]
    assert (
        len(steps)
        == len(set(steps))
        == 24 - sum(max(0, len(steps) - 8) for steps in _steps_by_minute(traffic).values())
    )


def _steps_by_minute(traffic):
    """Steps of each minute of the clock, by the rule that four come every 20 s."""
    minutes = {}
    start = traffic.clock.now_ms - 6 * 20_000
    for cycle in range(1, 7):
        minutes.setdefault((start + cycle * 20_000) // 60_000, []).extend(range(4))
    return minutes


def test_counts_are_those_of_the_window():
    """To the last token, through packing and unpacking."""
    traffic, kept = Traffic(), history()
    view = traffic.serve(0, steps=2)
    kept.note(view)
    total = sum(int(moment._counts.sum()) for moment in kept._reservoir.moments)
    assert total == int(view.tokens.sum())


def test_a_plan_never_sees_what_judges_it():
    """The newest slices of the window are the last ones of the material, and in no other place; no step is there twice."""
    traffic, kept = Traffic(), history()
    view = serve(traffic, kept, (0, 1, 0))
    given = material(kept, view)
    judges = given.tokens[-given.held_out :]
    assert np.array_equal(judges, view.tokens[-given.held_out :])
    rows = {row.tobytes() for row in given.tokens}
    assert len(rows) == len(given.tokens) == len(given.weights) + given.held_out


def test_slices_that_older_maps_served_are_planned_on_too():
    """Counts by logical expert do not depend on the map; only the live map's slices judge."""
    traffic, kept = Traffic(), history()
    view = serve(traffic, kept, (0,))
    served = np.arange(view.slices) >= view.slices - 4
    given = kept.material(view, served, 1)
    assert given.planned_on.window_slices == view.slices - 1
    assert np.array_equal(given.tokens[-1], view.tokens[-1])


@pytest.mark.parametrize("use", ["off", "regimes"])
def test_without_a_history_the_window_is_planned_on_as_ever(use):
    """At the start, and where it is switched off."""
    traffic, kept = Traffic(), history(use=use)
    view = serve(traffic, kept, (0,), cycles=3 if use == "regimes" else 20)
    given = material(kept, view)
    assert np.array_equal(given.tokens, view.tokens)
    assert given.weights is None
    assert given.planned_on.history_slices == 0
    assert "of the window alone" in given.planned_on.sentence


def test_the_regime_that_serves_weighs_most_and_keeps_its_id():
    """Three kinds of traffic in turn: each is one regime, and the one of now has most of the weight."""
    traffic, kept = Traffic(), history(most_slices=400)
    heaviest = {}
    for kind in (0, 1, 2, 0, 1, 2, 0, 1, 2):
        view = serve(traffic, kept, (kind,), cycles=12)
        told = material(kept, view).planned_on
        heaviest.setdefault(kind, []).append(told.regimes[0])
    assert len(told.regimes) == 3
    for found in heaviest.values():
        (_, before), (last, share) = found[-2], found[-1]
        assert last == found[-2][0]
        assert min(before, share) > 0.5
    assert len({found[-1][0] for found in heaviest.values()}) == 3


def test_the_weights_by_regime_are_those_of_the_slices():
    """The material's slices of the kind of now carry the share that is told."""
    traffic, kept = Traffic(), history(most_slices=400)
    view = serve(traffic, kept, (0, 1) * 4, cycles=12)
    given = material(kept, view)
    planned = given.tokens[: -given.held_out]
    means = np.stack([view.tokens[-8:].mean(axis=0), serve(traffic, kept, (0,)).tokens[-8:].mean(axis=0)])
    away = np.square(planned[:, None] - means[None]).sum(axis=(2, 3))
    of_now = away[:, 0] < away[:, 1]
    share = given.weights[of_now].sum() / given.weights.sum()
    assert share == pytest.approx(given.planned_on.regimes[0][1], abs=0.02)


def test_the_window_has_its_least_share():
    """Hours of another kind do not drown what has just begun."""
    traffic, kept = Traffic(), history(use="pooled", window_share=0.4, most_slices=400)
    serve(traffic, kept, (0,), cycles=60)
    view = serve(traffic, kept, (1,), cycles=2)
    given = material(kept, view)
    own = given.weights[given.planned_on.history_slices :].sum() / given.weights.sum()
    assert own == pytest.approx(0.4, abs=0.01)


def test_no_more_slices_than_the_solver_takes():
    """And they still span the whole history."""
    traffic, kept = Traffic(), history(most_slices=20)
    view = serve(traffic, kept, (0, 1) * 3)
    given = material(kept, view)
    told = given.planned_on
    assert len(given.weights) == told.window_slices + told.history_slices <= 20
    assert told.span_h > 0.2
    assert 1 <= told.effective_slices <= 20


def test_the_same_traffic_gives_the_same_material():
    """To the last bit."""
    given = []
    for _ in range(2):
        traffic, kept = Traffic(seed=3), history(most_slices=40)
        given.append(material(kept, serve(traffic, kept, (0, 1, 0, 1))))
    assert np.array_equal(given[0].tokens, given[1].tokens)
    assert given[0].weights.tobytes() == given[1].weights.tobytes()
    assert given[0].planned_on == given[1].planned_on


def test_a_restart_goes_on_where_it_was(tmp_path):
    """Steps, ids of regimes and all; the material is the same, and no step comes in twice."""
    traffic, kept = Traffic(), history(folder=str(tmp_path), most_slices=400)
    view = serve(traffic, kept, (0, 1) * 3, cycles=12)
    first = material(kept, view)
    kept.save(view.time_ms)
    again = history(folder=str(tmp_path), most_slices=400)
    again.note(view)
    second = material(again, view)
    assert np.array_equal(first.tokens, second.tokens)
    assert first.planned_on == second.planned_on
    assert again.moments == kept.moments


def test_the_file_is_written_from_time_to_time(tmp_path):
    """Every five minutes of the store's clock, without being asked."""
    traffic, kept = Traffic(), history(folder=str(tmp_path))
    serve(traffic, kept, (0,), cycles=15)
    assert not (tmp_path / "p.history").exists()
    serve(traffic, kept, (0,), cycles=2)
    assert read_history(tmp_path / "p.history", most_bytes=10**6).moments


def test_a_damaged_file_is_refused_moved_aside_and_the_history_begins_anew(tmp_path):
    """Said by the file's name, and the daemon goes on."""
    path = tmp_path / "p.history"
    path.write_bytes(b"not a history")
    with events() as caught:
        kept = history(folder=str(tmp_path))
    assert caught[0]["event"] == "history_refused"
    assert str(path) in caught[0]["reason"]
    assert (tmp_path / "p.history.refused").read_bytes() == b"not a history"
    traffic = Traffic()
    serve(traffic, kept, (0,))
    kept.save(traffic.clock.now_ms)
    assert read_history(path, most_bytes=10**6).pool == "p"


@pytest.mark.parametrize("change", [{"experts": 9}, {"model_layers": (3, 5)}, {"top_k": 3}])
def test_a_history_of_another_model_is_refused(tmp_path, change):
    """Its experts are not ours."""
    traffic, kept = Traffic(), history(folder=str(tmp_path))
    serve(traffic, kept, (0,))
    kept.save(traffic.clock.now_ms)
    fields = {name: getattr(FACTS, name) for name in FACTS.__slots__} | change
    with events() as caught:
        other = history(type(FACTS)(**fields), folder=str(tmp_path))
    assert "another pool or model" in caught[0]["reason"]
    assert other.moments == 0


def test_other_weights_under_the_same_shape_drop_the_history(tmp_path):
    """The ranks' model digest says so, after a restart too."""
    traffic, kept = Traffic(), history(folder=str(tmp_path))
    kept.note(traffic.serve(0), 0)
    kept.note(traffic.serve(0), 77)
    kept.note(traffic.serve(0), 0)
    assert kept.moments > 0
    kept.save(traffic.clock.now_ms)
    again = history(folder=str(tmp_path))
    held = traffic.view()
    with events() as caught:
        again.note(held, 78)
    assert [event["event"] for event in caught] == ["history_dropped"]
    assert not (tmp_path / "p.history").exists()
    assert again.moments <= 1


def test_a_full_disk_is_said_and_stops_nothing(tmp_path):
    """The old file stays, and no scrap of the new one."""
    traffic, kept = Traffic(), history(folder=str(tmp_path))
    serve(traffic, kept, (0,))
    kept.save(traffic.clock.now_ms)
    before = (tmp_path / "p.history").read_bytes()
    serve(traffic, kept, (0,))
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with events() as caught:
            kept.save(traffic.clock.now_ms)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [event["event"] for event in caught] == ["history_unwritten"]
    assert [file.name for file in tmp_path.iterdir()] == ["p.history"]
    assert (tmp_path / "p.history").read_bytes() == before


def test_a_folder_that_cannot_be_looked_into_is_said_and_stops_nothing():
    """Here its name is longer than a name may be."""
    with events() as caught:
        assert history(folder="x" * 5000).moments == 0
    assert [event["event"] for event in caught] == ["history_unread"]


def test_intervals_are_no_steps():
    """Where no step is sampled the view shows sums of time, which are not kept."""
    traffic, kept = Traffic(), history()
    view = traffic.serve(0)
    kept.note(replace(view, run_ids=np.zeros(view.slices, dtype=np.uint64)))
    assert kept.moments == 0
