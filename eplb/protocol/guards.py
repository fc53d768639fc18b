"""Guards: what must hold before a step, the hazard that each stands against, and what is said when it does not hold.

A guard is looked at only if its name is in the set that the caller gives; ``ALL_GUARDS`` in service. Fewer are for the
mutation control of the model check and for the negative controls of fault injection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eplb.protocol.facts import Arrived
from eplb.protocol.refusals import Code, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from eplb.protocol.facts import Asked, Known

CACHE_AGE_MAX_S = 5.0
"""An older cache means that the store is away, and a store that is away never changes a map."""
ANY_STEP = -1
"""Step in a header that names none."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A named condition of a rank.

    ``hazard`` what happens without it; ``codes`` what a refusal by it can say; ``refusal`` the reason against, or None.
    """

    name: str
    hazard: str
    codes: tuple[Code, ...]
    refusal: Callable[[Asked, Known], Refusal | None]


def _same_pool(asked: Asked, known: Known) -> Refusal | None:
    if asked.pool == known.pool:
        return None
    return Refusal(Code.POOL_DIFFERS, f"offer is for pool {asked.pool!r}, this rank serves {known.pool!r}")


def _row_sound(asked: Asked, _known: Known) -> Refusal | None:
    return asked.fault


def _term_not_old(asked: Asked, known: Known) -> Refusal | None:
    if asked.digest == 0 or asked.term >= known.term_seen:
        return None
    return Refusal(Code.OLD_TERM, f"offer has term {asked.term}, this rank has seen {known.term_seen}")


def _same_run(asked: Asked, known: Known) -> Refusal | None:
    if asked.run_id == known.run_id:
        return None
    return Refusal(Code.RUN_DIFFERS, f"offer is for run {asked.run_id}, this group is run {known.run_id}")


def _same_model(asked: Asked, known: Known) -> Refusal | None:
    if asked.digest == 0 or asked.model_digest == known.model_digest:
        return None
    return Refusal(
        Code.MODEL_DIFFERS,
        f"offer is for model {asked.model_digest:016x}, this rank has loaded {known.model_digest:016x}",
    )


def _base_live(asked: Asked, known: Known) -> Refusal | None:
    others = asked.others or ((),) * len(asked.layers)
    for layer, base, also, served in zip(asked.layers, asked.bases, others, known.served, strict=False):
        if served != base and served not in also:
            return Refusal(
                Code.BASE_DIFFERS, f"layer {layer}: serves map {served:016x}, the offer is for {base:016x}"
            )
    return None


def _target_right(asked: Asked, _known: Known) -> Refusal | None:
    for layer, target, found in zip(asked.layers, asked.targets, asked.found, strict=False):
        if target != found:
            return Refusal(
                Code.TARGET_DIGEST,
                f"layer {layer}: the target row does not have the digest that the offer names",
            )
    return None


def _members_only(_asked: Asked, known: Known) -> Refusal | None:
    return known.stray


def _not_stuck(_asked: Asked, known: Known) -> Refusal | None:
    if not known.stuck:
        return None
    return Refusal(Code.STUCK, "a slot of this rank failed its read-back; repair it or restart the rank")


def _mends_broken(_asked: Asked, known: Known) -> Refusal | None:
    return known.unmended


def _not_closed(_asked: Asked, known: Known) -> Refusal | None:
    return Refusal(Code.CLOSED, "this offer was already refused or applied here") if known.closed else None


def _not_busy(_asked: Asked, known: Known) -> Refusal | None:
    if not known.leaving and not known.held:
        return None
    return Refusal(Code.BUSY, "the transfer of an earlier offer has not ended")


def _same_step(_asked: Asked, known: Known) -> Refusal | None:
    if known.named_step in {known.step, ANY_STEP} and known.named_run == known.run_id:
        return None
    return Refusal(
        Code.STEP_DIFFERS,
        f"rank 0 is at step {known.named_step} of run {known.named_run}, this rank at {known.step} of {known.run_id}",
    )


def _same_offer(asked: Asked, known: Known) -> Refusal | None:
    if known.held == 0:
        return Refusal(Code.NOT_PREPARED, "this rank holds no offer")
    if known.held != known.named:
        return Refusal(
            Code.OFFER_DIFFERS, f"this rank has prepared offer {asked.key!r}, not the one voted on"
        )
    return None


def _not_expired(_asked: Asked, known: Known) -> Refusal | None:
    if known.age_s <= known.good_for_s:
        return None
    return Refusal(
        Code.EXPIRED, f"seen {known.age_s:.1f} s ago by this rank's own clock, good for {known.good_for_s} s"
    )


def _transfer_complete(_asked: Asked, known: Known) -> Refusal | None:
    if known.arrived in (Arrived.COMPLETE, Arrived.NONE):
        return None  # whether an offer is in hand at all is another guard's question
    if known.arrived is Arrived.FAILED:
        return known.failure or Refusal(Code.TRANSFER_FAILED, "the transfer into staging failed")
    return Refusal(Code.NOT_PREPARED, "the transfer into staging has not ended")


def _weights_right(_asked: Asked, known: Known) -> Refusal | None:
    return known.weights_fault


def _probe_right(_asked: Asked, known: Known) -> Refusal | None:
    return known.probe_fault


def _read_back(_asked: Asked, known: Known) -> Refusal | None:
    return known.weights_fault or known.probe_fault


def _unanimous_vote(_asked: Asked, known: Known) -> Refusal | None:
    if not known.noes:
        return None
    return Refusal(Code.NOT_UNANIMOUS, f"ranks {list(known.noes)[:8]} said no")


def _store_fresh(_asked: Asked, known: Known) -> Refusal | None:
    if known.cache_age_s <= CACHE_AGE_MAX_S:
        return None
    return Refusal(Code.STORE_AWAY, f"the store has not answered for {known.cache_age_s:.1f} s")


def _still_wanted(_asked: Asked, known: Known) -> Refusal | None:
    return None if known.still_wanted else Refusal(Code.WITHDRAWN, "the store no longer asks for this offer")


RANK_GUARDS: tuple[Guard, ...] = (
    Guard("same_pool", "ranks serve the map of another pool", (Code.POOL_DIFFERS,), _same_pool),
    Guard(
        "row_sound",
        "an expert is left without a slot, or a rank keeps the same one twice",
        (Code.DAMAGED_OFFER, Code.SHAPE, Code.ID_RANGE, Code.NO_COVERAGE, Code.TWIN, Code.SHARES),
        _row_sound,
    ),
    Guard(
        "term_not_old",
        "a leader that was deposed changes the map after its successor was heard of",
        (Code.OLD_TERM,),
        _term_not_old,
    ),
    Guard(
        "same_run",
        "an offer that an earlier life of the group answered is applied by its next, which has forgotten that",
        (Code.RUN_DIFFERS,),
        _same_run,
    ),
    Guard("same_model", "a plan for one model is applied to another", (Code.MODEL_DIFFERS,), _same_model),
    Guard(
        "base_live",
        "a plan that was judged on one map is applied to another, and undoes what was done since",
        (Code.BASE_DIFFERS,),
        _base_live,
    ),
    Guard(
        "target_right",
        "ranks switch to a row that nobody judged, and the daemon waits for another for ever",
        (Code.TARGET_DIGEST,),
        _target_right,
    ),
    Guard(
        "members_only",
        "an expert is given to a rank that is no longer in the group",
        (Code.NOT_MEMBER,),
        _members_only,
    ),
    Guard("not_stuck", "a rank with a wrong slot goes on as if it were sound", (Code.STUCK,), _not_stuck),
    Guard(
        "mends_broken",
        "a rank that serves a layer wrong, which its engine could mend, takes an offer that leaves it wrong",
        (Code.STUCK,),
        _mends_broken,
    ),
    Guard(
        "not_closed",
        "an offer that all ranks have answered is applied after all",
        (Code.CLOSED,),
        _not_closed,
    ),
    Guard("not_busy", "two transfers at once share one wire and mix their parcels", (Code.BUSY,), _not_busy),
    Guard("same_step", "ranks switch between different forwards", (Code.STEP_DIFFERS,), _same_step),
    Guard(
        "same_offer",
        "a rank that let its offer go says yes to it, and the others switch without it",
        (Code.NOT_PREPARED, Code.OFFER_DIFFERS),
        _same_offer,
    ),
    Guard(
        "not_expired",
        "an offer is applied when its time is over, and its leader may have gone on to another",
        (Code.EXPIRED,),
        _not_expired,
    ),
    Guard(
        "transfer_complete",
        "slots are overwritten by weights that have not come",
        (Code.NOT_PREPARED, Code.TRANSFER_FAILED, Code.NO_SOURCE),
        _transfer_complete,
    ),
    Guard(
        "weights_right",
        "a tensor that was damaged on its way overwrites a good copy",
        (Code.WEIGHTS_DIFFER,),
        _weights_right,
    ),
    Guard(
        "probe_right",
        "bytes that are right but lie in another layout than the kernel reads overwrite a good copy",
        (Code.PROBE_DIFFERS,),
        _probe_right,
    ),
    Guard(
        "read_back",
        "a slot that did not take what was written serves tokens",
        (Code.WEIGHTS_DIFFER, Code.PROBE_DIFFERS, Code.APPLY_UNVERIFIED),
        _read_back,
    ),
    Guard(
        "unanimous_vote",
        "some ranks switch and others do not, so that they serve together under two maps",
        (Code.NOT_UNANIMOUS,),
        _unanimous_vote,
    ),
    Guard(
        "store_fresh",
        "rank 0 acts on what a store that is away asked for long ago",
        (Code.STORE_AWAY,),
        _store_fresh,
    ),
    Guard(
        "still_wanted",
        "an offer is applied although rank 0 has read that it was withdrawn",
        (Code.WITHDRAWN,),
        _still_wanted,
    ),
)

BY_NAME: dict[str, Guard] = {guard.name: guard for guard in RANK_GUARDS}
