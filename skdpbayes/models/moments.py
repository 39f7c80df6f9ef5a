"""Sums of bounded statistics that are no model of the data: moments for a private scaler, scores for a search."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class NoisyMoments(NamedTuple):
    """What a release says of each column in [-1, 1]: its mean, and its variance with a floor where noise hides it."""

    mean: np.ndarray
    variance: np.ndarray


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ColumnMoments:
    """Moments of d columns in [-1, 1], of which each cell may be missing. A record is ``{"x": (d,)}``.

    Attributes
    ----------
    n_features : int
    """

    n_features: int = field(metadata={"static": True})

    @property
    def n_statistics(self) -> int:
        """Length of `statistic`."""
        return 3 * self.n_features

    def statistic(self, record):
        """``(x, x^2 - 1/2, 1/2)`` of each column; zeros where the cell is missing."""
        known = jnp.isfinite(record["x"])
        x = jnp.clip(jnp.where(known, record["x"], 0), -1, 1)
        return jnp.concatenate([x, (x**2 - 0.5) * known, 0.5 * known])

    def statistic_bound(self) -> float:
        """Largest norm of `statistic`: a column adds ``x^2 + (x^2 - 1/2)^2 + 1/4 = x^4 + 1/2``, at most 3/2."""
        return math.sqrt(1.5 * self.n_features)

    def noisy_posterior(self, total, scale, n_records) -> NoisyMoments:
        """Moments from noisy sums, of which each has noise of standard deviation `scale`; N is not looked at.

        No variance is below what the noise of its own sums could make of nothing.
        """
        del n_records
        first, second, half = np.split(np.asarray(total, float), 3)
        count = np.maximum(
            2 * half, max(1.0, 4 * scale)
        )  # the error of a count has twice that of its half
        mean = np.clip(first / count, -1, 1)
        floor = np.minimum(1, 2 * scale / count)
        return NoisyMoments(
            mean, np.clip((second + half) / count - mean**2, np.maximum(floor, 1e-12), 1)
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BoundedScore:
    """Sum of a number in [0, 1] of each record, ``{"x": ()}``: any two records differ by at most 1."""

    n_statistics = 1

    def statistic_bound(self) -> float:
        """Largest norm of `statistic`."""
        return 1.0

    def statistic(self, record):
        """The number, cut to [0, 1]; zero if it is none."""
        x = record["x"]
        return jnp.where(jnp.isnan(x), 0, jnp.clip(x, 0, 1))[None]
