"""Words for --dispatch: engines and rules, each of which the solver knows."""

import pytest

from eplb.formats.registry import abilities
from eplb.offline.engines import ENGINES, NAMES, engine_of, usual_dispatch
from placement.models import DISPATCH, check_dispatch
from placement.traffic import check_dispatcher


@pytest.mark.parametrize("name", NAMES)
def test_every_word_is_a_rule_that_the_solver_knows(name):
    """With a dispatcher that it knows too."""
    engine = engine_of(name)
    check_dispatch(engine.dispatch)
    check_dispatcher(engine.dispatcher)
    assert engine.dispatch == (ENGINES[name].dispatch if name in ENGINES else name)


def test_engines_and_rules_do_not_share_a_word():
    """A word means one thing."""
    assert set(ENGINES).isdisjoint(DISPATCH)


def test_a_map_for_an_engine_is_planned_for_that_engine():
    """Files of no engine say nothing of dispatch."""
    usual = {form: usual_dispatch(form) for form in abilities("write_map")}
    assert {form for form, word in usual.items() if word == form} == set(ENGINES) - {"vllm"}
    assert {word for form, word in usual.items() if form != word} == {"even"}
