"""A second opinion: fourier-accountant (Koskela, Jalko and Honkela 2020) behind guards.

fourier-accountant shares no code and no discretisation with our PLD. Alone it is an estimate
without an error term and silently wrong when its grid does not resolve the loss or its window
wraps, so an answer counts only if

* the window holds all but a thousandth of delta (Chernoff, from RDP);
* on its very grid, (defect of the one-round mass) * (rounds) < 1e-2;
* doubling the grid changes delta by less than 1%.

The library does not handle sampling rate 1. Releases of all records have a normal loss: alone,
their delta is integrated by quadrature, which shares nothing with the closed form that reports use;
beside sampled rounds, the library's delta is averaged over that loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from skdpbayes.privacy.accounting._pair import Floats, Pair
from skdpbayes.privacy.accounting._rdp import log_moment_radius, rdp_epsilon, total_rdp
from skdpbayes.privacy.accounting._steps import (
    GaussianSteps,
    as_steps,
    check_adjacency,
    check_delta,
    check_epsilon,
    merge,
)

LOWEST_RATIO, HIGHEST_RATIO = 0.9, 1.01
_SIZES = tuple(2**k for k in range(15, 22))
_MASS_TOLERANCE = 1e-2
_CONVERGENCE = 1e-2
# Ratio of the outer nodes' deltas up to which three are right to 1% (for exponentials).
_STEEPEST = 30.0


class AccountingError(RuntimeError):
    """An accepted cross-check contradicts the reported epsilon: a bug; do not use the noise.

    Examples
    --------
    >>> from skdpbayes.privacy import AccountingError
    >>> issubclass(AccountingError, RuntimeError)
    True
    """


@dataclass(frozen=True)
class CrossCheck:
    """What an independent accountant says about a reported (epsilon, delta).

    Attributes
    ----------
    accepted : bool
        Whether its answer passed the guards, and so counts.
    reason : str
        Why it was rejected, or ``"converged"``.
    epsilon, delta : float
        The pair checked.
    estimate : float or None
        Its delta at `epsilon`, None when rejected.
    ratio : float or None
        ``estimate / delta``.
    points : int or None
        Size of its grid.
    accountant : {"fourier-accountant", "quadrature"}
        Who was asked: the second if every release is of all records.

    Examples
    --------
    >>> from skdpbayes.privacy import GaussianSteps, crosscheck
    >>> found = crosscheck(GaussianSteps(1.0, 0.01, 100), epsilon=0.1, delta=1e-5)  # far too low
    >>> found.disagrees, found.ratio > 1
    (True, True)
    """

    accepted: bool
    reason: str
    epsilon: float
    delta: float
    estimate: float | None = None
    ratio: float | None = None
    points: int | None = None
    accountant: str = "fourier-accountant"

    @property
    def disagrees(self) -> bool:
        """Whether an accepted estimate is more than 1% above `delta`, or more than 10% below."""
        return self.ratio is not None and not LOWEST_RATIO <= self.ratio <= HIGHEST_RATIO

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of plain Python values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        if not self.accepted:
            return f"{self.accountant} not applicable: {self.reason}"
        return (
            f"{self.accountant}: delta({self.epsilon:.4g}) is {self.ratio:.3f} of the reported "
            f"{self.delta:.3g}"
        )


def crosscheck(
    steps: GaussianSteps | Iterable[GaussianSteps],
    epsilon: float,
    delta: float,
    adjacency: str = "zero_out",
) -> CrossCheck:
    """Ask an independent accountant for delta at a reported epsilon.

    That is fourier-accountant, or quadrature if every release is of all records.

    Parameters
    ----------
    steps : GaussianSteps or iterable of GaussianSteps
    epsilon, delta : float
        As reported by another accountant.
    adjacency : {"zero_out", "add_remove", "replace_one"}
        The library covers the direction remove of the first two, and the substitution of the third.

    Returns
    -------
    CrossCheck
        Look at ``accepted`` and ``disagrees``; nothing is raised for a rejection or a disagreement.

    Examples
    --------
    >>> from skdpbayes.privacy import GaussianSteps, crosscheck, epsilon
    >>> rounds = GaussianSteps(noise_multiplier=1.0, sampling_rate=0.01, steps=100)
    >>> found = crosscheck(rounds, epsilon(rounds, 1e-5), 1e-5)
    >>> found.accepted, found.disagrees
    (True, False)
    """
    adjacency, delta, epsilon = (
        check_adjacency(adjacency),
        check_delta(delta),
        check_epsilon(epsilon),
    )
    blocks = merge(as_steps(steps))
    sampled = tuple(block for block in blocks if block.sampling_rate < 1.0)
    mu = math.fsum(
        _loss_std(block, adjacency) for block in blocks if block not in sampled
    )  # merged: one at most

    def reject(reason: str) -> CrossCheck:
        return CrossCheck(False, reason, epsilon, delta)

    if blocks[0].noise_multiplier == 0.0:
        return reject("no noise, nothing to check")
    if not 0.0 < epsilon < math.inf:
        return reject("the library needs a positive finite epsilon")
    if not sampled:
        estimate = _quadrature(epsilon, mu)
        return CrossCheck(
            True, "converged", epsilon, delta, estimate, estimate / delta, None, "quadrature"
        )
    if delta < 1e-10:
        return reject("delta is below the floor of an FFT")
    try:
        import fourier_accountant
    except ImportError:
        return reject("fourier-accountant is not installed")
    # Losses of the releases of all records: the nodes of Gauss and Hermite's rule of three points.
    spread = math.sqrt(3.0) * mu
    losses = (0.5 * mu**2 - spread, 0.5 * mu**2, 0.5 * mu**2 + spread)
    if not losses[-1] < epsilon:
        return reject("releases of all records have the larger part of the loss")
    # The library indexes its grid by log(1 - q), the smallest loss of a round: outside the window
    # the index turns negative, and NumPy silently counts it from the other end.
    smallest_loss = max(-math.log1p(-block.sampling_rate) for block in sampled)
    radius = max(
        log_moment_radius(total_rdp(sampled, adjacency), 1e-3 * delta),
        1.05 * (epsilon - losses[0]) + 1e-3,
        1.1 * smallest_loss,
    )
    if not math.isfinite(radius):
        return reject("no finite window")
    previous: float | None = None
    reason = "grid too coarse for one round"
    for size in _SIZES:
        if _mass_defect(sampled, adjacency, size, radius) >= _MASS_TOLERANCE:
            continue

        def library_delta(loss: float, size: int = size) -> float:
            return _library_delta(
                fourier_accountant, sampled, epsilon - loss, adjacency, size, radius
            )

        try:
            middle = library_delta(losses[1])
            if (
                previous is not None
                and abs(middle - previous) <= _CONVERGENCE * abs(middle)
                and middle > 0.0
            ):
                ends = (
                    (library_delta(losses[0]), library_delta(losses[2])) if mu else (middle, middle)
                )
                if not ends[1] <= _STEEPEST * ends[0]:
                    return reject("releases of all records have too large a part of the loss")
                estimate = (4.0 * middle + ends[0] + ends[1]) / 6.0
                return CrossCheck(
                    True, "converged", epsilon, delta, estimate, estimate / delta, size
                )
        except (ValueError, ArithmeticError, IndexError) as error:
            return reject(f"the library raised: {error}")
        previous, reason = middle, "no convergence in the number of points"
    return reject(reason)


def _loss_std(block: GaussianSteps, adjacency: str) -> float:
    """Standard deviation of the loss of a release of all records."""
    return (2.0 if adjacency == "replace_one" else 1.0) / block.noise_multiplier


def _quadrature(epsilon: float, mu: float) -> float:
    """Integral of ``max(0, p - exp(epsilon) q)`` for unit normal densities, `mu` apart."""
    from scipy.integrate import quad

    start = epsilon / mu + 0.5 * mu  # where p exceeds exp(epsilon) q
    peak = -0.5 * (start - mu) ** 2
    width = 1.0 / max(start - mu, 1.0)  # on which the density falls
    stop = 40.0 + max(mu - start, 0.0)

    def excess(t: float) -> float:  # over the density of p at `start`, whose scale would underflow
        log_ratio = mu * width * t  # of p to exp(epsilon) q
        return math.exp(-0.5 * (start - mu + width * t) ** 2 - peak) * -math.expm1(-log_ratio)

    whole: float = quad(excess, 0.0, stop, epsabs=0.0, epsrel=1e-10, limit=200)[0]
    return width * whole * math.exp(peak) / math.sqrt(2.0 * math.pi)


def _library_delta(
    library: Any,
    blocks: tuple[GaussianSteps, ...],
    epsilon: float,
    adjacency: str,
    size: int,
    radius: float,
) -> float:
    get_delta = library.get_delta_S if adjacency == "replace_one" else library.get_delta_R
    sigma = np.array([block.noise_multiplier for block in blocks])
    rate = np.array([block.sampling_rate for block in blocks])
    count = np.array([block.steps for block in blocks])
    with np.errstate(all="ignore"):  # it takes logarithms of zero on its way
        return float(get_delta(epsilon, sigma, rate, count, nx=size, L=radius))


def _mass_defect(
    blocks: tuple[GaussianSteps, ...], adjacency: str, size: int, radius: float
) -> float:
    """Return the sum over rounds of |Riemann sum of the loss density - 1| on the library's grid."""
    return sum(
        block.steps * abs(_riemann_mass(block, adjacency, size, radius) - 1.0) for block in blocks
    )


