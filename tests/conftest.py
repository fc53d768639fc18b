"""Shared fixtures, and the rule that with CI=true a skip is a failure unless it is listed with a reason."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
import structlog
from hypothesis import settings

from eplb.store.embedded import EmbeddedStore

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

TESTS = Path(__file__).parent
ALLOWED_SKIPS = TESTS / "allowed_skips.txt"
SKIPS = pytest.StashKey[list[bool]]()
"""Of each skip, whether it is listed."""

PROCESSES = frozenset(
    {
        "test_chaos_run", "test_daemon_keys", "test_daemon_process", "test_demo_end_to_end", "test_demo_run", "test_pool",
        "test_pool_faults", "test_pool_members", "test_store_access", "test_store_acl", "test_store_emptied", "test_store_health",
        "test_store_split",
    }
)  # fmt: skip
"""Files that run whole groups of processes: one after the other, beside all other tests."""
QUIET = "test_demo_end_to_end"
"""The one of these that holds what it measures to limits comes last, when the other tests have mostly ended."""


# A shared machine is slow at times; no test judges a duration.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


# --- fixtures -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _log_as_shipped() -> None:
    """A test that sets the log's level does not silence the next one."""
    structlog.reset_defaults()


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
    config.pluginmanager.register(_Counter(config.stash[SKIPS]))
    _allowed_skips()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole files to a worker, and all files that start many processes to one, so that they do not compete with each other."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, _ = nodeid.partition("::")
            return "processes" if Path(file).stem in PROCESSES else file

    return Files(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a daemon plans on depends on how fast steps come, so that the demo is not run beside more than it must be."""
    items.sort(key=lambda item: item.path.stem == QUIET)


def _judge_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Mark a skip on its report, which may be on its way to another process, and make a failure of it where it must be one."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    allowed = report.nodeid in _allowed_skips()
    report.listed_skip = allowed  # type: ignore[union-attr]
    if os.environ.get("CI") == "true" and not allowed:
        report.outcome = "failed"
        report.longrepr = f"skipped with CI=true: {reason}\nmake it run, or list {report.nodeid!r} with a reason in tests/{ALLOWED_SKIPS.name}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _judge_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _judge_skip(report)
    return report


class _Counter:
    """Counts skips where they are shown: with several workers, in the process that started them."""

    def __init__(self, skips: list[bool]) -> None:
        self._skips = skips

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._count(report)

    def _count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if hasattr(report, "listed_skip"):
            self._skips.append(report.listed_skip)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skips = config.stash[SKIPS]
    terminalreporter.write_line(f"skips: {len(skips)} ({sum(skips)} listed in tests/{ALLOWED_SKIPS.name})")
