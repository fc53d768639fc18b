"""Bytes of vLLM's that are not believed: headers that claim too much, replies of any shape, damage; and real picks come back."""

import io
import itertools
import os

import numpy as np
import pytest
from damage import answers, damaged, damages, settle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy_format
from vllm_examples import LITERAL, refused, reply, rows, saved, sequences

from eplb.errors import FileError
from eplb.formats import npy, registry, vllm, vllm_replies
from eplb.formats.facts import Layers, ReadOptions
from eplb.formats.routed_experts import RoutedExperts


def header(text, version=1):
    """An .npy file with this header and no values."""
    width = 2 if version == 1 else 4
    return npy.MAGIC + bytes([version, 0]) + len(text).to_bytes(width, "little") + text.encode()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "{'descr': '<i4', 'fortran_order': False, 'shape': (1099511627776, 2, 2), }\n",
            "needs 17,592,186,044,5",
        ),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1099511627776), }\n", "is no array of picks"),
        (
            "{'descr': '<i4', 'fortran_order': False, 'shape': (0, 99999999, 99999999), }\n",
            "is no array of picks",
        ),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (1, 0, 2), }\n", "is no array of picks"),
        (
            "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1, 1, 1, 1, 1), }\n",
            "is no array of",
        ),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (2, 2, 2), }\n", "header is damaged, or of other"),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2, 2), }\n",
            "header is damaged, or of other",
        ),
        (
            "{'descr': '<i4', 'fortran_order': False, 'shape': (-2, 2, 2), }\n",
            "header is damaged, or of other",
        ),
        (
            "{'descr': '<i4', 'fortran_order': __import__('os'), 'shape': (2,), }\n",
            "header is damaged, or of",
        ),
        ("{'descr': '<i4', 'fortran_order': False, 'shape': (" + "1" * 3000 + "x), }\n", "header is damaged"),
        ("[" * 3000, "header is damaged"),
        ("", "header is damaged"),
    ],
)
def test_a_header_is_not_believed(tmp_path, text, part):
    """Claims are held against the bytes before anything is taken from memory, and nothing of them is evaluated."""
    path = tmp_path / "a.npy"
    for version in (1, 2, 3):
        path.write_bytes(header(text, version))
        os.utime(path, (1, 1))
        assert part in refused(path)
    path.write_bytes(header(text, 4))
    os.utime(path, (1, 1))
    assert "not an array in .npy" in refused(path)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sampled_from(["u1", "i1", "<u2", ">i2", "<i4", "<i8", ">u8"]),
    st.booleans(),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_every_array_of_whole_numbers_is_read_as_numpy_reads_it(shape, dtype, fortran, version):
    """All versions of the format, both orders, both byte orders."""
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array = np.asfortranarray(array) if fortran else array
    buffer = io.BytesIO()
    npy_format.write_array(buffer, array, version)
    found = npy.parse_npy(buffer.getvalue())
    assert found.dtype == array.dtype
    assert (found == array).all()


def test_an_array_without_tokens_is_an_array(tmp_path):
    """Its request brings nothing."""
    np.save(tmp_path / "a.npy", rows(0))
    np.save(tmp_path / "b.npy", rows(3))
    assert len(sequences(tmp_path)) == 1
    assert npy.parse_npy((tmp_path / "a.npy").read_bytes()).shape == (0, 3, 2)


def test_recorded_picks_come_back(tmp_path, shared_data):
    """Requests of a real model, as vLLM would have returned them: the counts are those of the recording."""
    with np.load(shared_data / "dsv2lite_prefill.npz") as recorded:
        picks, offsets = recorded["picks"], recorded["offsets"][:13]
    for at, (start, stop) in enumerate(itertools.pairwise(offsets.tolist())):
        np.save(tmp_path / f"{at:03}.npy", np.pad(picks[start:stop], ((0, 0), (1, 0), (0, 0))))
    file = registry.read_trace(tmp_path, ReadOptions(experts=64, most_routes=100))
    assert file.layers == Layers(tuple(range(1, 27)), 27)
    assert file.trace.slices == 3
    for layer in range(26):
        expected = np.bincount(picks[: offsets[-1], layer].ravel(), minlength=64)
        assert file.trace.tokens[:, layer].sum(axis=0).tolist() == expected.tolist()
    assert file.trace.routes.layers == 26


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.floats()
    | st.sampled_from([LITERAL, LITERAL[:40], "", "AAAA"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "routed_experts",
                    "prompt_routed_experts",
                    "usage",
                    "token_ids",
                    "error",
                    "response",
                    "body",
                    "prompt_tokens",
                    "completion_tokens",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=15,
)


@given(VALUES, VALUES, VALUES)
def test_any_reply_is_rows_or_refused(document, choice, usage):
    """Nothing but a FileError, whatever stands where."""
    shaped = {"choices": [{"routed_experts": choice}], "usage": usage}
    for each in (document, shaped, {"choices": [choice], "prompt_routed_experts": usage}):
        routed = RoutedExperts(ReadOptions())
        try:
            for part in vllm_replies.parts(each, ""):
                assert routed.picks(part.rows, part.where).ndim == 3
        except FileError as error:
            assert str(error)  # noqa: PT017 - either outcome is right, a third is not


@given(damages(1000), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_bytes_are_a_trace_or_refused(tmp_path, damage, text):
    """Truncations, flipped bytes and noise, of an array and of replies."""
    if text:
        path = saved(
            tmp_path, reply(rows(4), prompt=3, completion=2), {"choices": [{"routed_experts": LITERAL}]}
        )
    else:
        path = tmp_path / "a.npy"
        np.save(path, rows(4))
    settle(path, damaged(path.read_bytes(), damage))
    assert vllm.recognises(path) in {True, False}
    assert answers(lambda found: vllm.read_trace(found, ReadOptions()), path)
