"""vLLM's routed_experts: arrays and replies become sequences of MoE layers by phase; stale and damaged rows are refused."""

import base64
import json
import os

import numpy as np
import pytest
from vllm_examples import LITERAL, LITERAL_ROWS, SGLANG, codes, phases, refused, reply, rows, saved, sequences

from eplb.formats import files, npy, registry, vllm
from eplb.formats.facts import Layers, ReadOptions


def test_the_literal_is_read(tmp_path):
    """Two rows of two layers, of which the first is dense: experts 5, 1 and 7, 2 of model layer 1."""
    path = saved(tmp_path, {"choices": [{"index": 0, "routed_experts": LITERAL}]})
    assert npy.parse_npy(base64.b64decode(LITERAL)).tolist() == LITERAL_ROWS
    assert registry.recognise(path).name == "vllm"
    file = registry.read_trace(path, ReadOptions(experts=8))
    assert file.trace.tokens.tolist() == [[[0, 1, 1, 0, 0, 1, 0, 1]]]
    assert file.layers == Layers((1,), 2)
    assert file.phase is None
    assert codes(file) == {"zero_layers", "phase_unknown"}


def test_the_same_rows_of_sglang_are_somebody_elses():
    """Replies of SGLang hold other keys, at whichever end of the file."""
    assert vllm.OTHERS.search(SGLANG.encode())


def test_replies_are_told_from_those_of_sglang(tmp_path):
    """By the keys, not by words in a text."""
    path = tmp_path / "r.json"
    path.write_text(SGLANG)
    assert not vllm.recognises(path)
    filler = "x" * 200_000
    chat = {"choices": [{"message": {"content": filler}, "sglext": {"routed_experts": "AAAA"}}]}
    path.write_text(json.dumps(chat))
    assert not vllm.recognises(path)
    chat = {"choices": [{"message": {"content": '"sglext": ' + filler}, "routed_experts": "AAAA"}]}
    path.write_text(json.dumps(chat))
    assert vllm.recognises(path)
    for other in ('{"picks": []}', "[1, 2]", "", "text", '{"moe_layer_count": 1}'):
        path.write_text(other)
        assert not vllm.recognises(path)
    assert not vllm.recognises(tmp_path / "absent")
    assert not vllm.recognises(tmp_path)


def test_rows_of_prompt_and_output_are_told_apart(tmp_path):
    """A prompt of 4 and an output of 3 have 4 rows of prefill and 2 of decode: the last token never runs."""
    array = rows(6)
    found = sequences(saved(tmp_path, reply(array, prompt=4, completion=3)))
    assert phases(found) == [("prefill", 4), ("decode", 2)]
    assert found[0].picks.tolist() == array[:4, 1:].tolist()
    assert found[1].picks.tolist() == array[4:, 1:].tolist()


def test_an_output_of_one_token_has_no_decode(tmp_path):
    """Its only token comes from the prompt's step."""
    assert phases(sequences(saved(tmp_path, reply(rows(4), prompt=4, completion=1)))) == [("prefill", 4)]


def test_a_prefix_that_was_left_out_is_missing_from_the_prompt(tmp_path):
    """routed_experts_prompt_start = 2: two rows of prefill, two of decode."""
    found = sequences(saved(tmp_path, reply(rows(4), prompt=4, completion=3)))
    assert phases(found) == [("prefill", 2), ("decode", 2)]


def test_a_row_for_the_last_token_belongs_to_the_output(tmp_path):
    """prompt + output rows: some servers add one."""
    found = sequences(saved(tmp_path, reply(rows(7), prompt=4, completion=3)))
    assert phases(found) == [("prefill", 4), ("decode", 3)]


def test_token_ids_tell_as_much_as_usage(tmp_path):
    """Token-in, token-out replies have no usage."""
    document = reply(rows(6))
    document["choices"][0]["token_ids"] = [5, 6, 7]
    assert phases(sequences(saved(tmp_path, document))) == [("prefill", 4), ("decode", 2)]


