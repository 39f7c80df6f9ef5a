"""Exact posteriors of conjugate families given a noisy sum of statistics.

The true sum is unknown; it is integrated out under the model, so that the posterior accounts for
the privacy noise (Bernstein and Sheldon 2018 sample it under a normal approximation of the sum;
here the sum's own distribution is used, up to quadrature).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import special, stats
from scipy.optimize import elementwise

from skdpbayes.posteriors.base import SampledPosterior

# Least noise, in standard deviations of the sum: without noise the density may have atoms.
_SMOOTHING = 0.02
_FREQUENCIES, _FEWER = 256, 64  # the latter where the sum of many statistics is nearly normal
_POINTS = 512
_REACH = 9.0  # standard deviations
_NUMBERS, _COUNT_REACH = 9, 4.0  # numbers of records, if it is noisy, and how far they reach


@dataclass(frozen=True, repr=False)
class RatePosterior(SampledPosterior):
    """Independent exponential rates given noisy sums of ``min(x, upper) - upper / 2``.

    The density of a noisy sum is the Fourier integral of ``phi(w)^n exp(-(scale w)^2 / 2)``, with
    phi the characteristic function of one statistic: exact for every number of records. It is
    evaluated on a grid of log rates.

    Attributes
    ----------
    sums : array of shape (d,)
    scale : float or array of shape (d,)
        Standard deviation of the noise in each sum.
    n_records : int
    shape, rate : float
        Parameters of the Gamma prior.
    upper : float
    """

    sums: np.ndarray
    scale: float | np.ndarray
    n_records: int
    shape: float
    rate: float
    upper: float

    def __repr__(self) -> str:
        return f"RatePosterior({len(self.sums)} rates)"

    def without_noise(self) -> RatePosterior:
        """Posterior if the sums were the true ones."""
        return replace(self, scale=0.0)

    @cached_property
    def _grids(self):
        scales = np.broadcast_to(self.scale, np.shape(self.sums))
        each = [replace(self, scale=float(scale)) for scale in scales]
        return [own._grid(total) for own, total in zip(each, self.sums, strict=True)]

    @property
    def log_evidence(self) -> float:
        """Log density of the noisy sums, up to a constant independent of `n_records`."""
        return sum(grid[3] for grid in self._grids)

    def _grid(self, total):
        """Log rates, the density and the cumulative posterior there, and the log of its mass."""
        prior = stats.gamma(self.shape, scale=1 / self.rate)
        low, high = prior.ppf([1e-12, 1 - 1e-12])
        # The range includes values that data may indicate against the prior.
        low = max(min(low, 1e-3 / (self.n_records * self.upper)), 1e-100 / self.upper)
        high = max(high, 1e3 * self.n_records / self.upper)
        points = np.linspace(np.log(low), np.log(high), 4 * _POINTS)
        rough = self._log_prior(points) + self._log_density(points, total, frequencies=1)
        inside = np.flatnonzero(rough > rough.max() - _REACH**2 / 2 - 10)
        points = np.linspace(
            points[max(inside[0] - 1, 0)], points[min(inside[-1] + 1, len(points) - 1)], _POINTS
        )
        log = self._log_prior(points) + self._log_density(points, total)
        density = np.exp(log - log.max())
        cumulative = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
        mass = math.log(cumulative[-1] * (points[1] - points[0])) + log.max()
        return points, density, cumulative / cumulative[-1], mass

    def _log_prior(self, log_theta):
        return self.shape * log_theta - self.rate * np.exp(log_theta)

    def _log_density(self, log_theta, total, frequencies=_FREQUENCIES):
        """Log density of a noisy sum; with one frequency, its saddle point approximation."""
        theta = np.exp(log_theta)[:, None]
        n, total = self.n_records, total + self.n_records * self.upper / 2
        noise = np.maximum(self.scale**2, _SMOOTHING**2 * n * self._variance(theta, 0.0))
        # The path of integration passes through the saddle point, where the integrand is as large
        # as its integral: the relative precision is the same in the tails as in the middle.
        tilt = self._saddle_point(theta, noise, total)
        variance = n * self._variance(theta, tilt)
        sd = np.sqrt(variance + noise)
        cumulant = self._cumulant(theta, tilt)
        exponent = n * cumulant.real + noise * tilt**2 / 2 - tilt * total - np.log(sd)
        if frequencies == 1:
            return exponent[:, 0]
        # The integrand is negligible beyond 9 standard deviations of the sum, or of the noise.
        few = np.minimum(n, variance / self.upper**2) < 50
        frequencies = frequencies if few.any() else _FEWER
        highest = np.where(few, np.minimum(_REACH / np.sqrt(noise), 4 * _REACH / sd), _REACH / sd)
        w = highest * (np.arange(frequencies) + 0.5) / frequencies
        ratio = n * (self._cumulant(theta, tilt + 1j * w) - cumulant)
        integrand = np.exp(ratio + 1j * w * (noise * tilt - total) - noise * w**2 / 2)
        integral = integrand.real.sum(axis=1) * (highest * sd)[:, 0] / frequencies / np.pi
        return exponent[:, 0] + np.log(np.maximum(integral, 1e-12))

    def _cumulant(self, theta, z):
        """Log of ``E[exp(z min(x, upper))]``, up to a multiple of 2 pi i."""
        d = (theta - z) * self.upper + 0j
        d = np.where(d == 0, 1e-200, d)
        falls = d.real >= 0
        d = np.where(falls, d, -d)
        return np.log(
            theta * self.upper * (-np.expm1(-d) / d) + np.where(falls, np.exp(-d), 1)
        ) + np.where(falls, 0, d)

    def _mean(self, theta, tilt):
        """Tilted mean of ``min(x, upper)``, by complex-step differentiation."""
        step = 1e-20 / self.upper
        return self._cumulant(theta, tilt + 1j * step).imag / step

    def _variance(self, theta, tilt):
        step = 1e-4 * np.maximum(np.abs(theta - tilt), 1 / self.upper)
        difference = self._mean(theta, tilt + step) - self._mean(theta, tilt - step)
        return np.maximum(difference / (2 * step), 1e-12 * self.upper**2)

    def _saddle_point(self, theta, noise, total):
        """Tilt under which the mean of the noisy sum is `total`."""
        # In units of the noise. The integral holds beside the saddle point too, found well or not.
        root = np.sqrt(noise)
        high = 2 * (np.abs(total) + self.n_records * self.upper) / root  # beyond doubt

        def excess(tilt, theta, root):
            return self.n_records * self._mean(theta, tilt / root) + tilt * root - total

        tolerances = {"xatol": 1e-6, "xrtol": 0.0, "fatol": 0.0, "frtol": 0.0}
        found = elementwise.find_root(
            excess, (-high, high), args=(theta, root), tolerances=tolerances
        )
        return found.x / root

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws of the rates, of shape (n, d)."""
        return np.stack([np.exp(_inverse(grid, rng.random(n))) for grid in self._grids], axis=1)


