"""Differentially private variational inference with a guide written by the user.

A round draws ``theta = f(lambda, e)`` from the guide with parameters lambda and releases the
clipped sum g of the records' scores at theta. The gradient of the evidence lower bound follows by
the chain rule,

    (d theta / d lambda)' g + grad_lambda [log p(theta) - log q_lambda(theta)],

whose prior and entropy terms need no noise (reparametrisation: Kingma and Welling 2014). Adam takes
the steps, and late parameters are averaged.

Where we differ: d3p clips the gradient in all parameters of the guide. Here a release has one entry
per latent dimension, whatever the guide (as Jalko et al. 2023 do for normal guides).
See ``docs/solvers/dpvi.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import Model, flat_start, score_unit, weighted_score, with_latent_noise
from skdpbayes.models.protocols import Number, Params
from skdpbayes.posteriors.base import SampledPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import OneKindOfRound, Query, Round, Scales, Sums

_ADAM = optax.scale_by_adam()
_OF_RECORDS = 2**31 - 1  # index of the key of the records' latent variables in a round
_AVERAGED_FROM = 0.5  # fraction of the run after which parameters are averaged


class Guide(Protocol):
    """A guide with a reparametrised sampler."""

    def init(self) -> Params:
        """Starting point: unconstrained parameters of the guide."""

    def draw(self, parameters: Params, key: jax.Array) -> tuple[Params, jax.Array]:
        """Draw of the model's coordinates, and ``log p - log q`` of the sites the guide covers.

        Both are differentiable functions of the parameters.
        """

    def latents(self, params: Params) -> Params:
        """Coordinates that have a posterior, of a draw; others are points."""


class OwnGuideState(NamedTuple):
    """State; every entry is a function of the releases, the solver key and public values."""

    parameters: jax.Array  # of the guide, unconstrained
    moments: optax.ScaleByAdamState
    average: jax.Array  # of the late parameters
    n_averaged: jax.Array


@pytree
@dataclass(frozen=True)
class OwnGuide(OneKindOfRound):
    """Adam on the evidence lower bound of a guide.

    Attributes
    ----------
    guide : Guide
    learning_rate : float
    clipping_norm : float
        Clipping norm of a score, over the model's `score_unit`.
    """

    guide: Guide
    learning_rate: Number
    clipping_norm: Number

    def init(self, model: Model, key: jax.Array) -> OwnGuideState:
        """The guide at its starting point."""
        del model, key
        flat = ravel_pytree(self.guide.init())[0].astype(jnp.float32)
        return OwnGuideState(flat, _ADAM.init(flat), flat, jnp.zeros((), jnp.float32))

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round[OwnGuideState], ...]:
        """A gradient step."""
        unravel, shaped = flat_start(model)[1], ravel_pytree(self.guide.init())[1]
        clip = self.clipping_norm * score_unit(model)

        def path(parameters: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            params, bound = self.guide.draw(shaped(parameters), key)
            return ravel_pytree(params)[0].astype(jnp.float32), bound.astype(jnp.float32)

        def query(state: OwnGuideState, point: tuple[jax.Array, jax.Array]) -> Query:
            del state
            params = unravel(point[0])
            drawn = with_latent_noise(model, jax.random.fold_in(point[1], _OF_RECORDS))
            return lambda record: {"score": weighted_score(drawn, params, record, clip)[0]}

        def update(
            state: OwnGuideState,
            point: tuple[jax.Array, jax.Array],
            step: jax.Array,
            estimate: Sums,
            scales: Scales,
        ) -> OwnGuideState:
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

        def point(state: OwnGuideState, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            return path(state.parameters, key)[0], key

        return (
            Round(point, query, lambda state: {"score": Block(clip, together="score")}, update),
        )

    def posterior(self, model: Model, state: OwnGuideState) -> GuidePosterior:
        """The guide, at its averaged parameters."""
        del model
        return GuidePosterior(self.guide, np.asarray(state.average))

    def diagnostics(self, model: Model, state: OwnGuideState, posterior: Any) -> dict[str, Any]:
        """None."""
        del model, state, posterior
        return {}


@dataclass(frozen=True, repr=False)
class GuidePosterior(SampledPosterior):
    """Posterior described by a guide, over the coordinates of the model's latent sites.

    Attributes
    ----------
    guide : Guide
    parameters : array
        Ravelled.
    """

    guide: Guide
    parameters: np.ndarray

    def __repr__(self) -> str:
        return f"GuidePosterior({len(self.parameters)} parameters of the guide)"

    def guide_parameters(self) -> Params:
        """Parameters of the guide, of its own structure."""
        return ravel_pytree(self.guide.init())[1](jnp.asarray(self.parameters))

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draws, of shape (n, n_parameters)."""
        keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), n)
        return np.asarray(_draws(self.guide, jnp.asarray(self.parameters), keys), np.float64)


@jax.jit
def _draws(guide: Guide, parameters: jax.Array, keys: jax.Array) -> jax.Array:
    shaped = ravel_pytree(guide.init())[1]

    def draw(key):
        return ravel_pytree(guide.latents(guide.draw(shaped(parameters), key)[0]))[0]

    return jax.vmap(draw)(keys)