def test_the_prompt_of_several_choices_counts_once(tmp_path):
    """It ran once; every choice repeats its rows."""
    one, two = rows(6), rows(5, seed=1)
    two[:4] = one[:4]
    found = sequences(saved(tmp_path, reply(one, two, prompt=4, completion=5)))
    assert phases(found) == [("prefill", 4), ("decode", 2), ("decode", 1)]
    document = reply(one, two)
    document["choices"][0]["token_ids"], document["choices"][1]["token_ids"] = [1, 2, 3], [4, 5]
    assert phases(sequences(saved(tmp_path, document))) == phases(found)


def test_what_cannot_be_told_is_unknown_and_said(tmp_path):
    """No usage, or a usage that does not add up over the choices: phase None."""
    one, two = rows(6), rows(5, seed=1)
    for document in (reply(one, two), reply(one, two, prompt=4, completion=9)):
        path = saved(tmp_path, document)
        assert phases(sequences(path)) == [(None, 6), (None, 5)]
        assert "phase_unknown" in codes(registry.read_trace(path))


def test_nested_lists_of_0_21(tmp_path):
    """The prompt's rows stand at the top, the output's in the choice."""
    array = rows(6)
    document = {
        "choices": [{"index": 0, "routed_experts": array[4:].tolist()}],
        "prompt_routed_experts": array[:4].tolist(),
        "usage": {"prompt_tokens": 4, "completion_tokens": 3},
    }
    path = saved(tmp_path, document)
    assert registry.recognise(path).name == "vllm"
    found = sequences(path)
    assert phases(found) == [("prefill", 4), ("decode", 2)]
    assert found[1].picks.tolist() == array[4:, 1:].tolist()
    document["choices"][0]["routed_experts"] = []
    assert phases(sequences(saved(tmp_path, document))) == [("prefill", 4)]


def test_replies_one_a_line_in_a_list_or_from_a_batch_run(tmp_path):
    """The same rows, whichever way they were saved; a failed request is left out and counted."""
    documents = [reply(rows(6, seed=seed), prompt=4, completion=3) for seed in range(3)]
    lines = saved(tmp_path, *documents)
    expected = registry.read_trace(lines).trace.tokens.tolist()
    batch = [{"custom_id": "a", "response": {"status_code": 200, "body": each}} for each in documents]
    failed = [
        {"custom_id": "b", "response": {"status_code": 400, "body": {"error": {"message": "no"}}}},
        {"custom_id": "c", "response": {"status_code": 500, "body": None}},
        {"error": {"message": "no"}},
    ]
    file = registry.read_trace(saved(tmp_path, *batch, *failed))
    assert file.trace.tokens.tolist() == expected
    assert any(note.sentence.startswith("3 replies hold no") for note in file.notes)
    whole = saved(tmp_path, documents)
    assert registry.read_trace(whole).trace.tokens.tolist() == expected
    whole.write_text(json.dumps(documents, indent=1))
    assert registry.read_trace(whole).trace.tokens.tolist() == expected


def test_slices_have_one_phase(tmp_path):
    """Two requests a slice: prefill with prefill, decode with decode."""
    arrays = [rows(6, seed=seed) for seed in range(4)]
    path = saved(tmp_path, *[reply(array, prompt=4, completion=3) for array in arrays])
    file = registry.read_trace(path, ReadOptions(sequences_per_slice=2))
    assert file.phase == ("decode", "decode", "prefill", "prefill")
    assert file.trace.tokens.sum(axis=2).tolist() == [[8, 8], [8, 8], [16, 16], [16, 16]]
    only = registry.read_trace(path, ReadOptions(sequences_per_slice=2, phase="decode"))
    assert only.trace.tokens.tolist() == file.trace.tokens[:2].tolist()
    assert phases(sequences(path, phase="decode")) == [("decode", 2)] * 4


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32", "int64"])
def test_arrays_of_every_version(tmp_path, dtype):
    """int32 up to 0.20, int16 in 0.21, uint8 or uint16 from 0.22."""
    array = rows(5, dtype=dtype)
    np.save(tmp_path / "a.npy", array)
    assert registry.recognise(tmp_path / "a.npy").name == "vllm"
    (found,) = sequences(tmp_path / "a.npy")
    assert found.phase is None
    assert found.picks.tolist() == array[:, 1:].tolist()


