"""Privacy of releasing only the best of a random number of private runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skdpbayes.privacy.accounting._curve import PrivacyCurve, compose
from skdpbayes.privacy.accounting._rdp import ORDERS, rdp_at, total_rdp
from skdpbayes.privacy.accounting._steps import GaussianSteps, as_steps, check_delta


@dataclass(frozen=True)
class Selection:
    """Cost of releasing the best of a random number of private runs, for a ledger.

    The number of runs is truncated negative binomial, as in `selection_epsilon`.

    Parameters
    ----------
    runs : sequence of sequences of GaussianSteps
        Everything that one run may release: for each alternative (a candidate's fit, or the score,
        if no record is in both) its steps.
    mean : float
        Expected number of runs, at least 1.
    eta : float
        Shape of the law, above -1.

    Raises
    ------
    ValueError
        If a value is out of range.

    Examples
    --------
    >>> from skdpbayes.privacy import GaussianSteps, PrivacyLedger, Selection
    >>> ledger = PrivacyLedger(epsilon=2.0, delta=1e-5)
    >>> best_of_ten = Selection([[GaussianSteps(20.0, 1.0, 1)]], mean=10, eta=0.0)
    >>> ledger.charge(best_of_ten, label="best of ten")
    >>> 0 < ledger.spent < 1
    True
    """

    runs: tuple[tuple[GaussianSteps, ...], ...]
    mean: float
    eta: float

    def __post_init__(self) -> None:
        _check_law(self.mean, self.eta)
        runs = tuple(dict.fromkeys(as_steps(steps) for steps in self.runs))
        if not runs:
            raise ValueError("runs must name what a run releases, got none.")
        object.__setattr__(self, "runs", runs)
        object.__setattr__(self, "mean", float(self.mean))
        object.__setattr__(self, "eta", float(self.eta))

    @property
    def rounds(self) -> None:
        """None: chance decides how many runs there are, and which."""

    @property
    def has_noise(self) -> bool:
        """Whether each release of each run has noise."""
        return all(step.noise_multiplier > 0 for run in self.runs for step in run)

    def epsilon(self, delta: float, adjacency: str) -> float:
        """Upper bound on epsilon, from whole privacy profiles (`selection_epsilon`)."""
        curves = [compose(steps, adjacency) for steps in self.runs]
        return selection_epsilon(_Worst(curves), delta, self.mean, self.eta)

    def divergence(self, order: float, adjacency: str) -> float:
        """Upper bound on the Renyi divergence of the selection at an order.

        Let D(a) be the divergence of one run at order a, and let the law of the number of runs have
        mean m and odds (1 - g) / g. The bound (Papernot and Steinke 2022, theorem 2) is, for the
        best a >= 1,

        ``D(order) + (1 + eta) * ((1 - 1 / a) * D(a) + log(1 / g) / a) + log(m) / (order - 1)``.

        D is the largest divergence of all alternatives: which one a run draws may be known, and
        does not depend on the records.
        """
        at_order = max(rdp_at(run, order, adjacency) for run in self.runs)
        elsewhere = np.max([total_rdp(run, adjacency) for run in self.runs], axis=0)
        log_inverse = math.log1p(
            truncated_negative_binomial_odds(self.mean, self.eta)
        )  # log(1 / g)
        both = (1 - 1 / ORDERS) * elsewhere + log_inverse / ORDERS
        least = min(float(both.min()), log_inverse)  # at a = 1
        return at_order + (1 + self.eta) * least + math.log(self.mean) / (order - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON's types."""
        runs = [[step.to_dict() for step in run] for run in self.runs]
        return {"runs": runs, "mean": self.mean, "eta": self.eta}

    def to_entry(self) -> dict[str, Any]:
        """Fields of a ledger's entry."""
        return {"steps": [], "selection": self.to_dict()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Selection:
        """Rebuild from `to_dict`."""
        runs = tuple(tuple(GaussianSteps(**step) for step in run) for run in record["runs"])
        return cls(runs, record["mean"], record["eta"])


class _Worst:
    """Several privacy curves as one that bounds each of them."""

    def __init__(self, curves: Iterable[PrivacyCurve]) -> None:
        self._curves = list(curves)

    def epsilon(self, delta: float) -> float:
        return max(curve.epsilon(delta) for curve in self._curves)

    def delta(self, epsilon: ArrayLike) -> NDArray[np.float64]:
        worst: NDArray[np.float64] = np.max([c.delta(epsilon) for c in self._curves], axis=0)
        return worst


def _check_law(mean: float, eta: float) -> None:
    if not (math.isfinite(mean) and mean >= 1.0):
        raise ValueError(
            f"mean, the expected number of runs, must be finite and at least 1, got {mean!r}."
        )
    if not (math.isfinite(eta) and eta > -1.0):
        raise ValueError(
            f"eta must be above -1 (0 logarithmic, 1 geometric number of runs), got {eta!r}."
        )


def selection_epsilon(
    curve: PrivacyCurve | _Worst, delta: float, mean: float, eta: float = 1.0
) -> float:
    """Bound epsilon of releasing only the best of a random number of private runs.

    The number of runs is truncated negative binomial with shape `eta` and expectation `mean`
    (Papernot and Steinke 2022): ``eta=1`` geometric, ``eta=0`` logarithmic. The bound is that of
    Koskela, Redberg and Wang (2024): ``delta(e) <= mean * delta_Q(e - (eta + 1) log(exp(h) + (1 -
    g) / g * delta_Q(h)))`` for every h >= 0; the best h is taken.

    Parameters
    ----------
    curve : PrivacyCurve
        One run: draw a candidate from a fixed public grid, fit, score privately, all included. If
        candidates differ in privacy, the curve must bound the worst.
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

    Examples
    --------
    >>> from skdpbayes.privacy import GaussianSteps, compose, selection_epsilon
    >>> one = compose(GaussianSteps(10.0, 1.0, 1))
    >>> one.epsilon(1e-5) < selection_epsilon(one, 1e-5, mean=10) < 10 * one.epsilon(1e-6)
    True
    """
    delta = check_delta(delta)
    _check_law(mean, eta)
    base = curve.epsilon(delta / mean)
    if not math.isfinite(base):
        return math.inf
    odds = truncated_negative_binomial_odds(mean, eta)
    grid = np.linspace(0.0, 2.0 * base + 1.0, 4001)
    shift = np.min(
        np.logaddexp(grid, np.log(np.maximum(odds * np.asarray(curve.delta(grid)), 1e-300)))
    )
    return base + (eta + 1.0) * float(shift)


@functools.cache
def truncated_negative_binomial_odds(mean: float, eta: float) -> float:
    """Return the odds (1 - g) / g of a truncated negative binomial law.

    Its shape is `eta` and its expectation `mean`: ``eta (1 - g) / (g (1 - g**eta))``, or ``(1 / g -
    1) / log(1 / g)`` for eta = 0.
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
