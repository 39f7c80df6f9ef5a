"""Bases of the estimators with a posterior: parameters of solvers, and draws."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_choice, check_number, warn_user
from skdpbayes.estimators._base import Outcome, PrivateEstimator
from skdpbayes.estimators._summary import SummaryMixin

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan

# In posterior standard deviations: a few tenths where fits arrive, up to 1.2 where noise dominates.
LONGEST_LAST_STEP = 1.5


class PosteriorEstimator(SummaryMixin, PrivateEstimator):
    """Base of the estimators with a choice of solvers and a posterior."""

    _guides: tuple[str, ...] = ("auto", "full_rank", "mean_field")
    _chains_mix = True  # False for networks, whose weights do not mix
    _fitted = (*PrivateEstimator._fitted, "posterior_", "diagnostics_", "_chains")

    def __sklearn_is_fitted__(self) -> bool:
        return "posterior_" in vars(self)  # `privacy_spent_` is set before the run

    def _check_parameters(self) -> None:
        from skdpbayes.plans.registry import check_special

        super()._check_parameters()
        own = self._parameters()
        self._check_solver()
        check_number(
            "n_posterior_samples", own["n_posterior_samples"], 1, 10**7, integral=True, closed=True
        )
        if "n_components" in own:
            check_number("n_components", own["n_components"], 1, 10**4, integral=True, closed=True)
        if "guide" in own and not callable(own["guide"]):
            check_choice("guide", own["guide"], self._guides)
        schedules = ("constant", "decreasing")
        check_choice("step_schedule", own.get("step_schedule", "constant"), schedules)
        check_number("learning_rate", own.get("learning_rate"), 0, none=True)
        check_number("n_chains", own.get("n_chains", 1), 1, 1024, integral=True, closed=True)
        if own["solver"] not in self._automatic:
            check_special(own["solver"], own)

    def _feature_names(self) -> Sequence[str] | None:
        own = vars(self)
        if "feature_names_in_" in own:
            return list(own["feature_names_in_"])
        schema = self._reader().declaration.schema
        matches = schema is not None and len(schema.columns) == own.get("n_features_in_")
        return list(schema.names) if schema is not None and matches else None

    def _draws(self, plan: Plan, outcome: Outcome) -> np.ndarray:
        """Set the posterior and draw from it; shape (n_posterior_samples, n_parameters)."""
        self._set_posterior(plan, outcome)
        self._warn_unless_mixed()
        self._warn_unless_arrived()
        self._chains = self.posterior_.n_chains
        return self.posterior_.ordered_sample(outcome.rng, self.n_posterior_samples)

    def _draws_and_quiet_ones(
        self, plan: Plan, outcome: Outcome
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """As `_draws`, and draws as if scores had no privacy noise, where the solver knows.

        Both are by the same generator, and so have the same errors of Monte Carlo.
        """
        from skdpbayes.solvers.base import HasQuiet

        rng = copy.deepcopy(outcome.rng)
        draws = self._draws(plan, outcome)
        if not isinstance(plan.solver, HasQuiet):
            return draws, None
        quiet = plan.solver.without_noise(plan.model, outcome.state)
        return draws, None if quiet is None else quiet.ordered_sample(rng, len(draws))

    def _warn_unless_mixed(self) -> None:
        """Warn if the diagnostics of a chain say that its draws are not from the posterior."""
        # NaN for what a chain does not move; all are NaN if it is too short to tell.
        r_hat, ess = (
            np.asarray(self.diagnostics_.get(name, default))
            for name, default in (("r_hat", 1.0), ("ess", np.inf))
        )
        worst = max(r_hat[~np.isnan(r_hat)], default=np.nan)
        least = min(ess[~np.isnan(ess)], default=np.nan)
        clip = (
            "; a smaller clipping_norm allows larger steps too, at the price of information"
            if "clipping_norm" in self._parameters()
            else ""
        )
        if self._chains_mix and not (worst <= 1.1 and least >= 100):
            warn_user(
                f"The chains have not mixed: the largest R-hat is {worst:.2f} (should be below "
                f"1.1), the least effective sample size {least:.0f} (should be above 100). The "
                "draws do not represent the posterior. Take solver='dpvi', more n_steps or, under "
                f"privacy, a larger epsilon{clip}.",
                ConvergenceWarning,
            )

    def _warn_unless_arrived(self) -> None:
        """Warn if the step from the averages of the run to the estimate is a long one."""
        last = self.diagnostics_.get("last_step", 0.0)
        if not last <= LONGEST_LAST_STEP:
            warn_user(
                f"The fit has not arrived: its last step is {last:.2f} posterior standard "
                f"deviations long (should be below {LONGEST_LAST_STEP:g}). Intervals do not tell "
                "how far it may be from the posterior. Take more n_steps.",
                ConvergenceWarning,
            )

    def _set_posterior(self, plan: Plan, outcome: Outcome) -> None:
        self.n_iter_ = plan.n_steps
        self.posterior_: Any = self._found(plan, outcome)
        self.diagnostics_: dict[str, Any] = plan.solver.diagnostics(
            plan.model, outcome.state, self.posterior_
        )

    def _found(self, plan: Plan, outcome: Outcome) -> Any:
        """Posterior of a run."""
        return plan.solver.posterior(plan.model, outcome.state)

    def _fresh_draws(
        self, n_samples: int, random_state: int | np.random.Generator | None
    ) -> np.ndarray:
        """Posterior draws of shape (n_samples, n_parameters)."""
        check_is_fitted(self)
        return self.posterior_.sample(np.random.default_rng(random_state), n_samples)


class DecompositionEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PosteriorEstimator):
    """Base of the estimators with `components_`; their draws are made on request."""

    _fitted = (*PosteriorEstimator._fitted, "components_", "_draws_seed")

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        self._set_posterior(plan, outcome)
        self._draws_seed = int(outcome.rng.integers(2**63))

    @property
    def posterior_samples_(self) -> dict[str, np.ndarray]:
        """`n_posterior_samples` draws of `sample_posterior`, the same at each access."""
        check_is_fitted(self)
        return self.sample_posterior(self.n_posterior_samples, self._draws_seed)

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]
