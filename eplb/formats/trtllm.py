"""TensorRT-LLM's offline load-balancer file (YAML), which ``moe_config.load_balancer`` names.

    initial_global_assignments:
      3: [0, 1, 2, 3, 0, 1]
      4: [3, 1, 2, 0, 3, 1]
    layer_updates_per_iter: 0
    num_slots: 6

Layers are those of the model; dense ones are absent, and the layers of a multi-token-prediction head must be there: the engine stops
at the first MoE layer that is not. It refuses keys it does not know; ``ep_size``, which some scripts add, is read and never written.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats.facts import Format, Layers, MapFacts, Note, Written
from eplb.formats.files import head, in_file, read_text, steady, write_text
from eplb.formats.layers import layers_of, told
from eplb.formats.map_rules import beside, check_sound, map_of, uneven_shares
from eplb.formats.model_rows import listed
from eplb.formats.plain_values import shown, whole
from eplb.start_map import start_map

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.neutral import NeutralMap

NAME = "trtllm"
ASSIGNMENTS = "initial_global_assignments"
KEYS = {ASSIGNMENTS, "layer_updates_per_iter", "num_slots", "ep_size"}
MOST_YAML_BYTES = 2**26
MOST_ENGINE_EXPERTS = 1024
MOST_ENGINE_SLOTS = 2**15
"""The engine keeps slot ids in int16."""
LONG_NUMBER = re.compile(r"[0-9:_.]{64}")
MOST_CELLS = 2**26
"""Slots of all layers: aliases let a short text stand for many."""


def recognises(path: Path) -> bool:
    """Whether a ``.yaml`` or ``.yml`` file names one of the two keys that the engine's file has. Never raises."""
    start = head(path, 2**16)
    return path.suffix in {".yaml", ".yml"} and (
        f"{ASSIGNMENTS}:".encode() in start
        or start.lstrip().startswith((b"num_slots:", b"layer_updates_per_iter:"))
    )


def read_map(path: Path, facts: MapFacts) -> NeutralMap:
    """Read a map; twins and experts without a slot are left for the caller to judge.

    ``facts.layers.model_layer``: the layers that must be there, None = those that are. Rows of ``facts.layers.draft_layers`` are
    checked and not kept: a map is that of the model itself.

    Raises:
        FileError: names the file, the layer, the value and what was expected.
    """
    with in_file(path):
        content = _content(path)
        table, numbers = _table(content)
        numbers, table = _wanted(numbers, table, facts.layers)
        known = told(facts, ranks=whole(content["ep_size"], "ep_size", 1) if "ep_size" in content else None)
        layers = layers_of(Layers(numbers), replace(facts.layers, model_layer=None), len(numbers))
        return map_of(table, replace(known, layers=layers), ASSIGNMENTS)


def _content(path: Path) -> dict[Any, Any]:
    found = steady(path, lambda: _parsed(read_text(path, most_bytes=MOST_YAML_BYTES)))
    if not isinstance(found, dict) or not found:
        raise FileError(
            f"holds {type(found).__name__}, expected the keys {', '.join(sorted(KEYS - {'ep_size'}))}"
        )
    unknown = sorted(shown(key) for key in found if key not in KEYS)
    if unknown:
        raise FileError(
            f"has keys that TensorRT-LLM refuses: {', '.join(unknown[:8])}; known are {', '.join(sorted(KEYS))}"
        )
    if found.get(ASSIGNMENTS) is None:
        raise FileError(f"has no {ASSIGNMENTS}: a file of online balancing holds no map to read")
    return found


def _parsed(text: str) -> Any:
    import yaml

    if LONG_NUMBER.search(text):
        # Base-60 numbers, which YAML has, take quadratic time.
        raise FileError("not YAML of the engine: a number is longer than any expert, slot or layer is")

    class Loader(yaml.SafeLoader):
        """Refuses a key given twice, of which the plain loader takes the last in silence, and merges, which multiply."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            found = super().construct_mapping(node, deep)
            if len(found) != len(node.value):
                names = Counter(str(key.value) for key, _ in node.value)
                raise FileError(f"key {names.most_common(1)[0][0]!r} stands twice in one mapping")
            return found

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise FileError("not YAML of the engine: it uses a merge key (<<)")

    try:
        return yaml.load(text, Loader)  # noqa: S506 - a subclass of the safe loader
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError, AttributeError, TypeError) as error:
        raise FileError(f"not YAML: {' '.join(str(error).split()) or type(error).__name__}") from error


def _table(content: dict[Any, Any]) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    slots = whole(content.get("num_slots"), "num_slots", 1)
    whole(content.get("layer_updates_per_iter", 0), "layer_updates_per_iter", 0)
    found = content[ASSIGNMENTS]
    if not isinstance(found, dict) or not found:
        raise FileError(
            f"{ASSIGNMENTS} is {type(found).__name__}, expected a list of experts for every layer number"
        )
    if len(found) * slots > MOST_CELLS:
        raise FileError(
            f"{ASSIGNMENTS} has {len(found)} layers of {slots} slots, expected at most {MOST_CELLS:,} slots in all"
        )
    numbers = tuple(sorted(whole(number, f"a layer of {ASSIGNMENTS}", 0) for number in found))
    rows = [_row(found[number], f"{ASSIGNMENTS}[{number}]", slots) for number in numbers]
    return np.array(rows, dtype=np.int64), numbers


def _row(row: Any, where: str, slots: int) -> list[int]:
    if not isinstance(row, list) or len(row) != slots:
        found = len(row) if isinstance(row, list) else type(row).__name__
        raise FileError(f"{where} has {found} slots, num_slots is {slots}")
    return [whole(expert, f"{where}, slot {slot}", 0) for slot, expert in enumerate(row)]


def _wanted(
    numbers: tuple[int, ...], table: NDArray[np.int64], given: Layers
) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """Rows of the model's own layers, once every layer that is asked for is there and no other."""
    own = [at for at, number in enumerate(numbers) if number not in given.draft_layers]
    if given.model_layer is not None:
        here, asked = {numbers[at] for at in own}, set(given.model_layer)
        if asked - here:
            raise FileError(
                f"has no row for MoE layers {listed(asked - here)}: TensorRT-LLM stops there; add them or mend --moe-layers"
            )
        if here - asked:
            raise FileError(
                f"has rows for layers {listed(here - asked)}, which are no MoE layers of the model: name those of a draft model with --draft-layers, else take them out or mend --moe-layers"
            )
    if not own:
        raise FileError(f"has rows for draft layers {listed(numbers)} alone")
    return tuple(numbers[at] for at in own), table[own]


