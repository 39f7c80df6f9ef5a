"""Renyi differential privacy of the Poisson-subsampled Gaussian mechanism, by quadrature.

One formula serves all orders and adjacencies: the Renyi divergence of the dominating pair,
integrated by the trapezoidal rule, which converges exponentially for these integrands: they are
analytic in a strip of half-width ``pi sigma**2`` about the real line, and the step keeps the error
below 1e-17. Under ``zero_out`` and ``add_remove`` the `remove` direction is the larger one at every
order (Mironov, Talwar and Zhang 2019, theorem 5).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpbayes.privacy.accounting._pair import Pair
from skdpbayes.privacy.accounting._steps import GaussianSteps

Floats = NDArray[np.float64]

ORDERS: Floats = np.concatenate(
    (
        1.0 + np.geomspace(0.01, 1.0, 12)[:-1],
        np.arange(2.0, 6.0, 0.5),
        np.arange(6.0, 24.0),
        np.unique(np.round(np.geomspace(24.0, 20000.0, 40))),
    )
)
_MAX_POINTS = 2**13
_SLACK = 1e-15  # rounding of one round's divergence, charged upwards


@functools.lru_cache(maxsize=256)
def step_rdp(
    sigma: float, rate: float, replace: bool, orders: tuple[float, ...] | None = None
) -> Floats:
    """Return the Renyi divergence of one round at `orders` (default `ORDERS`).

    Parameters
    ----------
    sigma, rate : float
        Noise multiplier (above 0) and sampling rate.
    replace : bool
        Whether the pair is the antipodal one of ``replace_one``.
    orders : tuple of float, optional
        Above 1.

    Returns
    -------
    ndarray of shape (n_orders,), read-only
        Infinity where the quadrature would need more than 2**13 points (high orders with little
        noise).
    """
    alphas = ORDERS if orders is None else np.asarray(orders, dtype=float)
    if rate == 1.0:
        values = alphas * (4.0 if replace else 1.0) / (2.0 * sigma**2)
    else:
        pair = Pair("replace" if replace else "remove", sigma, rate)
        values = np.array([_divergence(pair, float(alpha)) for alpha in alphas]) + _SLACK
    values.flags.writeable = False
    return values


def _divergence(pair: Pair, order: float) -> float:
    sigma = pair.sigma
    replace = pair.kind == "replace"
    step = min(sigma / 1.6, sigma**2 / 3.0)
    bottom = -10.0 * sigma - (order if replace else 0.0)
    top = 10.0 * sigma + (2.0 * order if replace else order)
    points = math.ceil((top - bottom) / step) + 1
    if points > _MAX_POINTS:
        return math.inf
    x: Floats = bottom + step * np.arange(points, dtype=float)
    exponent = -0.5 * (x / sigma) ** 2 + order * pair.ratio(x)
    if replace:
        exponent -= (order - 1.0) * pair.ratio(-x)
    top_exponent = float(exponent.max())
    total = float(np.sum(np.exp(np.maximum(exponent - top_exponent, -700.0))))
    log_moment = top_exponent + math.log(total * step / (sigma * math.sqrt(2.0 * math.pi)))
    return max(log_moment, 0.0) / (order - 1.0)


def rdp_at(blocks: Iterable[GaussianSteps], order: float, adjacency: str) -> float:
    """Return the composed Renyi divergence at one order, which need not be one of `ORDERS`."""
    replace = adjacency == "replace_one"
    rounds = (
        (b.steps, step_rdp(b.noise_multiplier, b.sampling_rate, replace, (order,))) for b in blocks
    )
    return math.fsum(count * float(each[0]) for count, each in rounds)


def total_rdp(blocks: Iterable[GaussianSteps], adjacency: str) -> Floats:
    """Return the composed Renyi divergence at `ORDERS`: divergences of the rounds add up."""
    replace = adjacency == "replace_one"
    total = np.zeros(ORDERS.size)
    for block in blocks:
        total = total + block.steps * step_rdp(block.noise_multiplier, block.sampling_rate, replace)
    return total


def rdp_epsilon(rdp: Floats, delta: float, orders: Floats = ORDERS) -> float:
    """Convert to epsilon at `delta` (Canonne, Kamath and Steinke 2020, proposition 12)."""
    values = rdp + np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1.0)
    return max(float(np.min(values)), 0.0)


def rdp_delta(rdp: Floats, epsilon: ArrayLike, orders: Floats = ORDERS) -> Floats:
    """Convert to delta at `epsilon` (any shape), by the same proposition."""
    eps = np.asarray(epsilon, dtype=float)[..., None]
    with np.errstate(over="ignore"):
        exponent = (orders - 1.0) * (rdp - eps + np.log1p(-1.0 / orders)) - np.log(orders)
        deltas: Floats = np.minimum(np.exp(np.min(exponent, axis=-1)), 1.0)
        return deltas


def log_moment_radius(rdp: Floats, probability: float, orders: Floats = ORDERS) -> float:
    """Return L such that the composed loss leaves [-L, L] with at most `probability` (Chernoff)."""
    upper = float(np.min(rdp - math.log(probability / 2.0) / (orders - 1.0)))
    return max(upper, 0.0)
