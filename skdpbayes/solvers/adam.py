"""Maximum a posteriori by Adam on private gradients: a point, for models whose parameters are no random variables.

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
from skdpbayes.models.base import Model, flat_start, prior_score, random_start, weighted_score
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.solvers.base import Round

_ADAM = optax.scale_by_adam()
_AVERAGED_FROM = 0.7  # fraction of the run after which iterates are averaged


class AdamState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    theta: Any
    moments: optax.ScaleByAdamState
    average: Any
    n_averaged: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Adam:
    """Point estimates.

    Attributes
    ----------
    learning_rate : float
        At first; it falls to a tenth in the second half.
    clipping_norm : float
    """

    learning_rate: Any
    clipping_norm: Any

    def init(self, model: Model, key) -> AdamState:
        """Start where the model says."""
        theta = random_start(model, key)
        return AdamState(theta, _ADAM.init(theta), theta, jnp.zeros((), theta.dtype))

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round, ...]:
        """A step of Adam."""
        unravel, prior_gradient = flat_start(model)[1], prior_score(model)
        clip = jnp.asarray(self.clipping_norm, jnp.float32)

        def query(state, key):
            params, drawn = (
                unravel(state.theta),
                model.drawn(key) if hasattr(model, "drawn") else model,
            )
            return lambda record: {"score": weighted_score(drawn, params, record, clip)[0]}

        def update(state, key, step, estimate, scales):
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

        return (Round(lambda state, key: key, query, lambda state: {"score": Block(clip)}, update),)

    def posterior(self, model: Model, state: AdamState) -> GaussianPosterior:
        """The point, as a normal distribution without spread."""
        del model
        mean = np.asarray(state.average, np.float64)
        return GaussianPosterior(mean, np.zeros_like(mean))

    def diagnostics(self, state: AdamState, posterior) -> dict:
        """Nothing."""
        del state, posterior
        return {}
