"""The real daemon, `eplb run`, as a process of its own that watches the demo's pool in mode auto."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import yaml

from eplb.demo.errors import DemoError
from eplb.demo.setup import GATE_STEPS, pool_shape

if TYPE_CHECKING:
    from pathlib import Path

    from collectors.facts import PoolFacts

STOP_S = 10.0
STAGED_LAYERS = 3
UNHURRIED = 10.0
DEADLINE_S = 60.0
CYCLE_S, COOLDOWN_S, WINDOW_S, SLICES = 0.5, 5.0, 30.0, 100
LONGEST_ERROR = 400

TOKEN_US = 7.0
"""Expert time of one pair on one core: 1.9 ms a step for 288 pairs a rank. All ranks share this machine's cores, so whole steps need not follow the busiest rank."""


def daemon_config(facts: PoolFacts, store_url: str, dispatch: str) -> dict[str, Any]:
    """Settings for a run of minutes: what takes minutes in production takes seconds here, and one-step slices are kept."""
    return {
        "store": {"url": store_url},
        "cycle_s": CYCLE_S,
        "http": {"port": 0},
        "pools": [
            {
                **pool_shape(facts),
                "dispatch": "weighted" if dispatch == "weighted" else "even",
                "window": {"window_s": WINDOW_S, "max_slices": SLICES},
                "gate": {
                    "mode": "auto",
                    "cooldown_s": COOLDOWN_S,
                    "min_interval_s": COOLDOWN_S,
                    "min_slices": 40,
                    "min_tokens": 2000,
                    "price_us_per_token": TOKEN_US,
                    # New shares that come near the target end a planning without moves: here every reading is compared with a limit.
                    "target_excess": 0.0,
                },
                # One move costs nothing here, every reading is compared with a limit, and the solver shares its core with ranks.
                "solver": {"slack": 0.005, "deadline_s": DEADLINE_S},
                "migration": {
                    "gate_steps": GATE_STEPS,
                    "staging_slots": STAGED_LAYERS * facts.slots_per_rank,
                    # Ranks, daemon and solver share these cores: a slow step here says nothing about the wave.
                    "slowdown": UNHURRIED,
                },
            }
        ],
    }


class DaemonProcess:
    """Starts the daemon on a generated configuration, and ends it with the context or with this process."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self._config_path = folder / "daemon.yaml"
        self._log_path = folder / "daemon.log"
        self._config_path.write_text(yaml.safe_dump(config, sort_keys=False))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "eplb.cli.main", "run", "--config", str(self._config_path)]
        # settings of a daemon that the user runs elsewhere must not reach this one
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EPLB_")}
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "eplb.demo.leash", str(self._log_path.parent), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def check(self) -> None:
        """Notice a daemon that ended by itself.

        Raises:
            DemoError: it did; the message carries the end of its log.
        """
        if self._process is None or self._process.poll() is None:
            return
        lines = self._log_path.read_text(errors="replace").strip().splitlines()
        last = " / ".join(lines[-3:])[-LONGEST_ERROR:]
        raise DemoError(
            f"the daemon ended by itself with status {self._process.returncode}: {last or 'it said nothing'}"
        )
