"""The command of `make chaos`: report on stdout, progress and findings on stderr, exit status 1 when anything was found or missed."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import click

from eplb.chaos.driver import DIGESTS, SHARES, TERMS, VOTE, ChaosRun, Options
from eplb.chaos.errors import ChaosError
from eplb.chaos.faults import KINDS
from eplb.chaos.report import as_dict, missed, text
from eplb.chaos.schedule import CONTROLS, FULL, SHORT
from eplb.chaos.setup import DISPATCHES, WEIGHTED


@click.command()
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Model, load and faults."
)
@click.option(
    "--seconds", default=530.0, show_default=True, type=click.FloatRange(min=1), help="No fault begins later."
)
@click.option(
    "--dispatch",
    type=click.Choice(DISPATCHES),
    default=WEIGHTED,
    show_default=True,
    help="How ranks split an expert's tokens: by the map's shares, or evenly; under even no wave is of shares alone.",
)
@click.option("--short", is_flag=True, help="Each kind once, the leader killed once in each state.")
@click.option(
    "--faults", "wanted", default="", metavar="KIND[,KIND]", help=f"Only these: {', '.join(KINDS)}."
)
@click.option(
    "--without",
    "controls",
    multiple=True,
    type=click.Choice([VOTE, DIGESTS, TERMS, SHARES]),
    help="Negative control: take one protection away; the judge must find what it is for. Several are run in turn.",
)
@click.option("--logs", type=click.Path(path_type=Path), default=None, help="Folder to keep all logs in.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def chaos(
    *,
    seed: int,
    seconds: float,
    dispatch: str,
    short: bool,
    wanted: str,
    controls: tuple[str, ...],
    logs: Path | None,
    as_json: bool,
) -> None:
    """Serve a small model under faults of 14 kinds and let a judge count what must not be."""
    kinds = frozenset(filter(None, wanted.split(","))) or frozenset(KINDS)
    unknown = kinds.difference(KINDS)
    if unknown:
        raise click.BadParameter(f"unknown kinds {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    if SHARES in controls and dispatch != WEIGHTED:
        raise click.BadParameter(f"--without {SHARES} needs --dispatch {WEIGHTED}")
    scale = (SHORT if short else FULL).of(dispatch)
    runs = [Options(seed, seconds, scale, kinds, dispatch=dispatch)]
    if controls:
        runs = [
            Options(seed, seconds, CONTROLS[name][1], CONTROLS[name][0], name, dispatch) for name in controls
        ]
    passed = [_one(options, logs, as_json=as_json) for options in runs]
    sys.exit(0 if all(passed) else 1)


def _one(options: Options, logs: Path | None, *, as_json: bool) -> bool:
    """One run and its report; whether nothing was found and nothing missed. Its logs stay where it did not pass, or where they are wanted."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        outcome = ChaosRun(options, folder).run()
    except ChaosError as error:
        print(f"{error}; logs: {folder}", file=sys.stderr)
        return False
    print(json.dumps(as_dict(options, outcome)) if as_json else text(options, outcome), flush=True)
    passed = not outcome.findings and not missed(options, outcome)
    if logs is not None:
        shutil.copytree(
            folder, logs / (options.without or "run"), ignore=shutil.ignore_patterns("s", "rendezvous-*")
        )
    if passed or options.without or logs is not None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"logs: {folder}", file=sys.stderr)
    return passed
