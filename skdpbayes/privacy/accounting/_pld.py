"""Privacy loss distributions on an adaptive grid.

One round is discretised by *connecting the dots* (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi
2022): the mass of P in each cell of the grid of losses is split between the two ends of the cell so
that the masses of P **and** Q are kept. The discrete pair dominates the continuous one, so that
everything composed from it is an upper bound. Splitting cell by cell needs no second differences of
delta, which lose all digits for tiny sampling rates.

The grid spacing follows the standard deviation of the loss (Gopi, Lee and Wutschitz 2021 argue for
the same scaling): the discretisation adds at most a share c**2 / 4 to the variance of the composed
loss, whatever the parameters.

Composition is one FFT for all blocks together. What an FFT on a finite window can get wrong is
charged to delta: mass above the window (a Chernoff bound on the very numbers composed) and
rounding. Mass below the window wraps upwards, which is pessimistic by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft

from skdpbayes.privacy.accounting._pair import Pair
from skdpbayes.privacy.accounting._steps import GaussianSteps

Floats = NDArray[np.float64]

# Mass charged for cutting one-round tails (all rounds together), and again for the FFT window.
TAIL = 1e-14
FINE, COARSE = 0.01, 0.05  # grid spacing over standard deviation of one loss
MAX_CELLS = 2**20
_POINTS = 2**15  # the spacing is refined from COARSE to FINE while grid and FFT stay this small
_FFT_POINTS_MAX = 2**21
_EPS = float(np.finfo(float).eps)
_BLOCK = (
    500.0  # losses are handled in blocks this wide, so that exp never leaves the range of a double
)


@dataclass(frozen=True)
class Pmf:
    """Mass `probs[i]` at the loss ``(low + i) * dx``, and `infinity` at infinity."""

    dx: float
    low: int
    probs: Floats
    infinity: float


def discretise(pair: Pair, dx: float, tail: float) -> Pmf:
    """Discretise one round by connecting the dots.

    Parameters
    ----------
    pair : Pair
        The dominating pair.
    dx : float
        Grid spacing.
    tail : float
        Mass of P that may lie above the top of the grid. It is not dropped: its part that no finite
        loss explains is kept as mass at infinity.

    Returns
    -------
    Pmf
        Dominates `pair` up to rounding.
    """
    x_low, x_high = pair.window(tail)
    bottom, top = pair.statistic(np.array([x_low, x_high]))
    low, high = math.floor(bottom / dx), math.ceil(top / dx)
    p, q = pair.masses(pair.inverse(np.arange(low, high + 1) * dx))
    if pair.kind == "add":  # the loss is minus the statistic: same cells, reversed
        p, q, low, high = p[::-1], q[::-1], -high, -low
    losses = np.arange(low, high + 1) * dx
    probs = np.zeros(high - low + 1)
    probs[0] = p[0]  # everything below the grid is moved up to its first point
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        # Share moved to the upper end of each cell; where Q underflows, all of it (pessimistic).
        ratio = np.exp(losses[:-1]) * (q[1:-1] / p[1:-1])
        share = (1.0 - ratio) / -math.expm1(-dx)
    share = np.where(np.isfinite(share), np.clip(share, 0.0, 1.0), 1.0)
    probs[:-1] += p[1:-1] * (1.0 - share)
    probs[1:] += p[1:-1] * share
    with np.errstate(over="ignore", invalid="ignore"):
        explained = min(float(np.exp(losses[-1]) * q[-1]), float(p[-1]))
    explained = explained if math.isfinite(explained) else 0.0
    probs[-1] += explained
    return Pmf(dx, low, probs, float(p[-1]) - explained)


def choose_spacing(pairs: Iterable[tuple[Pair, int]], tail: float, spacing: float | None) -> float:
    """Return a common grid spacing: a fraction of the loss's root mean square deviation."""
    items = list(pairs)
    total = sum(count for _, count in items)
    std = math.sqrt(sum(count * pair.moments()[1] for pair, count in items) / total)
    width = 16.0 * math.sqrt(total)  # of the composed loss, in units of std
    ends = [pair.statistic(np.array(pair.window(tail))) for pair, _ in items]
    reach = max(float(end[1] - end[0]) for end in ends)
    if spacing is None:
        spacing = min(max(max(width, reach / std if std else 0.0) / _POINTS, FINE), COARSE)
    spacing = max(spacing, width / _FFT_POINTS_MAX)
    # With next to no noise the loss of the direction `add` is one number, to the last digit; a grid
    # needs a width.
    level = max(float(np.max(np.abs(end))) for end in ends)
    return max(spacing * std, reach / MAX_CELLS, 1e-9 * level)


