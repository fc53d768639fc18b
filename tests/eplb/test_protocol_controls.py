"""Real agents without a guard do the harm that the guard stands against: the tables are what runs."""

import numpy as np
import pytest
from agent_crew import FACTS, Crew, offer, rotated, start_map
from agent_faults import no_memory, raise_term, spoil_source
from test_migration_status import LATE_MS, NOW_MS, begun, everywhere, record, rows_after

from eplb.errors import PlanError
from eplb.migration import Actuator, State
from eplb.protocol import ALL_GUARDS

BASE = start_map()
TARGET = np.stack([rotated(row) for row in BASE])
GOOD = offer(FACTS, BASE, TARGET)


def test_without_the_vote_ranks_serve_two_maps():
    for guards, maps in ((ALL_GUARDS, 1), (ALL_GUARDS - {"unanimous_vote"}, 2)):
        crew = Crew(guards=guards)
        crew.stage(GOOD)
        raise_term(crew, 2)
        crew.link.away = False
        crew.settle()
        assert len(set(crew.maps())) == maps


def test_without_digests_a_damaged_tensor_is_served():
    for guards, right in (
        (ALL_GUARDS, True),
        (ALL_GUARDS - {"weights_right", "probe_right", "read_back"}, False),
    ):
        crew = Crew(guards=guards)
        spoil_source(crew, 1)
        crew.offer(GOOD)
        crew.settle()
        assert (crew.states() == ["refused"] * FACTS.ranks) is right
        if not right:
            assert crew.states() == ["switched"] * FACTS.ranks
            assert not crew.weights_are_right()


def test_without_the_term_a_deposed_leader_changes_the_map():
    for guards, base in ((ALL_GUARDS, True), (ALL_GUARDS - {"term_not_old"}, False)):
        crew = Crew(guards=guards)
        crew.offer(GOOD, term=2)
        crew.settle()
        assert (crew.maps() == [BASE.tobytes()] * FACTS.ranks) is base


def test_a_rank_without_room_says_no_whatever_guards_there_are():
    crew = Crew(guards=frozenset(["unanimous_vote"]))
    no_memory(crew, 1)
    crew.offer(GOOD)
    crew.settle()
    assert crew.maps() == [BASE.tobytes()] * FACTS.ranks


def test_the_daemon_takes_the_same_set():
    shelf, careful = begun()
    live = everywhere(rows_after(1))
    live[2] = record(2)
    bold = Actuator(FACTS, shelf.write, guards=ALL_GUARDS - {"no_abort_in_doubt"})
    assert bold.observe(shelf.desired(), live, LATE_MS).state is State.IN_DOUBT
    with pytest.raises(PlanError, match="in doubt"):
        careful.withdraw(shelf.desired(), live, term=1, now_ms=NOW_MS)
    bold.withdraw(shelf.desired(), live, term=1, now_ms=NOW_MS)
    assert shelf.desired().offer is None
