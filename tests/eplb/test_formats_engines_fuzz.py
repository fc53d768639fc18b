"""Damaged files of SGLang and TensorRT-LLM: a reader returns what it read or names what is wrong, and does nothing else."""

import io
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from eplb.errors import FileError
from eplb.formats import sglang, sglang_recorder, sglang_replies, trtllm, trtllm_statistics
from eplb.formats.facts import Layers, MapFacts, ReadOptions
from eplb.formats.registry import formats

ROWS = [[0, 1, 2, 3, 0, 1], [3, 1, 2, 0, 3, 1]]
FACTS = MapFacts(ranks=2)
OPTIONS = ReadOptions(layers=Layers(None, 2), most_routes=4)
BOUNDED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def pickled(content):
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def per_token():
    ids = torch.full((2, 2, 8), -1, dtype=torch.int32)
    ids[1, :, 0] = torch.tensor([0, 5])
    record = {
        "forward_pass_id": 1,
        "rank": 0,
        "gatherer_key": "primary",
        "input_ids": [7, 8],
        "positions": [0, 1],
        "extend_seq_lens": [2],
        "forward_mode": 1,
        "misc_objects": [],
        "topk_ids_of_layer": ids,
    }
    return {"records": [record], "last_physical_to_logical_map": torch.tensor(ROWS)}


def per_pass():
    record = {
        "forward_pass_id": 1,
        "rank": 0,
        "gatherer_key": "primary",
        "global_physical_count": torch.tensor([[0] * 6, [1, 2, 3, 4, 5, 6]], dtype=torch.int32),
    }
    return {"records": [record], "last_physical_to_logical_map": torch.tensor(ROWS)}


def stat():
    return {"rank": 0, "logical_count": torch.arange(16, dtype=torch.int32).reshape(2, 2, 4)}


def reply():
    return (
        b'{"meta_info": {"prompt_tokens": 2, "completion_tokens": 1, '
        b'"routed_experts": "AAAAAAAAAAAFAAAAAQAAAAAAAAAAAAAABwAAAAIAAAA="}}'
    )


def balance():
    rows = "\n".join(f"  {layer}: {row}" for layer, row in zip((3, 4), ROWS, strict=True))
    return f"initial_global_assignments:\n{rows}\nlayer_updates_per_iter: 0\nnum_slots: 6\n".encode()


def read_statistics(path, options):
    """The folder of one rank's file, which is the one that is damaged."""
    (path.parent / "meta_info.json").write_text('{"num_experts": 4, "num_experts_per_token": 2}')
    path.rename(path.parent / "rank0.safetensors")
    return trtllm_statistics.read_trace(path.parent, options)


def all_sequences(path, options):
    return list(sglang_recorder.read_sequences(path, options))


READERS = {
    "map.json": (sglang.read_map, FACTS, json.dumps({"physical_to_logical_map": ROWS}).encode()),
    "map.pt": (sglang.read_map, FACTS, pickled({"physical_to_logical_map": torch.tensor(ROWS)})),
    "counts.json": (sglang_recorder.read_trace, OPTIONS, b'{"logical_count": [[0, 0, 0, 0], [1, 5, 2, 9]]}'),
    "stat.pt": (sglang_recorder.read_trace, OPTIONS, pickled(stat())),
    "pass.pt": (sglang_recorder.read_trace, OPTIONS, pickled(per_pass())),
    "token.pt": (sglang_recorder.read_trace, OPTIONS, pickled(per_token())),
    "sequences.pt": (all_sequences, OPTIONS, pickled(per_token())),
    "reply.json": (sglang_replies.read_trace, OPTIONS, reply()),
    "replies.jsonl": (sglang_replies.read_trace, OPTIONS, reply() + b"\n" + reply()),
    "balance.yaml": (trtllm.read_map, FACTS, balance()),
    "rank.safetensors": (
        read_statistics,
        ReadOptions(),
        save({key: np.array([1, 5, 2, 9]) for key in ("1_3", "1_4", "2_3", "2_4")}),
    ),
}


def outcome(name, data):
    """What the reader made of ``data``: the result, or None where it named an error."""
    read, given_facts, _ = READERS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        # An old file: one that is being written would be waited for.
        os.utime(path, (1, 1))
        for each in formats():
            assert each.recognises(path) in {True, False}
        try:
            return read(path, given_facts)
        except FileError as error:
            message = str(error)
    assert message.startswith(folder)
    return None


@pytest.mark.parametrize("name", READERS)
def test_the_undamaged_file_is_read(name):
    """So that the properties below start from something."""
    assert outcome(name, READERS[name][2]) is not None


@pytest.mark.parametrize("name", READERS)
@BOUNDED
@given(data=st.data())
def test_flipped_bytes_are_read_or_named(name, data):
    """Up to three bytes become others."""
    damaged = bytearray(READERS[name][2])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    outcome(name, bytes(damaged))


@pytest.mark.parametrize("name", READERS)
@BOUNDED
@given(data=st.data())
def test_a_cut_file_is_named(name, data):
    """Unless only what may lack was cut: a last line, or blanks."""
    whole = READERS[name][2]
    kept = data.draw(st.integers(0, len(whole) - 1))
    found = outcome(name, whole[:kept])
    assert found is None or name == "replies.jsonl" or not whole[kept:].strip()


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(-1, 7), max_size=6),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("map.json", lambda tree: {"physical_to_logical_map": tree}),
        ("counts.json", lambda tree: {"logical_count": tree}),
        ("reply.json", lambda tree: {"meta_info": {"routed_experts": tree, "prompt_tokens": tree}}),
        ("reply.json", lambda tree: {"sglext": tree, "usage": tree, "choices": tree}),
    ],
)
@BOUNDED
@given(tree=TREES)
def test_documents_of_the_right_outer_shape_are_read_or_named(name, shape, tree):
    """Whatever stands inside."""
    outcome(name, json.dumps(shape(tree)).encode())


@pytest.mark.parametrize("name", ["pass.pt", "token.pt"])
@BOUNDED
@given(key=st.sampled_from([*per_pass()["records"][0], *per_token()["records"][0]]), tree=TREES)
def test_records_with_one_foreign_field_are_read_or_named(name, key, tree):
    """Any plain value in any field."""
    content = per_pass() if name == "pass.pt" else per_token()
    content["records"][0][key] = tree
    outcome(name, pickled(content))


@BOUNDED
@given(tree=TREES)
def test_balance_files_of_the_right_outer_shape_are_read_or_named(tree):
    """YAML takes JSON."""
    text = {"initial_global_assignments": {3: tree}, "num_slots": tree, "layer_updates_per_iter": 0}
    outcome("balance.yaml", json.dumps(text).encode())


def test_code_in_a_pickle_is_not_run(tmp_path):
    """It is refused, and leaves no trace."""
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (Path.touch, (marker,))

    data = pickled({"logical_count": Evil()})
    assert outcome("stat.pt", data) is None
    assert not marker.exists()


@pytest.mark.parametrize("name", READERS)
def test_a_file_is_recognised_by_one_format(name, tmp_path):
    """None is taken for another's."""
    if name == "rank.safetensors":
        (tmp_path / "meta_info.json").write_text("{}")
    path = tmp_path / name
    path.write_bytes(READERS[name][2])
    path = tmp_path if name == "rank.safetensors" else path
    assert len([each for each in formats() if each.recognises(path)]) == 1
