"""`eplb run` as a real process for tests: started, watched through its log, ended or killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pool_world
import yaml

LIMIT_S = 150.0
"""No test judges a duration: a shared machine is slow at times."""


class Running:
    """`eplb run` with its log in a file."""

    def __init__(self, folder, *arguments, env=None):
        Path(folder).mkdir(exist_ok=True)
        self.log_path = Path(folder) / "log"
        with self.log_path.open("wb") as log:
            command = [sys.executable, "-m", "eplb", "run", *arguments]
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, cwd=folder, env={**environment(), **(env or {})}
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def events(self):
        lines = self.log_path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def named(self, name):
        return [event for event in self.events() if event["event"] == name]

    def codes(self):
        return [event["code"] for event in self.named("decision")]

    def wait_for(self, name):
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            if found := self.named(name):
                return found[0]
            assert self.process.poll() is None, self.log_path.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no event {name}: {self.log_path.read_text()}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=LIMIT_S)


def environment():
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": root}


def eventually(holds, explain=lambda: ""):
    limit = time.monotonic() + LIMIT_S
    while not (value := holds()):
        assert time.monotonic() < limit, f"did not become true: {explain()}"
        time.sleep(0.1)
    return value


def pool_config(path, url, *, mode="auto", **settings):
    """A file that serves the ranks of ``pool_world`` at this store; settings by section, a section's keys added to its own."""
    tree = pool_world.config(mode).model_dump(mode="json", exclude_none=True)
    tree["store"] = {"url": url, "lease_ttl_s": 6.0}
    tree["http"] = {"port": 0}
    for name, value in settings.items():
        tree[name] = {**tree.get(name, {}), **value} if isinstance(value, dict) else value
    path.write_text(yaml.safe_dump(tree))
    return str(path)
