"""How spending adds up: three filters, each with its currency, its limit and its proof.

Whoever looks at a result before choosing the next fit composes mechanisms adaptively, and chooses
their privacy parameters too. Composing privacy loss distributions as if all steps had been fixed
beforehand is then not a proof: two plans of delta 1.0e-5 each can give 1.67e-5, if results choose
between them. A filter counts in a currency that adds up whatever was chosen and why, and refuses
what exceeds a limit that is fixed before the first release.

=============  =============================================  ================================
composition    currency                                       limit
=============  =============================================  ================================
``renyi``      Renyi divergence at one order                  what implies (epsilon, delta)
``gaussian``   (sensitivity / noise)^2, of all records        mu^2 that is (epsilon, delta)
``plan``       fits of a plan, each the next of them          their number
=============  =============================================  ================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import minimize_scalar

from skdpbayes.privacy.accounting._curve import compose
from skdpbayes.privacy.accounting._gaussian import gaussian_epsilon, gaussian_mu
from skdpbayes.privacy.accounting._rdp import rdp_epsilon
from skdpbayes.privacy.accounting._spending import Spending
from skdpbayes.privacy.accounting._steps import GaussianSteps, merge

COMPOSITIONS = ("renyi", "gaussian", "plan")
KEPT = 1 - 1e-9
"""Usable share of a budget: the rest is for finite arithmetic (`overhead`) and rounded sums."""


class BudgetError(ValueError):
    """A fit would spend more than its ledger has left. Nothing was run and nothing was spent.

    Examples
    --------
    >>> from skdpbayes.privacy import BudgetError, GaussianSteps, PrivacyLedger
    >>> ledger = PrivacyLedger(epsilon=1.0, delta=1e-5)
    >>> try:
    ...     ledger.charge([GaussianSteps(1.0, 1.0, 1)])
    ... except BudgetError:
    ...     print(ledger.spent)
    0.0
    """


class Price(NamedTuple):
    """Cost of a spending, in a filter's currency.

    Attributes
    ----------
    cost : float
    may_take_all : bool
        Whether it is accepted as the only one, although its cost exceeds the limit.
    """

    cost: float
    may_take_all: bool = False


class Charge(NamedTuple):
    """A spending that was accepted, and its cost."""

    spending: Spending
    cost: float


class Filter(Protocol):
    """A rule that accepts charges until they would exceed a limit."""

    limit: float
    order: float | None

    def price(self, spending: Spending) -> Price:
        """Price of a spending; raises `BudgetError` if the currency has none for it."""

    def check_turn(self, spending: Spending, n_charges: int) -> None:
        """Raise a `BudgetError` if something else has to come next."""

    def epsilon(self, charges: Sequence[Charge]) -> float:
        """Epsilon, at the budget's delta, of some charges (at least one)."""

    def affordable_square(self, left: float, *, n_fits: int, is_first: bool) -> float:
        """(sensitivity / noise)^2 that each of `n_fits` may spend, with releases of all records."""


