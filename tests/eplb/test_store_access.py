"""Rules of the way to the store: certificates are checked, passwords come from files or the environment and show up nowhere."""

import json
import socket
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from daemon_world import Running, environment, eventually, pool_config
from pool_world import FACTS, Ranks
from tls_world import Authority, tls_server

from collectors import CollectorError, Kind, Publisher, Recorder
from collectors.access import StoreAccess, client_options
from collectors.errors import AccessError
from eplb.agent import StoreLink
from eplb.config import load_config, to_yaml
from eplb.errors import ConfigError, StoreError, StoreUnavailable, StoreUntrusted
from eplb.store.client import Store

SECRET = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "good")


def url(port, host="localhost"):
    return f"rediss://{host}:{port}/0"


# --- TLS ----------------------------------------------------------------------------------------------------------


def test_a_sound_certificate_is_accepted(tmp_path, authority):
    """By the authority that signed it and the name that it holds."""
    access = StoreAccess(tls_ca_file=authority.ca)
    with tls_server(
        tmp_path, authority, authority.certificate("localhost"), "--tls-auth-clients", "no"
    ) as port:
        with Store(url(port), "p", access=access) as store:
            assert store.time_ms() > 0
        with Store(
            url(port, "127.0.0.1"),
            "p",
            access=StoreAccess(tls_ca_file=authority.ca, tls_check_hostname=False),
        ) as store:
            assert store.time_ms() > 0


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("stranger", "signed by nobody we trust; set tls_ca_file"),
        ("system", "signed by nobody we trust; set tls_ca_file"),
        ("expired", "has expired; renew it"),
        ("host", "names another host"),
    ],
)
def test_a_certificate_that_is_not_ours_is_refused_with_what_to_do(tmp_path, authority, case, words, request):
    """Daemon, collectors and link alike; nothing is sent before."""
    trusted = authority.ca
    if case == "stranger":
        trusted = Authority(tmp_path / "other").ca
    certificate = authority.certificate(
        "elsewhere.example" if case == "host" else "localhost", days=-1 if case == "expired" else 2
    )
    access = StoreAccess(tls_ca_file=None if case == "system" else trusted)
    options = ["--tls-auth-clients", "no"]
    with tls_server(tmp_path, authority, certificate, *options) as port:
        target = url(port)
        with (
            Store(target, "p", access=access, retries=0) as store,
            pytest.raises(StoreUntrusted, match=words),
        ):
            store.time_ms()
        assert words in link_error(target, access)
        assert words in publisher_error(target, access)


def test_a_port_without_tls_is_named_as_such(tmp_path, authority):
    """Whether it answers in plain text or, as Redis does, waits for more."""
    access = StoreAccess(tls_ca_file=authority.ca)
    for answer, error, words in (
        (b"-ERR what?\r\n", StoreUntrusted, "does not speak TLS on this port"),
        (b"", StoreUnavailable, "that this is its TLS port"),
    ):
        with (
            plain_server(answer) as port,
            Store(url(port), "p", access=access, retries=0, socket_timeout_s=0.3) as store,
            pytest.raises(error, match=words),
        ):
            store.time_ms()


@contextmanager
def plain_server(answer):
    """The port of a listener that answers once, or holds its peace."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:

        def serve():
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(answer)
                peer.recv(4096)

        done = pool.submit(serve)
        yield server.getsockname()[1]
        done.exception()


def link_error(target, access):
    link = StoreLink(target, FACTS.pool, 0, poll_s=0.05, access=access)
    link.start()
    eventually(lambda: link.last_error)
    link.stop()
    return link.last_error


def publisher_error(target, access):
    recorder = Recorder(FACTS, 0, Kind.ROUTED)
    recorder.register(1, -1)
    publisher = Publisher(recorder, url=target, node=0, access=access)
    publisher.start()
    publisher.stop(10.0)
    return publisher.stats.last_error


def test_a_server_that_asks_for_a_client_certificate_gets_it(tmp_path, authority):
    """Without one it says what is missing."""
    made, key = authority.certificate("client")
    with tls_server(
        tmp_path, authority, authority.certificate("localhost"), "--tls-auth-clients", "yes"
    ) as port:
        access = StoreAccess(tls_ca_file=authority.ca, tls_cert_file=made, tls_key_file=key)
        with Store(url(port), "p", access=access) as store:
            assert store.time_ms() > 0
        with (
            Store(url(port), "p", access=StoreAccess(tls_ca_file=authority.ca), retries=0) as store,
            pytest.raises(StoreError),
        ):
            store.time_ms()


@pytest.mark.slow
def test_daemon_and_ranks_move_a_map_over_tls_and_the_password_shows_nowhere(tmp_path, authority):
    """The whole loop over rediss:// with a password from a file; then a search of everything that anybody can read."""
    secret = tmp_path / "password"
    secret.write_text(SECRET + "\n")
    options = ["--tls-auth-clients", "no", "--requirepass", SECRET]
    with tls_server(tmp_path, authority, authority.certificate("localhost"), *options) as port:
        path = pool_config(
            tmp_path / "c.yaml", url(port), store={"password_file": str(secret), "tls_ca_file": authority.ca},
            log={"level": "debug"},
        )  # fmt: skip
        access = StoreAccess(password_file=str(secret), tls_ca_file=authority.ca)
        with Ranks(url(port), access=access) as ranks, Running(tmp_path / "d", "--config", path) as daemon:
            base = daemon.wait_for("serving")["http"]
            eventually(lambda: ranks.version() >= 1, daemon.log_path.read_text)
            shown = [httpx.get(f"{base}{page}").text for page in ("/state", "/metrics", "/readyz", "/livez")]
            command = [sys.executable, "-m", "eplb", "status", "--config", path]
            status = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
            shown.append((tmp_path / f"/proc/{daemon.process.pid}/cmdline").read_text())
            secret.write_text("wrong\n")
            with Store(url(port), "main", access=access) as store, pytest.raises(StoreError) as refused:
                store.time_ms()
            shown += [status.stdout, status.stderr, "".join(traceback.format_exception(refused.value))]
            assert daemon.end() == 0
        shown += [link.last_error for link in ranks.links]
    assert "map_version 1" in status.stdout
    assert "check user and password" in str(refused.value)
    for text in (*shown, daemon.log_path.read_text()):
        assert SECRET not in text


