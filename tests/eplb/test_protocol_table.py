"""The tables themselves: whole, without contradictions, and printed as the document says."""

from pathlib import Path

import pytest

from eplb.errors import ProtocolError
from eplb.protocol import (
    ALL_GUARDS,
    Asked,
    Code,
    Event,
    Evidence,
    Known,
    Profile,
    RankState,
    Refusal,
    WaveState,
)
from eplb.protocol.draw import document
from eplb.protocol.guards import BY_NAME
from eplb.protocol.rank import ROWS, decide_rank
from eplb.protocol.wave import ACTS, DUE, STATES, observe_wave

DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_no_two_rows_speak_of_the_same_event_in_the_same_state():
    spoken = [(profile, state, row.event) for row in ROWS for profile in row.profiles for state in row.states]
    assert len(spoken) == len(set(spoken))


def test_every_guard_of_a_rank_is_asked_in_some_row_and_every_row_names_guards_that_exist():
    used = {name for row in ROWS for name in row.guards}
    assert used == set(BY_NAME)
    assert {name for guards in ACTS.values() for name in guards} <= ALL_GUARDS


def test_every_event_has_a_row():
    assert {row.event for row in ROWS} == set(Event)


def test_an_event_without_a_row_is_an_error_that_names_both():
    with pytest.raises(ProtocolError, match=r"serving.*written"):
        decide_rank(RankState.SERVING, Event.WRITTEN, guards=ALL_GUARDS)


def test_a_guard_that_is_not_in_the_set_is_not_asked():
    asked, known = Asked(digest=1, term=1), Known(term_seen=2)
    assert (
        decide_rank(RankState.SERVING, Event.ASKED, asked, known, guards=ALL_GUARDS).refusal.code
        == "old_term"
    )
    assert (
        decide_rank(
            RankState.SERVING, Event.ASKED, asked, known, guards=ALL_GUARDS - {"term_not_old"}
        ).refusal
        is None
    )


def test_once_the_engine_commits_neither_time_nor_a_withdrawal_stops_it():
    for event in (Event.TIME_PASSED, Event.UNNAMED, Event.COMPARED):
        with pytest.raises(ProtocolError):
            decide_rank(RankState.COMMITTING, event, guards=ALL_GUARDS, profile=Profile.DELEGATED)


WRONG = Refusal(Code.STUCK, "layer 0 slot 3 was read back wrong, and the offer leaves it as it is")


@pytest.mark.parametrize(
    ("profile", "unmended", "takes"),
    [
        (Profile.DELEGATED, None, True),
        (Profile.DELEGATED, WRONG, False),
        (Profile.STAGED, None, False),
        (Profile.STAGED, WRONG, False),
    ],
)
def test_a_stuck_rank_takes_only_what_its_engine_writes_anew(profile, unmended, takes):
    """An agent can be started again with sound weights; what an engine has committed wrong only a further plan can mend."""
    known = Known(stuck=True, unmended=unmended)
    done = decide_rank(RankState.STUCK, Event.ASKED, Asked(), known, guards=ALL_GUARDS, profile=profile)
    assert (done.refusal is None) == takes


def test_a_stuck_rank_whose_mending_was_voted_down_stays_stuck():
    for noes, state in (((), RankState.COMMITTING), ((1,), RankState.STUCK)):
        done = decide_rank(
            RankState.STUCK, Event.VOTED_TO_STAGE, Asked(), Known(noes=noes), guards=ALL_GUARDS,
            profile=Profile.DELEGATED,
        )  # fmt: skip
        assert done.state is state


def test_every_state_of_a_wave_says_what_is_due_and_the_last_row_always_holds():
    assert {row.state for row in STATES} == set(WaveState) == set(DUE)
    assert STATES[-1].holds(Evidence())


def test_layers_that_an_engine_commits_are_in_doubt_until_all_ranks_serve_them():
    some = Evidence(on_offer=True, waiting=(0, 1), committing=(0, 1))
    assert observe_wave(some).state is WaveState.IN_DOUBT
    assert (
        observe_wave(Evidence(on_offer=True, waiting=(1,), switched=(0,), stuck=(1,))).code
        == "apply_unverified"
    )


def test_the_document_is_what_the_command_prints():
    assert DOCUMENT.read_text(encoding="utf-8") == document()
