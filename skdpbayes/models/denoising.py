"""Estimates of a symmetric matrix that is observed with Gaussian noise.

The noise is independent between the p (p + 1) / 2 entries of the p x p matrix. Its variance is
known off the diagonal, and twice as large on it. Such matrices are released curvatures and released
sums of products. Functions with an argument `xp` are for arrays of NumPy and of JAX.
``docs/solvers/dpvi.md`` and ``docs/solvers/na-dpvi.md`` say which estimate is used where, and why.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats
from scipy.special import ndtri

_TINY = float(np.finfo(np.float32).tiny)


def mean_curvature(matrix: Any, entry_variance: Any) -> Any:
    """Mean eigenvalue, shrunk to zero by the noise's share of its square."""
    p = len(matrix)
    mean = (matrix.trace() / p).clip(0)
    return mean * (1 - 2 * entry_variance / p / (mean**2).clip(_TINY)).clip(0, 1)


def mean_curvature_error(p: int, entry_variance: Any) -> Any:
    """Standard error of the mean eigenvalue."""
    return (2 * entry_variance / p) ** 0.5


def noise_edge(p: int, entry_variance: Any) -> Any:
    """Approximate largest eigenvalue of pure noise (the edge of Wigner's semicircle)."""
    return 2 * (p * entry_variance) ** 0.5


