"""The neutral map file: one JSON document that says which expert sits in which slot, and of which pool.

    {"schema": "eplb-map/1",
     "pool": {"ranks": 8, "nodes": 2, "slots_per_rank": 5, "experts": 32},
     "model_layer": [3, 4] or null,
     "hidden_layers": 5,
     "draft_layers": [5],
     "physical_to_logical": [[0, 1, ...], [...]],
     "shares": [[1.0, 0.5, ...], [...]] or null}

Rows stand in the order of ``model_layer``, null = it is not known which layers they are; ``hidden_layers``, the layers of the
model with its dense ones, is left out when it is not known, ``draft_layers`` (see ``facts.Layers``) when there are none. Slots are numbered rank by rank; -1 = empty slot.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Format, Layers, MapFacts, Written
from eplb.formats.files import head, in_file, parse_json, read_text, steady, write_text
from eplb.formats.layers import MOST_LAYERS, layers_of, told, told_layers
from eplb.formats.plain_values import shown, whole
from placement import Placement, Topology, violations
from placement.topology import MOST_SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

SCHEMA = "eplb-map/1"
POOL_KEYS = ("ranks", "nodes", "slots_per_rank", "experts")
KEYS = ("schema", "pool", "model_layer", "hidden_layers", "draft_layers", "physical_to_logical", "shares")
OPTIONAL_KEYS = ("hidden_layers", "draft_layers", "shares")
SHARE_ERROR = 1e-6
"""Most by which the shares of one expert may miss 1."""


@dataclass(frozen=True, slots=True, eq=False)
class NeutralMap:
    """A map with the facts of its pool.

    ``model_layer``: the model's layer number of every row, None = unknown. ``placement``: int32 [layers, slots] and optional
    shares. ``hidden_layers``: layers of the model, dense ones included, draft ones not; None = unknown. ``draft_layers``: numbers of
    layers without a row, see ``facts.Layers``.
    """

    ranks: int
    nodes: int
    slots_per_rank: int
    experts: int
    model_layer: tuple[int, ...] | None
    placement: Placement
    hidden_layers: int | None = None
    draft_layers: tuple[int, ...] = ()

    @property
    def layers(self) -> Layers:
        """Which layers of the model the rows are."""
        return Layers(self.model_layer, self.hidden_layers, self.draft_layers)

    def topology(self) -> Topology:
        """The pool as the solver sees it."""
        return Topology.uniform(ranks=self.ranks, nodes=self.nodes, slots_per_rank=self.slots_per_rank)


def dump_map(neutral: NeutralMap) -> str:
    """Write a map as JSON text with one row a line; equal maps give equal text."""
    rows = neutral.placement.physical_to_logical
    shares = neutral.placement.shares
    layers = neutral.model_layer
    pool = {key: int(getattr(neutral, key)) for key in POOL_KEYS}
    parts = [
        f'"schema": {json.dumps(SCHEMA)}',
        f'"pool": {json.dumps(pool)}',
        f'"model_layer": {json.dumps(None if layers is None else [int(layer) for layer in layers])}',
        *([] if neutral.hidden_layers is None else [f'"hidden_layers": {int(neutral.hidden_layers)}']),
        *([f'"draft_layers": {json.dumps(list(neutral.draft_layers))}'] if neutral.draft_layers else []),
        f'"physical_to_logical": {_lines(rows.tolist())}',
        f'"shares": {"null" if shares is None else _lines(shares.tolist())}',
    ]
    return "{" + ",\n ".join(parts) + "}\n"


def write_map(path: Path, neutral: NeutralMap) -> None:
    """Write a map file in one stroke: a reader sees the old file or the whole new one.

    Raises:
        FileError: the file cannot be written; nothing is left behind.
    """
    write_text(path, dump_map(neutral))


def read_map(path: Path, *, live: bool = False) -> NeutralMap:
    """Read a map file.

    ``live``: accept twins, gaps and missing experts, which the solver repairs; otherwise each is an error.

    Raises:
        FileError: names the file, the place, the value and what was expected.
    """

    def attempt() -> NeutralMap:
        with in_file(path):
            return parse_map(read_text(path), live=live)

    return steady(path, attempt)


def parse_map(text: str, *, live: bool = False) -> NeutralMap:
    """Read a map from JSON text; see ``read_map``.

    Raises:
        FileError: names the place, the value and what was expected.
    """
    document = parse_json(text)
    _check_keys(document)
    pool = document["pool"]
    facts = {key: whole(pool[key], f"pool.{key}", 1, MOST_SLOTS) for key in POOL_KEYS}
    slots = facts["ranks"] * facts["slots_per_rank"]
    if facts["nodes"] > facts["ranks"]:
        raise FileError(f"pool has {facts['nodes']} nodes for {facts['ranks']} ranks")
    layers = _layers(document)
    rows = _rows(document["physical_to_logical"], layers.model_layer, slots, facts["experts"])
    shares = _shares(document["shares"], rows)
    neutral = NeutralMap(
        **facts,
        model_layer=layers.model_layer,
        placement=Placement(rows, shares),
        hidden_layers=layers.hidden_layers,
        draft_layers=layers.draft_layers,
    )
    if not live:
        _check_valid(neutral)
    return neutral


def _lines(rows: Sequence[Sequence[float]]) -> str:
    return "[\n  " + ",\n  ".join(json.dumps(row) for row in rows) + "]"


def _check_keys(document: Any) -> None:
    if not isinstance(document, dict):
        raise FileError(
            f"the document is a {type(document).__name__}, expected an object with {', '.join(KEYS)}"
        )
    schema = document.get("schema")
    if schema != SCHEMA:
        raise FileError(f"schema is {shown(schema)}, this version reads {SCHEMA!r}")
    missing = [key for key in KEYS if key not in document and key not in OPTIONAL_KEYS]
    unknown = [key for key in document if key not in KEYS]
    if missing or unknown:
        raise FileError(f"keys missing: {missing}, unknown: {shown(unknown)}; expected {list(KEYS)}")
    for key in OPTIONAL_KEYS:
        document.setdefault(key, None)
    pool = document["pool"]
    if not isinstance(pool, dict) or set(pool) != set(POOL_KEYS):
        raise FileError(f"pool is {shown(pool)}, expected an object with {list(POOL_KEYS)}")


def _layers(document: dict[str, Any]) -> Layers:
    found, hidden = document["model_layer"], document["hidden_layers"]
    numbers = None
    if found is not None:
        if not isinstance(found, list) or not found:
            raise FileError(
                f"model_layer is {shown(found)}, expected the layer number of every row, or null = unknown"
            )
        numbers = tuple(
            whole(layer, f"model_layer[{at}]", 0, MOST_LAYERS - 1) for at, layer in enumerate(found)
        )
        if len(set(numbers)) != len(numbers):
            raise FileError(f"model_layer names a layer twice: {shown(list(numbers))}")
    if hidden is not None:
        whole(hidden, "hidden_layers", max(numbers or (0,)) + 1, MOST_LAYERS)
    return Layers(numbers, hidden, _drafts(document["draft_layers"], hidden or max(numbers or (-1,)) + 1))


def _drafts(found: Any, least: int) -> tuple[int, ...]:
    if found is None:
        return ()
    if not isinstance(found, list):
        raise FileError(f"draft_layers is {shown(found)}, expected a list of layer numbers")
    drafts = tuple(
        whole(layer, f"draft_layers[{at}]", least, MOST_LAYERS - 1) for at, layer in enumerate(found)
    )
    if len(set(drafts)) != len(drafts):
        raise FileError(f"draft_layers names a layer twice: {shown(found)}")
    return drafts


def _table(value: Any, name: str, layers: int | None, slots: int) -> list[list[Any]]:
    if not isinstance(value, list) or not value:
        kind = "no" if value == [] else type(value).__name__
        raise FileError(f"{name} has {kind} rows, expected a list of rows of slots")
    if layers is not None and len(value) != layers:
        raise FileError(f"{name} has {len(value)} rows, model_layer {layers}")
    for at, row in enumerate(value):
        if not isinstance(row, list) or len(row) != slots:
            found = len(row) if isinstance(row, list) else type(row).__name__
            raise FileError(f"{name}[{at}] has {found} slots, the pool {slots}")
    return value


def _rows(value: Any, numbers: tuple[int, ...] | None, slots: int, experts: int) -> NDArray[np.int32]:
    table = _table(value, "physical_to_logical", None if numbers is None else len(numbers), slots)
    rows = [
        [
            whole(expert, f"physical_to_logical[{at}][{slot}]", -1, experts - 1)
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
    # First, because what follows counts replicas by expert: a wild number of experts would fill the memory.
    if neutral.experts > neutral.placement.slots:
        raise FileError(f"not a valid map: {neutral.experts} experts in {neutral.placement.slots} slots")
    found = [v for v in violations(neutral.placement, neutral.topology(), neutral.experts) if v.code != "gap"]
    if found:
        raise FileError(
            f"not a valid map: {found[0].sentence}"
            + (f" (and {len(found) - 1} more)" if len(found) > 1 else "")
        )


def _recognises(path: Path) -> bool:
    return b'"eplb-map/' in head(path)


def _read(path: Path, facts: MapFacts) -> NeutralMap:
    neutral = read_map(path, live=True)
    with in_file(path):
        told(facts, ranks=neutral.ranks, nodes=neutral.nodes, experts=neutral.experts)
        layers = layers_of(told_layers(neutral.layers, facts.layers), Layers(), neutral.placement.layers)
    return replace(
        neutral,
        model_layer=layers.model_layer,
        hidden_layers=layers.hidden_layers,
        draft_layers=layers.draft_layers,
    )


def _write(path: Path, neutral: NeutralMap) -> Written:
    write_map(path, neutral)
    return Written((path,), ())


FORMATS = (
    Format(
        name="neutral",
        title="our own map file (JSON)",
        recognises=_recognises,
        read_map=_read,
        write_map=_write,
    ),
)
