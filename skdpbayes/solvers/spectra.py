"""What can be said of a matrix seen with noise.

A symmetric p x p matrix whose entries off the diagonal have noise of a known variance, those on it
of twice that: a curvature that was released. For NumPy's arrays and JAX's, where they take `xp`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats
from scipy.special import gammaincinv

_TINY = float(np.finfo(np.float32).tiny)


def mean_curvature(matrix, entry_variance):
    """Mean eigenvalue, shrunk to zero by the noise's share of its square."""
    p = len(matrix)
    mean = (matrix.trace() / p).clip(0)
    return mean * (1 - 2 * entry_variance / p / (mean**2).clip(_TINY)).clip(0, 1)


def mean_curvature_error(p, entry_variance):
    """Standard error of the mean eigenvalue."""
    return (2 * entry_variance / p) ** 0.5


def noise_edge(p, entry_variance):
    """Largest eigenvalue of nothing but noise, nearly (the edge of Wigner's semicircle)."""
    return 2 * (p * entry_variance) ** 0.5


def known_spectrum(matrix, entry_variance):
    """Eigenvalues of the learnt curvature, zero below the edge of the noise; eigenvectors; levels.

    Levels are the eigenvalues, but not less than the error with which they are known.
    """
    learnt, error = learnt_curvature(matrix, entry_variance, jnp)
    values, vectors = jnp.linalg.eigh(learnt, symmetrize_input=False)
    known = jnp.where(values > noise_edge(len(matrix), entry_variance), values, 0)
    return known, vectors, jnp.maximum(values, error)


def standing_out(values, entry_variance, xp):
    """Which eigenvalues exceed the mean of the others by more than noise does, and that mean."""
    edge, rest = noise_edge(len(values), entry_variance), 0.0
    for _ in range(5):  # noise lifts some of the others too, at first
        known = values > xp.maximum(rest, 0) + edge
        rest = xp.sum(xp.where(known, 0, values)) / xp.maximum(xp.sum(~known), 1)
    return known, rest


def denoised(matrix, entry_variance):
    """Shrink towards a multiple of the identity, by the noise's share of the matrix's spread.

    As Ledoit and Wolf's estimator, except that the noise's share is known: p (p + 1) times
    `entry_variance` against the squared distance from the identity's multiple.
    """
    p = len(matrix)
    centre = mean_curvature(matrix, entry_variance) * np.eye(p, dtype=matrix.dtype)
    spread = ((matrix - centre) ** 2).sum()
    kept = (1 - p * (p + 1) * entry_variance / spread.clip(_TINY)).clip(0, 1)
    return centre + kept * (matrix - centre)


