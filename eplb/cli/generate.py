"""``eplb generate``: a synthetic routing trace of any model's shape, held against published statistics."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eplb.cli.layer_options import layer_options, layers_from
from eplb.cli.numbers import Finite
from eplb.cli.progress import progress, say
from eplb.cli.targets import check_writable
from eplb.formats import npz
from eplb.formats.facts import PHASES, SEQUENCES_PER_SLICE, Layers, ReadOptions
from eplb.formats.header import Header
from eplb.formats.layers import layers_of
from eplb.formats.npz_write import write_counts, write_picks
from eplb.generate.recipe import MOST_DOMAINS, MOST_SPREAD, MOST_TOKENS, Recipe, Shape
from eplb.generate.sequences import sequences_of
from eplb.generate.slices import Batch, slices_of_batch
from eplb.generate.statistics import Statistics, statistics_of
from eplb.generate.targets import TOLERANCE, targets_for
from eplb.models import MODELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from eplb.generate.targets import Target

SEQUENCES = 240
MEASURED_TOKENS = 20_000
"""Tokens whose sets are kept to measure pairs by."""
MOST = 10**9
_DEFAULTS = {field.name: field.default for field in fields(Recipe)}
_SPREADS = {
    "skew": "Unevenness of the experts over the whole trace.",
    "skew-by-layer": "How much that differs between layers, as a part of it.",
    "domain-spread": "What a domain adds to it.",
    "phase-spread": "What a phase adds to it.",
    "request-spread": "What a request adds to it.",
    "topic-spread": "How much requests differ in their topics.",
    "domain-topic-spread": "How much domains differ in their topics.",
}


def _spreads(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, help_ in reversed(_SPREADS.items()):
        most = 1.0 if name == "skew-by-layer" else MOST_SPREAD
        default = _DEFAULTS[name.replace("-", "_")]
        command = click.option(
            f"--{name}", type=Finite(0.0, most), default=default, show_default=True, help=help_
        )(command)
    return command


def _count(name: str, most: int, help_: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    default = _DEFAULTS[name.replace("-", "_")]
    return click.option(
        f"--{name}", type=click.IntRange(1, most), default=default, show_default=True, help=help_
    )


@click.command()
@click.option("--model", type=click.Choice(list(MODELS)), help="Model whose shape the trace has.")
@click.option("--layers", type=click.IntRange(min=1), help="Without --model: MoE layers,")
@click.option("--experts", type=click.IntRange(min=1), help="experts of a layer,")
@click.option("--top-k", type=click.IntRange(min=1), help="and experts that a token picks in a layer.")
@layer_options
@click.option(
    "--sequences", type=click.IntRange(1, MOST), help=f"Write the picks of so many sequences. [{SEQUENCES}]"
)
@click.option("--slices", type=click.IntRange(1, MOST), help="Write so many slices of counts instead.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="With --slices: requests served together.",
)
@click.option(
    "--batch-tokens",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="With --slices: tokens of each in a slice.",
)
@_count("tokens", MOST_TOKENS, "Median tokens of a sequence.")
@_count("domains", MOST_DOMAINS, "Subjects that requests are about.")
@click.option(
    "--phase",
    type=click.Choice(["both", *PHASES]),
    default="both",
    show_default=True,
    help="Phase of all tokens; both: every request has prefill and decode.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="The same seed gives the same bytes.",
)
@_spreads
@click.option(
    "--topic-share",
    type=Finite(0.0, 1.0),
    default=_DEFAULTS["topic_share"],
    show_default=True,
    help="Part of the picks that follow the token's topic: pairs.",
)
@_count("topic-tokens", MOST_TOKENS, "Tokens of one topic in a row, on average.")
@click.option(
    "--measure/--no-measure",
    default=True,
    help="Read the file again and show its statistics (default) or not.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write. [synthetic-MODEL-SEED.npz]",
)
def generate(output: Path | None, as_json: bool, **options: Any) -> None:
    """Write a SYNTHETIC routing trace: picks of sequences, or counts of slices, as .npz.

    Its statistics are calibrated to published ones; they are measured on the file that was written and shown beside the targets.
    """
    recipe = _recipe(options)
    path = output or Path(f"synthetic-{options['model'] or 'custom'}-{recipe.seed}.npz")
    check_writable(path)
    say(f"writing {path}: synthetic")
    _write(path, recipe, options)
    report = _report(path, recipe, options)
    click.echo(json.dumps(report, indent=2) if as_json else "\n".join(_lines(report)))


def _recipe(options: dict[str, Any]) -> Recipe:
    if options["sequences"] and options["slices"]:
        raise click.UsageError("--sequences writes picks, --slices writes counts: give one of them")
    rest = {name: options[name] for name in _DEFAULTS if name in options}
    phases = ("prefill", "decode") if options["phase"] == "both" else (options["phase"],)
    return Recipe(_shape(options), **rest | {"phases": phases})


def _shape(options: dict[str, Any]) -> Shape:
    by_hand = [options[name] for name in ("layers", "experts", "top_k")]
    given = layers_from(options)
    if options["model"] is not None:
        if any(value is not None for value in by_hand) or given != Layers():
            raise click.UsageError("--model says the layers, experts and top-k already: leave the others out")
        model = MODELS[options["model"]]
        return Shape(model.layers, model.experts, model.top_k, Layers(model.model_layer, model.hidden_layers))
    if any(value is None for value in by_hand):
        raise click.UsageError("give --model, or all of --layers, --experts and --top-k")
    layers, experts, top_k = by_hand
    return Shape(layers, experts, top_k, layers_of(Layers(), given, layers))


def _write(path: Path, recipe: Recipe, options: dict[str, Any]) -> None:
    header = Header(recipe.shape.experts, recipe.shape.numbers, recipe.words())
    told = progress(f"writing {path.name}")
    if options["slices"]:
        batch = Batch(options["batch"], options["batch_tokens"])
        slices = slices_of_batch(recipe, batch, options["slices"])
        write_counts(path, _told(slices, options["slices"], told), options["slices"], header)
        return
    count = options["sequences"] or SEQUENCES
    write_picks(path, _told(sequences_of(recipe, count), count, told), header)


def _told(items: Iterable[Any], count: int, told: Callable[[int, int | None], None]) -> Iterator[Any]:
    for at, item in enumerate(items):
        told(at, count)
        yield item


def _report(path: Path, recipe: Recipe, options: dict[str, Any]) -> dict[str, Any]:
    shape = recipe.shape
    return {
        "synthetic": True,
        "file": str(path),
        "bytes": path.stat().st_size,
        "model": options["model"],
        "layers": shape.layers,
        "experts": shape.experts,
        "top_k": shape.top_k,
        "made_by": recipe.words(),
        "tolerance": TOLERANCE,
        "statistics": _measured(path, recipe, options) if options["measure"] else None,
    }


def _measured(path: Path, recipe: Recipe, options: dict[str, Any]) -> dict[str, Any]:
    say(f"measuring {path}")
    told = progress(f"reading {path.name}")
    file = npz.read_trace(path, ReadOptions(most_routes=MEASURED_TOKENS, progress=told))
    found = statistics_of(file, recipe.shape.top_k)
    # Slices of a large trace are added up when it is read.
    whole = not options["slices"] and "slices_added_up" not in {note.code for note in file.notes}
    targets = targets_for(recipe.shape, requests_by_slice=SEQUENCES_PER_SLICE if whole else 0)
    return {
        field.name: _beside(getattr(found, field.name), targets.get(field.name))
        for field in fields(Statistics)
    }


def _beside(value: float | None, target: Target | None) -> dict[str, Any]:
    shown = None if value is None else round(value, 6)
    if target is None:
        return {"measured": shown, "target": None, "source": None, "fits": None}
    fits = None if value is None else target.fits(value)
    return {
        "measured": shown,
        "target": [target.low, target.high],
        "source": target.source,
        "fits": fits,
    }


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [
        f"SYNTHETIC  {report['file']}: {report['bytes']:,} bytes, made up, not recorded",
        f"shape      {report['layers']} layers, {report['experts']} experts, top-{report['top_k']}",
        f"made by    {report['made_by']}",
    ]
    statistics = report["statistics"]
    if statistics is None:
        return lines
    lines += ["", f"{'statistic':<22}{'measured':>9}  {'target':<13} from"]
    for name, found in statistics.items():
        value = "-" if found["measured"] is None else f"{found['measured']:.3f}"
        target = found["target"]
        shown = "-" if target is None else f"{target[0]:g} to {target[1]:g}"
        missed = "  (does not fit)" if found["fits"] is False else ""
        lines.append(f"{name:<22}{value:>9}  {shown:<13} {found['source'] or ''}{missed}".rstrip())
    return lines
