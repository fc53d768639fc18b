"""Arrays and replies as vLLM gives them, and ways to read them."""

import base64
import io
import json
import os

import numpy as np
import pytest

from eplb.errors import FileError
from eplb.formats import registry
from eplb.formats.facts import ReadOptions

LITERAL_ROWS = [[[0, 0], [5, 1]], [[0, 0], [7, 2]]]
LITERAL = (
    "k05VTVBZAQB2AHsnZGVzY3InOiAnfHUxJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsIDIsIDIpLCB9ICAg"
    "ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAAUBAAAHAg=="
)
SGLANG = (
    '{"text": "..", "meta_info": {"id": "a", "prompt_tokens": 2, "completion_tokens": 1, '
    '"routed_experts": "AAAAAAAAAAAFAAAAAQAAAAAAAAAAAAAABwAAAAIAAAA="}}'
)


def rows(tokens, layers=3, top_k=2, experts=8, *, dense=1, seed=0, dtype=np.uint8):
    """Routed experts of that many tokens: zeros in the dense layers, different experts in the others."""
    rng = np.random.default_rng(seed)
    found = np.zeros((tokens, layers, top_k), dtype=dtype)
    for token in range(tokens):
        for layer in range(dense, layers):
            found[token, layer] = rng.permutation(experts - 1)[:top_k] + 1
    return found


def packed(array):
    """Base64 of an .npy array, as the server packs it."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return base64.b64encode(buffer.getvalue()).decode()


def reply(*arrays, prompt=None, completion=None, **more):
    """A reply of 0.22 or later with a choice for each array."""
    document = {
        "choices": [
            {"index": at, "routed_experts": None if array is None else packed(array)}
            for at, array in enumerate(arrays)
        ]
    }
    if prompt is not None:
        document["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion}
    return document | more


def saved(tmp_path, *documents):
    """A file of one reply, or of one reply a line."""
    path = tmp_path / ("replies.jsonl" if len(documents) > 1 else "reply.json")
    path.write_text("\n".join(json.dumps(document) for document in documents))
    os.utime(path, (1, 1))
    return path


def sequences(path, **options):
    return list(registry.read_sequences(path, ReadOptions(**options)))


def phases(found):
    return [(each.phase, len(each.picks)) for each in found]


def refused(path, **options):
    with pytest.raises(FileError) as caught:
        registry.read_trace(path, ReadOptions(**options), "vllm")
    assert str(path) in str(caught.value)
    assert str(caught.value).count(str(path)) == 1
    return str(caught.value)


def codes(file):
    return {note.code for note in file.notes}
