"""SGLang's map file, as ``--init-expert-location`` takes it: one key, one row for every layer of the model.

    {"physical_to_logical_map": [[0, 1, 2, 3, 0, 1], [3, 1, 2, 0, 3, 1]]}

Rows are the layers of the model from 0; a dense layer has a row too, which is never used. SGLang stops on a second key, and takes a
wrong number of rows or slots, or an expert without a slot, in silence. So what the file cannot say (ranks, nodes, which layers are
MoE layers) stands in a file beside it, ``NAME.meta.json``, which names the map file's digest.
Checked against SGLang 0.5.23.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from eplb.errors import FileError
from eplb.formats.facts import Format, Layers, MapFacts, Note, Written
from eplb.formats.files import in_file, read_bytes, read_json, write_text
from eplb.formats.layers import layers_of, told, told_layers
from eplb.formats.map_rules import check_sound, map_of, uneven_shares
from eplb.formats.model_rows import listed
from eplb.formats.neutral import POOL_KEYS, NeutralMap
from eplb.formats.plain_values import shown
from eplb.formats.sglang_files import MAP_KEY, PICKLED_MAP_KEY, array, document, is_json_object, names_key
from eplb.start_map import start_map

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

NAME = "sglang"
META_SCHEMA = "eplb-sglang-meta/1"
MOST_MAP_BYTES = 2**28


def recognises(path: Path) -> bool:
    """Whether a JSON object or a torch file names the map key near its start. Never raises."""
    quoted = f'"{MAP_KEY}"'.encode()
    return names_key(path, (quoted,) if is_json_object(path) else (PICKLED_MAP_KEY,))


def read_map(path: Path, facts: MapFacts) -> NeutralMap:
    """Read a map, ``.json`` or ``.pt``; twins and experts without a slot are left for the caller to judge.

    Ranks, nodes and layers come from ``facts``, else from the file beside it. Without word of the layers every row is read, and
    which of them are MoE layers stays unknown.

    Raises:
        FileError: names the file, the place, the value and what was expected.
    """
    content = document(path)
    if set(content) != {MAP_KEY}:
        keys = ", ".join(sorted(shown(key) for key in content)[:8])
        raise FileError(f"{path}: holds {keys}; expected {MAP_KEY} alone: SGLang stops on any second key")
    table = array(content[MAP_KEY], ("layers", "slots"), f"{path}: {MAP_KEY}")
    with in_file(path):
        return _neutral(table, _known(path, facts))


def _neutral(table: NDArray[Any], facts: MapFacts) -> NeutralMap:
    hidden = len(table)
    if facts.layers.hidden_layers not in {None, hidden}:
        raise FileError(
            f"has {hidden} rows, the model has {facts.layers.hidden_layers} layers: SGLang takes one row for every layer"
        )
    numbers = facts.layers.model_layer
    rows = tuple(range(hidden)) if numbers is None else numbers
    layers = layers_of(Layers(numbers, hidden), Layers(draft_layers=facts.layers.draft_layers), len(rows))
    return map_of(table[list(rows)], replace(facts, layers=layers), MAP_KEY)


def _known(path: Path, facts: MapFacts) -> MapFacts:
    """``facts``, filled up from the file beside the map where there is one."""
    beside = _meta_path(path)
    if not beside.exists():
        return facts
    meta = read_json(beside)
    pool = meta.get("pool") if isinstance(meta, dict) and meta.get("schema") == META_SCHEMA else None
    if not isinstance(pool, dict) or set(pool) != set(POOL_KEYS) or not _all_whole(list(pool.values())):
        raise FileError(f"{beside.name} beside it is not of schema {META_SCHEMA}: move it away")
    digest = hashlib.sha256(read_bytes(path, most_bytes=MOST_MAP_BYTES)).hexdigest()
    if meta.get("map_sha256") != digest:
        raise FileError(
            f"{beside.name} beside it was written for another map: move it away and give --ranks, --nodes and --moe-layers"
        )
    found = meta.get("model_layer"), meta.get("draft_layers")
    if not all(isinstance(numbers, list) and _all_whole(numbers) for numbers in found):
        raise FileError(f"{beside.name} beside it names no layers: move it away")
    numbers, drafts = (tuple(each) for each in found if each is not None)
    layers = told_layers(Layers(numbers, None, drafts), facts.layers)
    known = told(facts, ranks=pool["ranks"], nodes=pool["nodes"], experts=pool["experts"])
    return replace(known, layers=layers)


def _all_whole(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value < 2**31 for value in values)


def _meta_path(path: Path) -> Path:
    return path.with_suffix(".meta.json")


def write_map(path: Path, neutral: NeutralMap) -> Written:
    """Write a map, and the file beside it; draft layers have no row, SGLang serves them unbalanced.

    Raises:
        FileError: the layers are not known (names the flags), the map breaks a rule of the engine, or the files cannot be written.
    """
    numbers, hidden = check_map(path, neutral)
    text = _text(neutral, numbers, hidden)
    # The map first: a reader never sees a description of a map that is not there yet.
    write_text(path, text)
    write_text(_meta_path(path), _meta(neutral, text))
    return Written((path, _meta_path(path)), _start_with(path, neutral), tuple(_notes(neutral)))


def check_map(path: Path, neutral: NeutralMap) -> tuple[tuple[int, ...], int]:
    """Refuse what the engine would stop on or take wrongly in silence; else the model layer of every row, and the layers of the model.

    Raises:
        FileError: see ``write_map``.
    """
    if path.suffix != ".json":
        raise FileError(f"{path}: SGLang reads a map from a name that ends with .json, not {path.suffix!r}")
    if neutral.model_layer is None or neutral.hidden_layers is None:
        lacking = "model_layer" if neutral.model_layer is None else "hidden_layers"
        raise FileError(
            f"{path}: {lacking} is not known, and SGLang numbers rows by layer of the model, dense ones included: give "
            "--moe-layers and --hidden-layers, such as --moe-layers 1-26 --hidden-layers 27; a shifted map loads in silence"
        )
    with in_file(path):
        layers_of(neutral.layers, Layers(), neutral.placement.layers)
        check_sound(neutral)
    return neutral.model_layer, neutral.hidden_layers


def _text(neutral: NeutralMap, numbers: tuple[int, ...], hidden: int) -> str:
    rows = [start_map(1, neutral.experts, neutral.placement.slots)[0].tolist() for _ in range(hidden)]
    for number, row in zip(numbers, neutral.placement.physical_to_logical.tolist(), strict=True):
        rows[number] = row
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    return f'{{"{MAP_KEY}": [\n  {lines}\n]}}\n'


def _meta(neutral: NeutralMap, text: str) -> str:
    meta = {
        "schema": META_SCHEMA,
        "map_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "pool": {key: int(getattr(neutral, key)) for key in POOL_KEYS},
        "model_layer": list(neutral.model_layer or ()),
        "hidden_layers": neutral.hidden_layers,
        "draft_layers": list(neutral.draft_layers),
    }
    return json.dumps(meta, indent=1) + "\n"


def _start_with(path: Path, neutral: NeutralMap) -> tuple[str, ...]:
    return (
        f"--init-expert-location {shlex.quote(str(path))}",
        f"--ep-num-redundant-experts {neutral.placement.slots - neutral.experts}",
        f"--ep-size {neutral.ranks}",
    )


def _notes(neutral: NeutralMap) -> list[Note]:
    dense = sorted(set(range(neutral.hidden_layers or 0)) - set(neutral.model_layer or ()))
    notes = [
        Note(
            "same_flags",
            "SGLang does not compare the map with the model: a wrong number of slots or layers loads in silence",
            "change these flags together, or not at all",
        )
    ]
    if neutral.placement.slots > neutral.experts:
        notes.append(
            Note(
                "nearest_replica",
                "with an all-to-all backend SGLang sends a token to the replica on its own rank or node, so replicas do not share "
                "evenly",
                "plan and score with --dispatch sglang",
            )
        )
    if uneven_shares(neutral):
        notes.append(
            Note("shares_dropped", "SGLang takes no shares of replicas: those of this map are left out")
        )
    if dense:
        notes.append(
            Note(
                "dense_rows",
                f"layers {listed(dense)} are dense: their rows hold any valid map and are not used",
            )
        )
    if neutral.draft_layers:
        notes.append(
            Note(
                "draft_layers",
                f"draft layers {listed(neutral.draft_layers)} have no row: SGLang keeps them as they are",
            )
        )
    return notes


FORMATS = (
    Format(
        NAME,
        "SGLang map file (JSON or .pt with physical_to_logical_map)",
        recognises,
        read_map=read_map,
        write_map=write_map,
        check_map=check_map,
    ),
)
