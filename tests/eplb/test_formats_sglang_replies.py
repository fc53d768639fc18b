"""SGLang replies with routed experts: the shape is proven or asked for, never guessed."""

import base64
import json

import numpy as np
import pytest

from eplb.errors import FileError
from eplb.formats import sglang_replies
from eplb.formats.facts import Layers, ReadOptions
from eplb.formats.registry import recognise

LITERAL = (
    '{"text": "..", "meta_info": {"id": "a", "prompt_tokens": 2, "completion_tokens": 1, '
    '"routed_experts": "AAAAAAAAAAAFAAAAAQAAAAAAAAAAAAAABwAAAAIAAAA="}}'
)
"""2 tokens, 2 layers, top-2: [[[0, 0], [5, 1]], [[0, 0], [7, 2]]]."""
TWO_LAYERS = ReadOptions(layers=Layers(None, 2))


def packed(picks):
    return base64.b64encode(np.asarray(picks, dtype="<i4").tobytes()).decode()


def reply(picks, prompt=1, completion=None):
    """A reply whose first ``prompt`` tokens are the prompt's; the last token is never routed."""
    completion = len(picks) - prompt + 1 if completion is None else completion
    return {
        "text": "",
        "meta_info": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "routed_experts": packed(picks),
        },
    }


def routed(tokens, layers=3, top_k=4, experts=16, seed=0):
    """Distinct experts in every layer but the first, which is dense."""
    random = np.random.default_rng(seed)
    picks = random.random((tokens, layers, experts)).argsort(axis=2)[:, :, :top_k]
    picks[:, 0] = 0
    return picks


def saved(tmp_path, *replies, name="replies.jsonl"):
    path = tmp_path / name
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in replies))
    return path


def refused(path, *words, options=None):
    with pytest.raises(FileError) as caught:
        sglang_replies.read_trace(path, options or ReadOptions())
    for word in (path.name, *words):
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["reply.json", "reply.jsonl"])
def test_the_literal_reply_is_read(tmp_path, name):
    """Top-k follows from the tokens once the layers are known; layer 0 is dense."""
    path = saved(tmp_path, LITERAL, name=name)
    assert recognise(path).name == "sglang-replies"
    file = sglang_replies.read_trace(path, TWO_LAYERS)
    assert file.layers == Layers((1,), 2)
    assert file.phase == ("prefill",)
    assert file.trace.tokens.tolist() == [[[0, 1, 1, 0, 0, 1, 0, 1]]]
    assert {note.code for note in file.notes} == {"dense_layers", "shape", "experts_from_ids"}


def test_a_shape_that_can_be_several_is_asked_for(tmp_path):
    """Four numbers a token are 4 x 1, 2 x 2 or 1 x 4."""
    refused(saved(tmp_path, LITERAL), "4 x 1, 2 x 2, 1 x 4", "--hidden-layers")


def test_top_k_alone_gives_the_layers(tmp_path):
    """Either of the two is enough where the reply counts its tokens."""
    file = sglang_replies.read_trace(saved(tmp_path, LITERAL), ReadOptions(top_k=2))
    assert file.layers == Layers((1,), 2)


def test_prompt_and_completion_are_sequences_of_their_own_phase(tmp_path):
    """Tokens of the prompt first, then those that were generated, the last of which is never routed."""
    picks = routed(5)
    path = saved(tmp_path, reply(picks, prompt=3))
    found = list(sglang_replies.read_sequences(path, ReadOptions(layers=Layers(None, 3))))
    assert [each.phase for each in found] == ["prefill", "decode"]
    assert np.concatenate([each.picks for each in found]).tolist() == picks[:, 1:].tolist()
    assert len(found[0].picks) == 3


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_one_phase_of_the_sequences_can_be_asked_for(tmp_path, phase):
    """As of the trace."""
    path = saved(tmp_path, reply(routed(5), prompt=3))
    found = sglang_replies.read_sequences(path, ReadOptions(layers=Layers(None, 3), phase=phase))
    assert [each.phase for each in found] == [phase]


def test_a_cut_start_shortens_the_prompt(tmp_path):
    """``routed_experts_start_len`` leaves out the first tokens: with both numbers given the rest is still placed."""
    picks = routed(6)
    options = ReadOptions(layers=Layers(None, 3), top_k=4)
    path = saved(tmp_path, reply(picks[2:], prompt=3, completion=4))
    found = list(sglang_replies.read_sequences(path, options))
    assert [(each.phase, len(each.picks)) for each in found] == [("prefill", 1), ("decode", 3)]


