"""The start: ranks that do not agree, or one that was given nonsense, are told so on all ranks alike, and none waits."""

import threading

import numpy as np
from agent_crew import FACTS, CrewMemory, start_map
from hypothesis import given, settings
from hypothesis import strategies as st

from eplb.agent import Agent, ThreadGroup, ThreadTransport
from eplb.errors import ConfigError, MigrationError

BASE = start_map()
SWAPPED = BASE[:, [1, 0, *range(2, FACTS.slots)]]
EVEN = np.ones(BASE.shape)
SOUND = {"rows": BASE, "gate_steps": 20, "map_version": 7, "shares": None, "run_id": 77}
MALFORMED = {
    "two of three layers": {"rows": BASE[:2]},
    "a slot too few": {"rows": BASE[:, :-1]},
    "ragged rows": {"rows": [[0], [0, 1], []]},
    "no map": {"rows": None},
    "fractions": {"rows": BASE + 0.5},
    "an id too large": {"rows": np.where(BASE == 3, FACTS.experts, BASE)},
    "an id that 32 bits would cut to a sound one": {"rows": BASE.astype(np.int64) + 2**32},
    "shares of another shape": {"shares": np.ones((2, 3))},
    "shares that are none": {"shares": np.full(BASE.shape, "half")},
    "a version below 0": {"map_version": -1},
    "a version beyond 64 bits": {"map_version": 2**70},
    "a version that is none": {"map_version": None},
    "gate_steps beyond 64 bits": {"gate_steps": 2**70},
    "a run beyond 64 bits": {"run_id": 2**64},
}
DIFFERENT = {
    "map": {"rows": SWAPPED}, "shares": {"shares": EVEN}, "gate_steps": {"gate_steps": 40},
    "map_version": {"map_version": 8},
}  # fmt: skip
ranks = st.integers(min_value=0, max_value=FACTS.ranks - 1)


def start_everywhere(given_by_rank) -> list[object]:
    """The agent of each rank, or the error that its start raised."""
    outcomes: list[object] = [None] * FACTS.ranks
    transports = ThreadTransport.create(FACTS.ranks)

    def start(group: ThreadGroup) -> None:
        wanted = {**SOUND, **given_by_rank.get(group.rank, {})}
        rows, memory = wanted.pop("rows"), CrewMemory(FACTS, group.rank, BASE)
        try:
            outcomes[group.rank] = Agent(
                FACTS, group, transports[group.rank], memory, rows, incarnation=1, **wanted
            )
        except Exception as error:  # noqa: BLE001 - what kind it is, is what the tests ask
            outcomes[group.rank] = error

    groups = ThreadGroup.create(FACTS.ranks, 5.0)
    threads = [threading.Thread(target=start, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def sentence_of_all(outcomes) -> str:
    """The one sentence with which every rank's start ended."""
    assert {type(outcome) for outcome in outcomes} == {MigrationError}
    (sentence,) = {str(outcome) for outcome in outcomes}
    return sentence


def test_ranks_that_agree_start():
    outcomes = start_everywhere({})
    assert [agent.map_version for agent in outcomes] == [7] * FACTS.ranks


@settings(max_examples=40, deadline=None)
@given(ranks, st.sampled_from(sorted(MALFORMED)))
def test_what_one_rank_was_given_malformed_stops_the_start_on_all_ranks_alike(rank, fault):
    sentence = sentence_of_all(start_everywhere({rank: MALFORMED[fault]}))
    assert sentence.startswith(f"rank {rank}: ")
    assert "another rank did not come" not in sentence


@settings(max_examples=20, deadline=None)
@given(ranks, st.sampled_from(sorted(DIFFERENT)))
def test_what_one_rank_was_given_otherwise_stops_the_start_on_all_ranks_alike(rank, name):
    sentence = sentence_of_all(start_everywhere({rank: DIFFERENT[name]}))
    assert f"its {name} differs from rank 0's" in sentence
    assert sentence.startswith(f"rank {rank or 1}: ")


def test_gate_steps_below_the_limit_on_one_rank_are_a_difference_and_on_all_a_named_error():
    assert "gate_steps" in sentence_of_all(start_everywhere({2: {"gate_steps": 19}}))
    outcomes = start_everywhere({rank: {"gate_steps": 19} for rank in range(FACTS.ranks)})
    assert {type(outcome) for outcome in outcomes} == {ConfigError}
