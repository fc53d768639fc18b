"""Which offers a rank agrees to stage."""

from dataclasses import replace

import numpy as np
import pytest
from agent_crew import FACTS, change, offer, refused, rotated, start_map
from hypothesis import given
from hypothesis import strategies as st

from collectors.digests import layer_map_digest
from collectors.shares import even_shares
from eplb.agent.live import LiveMap
from eplb.agent.offers import already_live, offer_digest
from eplb.agent.refusal import Refusal, decode_refusals, encode_refusal
from eplb.agent.wire import Offer, decode_offer, encode_offer
from eplb.errors import OfferError

BASE = start_map()
TARGET = np.stack([rotated(row) for row in BASE])
GOOD = offer(FACTS, BASE, TARGET)
RAW = encode_offer(GOOD)


def live() -> LiveMap:
    return LiveMap(FACTS, BASE, None, 0)


def with_row(row, **fields) -> Offer:
    """The good offer with another target row in layer 1 and a digest that fits it."""
    first, second, third = GOOD.changes
    digest = layer_map_digest(FACTS.model_layers[1], np.array(row))
    return replace(
        GOOD,
        changes=(
            first,
            replace(second, target=tuple(int(x) for x in row), target_digest=digest, **fields),
            third,
        ),
    )


def put(slot: int, expert: int) -> list[int]:
    row = [int(x) for x in TARGET[1]]
    row[slot] = expert
    return row


def test_a_sound_offer_has_nothing_against_it():
    assert refused(FACTS, live(), GOOD, term_seen=1) is None


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (replace(GOOD, pool="q"), "pool_differs"),
        (replace(GOOD, term=0), "old_term"),
        (replace(GOOD, run_id=76), "run_differs"),
        (replace(GOOD, model_digest=1), "model_differs"),
        (replace(GOOD, run_id=-1), "damaged_offer"),
        (replace(GOOD, term="1"), "damaged_offer"),
        (replace(GOOD, term=2**53 + 1), "damaged_offer"),
        (replace(GOOD, wave=1), "damaged_offer"),
        (replace(GOOD, expires_after_s=float("inf")), "damaged_offer"),
        (replace(GOOD, expires_after_s=0), "damaged_offer"),
        (replace(GOOD, changes=()), "damaged_offer"),
        (replace(GOOD, changes=(*GOOD.changes, GOOD.changes[0])), "shape"),
        (replace(GOOD, changes=(replace(GOOD.changes[0], layer=3),)), "shape"),
        (replace(GOOD, changes=(replace(GOOD.changes[0], layer=-1),)), "shape"),
        (with_row(TARGET[1][:-1]), "shape"),
        (with_row(put(0, 8)), "id_range"),
        (with_row(put(0, -2)), "id_range"),
        (with_row(put(7, -1)), "no_coverage"),
        (with_row(put(3, 1)), "twin"),
        (with_row(TARGET[1], shares=(0.5,)), "shares"),
        (with_row(TARGET[1], shares=(0.5,) * 12), "shares"),
        (with_row(TARGET[1], shares=(float("nan"), *even_shares(TARGET[1])[1:])), "shares"),
        (with_row(TARGET[1], shares=(-1.0, *even_shares(TARGET[1])[1:])), "shares"),
        (with_row(TARGET[1], base_digest=5), "base_differs"),
        (replace(GOOD, changes=(replace(GOOD.changes[0], target_digest=5),)), "target_digest"),
    ],
)
def test_each_fault_is_refused_by_its_own_code(bad, code):
    refusal = refused(FACTS, live(), bad, term_seen=1)
    assert refusal is not None
    assert refusal.code == code


def test_shares_that_add_up_to_one_for_each_expert_are_fine():
    assert refused(FACTS, live(), with_row(TARGET[1], shares=tuple(even_shares(TARGET[1]))), 1) is None


@given(st.integers(min_value=0, max_value=len(RAW) - 1), st.integers(min_value=1, max_value=255))
def test_an_offer_damaged_in_any_byte_is_refused_or_means_the_same(place, flip):
    damaged = bytearray(RAW)
    damaged[place] ^= flip
    assert offer_digest(bytes(damaged)) != offer_digest(RAW)
    try:
        read = decode_offer(bytes(damaged))
    except OfferError:
        return
    assert read == GOOD


@given(st.integers(min_value=0, max_value=len(RAW) - 1))
def test_an_offer_cut_short_is_refused(length):
    with pytest.raises(OfferError):
        decode_offer(RAW[:length])


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"{}", b"[" * 100_000, b'{"schema":"eplb.offer/1","check":"0","body":[1]}']
)
def test_what_is_no_offer_at_all_is_refused_by_name(raw):
    with pytest.raises(OfferError):
        decode_offer(raw)


def test_an_offer_whose_target_is_live_asks_for_nothing():
    served = live()
    assert not already_live(FACTS, served, GOOD)
    served.replace(GOOD.changes, (), 1)
    assert already_live(FACTS, served, GOOD)


def test_an_offer_of_new_shares_on_the_live_map_asks_for_something():
    row = BASE[0]
    shares = even_shares(row)
    shares[[0, 8]] = (0.7, 0.3)
    same_map = change(FACTS, 0, row, row, tuple(shares))
    assert not already_live(FACTS, live(), replace(GOOD, changes=(same_map,)))
    assert refused(FACTS, live(), replace(GOOD, changes=(same_map,)), 1) is None


@given(st.text(max_size=300), st.sampled_from(["twin", "base_differs", "internal"]))
def test_a_refusal_travels_as_a_record_of_fixed_size(sentence, code):
    records = np.stack([encode_refusal(None), encode_refusal(Refusal(code, sentence)), encode_refusal(None)])
    ((rank, read_code, read_sentence),) = decode_refusals(records)
    assert (rank, read_code) == (1, code)
    assert sentence.encode().startswith(read_sentence.encode())