def test_a_cut_start_is_not_taken_for_another_shape(tmp_path):
    """Replies cut by one constant disagree on the numbers a token has."""
    path = saved(tmp_path, reply(routed(3), completion=6), reply(routed(6), completion=9))
    refused(path, "--hidden-layers and --top-k", options=ReadOptions(layers=Layers(None, 3)))


def test_a_wrong_shape_shows_in_zero_sets_or_in_twins(tmp_path):
    """One reply cut to half its tokens seems to have half the top-k: the dense layer's zeros give it away."""
    path = saved(tmp_path, reply(routed(3), completion=6))
    refused(path, "--hidden-layers and --top-k", options=ReadOptions(layers=Layers(None, 3)))
    wide = ReadOptions(layers=Layers(None, 1), top_k=12)
    refused(saved(tmp_path, reply(routed(3))), "an expert twice", options=wide)


def test_replies_of_the_openai_routes_are_read(tmp_path):
    """The text stands under ``sglext``, the tokens under ``usage``."""
    picks = routed(4)
    document = {
        "choices": [{"index": 0}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3},
        "sglext": {"routed_experts": packed(picks)},
    }
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([document, document], indent=1))
    assert recognise(path).name == "sglang-replies"
    file = sglang_replies.read_trace(path, ReadOptions(layers=Layers(None, 3), sequences_per_slice=2))
    assert file.phase == ("decode", "prefill")
    assert int(file.trace.tokens.sum()) == 2 * 4 * 2 * 4


def test_usage_of_several_choices_does_not_count_the_tokens_of_one(tmp_path):
    """Both flags are asked for."""
    document = {
        "choices": [{"index": 0}, {"index": 1}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 6},
        "sglext": {"routed_experts": packed(routed(4))},
    }
    refused(saved(tmp_path, document), "--top-k", options=ReadOptions(layers=Layers(None, 3)))


def test_tokens_that_were_not_captured_are_left_out_once_the_shape_is_certain(tmp_path):
    """A set of zeros in a MoE layer is no pick of expert 0."""
    picks = routed(4)
    picks[1, 2] = 0
    options = ReadOptions(layers=Layers(None, 3), top_k=4)
    file = sglang_replies.read_trace(saved(tmp_path, reply(picks)), options)
    assert "no_picks" in {note.code for note in file.notes}
    assert file.trace.tokens.sum(axis=(0, 2)).tolist() == [16, 12]


def test_dense_layers_cannot_be_told_with_one_expert_a_token(tmp_path):
    """A layer of zeros may always pick expert 0."""
    picks = routed(4, top_k=1)
    options = ReadOptions(layers=Layers(None, 3))
    refused(saved(tmp_path, reply(picks)), "--moe-layers", options=options)
    named = ReadOptions(layers=Layers((1, 2), 3))
    assert sglang_replies.read_trace(saved(tmp_path, reply(picks)), named).layers == Layers((1, 2), 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LITERAL.replace("AAAA=", "A*AA="), ("line 1", "not base64")),
        (LITERAL.replace("AAAAAAAAAAAFAAAAAQAAAAAAAAAAAAAABwAAAAIAAAA=", "AAAA"), ("3 bytes",)),
        (LITERAL.replace("AAAAAAAAAAAF", "/v///wAAAAAF"), ("routed_experts[0] is -2",)),
        (LITERAL.replace('"prompt_tokens": 2', '"prompt_tokens": 2.0'), ("prompt_tokens is 2.0",)),
        (LITERAL.replace('"prompt_tokens": 2', '"prompt_tokens": 3'), ("--top-k",)),
        (LITERAL.replace('"routed_experts"', '"routed"'), ("--enable-return-routed-experts",)),
        ('{"text": ""}', ("neither meta_info nor sglext",)),
        ("{", ("line 1", "not JSON")),
        ("", ("holds no token",)),
    ],
)
def test_a_damaged_reply_is_named(tmp_path, text, words):
    """With its line, the field and the value."""
    refused(saved(tmp_path, text), *words, options=TWO_LAYERS)
