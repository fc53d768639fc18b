"""What may be written where, checked before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eplb.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def check_writable(target: Path, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse a file to write that has no folder, or that would take the place of one that is read; None = not given.

    Raises:
        FileError: says what to change.
    """
    if not target.parent.is_dir():
        raise FileError(f"{target}: cannot be written: there is no folder {target.parent}")
    for path in inputs:
        if path is not None and target.exists() and path.exists() and target.samefile(path):
            raise FileError(
                f"{target}: is read by this command and would be lost: give another name to write to"
            )
