"""The privacy of a composition: epsilon, delta and what they mean for an attack."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._gaussian import gaussian_delta, gaussian_epsilon, gaussian_tpr
from ._pair import kinds
from ._pld import LossDistribution, loss_distribution
from ._rdp import rdp_delta, rdp_epsilon, total_rdp
from ._steps import GaussianSteps, as_steps, check_adjacency, check_delta, merge

Floats = NDArray[np.float64]

PLD_FLOOR = 1e-10  # below this delta the rounding of an FFT matters, and RDP answers alone
_GRID = 4096


class PrivacyCurve:
    """Upper bounds on what a composition of Gaussian steps reveals about one record.

    Obtained from `compose`. Equality and pickling go by the steps and the adjacency; everything else is recomputed.

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
        ``"pld"`` (privacy loss distribution, and RDP where that is smaller), ``"gaussian"`` (closed form, all sampling
        rates 1) or ``"none"`` (some step has no noise: epsilon is infinite).

    Notes
    -----
    Bounds hold for steps fixed in advance. A mechanism chosen after seeing the results of an earlier one needs a filter
    (a ledger), not this composition.
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
        return f"PrivacyCurve({total} steps, adjacency={self.adjacency!r}, accountant={self.accountant!r})"

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

        The smaller of the PLD and the RDP answer; RDP alone for delta below 1e-10; the closed form when no step is
        subsampled.

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

        The attack decides whether a given record was used, knowing everything else. Every (epsilon, delta) of the
        curve bounds it (Kairouz, Oh and Viswanath 2015); the smallest of these bounds is returned.

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
        eps, delta = self._table
        flat = rates.reshape(-1)
        best = np.ones(flat.size)
        with np.errstate(over="ignore", invalid="ignore"):
            growth, decay = np.exp(eps), np.exp(-eps)
            for i, rate in enumerate(flat):  # one rate at a time: memory stays at one table
                scaled = growth * rate if rate > 0.0 else np.zeros(eps.size)
                forward = delta + scaled
                backward = 1.0 - decay * np.maximum(1.0 - rate - delta, 0.0)
                best[i] = min(1.0, float(np.min(forward)), float(np.min(backward)))
        return best.reshape(rates.shape)

    def advantage(self) -> float:
        """Return the largest (true positive rate - false positive rate): the total variation bound, delta(0)."""
        return float(self.delta(0.0))

    def reconstruction(self, prior: ArrayLike) -> Any:
        """Return the largest probability of reconstructing a record whose prior guess succeeds with `prior`.

        The bound of Hayes, Mahloujifar and Balle (2023), theorem 2: success is at most the true positive rate at false
        positive rate `prior`, the probability of success of the best guess made without the release.
        """
        return self.tpr(prior)


@functools.lru_cache(maxsize=64)
def _compose(steps: tuple[GaussianSteps, ...], adjacency: str) -> PrivacyCurve:
    return PrivacyCurve(steps, adjacency)


def compose(steps: GaussianSteps | Iterable[GaussianSteps], adjacency: str = "zero_out") -> PrivacyCurve:
    """Compose steps fixed in advance.

    Parameters
    ----------
    steps : GaussianSteps or iterable of GaussianSteps
        Blocks of rounds; rates and multipliers may differ between blocks.
    adjacency : {"zero_out", "add_remove", "replace_one"}
        ``"zero_out"`` and ``"add_remove"`` take the worse of the directions remove and add. ``"replace_one"`` uses
        the antipodal pair (records at distance 2C).

    Returns
    -------
    PrivacyCurve
        Nothing is computed until it is asked.
    """
    return _compose(as_steps(steps), check_adjacency(adjacency))


class EpsilonValue(float):
    """An epsilon, and how it was obtained. Behaves as a float in every way.

    Attributes
    ----------
    method : str
    is_upper_bound : bool
        False for ``method="fourier"``, which is a guarded estimate without an error term.
    """

    method: str
    is_upper_bound: bool

    def __new__(cls, value: float, method: str, is_upper_bound: bool = True) -> EpsilonValue:
        """Create the float and attach how it was obtained."""
        self = super().__new__(cls, value)
        self.method, self.is_upper_bound = method, is_upper_bound
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return EpsilonValue, (float(self), self.method, self.is_upper_bound)


METHODS = ("pld", "rdp", "fourier", "moments", "zcdp", "advanced", "linear")


