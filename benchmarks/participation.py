"""Full, Poisson and balanced batches at equal passes over the data: ``make bench-participation``.

With balanced participation (balanced iteration subsampling, random allocation) a record takes part
in exactly one of the ``t`` rounds of a window, chosen uniformly and independently of other records.
One window is one pass. Three tables, a minute or two:

1. noise multipliers for an epsilon, and the variance of the privacy noise over that of full
   batches;
2. variance of the averaged score over the sampling variance of the data: 1, plus privacy noise,
   plus subsampling. Every score has the clipping norm, so that privacy noise is as small as it can
   be and subsampling counts most;
3. batches of networks: epsilon of balanced participation at the noise of Poisson batches.

Adjacency ``"zero_out"``, delta 1e-5.
"""

from __future__ import annotations

import argparse
import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from benchmarks import _log
from skdpbayes.privacy import calibrate_noise
from skdpbayes.privacy.accounting._pair import normal_masses
from skdpbayes.privacy.accounting._pld import LossDistribution, Pmf, convolve

Floats = NDArray[np.float64]

DELTA = 1e-5
ROUNDS = 500
PASSES = (2, 5, 16, 50)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)
NETWORKS = (  # records, batch, passes; the first are the defaults of networks
    (60_000, 2048, 34),
    (60_000, 2048, 5),
    (60_000, 256, 20),
    (1_000_000, 2048, 2),
    (1_000_000, 2048, 16),
)
_TAIL = 2e-9  # mass of a window, about, that is charged to delta instead of being placed


def ratio_grid(sigma: float, rounds: int, points: int) -> Pmf:
    """Distribution of the likelihood ratio of one round, placed on a grid.

    The ratio of N(1, sigma^2) over N(0, sigma^2), under N(0, sigma^2). The mass of each cell is
    split between its ends so that mass and mean are kept. The result is larger in the convex
    order, so that the pair it describes dominates.

    Parameters
    ----------
    sigma : float
        Noise multiplier.
    rounds : int
        Rounds of a window: how many such ratios will be added.
    points : int
        Number of points of the grid.
    """
    # A window has one ratio under N(1, sigma^2), and the others under N(0, sigma^2).
    unshifted, shifted = (-float(special.ndtri(tail)) for tail in (_TAIL / rounds, _TAIL))
    ends = (-unshifted, max(unshifted, shifted + 1 / sigma))
    low, high = (math.exp(x / sigma - 0.5 / sigma**2) for x in ends)
    dx = (high - low) / (points - 2)
    first = math.floor(low / dx)
    edges = dx * (first + np.arange(math.ceil(high / dx) - first + 1))
    with np.errstate(divide="ignore"):
        x = sigma * np.log(edges) + 0.5 / sigma  # standard under Q
    q, p = normal_masses(x)[1:-1], normal_masses(x - 1 / sigma)[1:-1]
    upper = np.clip((p - edges[:-1] * q) / dx, 0.0, q)
    probs = np.zeros(edges.size)
    probs[:-1] += q - upper
    probs[1:] += upper
    return Pmf(dx, first, probs, 0.0)


def window_losses(sigma: float, rounds: int, points: int | None = None) -> tuple[Pmf, Pmf]:
    """Privacy losses of one window, "remove" and "add", from above.

    With Q = N(0, sigma^2 I) and P the mean over i of N(e_i, sigma^2 I), the likelihood ratio is the
    mean of `rounds` independent ratios under Q. Sums keep the convex order.

    Parameters
    ----------
    sigma : float
        Noise multiplier.
    rounds : int
        Rounds of a window. A record takes part in one of them.
    points : int, optional
        Points of the grid of one ratio. Little noise has ratios far from 1, and needs more.
    """
    if points is None:
        points = 2**16 if sigma > 1.5 else 2**18 if sigma > 0.75 else 2**20
    one = ratio_grid(sigma, rounds, points)
    total = convolve([(one, rounds)])
    ratio = total.dx / rounds * (total.low + np.arange(total.probs.size))
    q = np.where(ratio > 0, total.probs, 0.0)
    kept = q > 1e-25
    q, ratio = q[kept], ratio[kept]
    loss = np.log(ratio)
    mean = float(np.sum(q * loss))
    spread = math.sqrt(float(np.sum(q * (loss - mean) ** 2)))
    dx = max(0.02 * spread, float(loss.max() - loss.min()) / 2**18)
    index = np.floor(loss / dx).astype(np.int64)
    low = int(index.min())
    lower, upper = np.exp(dx * index), np.exp(dx * (index + 1))
    share = np.clip((ratio - lower) / (upper - lower), 0.0, 1.0)
    size = int(index.max()) - low + 2
    placed: Floats = np.bincount(index - low, q * (1 - share), size).astype(float)
    placed += np.bincount(index - low + 1, q * share, size)
    raised = placed * np.exp(dx * (low + np.arange(size)))
    # What is left out, by either tail or the window of the transform, has an infinite loss.
    remove = Pmf(dx, low, raised, max(1.0 - float(raised.sum()), 0.0))
    add = Pmf(dx, -(low + size - 1), placed[::-1], max(1.0 - float(placed.sum()), 0.0))
    return remove, add


def balanced_epsilon(
    sigma: float, rounds: int, windows: int, delta: float = DELTA, points: int | None = None
) -> float:
    """Epsilon of `windows` windows of balanced participation, from above."""
    losses = window_losses(sigma, rounds, points)
    return max(LossDistribution(convolve([(one, windows)])).epsilon(delta) for one in losses)


