"""The history of one pool as a file: a checksum, a header in JSON, and the packed steps one after the other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from eplb.errors import FileError, HistoryError
from eplb.formats.files import write_bytes
from eplb.history.moments import MOMENT_MS, Moment, Step
from eplb.history.packing import unpack

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"eplb history 1\n"
DIGEST_BYTES = 16
HEADER_SIZE_BYTES = 4
MOST_HEADER_BYTES = 16_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """What a file holds.

    ``pool``, ``top_k``, ``model_digest`` (0 = unknown) and ``shape`` (layers, experts), ``model_layers``: whose history it is. ``regimes``: id of the regime of
    each moment, -1 = none yet; ``next_id``: first id that was never given.
    """

    pool: str
    shape: tuple[int, int]
    model_layers: tuple[int, ...]
    top_k: int
    model_digest: int
    moments: tuple[Moment, ...]
    regimes: tuple[int, ...]
    next_id: int


def write_history(path: Path, held: Held) -> None:
    """Write the file in one stroke: temporary file, fsync, rename.

    Raises:
        FileError: it cannot be written; an older one stays.
    """
    header = {
        "pool": held.pool,
        "layers": held.shape[0],
        "experts": held.shape[1],
        "model_layers": held.model_layers,
        "top_k": held.top_k,
        "model_digest": held.model_digest,
        "next_id": held.next_id,
        "moments": [
            {
                "number": moment.number,
                "regime": regime,
                "steps": [
                    [step.time_ms, step.run_id, step.group_step, len(step.packed)] for step in moment.steps
                ],
            }
            for moment, regime in zip(held.moments, held.regimes, strict=True)
        ],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    packed = [step.packed for moment in held.moments for step in moment.steps]
    body = b"".join([len(text).to_bytes(HEADER_SIZE_BYTES, "little"), text, *packed])
    write_bytes(path, MAGIC + _digest(body) + body)


def read_history(path: Path, *, most_bytes: int) -> Held:
    """Read a file and check all of it.

    Raises:
        FileError: it cannot be read.
        HistoryError: it is no history, damaged, or above ``most_bytes`` of packed steps.
    """
    try:
        size = path.stat().st_size
        if size > most_bytes + MOST_HEADER_BYTES:
            raise HistoryError(
                f"{path}: {size} bytes are more than the {most_bytes} that history.most_bytes allows"
            )
        raw = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from error
    start = len(MAGIC) + DIGEST_BYTES
    if not raw.startswith(MAGIC):
        raise HistoryError(f"{path}: is no history of this version; it begins with {raw[: len(MAGIC)]!r}")
    body = raw[start:]
    if _digest(body) != raw[len(MAGIC) : start]:
        raise HistoryError(f"{path}: is damaged: its checksum is not that of its {len(body)} bytes")
    try:
        return _held(body)
    except (ValueError, KeyError, TypeError, RecursionError, HistoryError) as error:
        raise HistoryError(f"{path}: holds what no history holds: {error!r}") from error


def _held(body: bytes) -> Held:
    end = HEADER_SIZE_BYTES + int.from_bytes(body[:HEADER_SIZE_BYTES], "little")
    header: dict[str, Any] = json.loads(body[HEADER_SIZE_BYTES:end])
    shape = (_whole(header["layers"], 1), _whole(header["experts"], 1))
    moments: list[Moment] = []
    for entry in header["moments"]:
        steps: list[Step] = []
        for time_ms, run_id, group_step, size in entry["steps"]:
            packed = body[end : end + _whole(size, 1)]
            unpack(packed, *shape)
            steps.append(Step(_whole(time_ms), _whole(run_id), _whole(group_step), packed))
            end += size
        number = _whole(entry["number"])
        if not steps or any(step.time_ms // MOMENT_MS != number for step in steps):
            raise ValueError(f"moment {number} has {len(steps)} steps that are not all of its minute")
        moments.append(Moment(number, tuple(steps), shape))
    if end != len(body):
        raise ValueError(f"{len(body) - end} bytes after its last step")
    return Held(
        pool=str(header["pool"]),
        shape=shape,
        model_layers=tuple(_whole(layer) for layer in header["model_layers"]),
        top_k=_whole(header["top_k"]),
        model_digest=_whole(header["model_digest"]),
        moments=tuple(moments),
        regimes=tuple(_whole(entry["regime"], -1) for entry in header["moments"]),
        next_id=_whole(header["next_id"]),
    )


def _whole(value: Any, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 64:
        raise ValueError(f"{value!r} where a whole number of at least {least} is expected")
    return value


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=DIGEST_BYTES).digest()
