"""A store seen through a proxy that can stop forwarding, and a watch over every write of a pool's maps and switches."""

import re
import select
import socket
import threading
from contextlib import contextmanager, suppress

_TEXT = re.compile(rb'"((?:[^"\\]|\\.)*)"')


class Proxy:
    """Forwards a unix socket; while ``held``, nothing passes in either direction and connections stay open."""

    def __init__(self, path, target):
        self.held = threading.Event()
        self.url = f"unix://{path}"
        self._target = target.removeprefix("unix://")
        self._stop = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._peers = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        for end in [self._listener, *(end for pair in self._peers for end in pair)]:
            end.close()

    def _serve(self):
        while not self._stop.is_set():
            if self.held.is_set():
                self._stop.wait(0.05)
                continue
            ends = {end: other for pair in self._peers for end, other in (pair, pair[::-1])}
            ready, _, _ = select.select([self._listener, *ends], [], [], 0.05)
            for end in ready:
                if end is self._listener:
                    self._accept()
                elif end.fileno() >= 0 and not self.held.is_set():
                    self._forward(end, ends[end])

    def _accept(self):
        near, _ = self._listener.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(self._target)
        self._peers.append((near, far))

    def _forward(self, end, other):
        data = b""
        with suppress(OSError):
            data = end.recv(1 << 16)
            if data:
                other.sendall(data)
        if not data:
            self._peers = [pair for pair in self._peers if end not in pair]
            end.close()
            other.close()


class Watch:
    """Every write under ``desired`` and ``control`` in the server's own order, with the term that it was made under."""

    def __init__(self, url, pool):
        self._keys = [f"eplb:{{{pool}}}:{name}".encode() for name in ("desired", "control")]
        self._lines = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(url.removeprefix("unix://"))
        self._socket.sendall(b"MONITOR\r\n")
        self._thread = threading.Thread(target=self._read)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _read(self):
        rest = b""
        while data := self._socket.recv(1 << 16):
            *lines, rest = (rest + data).split(b"\r\n")
            self._lines += [line for line in lines if b'"EVALSHA"' in line or b" lua]" in line]

    def writes(self):
        """(term that the writer gave, highest term so far) of each write that landed."""
        under, highest, found = 0, 0, []
        for line in self._lines:
            words = _TEXT.findall(line)
            if b" lua]" not in line:
                # EVALSHA sha 3 desired key lease term field value ...
                fenced = len(words) > 7 and words[2] == b"3" and words[3] == self._keys[0]
                under = int(words[6]) if fenced else None
            elif words[0].upper() == b"HSET" and words[1] in self._keys:
                if words[2] == b"term":
                    highest = max(highest, int(words[3]))
                elif under is not None:
                    found.append((under, highest))
        return found


@contextmanager
def watched(url, pool):
    """No write under an older term than the highest lands while the context is open, and there is at least one."""
    with Watch(url, pool) as watch:
        yield watch
    writes = watch.writes()
    assert writes
    assert [pair for pair in writes if 0 <= pair[0] < pair[1]] == []
