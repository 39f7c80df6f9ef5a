"""What estimators with local latents share, whose expected statistics are released in rounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_number
from skdpbayes.estimators._gradient import PLANS, GradientEstimator


class RoundsEstimator(GradientEstimator):
    """Base of the estimators that take a `StatisticsModel` for ``solver="vips"``."""

    _shares: Any  # tuple of float: of the budget, for as many openings as a model may have; the rounds have the rest

    def _check_solver_parameters(self):
        super()._check_solver_parameters()
        check_number("n_components", self.n_components, 1, 10**4, integral=True, closed=True)

    def _plan_solver(self, model, bounds, n):
        """Solver and mechanism; where the solver is not `vips`, one on gradients once openings have found a start."""
        if self.solver == "vips":
            self._refuse_parameters("clipping_norm", "learning_rate")
            return self._plan_vips(model, n)
        from skdpbayes.solvers.opened import Opened

        openings = self._opening_shares(model)
        solver, spec = PLANS[self.solver](self, model.marginal(model.init()), bounds, n, openings)
        return Opened(solver, np.int32(len(openings))), spec

    def _opening_shares(self, model, start="{} go"):
        """Shares of the budget of the model's openings; raises if `n_steps` leaves no other release."""
        openings = len(model.openings())
        if self.n_steps is not None and self.n_steps <= openings:
            raise ValueError(
                f"n_steps={self.n_steps} is too few: {start.format(openings)} into the start. "
                f"Take at least {openings + 1}."
            )
        return self._shares[:openings]

    def _plan_rounds(self, model, n, n_rounds, start):
        """Solver and mechanism of the model's openings and of rounds of its statistics.

        Parameters
        ----------
        model : StatisticsModel
        n : int
            Number of records.
        n_rounds : tuple of int
            Default number of rounds with noise, and without.
        start : str
            Subject and verb of the message that there are too few steps, with the number of
            openings for ``{}``.
        """
        from skdpbayes.solvers.vips_rounds import StatisticsRounds

        private, openings = math.isfinite(self.epsilon), self._opening_shares(model, start)
        rounds = n_rounds[not private] if self.n_steps is None else self.n_steps - len(openings)
        opening, steps, _ = self._plan_round_noise(openings, rounds, self._sampling_rate(n, n))
        least = 0.0 if private else 1.0  # without noise every round stands for itself
        norm = max(block.clipping_norm for block in model.blocks().values())
        solver = StatisticsRounds(np.int32(len(openings)), np.float32(least), np.float32(norm))
        return solver, self._spec(opening + steps)


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