def test_a_folder_of_arrays_is_a_request_each(tmp_path):
    """In the order of their names, whatever order of memory they were saved in."""
    one, two = rows(5), rows(3, seed=1)
    np.save(tmp_path / "b.npy", np.asfortranarray(two))
    np.save(tmp_path / "a.npy", one)
    assert registry.recognise(tmp_path).name == "vllm"
    found = sequences(tmp_path)
    assert [each.picks.tolist() for each in found] == [one[:, 1:].tolist(), two[:, 1:].tolist()]
    (tmp_path / "notes.txt").write_text("not an array")
    assert not vllm.recognises(tmp_path)


def test_tokens_that_were_not_captured_are_left_out_and_counted(tmp_path):
    """Rows of zeros in every layer: prefix cache, external KV."""
    array = rows(6)
    array[1:3] = 0
    file = registry.read_trace(saved(tmp_path, reply(array, prompt=4, completion=3)))
    assert file.trace.tokens.sum() == 4 * 2 * 2
    assert any(note.sentence.startswith("2 of 6 tokens hold zeros") for note in file.notes)


def test_a_recording_of_zeros_is_refused(tmp_path):
    """A kernel that captures nothing."""
    message = refused(saved(tmp_path, reply(np.zeros((6, 3, 2), dtype=np.uint8), prompt=4, completion=3)))
    assert "all 6 tokens hold zeros only" in message


def test_replies_without_rows_name_the_flag(tmp_path):
    """The engine was started without it."""
    message = refused(saved(tmp_path, reply(None, prompt=4, completion=3), {"choices": []}))
    assert "2 replies have no routed_experts; start the engine with --enable-return-routed-experts" in message


@pytest.mark.parametrize("top_k", [2, 3])
def test_an_expert_twice_is_stale_or_damaged(tmp_path, top_k):
    """The place is that of the array, rows of zeros before it included."""
    array = rows(6, top_k=top_k)
    array[0] = 0
    array[4, 2] = 3
    path = saved(tmp_path, reply(array, prompt=4, completion=3))
    assert f"choices[0].routed_experts[token 0, layer 2] is {[3] * top_k}" in refused(path)
    document = reply(array)
    assert f"[token 4, layer 2] is {[3] * top_k}, expected different experts" in refused(
        saved(tmp_path, document)
    )


def test_half_a_token_is_refused(tmp_path):
    """Zeros in one MoE layer and picks in another are no capture."""
    array = rows(6)
    array[3, 1] = 0
    assert "[token 3, layer 1] is [0, 0]" in refused(saved(tmp_path, reply(array)))


def test_a_layer_that_fills_up_later_is_refused(tmp_path):
    """The first reply decides which layers are dense, and the others must agree, or be told by name."""
    one, two = rows(4, dense=2), rows(4, dense=1)
    path = saved(tmp_path, reply(one), reply(two))
    assert "layer 1 holds picks, but line 1: choices[0].routed_experts holds only zeros there" in refused(
        path
    )
    assert "--moe-layers" in refused(path)


def test_named_layers_are_taken_at_their_word(tmp_path):
    """A layer left out, one too many, one that does not exist, and another depth are all named."""
    path = saved(tmp_path, reply(rows(4)))
    file = registry.read_trace(path, ReadOptions(layers=Layers((1, 2), 3)))
    assert file.layers == Layers((1, 2), 3)
    assert "zero_layers" not in codes(file)
    assert "layer 1 holds picks, but --moe-layers leaves it out" in refused(path, layers=Layers((2,), 3))
    assert "[token 0, layer 0] is [0, 0]" in refused(path, layers=Layers((0, 1, 2), 3))
    assert "has layers 0..2, --moe-layers names 3" in refused(path, layers=Layers((1, 2, 3)))
    assert "has 3 layers, --hidden-layers says 4" in refused(path, layers=Layers(None, 4))


def test_a_dense_layer_behind_moe_layers_is_odd(tmp_path):
    """It may be one that is not captured."""
    array = rows(4, layers=4)
    array[:, 2] = 0
    file = registry.read_trace(saved(tmp_path, reply(array)))
    assert file.layers == Layers((1, 3), 4)
    assert any(note.code == "zero_layers_between" and "layers 2 are" in note.sentence for note in file.notes)


