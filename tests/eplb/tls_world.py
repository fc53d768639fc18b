"""A real redis-server that speaks TLS, with certificates made for the occasion."""

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest

REQUEST = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def openssl(*arguments):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH")
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


class Authority:
    """Signs certificates for hosts and clients; one a folder."""

    def __init__(self, folder):
        folder.mkdir()
        self._folder = folder
        self.ca = str(folder / "ca.pem")
        openssl(
            *REQUEST[1:],
            "-keyout",
            str(folder / "ca.key"),
            "-out",
            self.ca,
            "-subj",
            "/CN=test authority",
            "-days",
            "2",
        )

    def certificate(self, name, *, days=2):
        """(certificate, key) of a host; ``days`` below 0 = it has expired."""
        base = self._folder / name
        request, extension = base.with_suffix(".csr"), base.with_suffix(".ext")
        extension.write_text(f"subjectAltName={'IP' if name[0].isdigit() else 'DNS'}:{name}\n")
        key, made = f"{base}.key", f"{base}.pem"
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
                "-out", str(request), "-subj", f"/CN={name}")  # fmt: skip
        openssl("x509", "-req", "-in", str(request), "-CA", self.ca, "-CAkey", str(self._folder / "ca.key"), "-CAcreateserial",
                "-out", made, "-days", str(days), "-extfile", str(extension))  # fmt: skip
        return made, key


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@contextmanager
def tls_server(folder, authority, certificate, *options):
    """The port of a redis-server that speaks nothing but TLS."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not on PATH")
    port = free_port()
    made, key = certificate
    command = [
        binary, "--port", "0", "--tls-port", str(port), "--tls-cert-file", made, "--tls-key-file", key,
        "--tls-ca-cert-file", authority.ca, "--save", "", "--dir", str(folder), "--bind", "127.0.0.1", *options,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as server:
        try:
            _wait_for(port, server)
            yield port
        finally:
            server.terminate()


def _wait_for(port, server):
    for _ in range(200):
        assert server.poll() is None, "redis-server does not speak TLS"
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("redis-server does not listen")