@functools.cache
def full_noise(epsilon: float, passes: int) -> float:
    """Noise multiplier of full batches."""
    return calibrate_noise(epsilon, DELTA, 1.0, passes).noise_multiplier


@functools.cache
def poisson_noise(epsilon: float, rounds: int, passes: int) -> float:
    """Noise multiplier of Poisson batches, `rounds` rounds a pass."""
    return calibrate_noise(epsilon, DELTA, 1 / rounds, rounds * passes).noise_multiplier


@functools.cache
def balanced_noise(epsilon: float, rounds: int, passes: int) -> float:
    """Noise multiplier of balanced participation, `rounds` rounds a pass.

    It is at least the multiplier of full batches over the root of `rounds`: the sum of the releases
    of a window is a release of all records with the variance of `rounds` releases.
    """

    def excess(log_sigma: float) -> float:
        value = balanced_epsilon(math.exp(log_sigma), rounds, passes)
        return min(math.log(max(value, 1e-9) / epsilon), 1.0)

    low = high = math.log(poisson_noise(epsilon, rounds, passes))
    while excess(high) > 0:
        high += 0.05
    while excess(low) <= 0:
        low -= 0.05
    return math.exp(optimize.brentq(excess, low, high, xtol=5e-4))


def privacy_variance(sigma: float, rate: float, rounds: int, n: int, columns: int) -> float:
    """Variance of privacy noise in the averaged score, over the sampling variance of the data.

    The average over `rounds` of estimates of the sum has noise ``(sigma C)^2 / (rate^2 rounds)`` in
    each coordinate. The sum of n scores of norm C has the variance ``n C^2 / columns``.
    """
    return sigma**2 * columns / (rate**2 * rounds * n)


def poisson_variance(rate: float, rounds: int) -> float:
    """Variance of Poisson subsampling, over the sampling variance of the data."""
    return (1 - rate) / (rate * rounds)


def balanced_variance(rounds: int, averaged: int) -> float:
    """Variance of balanced subsampling in the last `averaged` rounds, likewise.

    A record is in all complete windows, and in the part f of another with probability f.
    """
    complete, rest = divmod(averaged, rounds)
    part = rest / rounds
    return part * (1 - part) / (complete + part) ** 2


def rounds_of_a_pass(passes: int) -> int:
    """Rounds of one window if all windows have about `ROUNDS` rounds."""
    return round(ROUNDS / passes)


def noise_table() -> None:
    rows = []
    for passes in PASSES:
        t = rounds_of_a_pass(passes)
        for epsilon in EPSILONS:
            full = full_noise(epsilon, passes)
            poisson, balanced = (f(epsilon, t, passes) for f in (poisson_noise, balanced_noise))
            ratios = [t * (sigma / full) ** 2 for sigma in (poisson, balanced)]
            rows.append(
                [
                    *(str(passes), str(t * passes), f"{epsilon:g}"),
                    *(f"{sigma:.4g}" for sigma in (full, poisson, balanced)),
                    *(f"{ratio:.3f}" for ratio in ratios),
                    f"{balanced_epsilon(poisson, t, passes) / epsilon:.3f}",
                ]
            )
    header = ["passes", "rounds", "eps", "full", "Poisson", "balanced"]
    header += ["noise P/f", "noise b/f", "eps b/P"]
    print(
        f"Noise multipliers, variance of the noise over full batches'\n\n{_log.table(header, rows)}"
    )


def variance_table() -> None:
    rows = []
    for n in (10**5, 10**6, 10**7):
        for columns in (8, 100):
            for epsilon in EPSILONS:
                cells = []
                for passes in PASSES:
                    t = rounds_of_a_pass(passes)
                    sizes = (t * passes, n, columns)
                    full = privacy_variance(full_noise(epsilon, passes), 1.0, passes, n, columns)
                    poisson = privacy_variance(poisson_noise(epsilon, t, passes), 1 / t, *sizes)
                    balanced = privacy_variance(balanced_noise(epsilon, t, passes), 1 / t, *sizes)
                    poisson += poisson_variance(1 / t, t * passes)
                    values = (1 + full, 1 + poisson, 1 + balanced)
                    cells.append(" ".join(f"{value:.4g}" for value in values))
                rows.append([f"{n:.0e}", str(columns), f"{epsilon:g}", *cells])
    header = ["N", "d", "eps", *(f"{passes} passes" for passes in PASSES)]
    print("\nVariance of the averaged score over the data's: full, Poisson, balanced\n")
    print(_log.table(header, rows))


def network_table() -> None:
    rows = []
    for n, batch, passes in NETWORKS:
        t = round(n / batch)
        for epsilon in (0.3, 1.0, 3.0, 8.0):
            sigma = poisson_noise(epsilon, t, passes)
            own = balanced_noise(epsilon, t, passes)
            least = full_noise(epsilon, passes) / math.sqrt(t)
            rows.append(
                [
                    *(f"{n}", str(batch), str(t * passes), f"{epsilon:g}", f"{sigma:.4g}"),
                    f"{balanced_epsilon(sigma, t, passes):.4g}",
                    f"{own / sigma:.3f}",
                    f"{least / sigma:.3f}",
                    f"{math.sqrt(1 / passes):.2f}",
                ]
            )
    header = ["N", "batch", "rounds", "eps", "Poisson noise", "balanced eps there"]
    header += ["noise b/P", "at least", "sd of meetings"]
    print(f"\nNetworks: batches of fixed size, many rounds\n\n{_log.table(header, rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    noise_table()
    variance_table()
    network_table()


if __name__ == "__main__":
    main()
