"""Base of the density estimators of conjugate exponential families."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from scipy import special
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_number
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._densities import DensityScoreMixin
from skdpbayes.estimators._posterior import PosteriorEstimator
from skdpbayes.intake.reading import PlainRows, Reader
from skdpbayes.posteriors.base import MappedPosterior

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan

_PARAMETERS = """epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` gives the non-private model.
    delta : float, default=1e-5
        Probability with which the privacy bound may fail; well below one over the number of
        rows."""

_SOLVER = """solver : {"vips", "dpvi", "na-dpvi", "sgld"}, default="vips"
        All release the sums of a bounded statistic once, and give the exact posterior, noise
        included: the scores of a family are linear in its statistic, so that rounds say no more.
        The gradient solvers go in rounds (see `DPBayesianLogisticRegression`) if a parameter of
        rounds is given, but for a `sampling_rate` of 1. If `max_rows_per_person` exceeds one there
        are two releases, of a centre and of sums about it (``docs/persons.md``).
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighbouring relation. Under ``"add_remove"`` the number of rows is private. It is released
        beside the sums, and the posterior includes its noise; rounds need a `sampling_rate`.
    numerics : {"secure", "fast"}, default="secure"
        Arithmetic of sums and noise. "secure" is integer arithmetic, for which the guarantee is
        proved. "fast" is floating point: the proof assumes exact arithmetic, and an adversary who
        knows all other rows may learn from the last bits of a release.
    max_rows_per_person : int, default=None
        Largest number of rows of a person. It makes the person the unit of privacy: `fit` takes the
        persons' names as `groups`, and keeps at most this many rows of each, evenly spaced. None:
        the row is the unit.
    ledger : PrivacyLedger, default=None
        Budget to charge; it refuses a fit that exceeds it. None: the ledger opened by ``with``, if
        any.
    clipping_norm, sampling_rate, n_steps, learning_rate, guide, step_schedule, n_chains
        Parameters of rounds, as in `DPBayesianLogisticRegression`.
    n_posterior_samples : int, default=1000
        Number of posterior draws kept for predictions.
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. Any other value makes the noise reproducible,
        which voids the guarantee: for tests only.
    verbose : int, default=0
        If positive, print the plan and progress: public quantities only."""

_ATTRIBUTES = """posterior_samples_ : array of shape (n_posterior_samples, n_parameters)
        Draws of the parameter.
    posterior_
        The posterior, with ``mean``, ``std``, ``covariance`` and ``sample``.
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    diagnostics_ : dict
        Diagnostics of the solver.
    n_features_in_, feature_names_in_, n_iter_
        As in scikit-learn."""


_Family = TypeVar("_Family", bound=type)


def described(cls: _Family) -> _Family:
    """Class decorator that fills the shared parts of a docstring."""
    parts = {"parameters": _PARAMETERS, "solver": _SOLVER, "attributes": _ATTRIBUTES}
    cls.__doc__ = (cls.__doc__ or "").format(**parts)
    return cls


class FamilyEstimator(DensityScoreMixin, DensityMixin, PosteriorEstimator):
    """Base of the families; subclasses give a model, records, and densities."""

    _fitted = (*PosteriorEstimator._fitted, "posterior_samples_")

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit the posterior to private data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored
        groups : array-like of shape (n_samples,), default=None
            The person that each row is of, where `max_rows_per_person` is set.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range, shapes and dtypes, which are public. Never for the values
            in a row.
        """
        self._fit(X, y, groups)
        return self

    def _reader(self) -> Reader:
        return PlainRows()

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        from skdpbayes.solvers.centred import CentredRelease
        from skdpbayes.solvers.vips import OneRelease

        draws = self._draws(plan, outcome)
        if not isinstance(plan.solver, OneRelease | CentredRelease):
            # Posteriors of rounds are of the unconstrained parameter.
            self.posterior_ = MappedPosterior(self.posterior_, type(plan.model).constrained)
            draws = plan.model.constrained(draws)
        self._set_parameter(plan, draws)

    def _quiet_std(self) -> dict[str, np.ndarray]:
        if isinstance(self.posterior_, MappedPosterior):
            return {}
        return {self._draws_name: self.posterior_.without_noise().std}

    def score_samples(self, X: Any) -> np.ndarray:
        """Log posterior predictive density of each row, averaged over the posterior draws.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Not protected.

        Returns
        -------
        log_density : array of shape (n_samples,)
        """
        check_is_fitted(self)
        log = self._log_densities(self._check_rows(X))
        return special.logsumexp(log, axis=1) - math.log(log.shape[1])

    def _check_rows(self, X: Any) -> np.ndarray:
        return self._reader().numeric(self, X, reset=False)

    def sample_posterior(
        self, n_samples: int = 1000, random_state: int | np.random.Generator | None = None
    ) -> np.ndarray:
        """Fresh posterior draws of the parameter, of shape (n_samples, n_parameters)."""
        return self._fresh_draws(n_samples, random_state)

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.Generator | None = None
    ) -> np.ndarray:
        """Rows from the posterior predictive distribution, each from a separate posterior draw.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        X : array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        check_number("n_samples", n_samples, 0, integral=True)
        rng = np.random.default_rng(random_state)
        return self._draw_rows(rng, self.sample_posterior(n_samples, rng))
