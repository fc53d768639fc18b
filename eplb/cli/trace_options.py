"""The options that say how to read a trace, and reading it with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from eplb.cli.layer_options import layer_options, layers_from
from eplb.cli.numbers import Finite
from eplb.cli.progress import progress, say
from eplb.errors import FileError
from eplb.formats.facts import PHASES, SEQUENCES_PER_SLICE, Note, ReadOptions
from eplb.formats.registry import named, read_trace
from eplb.models import like
from eplb.offline.holdout import HOLDOUT
from placement import LoadTrace, Routes

if TYPE_CHECKING:
    from collections.abc import Callable

    from eplb.formats.facts import TraceFile

RANKS_MAX = 4096
"""More ranks than any expert-parallel group has; beyond it a number is a slip of the pen."""
FILE = click.Path(path_type=Path, dir_okay=False)
PATH = click.Path(path_type=Path)
RANKS = click.IntRange(1, RANKS_MAX)
MOST_EXPERTS = 2**16
"""More experts than any layer has; beyond it a number is a slip of the pen."""
MOST_HOLDOUT = 0.9
MOST_ROUTES = 2**14
"""Tokens whose sets of experts are kept, where fan-out is asked for."""


class _FormatName(click.ParamType[str]):
    """The name of a format."""

    name = "FORMAT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return named(str(value)).name
        except FileError as error:
            self.fail(str(error), param, ctx)


FORMAT = _FormatName()


def current_options(help_: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--current`` and ``--current-from`` to a command; ``help_``: what it does with the live map."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        form = click.option(
            "--current-from", type=FORMAT, help="Format of the live map, where it is not recognised."
        )
        return click.option("--current", type=PATH, help=help_)(form(command))

    return decorate


def holdout_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--holdout``, None = not given: then ``HOLDOUT`` where the trace has slices enough."""
    return click.option(
        "--holdout",
        type=Finite(0, MOST_HOLDOUT),
        help=f"Part of the slices that a forecast is scored on and its plan does not see; 0 = none.  [default: {HOLDOUT}]",
    )(command)


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command; ``read_options`` reads them."""
    added = (
        click.option(
            "--from",
            "name",
            type=FORMAT,
            help="Format of the trace, or of the one file that is read, where it is not recognised.",
        ),
        click.option(
            "--experts",
            type=click.IntRange(1, MOST_EXPERTS),
            help="Experts of the model, if the file does not name the last ones.",
        ),
        click.option(
            "--top-k",
            type=click.IntRange(min=1),
            help="Experts that a token picks in a layer, if the file holds counts.",
        ),
        click.option(
            "--sequences-per-slice",
            type=click.IntRange(min=1),
            default=SEQUENCES_PER_SLICE,
            show_default=True,
            help="Sequences of one domain and phase that make one slice of a trace of picks.",
        ),
        click.option("--phase", type=click.Choice(PHASES), help="Use slices of this phase only."),
        layer_options,
    )
    for option in reversed(added):
        command = option(command)
    return command


def read_options(path: Path, options: dict[str, Any], most_routes: int) -> ReadOptions:
    """What the options say, with progress on stderr."""
    return ReadOptions(
        experts=options["experts"],
        layers=layers_from(options),
        phase=options["phase"],
        sequences_per_slice=options["sequences_per_slice"],
        most_routes=most_routes,
        top_k=options["top_k"],
        progress=progress(f"reading {path.name}"),
    )


def load(path: Path, options: dict[str, Any], *, experts: int | None, nodes: int) -> TraceFile:
    """Read a trace for a pool of ``nodes`` nodes; on one node nobody asks for routes. ``experts``: None = what the file says.

    Raises:
        FileError: names the file, the place, the value and what was expected.
    """
    say(f"reading {path}")
    how = read_options(path, options, MOST_ROUTES if nodes > 1 else 1)
    return in_layer_order(read_trace(path, replace(how, experts=how.experts or experts), options["name"]))


def in_layer_order(file: TraceFile) -> TraceFile:
    """The same trace with its rows in the order of the model's layers, as far as that is known."""
    numbers = file.layers.model_layer
    if numbers is None or list(numbers) == sorted(numbers):
        return file
    order = np.argsort(numbers)
    old, routes = file.trace, file.trace.routes
    trace = LoadTrace(
        old.tokens[:, order],
        old.weights,
        old.steps_per_slice,
        routes=None if routes is None else Routes(routes.experts[:, order], routes.requests, routes.sources),
        source_tokens=None if old.source_tokens is None else old.source_tokens[:, order],
        batch_tokens=old.batch_tokens,
    )
    return replace(file, trace=trace, layers=replace(file.layers, model_layer=tuple(sorted(numbers))))


def top_k_of(file: TraceFile, given: int | None) -> tuple[int | None, str]:
    """Experts that a token picks in a layer, and where that is known from; None = unknown.

    Raises:
        FileError: the picks of the trace are of another number than ``given``.
    """
    routes = file.trace.routes
    if given is not None and routes is not None and routes.top_k != given:
        raise FileError(
            f"--top-k is {given}, but a token of the trace picks {routes.top_k}: leave --top-k away"
        )
    if given is not None:
        return given, "the command line"
    if routes is not None:
        return routes.top_k, "the picks"
    guesses = {shape.top_k for shape in like(file.trace.layers, file.trace.experts)}
    return (guesses.pop(), "the model guess") if len(guesses) == 1 else (None, "")


def for_ranks(trace: LoadTrace, ranks: int) -> tuple[LoadTrace, tuple[Note, ...]]:
    """The trace for a pool of so many ranks: who sent what on another pool says nothing of this one."""
    routes, sources = trace.routes, trace.source_tokens
    foreign = sources is not None and len(sources) != ranks
    started = routes is not None and routes.sources is not None and int(routes.sources.max()) >= ranks
    if not foreign and not started:
        return trace, ()
    here = LoadTrace(
        trace.tokens,
        trace.weights,
        trace.steps_per_slice,
        routes=Routes(routes.experts, routes.requests) if routes is not None and started else routes,
        source_tokens=None if foreign else sources,
        batch_tokens=trace.batch_tokens,
    )
    sentence = f"the trace counts by source rank of another pool than {ranks} ranks: that part is left out"
    return here, (Note("sources_of_another_pool", sentence),)
