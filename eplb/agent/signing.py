"""Keys that plans, offers and live records are signed with, where ``EPLB_MAP_KEY_FILE`` names a file of them.

A file holds one or two keys, one a line, each at least 32 bytes in hex. The first signs; both are accepted, so that a key can
be replaced while everything runs: add the new key as the second on all hosts, put it first on all, take the old one away.
"""

from __future__ import annotations

import hmac
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from eplb.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator

MAP_KEY_VARIABLE = "EPLB_MAP_KEY_FILE"
KEY_BYTES = 32
MOST_KEYS = 2
_MOST_FILE_BYTES = 4096
_HOW = "make one with `openssl rand -hex 32 > FILE; chmod 600 FILE`"


@dataclass(frozen=True, slots=True)
class MapKeys:
    """The keys of one file; without a key nothing is signed and everything is accepted."""

    keys: tuple[bytes, ...] = field(default=(), repr=False)

    def sign(self, text: bytes) -> str:
        """HMAC-SHA256 of the text under the first key, in hex; "" = there is no key."""
        return hmac.new(self.keys[0], text, sha256).hexdigest() if self.keys else ""

    def accept(self, text: bytes, signature: object) -> bool:
        """Whether one of the keys made the signature, or none is needed; takes the same time wherever they differ."""
        if not self.keys:
            return True
        given = signature.encode(errors="replace") if isinstance(signature, str) else b""
        matches = [
            hmac.compare_digest(hmac.new(key, text, sha256).hexdigest().encode(), given) for key in self.keys
        ]
        return any(matches)


def read_keys(path: Path) -> MapKeys:
    """The keys of a file.

    Raises:
        ConfigError: it cannot be read, others than its owner may read or write it, or it does not hold one or two keys.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"map key file {path}: cannot be read: {error.strerror}; {_HOW}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"map key file {path}: has mode {stat.S_IMODE(mode):04o}, so others than its owner may use it; chmod 600 {path}"
        )
    lines = [line.strip() for line in raw.splitlines() if line.strip()]
    if not 1 <= len(lines) <= MOST_KEYS or len(raw) > _MOST_FILE_BYTES:
        raise ConfigError(
            f"map key file {path}: holds {len(lines)} keys, one or two are allowed, one a line; {_HOW}"
        )
    return MapKeys(tuple(_key(path, number, line) for number, line in enumerate(lines, start=1)))


def _key(path: Path, number: int, line: bytes) -> bytes:
    try:
        key = bytes.fromhex(line.decode("ascii"))
    except (ValueError, UnicodeDecodeError):
        # The cause would repeat a part of the key.
        raise ConfigError(f"map key file {path}: line {number} is not hex; {_HOW}") from None
    if len(key) < KEY_BYTES:
        raise ConfigError(
            f"map key file {path}: line {number} has {len(key)} bytes, at least {KEY_BYTES} are needed; {_HOW}"
        )
    return key


class KeyRing:
    """The keys of this process: read once, and again when the file changed; a file that is bad by then changes nothing."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._keys: MapKeys | None = None

    def load(self) -> MapKeys:
        """The keys in use; at first those of the file that the environment names, if it does.

        Raises:
            ConfigError: see :func:`read_keys`.
        """
        if self._keys is None:
            named = os.environ.get(MAP_KEY_VARIABLE)
            self.use(Path(named) if named else None)
        return self._keys or MapKeys()

    def use(self, path: Path | None) -> None:
        """Take the keys of this file from now on; None = no keys.

        Raises:
            ConfigError: see :func:`read_keys`.
        """
        keys = MapKeys() if path is None else read_keys(path)
        self._path, self._stamp, self._keys = path, _stamp(path), keys

    def refresh(self) -> None:
        """Take the file's keys again if it changed; costs one look at its date.

        Raises:
            ConfigError: the file is bad now; the keys stay as they were.
        """
        if self._keys is None or self._path is None:
            return
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            keys = read_keys(self._path)
            self._keys, self._stamp = keys, stamp

    @contextmanager
    def using(self, keys: MapKeys) -> Generator[None]:
        """These keys instead, for as long as the context is open."""
        before = (self._path, self._stamp, self._keys)
        self._path, self._stamp, self._keys = None, None, keys
        try:
            yield
        finally:
            self._path, self._stamp, self._keys = before


RING = KeyRing()
"""One ring a process: what it writes is signed, and what it reads is checked, wherever in the process that happens."""


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
