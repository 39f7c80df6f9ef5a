"""The privacy of a composition: epsilon, delta and what they mean for an attack."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpbayes.privacy.accounting._gaussian import gaussian_delta, gaussian_epsilon, gaussian_tpr
from skdpbayes.privacy.accounting._pair import kinds
from skdpbayes.privacy.accounting._pld import LossDistribution, loss_distribution
from skdpbayes.privacy.accounting._rdp import rdp_delta, rdp_epsilon, total_rdp
from skdpbayes.privacy.accounting._steps import (
    GaussianSteps,
    as_steps,
    check_adjacency,
    check_delta,
    merge,
)

Floats = NDArray[np.float64]

PLD_FLOOR = 1e-10  # below this delta the rounding of an FFT matters, and RDP answers alone
_GRID = 4096


def tpr_bound(fpr: ArrayLike, epsilon: ArrayLike, delta: ArrayLike) -> Floats:
    """Return the largest true positive rate at `fpr` on an (epsilon, delta)-private mechanism.

    Kairouz, Oh and Viswanath (2015), in both directions. The three broadcast; epsilon is finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        forward = delta + np.where(np.equal(fpr, 0.0), 0.0, np.exp(epsilon) * fpr)
    backward = 1.0 - np.exp(np.negative(epsilon)) * np.maximum(np.subtract(1.0, fpr) - delta, 0.0)
    return np.minimum(np.minimum(forward, backward), 1.0)


