"""``eplb replay``: what each policy would have cost on a recorded trace, before any of them is let near a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eplb.cli.numbers import Finite
from eplb.cli.trace_options import FORMAT, MOST_EXPERTS
from eplb.models import MODELS
from eplb.replay.mix import MIXES
from eplb.replay.options import PHASES, WORDS, ReplayOptions
from eplb.replay.presets import MACHINES
from eplb.replay.schedule import ScheduleOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.decorators import FC

COUNT = click.IntRange(1, 1_000_000_000)
FILE = click.Path(path_type=Path)
POLICIES = ("never", "every:10", "ours")
WINDOWS_BETWEEN_LINES = 50
_SHOWN: dict[str, Any] = {"show_default": True}
_SCHEDULE = {name: ScheduleOptions.__dataclass_fields__[name].default for name in ScheduleOptions.__slots__}
_POOL = {name: ReplayOptions.__dataclass_fields__[name].default for name in ReplayOptions.__slots__}


def _numbers(defaults: dict[str, Any], helps: dict[str, str]) -> Callable[[FC], FC]:
    """Options that are whole numbers of at least 1, with the defaults of the dataclass that takes them."""

    def decorate(command: FC) -> FC:
        for name, text in reversed(helps.items()):
            flag = f"--{name.replace('_', '-')}"
            command = click.option(flag, name, type=COUNT, default=defaults[name], help=text, **_SHOWN)(
                command
            )
        return command

    return decorate


@click.command()
@click.argument("trace", type=FILE)
@click.option("--from", "name", type=FORMAT, help="Format of the trace, where it is not recognised.")
@click.option("--policy", "policies", multiple=True, default=POLICIES, help=f"One of {WORDS}.", **_SHOWN)
@click.option(
    "--ranks", type=click.IntRange(2, 4096), required=True, help="Ranks of the expert-parallel group."
)
@click.option("--slots-per-rank", type=COUNT, required=True, help="Expert slots of a rank in one layer.")
@click.option("--nodes", type=COUNT, default=1, help="Nodes that the ranks stand on.", **_SHOWN)
@click.option(
    "--experts",
    type=click.IntRange(1, MOST_EXPERTS),
    help="Experts of the model, if the trace does not name the last ones.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the first run.", **_SHOWN)
@click.option(
    "--seeds", type=click.IntRange(1, 1000), default=1, help="Runs, each with the next seed.", **_SHOWN
)
@click.option("--mix", type=click.Choice(MIXES), default="stationary", help="How domains follow.", **_SHOWN)
@click.option(
    "--mix-at",
    type=Finite(0, 1, min_open=True, max_open=True),
    default=0.5,
    help="Part of the run at which a switch or ramp is.",
    **_SHOWN,
)
@click.option("--first", multiple=True, help="Domain that requests come from at first; may be given again.")
@click.option("--second", multiple=True, help="Domain that they come from later; may be given again.")
@click.option("--arrivals", type=FILE, help="CSV of TIMESTAMP, ContextTokens, GeneratedTokens.")
@_numbers(
    _SCHEDULE,
    {
        "steps": "Steps of a run.",
        "window_steps": "Steps of a window, the unit of every:N.",
        "running": "Sequences in flight; with --arrivals the most.",
        "passes": "Times that a sequence may be served.",
        "requests_per_sequence": "Equal requests that a sequence stands for.",
        "step_ms": "Milliseconds between two steps on the daemon's clock.",
    },
)
@_numbers(
    _POOL,
    {
        "memory_windows": "Newest windows that every policy plans on.",
        "undone_within": "Windows in which a move taken back counts as undone.",
    },
)
@click.option("--phase", type=click.Choice(PHASES), default="decode", help="Which kernels cost.", **_SHOWN)
@click.option("--model", type=click.Choice(list(MODELS)), default=_POOL["model"], help="Preset.", **_SHOWN)
@click.option(
    "--machine",
    "machines",
    type=click.Choice(list(MACHINES)),
    multiple=True,
    default=_POOL["machines"],
    help="Preset of GPU and link; may be given again.",
    **_SHOWN,
)
@click.option(
    "--effort",
    type=click.Choice(["fast", "normal", "thorough"]),
    default=_POOL["effort"],
    help="Of every solve.",
    **_SHOWN,
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def replay(
    trace: Path, *, policies: tuple[str, ...], seed: int, seeds: int, as_json: bool, **options: Any
) -> None:
    """Serve the sequences of TRACE under every policy and say what each costs.

    The picks are the recorded ones, the schedule is simulated. Every step is served by a map that was made before it, by
    the oracle's alone after it. ours is the daemon's own loop with its default settings; ours:cooldown_s=60,slack=0.01 sets some of them.
    """
    from eplb.formats.facts import ReadOptions
    from eplb.formats.registry import read_sequences
    from eplb.log import configure_logging
    from eplb.replay.recording import Recording
    from eplb.replay.run import replay as run
    from eplb.replay.table import as_dict, as_text

    asked = _options(options)
    configure_logging("error", "console")
    _say(f"reading {trace}")
    recording = Recording.of(
        read_sequences(trace, ReadOptions(experts=options["experts"]), options["name"]), options["experts"]
    )
    accounts = run(recording, asked, policies, range(seed, seed + seeds), _progress(asked))
    if as_json:
        click.echo(json.dumps(as_dict(recording, asked, accounts), indent=2))
    else:
        click.echo(as_text(recording, asked, accounts))


def _options(options: dict[str, Any]) -> ReplayOptions:
    from eplb.replay.arrivals import read_arrivals
    from eplb.replay.mix import Mix

    path = options["arrivals"]
    of_schedule = (
        "steps", "window_steps", "running", "first", "second", "passes", "requests_per_sequence", "step_ms",
    )  # fmt: skip
    of_pool = ("ranks", "slots_per_rank", "nodes", "phase", "model", "machines", "memory_windows", "effort", "undone_within")  # fmt: skip
    schedule = ScheduleOptions(
        mix=Mix(options["mix"], options["mix_at"]),
        arrivals=() if path is None else read_arrivals(path),
        **{name: options[name] for name in of_schedule},
    )
    return ReplayOptions(schedule=schedule, **{name: options[name] for name in of_pool})


def _progress(options: ReplayOptions) -> Callable[[int, int], None]:
    windows = options.schedule.steps // options.schedule.window_steps

    def tell(seed: int, served: int) -> None:
        if served % WINDOWS_BETWEEN_LINES == 0 or served == windows:
            _say(f"seed {seed}: {served} of {windows} windows")

    return tell


def _say(text: str) -> None:
    click.echo(text, err=True)
