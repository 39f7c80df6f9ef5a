"""Sums of bounded statistics without a model: moments for a scaler, scores for a search."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.models.protocols import Record
from skdpbayes.pytrees import pytree


class NoisyMoments(NamedTuple):
    """Estimates for each column in [-1, 1]: mean, and variance with a floor set by the noise."""

    mean: np.ndarray
    variance: np.ndarray


@pytree
@dataclass(frozen=True)
class ColumnMoments:
    """Moments of d columns in [-1, 1], with missing cells. A record is ``{"x": (d,)}``.

    Attributes
    ----------
    n_features : int
    """

    n_features: int = field(metadata={"static": True})

    @property
    def n_statistics(self) -> int:
        """Length of `statistic`."""
        return 3 * self.n_features

    def statistic(self, record: Record) -> jax.Array:
        """``(x, x^2 - 1/2, 1/2)`` of each column; zeros where the cell is missing."""
        known = jnp.isfinite(record["x"])
        x = jnp.clip(jnp.where(known, record["x"], 0), -1, 1)
        return jnp.concatenate([x, (x**2 - 0.5) * known, 0.5 * known])

    def statistic_bound(self) -> float:
        """Largest norm of `statistic`.

        A column adds ``x^2 + (x^2 - 1/2)^2 + 1/4 = x^4 + 1/2`` to its square, at most 3/2.
        """
        return math.sqrt(1.5 * self.n_features)

    def noisy_posterior(self, total: np.ndarray, scale: float, n_records: int) -> NoisyMoments:
        """Moments from sums with noise of standard deviation `scale`; `n_records` is not used.

        The floor of a variance is the value that noise alone could produce.
        """
        del n_records
        first, second, half = np.split(np.asarray(total, float), 3)
        # A count has twice the error of its half.
        count = np.maximum(2 * half, max(1.0, 4 * scale))
        mean = np.clip(first / count, -1, 1)
        floor = np.minimum(1, 2 * scale / count)
        return NoisyMoments(
            mean, np.clip((second + half) / count - mean**2, np.maximum(floor, 1e-12), 1)
        )


@pytree
@dataclass(frozen=True)
class BoundedScore:
    """Sums of one number in [0, 1] per record, ``{"x": ()}``, and of what it lacks to one.

    So the number of records that have a score costs nothing more: both together are no longer
    than 1.
    """

    n_statistics = 2

    def statistic_bound(self) -> float:
        """Largest norm of `statistic`."""
        return 1.0

    def statistic(self, record: Record) -> jax.Array:
        """``(x, 1 - x)``, x clipped to [0, 1]; zeros for a NaN."""
        x = jnp.clip(record["x"], 0, 1)
        return jnp.where(jnp.isnan(x), 0, jnp.stack([x, 1 - x]))