def _inverse(grid, uniform):
    """Quantiles of a density that is linear between grid points."""
    points, density, cumulative, _ = grid
    cell = np.clip(np.searchsorted(cumulative, uniform, side="right") - 1, 0, len(points) - 2)
    low, high = density[cell], density[cell + 1]
    mass = (uniform - cumulative[cell]) / np.maximum(
        cumulative[cell + 1] - cumulative[cell], 1e-300
    )
    # mass = (low f + (high - low) f^2 / 2) / ((low + high) / 2), solved for the fraction f of the
    # cell
    half = mass * (low + high)
    fraction = half / np.maximum(low + np.sqrt(np.maximum(low**2 + (high - low) * half, 0)), 1e-300)
    return points[cell] + fraction * (points[1] - points[0])


@dataclass(frozen=True, repr=False)
class CountsPosterior(SampledPosterior):
    """Probabilities of K categories given noisy counts, whose true total is known.

    Given the noisy counts, the true ones have probability proportional to a product over categories
    of ``Gamma(n_k + concentration_k) / n_k! exp(-(n_k - noisy_k)^2 / (2 scale^2))`` on ``sum n_k =
    n_records``. They are drawn exactly, category after category, from convolutions of the factors.
    Given counts, the probabilities are Dirichlet.

    Attributes
    ----------
    counts : array of shape (K,)
        Noisy counts.
    scale : float or array of shape (K,)
        Standard deviation of the noise in each count.
    n_records : int
    concentration : array of shape (K,)
    """

    counts: np.ndarray
    scale: float | np.ndarray
    n_records: int
    concentration: np.ndarray

    def __repr__(self) -> str:
        return f"CountsPosterior({len(self.counts)} categories)"

    def without_noise(self) -> CountsPosterior:
        """Posterior if the counts were the true ones."""
        return replace(self, scale=0.0)

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws of the probabilities, of shape (n, K)."""
        gammas = rng.standard_gamma(self.concentration + self.sample_counts(rng, n))
        return gammas / gammas.sum(axis=1, keepdims=True)

    @property
    def log_evidence(self) -> float:
        """Log density of the noisy counts, up to a constant independent of `n_records`."""
        if len(self.counts) == 2:
            first, second = self._log_factors
            mass = special.logsumexp(first + second[::-1])
        else:
            tilt, known = self._tilt, np.arange(self.n_records + 1)
            start, total = self._totals[-1]
            at_total = math.log(max(total[self.n_records - start], 1e-300))
            sizes = special.logsumexp(self._log_factors - tilt * known, axis=1)
            mass = at_total + sizes.sum() + tilt * self.n_records
        prior = special.gammaln(self.n_records + self.concentration.sum())
        return float(mass + special.gammaln(self.n_records + 1) - prior)

    def sample_counts(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws of the true counts, of shape (n, K)."""
        if len(self.counts) == 2:
            return self._sample_first_count(rng, n)
        left, drawn = np.full(n, self.n_records), []
        for (start, weights), (before_start, before) in zip(
            self._factors[:0:-1], self._totals[-2::-1], strict=True
        ):
            # The last category not yet drawn, given the remaining sum.
            values, which = np.unique(left, return_inverse=True)
            count = np.empty(n, np.int64)
            for i, value in enumerate(values):
                rest = value - start - np.arange(len(weights)) - before_start
                inside = (rest >= 0) & (rest < len(before))
                cumulative = np.cumsum(
                    np.where(inside, weights * before[np.where(inside, rest, 0)], 0)
                )
                chosen = which == i
                count[chosen] = start + np.searchsorted(
                    cumulative, rng.random(chosen.sum()) * cumulative[-1], "right"
                )
            drawn.append(count)
            left = left - count
        return np.stack([left, *drawn[::-1]], axis=1)

    def _sample_first_count(self, rng, n):
        """Draws for two categories: one count determines the other."""
        first, second = self._log_factors
        logs = first + second[::-1]
        cumulative = np.cumsum(np.exp(logs - logs.max()))
        count = np.searchsorted(cumulative, rng.random(n) * cumulative[-1], "right")
        return np.stack([count, self.n_records - count], axis=1)

    @property
    def _log_factors(self):
        """Log factor of each category at every count."""
        known = np.arange(self.n_records + 1)
        # The total is known: counts are nearest to the noisy ones on it.
        scale = np.broadcast_to(np.maximum(self.scale, 0.05), np.shape(self.counts))
        variance = scale**2
        noisy = self.counts + (self.n_records - self.counts.sum()) * variance / variance.sum()
        return (
            special.gammaln(known + self.concentration[:, None])
            - special.gammaln(known + 1)
            - 0.5 * ((known - noisy[:, None]) / scale[:, None]) ** 2
        )

    @staticmethod
    def _tilted(logs, tilt):
        """Factors times ``exp(-tilt count)``, over the largest of each category."""
        tilted = logs - tilt * np.arange(logs.shape[1])
        return np.exp(tilted - tilted.max(axis=1, keepdims=True))

    @cached_property
    def _tilt(self):
        """Tilt under which the means of the counts have the total."""
        known, logs = np.arange(self.n_records + 1), self._log_factors

        def excess(tilt):
            w = self._tilted(logs, tilt)
            return (w @ known / w.sum(axis=1)).sum() - self.n_records

        low, high = -1.0, 1.0
        while excess(low) < 0:
            low *= 2
        while excess(high) > 0:
            high *= 2
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return (low + high) / 2

    @cached_property
    def _factors(self):
        """First relevant count and weights of each category, tilted to means with the total."""
        out = []
        for w in self._tilted(self._log_factors, self._tilt):
            inside = np.flatnonzero(w > 1e-18)
            out.append((inside[0], w[inside[0] : inside[-1] + 1] / w.sum()))
        return out

    @cached_property
    def _totals(self):
        """Distributions of the partial sums over categories: first value and weights of each."""
        totals = [self._factors[0]]
        for start, weights in self._factors[1:]:
            before_start, before = totals[-1]
            size = len(before) + len(weights) - 1
            if min(len(before), len(weights)) < 64:
                total = np.convolve(before, weights)
            else:
                total = np.fft.irfft(
                    np.fft.rfft(before, 2 * size) * np.fft.rfft(weights, 2 * size), 2 * size
                )[:size]
            totals.append((before_start + start, np.maximum(total, 0)))
        return totals


