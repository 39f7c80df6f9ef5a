"""What estimators with local latents share, whose expected statistics are released in rounds."""

from __future__ import annotations

import math

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skdpbayes.estimators._base import check_number
from skdpbayes.estimators._gradient import GradientEstimator


class RoundsEstimator(GradientEstimator):
    """Base of the estimators that take a `StatisticsModel` for ``solver="vips"``."""

    def _check_solver_parameters(self):
        super()._check_solver_parameters()
        check_number("n_components", self.n_components, 1, 10**4, integral=True, closed=True)

    def _plan_solver(self, model, bounds, n):
        if self.solver == "vips":
            self._refuse_parameters("clipping_norm", "learning_rate")
            return self._plan_vips(model, n)
        return self._plan_gradients(model, bounds, n)

    def _plan_gradients(self, model, bounds, n):
        """A solver on gradients of the likelihood without latents, once the model's openings have found a start."""
        from skdpbayes.solvers.opened import Opened

        openings = len(model.openings())
        if self.n_steps is not None and self.n_steps <= openings:
            raise ValueError(
                f"n_steps={self.n_steps} is too few: {openings} go into the start. Take at least {openings + 1}."
            )
        bounds = bounds._replace(openings=bounds.openings[:openings])
        solver, spec = super()._plan_solver(model.marginal(model.init()), bounds, n)
        return Opened(solver, np.int32(openings)), spec

    def _plan_rounds(self, model, n, shares, n_rounds, start):
        """Solver and mechanism of the model's openings, each with its share of the budget, and of rounds with the rest.

        Parameters
        ----------
        model : StatisticsModel
        n : int
            Number of records.
        shares : sequence of float
            Of the openings, as many as the model has.
        n_rounds : tuple of int
            Default number of rounds with noise, and without.
        start : str
            Subject and verb of the message that there are too few steps, with the number of openings for ``{}``.
        """
        from skdpbayes.privacy.mechanism import MechanismSpec
        from skdpbayes.solvers.vips_rounds import StatisticsRounds

        private, openings = math.isfinite(self.epsilon), len(model.openings())
        n_steps, shares = self.n_steps or openings + n_rounds[not private], shares[:openings]
        if n_steps <= openings:
            raise ValueError(
                f"n_steps={n_steps} is too few: {start.format(openings)} into the start. Take at least {openings + 1}."
            )
        schedule = [(share**-0.5, 1) for share in shares]
        schedule.append((((1 - sum(shares)) / (n_steps - openings)) ** -0.5, n_steps - openings))
        steps = self._plan_noise(n_steps, self._sampling_rate(n, n), schedule).steps
        least = 0.0 if private else 1.0  # without noise every round stands for itself
        norm = max(block.clipping_norm for block in model.blocks().values())
        return StatisticsRounds(np.int32(openings), np.float32(least), np.float32(norm)), MechanismSpec(steps)


class DecompositionEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, RoundsEstimator):
    """Base of the estimators with `components_`, whose posterior is drawn from when draws are asked for."""

    _fitted = (*RoundsEstimator._fitted, "components_", "_draws_seed")

    def _set_posterior(self, model, solver, state, rng):
        self.posterior_ = solver.posterior(model, state)
        self.diagnostics_ = solver.diagnostics(state, self.posterior_)
        self._draws_seed = int(rng.integers(2**63))

    @property
    def posterior_samples_(self):
        """Draws of `sample_posterior`, `n_posterior_samples` of them; made anew each time."""
        check_is_fitted(self)
        return self.sample_posterior(self.n_posterior_samples, self._draws_seed)

    @property
    def _n_features_out(self):
        return self.components_.shape[0]
