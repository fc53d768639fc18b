"""Shared fixtures, and the rule that with CI=true a skip is a failure unless it is listed with a reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from hypothesis import settings

from eplb.store.embedded import EmbeddedStore

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

TESTS = Path(__file__).parent
ALLOWED_SKIPS = TESTS / "allowed_skips.txt"
SKIPS = pytest.StashKey[list[tuple[str, str, bool]]]()


# A shared machine is slow at times; no test judges a duration.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


# --- fixtures -----------------------------------------------------------------------------------------------------


@pytest.fixture
def shared_data() -> Path:
    """Folder of recorded routing data beside the project; the test is skipped where it is absent."""
    folder = TESTS.parent.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("recorded routing data (../shared/data) is not here")
    return folder


@pytest.fixture(scope="session")
def embedded_store_url() -> Iterator[str]:
    """URL of one embedded Valkey for the whole session."""
    with EmbeddedStore() as store:
        yield store.url


@pytest.fixture(scope="session")
def redis_server_url() -> Iterator[str]:
    """URL of one real redis-server for the whole session, on a private unix socket."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not on PATH")
    with tempfile.TemporaryDirectory(prefix="eplb-", ignore_cleanup_errors=True) as folder:
        socket = Path(folder) / "s"
        command = [binary, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            url = f"unix://{socket}"
            _wait_for(url)
            yield url
        finally:
            server.terminate()
            server.wait(timeout=10)


@pytest.fixture(params=["valkey", "redis"])
def store_url(request: pytest.FixtureRequest) -> str:
    """URL of an empty store; the test runs once on the embedded Valkey and once on a real redis-server."""
    name = {"valkey": "embedded_store_url", "redis": "redis_server_url"}[request.param]
    url: str = request.getfixturevalue(name)
    with redis.Redis.from_url(url) as client:
        client.flushall()
    return url


def _wait_for(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        for _ in range(200):
            try:
                client.ping()
            except redis.ConnectionError:
                time.sleep(0.05)
            else:
                return
    pytest.fail(f"{url} does not answer")


# --- skips --------------------------------------------------------------------------------------------------------


def _allowed_skips() -> dict[str, str]:
    """Listed test ids with their reasons; one a line: ``id # reason``."""
    allowed = {}
    for line in ALLOWED_SKIPS.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        test_id, _, reason = line.partition(" # ")
        if not reason.strip():
            raise pytest.UsageError(
                f"{ALLOWED_SKIPS.name}: {test_id.strip()!r} has no reason; write `id # reason`"
            )
        allowed[test_id.strip()] = reason.strip()
    return allowed


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SKIPS] = []
    _allowed_skips()


def _judge_skip(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    allowed = report.nodeid in _allowed_skips()
    config.stash[SKIPS].append((report.nodeid, reason, allowed))
    if os.environ.get("CI") == "true" and not allowed:
        report.outcome = "failed"
        report.longrepr = f"skipped with CI=true: {reason}\nmake it run, or list {report.nodeid!r} with a reason in tests/{ALLOWED_SKIPS.name}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _judge_skip(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _judge_skip(collector.config, report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skips = config.stash[SKIPS]
    allowed = sum(listed for _, _, listed in skips)
    terminalreporter.write_line(f"skips: {len(skips)} ({allowed} listed in tests/{ALLOWED_SKIPS.name})")
