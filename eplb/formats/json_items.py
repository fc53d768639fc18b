"""One list of a JSON document, item by item: for documents that are larger than memory once they are Python objects."""

from __future__ import annotations

import codecs
import json
import os
import re
from typing import TYPE_CHECKING, Any

from eplb.errors import FileError
from eplb.formats import files
from eplb.formats.plain_values import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from eplb.formats.facts import ReadOptions

CHUNK_BYTES = 2**20
MOST_ITEM_BYTES = 2**26
"""Largest single value: beyond it the text is damaged, because no item of the list could be parsed."""
SPACE = re.compile(r"[ \t\n\r]*")


def items(file: BinaryIO, key: str, options: ReadOptions) -> Iterator[tuple[int, Any]]:
    """Number (from 0) and value of each item of the list that the document's object holds under ``key``.

    ``file``: open at its start. Tells ``options.progress`` the bytes read. Other values of the object are passed over.

    Raises:
        FileError: the document is no object with such a list, or is damaged: names the place. The caller knows the path.
    """
    reader = _Reader(file, options)
    reader.expect("{", "an object")
    found = False
    more = reader.next() != "}"
    while more:
        name = reader.value()
        if not isinstance(name, str):
            raise FileError(f"{shown(name)} stands before character {reader.at}, expected a key")
        reader.expect(":", f"':' behind the key {name!r}")
        if name != key:
            reader.value()
        elif found:
            raise FileError(f"holds the key {key!r} twice")
        else:
            found = True
            yield from _members(reader, key)
        more = reader.either(",", "}")
    reader.expect("}", "'}'")
    if reader.next():
        raise FileError(f"text follows the document at character {reader.at}")
    if not found:
        raise FileError(f"holds no {key!r}, expected a list under that key")


def _members(reader: _Reader, key: str) -> Iterator[tuple[int, Any]]:
    reader.expect("[", f"{key} to be a list")
    number, more = 0, reader.next() != "]"
    while more:
        yield number, reader.value()
        number += 1
        more = reader.either(",", "]")
    reader.expect("]", f"']' behind item {number - 1} of {key}")


class _Reader:
    """Text of a file from one place on; grows at its end and forgets what was used."""

    def __init__(self, file: BinaryIO, options: ReadOptions) -> None:
        self._file, self._options = file, options
        self._total = os.fstat(file.fileno()).st_size
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._scan = json.JSONDecoder(
            parse_constant=files.no_number, object_pairs_hook=files.distinct
        ).raw_decode
        self._text, self._used, self._dropped, self._ended = "", 0, 0, False

    @property
    def at(self) -> int:
        """Characters of the file before the next one."""
        return self._dropped + self._used

    def next(self) -> str:
        """The next character that is not space, '' at the end of the file; it is not used up."""
        while True:
            self._used = SPACE.match(self._text, self._used).end()  # type: ignore[union-attr]  # it matches nothing, too
            if self._used < len(self._text):
                return self._text[self._used]
            if self._ended:
                return ""
            self._grow(CHUNK_BYTES)

    def expect(self, character: str, what: str) -> None:
        """Use up one character."""
        found = self.next()
        if found != character:
            raise FileError(f"{found or 'the end'!r} stands at character {self.at}, expected {what}")
        self._used += 1

    def either(self, further: str, end: str) -> bool:
        """Whether another member follows; uses up the comma, not the end."""
        if self.next() == further:
            self._used += 1
            return True
        if self.next() != end:
            self.expect(end, f"{further!r} or {end!r}")
        return False

    def value(self) -> Any:
        """Use up one value."""
        self.next()
        while True:
            reason = f"longer than {MOST_ITEM_BYTES:,} characters"
            try:
                found, end = self._scan(self._text, self._used)
            except (ValueError, RecursionError, MemoryError) as error:
                reason = str(error) or type(error).__name__
            else:
                # A number that touches the end of what is read may go on behind it.
                if end < len(self._text) or self._ended:
                    self._used = end
                    return found
            waiting = len(self._text) - self._used
            if self._ended or waiting > MOST_ITEM_BYTES:
                raise FileError(f"damaged, or cut off, in the value at character {self.at}: {reason}")
            self._grow(max(CHUNK_BYTES, waiting))

    def _grow(self, count: int) -> None:
        """Read on, and forget what was used up."""
        data = self._file.read(count)
        self._ended = not data
        try:
            text = self._decode(data, self._ended)
        except UnicodeDecodeError as error:
            raise FileError(f"not UTF-8 text behind character {self.at}") from error
        self._text = self._text[self._used :] + text
        self._dropped += self._used
        self._used = 0
        files.tell(self._options, self._file.tell(), self._total)