class RenyiFilter:
    """Renyi divergences at one order; any spending.

    Parameters
    ----------
    epsilon, delta : float
    adjacency : str
    order : float or None
        None takes the order at which the budget buys most releases of all records.

    Notes
    -----
    **Formal guarantee.** All charges together are (epsilon, delta)-private, however results of
    earlier ones choose later ones, if (i) each is charged before it draws noise, (ii) the order is
    fixed before the first, and (iii) a charge is accepted only if the sum of costs stays within
    `limit`, or if it is the first and `Price.may_take_all`.

    *Proof.* Divergences at a fixed order add up under adaptive composition with adaptively chosen
    parameters, as long as their sum is stopped at a constant (Feldman and Zrnic 2021),
    and a divergence of at most `limit` implies (epsilon, delta) (Canonne, Kamath and Steinke 2020,
    proposition 12). It remains to show that the first charge may exceed the limit. It is fixed
    before any release, so which of two cases holds does not depend on the records. If its
    divergence exceeds the limit, no other charge is ever accepted, since divergences only add up:
    that one mechanism is all that is released, and it was accepted for its exact composition, which
    holds for steps that are fixed beforehand. If not, all charges together stay within the limit,
    and the filter's theorem holds for them, the first included. QED

    ``tests/privacy/test_ledger.py``:
    `test_what_is_taken_stays_within_the_budget_and_nearly_uses_it` dies if the limit is too large,
    `test_only_the_first_may_exceed_the_filter` if another than the first may exceed it.
    """

    def __init__(self, epsilon: float, delta: float, adjacency: str, order: float | None) -> None:
        self._order = _best_order(epsilon, delta) if order is None else float(order)
        self.order: float | None = self._order
        self._epsilon, self._delta, self._adjacency = epsilon, delta, adjacency
        self.limit = _limit_at(self._order, epsilon, delta) * KEPT
        if self.limit <= 0:
            raise ValueError(
                f"At order={self._order:g} nothing can be spent within this budget; "
                "take a larger one."
            )

    def price(self, spending: Spending) -> Price:
        """Divergence at the order."""
        if not spending.has_noise:
            return Price(math.inf)
        cost = spending.divergence(self._order, self._adjacency)
        if cost <= self.limit:
            return Price(cost)
        alone = spending.epsilon(self._delta, self._adjacency)
        return Price(cost, may_take_all=alone <= self._epsilon * KEPT)

    def check_turn(self, spending: Spending, n_charges: int) -> None:
        """Anything may come next."""

    def epsilon(self, charges: Sequence[Charge]) -> float:
        """Of one charge its exact composition; of several what the sum of divergences implies."""
        if len(charges) == 1:  # nothing was chosen after looking yet
            return charges[0].spending.epsilon(self._delta, self._adjacency)
        return rdp_epsilon(np.array([_total(charges)]), self._delta, np.array([self._order]))

    def affordable_square(self, left: float, *, n_fits: int, is_first: bool) -> float:
        """Square whose divergence, ``order / 2`` times the square, is left."""
        square = 2 * left / self._order / n_fits
        if is_first and n_fits == 1:  # the only one, if it takes all
            square = max(square, gaussian_mu(self._epsilon * KEPT, self._delta) ** 2 * KEPT)
        return square


class GaussianFilter:
    """Squared ratios of sensitivity to noise; only releases of all records.

    Notes
    -----
    **Formal guarantee.** All charges together are (epsilon, delta)-private under conditions (i) and
    (iii) of `RenyiFilter` (no charge may exceed the limit).

    *Proof.* Gaussian releases whose squared ratios sum to at most a constant mu^2, chosen
    adaptively, are dominated by one Gaussian release of ratio mu (Smith and Thakurta 2022),
    and `limit` is the largest mu^2 that is (epsilon, delta)-private. QED

    ``tests/privacy/test_ledger.py::test_releases_of_all_records_lose_nothing`` dies if the limit or
    the distance of an adjacency is wrong.
    """

    def __init__(self, epsilon: float, delta: float, adjacency: str) -> None:
        self._delta = delta
        self.order: float | None = None
        self._distance = 2.0 if adjacency == "replace_one" else 1.0
        self.limit = gaussian_mu(epsilon, delta) ** 2 * KEPT

    def price(self, spending: Spending) -> Price:
        """Sum of squared ratios."""
        if not spending.has_noise:
            return Price(math.inf)
        rounds = _fixed_rounds(spending, "gaussian")
        if any(step.sampling_rate < 1 for step in rounds):
            raise BudgetError(
                "A ledger with composition='gaussian' takes only fits with sampling_rate=1; open "
                "one with composition='renyi' for others."
            )
        squares = (step.steps * (self._distance / step.noise_multiplier) ** 2 for step in rounds)
        return Price(math.fsum(squares))

    def check_turn(self, spending: Spending, n_charges: int) -> None:
        """Anything may come next."""

    def epsilon(self, charges: Sequence[Charge]) -> float:
        """Epsilon of one Gaussian release with the sum of squares."""
        return gaussian_epsilon(self._delta, math.sqrt(_total(charges)))

    def affordable_square(self, left: float, *, n_fits: int, is_first: bool) -> float:
        """Equal shares of what is left."""
        del is_first
        return left / n_fits


