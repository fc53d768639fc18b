"""Whether a map pays, in plain words, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, isnan
from typing import TYPE_CHECKING

import numpy as np

from eplb.report.drift import between_domains, between_parts
from eplb.report.forecast import by_phase, gain_on
from eplb.report.names import layer_numbers
from eplb.report.words import percent, ratio, some

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eplb.report.forecast import Gain
    from eplb.report.study import Study

LEAST_GAIN = 0.02
"""Smallest drop of the ratio that can be told from noise afterwards; the daemon's own default (``min_gain``)."""
LEAST_TIME = 0.02
"""Smallest part of the time, by a cost preset, that counts."""
LEAST_SLICES = 3
"""Scored slices below which nothing is forecast."""
SINGLE = 1.05
"""One copy with more than this of a rank's fair share stands out."""
MUCH_LEFT = 0.05
"""Excess above the sampling floor that is worth a word."""
MORE_NODES = 1.02
"""Nodes per token after over before from which traffic is worth a word."""
LASTS = 0.6
"""Part of the hot set that must stay from one part of the trace to the next for a fixed map to last."""

OVERFIT = 0.2
"""Part of the gain by which that on the planned slices must exceed it for a word."""

PAYS, NOT, UNSURE = "pays", "not", "unsure"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``answer``: ``pays``, ``not`` or ``unsure``. ``code``: of the reason. ``reasons``: sentences, what decides first."""

    answer: str
    code: str
    headline: str
    reasons: tuple[str, ...]


def verdict(study: Study) -> Verdict:
    """Judge the map that the page is about on the slices that score it; says so where it may have been planned on them."""
    gain = gain_on(study, "all", study.scored)
    checks = (_no_load, _one_rank, _few_slices, _balanced, _too_small, _by_chance, _no_time)
    found = next((answer for check in checks if (answer := check(study, gain)) is not None), None)
    judged = _pays(study, gain) if found is None else found
    return replace(judged, reasons=(*judged.reasons, *_remarks(study, gain, judged.code)))


def hottest_neighbours(study: Study) -> float:
    """Mean part of the hot set that stays from one part of the trace to the next; NaN with fewer than two parts."""
    next_to = np.diagonal(between_parts(study).shared, offset=1)
    known = next_to[~np.isnan(next_to)]
    return float(known.mean()) if known.size else float("nan")


def _no_load(_: Study, gain: Gain) -> Verdict | None:
    if not isnan(gain.before):
        return None
    why = "There are no tokens to score: record while the engine serves requests."
    return Verdict(UNSURE, "no_load", "This trace cannot tell: it holds no load.", (why,))


def _one_rank(study: Study, _: Gain) -> Verdict | None:
    if study.ask.topology.ranks > 1:
        return None
    why = "One rank does all the work whatever it holds, so there is nothing to balance."
    return Verdict(NOT, "one_rank", "This will not pay: there is only one rank.", (why,))


def _few_slices(study: Study, gain: Gain) -> Verdict | None:
    held, slices = int(study.held.sum()), study.file.trace.slices
    if (slices if study.foreign else held) >= LEAST_SLICES:
        return None
    there = f"There {'is' if slices == 1 else 'are'} {some(slices, 'slice')}."
    kept = there if study.foreign else f"Of {some(slices, 'slice')} {held or 'none'} could be held out."
    why = (
        f"{kept} At least {LEAST_SLICES} are needed to check a gain on load that the plan has "
        "not seen: record for longer, make smaller slices, or hold out more."
    )
    where = "the held-out ones" if held else "the slices that there are"
    seen = f"On {where} the {_what(study)} shows {ratio(gain.after)} instead of {ratio(gain.before)}, which is no forecast yet."
    return Verdict(UNSURE, "too_few_slices", "This trace cannot tell: too few slices.", (why, seen))


def _balanced(_: Study, gain: Gain) -> Verdict | None:
    room = gain.before - 1.0 - gain.floor
    # The floor assumes independent tokens; a gain that was seen on held-out slices is better evidence.
    if room >= LEAST_GAIN or (gain.gain >= LEAST_GAIN and gain.sure):
        return None
    why = (
        f"The ratio now is {ratio(gain.before)}. Chance alone leaves about {ratio(1 + gain.floor)} on perfectly balanced ranks, "
        f"so at most {max(room, 0.0):.3f} could be won; below {LEAST_GAIN} a gain cannot be told from noise."
    )
    return Verdict(
        NOT, "balanced", "This will not pay: there is nothing to gain above the sampling floor.", (why,)
    )


def _too_small(study: Study, gain: Gain) -> Verdict | None:
    if gain.gain >= LEAST_GAIN:
        return None
    small = (
        f"On {_scored(study, gain)} the {_what(study)} changes the ratio from {ratio(gain.before)} to {ratio(gain.after)}; "
        f"a drop of {LEAST_GAIN} is the least that counts."
    )
    seen = gain_on(study, "planned", ~study.held)
    if study.result is not None and seen.gain >= LEAST_GAIN and seen.gain > 2 * gain.gain:
        why = f"On the slices that it was planned on the drop was {seen.gain:.3f}: the load changes too much between slices for a fixed map to follow."
        return Verdict(NOT, "drift", "This will not pay: the load does not stay as it was.", (small, why))
    if _indivisible(study):
        headline = "This will not pay as it is: single experts are too hot and need more replicas."
        return Verdict(NOT, "indivisible", headline, (small, _hot_sentence(study)))
    bound = (
        ()
        if study.result is None
        else (f"No map of this pool can go below {ratio(study.result.bound)} on the planned slices.",)
    )
    return Verdict(NOT, "gain_too_small", "This will not pay: the gain is too small.", (small, *bound))


def _by_chance(study: Study, gain: Gain) -> Verdict | None:
    if gain.sure:
        return None
    why = (
        f"{_drop(study, gain)} But slices differ so much (gain {gain.gain:.3f}, standard error {gain.error:.3f}) that this may be "
        "chance. A longer trace would tell."
    )
    return Verdict(UNSURE, "too_close", "Too close to call.", (why,))


def _no_time(study: Study, gain: Gain) -> Verdict | None:
    if gain.saved_us is None or gain.saved_us >= LEAST_TIME:
        return None
    headline = "This will not pay at these step sizes: reading weights takes the time, not tokens."
    why = f"{_by_preset(gain)} Every copy that gets a token reads its weights, however few tokens there are. Larger steps, as in prefill, would pay."
    return Verdict(NOT, "no_time", headline, (_drop(study, gain), why))


def _pays(study: Study, gain: Gain) -> Verdict:
    price = f"The price is {some(study.after.moves, 'move')}."
    sure = (
        "This will pay, unless the map was planned on this very trace" if study.foreign else "This will pay"
    )
    if gain.saved_us is not None:
        headline = f"{sure}: about {percent(gain.saved_us, 0)} less expert time."
        return Verdict(PAYS, "pays", headline, (_drop(study, gain), f"{_by_preset(gain)} {price}"))
    why = f"{_drop(study, gain)} Where the time of a MoE layer follows its busiest rank, that saves {percent(gain.saved)} of the MoE time. {price}"
    return Verdict(PAYS, "pays", f"{sure}: about {percent(gain.saved, 0)} less MoE time.", (why,))


def _by_preset(gain: Gain) -> str:
    return (
        f"By the cost preset the experts of one layer and step take {gain.after_us:.1f} µs instead of {gain.before_us:.1f} µs on the "
        f"costliest rank: {percent(gain.saved_us or 0.0)} less."
    )


def _scored(study: Study, gain: Gain) -> str:
    return some(gain.slices, "held-out slice" if study.held.any() else "slice")


def _what(study: Study) -> str:
    return "new plan" if study.result is not None else f"map {study.after.name}"


def _drop(study: Study, gain: Gain) -> str:
    better = "all" if gain.better == gain.slices else str(gain.better)
    return (
        f"On {_scored(study, gain)} the {_what(study)} lowers the ratio from {ratio(gain.before)} to {ratio(gain.after)}; "
        f"it is better in {better} of them."
    )


def _remarks(study: Study, gain: Gain, code: str) -> Iterator[str]:
    if study.foreign and not isnan(gain.before):
        yield (
            f"The file of {study.after.name} does not say what the map was planned on: if it was this trace, the ratio after is a fit and not a forecast. "
            "A trace that the planning did not see would tell, and so does a new plan (--plan)."
        )
    if code in {"pays", "too_close", "gain_too_small", "drift"} and _indivisible(study):
        yield _hot_sentence(study)
    if code == "pays":
        yield from _phases(study)
        yield from _overfit(study, gain)
        yield from _lasting(study)
        yield from _traffic(study)
        left = gain.after - 1.0 - gain.floor
        if left <= -LEAST_GAIN:
            yield "The ratio after is below the sampling floor, which assumes that tokens are independent: these requests are more alike than that, such as by a shared prompt."
        if left >= MUCH_LEFT:
            yield f"After the change {left:.3f} of excess remains above the sampling floor; more redundant slots, or planning again while serving, may win a part of it."


def _overfit(study: Study, gain: Gain) -> Iterator[str]:
    seen = gain_on(study, "planned", ~study.held)
    if study.result is not None and seen.gain - gain.gain > OVERFIT * gain.gain:
        yield f"On the slices of the plan itself the ratio is {ratio(seen.after)}: a part of that is fitted to chance or to load that did not come again."


def _traffic(study: Study) -> Iterator[str]:
    old, new = study.before.nodes_per_token, study.after.nodes_per_token
    if old is not None and new is not None and new > MORE_NODES * old:
        yield f"It sends a token to {new:.2f} nodes instead of {old:.2f}: where the network between nodes is the limit, that takes back a part of the gain."


def _phases(study: Study) -> Iterator[str]:
    phases = by_phase(study)
    poor = [each.name for each in phases if len(phases) > 1 and not each.gain >= LEAST_GAIN]
    if poor:
        yield f"It does not pay in every phase: in {', '.join(poor)} the drop is below {LEAST_GAIN}."


def _lasting(study: Study) -> Iterator[str]:
    domains = between_domains(study)
    if domains is not None and not isnan(domains.within) and domains.across < LASTS * domains.within:
        yield (
            f"It depends on the mix of requests: different domains share {percent(domains.across, 0)} of their hottest experts, while within a domain "
            f"{percent(domains.within, 0)} stay the same. Plan again when the mix changes."
        )
        return
    kept = hottest_neighbours(study)
    if kept < LASTS:
        yield f"From one part of the trace to the next {percent(kept, 0)} of the hottest experts stay the same, so a fixed map ages: plan again as the load changes."


def _indivisible(study: Study) -> bool:
    return bool((study.after.single > SINGLE).any())


def _hot_sentence(study: Study) -> str:
    single, topology = study.after.single, study.ask.topology
    worst = int(np.nanargmax(single))
    tokens = study.file.trace.tokens[study.scored].sum(axis=0)[worst]
    copies = np.maximum(study.after.placement.replicas(len(tokens))[worst], 1)
    expert = int((tokens / copies).argmax())
    share = float(tokens[expert] / tokens.sum())
    need = min(ceil(share * topology.ranks), topology.ranks)
    return (
        f"In {some(int((single > SINGLE).sum()), 'layer')} one copy of an expert alone gets more than a rank's fair share, which no moving cures. "
        f"The worst is expert {expert} of layer {layer_numbers(study.file)[worst]}: {percent(share)} of the tokens on {some(int(copies[expert]), 'copy', 'copies')}, "
        f"where it would take {need}. The pool has {some(topology.slots - len(tokens), 'redundant slot')} per layer: give it more."
    )
