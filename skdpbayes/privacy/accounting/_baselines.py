"""The accountants of earlier papers, for comparison, and the cost of truncated batches.

All are upper bounds, ordered here from the loosest. They bound ``zero_out`` and ``add_remove`` with
sensitivity C and ``replace_one`` with sensitivity 2C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy import special

from skdpbayes.privacy.accounting._curve import compose
from skdpbayes.privacy.accounting._gaussian import gaussian_epsilon
from skdpbayes.privacy.accounting._rdp import step_rdp
from skdpbayes.privacy.accounting._steps import (
    GaussianSteps,
    as_steps,
    check_adjacency,
    check_count,
    check_delta,
    check_epsilon,
    check_sampling_rate,
)

Blocks = tuple[GaussianSteps, ...]

_MOMENT_ORDERS = tuple(float(order) for order in range(2, 66))  # lambda = order - 1 up to 64


def _sensitivity(adjacency: str) -> float:
    return 2.0 if check_adjacency(adjacency) == "replace_one" else 1.0


def _amplified(steps: Blocks, delta: float, adjacency: str) -> list[tuple[float, int]]:
    """Return (epsilon of one round, rounds) when every round may spend the same share of `delta`.

    One unsampled round is the Gaussian mechanism, exact, at delta0; sampling turns (e0, delta0)
    into (log(1 + q (exp(e0) - 1)), q delta0) (Li, Qardaji and Su 2012, theorem 1).
    """
    total = sum(block.steps for block in steps)
    out = []
    for block in steps:
        share = min(delta / total / block.sampling_rate, 0.5)
        unsampled = gaussian_epsilon(share, _sensitivity(adjacency) / block.noise_multiplier)
        # log(1 + q (exp(e) - 1)) without overflow
        amplified = float(
            np.logaddexp(
                math.log(block.sampling_rate) + unsampled, math.log1p(-block.sampling_rate)
            )
            if block.sampling_rate < 1.0
            else unsampled
        )
        out.append((amplified, block.steps))
    return out


def _no_noise(steps: Blocks) -> bool:
    return any(block.noise_multiplier == 0.0 for block in steps)


def linear_epsilon(steps: Blocks, delta: float, adjacency: str) -> float:
    """Basic composition of amplified Gaussian rounds (Dwork and Roth 2014, theorem 3.16)."""
    if _no_noise(steps):
        return math.inf
    return sum(count * eps for eps, count in _amplified(steps, delta, adjacency))


def advanced_epsilon(steps: Blocks, delta: float, adjacency: str) -> float:
    """Advanced composition of amplified Gaussian rounds (Dwork and Roth 2014, theorem 3.20)."""
    if _no_noise(steps):
        return math.inf

    def bound(share: float) -> float:
        rounds = _amplified(steps, (1.0 - share) * delta, adjacency)
        squares = sum(count * eps * eps for eps, count in rounds)
        drift = sum(
            count * eps * (math.expm1(eps) if eps < 700.0 else math.inf) for eps, count in rounds
        )
        return math.sqrt(2.0 * squares * math.log(1.0 / (share * delta))) + drift

    return min(bound(float(share)) for share in np.geomspace(1e-3, 0.9, 40))


def zcdp_epsilon(steps: Blocks, delta: float, adjacency: str) -> float:
    """Zero-concentrated privacy without amplification.

    Bun and Steinke (2016), propositions 1.3 and 1.6.
    """
    if _no_noise(steps):
        return math.inf
    squared = _sensitivity(adjacency) ** 2
    rho = sum(squared * block.steps / (2.0 * block.noise_multiplier**2) for block in steps)
    return rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))


def moments_epsilon(steps: Blocks, delta: float, adjacency: str) -> float:
    """Moments accountant (Abadi et al. 2016, theorem 2).

    Integer moments up to 64, and Markov's inequality.
    """
    if _no_noise(steps):
        return math.inf
    replace = check_adjacency(adjacency) == "replace_one"
    total = np.zeros(len(_MOMENT_ORDERS))
    for block in steps:
        total = total + block.steps * step_rdp(
            block.noise_multiplier, block.sampling_rate, replace, _MOMENT_ORDERS
        )
    return float(np.min(total - math.log(delta) / (np.array(_MOMENT_ORDERS) - 1.0)))


def baselines(
    steps: GaussianSteps | Iterable[GaussianSteps], delta: float, adjacency: str = "zero_out"
) -> dict[str, float]:
    """Return epsilon by the accountants of the literature, side by side.

    Parameters
    ----------
    steps : GaussianSteps or iterable of GaussianSteps
    delta : float
    adjacency : {"zero_out", "add_remove", "replace_one"}

    Returns
    -------
    dict of str to float
        ``"zcdp"`` (no amplification), ``"linear"``, ``"advanced"`` (both with amplification),
        ``"moments"``, ``"rdp"`` and ``"pld"``. All are upper bounds, of the same release.

    Examples
    --------
    >>> from skdpbayes.privacy import GaussianSteps, baselines
    >>> rounds = GaussianSteps(noise_multiplier=2.0, sampling_rate=0.01, steps=1000)
    >>> found = baselines(rounds, delta=1e-5)
    >>> sorted(found, key=found.get)
    ['pld', 'rdp', 'moments', 'advanced', 'linear', 'zcdp']
    """
    blocks, delta = as_steps(steps), check_delta(delta)
    curve = compose(blocks, adjacency)
    earlier: dict[str, Callable[[Blocks, float, str], float]] = {
        "zcdp": zcdp_epsilon,
        "linear": linear_epsilon,
        "advanced": advanced_epsilon,
        "moments": moments_epsilon,
    }
    table = {name: function(blocks, delta, adjacency) for name, function in earlier.items()}
    return table | {"rdp": curve.rdp_epsilon(delta), "pld": curve.epsilon(delta)}


def truncation_delta(
    n_records: int, sampling_rate: float, batch_bound: int, steps: int, epsilon: float
) -> float:
    """Return the delta to add when Poisson batches longer than `batch_bound` are cut.

    Cut and uncut runs differ with probability at most ``T P[Bin(N, q) > B]`` on either of two
    neighbouring data sets; passing from one to the other and back costs ``(1 + exp(epsilon))``
    times that.

    Parameters
    ----------
    n_records : int
        Number of records N, which this presumes public.
    sampling_rate : float
    batch_bound : int
        Largest batch B kept, at least 0.
    steps : int
        Number of rounds T.
    epsilon : float
        At which the sum is reported.

    Returns
    -------
    float
        In [0, 1]; 0 when a batch cannot be longer than `batch_bound`.

    Examples
    --------
    >>> from skdpbayes.privacy import truncation_delta
    >>> truncation_delta(10_000, 0.01, batch_bound=200, steps=1000, epsilon=1.0) < 1e-10
    True
    """
    n, count = check_count(n_records, "n_records"), check_count(steps, "steps")
    rate, epsilon = check_sampling_rate(sampling_rate), check_epsilon(epsilon)
    if batch_bound != int(batch_bound) or batch_bound < 0:
        raise ValueError(f"batch_bound must be a whole number, at least 0, got {batch_bound!r}.")
    if batch_bound >= n:
        return 0.0
    # P[Bin(N, q) > B] as an incomplete beta function: relative accuracy down to 1e-300.
    tail = float(special.betainc(batch_bound + 1.0, float(n - batch_bound), rate))
    if tail == 0.0:
        tail = 1e-300
    log_delta = math.log(count) + math.log(tail) + float(np.logaddexp(0.0, epsilon))
    return min(math.exp(min(log_delta, 0.0)), 1.0)


def smallest_batch_bound(
    n_records: int, sampling_rate: float, steps: int, epsilon: float, delta: float
) -> int:
    """Return the smallest batch bound whose `truncation_delta` is at most `delta`.

    Examples
    --------
    >>> from skdpbayes.privacy import smallest_batch_bound, truncation_delta
    >>> bound = smallest_batch_bound(10_000, 0.01, steps=1000, epsilon=1.0, delta=1e-10)
    >>> truncation_delta(10_000, 0.01, bound, 1000, 1.0) <= 1e-10
    True
    >>> truncation_delta(10_000, 0.01, bound - 1, 1000, 1.0) <= 1e-10
    False
    """
    delta = check_delta(delta)
    low, high = -1, check_count(n_records, "n_records")
    while high - low > 1:
        middle = (low + high) // 2
        if truncation_delta(n_records, sampling_rate, middle, steps, epsilon) <= delta:
            high = middle
        else:
            low = middle
    return high