class PlanFilter:
    """Fits of a plan, in their order.

    Notes
    -----
    **Formal guarantee.** All charges together are (epsilon, delta)-private under condition (i) of
    `RenyiFilter`, if a charge is accepted only as the next fit of the plan.

    *Proof.* Releases are those of the plan or its first fits, which were fixed before any release,
    so the composition of the plan bounds them; the constructor refuses a plan whose epsilon exceeds
    the budget. Equal compositions (`merge`) count as equal fits. QED

    ``tests/privacy/test_ledger.py::test_plans_are_kept_to_and_composed_tightly`` dies if another
    fit is accepted, or a plan beyond the budget.
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        adjacency: str,
        plan: Sequence[tuple[GaussianSteps, ...]],
    ) -> None:
        self.order: float | None = None
        self._plan = plan
        self._planned = compose([step for steps in plan for step in steps], adjacency).epsilon(
            delta
        )
        if self._planned > epsilon:
            raise ValueError(
                f"The plan spends epsilon={self._planned:.6g}, more than the budget of {epsilon:g}."
            )
        self.limit = float(len(plan))

    def price(self, spending: Spending) -> Price:
        """One fit."""
        if not spending.has_noise:
            return Price(math.inf)
        _fixed_rounds(spending, "plan")
        return Price(1.0)

    def check_turn(self, spending: Spending, n_charges: int) -> None:
        """Raise a `BudgetError` if it is not the next fit of the plan."""
        if n_charges >= len(self._plan):
            return  # complete: the limit refuses it
        given, planned = _fixed_rounds(spending, "plan"), self._plan[n_charges]
        if merge(given) != planned:
            raise BudgetError(
                f"The next fit of the plan is {planned}, and not {given}. Fits of a plan come as "
                "they were planned, in their order."
            )

    def epsilon(self, charges: Sequence[Charge]) -> float:
        """Epsilon of the whole plan."""
        del charges
        return self._planned

    def affordable_square(self, left: float, *, n_fits: int, is_first: bool) -> float:
        """Raise: a plan leaves no choice."""
        raise ValueError("A plan leaves no choice: see `plan` for what its next fit is.")


def new_filter(
    composition: str,
    epsilon: float,
    delta: float,
    adjacency: str,
    *,
    order: float | None,
    plan: Sequence[tuple[GaussianSteps, ...]] | None,
) -> Filter:
    """Filter of a composition, with the parameters that are checked here."""
    if composition not in COMPOSITIONS:
        known = ", ".join(map(repr, COMPOSITIONS))
        raise ValueError(f"composition must be one of {known}, got {composition!r}.")
    if (plan is not None) != (composition == "plan"):
        raise ValueError("plan is needed with composition='plan', and with no other.")
    if order is not None and (composition != "renyi" or not 1 < order < math.inf):
        raise ValueError(f"order must be above 1, and needs composition='renyi', got {order!r}.")
    if plan is not None:
        return PlanFilter(epsilon, delta, adjacency, plan)
    if composition == "gaussian":
        return GaussianFilter(epsilon, delta, adjacency)
    return RenyiFilter(epsilon, delta, adjacency, order)


def _fixed_rounds(spending: Spending, composition: str) -> tuple[GaussianSteps, ...]:
    if spending.rounds is None:
        raise BudgetError(
            f"A ledger with composition={composition!r} cannot take a private search, whose cost "
            "is no sum of steps; open one with composition='renyi'."
        )
    return spending.rounds


def _total(charges: Sequence[Charge]) -> float:
    return math.fsum(charge.cost for charge in charges)


def _limit_at(order: float, epsilon: float, delta: float) -> float:
    """Largest Renyi divergence at an order that implies (epsilon, delta).

    Canonne, Kamath and Steinke (2020), proposition 12, solved for the divergence.
    """
    return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)


def _best_order(epsilon: float, delta: float) -> float:
    """Order that allows most Gaussian releases, whose divergence is proportional to it."""
    found = minimize_scalar(
        lambda log: -_limit_at(1 + math.exp(log), epsilon, delta) / (1 + math.exp(log)),
        bounds=(-6, 14),
        method="bounded",
    )
    return 1 + math.exp(float(found.x))
