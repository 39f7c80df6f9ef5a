"""Variational Bayes on noisy sums of expected statistics, released round after round.

Each round releases the sums of what the model expects of the records, given its present parameters;
raw sums are averaged with weights that favour late rounds, and the model's ``m_step`` makes
parameters of them. What a model has to bring is `skdpbayes.models.base.StatisticsModel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.spec import Mechanism
from skdpbayes.models.base import StatisticsModel
from skdpbayes.solvers.base import Round, opening_round


class StatisticsState(NamedTuple):
    """Parameters, averaged sums, the variance of their noise in units of one round's, and that round's scales."""

    params: Any
    sums: Any
    variance: Any
    scales: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StatisticsRounds:
    """Rounds of expected statistics, after the model's openings.

    Attributes
    ----------
    n_openings : int
        Of the model.
    least_weight : float
        Of a round in the average: it is ``2 / (t + 2)`` in round t, and not below this. 1 takes
        each round alone, which is right where there is no noise.
    clipping_norm : float
        Of every block; for the report.
    """

    n_openings: Any
    least_weight: Any
    clipping_norm: Any

    def init(self, model: StatisticsModel, key) -> StatisticsState:
        """What the model knows before it sees anything."""
        del key
        sums, zero = model.zeros(), jnp.zeros((), jnp.float32)
        return StatisticsState(model.init(), sums, zero, dict.fromkeys(sums, zero))

    def rounds(self, model: StatisticsModel, mechanism: Mechanism) -> tuple[Round, ...]:
        """The model's openings, once each, and the round that is repeated."""
        del mechanism
        opened = (
            opening_round(opening, lambda state, params, _: state._replace(params=params))
            for opening in model.openings()
        )
        return *opened, self._repeated(model)

    def which(self, step):
        """One opening after the other, then the last kind of round for good."""
        return jnp.minimum(step, self.n_openings)

    def _repeated(self, model):
        def update(state, point, step, estimate, scales):
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
            point=lambda state, key: (),
            query=lambda state, point: model.statistics(state.params),
            blocks=lambda state: model.blocks(),
            update=update,
        )

    def posterior(self, model: StatisticsModel, state: StatisticsState):
        """The model's posterior of the final parameters."""
        return model.posterior(state.params)

    def diagnostics(self, state: StatisticsState, posterior) -> dict:
        """Standard deviation of the noise in each sum of the last average."""
        del posterior
        return {
            "noise_std": {
                name: float(scale) * float(state.variance) ** 0.5
                for name, scale in state.scales.items()
            }
        }