def test_with_one_expert_a_token_zero_is_an_expert(tmp_path):
    """Zeros stay, and that is said; only a recording that begins with nothing else has none."""
    array = rows(5, top_k=1)
    array[2] = 0
    file = registry.read_trace(saved(tmp_path, reply(array)))
    assert file.trace.tokens.sum(axis=2).tolist() == [[5, 5]]
    assert file.trace.tokens[0, :, 0].tolist() == [1, 1]
    assert "zeros_count" in codes(file)
    assert "all 4 tokens hold zeros only" in refused(
        saved(tmp_path, reply(np.zeros((4, 2, 1), dtype=np.uint8)))
    )


def test_arrays_of_two_models_are_refused(tmp_path):
    """Another depth or top_k."""
    for other in (rows(4, layers=4), rows(4, top_k=3)):
        assert "not of one model" in refused(saved(tmp_path, reply(rows(4)), reply(other)))


def test_experts_are_checked(tmp_path):
    """An id beyond the model's experts."""
    assert "expected 0..3" in refused(saved(tmp_path, reply(rows(9))), experts=4)


@pytest.mark.parametrize(
    ("document", "part"),
    [
        (7, "is a int, expected a reply"),
        ({"id": 1}, "holds no choices"),
        ({"choices": 3}, "holds no choices"),
        ({"choices": [3]}, "choices[0] is a int"),
        ({"choices": [{"routed_experts": 3}]}, "choices[0].routed_experts is a int"),
        ({"choices": [{"routed_experts": "k05V*"}]}, "choices[0].routed_experts is not base64"),
        ({"choices": [{"routed_experts": "é"}]}, "choices[0].routed_experts is not base64"),
        ({"choices": [{"routed_experts": "AAAA"}]}, "choices[0].routed_experts: not an array in .npy"),
        ({"choices": [{"routed_experts": LITERAL[:-8]}]}, "holds 132 bytes, but uint8 [2, 2, 2] needs 136"),
        ({"choices": [{"routed_experts": [[[1.0, 2]]]}]}, "routed_experts[0][0] is [1.0, 2]"),
        ({"choices": [{"routed_experts": [[[True, 2]]]}]}, "routed_experts[0][0] is [True, 2]"),
        ({"choices": [{"routed_experts": [[[1, 2]], [[1]]]}]}, "is ragged"),
        ({"choices": [{"routed_experts": [[1, 2]]}]}, "routed_experts[0][0] is 1"),
        ({"choices": [{"routed_experts": [1]}]}, "routed_experts[0][0] is None"),
        ({"choices": [{"routed_experts": [[[10**30, 2]]]}]}, "holds object"),
        ({"choices": [{"routed_experts": [[[-1, 2]]]}]}, "[token 0, layer 0] is [-1, 2]"),
        (reply(rows(6), prompt=2.0, completion=3), "usage.prompt_tokens is 2.0"),
        (reply(rows(6), prompt=2, completion=True), "usage.completion_tokens is True"),
        (reply(rows(6), prompt=2, completion=3), "has 6 rows, but the reply counts 2 prompt and 3 generated"),
        (reply(rows(1), prompt=2, completion=9), "has 1 rows, but the reply counts 2 prompt and 9 generated"),
        (reply(rows(6)[0]), "expected whole numbers [tokens, hidden_layers, top_k]"),
    ],
)
def test_a_document_that_is_no_reply_is_refused_with_its_place(tmp_path, document, part):
    """Each message names the place, the value and what was expected."""
    assert part in refused(saved(tmp_path, document))


def test_a_damaged_line_is_named(tmp_path):
    """By its number in the file."""
    path = saved(tmp_path, reply(rows(4)), reply(rows(4)))
    path.write_text(path.read_text()[:-5])
    os.utime(path, (1, 1))
    assert "line 2: not JSON" in refused(path)
    path.write_text("")
    assert "not JSON" in refused(path)


def test_a_last_line_that_is_still_being_written_is_read_again(tmp_path, monkeypatch):
    """The rest comes while the reader waits."""
    path = saved(tmp_path, reply(rows(4)), reply(rows(4, seed=1)))
    text = path.read_text()
    path.write_text(text[:-5])
    monkeypatch.setattr(files.time, "sleep", lambda _: path.write_text(text))
    assert registry.read_trace(path).trace.tokens.sum() == 2 * 4 * 2 * 2