class PrivacyCurve:
    """Upper bounds on what a composition of Gaussian steps reveals about one record.

    Obtained from `compose`. Equality and pickling go by the steps and the adjacency; everything
    else is recomputed.

    Parameters
    ----------
    steps : tuple of GaussianSteps
    adjacency : {"zero_out", "add_remove", "replace_one"}

    Attributes
    ----------
    steps : tuple of GaussianSteps
        As given.
    adjacency : str
    accountant : str
        ``"pld"`` (privacy loss distribution, and RDP where that is smaller), ``"gaussian"`` (closed
        form, all sampling rates 1) or ``"none"`` (some step has no noise: epsilon is infinite).

    Notes
    -----
    Bounds hold for steps fixed in advance. A mechanism chosen after seeing the results of an
    earlier one needs a filter (a ledger), not this composition.

    Examples
    --------
    >>> from skdpbayes.privacy import GaussianSteps, compose
    >>> curve = compose(GaussianSteps(noise_multiplier=5.0, sampling_rate=1.0, steps=1))
    >>> round(curve.epsilon(1e-5), 2)
    0.73
    >>> round(curve.tpr(0.01), 3)  # of an attack with 1% false alarms, at most
    0.017
    """

    def __init__(self, steps: tuple[GaussianSteps, ...], adjacency: str) -> None:
        self.steps = steps
        self.adjacency = adjacency
        self._merged = merge(steps)
        if self._merged[0].noise_multiplier == 0.0:
            self.accountant = "none"
        elif len(self._merged) == 1 and self._merged[0].sampling_rate == 1.0:
            self.accountant = "gaussian"
        else:
            self.accountant = "pld"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PrivacyCurve):
            return NotImplemented
        return (self.steps, self.adjacency) == (other.steps, other.adjacency)

    def __hash__(self) -> int:
        return hash((self.steps, self.adjacency))

    def __reduce__(self) -> tuple[Any, ...]:
        return compose, (self.steps, self.adjacency)

    def __repr__(self) -> str:
        total = sum(block.steps for block in self.steps)
        return (
            f"PrivacyCurve({total} steps, adjacency={self.adjacency!r}, "
            f"accountant={self.accountant!r})"
        )

    @property
    def _mu(self) -> float:
        sensitivity = 2.0 if self.adjacency == "replace_one" else 1.0
        return sensitivity / self._merged[0].noise_multiplier

    @functools.cached_property
    def _losses(self) -> tuple[LossDistribution, ...]:
        return tuple(loss_distribution(self._merged, kind) for kind in kinds(self.adjacency))

    @functools.cached_property
    def _rdp(self) -> Floats:
        return total_rdp(self._merged, self.adjacency)

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon at `delta`, in both directions.

        The smaller of the PLD and the RDP answer; RDP alone for delta below 1e-10; the closed form
        when no step is subsampled.

        Raises
        ------
        ValueError
            If `delta` is not in (0, 1).
        """
        delta = check_delta(delta)
        if self.accountant == "none":
            return math.inf
        if self.accountant == "gaussian":
            return gaussian_epsilon(delta, self._mu)
        if delta < PLD_FLOOR:
            return rdp_epsilon(self._rdp, delta)
        return min(self.pld_epsilon(delta), rdp_epsilon(self._rdp, delta))

    def pld_epsilon(self, delta: float) -> float:
        """Return the PLD answer alone (the closed form when no step is subsampled)."""
        if self.accountant != "pld":
            return self.epsilon(delta)
        return max(loss.epsilon(delta) for loss in self._losses)

    def rdp_epsilon(self, delta: float) -> float:
        """Return the RDP answer alone."""
        if self.accountant == "none":
            return math.inf
        return rdp_epsilon(self._rdp, check_delta(delta))

    def delta(self, epsilon: ArrayLike) -> Any:
        """Return an upper bound on delta at `epsilon`, in both directions.

        Parameters
        ----------
        epsilon : float or array_like
            At least 0.

        Returns
        -------
        float, or ndarray of the shape of `epsilon`
        """
        eps = np.asarray(epsilon, dtype=float)
        if np.isnan(eps).any() or (eps < 0.0).any():
            raise ValueError(f"epsilon must be at least 0, got {epsilon!r}.")
        if self.accountant == "none":
            values = np.ones(eps.shape)
        elif self.accountant == "gaussian":
            values = gaussian_delta(eps, self._mu)
        else:
            by_pld = functools.reduce(np.maximum, [loss.delta(eps) for loss in self._losses])
            by_rdp = rdp_delta(self._rdp, eps)
            values = np.minimum(by_rdp, by_pld)
        return float(values) if values.ndim == 0 else values

    def tpr(self, fpr: ArrayLike) -> Any:
        """Return the largest true positive rate of any attack that has false positive rate `fpr`.

        The attack decides whether a given record was used, knowing everything else. Every (epsilon,
        delta) of the curve bounds it (Kairouz, Oh and Viswanath 2015); the smallest of these bounds
        is returned.

        Parameters
        ----------
        fpr : float or array_like
            In [0, 1].

        Returns
        -------
        float, or ndarray of the shape of `fpr`
        """
        rates = np.asarray(fpr, dtype=float)
        if np.isnan(rates).any() or (rates < 0.0).any() or (rates > 1.0).any():
            raise ValueError(f"fpr must be in [0, 1], got {fpr!r}.")
        if self.accountant == "none":
            values = np.ones(rates.shape)
        elif self.accountant == "gaussian":
            values = gaussian_tpr(rates, self._mu)
        else:
            values = self._tpr_from_curve(rates)
        return float(values) if values.ndim == 0 else values

    @functools.cached_property
    def _table(self) -> tuple[Floats, Floats]:
        top = self.epsilon(PLD_FLOOR)
        eps = np.linspace(0.0, top, _GRID) if math.isfinite(top) else np.zeros(1)
        return eps, np.asarray(self.delta(eps))

    def _tpr_from_curve(self, rates: Floats) -> Floats:
        best = [
            np.min(tpr_bound(rate, *self._table)) for rate in rates.reshape(-1)
        ]  # memory stays at one table
        return np.array(best).reshape(rates.shape)

    def advantage(self) -> float:
        """Return the largest (true positive rate - false positive rate), which is delta(0)."""
        return float(self.delta(0.0))

    def reconstruction(self, prior: ArrayLike) -> Any:
        """Return the largest probability of reconstructing a record, guessed before with `prior`.

        The bound of Hayes, Mahloujifar and Balle (2023), theorem 2: success is at most the true
        positive rate at false positive rate `prior`, the probability of success of the best guess
        made without the release.
        """
        return self.tpr(prior)


@functools.lru_cache(maxsize=64)
def _compose(steps: tuple[GaussianSteps, ...], adjacency: str) -> PrivacyCurve:
    return PrivacyCurve(steps, adjacency)


def compose(
    steps: GaussianSteps | Iterable[GaussianSteps], adjacency: str = "zero_out"
) -> PrivacyCurve:
    """Compose steps fixed in advance.

    Parameters
    ----------
    steps : GaussianSteps or iterable of GaussianSteps
        Blocks of rounds; rates and multipliers may differ between blocks.
    adjacency : {"zero_out", "add_remove", "replace_one"}
        ``"zero_out"`` and ``"add_remove"`` take the worse of the directions remove and add.
        ``"replace_one"`` uses the antipodal pair (records at distance 2C).

    Returns
    -------
    PrivacyCurve
        Nothing is computed until it is asked.

    Notes
    -----
    **Formal guarantee.** A mechanism that makes these releases is (e, ``curve.delta(e)``)-private
    for every e >= 0 and (``curve.epsilon(d)``, d)-private for every d, with this adjacency, if (i)
    each round is one of the Poisson-subsampled Gaussian mechanism, whose query may depend on
    earlier releases (`private_sum`); (ii) rates, multipliers and numbers of rounds are fixed in
    advance.

    *Proof.* One round with any query is dominated by the pair of `Pair`, in each direction that
    the adjacency has (`kinds`). The product of pairs that dominate every round dominates the
    composition, adaptive queries included (Zhu, Dong and Wang 2022, theorem 10), so the order of
    steps does not matter, and equal ones may be merged (`merge`). Its hockey-stick divergence is
    bounded from above twice. `loss_distribution` replaces each pair by a discrete one that
    dominates it, and charges tails, the window of the FFT and its rounding to delta. `total_rdp`
    adds Renyi divergences, whose conversion is a bound at every order. The smaller of two upper
    bounds is one, and the larger of both directions is returned. Without sampling, the composition
    is one Gaussian release, in closed form. QED (``docs/accounting.md`` has the details.)

    ``tests/privacy/test_accounting.py``: `test_one_round_is_exact_from_above`,
    `test_two_different_rounds_never_below_the_truth` and
    `test_fft_composition_of_gaussians_is_exact_from_above` die if a bound falls below the truth,
    `test_tails_of_rounds_and_window_are_charged_in_compositions` and `test_fft_rounding_is_charged`
    if an error is not charged, `test_the_worse_direction_counts` if a direction is lost.

    Examples
    --------
    >>> from skdpbayes.privacy import GaussianSteps, compose
    >>> curve = compose([GaussianSteps(2.0, 0.01, 5000), GaussianSteps(4.0, 0.01, 5000)])
    >>> 1.5 < curve.epsilon(1e-5) < 2.2
    True
    >>> curve.delta(curve.epsilon(1e-5)) <= 1e-5
    True
    """
    return _compose(as_steps(steps), check_adjacency(adjacency))
