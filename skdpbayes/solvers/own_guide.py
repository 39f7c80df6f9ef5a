"""Differentially private variational inference with a guide that the user wrote.

What is released is the gradient of the likelihood in the latent variables at one draw of the guide.
The gradient of the evidence lower bound in the guide's parameters follows from it by the chain
rule, through the path from parameters to draw, and prior and entropy are added without noise:
whatever the guide, a release is as long as the latent variables are many (Jalko et al. 2023 for
normal guides; d3p clips the gradient in all parameters of the guide).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import Model, flat_start, score_unit, weighted_score
from skdpbayes.posteriors.base import SampledPosterior
from skdpbayes.solvers.base import Round

_ADAM = optax.scale_by_adam()
_AVERAGED_FROM = 0.5  # fraction of the run after which parameters are averaged


class OwnGuideState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    parameters: Any  # of the guide, unconstrained
    moments: optax.ScaleByAdamState
    average: Any  # of the late parameters
    n_averaged: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OwnGuide:
    """Adam on the evidence lower bound of a guide.

    Attributes
    ----------
    guide : object
        With ``init()``, unconstrained parameters, and ``draw(parameters, key)``: coordinates of the
        model that are a differentiable function of the parameters, and ``log p - log q`` of what
        the guide covers.
    learning_rate : float
    clipping_norm : float
        Of the score, over the model's `score_unit`.
    """

    guide: Any
    learning_rate: Any
    clipping_norm: Any

    def init(self, model: Model, key) -> OwnGuideState:
        """The guide as it starts."""
        del model, key
        flat = ravel_pytree(self.guide.init())[0].astype(jnp.float32)
        return OwnGuideState(flat, _ADAM.init(flat), flat, jnp.zeros((), jnp.float32))

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round, ...]:
        """A gradient step."""
        unravel, shaped = flat_start(model)[1], ravel_pytree(self.guide.init())[1]
        clip = self.clipping_norm * score_unit(model)

        def path(parameters, key):
            params, bound = self.guide.draw(shaped(parameters), key)
            return ravel_pytree(params)[0].astype(jnp.float32), bound.astype(jnp.float32)

        def query(state, point):
            del state
            params = unravel(point[0])
            return lambda record: {"score": weighted_score(model, params, record, clip)[0]}

        def update(state, point, step, estimate, scales):
            del scales
            _, pull = jax.vjp(lambda x: path(x, point[1]), state.parameters)
            score = ravel_pytree(estimate["score"])[0].astype(jnp.float32)
            (gradient,) = pull((score, jnp.ones((), jnp.float32)))
            gradient = jnp.where(jnp.isfinite(gradient), gradient, 0)
            done = step / jnp.maximum(mechanism.n_steps, 1)
            rate = (self.learning_rate * jnp.clip(2 * (1 - done), 0.1, 1)).astype(jnp.float32)
            direction, moments = _ADAM.update(gradient, state.moments)
            parameters = state.parameters + rate * direction
            n = state.n_averaged + (done >= _AVERAGED_FROM)
            average = state.average + (parameters - state.average) / jnp.maximum(n, 1)
            return OwnGuideState(parameters, moments, average, n)

        def point(state, key):
            return path(state.parameters, key)[0], key

        return (Round(point, query, lambda state: {"score": Block(clip)}, update),)

    def posterior(self, model: Model, state: OwnGuideState):
        """The guide, at its averaged parameters."""
        del model
        return GuidePosterior(self.guide, np.asarray(state.average))

    def diagnostics(self, state: OwnGuideState, posterior) -> dict:
        """Nothing."""
        del state, posterior
        return {}


@dataclass(frozen=True, repr=False)
class GuidePosterior(SampledPosterior):
    """Posterior that a guide describes, over the model's coordinates.

    Attributes
    ----------
    guide : object
        As `OwnGuide`'s.
    parameters : array
        Ravelled.
    """

    guide: Any
    parameters: np.ndarray

    def __repr__(self) -> str:
        return f"GuidePosterior({len(self.parameters)} parameters of the guide)"

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, n_parameters)."""
        keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), n)
        return np.asarray(_draws(self.guide, jnp.asarray(self.parameters), keys), np.float64)


@jax.jit
def _draws(guide, parameters, keys):
    shaped = ravel_pytree(guide.init())[1]
    return jax.vmap(lambda key: ravel_pytree(guide.draw(shaped(parameters), key)[0])[0])(keys)
