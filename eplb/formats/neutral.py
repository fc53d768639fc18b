"""The neutral map file: one JSON document that says which expert sits in which slot, and of which pool.

    {"schema": "eplb-map/1",
     "pool": {"ranks": 8, "nodes": 2, "slots_per_rank": 5, "experts": 32},
     "model_layer": [3, 4],
     "physical_to_logical": [[0, 1, ...], [...]],
     "shares": [[1.0, 0.5, ...], [...]] or null}

Rows stand in the order of ``model_layer``; slots are numbered rank by rank; -1 = empty slot.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from placement import Placement, Topology, violations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SCHEMA = "eplb-map/1"
POOL_KEYS = ("ranks", "nodes", "slots_per_rank", "experts")
KEYS = ("schema", "pool", "model_layer", "physical_to_logical", "shares")
SHARE_ERROR = 1e-6
"""Most by which the shares of one expert may miss 1."""


@dataclass(frozen=True, slots=True, eq=False)
class NeutralMap:
    """A map with the facts of its pool.

    ``model_layer``: the model's layer number of every row. ``placement``: int32 [layers, slots] and optional shares.
    """

    ranks: int
    nodes: int
    slots_per_rank: int
    experts: int
    model_layer: tuple[int, ...]
    placement: Placement

    def topology(self) -> Topology:
        """The pool as the solver sees it."""
        return Topology.uniform(ranks=self.ranks, nodes=self.nodes, slots_per_rank=self.slots_per_rank)


def dump_map(neutral: NeutralMap) -> str:
    """Write a map as JSON text with one row a line; equal maps give equal text."""
    rows = neutral.placement.physical_to_logical
    shares = neutral.placement.shares
    pool = {key: int(getattr(neutral, key)) for key in POOL_KEYS}
    parts = [
        f'"schema": {json.dumps(SCHEMA)}',
        f'"pool": {json.dumps(pool)}',
        f'"model_layer": {json.dumps([int(layer) for layer in neutral.model_layer])}',
        f'"physical_to_logical": {_lines(rows.tolist())}',
        f'"shares": {"null" if shares is None else _lines(shares.tolist())}',
    ]
    return "{" + ",\n ".join(parts) + "}\n"


def write_map(path: Path, neutral: NeutralMap) -> None:
    """Write a map file in one stroke: a reader sees the old file or the whole new one.

    Raises:
        FileError: the file cannot be written; nothing is left behind.
    """
    text = dump_map(neutral)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise FileError(f"{path}: cannot be written: {error.strerror}") from error


def read_map(path: Path, *, live: bool = False) -> NeutralMap:
    """Read a map file.

    ``live``: accept twins, gaps and missing experts, which the solver repairs; otherwise each is an error.

    Raises:
        FileError: names the file, the place, the value and what was expected.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: cannot be read: {error}") from error
    try:
        return parse_map(text, live=live)
    except FileError as error:
        raise FileError(f"{path}: {error}") from error


def parse_map(text: str, *, live: bool = False) -> NeutralMap:
    """Read a map from JSON text; see ``read_map``.

    Raises:
        FileError: names the place, the value and what was expected.
    """
    try:
        document = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FileError(f"not JSON: {error}") from error
    _check_keys(document)
    pool = document["pool"]
    facts = {key: _integer(pool[key], f"pool.{key}", 1) for key in POOL_KEYS}
    slots = facts["ranks"] * facts["slots_per_rank"]
    if facts["nodes"] > facts["ranks"]:
        raise FileError(f"pool has {facts['nodes']} nodes for {facts['ranks']} ranks")
    layers = document["model_layer"]
    if not isinstance(layers, list) or not layers:
        raise FileError(f"model_layer is {layers!r}, expected the layer number of every row")
    numbers = tuple(_integer(layer, f"model_layer[{at}]", 0) for at, layer in enumerate(layers))
    if len(set(numbers)) != len(numbers):
        raise FileError(f"model_layer names a layer twice: {list(numbers)}")
    rows = _rows(document["physical_to_logical"], len(numbers), slots, facts["experts"])
    shares = _shares(document["shares"], rows)
    neutral = NeutralMap(**facts, model_layer=numbers, placement=Placement(rows, shares))
    if not live:
        _check_valid(neutral)
    return neutral


