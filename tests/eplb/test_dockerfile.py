"""The image, read from its Dockerfile: two stages, no root, no torch, and only paths that exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from eplb.api import ApiServer, create_app
from eplb.cli.main import root
from eplb.config import HttpConfig

ROOT = Path(__file__).parents[2]


def instructions():
    """[(stage, instruction, arguments)], continuation lines joined and comments left out."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    stage, found = "", []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            if word == "FROM":
                stage = rest.split(" AS ")[1]
            found.append((stage, word, " ".join(rest.split())))
    return found


def of(word, stage=None):
    return [rest for at, name, rest in instructions() if name == word and stage in (None, at)]


def copied_from_here():
    """Paths that COPY takes from the build context."""
    return [path for rest in of("COPY") if not rest.startswith("--from") for path in rest.split()[:-1]]


def test_the_image_is_built_in_two_stages_and_takes_only_the_environment_from_the_first():
    """Compilers and sources stay behind."""
    assert of("FROM") == ["python:3.12-slim AS builder", "python:3.12-slim AS runtime"]
    assert of("COPY", "runtime") == ["--from=builder /opt/eplb /opt/eplb"]


def test_the_image_does_not_run_as_root():
    """A numeric user, which an orchestrator can check."""
    [user] = of("USER", "runtime")

    assert all(int(number) > 0 for number in user.split(":"))


def test_the_image_runs_the_daemon():
    """`eplb run` with the configuration that is mounted; the command exists."""
    entry, command = (json.loads(of(word, "runtime")[0]) for word in ("ENTRYPOINT", "CMD"))

    assert entry == ["eplb"]
    assert command == ["run", "--config", "/etc/eplb/config.yaml"]
    assert command[0] in root().list_commands(None)


def test_the_image_installs_the_daemon_from_a_wheel_with_pinned_versions_and_without_torch():
    """The extra `daemon` and no other."""
    [run] = of("RUN", "builder")

    assert "pip wheel" in run
    assert "--constraint constraints.txt" in run
    assert set(re.findall(r"\[(\w+)\]", run)) == {"daemon"}
    assert "torch" not in "".join(rest for _, _, rest in instructions())


@pytest.mark.parametrize("path", copied_from_here())
def test_every_copied_path_exists_and_is_part_of_the_build_context(path):
    """.dockerignore lets through what COPY needs."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]

    assert (ROOT / path).exists()
    assert path.rstrip("/") in allowed


def test_everything_else_stays_outside_the_build_context():
    """No virtual environment, no history, no test data in the image."""
    lines = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] not in "#!"
    ]

    assert lines[0] == "*"
    assert {"**/__pycache__", "**/*.pyc"} <= set(lines[1:])


def health_check():
    """The program of the health check."""
    [check] = of("HEALTHCHECK", "runtime")
    return json.loads(check[check.index("CMD ") + 4 :])[-1]


@pytest.mark.parametrize(("loop_age_s", "healthy"), [(0.0, True), (60.0, False)])
def test_the_health_check_follows_the_daemons_liveness(loop_age_s, healthy):
    """Run as the container would, against a real server: exit code 0 while the loop turns."""
    app = create_app(tuple, lambda: loop_age_s, live_within_s=10.0)
    with ApiServer(app, "127.0.0.1", 0) as server:
        environment = {**os.environ, "EPLB_HTTP__PORT": str(server.port)}
        result = subprocess.run(
            [sys.executable, "-c", health_check()],
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )

    assert (result.returncode == 0) is healthy


def test_the_health_check_and_the_exposed_port_are_the_settings_default():
    """One number in three places."""
    assert f"'EPLB_HTTP__PORT', '{HttpConfig().port}'" in health_check()
    assert of("EXPOSE") == [str(HttpConfig().port)]


@pytest.mark.parametrize("name", ["mixed.yaml", "prefill_decode.yaml"])
def test_the_shipped_configurations_listen_where_a_container_is_reached(name):
    """Not on the container's own loopback only."""
    assert yaml.safe_load((ROOT / "configs" / name).read_text())["http"]["host"] == "0.0.0.0"
