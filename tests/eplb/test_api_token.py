"""Rules of the token: without it nothing is shown but up or down, and an address that others reach cannot be without one."""

import httpx
import pytest
from pydantic import ValidationError

from eplb.api import ApiServer, create_app
from eplb.api_token import read_token
from eplb.config import HttpConfig
from eplb.errors import ConfigError

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def guarded():
    app = create_app(lambda: (), lambda: 0.0, live_within_s=1.0, token=TOKEN)
    with ApiServer(app, "127.0.0.1", 0) as server:
        yield server.url


@pytest.mark.parametrize("path", ["/metrics", "/state", "/none", "/metrics/", "//state", "/LIVEZ"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"bearer {TOKEN}"},
        {"Authorization": TOKEN},
        {"X-Authorization": f"Bearer {TOKEN}"},
    ],
    ids=["none", "empty", "short", "long", "basic", "case", "bare", "name"],
)
def test_without_the_token_nothing_is_shown(guarded, path, headers):
    """Whatever is asked for, whatever is sent instead; the answer says what to send and not what was wrong."""
    answer = httpx.get(f"{guarded}{path}", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert "http.token_file" in answer.json()["error"]
    assert TOKEN not in answer.text


def test_two_tokens_are_none(guarded):
    """A proxy that added a header must not open the door."""
    headers = [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")]
    assert httpx.get(f"{guarded}/state", headers=headers).status_code == 401


def test_with_the_token_everything_is_shown(guarded):
    """As without a guard."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(f"{guarded}/metrics", headers=headers).status_code == 200
    assert httpx.get(f"{guarded}/state", headers=headers).json() == {"pools": []}


def test_probes_need_no_token(guarded):
    """An orchestrator has none, and learns no more than up or down."""
    assert httpx.get(f"{guarded}/livez").status_code == 200
    assert httpx.get(f"{guarded}/readyz").status_code == 503


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "eplb.example", ""])
def test_an_address_that_others_reach_needs_a_token(host):
    """Said at the start, with what to do."""
    with pytest.raises(ValidationError, match=r"http\.token_file"):
        HttpConfig(host=host)
    assert HttpConfig(host=host, token_file="t").host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_this_hosts_own_address_needs_none(host):
    """The default."""
    assert read_token(HttpConfig(host=host)) is None


@pytest.mark.parametrize("text", ["", "short", "with spaces in the middle", "\x01" * 20, "ä" * 20])
def test_a_token_that_is_no_token_is_refused(tmp_path, text):
    """An empty file must not mean an open door."""
    (tmp_path / "t").write_text(text)
    with pytest.raises(ConfigError, match="at least 16 printable characters"):
        read_token(HttpConfig(token_file=str(tmp_path / "t")))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(HttpConfig(token_file=str(tmp_path / "none")))
    (tmp_path / "t").write_text(TOKEN + "\n")
    assert read_token(HttpConfig(token_file=str(tmp_path / "t"))) == TOKEN
    with pytest.raises(ValidationError, match="both token and token_file"):
        HttpConfig(token_file="x", token=TOKEN)
