"""vLLM's ``routed_experts``: arrays that its Python API returns (``.npy`` files, or a folder of them, one a request), and replies
of its HTTP server (one JSON document, a list, or one reply a line).

Picks are of logical experts, over all hidden layers; ``routed_experts`` says which of them are read. Prompt and output of a reply
are two requests of the phases prefill and decode; an array does not say where its prompt ends, so its phase is unknown.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from eplb.errors import FileError
from eplb.formats import files
from eplb.formats.facts import Format, Note, ReadOptions, Sequence, TraceFile
from eplb.formats.npy import MAGIC, read_npy
from eplb.formats.routed_experts import RoutedExperts
from eplb.formats.slicing import slices_of
from eplb.formats.vllm_replies import Part, parts, replies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "vllm"
HEAD_BYTES = 2**16
OURS = re.compile(rb'(?<!\\)"(choices|prompt_routed_experts|routed_experts)"\s*:')
OTHERS = re.compile(rb'(?<!\\)"(meta_info|sglext)"\s*:')
"""Keys of SGLang's replies, which are alike in the rest."""


def recognises(path: Path) -> bool:
    """Whether a path is an array, a folder of arrays, or begins like a reply with such rows."""
    if path.is_dir():
        names = [each for each in _listdir(path) if not each.name.startswith(".")]
        return bool(names) and all(_is_array(each) for each in names)
    head = files.head(path, HEAD_BYTES)
    if head.startswith(MAGIC):
        return True
    return head.lstrip()[:1] in {b"{", b"["} and OURS.search(head) is not None and not _others(path, head)


def read_trace(path: Path, options: ReadOptions) -> TraceFile:
    """Read picks as slices; a file that is being written is read again.

    Raises:
        FileError: names the file, reply, token, layer, value and what was expected.
    """
    return files.steady(path, lambda: _read(path, options))


def read_sequences(path: Path, options: ReadOptions) -> Iterator[Sequence]:
    """Read picks request by request, in the order of the file, or of the names in a folder.

    Raises:
        FileError: see ``read_trace``.
    """
    with files.in_file(path):
        for sequence in _sequences(path, options, RoutedExperts(options), _Tally()):
            if options.phase in {None, sequence.phase}:
                yield sequence


class _Tally:
    """Counts for the notes."""

    def __init__(self) -> None:
        self.without_rows = 0
        self.without_phase = 0


def _read(path: Path, options: ReadOptions) -> TraceFile:
    routed, tally = RoutedExperts(options), _Tally()
    with files.in_file(path):
        slices = slices_of(_sequences(path, options, routed, tally), options)
        found = slices.as_file(NAME, routed.layers, options)
    return replace(found, notes=found.notes + routed.notes() + _notes(tally))


def _why_empty(routed: RoutedExperts, tally: _Tally) -> str:
    if routed.uncaptured and routed.uncaptured == routed.tokens:
        return f": all {routed.tokens} tokens hold zeros only; this kernel, or this cache, is not captured"
    if tally.without_rows and not routed.tokens:
        return (
            f": {tally.without_rows} replies have no routed_experts; start the engine with "
            "--enable-return-routed-experts"
        )
    return ""


def _notes(tally: _Tally) -> tuple[Note, ...]:
    notes = []
    if tally.without_rows:
        notes.append(
            Note(
                "replies_without_rows",
                f"{tally.without_rows} replies hold no routed_experts and are left out",
            )
        )
    if tally.without_phase:
        notes.append(
            Note(
                "phase_unknown",
                f"{tally.without_phase} requests do not say where their prompt ends",
                "keep usage, or token_ids of every choice, in the replies",
            )
        )
    return tuple(notes)


def _sequences(path: Path, options: ReadOptions, routed: RoutedExperts, tally: _Tally) -> Iterator[Sequence]:
    some = False
    for part in _parts(path, options, tally):
        if part.phase is None and len(part.rows):
            tally.without_phase += 1
        picks = routed.picks(part.rows, part.where)
        if len(picks):
            some = True
            yield Sequence(picks, phase=part.phase)
    if not some:
        raise FileError(f"holds no picks{_why_empty(routed, tally)}")


def _parts(path: Path, options: ReadOptions, tally: _Tally) -> Iterator[Part]:
    if path.is_dir():
        found = sorted(each for each in _listdir(path) if each.suffix == ".npy")
        if not found:
            raise FileError(f"{path}: holds no .npy files, expected one a request")
        for at, each in enumerate(found):
            files.tell(options, at, len(found))
            yield Part(read_npy(each), None, each.name)
        return
    if files.head(path).startswith(MAGIC):
        yield Part(read_npy(path), None, "the array")
        return
    for where, document in replies(path, options):
        read = parts(document, where)
        tally.without_rows += not read
        yield from read


def _listdir(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError:
        return []


def _is_array(path: Path) -> bool:
    return path.suffix == ".npy" and files.head(path).startswith(MAGIC)


def _others(path: Path, head: bytes) -> bool:
    """Whether a key of another engine stands at the beginning or the end of a file."""
    if OTHERS.search(head):
        return True
    try:
        with files.opened(path) as file:
            file.seek(max(0, files.size_bytes(path) - HEAD_BYTES))
            return OTHERS.search(file.read(HEAD_BYTES)) is not None
    except (FileError, OSError):
        return False


FORMATS = (
    Format(
        name=NAME,
        title="vLLM routed_experts (arrays or replies)",
        recognises=recognises,
        read_trace=read_trace,
        read_sequences=read_sequences,
        aliases=("routed-experts",),
    ),
)