@dataclass(frozen=True, repr=False)
class FirstOfEach(SampledPosterior):
    """First parameters of independent posteriors.

    Attributes
    ----------
    parts : tuple of posteriors
    """

    parts: tuple

    def __repr__(self) -> str:
        return f"FirstOfEach({len(self.parts)} posteriors)"

    def without_noise(self) -> FirstOfEach:
        """Posteriors if the releases had no noise."""
        return FirstOfEach(tuple(part.without_noise() for part in self.parts))

    @property
    def log_evidence(self) -> float:
        """Log density of all releases."""
        return sum(part.log_evidence for part in self.parts)

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, number of parts)."""
        return np.stack([part.sample(rng, n)[:, 0] for part in self.parts], axis=1)


@dataclass(frozen=True, repr=False)
class CountedPosterior(SampledPosterior):
    """Posterior whose number of records is known up to normal noise: a mixture over the number.

    The number has a flat prior up to a public largest one. Given the releases, its density is
    proportional to that of its noise times the evidence of the other releases.

    Attributes
    ----------
    parts : tuple of posteriors
        One for each of a grid of numbers.
    weights : array of shape (n_parts,)
    """

    parts: tuple
    weights: np.ndarray

    def __repr__(self) -> str:
        return f"CountedPosterior({self._likeliest!r})"

    @classmethod
    def given(
        cls, posterior_of: Callable[[int], Conjugate], count: float, error: float, most: int
    ) -> CountedPosterior | Conjugate:
        """Posterior given a noisy number of records.

        Parameters
        ----------
        posterior_of : callable
            Posterior of a number of records.
        count, error : float
            Noisy number, and the standard deviation of its noise.
        most : int
            Largest number.
        """
        if error == 0:
            return posterior_of(int(np.clip(np.rint(count), 1, most)))
        reach = _COUNT_REACH * error
        low, high = np.clip([count - reach, count + reach], 1, most)
        numbers = np.unique(np.rint(np.linspace(low, high, _NUMBERS)).astype(np.int64))
        parts = tuple(posterior_of(int(n)) for n in numbers)
        evidence = np.array([part.log_evidence for part in parts])
        weights = special.softmax(evidence - ((numbers - count) / error) ** 2 / 2)
        return cls(parts, weights)

    @property
    def _likeliest(self):
        return self.parts[int(np.argmax(self.weights))]

    def without_noise(self) -> Conjugate:
        """Posterior of the likeliest number, if the releases had no noise."""
        return self._likeliest.without_noise()

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, in random order."""
        sizes = rng.multinomial(n, self.weights)
        used = zip(self.parts, sizes, strict=True)
        draws = np.concatenate([part.sample(rng, int(size)) for part, size in used if size])
        return rng.permutation(draws)


Conjugate = RatePosterior | CountsPosterior | FirstOfEach
"""A posterior given a known number of records."""