def _lines(rows: Sequence[Sequence[float]]) -> str:
    return "[\n  " + ",\n  ".join(json.dumps(row) for row in rows) + "]"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number that a map may hold")


def _check_keys(document: Any) -> None:
    if not isinstance(document, dict):
        raise FileError(
            f"the document is a {type(document).__name__}, expected an object with {', '.join(KEYS)}"
        )
    schema = document.get("schema")
    if schema != SCHEMA:
        raise FileError(f"schema is {schema!r}, this version reads {SCHEMA!r}")
    missing = [key for key in KEYS if key not in document and key != "shares"]
    unknown = [key for key in document if key not in KEYS]
    if missing or unknown:
        raise FileError(f"keys missing: {missing}, unknown: {unknown}; expected {list(KEYS)}")
    document.setdefault("shares", None)
    pool = document["pool"]
    if not isinstance(pool, dict) or set(pool) != set(POOL_KEYS):
        raise FileError(f"pool is {pool!r}, expected an object with {list(POOL_KEYS)}")


def _integer(value: Any, where: str, least: int, most: int = 2**31 - 1) -> int:
    if type(value) is not int:
        raise FileError(f"{where} is {value!r}, expected a whole number written without a point")
    if not least <= value <= most:
        raise FileError(f"{where} is {value}, expected {least}..{most}")
    return value


def _table(value: Any, name: str, layers: int, slots: int) -> list[list[Any]]:
    if not isinstance(value, list) or len(value) != layers:
        found = len(value) if isinstance(value, list) else type(value).__name__
        raise FileError(f"{name} has {found} rows, model_layer {layers}")
    for at, row in enumerate(value):
        if not isinstance(row, list) or len(row) != slots:
            found = len(row) if isinstance(row, list) else type(row).__name__
            raise FileError(f"{name}[{at}] has {found} slots, the pool {slots}")
    return value


def _rows(value: Any, layers: int, slots: int, experts: int) -> NDArray[np.int32]:
    table = _table(value, "physical_to_logical", layers, slots)
    rows = [
        [
            _integer(expert, f"physical_to_logical[{at}][{slot}]", -1, experts - 1)
            for slot, expert in enumerate(row)
        ]
        for at, row in enumerate(table)
    ]
    return np.array(rows, dtype=np.int32)


def _shares(value: Any, rows: NDArray[np.int32]) -> NDArray[np.float64] | None:
    if value is None:
        return None
    table = _table(value, "shares", *rows.shape)
    for at, row in enumerate(table):
        for slot, share in enumerate(row):
            if type(share) not in {int, float} or not 0 <= share <= 1:
                raise FileError(f"shares[{at}][{slot}] is {share!r}, expected a number in 0..1")
    shares = np.array(table, dtype=np.float64)
    for at, row in enumerate(rows):
        held = row >= 0
        if shares[at, ~held].any():
            raise FileError(f"shares[{at}] gives an empty slot a share")
        total = np.bincount(row[held], weights=shares[at, held])
        wrong = np.flatnonzero((np.abs(total - 1) > SHARE_ERROR) & (np.bincount(row[held]) > 0))
        if len(wrong):
            raise FileError(f"shares[{at}] of expert {wrong[0]} sum to {total[wrong[0]]:.6g}, expected 1")
    return shares


def _check_valid(neutral: NeutralMap) -> None:
    found = [v for v in violations(neutral.placement, neutral.topology(), neutral.experts) if v.code != "gap"]
    if found:
        raise FileError(
            f"not a valid map: {found[0].sentence}"
            + (f" (and {len(found) - 1} more)" if len(found) > 1 else "")
        )
