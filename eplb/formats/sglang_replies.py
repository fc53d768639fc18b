"""Replies of SGLang with the experts that every token was routed to (``return_routed_experts``).

One JSON document (a reply, or a list of them) or one reply a line. The picks stand in ``meta_info.routed_experts`` (``/generate``)
or ``sglext.routed_experts`` (OpenAI routes): base64 of little-endian int32 [tokens, layers of the model, top_k], logical experts,
dense layers all zero. The shape is not in the reply: see ``reply_shape``. Tokens of the prompt are prefill, the others decode.
Checked against SGLang 0.5.23.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Format, Note, Sequence, TraceFile
from eplb.formats.files import head, in_file, lines, parse_json, read_json
from eplb.formats.model_rows import ModelRows, moe_rows
from eplb.formats.plain_values import whole
from eplb.formats.reply_shape import Extent, Shape, shape_of
from eplb.formats.slicing import slices_of
from placement.routes import MOST_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.facts import Layers, ReadOptions

NAME = "sglang-replies"
HEAD_BYTES = 2**16
PICK_BYTES = 4
MOST_TOKENS = 2**40


@dataclass(frozen=True, slots=True)
class _Reply:
    """One reply that holds picks. ``text``: base64. ``prompt``, ``completion``: tokens, None = not said."""

    where: str
    text: str
    prompt: int | None
    completion: int | None


def recognises(path: Path) -> bool:
    """Whether text starts as JSON and soon names the field, with what SGLang puts around it. Never raises."""
    start = head(path, HEAD_BYTES)
    around = b'"meta_info"' in start or b'"sglext"' in start
    return start.lstrip()[:1] in {b"{", b"["} and b'"routed_experts"' in start and around


def read_trace(path: Path, options: ReadOptions) -> TraceFile:
    """Read replies as a trace of grouped requests.

    Raises:
        FileError: names the file, the reply and the value; without the layers of the model it names the flag to give.
    """
    with in_file(path):
        shape, chosen = _looked_through(path, options)
        lost = [0]
        slices = slices_of(_sequences(path, options, shape, chosen, lost), options)
    return TraceFile(
        slices.trace,
        chosen.layers,
        slices.slices_from,
        NAME,
        phase=slices.phase,
        domain=slices.domain,
        notes=(*chosen.notes, *_notes(shape, options, lost[0]), *slices.notes),
    )


def read_sequences(path: Path, options: ReadOptions) -> Iterator[Sequence]:
    """The prompts and completions of replies, in the order of the file.

    Raises:
        FileError: see ``read_trace``.
    """
    with in_file(path):
        shape, chosen = _looked_through(path, options)
        for sequence in _sequences(path, options, shape, chosen, [0]):
            if options.phase in {None, sequence.phase}:
                yield sequence


def _notes(shape: Shape, options: ReadOptions, lost: int) -> Iterator[Note]:
    if options.top_k is None or options.layers.hidden_layers is None:
        yield Note(
            "shape",
            f"read as {shape.layers} layers x top-k {shape.top_k}, which follows from the tokens that the replies report",
            "if routed_experts_start_len was used, give --hidden-layers and --top-k",
        )
    if lost:
        yield Note(
            "no_picks",
            f"{lost} sets of experts of MoE layers are all zero: nothing was captured there, and they are left out",
            "requests that reuse another's prefix before its routing is stored look like this",
        )


def _replies(path: Path, options: ReadOptions) -> Iterator[_Reply]:
    """Every reply with picks; a document is tried first, then lines."""
    if path.suffix == ".jsonl" or _is_lines(path):
        for number, line in lines(path, options):
            try:
                found = parse_json(line)
            except FileError as error:
                raise FileError(f"line {number}: {error}") from error
            yield from _of_document(found, f"line {number}")
    else:
        yield from _of_document(read_json(path), "")


def _is_lines(path: Path) -> bool:
    """Whether the first line alone is a whole reply."""
    first, newline, rest = head(path, HEAD_BYTES).lstrip().partition(b"\n")
    return bool(newline and rest.strip()) and first.startswith(b"{") and first.strip().endswith(b"}")


def _of_document(found: Any, where: str) -> Iterator[_Reply]:
    if isinstance(found, list):
        for at, item in enumerate(found):
            yield from _of_reply(item, f"{where} reply {at}".strip())
    else:
        yield from _of_reply(found, where or "the reply")


def _of_reply(found: Any, where: str) -> Iterator[_Reply]:
    if not isinstance(found, dict):
        raise FileError(f"{where} is {type(found).__name__}, expected a reply of SGLang (an object)")
    meta, extra, usage = found.get("meta_info"), found.get("sglext"), found.get("usage")
    if isinstance(meta, dict):
        text, counts = meta.get("routed_experts"), meta
    elif isinstance(extra, dict):
        text, counts = extra.get("routed_experts"), usage if isinstance(usage, dict) else {}
        if isinstance(found.get("choices"), list) and len(found["choices"]) > 1:
            # Only one of the choices is shown, while usage counts them all.
            counts = {}
    else:
        raise FileError(f"{where} has neither meta_info nor sglext: ask for return_routed_experts")
    if text is None:
        raise FileError(
            f"{where} holds no routed_experts: start the engine with --enable-return-routed-experts"
        )
    if not isinstance(text, str):
        raise FileError(f"{where}: routed_experts is {type(text).__name__}, expected base64 text")
    yield _Reply(
        where, text, _tokens(counts, "prompt_tokens", where), _tokens(counts, "completion_tokens", where)
    )


def _tokens(counts: dict[str, Any], key: str, where: str) -> int | None:
    value = counts.get(key)
    return None if value is None else whole(value, f"{where}: {key}", 0, MOST_TOKENS)


def _decoded(reply: _Reply) -> NDArray[np.int32]:
    try:
        data = base64.b64decode(reply.text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FileError(f"{reply.where}: routed_experts is not base64: {error}") from error
    if len(data) % PICK_BYTES:
        raise FileError(f"{reply.where}: routed_experts has {len(data)} bytes, expected whole int32 numbers")
    found = np.frombuffer(data, dtype="<i4")
    if found.size and (int(found.min()) < -1 or int(found.max()) >= MOST_EXPERTS):
        at = int(np.argmax((found < -1) | (found >= MOST_EXPERTS)))
        raise FileError(
            f"{reply.where}: routed_experts[{at}] is {found[at]}, expected an expert, or -1 for none"
        )
    return found


def _looked_through(path: Path, options: ReadOptions) -> tuple[Shape, ModelRows]:
    """A first pass over the file: the shape, and which layers hold picks."""
    extents = [
        Extent(reply.where, len(_decoded(reply)), reply.prompt, reply.completion)
        for reply in _replies(path, options)
    ]
    if not any(extent.numbers for extent in extents):
        raise FileError("holds no token: were the replies cut off?")
    shape = shape_of(extents, options)
    used = np.zeros(shape.layers, dtype=bool)
    for reply in _replies(path, options):
        used |= _shaped(reply, shape).any(axis=(0, 2))
    _check_single_picks(used, shape, options.layers)
    return shape, moe_rows(used, options.layers)


def _shaped(reply: _Reply, shape: Shape) -> NDArray[np.int32]:
    return _decoded(reply).reshape(-1, shape.layers, shape.top_k)


def _check_single_picks(used: NDArray[np.bool_], shape: Shape, given: Layers) -> None:
    if shape.top_k == 1 and not used.all() and given.model_layer is None:
        raise FileError(
            "with one expert a token, a layer of zeros may be a dense layer or one that always picks expert 0: say which layers "
            "are MoE layers with --moe-layers"
        )


def _sequences(
    path: Path, options: ReadOptions, shape: Shape, chosen: ModelRows, lost: list[int]
) -> Iterator[Sequence]:
    rows = list(chosen.rows)
    for reply in _replies(path, options):
        picks = _shaped(reply, shape)[:, rows]
        if shape.top_k > 1:
            picks, blank = _without_blanks(picks)
            lost[0] += blank
            if blank and options.top_k is None:
                raise FileError(
                    f"{reply.where}: {blank} sets of experts are all zero in layers that are not dense: nothing was captured there, or "
                    "the shape is another (routed_experts_start_len hides it); give --hidden-layers and --top-k"
                )
            _check_distinct(picks, reply.where, chosen)
        start = _prompt_rows(reply, len(picks))
        if start is None:
            yield Sequence(picks)
            continue
        for part, phase in ((picks[:start], "prefill"), (picks[start:], "decode")):
            if len(part):
                yield Sequence(part, phase=phase)


def _without_blanks(picks: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
    """Sets that name expert 0 only cannot be picks: the engine's buffer starts as zeros."""
    blank = (picks == 0).all(axis=2, keepdims=True)
    return np.where(blank, np.int32(-1), picks), int(blank.sum())


def _check_distinct(picks: NDArray[np.int32], where: str, chosen: ModelRows) -> None:
    ordered = np.sort(picks, axis=2)
    twins = ((ordered[:, :, 1:] == ordered[:, :, :-1]) & (ordered[:, :, 1:] >= 0)).any(axis=2)
    if twins.any():
        token, layer = (int(at) for at in np.unravel_index(int(twins.argmax()), twins.shape))
        raise FileError(
            f"{where}: token {token}, layer {chosen.rows[layer]} picks {picks[token, layer].tolist()}, an expert twice: the shape is "
            "most likely another; give the right --hidden-layers and --top-k"
        )


def _prompt_rows(reply: _Reply, tokens: int) -> int | None:
    """Rows that belong to the prompt: the last token is never routed, and ``routed_experts_start_len`` cuts the first ones."""
    if reply.prompt is None or reply.completion is None:
        return None
    cut = reply.prompt + reply.completion - 1 - tokens
    return max(0, reply.prompt - cut) if cut >= 0 else None


FORMATS = (
    Format(
        NAME,
        "SGLang replies with routed_experts (JSON, or one reply a line)",
        recognises,
        read_trace=read_trace,
        read_sequences=read_sequences,
    ),
)