def epsilon(
    steps: GaussianSteps | Iterable[GaussianSteps],
    delta: float,
    adjacency: str = "zero_out",
    method: str = "pld",
) -> EpsilonValue:
    """Return epsilon at `delta` of a composition.

    Parameters
    ----------
    steps : GaussianSteps or iterable of GaussianSteps
    delta : float
        In (0, 1).
    adjacency : {"zero_out", "add_remove", "replace_one"}
    method : {"pld", "rdp", "fourier", "moments", "zcdp", "advanced", "linear"}
        ``"pld"`` is the answer to report: the smaller of PLD and RDP, RDP alone for delta below 1e-10, closed form
        without sampling. ``"rdp"``: RDP alone. ``"fourier"``: fourier-accountant behind the guards of `crosscheck`.
        The others are the accountants of earlier papers, see `baselines`.

    Returns
    -------
    EpsilonValue
        A float with the attributes ``method`` and ``is_upper_bound`` (False for ``"fourier"``).

    Raises
    ------
    ValueError
        For unknown names or values out of range, and for ``"fourier"`` where its result cannot be trusted.
    """
    curve = compose(steps, adjacency)
    delta = check_delta(delta)
    if method == "pld":
        return EpsilonValue(curve.epsilon(delta), method)
    if method == "rdp":
        return EpsilonValue(curve.rdp_epsilon(delta), method)
    if method == "fourier":
        from ._crosscheck import fourier_epsilon

        return EpsilonValue(fourier_epsilon(curve.steps, delta, adjacency), method, is_upper_bound=False)
    if method in METHODS:
        from . import _baselines

        function = getattr(_baselines, f"{method}_epsilon")
        return EpsilonValue(function(curve.steps, delta, adjacency), method)
    raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}.")


def selection_epsilon(curve: PrivacyCurve, delta: float, mean: float, eta: float = 1.0) -> float:
    """Bound epsilon of releasing only the best of a random number of private runs.

    The number of runs is truncated negative binomial with shape `eta` and expectation `mean` (Papernot and Steinke
    2022): ``eta=1`` geometric, ``eta=0`` logarithmic. The bound is that of Koskela, Redberg and Wang (2024):
    ``delta(e) <= mean * delta_Q(e - (eta + 1) log(exp(h) + (1 - g) / g * delta_Q(h)))`` for every h >= 0; the best h is
    taken.

    Parameters
    ----------
    curve : PrivacyCurve
        One run: draw a candidate from a fixed public grid, fit, score privately, all included. If candidates differ
        in privacy, the curve must bound the worst.
    delta : float
        Of the whole selection.
    mean : float
        Expected number of runs, at least 1.
    eta : float
        Above -1.

    Returns
    -------
    float
        Upper bound on epsilon; infinity when the curve gives none.

    Raises
    ------
    ValueError
        If a value is out of range.
    """
    delta = check_delta(delta)
    if not (math.isfinite(mean) and mean >= 1.0):
        raise ValueError(f"mean, the expected number of runs, must be finite and at least 1, got {mean!r}.")
    if not (math.isfinite(eta) and eta > -1.0):
        raise ValueError(f"eta must be above -1 (0 logarithmic, 1 geometric number of runs), got {eta!r}.")
    base = curve.epsilon(delta / mean)
    if not math.isfinite(base):
        return math.inf
    odds = truncated_negative_binomial_odds(mean, eta)
    grid = np.linspace(0.0, 2.0 * base + 1.0, 4001)
    shift = np.min(np.logaddexp(grid, np.log(np.maximum(odds * np.asarray(curve.delta(grid)), 1e-300))))
    return base + (eta + 1.0) * float(shift)


def truncated_negative_binomial_odds(mean: float, eta: float) -> float:
    """Return (1 - g) / g of the truncated negative binomial law with shape `eta` and expectation `mean`.

    The expectation is ``eta (1 - g) / (g (1 - g**eta))``, or ``(1 / g - 1) / log(1 / g)`` for eta = 0.
    """

    def expectation(log_inverse: float) -> float:  # log(1 / g)
        odds = math.expm1(log_inverse)
        if log_inverse == 0.0:
            return 1.0
        if abs(eta) * log_inverse < 1e-8:
            return odds / log_inverse
        return eta * odds / -math.expm1(-eta * log_inverse)

    low, high = 0.0, 1.0
    while expectation(high) < mean:
        low, high = high, 2.0 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if expectation(middle) < mean:
            low = middle
        else:
            high = middle
    return math.expm1(high)