def write_map(path: Path, neutral: NeutralMap) -> Written:
    """Write a map; draft layers get the row that the engine would start with.

    Raises:
        FileError: the layers are not known (names the flag), the map breaks a rule of the engine, or the file cannot be written.
    """
    numbers = check_map(path, neutral)
    rows = dict(zip(numbers, neutral.placement.physical_to_logical.tolist(), strict=True))
    rows |= {
        number: start_map(1, neutral.experts, neutral.placement.slots)[0].tolist()
        for number in neutral.draft_layers
    }
    lines = [f"  {number}: {rows[number]}" for number in sorted(rows)]
    tail = ("layer_updates_per_iter: 0", f"num_slots: {neutral.placement.slots}", "")
    write_text(path, "\n".join((f"{ASSIGNMENTS}:", *lines, *tail)))
    return Written((path,), _start_with(path, neutral), tuple(_notes(neutral)))


def check_map(path: Path, neutral: NeutralMap) -> tuple[int, ...]:
    """Refuse what the engine would stop on or ignore; else the model layer of every row.

    Raises:
        FileError: the layers are not known (names the flag), or the map breaks a rule of the engine.
    """
    if neutral.model_layer is None:
        raise FileError(
            f"{path}: model_layer is not known, and TensorRT-LLM numbers rows by layer of the model, dense ones included: give "
            "--moe-layers and --hidden-layers, such as --moe-layers 1-26 --hidden-layers 27"
        )
    with in_file(path):
        layers_of(neutral.layers, Layers(), neutral.placement.layers)
        check_sound(neutral)
        _check_engine(neutral)
    return neutral.model_layer


def _check_engine(neutral: NeutralMap) -> None:
    if neutral.experts > MOST_ENGINE_EXPERTS or neutral.placement.slots >= MOST_ENGINE_SLOTS:
        raise FileError(
            f"has {neutral.experts} experts in {neutral.placement.slots} slots, TensorRT-LLM takes at most {MOST_ENGINE_EXPERTS} experts "
            f"and {MOST_ENGINE_SLOTS - 1} slots"
        )
    if neutral.ranks == 1:
        raise FileError(
            "is for one rank, and TensorRT-LLM ignores a load balancer without expert parallelism"
        )


def _start_with(path: Path, neutral: NeutralMap) -> tuple[str, ...]:
    return (
        "enable_attention_dp: true",
        f"moe_expert_parallel_size: {neutral.ranks}",
        f"moe_config: {{backend: WIDEEP, load_balancer: {_scalar(path)}}}",
    )


def _scalar(path: Path) -> str:
    """A path as a YAML value: quoted (as JSON, which is YAML) unless it is plain."""
    text = str(path)
    return text if re.fullmatch(r"[./A-Za-z0-9_][-./A-Za-z0-9_]*", text) else json.dumps(text)


def _notes(neutral: NeutralMap) -> list[Note]:
    numbers = neutral.model_layer or ()
    between = sorted(set(range(min(numbers), max(numbers) + 1)) - set(numbers))
    notes = [
        Note(
            "ignored_in_silence",
            "without attention data parallelism, expert parallelism or a model on the engine's list the file is ignored in silence",
            "look for the load balancer in the engine's log, and check that the load by rank has changed",
        ),
        Note(
            "stale_shared_memory",
            "after a crash the engine's shared memory moe_shared_* stays, and a second instance on the node clashes with it",
            "remove /dev/shm/moe_shared_*, or set TRTLLM_EPLB_SHM_NAME for each instance",
        ),
    ]
    if between:
        notes.append(
            Note(
                "layers_between",
                f"layers {listed(between)} have no row: the engine stops if one of them is a MoE layer",
            )
        )
    if uneven_shares(neutral):
        notes.append(
            Note("shares_dropped", "TensorRT-LLM takes no shares of replicas: those of this map are left out")
        )
    lost = beside(neutral, ranks=False, layers=True)
    if lost is not None:
        notes.append(lost)
    if neutral.draft_layers:
        notes.append(
            Note(
                "draft_layers",
                f"draft layers {listed(neutral.draft_layers)} have the row that the engine starts with: no load of theirs is known",
            )
        )
    return notes


FORMATS = (
    Format(
        NAME,
        "TensorRT-LLM load-balancer file (YAML)",
        recognises,
        read_map=read_map,
        write_map=write_map,
        check_map=check_map,
        suffix=".yaml",
    ),
)
