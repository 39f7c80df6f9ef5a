"""Weighted averages of the rounds of `na-dpvi`, which keep what the trace says of the optimum."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Averages(NamedTuple):
    """Weighted averages over rounds; in the state one for each block, on a leading axis."""

    weight: jax.Array  # sums of weights, by coordinate (equal within a block of the curvature)
    score: jax.Array  # weighted average of scores over their factors
    point: jax.Array  # weighted average of the points about which scores are linear
    noise: jax.Array  # variance of the noise in the averaged score
    subsampled: jax.Array  # variance due to subsampling, in units of the data's own


def doubted(blocks: Averages, away: jax.Array) -> Averages:
    """Blocks whose scores may be wrong by the square root of `away`."""
    weight = blocks.weight / (1 + blocks.weight * away)
    return blocks._replace(weight=weight, noise=blocks.noise + away)


def over(blocks: Averages, factors: jax.Array) -> Averages:
    """Blocks whose scores are divided by `factors`."""
    return blocks._replace(
        weight=blocks.weight * factors**2,
        score=blocks.score / factors,
        noise=blocks.noise / factors**2,
    )


def average(parts: Averages) -> Averages:
    """Average over the leading axis."""
    total = jnp.sum(parts.weight, axis=0)
    share = parts.weight / total.clip(1e-300)
    return Averages(
        weight=total,
        score=jnp.sum(share * parts.score, axis=0),
        point=jnp.sum(share * parts.point, axis=0),
        noise=jnp.sum(share**2 * parts.noise, axis=0),
        subsampled=jnp.sum(jnp.mean(share**2, axis=1) * parts.subsampled),
    )