def learnt_curvature(matrix, entry_variance, xp):
    """The part of the spectrum that stands out of the noise, and the diagonal of the rest; positive semi-definite.

    A diagonal entry has far less noise than the edge of the spectrum. It is shrunk towards the mean
    of all by the noise's share of their variance. Returned with the standard error of the result in
    a direction outside of that part.
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


def possible_eigenvalues(values, entry_variance):
    """What the eigenvalues of a learnt curvature may be: quantiles, of shape (64, p), of gamma distributions.

    One that is far from the others is known but for the noise of an entry on the diagonal. Among
    many that are near each other noise, which hides differences of about sqrt(p v), leaves little
    but their mean: v is `entry_variance`. Where it leaves nothing, a shape of 2 stands for what
    curvatures differ by.
    """
    p = len(values)
    near = 1 / (1 + (values[:, None] - values) ** 2 / (p * entry_variance + _TINY))
    spread = entry_variance * (1 + near.sum(axis=1))
    shape = (values**2 / (spread + _TINY)).clip(2, 1e12)
    quantiles = (np.arange(64)[:, None] + 0.5) / 64
    return values * gammaincinv(shape, quantiles) / shape


def cautious_curvature(matrix, entry_variance):
    """What stands out of the spectrum on either side, shrunk by what noise added to it, and the diagonal of the rest.

    An eigenvalue at distance l from the mean of the others is seen at ``(l^2 + p v) / l``, and its
    vector has squared cosine ``1 - p v / l^2`` with the true one (v is `entry_variance`): the best
    multiple of the seen vector's square is ``sqrt(seen^2 - 4 p v)`` (Donoho, Gavish and Johnstone
    2018). What does not stand out is taken for a diagonal with positive entries (`_positive_mean`),
    whatever small eigenvalues it had: as a curvature that is cautious, steps by it are rather too
    short.
    """
    p = len(matrix)
    values, vectors = jnp.linalg.eigh(matrix)
    edge, centre = noise_edge(p, entry_variance), jnp.zeros(())
    for _ in range(5):  # noise lifts some of the others too, at first
        out = jnp.abs(values - centre) > edge
        centre = jnp.maximum(jnp.sum(jnp.where(out, 0, values)) / jnp.maximum(jnp.sum(~out), 1), 0)
    distance = values - centre
    kept = jnp.where(out, jnp.sign(distance) * jnp.sqrt((distance**2 - edge**2).clip(0)), 0)
    outside = (vectors * kept) @ vectors.T
    rest = _positive_mean(jnp.diag(matrix - outside), 2 * entry_variance)
    values, vectors = jnp.linalg.eigh(outside + jnp.diag(rest))
    known = (vectors * values.clip(mean_curvature_error(p, entry_variance))) @ vectors.T
    return jnp.where(out.all(), matrix, known)  # without noise


def _positive_mean(x, variance):
    """Posterior means of positive numbers seen with normal noise, under an exponential prior with their mean."""
    sd = jnp.sqrt(variance) + _TINY
    mean = jnp.maximum(x.mean(), sd / len(x) ** 0.5)
    return _positive_normal(x - sd**2 / mean, sd)


def estimated_curvature(matrix, entry_variance):
    """The best estimate with the eigenvectors of the noisy matrix.

    An eigenvalue `x` becomes ``x - 2 p v h(x)``, h being the Hilbert transform of the spectrum,
    here the mean over the others of ``1 / (x - x')``, which takes back what noise did to the
    eigenvalue and to the eigenvector's direction (Bun, Allez, Bouchaud and Potters 2016, equation
    for additive noise).
    """
    p = len(matrix)
    values, vectors = jnp.linalg.eigh(matrix)
    width = noise_edge(p, entry_variance) / p ** (2 / 3) + _TINY
    apart = values[:, None] - values
    transform = jnp.mean(apart / (apart**2 + width**2), axis=1)
    return (vectors * (values - 2 * p * entry_variance * transform).clip(0)) @ vectors.T


def shrunk_products(products, entry_variance, total_weight, *, intercept):
    """Sums of products ``x x'`` cleared of noise, and the posterior variance of an entry off the diagonal.

    Sums of squares are shrunk to their mean, sums of features and covariances of two features to
    zero, each kind by what the noise allows (`kept`), and the covariance that follows is made
    positive. With an intercept the last entry is the sum of the weights.

    Parameters
    ----------
    products : array of shape (d, d)
        Symmetric.
    entry_variance : float
    total_weight : float
        Of the records.
    intercept : bool
        Whether the last column is constant.
    """
    d, variance = len(products) - intercept, 2 * entry_variance  # of an entry on the diagonal
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


def _positive_normal(mean, sd):
    """Means of normal variables that are known to be positive."""
    z = mean / sd
    return (mean + sd * jnp.exp(stats.norm.logpdf(z) - stats.norm.logcdf(z))).clip(1e-9 * sd)


def kept(size, entries, noise):
    """Posterior mean of normal variables as a share of what was observed, and their variance.

    Variables from N(0, v) are observed with noise; ``noise / (v + noise)`` has, under a flat prior
    on its logarithm, a gamma distribution cut at 1 (Strawderman 1971), and its mean is the share
    that is not kept.

    Parameters
    ----------
    size : float
        Sum of the squares of the observations.
    entries : int
    noise : float
        Variance.
    """
    if entries <= 0:
        return jnp.ones(()), noise
    # The distribution of the share that is lost, on a grid: compilers make short work of it, not of
    # a gamma function.
    shape, rate = entries / 2, size / (2 * noise).clip(_TINY)
    top, width = jnp.log(jnp.minimum(1, shape / rate.clip(_TINY))), 12 / shape**0.5 + 12 / shape
    log_lost = jnp.linspace(top - width, jnp.minimum(0, top + width), 3000)
    mass = jax.nn.softmax(shape * log_lost - rate * jnp.exp(log_lost))
    lost = mass @ jnp.exp(log_lost)
    spread = mass @ (jnp.exp(log_lost) - lost) ** 2
    return 1 - lost, jnp.minimum(noise * (1 - lost) + spread * size / entries, noise)