def _riemann_mass(block: GaussianSteps, adjacency: str, size: int, radius: float) -> float:
    q, s = block.sampling_rate, block.noise_multiplier
    replace = adjacency == "replace_one"
    pair = Pair("replace" if replace else "remove", s, q)
    dx = 2.0 * radius / size
    # Only the points where one round has mass: 1e-20 is left out, which is nothing beside the
    # tolerance.
    bottom, top = pair.statistic(np.array(pair.window(1e-20)))
    first, last = (
        max(math.floor((bottom + radius) / dx), 0),
        min(math.ceil((top + radius) / dx), size - 1),
    )
    losses = -radius + dx * np.arange(first, last + 1)
    if not replace:
        losses = losses[losses > math.log1p(-q)]
    with np.errstate(all="ignore"):
        x = pair.inverse(losses)
        slope = _log_slope(pair, x)
        if replace:
            slope = slope + _log_slope(pair, -x)
        density = (1.0 - q) * np.exp(-0.5 * (x / s) ** 2) + q * np.exp(-0.5 * ((x - 1.0) / s) ** 2)
        terms = density / slope
    return float(np.sum(terms[np.isfinite(terms)])) * dx / (s * math.sqrt(2.0 * math.pi))


def _log_slope(pair: Pair, x: Floats) -> Floats:
    """Return the derivative of `Pair.ratio`: (posterior probability of inclusion) / sigma**2."""
    t = (2.0 * x - 1.0) / (2.0 * pair.sigma**2)
    return 1.0 / (1.0 + (1.0 - pair.rate) / pair.rate * np.exp(-t)) / pair.sigma**2


