"""Variational Bayes on noisy sums of expected sufficient statistics, released in rounds.

VIPS for models with local latent variables (Park, Foulds, Chaudhuri and Welling 2020, equation 11
and algorithm 2). Round t releases the sum of expected statistics under the present parameters
(E-step), averages it with the earlier sums, and updates the parameters (M-step):

    r_t = sum_i E[t(x_i, z_i) | params_t] + noise
    s_t = (1 - w_t) s_{t-1} + w_t r_t,      w_t = max(2 / (t + 2), least_weight)
    params_{t+1} = m_step(params_t, s_t)

Where we differ:

* Sums are translated to the new parameters (``carry``) before they are averaged.
* The M-step knows the standard deviation of the noise, and clears the sums of it.
* The model's openings, private releases of their own, find the start.

See ``docs/solvers/vips.md``; `skdpbayes.models.base.StatisticsModel` declares the model's members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.spec import Mechanism
from skdpbayes.models.base import StatisticsModel
from skdpbayes.models.protocols import Number, Params
from skdpbayes.posteriors.base import Posterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import (
    OneKindAfterOpenings,
    Point,
    Round,
    Scales,
    Sums,
    opening_rounds,
)


class StatisticsState(NamedTuple):
    """State; every entry is a function of the releases and public values."""

    params: Params
    sums: Sums  # averaged over the rounds
    variance: jax.Array  # noise variance of the average, in units of one round's
    scales: Scales  # of the last round


@pytree
@dataclass(frozen=True)
class StatisticsRounds(OneKindAfterOpenings):
    """Rounds of expected statistics, after the model's openings.

    Attributes
    ----------
    n_openings : int
        Number of the model's openings.
    least_weight : float
        Least weight of a round in the average, ``2 / (t + 2)`` in round t. 1 takes each round
        alone, which is best without noise.
    clipping_norm : float
        Clipping norm of every block, for the report.
    """

    n_openings: Number
    least_weight: Number
    clipping_norm: Number

    def init(self, model: StatisticsModel, key: jax.Array) -> StatisticsState:
        """State before any release."""
        del key
        sums, zero = model.zeros(), jnp.zeros((), jnp.float32)
        return StatisticsState(model.init(), sums, zero, dict.fromkeys(sums, zero))

    def rounds(
        self, model: StatisticsModel, mechanism: Mechanism
    ) -> tuple[Round[StatisticsState], ...]:
        """The model's openings, once each, and the repeated round."""
        del mechanism
        return *opening_rounds(model.openings()), self._repeated(model)

    def _repeated(self, model: StatisticsModel) -> Round[StatisticsState]:
        def update(
            state: StatisticsState, point: Point, step: jax.Array, estimate: Sums, scales: Scales
        ) -> StatisticsState:
            del point
            t = (step - self.n_openings).astype(jnp.float32)
            weight = jnp.maximum(2 / (t + 2), self.least_weight)
            sums = jax.tree.map(
                lambda old, new: (1 - weight) * old + weight * new, state.sums, estimate
            )
            variance = (1 - weight) ** 2 * state.variance + weight**2
            averaged = {name: scale * jnp.sqrt(variance) for name, scale in scales.items()}
            params = model.m_step(state.params, sums, averaged)
            return StatisticsState(
                params, model.carry(sums, state.params, params), variance, scales
            )

        return Round(
            point=lambda state, key: self._point(model, state, key),
            query=lambda state, point: model.statistics(point),
            blocks=lambda state: model.blocks(),
            update=update,
        )

    def _point(self, model: Any, state: StatisticsState, key: jax.Array) -> Params:
        """Parameters at which statistics are expected."""
        del model, key
        return state.params

    def posterior(self, model: StatisticsModel, state: StatisticsState) -> Posterior:
        """The model's posterior at the final parameters."""
        return model.posterior(state.params)

    def diagnostics(
        self, model: StatisticsModel, state: StatisticsState, posterior: Any
    ) -> dict[str, Any]:
        """Standard deviation of the noise in each sum of the last average."""
        del model, posterior
        return {
            "noise_std": {
                name: float(scale) * float(state.variance) ** 0.5
                for name, scale in state.scales.items()
            }
        }
