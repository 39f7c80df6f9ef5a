"""What every private estimator does, once: check parameters, plan the noise, run, report."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import lru_cache

from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr

from skdpbayes._version import __version__
from skdpbayes.checks import check_choice, check_number
from skdpbayes.declarations import public_schema
from skdpbayes.privacy import PrivacyLeakWarning
from skdpbayes.privacy.report import now

SEEDED = "random_state is set: other fits may share the noise, and whoever guesses the seed can remove it"

_COUNT_SHARE = (
    0.01  # of the budget (squared sensitivity over noise), for the number of usable records
)
_USUAL, _SURE = (
    0.9,
    4.0,
)  # share of records that can be used, and standard deviations below it that warn
_LEAST_ACCOUNTED = (
    0.05  # noise multiplier of a fit that asks for no privacy, below which no epsilon is worked out
)


def diagram_and_card(estimator):
    """HTML that a notebook shows: scikit-learn's diagram and, after `fit`, its cost and how many records count."""
    spent, usable = (
        getattr(estimator, "privacy_spent_", None),
        getattr(estimator, "usable_records_", None),
    )
    return (
        estimator_html_repr(estimator)
        + ("" if spent is None else spent._repr_html_())
        + ("" if usable is None else f"<div>usable records: {usable}</div>")
    )


