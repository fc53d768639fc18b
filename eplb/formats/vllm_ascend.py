"""vllm-ascend's expert map: the file that ``expert_map_path`` reads and ``expert_map_record_path`` writes.

    {"moe_layer_count": 1,
     "layer_list": [{"layer_id": 0, "device_count": 2,
                     "device_list": [{"device_id": 0, "device_expert": [3, 1, 2]},
                                     {"device_id": 1, "device_expert": [0, 3, 1]}]}]}

The engine goes by position in the lists: ids that contradict it are refused here. All devices hold the same number of experts,
and none twice: the engine takes a duplicate without a word and then computes wrong slots. The record holds a map and no counts.
Layers are MoE layers in the order of the model, dense ones left out.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eplb.errors import FileError
from eplb.formats import files
from eplb.formats.facts import Format, Layers, MapFacts, Note, Written
from eplb.formats.layers import layers_of, told
from eplb.formats.map_rules import beside, check_moe_rows, check_sound, in_model_order, map_of, uneven_shares
from eplb.formats.plain_values import some, whole
from eplb.formats.same_pool import differing_slots
from eplb.start_map import start_map

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from eplb.formats.neutral import NeutralMap

SUFFIX = ".json"
MOST_ID = 2**31 - 1

MARKS = (b'"moe_layer_count"', b'"layer_list"')


def recognises(path: Path) -> bool:
    """Whether the head of a file names the keys of such a map."""
    head = files.head(path)
    return head.lstrip()[:1] == b"{" and any(mark in head for mark in MARKS)


def read_map(path: Path, facts: MapFacts) -> NeutralMap:
    """Read a map, or the engine's record of one, again while the engine is rewriting it.

    ``facts``: ``ranks`` is only checked; ``nodes`` None = 1; ``experts`` None = the highest id + 1.

    Raises:
        FileError: names the file, layer, device, value and what was expected.
    """
    with files.in_file(path):
        return parse_map(files.read_json(path), facts)


def parse_map(document: Any, facts: MapFacts) -> NeutralMap:
    """Read a map from a parsed document; see ``read_map``.

    Raises:
        FileError: names layer, device, value and what was expected.
    """
    if not isinstance(document, dict):
        raise FileError(f"the document is a {type(document).__name__}, expected an object with layer_list")
    layers = some(document.get("layer_list"), "layer_list", "layers")
    count = whole(document.get("moe_layer_count"), "moe_layer_count")
    if count != len(layers):
        raise FileError(
            f"moe_layer_count is {count}, layer_list has {len(layers)} entries: the engine leaves the layers "
            "behind the count without a map"
        )
    _check_order(layers, "layer_list", "layer_id")
    table = [_devices(layer, f"layer_list[{at}]") for at, layer in enumerate(layers)]
    _check_even(table)
    rows = np.array(table, dtype=np.int64)
    known = replace(told(facts, ranks=rows.shape[1]), layers=layers_of(Layers(), facts.layers, len(rows)))
    neutral = map_of(rows.reshape(len(rows), -1), known, "device_expert")
    check_sound(neutral)
    return neutral


def read_pair(
    main: Path, draft: Path, facts: MapFacts, draft_facts: MapFacts
) -> tuple[NeutralMap, NeutralMap]:
    """Read the maps of a model and its draft model, which must have the same redundant experts on the same ranks.

    Raises:
        FileError: see ``read_map``, or names both files and the numbers that differ.
    """
    one, two = read_map(main, facts), read_map(draft, draft_facts)
    for name, first, second in (
        ("ranks", one.ranks, two.ranks),
        ("redundant experts", redundant(one), redundant(two)),
    ):
        if first != second:
            raise FileError(
                f"{draft}: has {second} {name}, the map of the main model {first} ({main}): the engine allocates one "
                "number for both; solve both with the same"
            )
    return one, two


def redundant(neutral: NeutralMap) -> int:
    """Slots of a layer beyond one for every expert."""
    return neutral.ranks * neutral.slots_per_rank - neutral.experts


def start_layout(experts: int, redundant_experts: int, devices: int) -> NDArray[np.int64]:
    """The map with which the engine starts without a file, int64 [devices, slots of one]: all experts, then 0, 1, ... again.

    Source: vllm-ascend, main of August 2026. Earlier versions filled the redundant slots in another order, so this is only
    for pools whose live map cannot be asked for; see ``adopt_start``.

    Raises:
        FileError: the slots cannot be shared evenly, or a device would hold an expert twice.
    """
    slots = experts + redundant_experts
    if devices < 1 or experts < 1 or redundant_experts < 0 or slots % devices:
        raise FileError(
            f"{experts} + {redundant_experts} experts cannot be shared evenly by {devices} devices: change the redundancy"
        )
    if slots // devices > experts:
        raise FileError(
            f"{slots // devices} slots a device are more than the {experts} experts: lower the redundancy"
        )
    return start_map(1, experts, slots).reshape(devices, -1).astype(np.int64)


def adopt_start(engine: NeutralMap, assumed: NeutralMap) -> tuple[NeutralMap, Note | None]:
    """The map that the engine really started with, and a note where it is not the one that was assumed.

    Raises:
        FileError: the maps are of different pools or models.
    """
    places = differing_slots(engine, assumed)
    if not len(places):
        return engine, None
    devices = sorted({int(slot) // engine.slots_per_rank for _, slot in places})
    return engine, Note(
        "start_differs",
        f"{len(places)} slots, on devices {', '.join(map(str, devices))}, start with other experts than was assumed",
        "the engine's map is used; plan from what the engine reports, because its start layout changes between versions",
    )


def write_map(path: Path, neutral: NeutralMap) -> Written:
    """Write a map; shares are left out, because the engine has none.

    Raises:
        FileError: the file is not called ``*.json``, the map breaks a rule of the engine, or it cannot be written.
    """
    check_map(path, neutral)
    files.write_text(path, dump_map(neutral))
    return Written((path,), _start_with(path, neutral), _notes(neutral))


def check_map(path: Path, neutral: NeutralMap) -> None:
    """Refuse what the engine would.

    Raises:
        FileError: the file is not called ``*.json``, or the map breaks a rule of the engine.
    """
    if path.suffix != SUFFIX:
        raise FileError(f"{path}: the engine refuses a map whose name does not end in {SUFFIX}: rename it")
    with files.in_file(path):
        check_moe_rows(neutral)
        check_sound(neutral)


def dump_map(neutral: NeutralMap) -> str:
    """Write a map as JSON text, one device a line, layers in the order of the model; equal maps give equal text."""
    rows = in_model_order(neutral).placement.physical_to_logical
    table = rows.reshape(len(rows), neutral.ranks, neutral.slots_per_rank).tolist()
    layers = ",\n".join(_layer_text(at, devices) for at, devices in enumerate(table))
    return f'{{"moe_layer_count": {len(table)},\n "layer_list": [\n{layers}]}}\n'


def _layer_text(layer: int, devices: list[list[int]]) -> str:
    lines = ",\n".join(
        f'   {{"device_id": {at}, "device_expert": {json.dumps(held)}}}' for at, held in enumerate(devices)
    )
    return f'  {{"layer_id": {layer}, "device_count": {len(devices)}, "device_list": [\n{lines}]}}'


def _start_with(path: Path, neutral: NeutralMap) -> tuple[str, ...]:
    config: dict[str, Any] = {"expert_map_path": str(path)}
    if redundant(neutral):
        config["num_redundant_experts"] = redundant(neutral)
    return (
        "--enable-expert-parallel",
        f"--additional-config {shlex.quote(json.dumps({'eplb_config': config}))}",
    )


def _notes(neutral: NeutralMap) -> tuple[Note, ...]:
    notes = [
        Note(
            "static_maps_end",
            "vllm-ascend has announced that v0.25.1 will no longer read static maps",
            "use an earlier version, or its dynamic balancing from then on",
        ),
        Note(
            "positions_stay",
            "an engine that already runs rejects a layer in which an expert that stays on its device changes its position",
            "give the live map as --current: experts that stay then keep their slots",
        ),
        Note(
            "draft_layer",
            "a draft (MTP) layer behind the last entry gets as many slots as entry 0 has, and no map",
            "give the draft model the same redundant experts",
        ),
    ]
    if redundant(neutral):
        notes.append(
            Note(
                "slots_of_later_versions",
                "v0.23.0 takes the slots of a device from this file; later versions take them from vLLM's own redundancy, and stop "
                "if the two differ",
                f"there, set vLLM's redundant experts to {redundant(neutral)} too",
            )
        )
    lost = beside(neutral, ranks=True, layers=False)
    if lost is not None:
        notes.append(lost)
    if uneven_shares(neutral):
        notes.append(
            Note(
                "shares_dropped",
                "the engine gives every source rank one replica of an expert; the map's shares are left out",
                "solve with --dispatch vllm-ascend to plan for that",
            )
        )
    layers = sorted(neutral.model_layer or ())
    if layers and layers != list(range(layers[0], layers[-1] + 1)):
        notes.append(
            Note(
                "layers_by_position",
                f"entries count by position: model layers {layers} become MoE layers 0 to {len(layers) - 1}",
                "make sure that the layers in between are dense",
            )
        )
    return tuple(notes)


def _devices(layer: Any, where: str) -> list[list[int]]:
    """Experts of every device of one layer."""
    if not isinstance(layer, dict):
        raise FileError(f"{where} is a {type(layer).__name__}, expected an object with device_list")
    devices = some(layer.get("device_list"), f"{where}.device_list", "devices")
    count = whole(layer.get("device_count", len(devices)), f"{where}.device_count")
    if count != len(devices):
        raise FileError(f"{where}.device_count is {count}, device_list has {len(devices)} entries")
    _check_order(devices, f"{where}.device_list", "device_id")
    return [_experts(device, f"{where}.device_list[{at}]") for at, device in enumerate(devices)]


def _experts(device: Any, where: str) -> list[int]:
    if not isinstance(device, dict):
        raise FileError(f"{where} is a {type(device).__name__}, expected an object with device_expert")
    held = some(device.get("device_expert"), f"{where}.device_expert", "experts")
    return [whole(expert, f"{where}.device_expert[{at}]", most=MOST_ID) for at, expert in enumerate(held)]


def _check_order(entries: list[Any], where: str, key: str) -> None:
    """Ids are optional, because the engine does not read them; where they are given they must rise with the position."""
    last = -1
    for at, entry in enumerate(entries):
        if isinstance(entry, dict) and key in entry:
            number = whole(entry[key], f"{where}[{at}].{key}")
            if number <= last:
                raise FileError(
                    f"{where}[{at}].{key} is {number} behind {last}: the engine goes by position; sort the list by {key}"
                )
            last = number


def _check_even(table: list[list[list[int]]]) -> None:
    devices, slots = len(table[0]), len(table[0][0])
    for layer, held in enumerate(table):
        if len(held) != devices:
            raise FileError(
                f"layer {layer} has {len(held)} devices, layer 0 has {devices}: all need the same"
            )
        for device, experts in enumerate(held):
            if len(experts) != slots:
                raise FileError(
                    f"layer {layer}, device {device} holds {len(experts)} experts, layer 0, device 0 holds {slots}: "
                    "all devices need the same number"
                )


FORMATS = (
    Format(
        name="vllm-ascend",
        title="vllm-ascend expert map (JSON)",
        recognises=recognises,
        read_map=read_map,
        write_map=write_map,
        check_map=check_map,
        suffix=SUFFIX,
    ),
)
