"""Linear regression on sums of products, released once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.models.linear import LinearRegression
from skdpbayes.models.protocols import Number, Record
from skdpbayes.posteriors.base import DrawsPosterior
from skdpbayes.posteriors.linear import Moments, NormalInverseGamma, Prior, moments_posterior
from skdpbayes.pytrees import pytree

# Factors of x y, y^2 and 1, in units of `row_norm` or its square. The first two are near-optimal
# for coefficients of a few tenths and a small noise variance; the third may be smaller, as the sum
# of weights needs less precision.
_CROSS, _SQUARE, _COUNT = 1.4, 0.5, 0.5


@pytree
@dataclass(frozen=True)
class LinearSums(LinearRegression):
    """`LinearRegression` by a bounded statistic of each record.

    It is ``k (x x', 1.4 R x y, R^2 y^2 / 2, R^2 / 2)`` with R = `row_norm`. Responses are clipped
    to [-1, 1]. A row longer than R has the weight ``k = R^2 / |x|^2``, others 1, null records 0.
    The weight does not depend on the response: this is weighted least squares, without bias. The
    last entry gives the sum of the weights.

    Attributes
    ----------
    row_norm : float
    intercept : bool
        Whether the last column is constant.
    """

    row_norm: Number
    intercept: bool = field(metadata={"static": True})

    def statistic(self, record: Record) -> jax.Array:
        """Statistic of one record, of shape (n_statistics,)."""
        known, x = jnp.isfinite(record["y"]), record["x"]
        y = jnp.clip(jnp.where(known, record["y"], 0), -1, 1)
        norm, square = self.row_norm, jnp.sum(x**2)
        weight = jnp.where(square > norm**2, norm**2 / square, 1) * known
        scalars = jnp.stack([_SQUARE * (norm * y) ** 2, _COUNT * norm**2])
        return weight * jnp.concatenate([jnp.outer(x, x).ravel(), _CROSS * norm * x * y, scalars])

    def statistic_bound(self) -> float:
        """Largest norm of `statistic`, as ``k |x|^2 <= R^2``: a row of norm R with response 1."""
        return float(self.row_norm) ** 2 * math.hypot(1, _CROSS, _SQUARE, _COUNT)

    @property
    def n_statistics(self) -> int:
        """Length of `statistic`."""
        return self.n_columns**2 + self.n_columns + 2

    def noisy_posterior(
        self, total: np.ndarray, scale: float, n_records: int
    ) -> NormalInverseGamma | DrawsPosterior:
        """Posterior of (log variance, w) given the noisy sum of statistics; needs a `unit` of 1."""
        p, norm = self.n_columns, float(self.row_norm)
        b, c, h = _CROSS * norm, _SQUARE * norm**2, _COUNT * norm**2
        gram = total[: p * p].reshape(p, p)
        moments = Moments(
            (gram + gram.T) / 2,
            total[p * p : -2] / b,
            total[-2] / c,
            total[-1] / h,
            n_records,
            (scale, scale / b, scale / c, scale / h),
            norm,
        )
        prior = Prior(float(self.precision), float(self.shape), float(self.scale))
        return moments_posterior(moments, prior, intercept=self.intercept)
