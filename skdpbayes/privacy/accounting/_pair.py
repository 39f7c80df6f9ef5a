"""Pairs of distributions that dominate one round, per adjacency, on the real line (unit C = 1).

======== ============================== =============================== ========================
kind     P                              Q                               used by
======== ============================== =============================== ========================
remove   (1-q) N(0, s^2) + q N(1, s^2)  N(0, s^2)                       zero_out, add_remove
add      N(0, s^2)                      (1-q) N(0, s^2) + q N(1, s^2)   zero_out, add_remove
replace  (1-q) N(0, s^2) + q N(1, s^2)  (1-q) N(0, s^2) + q N(-1, s^2)  replace_one (symmetric)
======== ============================== =============================== ========================

Sources: Zhu, Dong and Wang 2022 (dominating pairs) for the first two; docs/accounting.md for the
third.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

# Standard normal abscissae on which moments of the loss are integrated.
_Z = np.linspace(-9.0, 9.0, 361)
_W = np.exp(-0.5 * _Z * _Z)
_W /= _W.sum()


def kinds(adjacency: str) -> tuple[str, ...]:
    """Return the directions whose maximum is the guarantee under `adjacency`."""
    return ("replace",) if adjacency == "replace_one" else ("remove", "add")


@dataclass(frozen=True)
class Pair:
    """One dominating pair. `sigma` is the noise multiplier, `rate` the sampling rate."""

    kind: str
    sigma: float
    rate: float

    def ratio(self, x: Floats) -> Floats:
        """Return log of mixture over N(0), increasing in `x`: the `remove` loss."""
        t = (2.0 * x - 1.0) / (2.0 * self.sigma**2)
        if self.rate == 1.0:
            return t
        # log1p keeps relative accuracy for tiny rates; logaddexp does not overflow.
        small = np.log1p(self.rate * np.expm1(np.minimum(t, 1.0)))
        large = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + t)
        return np.where(t <= 1.0, small, large)

    def statistic(self, x: Floats) -> Floats:
        """Return the increasing statistic of `x` that is the loss (its negative for `add`)."""
        return self.ratio(x) - self.ratio(-x) if self.kind == "replace" else self.ratio(x)

    def inverse(self, value: Floats) -> Floats:
        """Return the `x` at which the statistic has `value`; minus infinity below its range."""
        s2 = self.sigma**2
        if self.rate == 1.0:
            return s2 * value / 2.0 if self.kind == "replace" else s2 * value + 0.5
        log_rest, log_rate = math.log1p(-self.rate), math.log(self.rate)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if self.kind == "replace":
                # exp(x/s2) solves a quadratic; x/s2 = v/2 + asinh((1-q)/q exp(1/(2 s2)) sinh(v/2)),
                # odd in v.
                half = np.abs(value) / 2.0
                log_w = (
                    log_rest
                    - log_rate
                    + 0.5 / s2
                    + half
                    + np.log(-np.expm1(-2.0 * half))
                    - math.log(2.0)
                )
                asinh = np.where(
                    log_w < 20.0, np.arcsinh(np.exp(np.minimum(log_w, 20.0))), log_w + math.log(2.0)
                )
                return np.sign(value) * s2 * (half + asinh)
            gap = -np.expm1(log_rest - value)
            x = s2 * (value + np.log(np.maximum(gap, 0.0)) - log_rate) + 0.5
        return np.where(gap > 0.0, x, -np.inf)

    def moments(self) -> tuple[float, float]:
        """Return mean and variance of the privacy loss of one round under P, by quadrature."""
        zero = self.statistic(self.sigma * _Z)
        first, second = float(_W @ zero), float(_W @ zero**2)
        if self.kind == "add":
            return -first, max(second - first * first, 0.0)
        one = self.statistic(1.0 + self.sigma * _Z)
        q = self.rate
        mean = (1.0 - q) * first + q * float(_W @ one)
        centred = (1.0 - q) * (_W @ (zero - mean) ** 2) + q * (_W @ (one - mean) ** 2)
        return mean, float(centred)

    def window(self, tail: float) -> tuple[float, float]:
        """Return (low, high) x outside of which P has mass at most `tail` on either side."""
        z = -float(special.ndtri(tail / 2.0))
        if self.kind == "add":
            return -self.sigma * z, self.sigma * z
        z_one = -float(special.ndtri(min(0.5, tail / 2.0 / self.rate)))
        if self.rate == 1.0:
            return 1.0 - self.sigma * z, 1.0 + self.sigma * z
        return -self.sigma * z, max(self.sigma * z, 1.0 + self.sigma * z_one)

    def masses(self, edges: Floats) -> tuple[Floats, Floats]:
        """Return the masses under P and Q of the cells between increasing `edges`, and outside."""
        zero = normal_masses(edges / self.sigma)
        one = normal_masses((edges - 1.0) / self.sigma)
        q = self.rate
        mixture = (1.0 - q) * zero + q * one
        if self.kind == "remove":
            return mixture, zero
        if self.kind == "add":
            return zero, mixture
        return mixture, (1.0 - q) * zero + q * normal_masses((edges + 1.0) / self.sigma)


def normal_masses(edges: Floats) -> Floats:
    """Return standard normal masses of the n + 1 cells of n `edges`, accurate in both tails."""
    z = np.concatenate(([-np.inf], edges, [np.inf]))
    tail = special.ndtr(-np.abs(z))
    left, right = tail[:-1], tail[1:]
    positive, negative = z[:-1] >= 0.0, z[1:] <= 0.0
    masses = np.where(positive, left - right, np.where(negative, right - left, 1.0 - left - right))
    positive_masses: Floats = np.maximum(masses, 0.0)
    return positive_masses
