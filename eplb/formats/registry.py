"""All formats: which one a file is in, and reading and writing by its name.

A format is a module of this package with a tuple ``FORMATS``; nothing else names it.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING
from zipfile import BadZipFile, ZipFile

import eplb.formats
from eplb.errors import FileError
from eplb.formats.facts import Layers, MapFacts, ReadOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from eplb.formats.facts import Format, Sequence, TraceFile, Written
    from eplb.formats.neutral import NeutralMap


ZIP = b"PK\x03\x04"
"""First bytes of a zip archive, which .npz and .pt files are."""
MOST_NAMES = 6
"""Names that an error lists."""
NAME_WIDTH = 18


@cache
def formats() -> tuple[Format, ...]:
    """Every format, in the order of their names."""
    modules = (
        import_module(f"{eplb.formats.__name__}.{found.name}")
        for found in pkgutil.iter_modules(eplb.formats.__path__)
    )
    return tuple(
        sorted((each for module in modules for each in getattr(module, "FORMATS", ())), key=lambda f: f.name)
    )


def named(name: str) -> Format:
    """The format of this name or alias.

    Raises:
        FileError: there is none; lists those that there are.
    """
    for each in formats():
        if name in (each.name, *each.aliases):
            return each
    raise FileError(f"no format is called {name!r}: there are {', '.join(each.name for each in formats())}")


def recognise(path: Path) -> Format:
    """The one format that a file or folder is in.

    Raises:
        FileError: the path is missing, or no format or several recognise it.
    """
    if not path.exists():
        raise FileError(f"{path}: cannot be read: no such file or folder")
    found = [each for each in formats() if each.recognises(path)]
    if not found:
        raise FileError(f"{path}: {_why_unknown(path)}")
    if len(found) > 1:
        raise FileError(
            f"{path}: may be any of {', '.join(each.name for each in found)}: say which with --from (a live map: --current-from, another "
            "map: --map-from)"
        )
    return found[0]


def read_trace(path: Path, options: ReadOptions | None = None, name: str | None = None) -> TraceFile:
    """Read a trace in any format; ``name``: its format, None = recognised.

    Raises:
        FileError: names the file, the place, the value and what was expected.
    """
    found = _of(path, name)
    if found.read_trace is None:
        raise FileError(f"{path}: is {found.title}, expected a trace")
    return found.read_trace(path, options or ReadOptions())


def read_sequences(
    path: Path, options: ReadOptions | None = None, name: str | None = None
) -> Iterator[Sequence]:
    """Read the picks of a trace request by request, in the order of the file.

    Raises:
        FileError: the format holds none, or see ``read_trace``; also while it is iterated over.
    """
    found = _of(path, name)
    if found.read_sequences is None:
        raise FileError(f"{path}: is {found.title}, which holds no picks by request")
    return found.read_sequences(path, options or ReadOptions())


def read_map(path: Path, facts: MapFacts | None = None, name: str | None = None) -> NeutralMap:
    """Read a map in any format, as it is: twins, gaps and missing experts are the caller's to judge (``violations``).

    Raises:
        FileError: names the file, the place, the value and what was expected.
    """
    found = _of(path, name)
    if found.read_map is None:
        raise FileError(f"{path}: is {found.title}, expected a map")
    return found.read_map(path, facts or MapFacts())


def write_map(path: Path, neutral: NeutralMap, name: str) -> Written:
    """Write a map in the format ``name``.

    Raises:
        FileError: the format takes no maps, this map breaks its engine's rules, or the file cannot be written.
    """
    found = named(name)
    if found.write_map is None:
        raise FileError(
            f"{found.name} ({found.title}) takes no maps: use {', '.join(abilities('write_map'))}"
        )
    return found.write_map(path, neutral)


def check_map(path: Path, neutral: NeutralMap, name: str) -> None:
    """Refuse, without writing, a map that the format ``name`` would refuse for this path.

    Raises:
        FileError: see ``write_map``.
    """
    found = named(name)
    if found.check_map is not None:
        found.check_map(path, neutral)


def abilities(ability: str) -> tuple[str, ...]:
    """Names of the formats that have an ability, a field of ``Format``."""
    return tuple(each.name for each in formats() if getattr(each, ability) is not None)


def write_trace(path: Path, file: TraceFile, name: str) -> Written:
    """Write the slices of a trace in the format ``name``.

    Raises:
        FileError: the format is not written, or the file cannot be.
    """
    found = named(name)
    if found.write_trace is None:
        raise FileError(
            f"{found.name} ({found.title}) takes no traces: use {', '.join(abilities('write_trace'))}"
        )
    return found.write_trace(path, file)


def write_sequences(
    path: Path,
    sequences: Iterable[Sequence],
    name: str,
    *,
    layers: Layers | None = None,
    experts: int | None = None,
) -> Written:
    """Write the picks of a trace, request by request, in the format ``name``; ``experts``: of the model, None = unknown.

    Raises:
        FileError: the format is not written, a sequence cannot be used, or the file cannot be written.
    """
    found = named(name)
    if found.write_sequences is None:
        raise FileError(
            f"{found.name} ({found.title}) takes no picks: use {', '.join(abilities('write_sequences'))}"
        )
    return found.write_sequences(path, sequences, layers or Layers(), experts)


def _why_unknown(path: Path) -> str:
    """What a path without a known format is, as far as that helps."""
    if path.is_dir():
        inside = sorted(each.name for each in path.iterdir())
        what = f"a folder of {_some(inside)}" if inside else "an empty folder"
    elif not path.stat().st_size:
        return "is empty (0 bytes): write or copy it again"
    elif _first_bytes(path, len(ZIP)) == ZIP:
        try:
            with ZipFile(path) as archive:
                what = f"a zip archive (.npz, .pt) of {_some(archive.namelist())}"
        except BadZipFile:
            return "is a torn zip archive (.npz, .pt), its end is missing: write or copy it again"
    else:
        what = "a file"
    known = "\n".join(f"  {each.name:<{NAME_WIDTH}} {each.title}" for each in formats())
    return f"is {what} in no format that is known here. Known are\n{known}"


def _first_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:MOST_NAMES])
    return f"{shown} and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else shown


def _of(path: Path, name: str | None) -> Format:
    return recognise(path) if name is None else named(name)