def fourier_epsilon(steps: tuple[GaussianSteps, ...], delta: float, adjacency: str) -> float:
    """Return fourier-accountant's epsilon at `delta`, behind the guards of `crosscheck`.

    Raises
    ------
    ValueError
        If the answer does not pass the guards: use ``method="pld"`` there.
    """
    import fourier_accountant

    blocks = merge(steps)
    refused = "method='fourier' has no trustworthy answer here ({}). Use method='pld'."
    if blocks[0].noise_multiplier == 0.0:
        return math.inf
    if any(block.sampling_rate == 1.0 for block in blocks):
        raise ValueError(refused.format("the library does not handle sampling rate 1"))
    rdp = total_rdp(blocks, adjacency)
    low, high = 0.0, rdp_epsilon(rdp, delta)
    radius = max(log_moment_radius(rdp, 1e-3 * delta), 1.05 * high)
    sizes = [
        size
        for size in _SIZES[1:]
        if _mass_defect(blocks, adjacency, size, radius) < _MASS_TOLERANCE
    ]
    if not sizes:
        raise ValueError(refused.format("grid too coarse for one round"))
    while high - low > 1e-7 * high:
        middle = 0.5 * (low + high)
        try:
            value = _library_delta(fourier_accountant, blocks, middle, adjacency, sizes[0], radius)
        except (ValueError, ArithmeticError, IndexError) as error:
            raise ValueError(refused.format(f"the library raised: {error}")) from error
        low, high = (middle, high) if value > delta else (low, middle)
    check = crosscheck(steps, high, delta, adjacency)
    if check.disagrees or not check.accepted:
        raise ValueError(refused.format(check.reason))
    return high
