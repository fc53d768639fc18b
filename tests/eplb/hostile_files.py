"""Small files that claim, name or nest very much, and what a reader with little memory says of each.

Run: python hostile_files.py FOLDER, prints a JSON object of what was said by name.
"""

import io
import json
import resource
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch

from eplb.errors import FileError
from eplb.formats import registry
from eplb.formats.facts import Layers, MapFacts, ReadOptions

SPARE_BYTES = 2**30
"""Memory that a reader may take beyond what is loaded."""
CPU_S = 120


def text(content):
    return lambda path: path.write_text(content)


def pickled(content):
    return lambda path: torch.save(content, path)


def archive(**members):
    """An ``.npz`` whose members are given as bytes, compressed."""

    def write(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in members.items():
                file.writestr(f"{name}.npy", data)

    return write


def npy(shape, dtype="|u1", data=b""):
    stream = io.BytesIO()
    form = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, form)
    return stream.getvalue() + data


def nested(width, levels):
    """Lists of one and the same list: a few references that stand for width ** levels numbers."""
    found = [1] * width
    for _ in range(levels - 1):
        found = [found] * width
    return found


def endless():
    found = []
    found.append(found)
    return found


def aliases(levels):
    first = "x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"
    return [first, *(f"x{at}: &x{at} [{', '.join([f'*x{at - 1}'] * 10)}]" for at in range(1, levels))]


def yaml_bomb(path):
    """The value that a message would show stands for a billion numbers."""
    values = "\n".join(f"  {line}" for line in aliases(9))
    path.write_text(f"initial_global_assignments:\n{values}\nnum_slots: *x8\n")


def holes(path):
    """A file that takes no room on the disk and whose header claims all that it pretends to have."""
    size = 2**29
    header = json.dumps({"phy2log": {"dtype": "U8", "shape": [1, size], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)


def endless_header(path):
    path.write_bytes(struct.pack("<Q", 2**40) + b'{"phy2log":')


MAP = "physical_to_logical_map"
POOL = '{"schema": "eplb-map/1", "pool": {"ranks": 1, "nodes": 1, "slots_per_rank": 2, "experts": %s}, %s}'
ROWS = '"model_layer": %s, "physical_to_logical": [[0, 1]], "shares": null'
FILES = {
    "aliases in YAML": ("trtllm", "a.yaml", yaml_bomb),
    "a layer far away": (
        "trtllm",
        "a.yaml",
        text("initial_global_assignments: {2000000000: [0, 1], 3: [1, 0]}\nnum_slots: 2\n"),
    ),
    "shared lists as counts": ("sglang-recorder", "a.pt", pickled({"logical_count": nested(10, 20)})),
    "shared lists as a map": ("sglang", "a.pt", pickled({MAP: nested(2**15, 2)})),
    "a list in itself": ("sglang", "a.pt", pickled({MAP: endless()})),
    "brackets as a map": ("sglang", "a.json", text(f'{{"{MAP}": {"[" * 800}{"]" * 800}}}')),
    "more brackets": ("sglang", "a.json", text(f'{{"{MAP}": {"[" * 10**6}')),
    "digits": ("vllm-ascend", "a.json", text('{"moe_layer_count": 1%s, "layer_list": [1]}' % ("0" * 10**6))),
    "slices without experts": ("npz", "a.npz", archive(counts=npy((2**31, 2, 0)))),
    "very many tiny slices": ("npz", "a.npz", archive(counts=npy((2**25, 1, 1), data=bytes(2**25)))),
    "very many sequences": (
        "npz",
        "a.npz",
        archive(picks=npy((1, 1, 1), data=b"\0"), offsets=npy((2**25,), data=bytes(2**25 - 1) + b"\1")),
    ),
    "an array that is not there": ("npz", "a.npz", archive(counts=npy((2**40, 2, 4)))),
    "wide inverse": (
        "deepseek",
        "a.npz",
        archive(phy2log=npy((1, 2), data=b"\0\1"), log2phy=npy((1, 2, 2**26), "|i1", data=b"\0" * 2**27)),
    ),
    "holes": ("deepseek", "a.safetensors", holes),
    "a header of 2^40 bytes": ("deepseek", "a.safetensors", endless_header),
    "wild experts": ("neutral", "a.json", text(POOL % (2**31 - 1, ROWS % "null"))),
    "a wild layer": ("neutral", "a.json", text(POOL % (2, ROWS % "[2000000000]"))),
    "an array without rows behind it": ("vllm", "a.npy", lambda path: path.write_bytes(npy((2**40, 2, 2)))),
    "base64 of nothing": (
        "sglang-replies",
        "a.json",
        text('{"meta_info": {"routed_experts": "%s"}}' % ("?" * 10**6)),
    ),
}


def said(folder, name):
    """What the reader says of one file; '' where it says nothing."""
    form, file, write = FILES[name]
    path = folder / file
    write(path)
    found = registry.named(form)
    try:
        if found.read_map is None:
            found.read_trace(path, ReadOptions(layers=Layers(None, 2)))
        else:
            found.read_map(path, MapFacts(ranks=1))
    except FileError as error:
        return str(error)
    finally:
        path.unlink()
    return ""


def main(folder):
    """Write and read every file."""
    registry.formats()
    torch.load  # noqa: B018 - loaded before memory is counted
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    print(json.dumps({name: said(folder, name) for name in FILES}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