# --- passwords ----------------------------------------------------------------------------------------------------


def test_a_changed_password_file_is_read_for_the_next_connection(tmp_path):
    """A password can be replaced without a restart."""
    secret = tmp_path / "password"
    secret.write_text("one\n")
    bare, options = client_options("redis://rank@host:6379/0", StoreAccess(password_file=str(secret)))
    assert bare == "redis://host:6379/0"
    assert options["credential_provider"].get_credentials() == ("rank", "one")
    secret.write_text("two\n")
    assert options["credential_provider"].get_credentials() == ("rank", "two")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("redis://host/0", ("redis://host/0", ("pw",))),
        ("redis://a%40b@host/0", ("redis://host/0", ("a@b", "pw"))),
        ("unix:///run/s?db=1", ("unix:///run/s?db=1", ("pw",))),
        ("unix://rank@/run/s", ("unix:///run/s", ("rank", "pw"))),
        ("rediss://rank@host:1/2", ("rediss://host:1/2", ("rank", "pw"))),
    ],
)
def test_user_from_the_url_and_password_from_elsewhere(target, expected):
    """For every scheme; the URL that is left holds neither."""
    bare, options = client_options(target, StoreAccess("pw"))
    assert (bare, options["credential_provider"].get_credentials()) == expected


@pytest.mark.parametrize(
    ("target", "access", "words"),
    [
        ("redis://u:p@host/0", {"password": "x"}, "given twice"),
        ("redis://host/0", {"password": "x", "password_file": "y"}, "given twice"),
        ("redis://host/0", {"password_file": "/none"}, "cannot be read"),
        ("redis://host/0", {"tls_ca_file": "/none"}, "plain text"),
        ("rediss://host/0", {"tls_ca_file": "/none"}, "cannot be read"),
        ("rediss://host/0", {"tls_cert_file": __file__}, "come together"),
        ("rediss://host/0?ssl_cert_reqs=none", {}, "does not belong into the URL"),
        ("redis://host/0?password=hidden", {}, "does not belong into the URL"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_at_the_start(target, access, words):
    """By collectors, link and daemon, each with its own error; a secret in the URL is not repeated."""
    with pytest.raises(AccessError, match=words) as error:
        client_options(target, StoreAccess(**access))
    assert "hidden" not in str(error.value)
    with pytest.raises(CollectorError, match=words):
        Publisher(Recorder(FACTS, 0, Kind.ROUTED), url=target, node=0, access=StoreAccess(**access))
    with pytest.raises(ConfigError, match=words):
        StoreLink(target, "p", 0, access=StoreAccess(**access))
    with pytest.raises(ConfigError, match=words):
        Store(target, "p", access=StoreAccess(**access))


def test_a_rank_takes_its_settings_from_the_environment(monkeypatch, tmp_path):
    """So that an engine's start script needs no code."""
    (tmp_path / "pw").write_text("pw")
    monkeypatch.setenv("EPLB_STORE_PASSWORD_FILE", str(tmp_path / "pw"))
    monkeypatch.setenv("EPLB_STORE_TLS_CA_FILE", "/ca.pem")
    assert StoreAccess.from_environment() == StoreAccess(
        password_file=str(tmp_path / "pw"), tls_ca_file="/ca.pem"
    )
    with pytest.raises(ConfigError, match="plain text"):
        StoreLink("redis://host/0", "p", 0)


def test_the_daemon_takes_its_password_from_the_environment_and_shows_it_nowhere(monkeypatch, tmp_path):
    """EPLB_STORE__PASSWORD; masked in the printed settings and in every repr."""
    path = pool_config(tmp_path / "c.yaml", "redis://daemon@host:6379/0")
    monkeypatch.setenv("EPLB_STORE__PASSWORD", SECRET)
    config = load_config(path)
    assert config.store.access().password == SECRET
    for text in (
        to_yaml(config),
        repr(config),
        str(config),
        repr(config.store.access()),
        json.dumps(config.model_dump(mode="json")),
    ):
        assert SECRET not in text


@pytest.mark.parametrize(
    "setting",
    ["store.password=" + SECRET, "store.url=redis://:" + SECRET + "@host/0", "http.token=" + SECRET],
)
def test_a_secret_on_the_command_line_is_refused(tmp_path, setting):
    """Every user of the host sees a command line; the message does not repeat it."""
    path = pool_config(tmp_path / "c.yaml", "redis://host:6379/0")
    name, _, value = setting.partition("=")
    with pytest.raises(ConfigError, match="visible to every user") as error:
        load_config(path, {name: value})
    assert SECRET not in str(error.value)


def test_a_wrong_setting_beside_a_password_does_not_show_it(monkeypatch, tmp_path):
    """Messages repeat wrong values, but not these."""
    path = pool_config(tmp_path / "c.yaml", "redis://host:6379/0")
    monkeypatch.setenv(
        "EPLB_STORE", json.dumps({"url": "redis://host/0", "password": [SECRET], "token": SECRET})
    )
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert SECRET not in str(error.value)
    assert SECRET not in "".join(traceback.format_exception(error.value)).replace(
        repr(error.value.__cause__), ""
    )
