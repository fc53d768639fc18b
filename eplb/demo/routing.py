"""Sequences of router picks, from a recorded trace or from the generator."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eplb.demo.errors import TraceUnusable

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEMO_LAYERS = 6
RECORDED_TRACE = Path("..", "shared", "data", "gptoss20b_decode.npz")
RECORDED_DOMAINS = ("humanities_law", "science_med_eng")
SYNTHETIC = "synthetic"
_WANTED = "it must be an .npz with picks [tokens, layers, k], offsets [sequences + 1] and domain [sequences]"


@dataclass(frozen=True, slots=True)
class Routing:
    """Picks of every sequence, decode steps only.

    ``picks``: uint8 [tokens, layers, k], logical ids. ``offsets``: int64 [sequences + 1]; sequence i owns tokens
    offsets[i]:offsets[i+1]. ``domain_of``: int8 [sequences], index into ``domains`` (two names, in the order they are served),
    -1 = not served. ``model_layers``: the model's layer number of every row.
    """

    name: str
    picks: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    domain_of: NDArray[np.int8]
    domains: tuple[str, str]
    model_layers: tuple[int, ...]
    experts: int

    @property
    def top_k(self) -> int:
        """Experts that each token picks."""
        return int(self.picks.shape[2])

    def length(self, sequence: int) -> int:
        """Tokens of one sequence."""
        return int(self.offsets[sequence + 1] - self.offsets[sequence])

    def longest(self, domain: int) -> int:
        """Tokens of the longest sequence of one domain."""
        return int(np.diff(self.offsets)[self.domain_of == domain].max(initial=0))

    def picks_of(self, sequences: NDArray[np.int32], positions: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Picks of tokens named by (sequence, position), int32 [tokens] each -> uint8 [tokens, layers, k]."""
        return np.asarray(self.picks[self.offsets[sequences] + positions])


def evenly_spaced(available: int, wanted: int) -> tuple[int, ...]:
    """Layers 0, n/w, 2n/w, ...: the rows of the trace that the demo serves (gpt-oss: 0 4 8 12 16 20)."""
    return tuple(i * available // wanted for i in range(wanted))


def _arrays(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.str_]]:
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise TraceUnusable(f"trace {path}: cannot be read (not an .npz file); {_WANTED}")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return (
                    archive["picks"],
                    archive["offsets"].astype(np.int64),
                    archive["domain"].astype(np.str_),
                )
    except FileNotFoundError as error:
        raise TraceUnusable(
            f"trace {path}: no such file; give another --trace, or --trace {SYNTHETIC}"
        ) from error
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise TraceUnusable(f"trace {path}: cannot be read ({error!s:.120}); {_WANTED}") from error


def _check(
    path: Path, picks: NDArray[np.uint8], offsets: NDArray[np.int64], domain: NDArray[np.str_]
) -> None:
    if picks.ndim != 3 or picks.shape[1] < DEMO_LAYERS:
        raise TraceUnusable(
            f"trace {path}: picks has shape {picks.shape}, must be [tokens, >= {DEMO_LAYERS} layers, k]"
        )
    ends_well = offsets.ndim == 1 and len(offsets) == len(domain) + 1 and offsets[0] == 0
    if not ends_well or int(offsets[-1]) != len(picks) or bool((np.diff(offsets) < 1).any()):
        raise TraceUnusable(
            f"trace {path}: offsets must rise from 0 to the {len(picks)} tokens, one more than the {len(domain)} domains"
        )
    if picks.dtype.kind not in "ui" or int(picks.max(initial=0)) > 255 or int(picks.min(initial=0)) < 0:
        raise TraceUnusable(f"trace {path}: picks must be expert ids from 0 to 255, found type {picks.dtype}")


def _check_distinct(path: Path, picks: NDArray[np.uint8]) -> None:
    ordered = np.sort(picks, axis=2)
    if bool((ordered[..., 1:] == ordered[..., :-1]).any()):
        raise TraceUnusable(
            f"trace {path}: a token picks one expert twice in a layer; the picks of a router are distinct"
        )


def _two_domains(path: Path, domain: NDArray[np.str_]) -> tuple[str, str]:
    names, counts = np.unique(domain, return_counts=True)
    if set(RECORDED_DOMAINS) <= set(names.tolist()):
        return RECORDED_DOMAINS
    if len(names) < 2:
        raise TraceUnusable(
            f"trace {path}: it holds one domain, {names.tolist()}; the demo shifts between two"
        )
    # the smaller of the two largest goes first: the second domain is served for longer
    second, first = (str(names[i]) for i in np.argsort(-counts, kind="stable")[:2])
    return first, second


def recorded(path: Path) -> Routing:
    """Read a recorded trace and keep six of its layers, evenly spaced.

    Raises:
        TraceUnusable: the file is missing, damaged, or does not hold two domains and six layers.
    """
    picks, offsets, domain = _arrays(path)
    _check(path, picks, offsets, domain)
    first, second = _two_domains(path, domain)
    layers = evenly_spaced(picks.shape[1], DEMO_LAYERS)
    domain_of = np.where(domain == first, 0, np.where(domain == second, 1, -1)).astype(np.int8)
    kept = np.ascontiguousarray(picks[:, list(layers), :], dtype=np.uint8)
    _check_distinct(path, kept)
    return Routing(path.name, kept, offsets, domain_of, (first, second), layers, experts=int(picks.max()) + 1)


def routing_of(trace: str | None, seed: int) -> Routing:
    """The routing that ``--trace`` names; None = the recorded trace if it is there, else the generator."""
    from eplb.demo.generator import synthetic

    if trace is None:
        return recorded(RECORDED_TRACE) if RECORDED_TRACE.is_file() else synthetic(seed)
    return synthetic(seed) if trace == SYNTHETIC else recorded(Path(trace))
