"""`eplb demo`: the whole loop on one machine, on real or generated routing."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from typing import TYPE_CHECKING

import click

from eplb.demo.checker import LOST_TOKEN, SPLIT_SWITCH, WRONG_EXPERT
from eplb.demo.dispatch import RULES

if TYPE_CHECKING:
    from eplb.demo.report import Report


def _finite(_context: click.Context, _option: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds.")
    return value


@click.command()
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Order of requests, weights, generator.",
)
@click.option(
    "--seconds",
    default=240.0,
    show_default=True,
    type=click.FloatRange(min=1),
    callback=_finite,
    help="Longest time the run may take.",
)
@click.option("--ranks", default=8, show_default=True, type=click.IntRange(2, 64), help="Rank processes.")
@click.option(
    "--trace",
    default=None,
    metavar="PATH|synthetic",
    help="Recorded picks (.npz), or generated ones. Default: the recorded trace if it is there, else generated.",
)
@click.option(
    "--dispatch",
    default="weighted",
    show_default=True,
    type=click.Choice(RULES),
    help="How a replica is chosen: by the plan's shares, or by an engine's rule.",
)
@click.option(
    "--break",
    "fault",
    default=None,
    type=click.Choice([WRONG_EXPERT, LOST_TOKEN, SPLIT_SWITCH]),
    help="Put a real fault into one rank after the first switch; the run must notice, name it and exit with 1.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the readings as one JSON object.")
def demo(
    *,
    seed: int,
    seconds: float,
    ranks: int,
    trace: str | None,
    dispatch: str,
    fault: str | None,
    as_json: bool,
) -> None:
    """Serve real routing on rank processes, let the daemon balance them, and check every token.

    Exit status: 0 the run finished, every output was right and the limits below were met; 1 a fault was found, a limit was missed,
    or the run could not finish.

    \b
    Limits on the excess (ratio - 1), binding on the recorded trace's humanities_law and
    science_med_eng with the default --ranks and --dispatch, elsewhere only shown:
      placed <= 0.35 x start, shifted >= 1.8 x placed, replaced <= 0.6 x shifted

    In the JSON, last_decision_before_pause is the daemon's last decision other than
    "paused": the demo itself pauses it while it reads.
    """  # noqa: D301 - click reads the backspace as "keep these lines"
    from eplb.demo.errors import DemoError, FaultFound
    from eplb.demo.progress import view_for
    from eplb.demo.report import judge
    from eplb.demo.run import DemoRun, Options

    if importlib.util.find_spec("torch") is None:
        raise DemoError("the ranks need torch; pip install 'eplb-daemon[demo]'")
    options = Options(
        seed=seed, seconds=seconds, ranks=ranks, trace=trace, dispatch=dispatch, fault=fault or ""
    )
    run = DemoRun(options, view_for(terminal=sys.stderr.isatty()))
    try:
        run.run()
    finally:
        if run.served or as_json:  # a reader of JSON gets an object, whatever the run came to
            _print(run.report(), as_json=as_json)
    if run.finding is not None:
        raise FaultFound(f"{run.finding.word}: {run.finding.sentence}")
    if fault is not None:
        raise DemoError(f"the fault {fault} was put in and not found; please report this")
    judge(run.report())


def _print(report: Report, *, as_json: bool) -> None:
    from eplb.demo.report import summary

    click.echo(json.dumps(report.as_dict()) if as_json else summary(report))
