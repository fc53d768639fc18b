"""The migration protocol as transition tables: what agent and daemon decide, without any I/O.

The running agent (``eplb.agent``) and the daemon (``eplb.migration``) execute these functions, and the model check
(``python -m eplb.protocol.check``, on numpy) walks them through every interleaving. Needs nothing but the standard library.
"""

from eplb.protocol.facts import Arrived, Asked, Known, Profile, RankState
from eplb.protocol.guards import CACHE_AGE_MAX_S, RANK_GUARDS
from eplb.protocol.leader import STORE_GUARDS, may_lead, may_write, next_term
from eplb.protocol.lives import Told, left_broken, ranks_of_run, serving_run, weights_in_doubt
from eplb.protocol.rank import Effect, Event, Transition, decide_rank
from eplb.protocol.refusals import Code, Refusal, Refusals
from eplb.protocol.wave import (
    ACT_GUARDS,
    BUSY,
    DUE,
    WAITS_FOR,
    Act,
    ActFacts,
    Evidence,
    WaveState,
    decide_act,
    observe_wave,
)

ALL_GUARDS: frozenset[str] = frozenset(
    [guard.name for guard in RANK_GUARDS]
    + [guard.name for guard in ACT_GUARDS]
    + [guard.name for guard in STORE_GUARDS]
)
"""Names of all guards; fewer are for negative controls only."""

__all__ = [
    "ACT_GUARDS",
    "ALL_GUARDS",
    "BUSY",
    "CACHE_AGE_MAX_S",
    "DUE",
    "RANK_GUARDS",
    "STORE_GUARDS",
    "WAITS_FOR",
    "Act",
    "ActFacts",
    "Arrived",
    "Asked",
    "Code",
    "Effect",
    "Event",
    "Evidence",
    "Known",
    "Profile",
    "RankState",
    "Refusal",
    "Refusals",
    "Told",
    "Transition",
    "WaveState",
    "decide_act",
    "decide_rank",
    "left_broken",
    "may_lead",
    "may_write",
    "next_term",
    "observe_wave",
    "ranks_of_run",
    "serving_run",
    "weights_in_doubt",
]
