"""The last map that all ranks of a pool were seen to serve, as a sealed file on the daemon's own host."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from eplb.agent.header import MAX_TERM
from eplb.agent.wire import seal, unseal
from eplb.errors import FileError, OfferError
from eplb.formats.files import make_folder, read_bytes, write_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from collectors.facts import PoolFacts

LAST_GOOD_SCHEMA = "eplb.last_good/1"
MOST_FILE_BYTES = 64 << 20
"""Far above 61 layers x 320 slots with shares (0.5 MB)."""

_COUNT_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class LastGood:
    """What a pool served when it was last seen whole.

    ``term`` highest leadership term known; ``map_version`` of the live map; ``run_id`` life of the group; ``rows`` the map,
    [layers][slots] of logical ids, -1 = empty; ``shares`` [layers][slots] or None; ``paused`` the operator's switch;
    ``saved_ms`` store time; ``model_digest`` of the model's weights, 0 = unknown.
    """

    pool: str
    term: int
    map_version: int
    run_id: int
    rows: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[float, ...], ...] | None
    paused: bool
    saved_ms: int
    model_digest: int = 0


def encode_last_good(record: LastGood) -> bytes:
    """The record as sealed bytes."""
    return seal(LAST_GOOD_SCHEMA, asdict(record))


def decode_last_good(raw: bytes, facts: PoolFacts) -> LastGood:
    """Read a record of this pool.

    Raises:
        OfferError: the record is damaged, not signed as it should be, of another pool or shape, or a value is out of range.
    """
    body = unseal(LAST_GOOD_SCHEMA, raw)
    unknown = set(body) ^ {field.name for field in fields(LastGood)}
    if unknown:
        raise OfferError(
            f"last good map: fields differ from this version's: {', '.join(sorted(unknown)[:4])}"
        )
    if body["pool"] != facts.pool:
        raise OfferError(f"last good map: it is of pool {str(body['pool'])[:64]!r}, this is {facts.pool!r}")
    for name, limit in (("term", MAX_TERM), ("map_version", _COUNT_LIMIT), ("saved_ms", _COUNT_LIMIT)):
        if not _is_count(body[name], limit):
            raise OfferError(f"last good map: {name} is out of range")
    if not _is_count(body["run_id"], 1 << 64) or not _is_count(body["model_digest"], 1 << 64):
        raise OfferError("last good map: run_id or model_digest is out of range")
    if not isinstance(body["paused"], bool):
        raise OfferError("last good map: paused is neither true nor false")
    return LastGood(**{**body, "rows": _rows(body["rows"], facts), "shares": _shares(body["shares"], facts)})


def last_good_path(folder: Path, pool: str) -> Path:
    """Where the record of a pool lies."""
    return folder / f"{pool}.last-good.json"


def write_last_good(folder: Path, record: LastGood) -> None:
    """Put the record in the place of the former one, which stays whole if anything fails.

    Raises:
        FileError: the folder cannot be made or the file not written, for example because the disk is full.
    """
    make_folder(folder, "state_folder")
    write_bytes(last_good_path(folder, record.pool), encode_last_good(record))


def read_last_good(folder: Path, facts: PoolFacts) -> tuple[LastGood | None, str]:
    """The record of a pool, and why there is none although a file is there ("" = there is no file).

    A file that cannot be used is moved aside, so that the next write does not destroy what somebody may want to look at.
    """
    path = last_good_path(folder, facts.pool)
    if not path.exists():
        return None, ""
    try:
        return decode_last_good(read_bytes(path, most_bytes=MOST_FILE_BYTES), facts), ""
    except (FileError, OfferError) as error:
        return None, f"{path}: not used: {error}; {_set_aside(path)}"


def _set_aside(path: Path) -> str:
    aside = path.with_suffix(".refused")
    try:
        path.replace(aside)
    except OSError as error:
        return f"it could not be moved to {aside.name} either: {error.strerror}"
    return f"it was moved to {aside.name}, and a new one follows"


def _is_count(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit


def _table(found: Any, facts: PoolFacts, what: str) -> list[list[Any]]:
    sound = isinstance(found, list) and len(found) == facts.layers
    if not sound or any(not isinstance(row, list) or len(row) != facts.slots for row in found):
        raise OfferError(f"last good map: {what} are not {facts.layers} rows of {facts.slots} slots")
    return list(found)


def _rows(found: Any, facts: PoolFacts) -> tuple[tuple[int, ...], ...]:
    rows = _table(found, facts, "rows")
    if not all(type(x) is int and -1 <= x < facts.experts for row in rows for x in row):
        raise OfferError(f"last good map: an id is not in -1..{facts.experts - 1}")
    return tuple(tuple(row) for row in rows)


def _shares(found: Any, facts: PoolFacts) -> tuple[tuple[float, ...], ...] | None:
    if found is None:
        return None
    rows = _table(found, facts, "shares")
    if not all(type(x) in (int, float) and 0 <= x <= 1 for row in rows for x in row):
        raise OfferError("last good map: a share is not in 0..1")
    return tuple(tuple(float(x) for x in row) for row in rows)
