"""Cost of a plan: `PrivacySpent` from the same steps that run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from skdpbayes._version import __version__
from skdpbayes.mechanism.integer_noise import noise_std, overhead
from skdpbayes.mechanism.keys import RANDOM_SOURCE
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.plans.settings import BEYOND_TABLES, LEAST_ACCOUNTED, SEEDED, Settings
from skdpbayes.privacy import report as reports
from skdpbayes.privacy.accounting import AccountingError, GaussianSteps, compose, crosscheck
from skdpbayes.privacy.report import PrivacySpent
from skdpbayes.privacy.spent import weaker_before

_EARLIER = "an earlier fit: "


class Told(NamedTuple):
    """Facts that a report states beside its numbers.

    Attributes
    ----------
    estimator, unit : str
        Class of the estimator, and the unit of privacy.
    public : mapping
        Facts that the guarantee takes to be public.
    schema : dict or None
        Schema, in JSON types.
    seeded : bool
        Whether `random_state` is set.
    voided_by : tuple of str
        Reasons that void the guarantee, except the seed and earlier fits.
    earlier : PrivacySpent or None
        Report of earlier fits of the same object.
    """

    estimator: str
    unit: str
    public: Mapping[str, Any]
    schema: dict[str, Any] | None
    seeded: bool
    voided_by: tuple[str, ...]
    earlier: PrivacySpent | None


def report(
    settings: Settings, spec: MechanismSpec, clipping_norm: float | None, told: Told
) -> PrivacySpent:
    """`PrivacySpent` of a plan, including earlier fits of the same object.

    Raises
    ------
    AccountingError
        If the plan would spend more than the budget, or if the accountants disagree.
    """
    # The overhead in delta depends on epsilon; the requested epsilon is an upper bound of it.
    more_epsilon, more_delta, beyond_tables = 0.0, 0.0, False
    accounted = settings.private or spec.least_noise >= LEAST_ACCOUNTED
    delta, at_most = float(settings.delta), float(settings.epsilon)
    if accounted and math.isinf(at_most):  # a fit with epsilon=inf may be private all the same
        at_most = 1.01 * compose(spec.composed(), settings.adjacency).epsilon(delta) + 1e-3
    if spec.levels is not None and math.isfinite(at_most):
        more_epsilon, more_delta = overhead(spec.levels, at_most)
        beyond_tables = more_epsilon > 1e-6 * at_most or more_delta > 1e-6 * delta
        if beyond_tables:  # the report claims nothing
            more_epsilon = more_delta = 0.0
    if not accounted:
        epsilon, accountant, check = math.inf, "none", "not run: next to no noise"
    else:
        left = (delta - more_delta) * (1 - more_epsilon)
        epsilon, accountant, check = _account(spec.composed(), left, settings.adjacency)
    epsilon += more_epsilon
    if epsilon > settings.epsilon * (1 + 1e-6):
        raise AccountingError(
            f"The plan would spend epsilon={epsilon:g} where epsilon={settings.epsilon:g} was "
            "asked for. Nothing was run; this is an error of the package, please report it."
        )
    voided_by = list(told.voided_by)
    if math.isinf(epsilon):
        voided_by.append("no noise was added")
    if beyond_tables:
        voided_by.append(BEYOND_TABLES)
    earlier = told.earlier
    secure = spec.numerics == "secure"
    return PrivacySpent(
        epsilon=epsilon,
        delta=delta,
        adjacency=settings.adjacency,
        steps=spec.rounds,
        along=spec.along,
        clipping_norm=clipping_norm,
        unit=told.unit,
        not_covered=reports.not_covered(told.unit),
        accountant=accountant,
        crosscheck=check,
        numerics=spec.numerics,
        grid=None if spec.levels is None else 1 / noise_std(spec.levels),
        epsilon_overhead=more_epsilon,
        delta_overhead=more_delta,
        cumulative=() if earlier is None else earlier.cumulative + earlier.releases,
        random_source=RANDOM_SOURCE if secure else RANDOM_SOURCE + "; noise: SFC64",
        seeded=told.seeded,
        public=told.public,
        estimator=told.estimator,
        version=__version__,
        date=reports.now(),
        schema=told.schema,
        voided_by=(*voided_by, *_voids(settings, told)),
    )


def _voids(settings: Settings, told: Told) -> Iterator[str]:
    """Reasons that void the guarantee because of the seed or of earlier fits."""
    if told.seeded:
        yield SEEDED
    earlier = told.earlier
    if earlier is None:
        return
    yield from weaker_before(
        earlier, numerics=settings.numerics, adjacency=settings.adjacency, unit=told.unit
    )
    yield from dict.fromkeys(
        (_EARLIER + why).replace(_EARLIER * 2, _EARLIER) for why in earlier.voided_by
    )


@lru_cache(maxsize=256)
def _account(
    steps: tuple[GaussianSteps, ...], delta: float, adjacency: str
) -> tuple[float, str, str]:
    """Epsilon, accountant and cross-check of the steps.

    Raises
    ------
    AccountingError
        If the two accountants disagree.
    """
    curve = compose(steps, adjacency)
    epsilon = curve.epsilon(delta)
    if not math.isfinite(epsilon):
        return epsilon, curve.accountant, "not run: no noise"
    check = crosscheck(steps, epsilon, delta, adjacency)
    if check.disagrees:
        raise AccountingError(
            f"The independent accountant contradicts epsilon={epsilon:.6g}: {check}."
        )
    return epsilon, curve.accountant, str(check)