class LossDistribution:
    """Composed privacy loss distribution in one direction.

    Both answers are exact for the discrete distribution held; that distribution dominates the
    composition.
    """

    def __init__(self, pmf: Pmf) -> None:
        first = max(-pmf.low, 0)  # only losses >= 0 matter for epsilon >= 0
        probs, low = pmf.probs[first:], pmf.low + first
        if probs.size == 0:
            probs, low = np.zeros(1), 0
        self.dx, self.low, self.infinity = pmf.dx, low, min(pmf.infinity, 1.0)
        # weight[i] = sum_{j>=i} p_j exp(l_i - l_j); delta(l_i) = infinity + (1 - exp(-dx))
        # sum_{j>i} weight[j]. Sums of positive terms from the top down: no cancellation, and no
        # exp(-loss) that underflows.
        self.weight = _discounted_sums(probs, self.dx)
        above = np.concatenate((np.cumsum(self.weight[:0:-1])[::-1], [0.0]))
        self.delta_grid = self.infinity - math.expm1(-self.dx) * above

    def delta(self, epsilon: ArrayLike) -> Floats:
        """Return delta at `epsilon` (array of any shape, at least 0)."""
        eps = np.asarray(epsilon, dtype=float)
        position = np.ceil(eps / self.dx) - self.low
        index = np.clip(position, 0, self.weight.size - 1).astype(np.int64)
        loss = (self.low + index) * self.dx
        with np.errstate(invalid="ignore", over="ignore"):
            inside = self.delta_grid[index] + self.weight[index] * np.maximum(
                -np.expm1(eps - loss), 0.0
            )
        return np.minimum(np.where(position >= self.weight.size, self.infinity, inside), 1.0)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 with delta(epsilon) <= `delta`; infinity if none has."""
        if delta < self.infinity:
            return math.inf
        index = int(np.searchsorted(-self.delta_grid, -delta))
        index = min(index, self.weight.size - 1)
        loss, weight = (self.low + index) * self.dx, float(self.weight[index])
        excess = delta - float(self.delta_grid[index])
        if excess >= weight:
            return 0.0
        # Within a cell delta is linear in exp(epsilon).
        return max(0.0, (loss + math.log1p(-max(excess, 0.0) / weight)) * (1.0 + 1e-13))


def _dot(a: Floats, b: Floats) -> float:
    """Inner product without BLAS, whose threads cost more than the sum when cores are shared."""
    return float(np.sum(a * b))


def _discounted_sums(probs: Floats, dx: float) -> Floats:
    """Return ``y[i] = probs[i] + exp(-dx) y[i+1]`` without a Python loop over points."""
    size = max(int(_BLOCK / dx), 1)
    out = np.empty_like(probs)
    carry = 0.0
    for start in range(((probs.size - 1) // size) * size, -1, -size):
        block = probs[start : start + size]
        offset = np.arange(block.size) * dx
        sums = np.cumsum((block * np.exp(-offset))[::-1])[::-1]
        out[start : start + size] = np.exp(offset) * sums + carry * np.exp(offset - block.size * dx)
        carry = float(out[start])
    return out


def _log_mgf(losses: Floats, probs: Floats, order: float) -> float:
    exponents = order * losses
    top = float(max(exponents[0], exponents[-1]))
    # Bounded below, so that no time goes into denormal numbers; this can only raise the bound.
    exponents = np.maximum(exponents - top, -600.0)
    return top + math.log(_dot(probs, np.exp(exponents)))


def _coarsen(losses: Floats, probs: Floats) -> tuple[Floats, Floats]:
    """Return about 2000 points with the mass and the mean of equally many neighbours each."""
    width = probs.size // 2000 + 1
    padded = np.zeros(-(-probs.size // width) * width)
    padded[: probs.size] = probs
    return losses[::width] + 0.5 * (width - 1) * (losses[1] - losses[0]), padded.reshape(
        -1, width
    ).sum(axis=1)


def _chernoff(pmfs: list[tuple[Pmf, int]], std: float, sign: int) -> float:
    """Return a loss that is exceeded (sign 1), or not reached (sign -1), with probability <= TAIL.

    The order of the moment is sought on a coarse copy; the bound returned uses all points.
    """
    exact = [
        (sign * pmf.dx * (pmf.low + np.arange(pmf.probs.size, dtype=float)), pmf.probs, count)
        for pmf, count in pmfs
    ]
    coarse = [(*_coarsen(losses, probs), count) for losses, probs, count in exact if probs.size > 1]

    def bound(parts: list[tuple[Floats, Floats, int]], order: float) -> float:
        mgf = sum(count * _log_mgf(losses, probs, order) for losses, probs, count in parts)
        return (mgf - math.log(TAIL)) / order

    start = math.sqrt(-2.0 * math.log(TAIL)) / std  # optimal when the composition is Gaussian
    best, value = start, math.inf
    for factor in (0.7, 1.4):
        order = start
        for _ in range(40):
            trial = bound(coarse, order)
            if trial > value:
                break
            best, value, order = order, trial, order * factor
        start *= 1.4
    support = sum(float(max(losses[0], losses[-1])) * count for losses, _, count in exact)
    return sign * min(bound(exact, best), support)


def convolve(pmfs: list[tuple[Pmf, int]]) -> Pmf:
    """Compose loss distributions of equal spacing, each repeated the given number of times.

    The returned mass at infinity covers the parts' masses at infinity, the mass above the FFT
    window, and an estimate (Cauchy-Schwarz over the spectrum, twice the root mean square error
    model) of the rounding of the FFT.
    """
    infinity = sum(count * pmf.infinity for pmf, count in pmfs)
    if sum(count for _, count in pmfs) == 1:
        return pmfs[0][0]
    dx = pmfs[0][0].dx
    centres, variance = [], 0.0
    for pmf, count in pmfs:
        index = np.arange(pmf.probs.size, dtype=float)
        mean = _dot(pmf.probs, index) / float(pmf.probs.sum())
        variance += count * _dot(pmf.probs, (index - mean) ** 2)
        centres.append(round(mean))
    std = dx * math.sqrt(max(variance, 1e-6))
    low = math.floor(_chernoff(pmfs, std, -1) / dx)
    high = math.ceil(_chernoff(pmfs, std, 1) / dx)
    size = fft.next_fast_len(high - low + 1, real=True)
    log_product = np.zeros(size // 2 + 1, dtype=complex)
    relative = np.zeros(size // 2 + 1)
    origin = 0
    rounding = _EPS * math.sqrt(math.log2(size) + 1.0)
    for (pmf, count), centre in zip(pmfs, centres, strict=True):
        # Centred, so that the phases raised to the power `count` stay small.
        spectrum = fft.rfft(_fold(pmf.probs, -centre, size))
        modulus = np.maximum(np.abs(spectrum), 1e-300)
        log_product += count * (np.log(modulus) + 1j * np.angle(spectrum))
        relative += count * rounding * math.sqrt(_dot(pmf.probs, pmf.probs)) / modulus
        origin += count * (pmf.low + centre)
    kept = log_product.real > -200.0
    product = np.where(kept, np.exp(np.where(kept, log_product, 0.0)), 0.0)
    relative = np.where(kept, relative + _EPS * np.abs(log_product) + rounding, 0.0)
    probs = np.roll(fft.irfft(product, size), -((low - origin) % size))
    charge = 2.0 * math.sqrt(2.0 * float(np.sum((np.abs(product) * relative) ** 2)))
    return Pmf(dx, low, np.maximum(probs, 0.0), infinity + TAIL + charge)


def _fold(probs: Floats, shift: int, size: int) -> Floats:
    """Place `probs` at positions ``shift, shift + 1, ...`` modulo `size`, adding what overlaps."""
    padded = np.zeros(-(-probs.size // size) * size)
    padded[: probs.size] = probs
    return np.roll(padded.reshape(-1, size).sum(axis=0), shift % size)


def loss_distribution(
    blocks: Iterable[GaussianSteps], kind: str, spacing: float | None = None
) -> LossDistribution:
    """Compose `blocks` (noise above 0) in the direction `kind`.

    Parameters
    ----------
    blocks : iterable of GaussianSteps
        Already merged.
    kind : {"remove", "add", "replace"}
        See `_pair`.
    spacing : float, optional
        Grid spacing over the standard deviation of one loss; by default .01 to .05 as the cost
        allows.
    """
    pairs = [
        (Pair(kind, block.noise_multiplier, block.sampling_rate), block.steps) for block in blocks
    ]
    tail = TAIL / sum(count for _, count in pairs)
    dx = choose_spacing(pairs, tail, spacing)
    return LossDistribution(
        convolve([(discretise(pair, dx, tail), count) for pair, count in pairs])
    )
