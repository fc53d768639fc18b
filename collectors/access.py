"""How to reach a store that asks for a password or speaks TLS: settings, checked before the first connection."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError

from collectors.errors import AccessError
from collectors.urls import masked_url

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT = {
    "password": "EPLB_STORE_PASSWORD",
    "password_file": "EPLB_STORE_PASSWORD_FILE",
    "tls_ca_file": "EPLB_STORE_TLS_CA_FILE",
    "tls_cert_file": "EPLB_STORE_TLS_CERT_FILE",
    "tls_key_file": "EPLB_STORE_TLS_KEY_FILE",
}
"""Variables that a rank reads; the daemon's settings of the same names stand in its section ``store``."""

MOST_PASSWORD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """What a URL does not hold.

    ``password`` or ``password_file`` (read anew for each connection, so that a password can be changed while ranks run);
    ``tls_ca_file`` the authority that signed the store's certificate, None = the system's; ``tls_cert_file`` and
    ``tls_key_file`` this client's own certificate, where the store asks for one; ``tls_check_hostname`` whether the store's
    certificate must name the URL's host.
    """

    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_check_hostname: bool = True

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> StoreAccess:
        """What the :data:`ENVIRONMENT` variables say."""
        given = os.environ if variables is None else variables
        found: dict[str, Any] = {name: given.get(variable) or None for name, variable in ENVIRONMENT.items()}
        return cls(**found)


def client_options(url: str, access: StoreAccess) -> tuple[str, dict[str, Any]]:
    """The URL without its password, and what ``redis.Redis.from_url`` is to be given with it.

    Raises:
        AccessError: settings contradict each other or the URL, or a file cannot be read.
    """
    parts = urlsplit(url)
    _check_query(url, parts.query)
    options = {**_tls_options(url, parts.scheme, access)}
    if access.password is None and access.password_file is None:
        return url, options
    if parts.password is not None or (access.password is not None and access.password_file is not None):
        raise AccessError(
            f"store {masked_url(url)}: the password is given twice; give it in one place: a file, the environment or the URL"
        )
    user = unquote(parts.username) if parts.username else None
    provider = _Password(user, access.password, access.password_file)
    provider.get_credentials_or_raise()
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))
    # urlunsplit writes unix:/path, which the library does not read.
    bare = (
        bare
        if bare.startswith(f"{parts.scheme}://")
        else bare.replace(f"{parts.scheme}:", f"{parts.scheme}://", 1)
    )
    return bare, {**options, "credential_provider": provider}


def tls_advice(error: BaseException) -> str | None:
    """What to do about a certificate that was not accepted; None = the error is of another kind."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        if "expired" in text:
            return "the store's certificate has expired; renew it"
        if "mismatch" in text or "not valid for" in text:
            return "the store's certificate names another host; use a name in the URL that it holds (subjectAltName), or renew it"
        return "the store's certificate is signed by nobody we trust; set tls_ca_file to the authority that signed it"
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return "the store does not speak TLS on this port; use its TLS port, or redis:// where plain text is meant"
    if "CERTIFICATE_REQUIRED" in text or "HANDSHAKE_FAILURE" in text.upper().replace(" ", "_"):
        return "the store asks for a client's certificate; set tls_cert_file and tls_key_file"
    return None


class _Password(CredentialProvider):
    """User and password for each new connection; the file is read each time."""

    def __init__(self, user: str | None, password: str | None, file: str | None) -> None:
        self._user, self._password, self._file = user, password, file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """What AUTH is sent."""
        try:
            return self.get_credentials_or_raise()
        except AccessError as error:
            raise AuthenticationError(str(error)) from None

    def get_credentials_or_raise(self) -> tuple[str] | tuple[str, str]:
        password = self._password if self._file is None else _read_password(Path(self._file))
        return (str(password),) if self._user is None else (self._user, str(password))


def _read_password(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_PASSWORD_BYTES + 1)
        text = raw.decode().rstrip("\r\n")
    except OSError as error:
        raise AccessError(f"password file {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise AccessError(f"password file {path}: is not text") from None
    if not text or len(raw) > MOST_PASSWORD_BYTES:
        raise AccessError(f"password file {path}: is empty or longer than {MOST_PASSWORD_BYTES} bytes")
    return text


def _check_query(url: str, query: str) -> None:
    # The library lets a URL's query win over everything, the checks of certificates included.
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name in ("username", "password", "credential_provider") or name.startswith("ssl_"):
            raise AccessError(
                f"store {masked_url(url)}: {name} does not belong into the URL; use the settings of the store (password_file, tls_ca_file, ...)"
            )


def _tls_options(url: str, scheme: str, access: StoreAccess) -> dict[str, Any]:
    files = {
        "ssl_ca_certs": access.tls_ca_file,
        "ssl_certfile": access.tls_cert_file,
        "ssl_keyfile": access.tls_key_file,
    }
    given = {name: path for name, path in files.items() if path is not None}
    if scheme != "rediss":
        if given:
            raise AccessError(
                f"store {masked_url(url)}: files for TLS are set, but the URL is plain text; write rediss://, or take them away"
            )
        return {}
    if (access.tls_cert_file is None) != (access.tls_key_file is None):
        raise AccessError(
            f"store {masked_url(url)}: tls_cert_file and tls_key_file come together; set both or neither"
        )
    for path in given.values():
        try:
            Path(path).open("rb").close()
        except OSError as error:
            raise AccessError(
                f"store {masked_url(url)}: TLS file {path}: cannot be read: {error.strerror}"
            ) from error
    return {**given, "ssl_cert_reqs": "required", "ssl_check_hostname": access.tls_check_hostname}