def known_spectrum(matrix: jax.Array, entry_variance: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvectors of the learnt curvature, and levels.

    Levels are the eigenvalues, not below their standard error.
    """
    learnt, error = learnt_curvature(matrix, entry_variance, jnp)
    values, vectors = jnp.linalg.eigh(learnt, symmetrize_input=False)
    return vectors, jnp.maximum(values, error)


def standing_out(values: Any, entry_variance: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Mask of eigenvalues that exceed the mean of the others by more than noise, and that mean."""
    edge, rest = noise_edge(len(values), entry_variance), 0.0
    for _ in range(5):  # the mean falls as eigenvalues are taken out
        known = values > xp.maximum(rest, 0) + edge
        rest = xp.sum(xp.where(known, 0, values)) / xp.maximum(xp.sum(~known), 1)
    return known, rest


def denoised(matrix: Any, entry_variance: Any) -> Any:
    """Matrix shrunk towards a multiple of the identity, by the noise's share of its spread.

    The estimator of Ledoit and Wolf (2004) with a known share: p (p + 1) times `entry_variance`
    over the squared distance from the multiple of the identity.
    """
    p = len(matrix)
    centre = mean_curvature(matrix, entry_variance) * np.eye(p, dtype=matrix.dtype)
    return centre + share_told(matrix - centre, entry_variance) * (matrix - centre)


def share_told(difference: Any, entry_variance: Any, entries: float | None = None) -> Any:
    """Share of the squared size of a difference of matrices that is no noise.

    `entries` is twice the number of independent entries: None means all.
    """
    p = len(difference)
    entries = p * (p + 1) if entries is None else entries
    size = (difference**2).sum()
    return (1 - entries * entry_variance / size.clip(_TINY)).clip(0, 1)


def learnt_curvature(matrix: Any, entry_variance: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Eigenvalues that stand out of the noise, plus the diagonal of the rest; and its error.

    The result is positive semi-definite. A diagonal entry has far less noise than the edge of the
    spectrum; it is shrunk towards the mean of the diagonal by the noise's share of the variance.
    The error is the standard error in a direction outside the part that stands out.
    """
    p = len(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    out, centre = standing_out(values, entry_variance, xp)
    out = (vectors * xp.where(out, values - xp.maximum(centre, 0), 0)) @ vectors.T
    rest = xp.diag(matrix - out)
    kept = (1 - 2 * entry_variance / xp.maximum(rest.var(), _TINY)).clip(0, 1)
    rest = rest.mean() + kept * (rest - rest.mean())
    error = (2 * entry_variance * (kept**2 + 1 / p)) ** 0.5
    return out + xp.diag(rest.clip(0)), error


def possible_eigenvalues(values: Any, entry_variance: Any, n: int, xp: ModuleType) -> Any:
    """Plausible eigenvalues of a noisy curvature: quantiles of gamma distributions, (n, p).

    An isolated eigenvalue is uncertain by the noise of one diagonal entry. Noise hides differences
    of about sqrt(p v), with v the `entry_variance`: of many eigenvalues close together, little but
    their mean is known. Where nothing is known, a shape of 2 is the prior spread of curvatures.
    Quantiles are those of Wilson and Hilferty (1931).
    """
    p = len(values)
    near = 1 / (1 + (values[:, None] - values) ** 2 / (p * entry_variance + _TINY))
    spread = entry_variance * (1 + near.sum(axis=1))
    shape = (values**2 / (spread + _TINY)).clip(2, 1e12)
    quantiles = ndtri((np.arange(n)[:, None] + 0.5) / n)
    return values * (1 - 1 / (9 * shape) + quantiles / (3 * xp.sqrt(shape))).clip(0) ** 3


def cautious_curvature(matrix: jax.Array, entry_variance: jax.Array) -> jax.Array:
    """Shrunk eigenvalues that stand out on either side, plus a positive diagonal for the rest.

    An eigenvalue at distance l from the mean of the others is observed at ``(l^2 + p v) / l``, and
    its vector has squared cosine ``1 - p v / l^2`` with the true one (v is `entry_variance`). The
    best multiple of the observed vector's outer square is ``sqrt(observed^2 - 4 p v)`` (Donoho,
    Gavish and Johnstone 2018). The rest becomes a diagonal with positive entries
    (`_positive_mean`), whatever small eigenvalues it had. The estimate is high rather than low, so
    that steps by it are short.
    """
    p = len(matrix)
    values, vectors = jnp.linalg.eigh(matrix)
    edge, centre = noise_edge(p, entry_variance), jnp.zeros(())
    for _ in range(5):  # the mean falls as eigenvalues are taken out
        out = jnp.abs(values - centre) > edge
        centre = jnp.maximum(jnp.sum(jnp.where(out, 0, values)) / jnp.maximum(jnp.sum(~out), 1), 0)
    distance = values - centre
    kept = jnp.where(out, jnp.sign(distance) * jnp.sqrt((distance**2 - edge**2).clip(0)), 0)
    outside = (vectors * kept) @ vectors.T
    rest = _positive_mean(jnp.diag(matrix - outside), 2 * entry_variance)
    values, vectors = jnp.linalg.eigh(outside + jnp.diag(rest))
    # If nothing is left for the rest, as without noise, the matrix is kept.
    own_values, own_vectors = jnp.linalg.eigh(matrix)
    values = jnp.where(out.all(), own_values, values).clip(mean_curvature_error(p, entry_variance))
    vectors = jnp.where(out.all(), own_vectors, vectors)
    return (vectors * values) @ vectors.T


def _positive_mean(x: jax.Array, variance: jax.Array) -> jax.Array:
    """Posterior means of positive numbers observed with normal noise.

    The prior is exponential with their mean.
    """
    sd = jnp.sqrt(variance) + _TINY
    mean = jnp.maximum(x.mean(), sd / len(x) ** 0.5)
    return _positive_normal(x - sd**2 / mean, sd)


def estimated_curvature(matrix: jax.Array, entry_variance: jax.Array) -> jax.Array:
    """Best estimate with the eigenvectors of the noisy matrix.

    An eigenvalue `x` becomes ``x - 2 p v h(x)``. Here h is the Hilbert transform of the spectrum,
    the mean over the others of ``1 / (x - x')``. This corrects the effect of noise on the
    eigenvalue and on the direction of its vector (rotationally invariant estimator for additive
    noise: Bun, Allez, Bouchaud and Potters 2016).
    """
    p = len(matrix)
    values, vectors = jnp.linalg.eigh(matrix)
    width = noise_edge(p, entry_variance) / p ** (2 / 3) + _TINY
    apart = values[:, None] - values
    transform = jnp.mean(apart / (apart**2 + width**2), axis=1)
    return (vectors * (values - 2 * p * entry_variance * transform).clip(0)) @ vectors.T


def shrunk_products(
    products: jax.Array,
    entry_variance: jax.Array,
    total_weight: jax.Array | float,
    *,
    intercept: bool,
) -> tuple[jax.Array, jax.Array]:
    """Denoised sums of products ``x x'``, and the posterior variance of an off-diagonal entry.

    Sums of squares are shrunk to their mean; sums of features and covariances of two features are
    shrunk to zero. Each kind has its own share (`kept`). The resulting covariance is made positive.
    With an intercept the last entry is the sum of the weights.

    Parameters
    ----------
    products : array of shape (d, d)
        Symmetric.
    entry_variance : float
    total_weight : float
        Sum of the records' weights.
    intercept : bool
        Whether the last column is constant.
    """
    d, variance = len(products) - intercept, 2 * entry_variance  # variance of a diagonal entry
    inner, by_means = products[:d, :d], jnp.zeros((d, d))
    if intercept:
        sums = products[-1, :d]
        sums = kept(2 * jnp.sum(sums**2), d, variance)[0] * sums
        by_means = jnp.outer(sums, sums) / total_weight
    squares = jnp.diag(inner)
    mean = squares.mean().clip(0)
    squares = mean + kept(jnp.sum((squares - mean) ** 2), d - 1, variance)[0] * (squares - mean)
    others = (inner - by_means) * (1 - jnp.eye(d))
    share, left = kept(jnp.sum(others**2), d * (d - 1) // 2, variance)
    values, vectors = jnp.linalg.eigh(share * others + jnp.diag(squares - jnp.diag(by_means)))
    inner = (
        vectors * _positive_normal(values, jnp.sqrt(left) + 1e-12 * jnp.sum(squares))
    ) @ vectors.T + by_means
    if not intercept:
        return inner, left / 2
    return jnp.block(
        [[inner, sums[:, None]], [sums[None], jnp.full((1, 1), total_weight)]]
    ), left / 2


def _positive_normal(mean: jax.Array, sd: jax.Array) -> jax.Array:
    """Means of normal variables truncated to positive values."""
    z = mean / sd
    return (mean + sd * jnp.exp(stats.norm.logpdf(z) - stats.norm.logcdf(z))).clip(1e-9 * sd)


def kept(size: jax.Array | float, entries: int, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Posterior mean of normal variables as a share of their observations, and their variance.

    Variables from N(0, v) are observed with noise. Under a flat prior on its logarithm, the share
    lost, ``noise / (v + noise)``, has a gamma distribution truncated at 1 (Strawderman 1971).

    Parameters
    ----------
    size : float
        Sum of the squares of the observations.
    entries : int
    noise : float
        Variance of the noise.
    """
    if entries <= 0:
        return jnp.ones(()), noise
    # Distribution of the share lost, on a grid, which compiles faster than a gamma function.
    shape, rate = entries / 2, size / (2 * noise).clip(_TINY)
    top, width = jnp.log(jnp.minimum(1, shape / rate.clip(_TINY))), 12 / shape**0.5 + 12 / shape
    log_lost = jnp.linspace(top - width, jnp.minimum(0, top + width), 3000)
    mass = jax.nn.softmax(shape * log_lost - rate * jnp.exp(log_lost))
    lost = mass @ jnp.exp(log_lost)
    spread = mass @ (jnp.exp(log_lost) - lost) ** 2
    return 1 - lost, jnp.minimum(noise * (1 - lost) + spread * size / entries, noise)