class PrivateEstimator(BaseEstimator):
    """Common part of the estimators; subclasses name their models and parameters."""

    _html_repr = diagram_and_card

    _record = "row"  # what one is
    _scorings: tuple[
        str, ...
    ] = ()  # named scores of rows by which a private search compares models, the default first
    _declared: tuple[
        str, ...
    ] = ()  # parameters that, if None, are taken from the rows, which voids the guarantee

    def _undeclared(self):
        """Names of the parameters that would be taken from the rows."""
        return [name for name in self._declared if getattr(self, name) is None]

    def _log_density(self, X, y):
        """Log predictive density of each record, per column."""
        del y
        return self.score_samples(X) / self.n_features_in_

    def _log_volume(self):
        """Log of the range on which the uniform density is compared with the model's; from public parameters alone."""
        return 0.0

    def _public_schema(self):
        """The schema that parameters hold, in JSON's types; None without one."""
        return public_schema(self.get_params(deep=False).values())

    def _check_privacy_parameters(self):
        check_number("epsilon", self.epsilon, 0)
        check_number("delta", self.delta, 0, 1, open_above=True)
        check_choice("adjacency", self.adjacency, ("zero_out", "add_remove", "replace_one"))
        check_choice("numerics", self.numerics, ("secure", "fast"))
        if self.ledger is not None and not hasattr(self.ledger, "charge"):
            raise ValueError(f"ledger must be a PrivacyLedger or None, got {self.ledger!r}.")
        check_number("sampling_rate", self.sampling_rate, 1e-6, 1, none=True, closed=True)
        check_number("n_steps", self.n_steps, 0, 2**31 - 2, none=True, integral=True)
        check_number("clipping_norm", getattr(self, "clipping_norm", None), 1e-30, 1e30, none=True)

    def _sampling_rate(self, n_records, expected_batch):
        """The sampling rate asked for, or one that samples `expected_batch` records where N is public."""
        if self.sampling_rate is not None:
            return float(self.sampling_rate)
        if self.adjacency == "add_remove":
            raise ValueError(
                "sampling_rate=None takes the number of records from X, but under adjacency='add_remove' that number "
                "is not public. Pass sampling_rate (expected batch size over a public guess of the number of "
                "records), or use adjacency='zero_out' if the number of records may be known."
            )
        return min(1.0, expected_batch / n_records)

    def _count_step(self):
        """Release of the number of usable records: a small share of the budget, whatever the solver does."""
        from skdpbayes.privacy import GaussianSteps
        from skdpbayes.privacy.accounting._gaussian import gaussian_mu

        if math.isinf(self.epsilon):
            return GaussianSteps(0.0, 1.0, 1)
        distance = 2.0 if self.adjacency == "replace_one" else 1.0
        sigma = distance / (_COUNT_SHARE**0.5 * gaussian_mu(float(self.epsilon), float(self.delta)))
        return GaussianSteps(sigma, 1.0, 1)

    def _plan_noise(self, n_steps, sampling_rate, schedule=None):
        """Steps that are (epsilon, delta)-private beside the count; cached, since all inputs are public."""
        from skdpbayes.privacy import calibrate_noise

        return calibrate_noise(
            float(self.epsilon), float(self.delta), sampling_rate, n_steps, schedule, self.adjacency,
            along=(self._count_step(),),
        )  # fmt: skip

    def _spec(self, steps, n_chains=1):
        """What the mechanism does."""
        from skdpbayes.mechanism.spec import MechanismSpec

        spec = MechanismSpec(steps, n_chains, self.numerics)
        if math.isinf(self.epsilon) and spec.least_noise >= _LEAST_ACCOUNTED:
            return spec  # a sampler whose noise is not for privacy has an epsilon, which an exact count would void
        return replace(spec, count=self._count_step())

    def _report(self, spec, clipping_norm, *, public, voided_by=()):
        """`PrivacySpent` of this fit, from the very steps that run; earlier fits of this instance are carried along."""
        from skdpbayes.mechanism.integer_noise import noise_std, overhead
        from skdpbayes.mechanism.keys import RANDOM_SOURCE
        from skdpbayes.privacy import AccountingError, PrivacySpent, compose

        # The overhead in delta depends on epsilon, of which the one that is asked for is an upper
        # bound.
        more_epsilon, more_delta, beyond_tables = 0.0, 0.0, False
        accounted = math.isfinite(self.epsilon) or spec.least_noise >= _LEAST_ACCOUNTED
        at_most = float(self.epsilon)
        if accounted and math.isinf(
            at_most
        ):  # what a fit that asks for no privacy has nevertheless
            at_most = (
                1.01 * compose(spec.composed(), self.adjacency).epsilon(float(self.delta)) + 1e-3
            )
        if spec.levels is not None and math.isfinite(at_most):
            more_epsilon, more_delta = overhead(spec.levels, at_most)
            beyond_tables = more_epsilon > 1e-6 * at_most or more_delta > 1e-6 * self.delta
            if beyond_tables:  # and nothing is claimed
                more_epsilon = more_delta = 0.0
        delta = (self.delta - more_delta) * (1 - more_epsilon)
        if not accounted:
            epsilon, accountant, crosscheck = math.inf, "none", "not run: next to no noise"
        else:
            epsilon, accountant, crosscheck = _account(spec.composed(), delta, self.adjacency)
        epsilon += more_epsilon
        if epsilon > self.epsilon * (1 + 1e-6):
            raise AccountingError(
                f"The plan would spend epsilon={epsilon:g} where epsilon={self.epsilon:g} was asked for. "
                "Nothing was run; this is an error of the package, please report it."
            )
        earlier = getattr(self, "privacy_spent_", None)  # `clone` starts afresh
        inherited = (
            [] if earlier is None else [f"an earlier fit: {why}" for why in earlier.voided_by]
        )
        return PrivacySpent(
            epsilon=epsilon,
            delta=float(self.delta),
            adjacency=self.adjacency,
            steps=spec.rounds,
            along=spec.along,
            clipping_norm=clipping_norm,
            unit=self._record,
            accountant=accountant,
            crosscheck=crosscheck,
            numerics=spec.numerics,
            grid=None if spec.levels is None else 1 / noise_std(spec.levels),
            epsilon_overhead=more_epsilon,
            delta_overhead=more_delta,
            cumulative=() if earlier is None else earlier.cumulative + earlier.releases,
            random_source=RANDOM_SOURCE
            if spec.numerics == "secure"
            else RANDOM_SOURCE + "; noise: SFC64",
            seeded=self.random_state is not None,
            public=public,
            estimator=type(self).__name__,
            version=__version__,
            date=now(),
            schema=self._public_schema(),
            voided_by=(
                *voided_by,
                *(["no noise was added"] if math.isinf(epsilon) else []),
                *(
                    ["epsilon is too large for the finite tables of the noise"]
                    if beyond_tables
                    else []
                ),
                *self._own_voids(earlier),
                *dict.fromkeys(
                    why.replace("an earlier fit: " * 2, "an earlier fit: ") for why in inherited
                ),
            ),
        )

    def _charge(self, report):
        """Charge the ledger that is in force, if there is one, with what a fit is about to spend."""
        from skdpbayes.privacy.ledger import ledger_in_force

        ledger = ledger_in_force(self.ledger)
        if ledger is not None:
            ledger.charge(
                report.releases,
                adjacency=report.adjacency,
                unit=report.unit,
                label=type(self).__name__,
                voided_by=report.voided_by,
            )

    def __getstate__(self):
        """As in scikit-learn; one that leaves for another process, before a fit, takes the open ledger along."""
        from skdpbayes.privacy.ledger import ledger_to_take_along

        state = super().__getstate__()
        if self.ledger is None and not hasattr(self, "privacy_spent_"):
            state["ledger"] = ledger_to_take_along()
        return state | {"_skdpbayes_version": __version__}

    def __setstate__(self, state):
        """As in scikit-learn, with a warning if another version has saved it."""
        saved, own = state.get("_skdpbayes_version"), __version__
        if saved != own:
            warnings.warn(
                f"This {type(self).__name__} was saved by skdpbayes {saved} and is read by {own}: it may not work, or "
                "give other results. Read it with the version that saved it; to fit again is another release.",
                UserWarning,
                stacklevel=2,
            )
        super().__setstate__(
            {name: value for name, value in state.items() if name != "_skdpbayes_version"}
        )

    def _own_voids(self, earlier):
        """Reasons that a seed, or an earlier fit of this instance, adds to void the guarantee."""
        if self.random_state is not None:
            yield SEEDED
        if earlier is not None and earlier.numerics == "fast" and self.numerics != "fast":
            yield "an earlier fit was private in idealised arithmetic only"
        if earlier is not None and earlier.adjacency != self.adjacency:
            yield f"an earlier fit was private under adjacency={earlier.adjacency!r} only"

    def _warn_if_delta_is_large(self, n_records):
        if self.adjacency != "add_remove" and self.delta >= 1 / n_records:
            warnings.warn(
                f"delta={self.delta:g} is not below one over the number of rows ({n_records}): it allows a fit that "
                "publishes some row. Take a smaller one.",
                UserWarning,
                stacklevel=4,
            )

    def _warn_if_few_are_usable(self, usable, n_records):
        """Warn if far fewer records count than there are: what is said follows from a release and public numbers."""
        if usable is None or self.adjacency == "add_remove":
            return
        if usable.estimate < _USUAL * n_records - _SURE * usable.std:
            warnings.warn(
                f"About {usable} of {n_records} {self._record}s can be used. The others hold missing or unreadable "
                "cells (such as text in a column that was not encoded), or labels that were not declared: check "
                "`classes`, the preparation of columns and units of `bounds`, or see "
                "skdpbayes.preprocessing.check_data (not private).",
                UserWarning,
                stacklevel=4,
            )

    def _warn_if_seeded(self):
        if self.random_state is not None and not _warned:
            _warned.append("seed")
            warnings.warn(
                f"{SEEDED}. Use random_state=None for a fit that is released. (This is said once.)",
                PrivacyLeakWarning,
                stacklevel=4,
            )


_warned: list[str] = []


@lru_cache(maxsize=256)
def _account(steps, delta, adjacency):
    """Epsilon, accountant and cross-check of a list of steps; fails closed if the two accountants disagree."""
    from skdpbayes.privacy import AccountingError, compose, crosscheck

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
