"""Synthetic routing: two domains with drift, sequence by sequence.

Every layer has its own popularity of experts. For a token of sequence q in block t of 16 positions,

    log p = common + domain + drift_sd * d_qt + topic_sd * (sum_k a_qk z_k) / sqrt(topics)

with ``common`` and ``domain`` normal per expert (together a lognormal popularity), ``d`` an AR(1) walk per sequence and expert
(rho .9 a block), ``z`` eight topic directions shared by all sequences and ``a`` the sequence's normal topic weights. The picks are
the top k of log p plus Gumbel noise, which draws k experts without replacement. It is generator (b) of the field notes at the level of
requests; its parameters are the constants below. Its readings are never mixed with those of recorded routing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eplb.demo.routing import DEMO_LAYERS, SYNTHETIC, Routing

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXPERTS, TOP_K = 32, 4
SEQUENCES_BY_DOMAIN = (128, 192)
COMMON_SD, DOMAIN_SD, DRIFT_SD, TOPIC_SD = 0.4, 0.8, 0.3, 0.5
TOPICS, BLOCK, BLOCK_RHO = 8, 16, 0.9
LENGTH_MEDIAN, LENGTH_SIGMA, LENGTH_LIMITS = 300.0, 0.6, (30, 511)


def _lengths(random: np.random.Generator, sequences: int) -> NDArray[np.int64]:
    drawn = LENGTH_MEDIAN * np.exp(LENGTH_SIGMA * random.standard_normal(sequences))
    return np.clip(np.rint(drawn), *LENGTH_LIMITS).astype(np.int64)


def _walks(random: np.random.Generator, sequences: int, blocks: int) -> NDArray[np.float32]:
    """AR(1) walks with unit variance: float32 [blocks, sequences, layers, experts]."""
    steps = random.standard_normal((blocks, sequences, DEMO_LAYERS, EXPERTS), dtype=np.float32)
    for block in range(1, blocks):
        steps[block] = BLOCK_RHO * steps[block - 1] + np.sqrt(1 - BLOCK_RHO**2) * steps[block]
    return steps


def _sequence_logits(random: np.random.Generator, domain_of: NDArray[np.int8]) -> NDArray[np.float32]:
    """The part of log p that does not change within a sequence: float32 [sequences, layers, experts]."""
    shape = (DEMO_LAYERS, EXPERTS)
    common = COMMON_SD * random.standard_normal(shape)
    domain = DOMAIN_SD * random.standard_normal((len(SEQUENCES_BY_DOMAIN), *shape))
    directions = random.standard_normal((TOPICS, *shape))
    weights = random.standard_normal((len(domain_of), TOPICS))
    topics = np.tensordot(weights, directions, axes=1) * (TOPIC_SD / np.sqrt(TOPICS))
    return np.asarray(common + domain[domain_of] + topics, dtype=np.float32)


def synthetic(seed: int) -> Routing:
    """Routing of two generated domains: 6 layers, 32 experts, top-4, 128 + 192 sequences of about 300 tokens."""
    random = np.random.default_rng([seed, 6])
    domain_of = np.repeat(np.arange(len(SEQUENCES_BY_DOMAIN), dtype=np.int8), SEQUENCES_BY_DOMAIN)
    lengths = _lengths(random, len(domain_of))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    fixed = _sequence_logits(random, domain_of)
    walks = _walks(random, len(domain_of), -(-LENGTH_LIMITS[1] // BLOCK))
    picks = np.empty((int(offsets[-1]), DEMO_LAYERS, TOP_K), dtype=np.uint8)
    for sequence, length in enumerate(lengths):
        block = np.arange(length) // BLOCK
        logits = fixed[sequence] + DRIFT_SD * walks[block, sequence]
        races = np.maximum(random.standard_exponential(logits.shape, dtype=np.float32), np.float32(1e-30))
        noisy = logits - np.log(races)
        best = np.argpartition(-noisy, TOP_K - 1, axis=-1)[..., :TOP_K]
        picks[offsets[sequence] : offsets[sequence + 1]] = np.sort(best, axis=-1)
    layers = tuple(range(DEMO_LAYERS))
    return Routing(SYNTHETIC, picks, offsets, domain_of, ("domain_a", "domain_b"), layers, EXPERTS)
