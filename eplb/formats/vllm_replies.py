"""Replies of vLLM's HTTP server with ``routed_experts``: which rows belong to the prompt, which to what was generated.

From 0.22 on, ``choices[].routed_experts`` is base64 of an ``.npy`` array with the rows of prompt and output; in 0.21 it is nested
lists with the rows of the output alone, and the prompt's stand in ``prompt_routed_experts``. The last generated token never
runs through the model: a prompt of n tokens and an output of m have n rows of prefill and m - 1 of decode. A reply that leaves a
prefix out (``routed_experts_prompt_start``) has fewer rows of prefill, never of decode.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats import files
from eplb.formats.npy import parse_npy
from eplb.formats.plain_values import shown, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.facts import ReadOptions

MOST_REPLY_BYTES = 2**28
"""Largest reply: a prompt of 100,000 tokens takes about a quarter of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows of one request in one phase: whole numbers [tokens, hidden_layers, top_k]; ``phase`` None = cannot be told."""

    rows: NDArray[Any]
    phase: str | None
    where: str


def replies(path: Path, options: ReadOptions) -> Iterator[tuple[str, Any]]:
    """Place (to begin a message with) and document of every reply of a file: one document, a list of them, or one a line.

    Raises:
        FileError: the file cannot be read or is not JSON; names file and line.
    """
    number, first = next(files.lines(path, options, most_bytes=MOST_REPLY_BYTES), (0, b""))
    if first.strip()[-1:] not in {b"}", b"]"} or len(first.strip()) < 2:
        yield from _listed(files.read_json(path, most_bytes=MOST_REPLY_BYTES), "")
        return
    for number, line in files.lines(path, options, most_bytes=MOST_REPLY_BYTES):
        where = f"line {number}: "
        try:
            document = files.parse_json(line)
        except FileError as error:
            raise FileError(f"{where}{error}") from error
        yield from _listed(document, where)


def _listed(document: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(document, list):
        for at, each in enumerate(document):
            yield f"{where}reply {at}: ", each
    else:
        yield where, document


def parts(document: Any, where: str) -> list[Part]:
    """The rows of one reply by phase; the prompt once, however many choices follow it. None for a failed request.

    Raises:
        FileError: it is no reply, or its rows cannot be read; starts with ``where``.
    """
    reply = _body(document, where)
    choices = reply.get("choices")
    if not isinstance(choices, list):
        if reply.get("error") is not None:
            return []
        raise FileError(f"{where}holds no choices, expected a reply of a vLLM server")
    arrays = [_choice_rows(choice, f"{where}choices[{at}]") for at, choice in enumerate(choices)]
    prompt = _rows(reply.get("prompt_routed_experts"), f"{where}prompt_routed_experts")
    places = [f"{where}choices[{at}].routed_experts" for at in range(len(choices))]
    found = [(choices[at], rows, places[at]) for at, rows in enumerate(arrays) if rows is not None]
    if prompt is not None:
        head = Part(prompt, "prefill", f"{where}prompt_routed_experts")
        return [head, *(Part(rows, "decode", place) for _, rows, place in found)]
    return _split(reply, found, where)


def _split(reply: dict[str, Any], found: list[tuple[Any, NDArray[Any], str]], where: str) -> list[Part]:
    """Cut rows of prompt and output in two."""
    usage = reply.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    prompt = _tokens(usage, "prompt_tokens", where)
    lengths = _generated(usage, found, prompt, where)
    result: list[Part] = []
    for (_, rows, place), generated in zip(found, lengths, strict=True):
        if generated is None:
            result.append(Part(rows, None, place))
            continue
        # Some versions add a row for the last token, which no step has run.
        whole = prompt is not None and len(rows) == prompt + generated
        decode = generated if whole else max(generated - 1, 0)
        before = len(rows) - decode
        if before < 0 or (prompt is not None and before > prompt):
            raise FileError(
                f"{place} has {len(rows)} rows, but the reply counts "
                f"{'an unknown number of' if prompt is None else prompt} prompt and {generated} generated tokens"
            )
        if not any(part.phase == "prefill" for part in result):
            result.append(Part(rows[:before], "prefill", place))
        result.append(Part(rows[before:], "decode", place))
    return result


def _generated(
    usage: dict[str, Any], found: list[tuple[Any, NDArray[Any], str]], prompt: int | None, where: str
) -> list[int | None]:
    """Generated tokens of every choice, None where the reply does not tell."""
    ids = [choice.get("token_ids") for choice, _, _ in found]
    if all(isinstance(each, list) for each in ids):
        return [len(each) for each in ids]
    total = _tokens(usage, "completion_tokens", where)
    if total is None:
        return [None] * len(found)
    if len(found) == 1:
        return [total]
    lengths = [len(rows) + 1 - (prompt or 0) for _, rows, _ in found]
    known = prompt is not None and min(lengths, default=0) >= 0 and sum(lengths) == total
    return [length if known else None for length in lengths]


def _tokens(usage: dict[str, Any], key: str, where: str) -> int | None:
    value = usage.get(key)
    if value is None:
        return None
    return whole(value, f"{where}usage.{key}")


def _body(document: Any, where: str) -> dict[str, Any]:
    """The reply itself; ``run_batch`` of vLLM wraps it."""
    found = document
    if isinstance(found, dict) and "choices" not in found and isinstance(found.get("response"), dict):
        found = found["response"].get("body") or {"error": "no body"}
    if not isinstance(found, dict):
        raise FileError(f"{where}is a {type(found).__name__}, expected a reply of a vLLM server")
    return found


def _choice_rows(choice: Any, where: str) -> NDArray[Any] | None:
    if not isinstance(choice, dict):
        raise FileError(f"{where} is a {type(choice).__name__}, expected an object")
    return _rows(choice.get("routed_experts"), f"{where}.routed_experts")


def _rows(value: Any, where: str) -> NDArray[Any] | None:
    if value is None or value == []:
        return None
    if isinstance(value, str):
        return _from_base64(value, where)
    if isinstance(value, list):
        return _from_lists(value, where)
    raise FileError(f"{where} is a {type(value).__name__}, expected base64 of an .npy array, or nested lists")


def _from_base64(text: str, where: str) -> NDArray[Any]:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FileError(f"{where} is not base64: {error}") from error
    try:
        return parse_npy(data)
    except FileError as error:
        raise FileError(f"{where}: {error}") from error


def _from_lists(value: list[Any], where: str) -> NDArray[Any]:
    for token, layers in enumerate(value):
        for layer, picks in enumerate(layers if isinstance(layers, list) else [None]):
            if not isinstance(picks, list) or not set(map(type, picks)) <= {int}:
                raise FileError(
                    f"{where}[{token}][{layer}] is {shown(picks)}, expected a list of experts, whole numbers"
                )
    try:
        found = np.array(value)
    except (ValueError, OverflowError) as error:
        raise FileError(f"{where} is ragged: every token needs the same layers and picks") from error
    if found.dtype.kind != "i":
        raise FileError(
            f"{where} holds {found.dtype} {list(found.shape)}, expected experts [tokens, layers, top_k]"
        )
    return found
