"""Maximum a posteriori by Adam on private gradients: a point estimate.

What Abadi et al. (2016) call DP-SGD, with the expected batch in place of the realised one; the late
iterates are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import (
    Model,
    flat_start,
    prior_score,
    random_start,
    weighted_score,
    with_latent_noise,
)
from skdpbayes.models.protocols import Number
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import OneKindOfRound, Query, Round, Scales, Sums

_ADAM = optax.scale_by_adam()
_AVERAGED_FROM = 0.7  # fraction of the run after which iterates are averaged


class AdamState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    theta: jax.Array
    moments: optax.ScaleByAdamState
    average: jax.Array
    n_averaged: jax.Array


@pytree
@dataclass(frozen=True)
class Adam(OneKindOfRound):
    """Point estimates.

    Attributes
    ----------
    learning_rate : float
        At first; it falls to a tenth in the second half.
    clipping_norm : float
    """

    learning_rate: Number
    clipping_norm: Number

    def init(self, model: Model, key: jax.Array) -> AdamState:
        """Start where the model says."""
        theta = random_start(model, key)
        return AdamState(theta, _ADAM.init(theta), theta, jnp.zeros((), theta.dtype))

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round[AdamState], ...]:
        """A step of Adam."""
        unravel, prior_gradient = flat_start(model)[1], prior_score(model)
        clip = jnp.asarray(self.clipping_norm, jnp.float32)

        def query(state: AdamState, key: jax.Array) -> Query:
            params, drawn = unravel(state.theta), with_latent_noise(model, key)
            return lambda record: {"score": weighted_score(drawn, params, record, clip)[0]}

        def update(
            state: AdamState, key: jax.Array, step: jax.Array, estimate: Sums, scales: Scales
        ) -> AdamState:
            del key, scales
            total = jax.flatten_util.ravel_pytree(estimate["score"])[0]
            gradient = total + prior_gradient(state.theta)
            left = 1 - step / jnp.maximum(mechanism.n_steps, 1).astype(gradient.dtype)
            rate = self.learning_rate * jnp.clip(2 * left, 0.1, 1)
            direction, moments = _ADAM.update(gradient, state.moments)
            theta = state.theta + rate * direction
            counted = (step >= _AVERAGED_FROM * mechanism.n_steps).astype(theta.dtype)
            n = state.n_averaged + counted
            weight = jnp.where(n > 0, counted / jnp.maximum(n, 1), 1)
            return AdamState(theta, moments, state.average + weight * (theta - state.average), n)

        return (
            Round(
                lambda state, key: key,
                query,
                lambda state: {"score": Block(clip, together="score")},
                update,
            ),
        )

    def draws(self, model: Model, state: AdamState, key: jax.Array, n: int) -> jax.Array:
        """The point, once."""
        del model, key, n
        return state.average[None]

    def posterior(self, model: Model, state: AdamState) -> GaussianPosterior:
        """The point, as a normal distribution without spread."""
        del model
        mean = np.asarray(state.average, np.float64)
        return GaussianPosterior(mean, np.zeros_like(mean))

    def diagnostics(self, model: Model, state: AdamState, posterior: Any) -> dict[str, Any]:
        """None."""
        del model, state, posterior
        return {}
