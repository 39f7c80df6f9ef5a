"""Bayesian neural networks: classification and regression by layers with normal weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from skdpbayes.models.networks.gradients import draw_weights, gradients
from skdpbayes.models.networks.layers import Layer, forward
from skdpbayes.models.protocols import Contribution, Number, Params, Record
from skdpbayes.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Classifier:
    """Network with a logit for each class, or one logit for two classes.

    Parameters are lists of weights, standard normal a priori.

    Attributes
    ----------
    layers : tuple of Layer
    activation : str
    """

    layers: tuple[Layer, ...] = field(metadata={"static": True})
    activation: str = field(metadata={"static": True})

    def init(self) -> Params:
        """Mean of the prior, where a network cannot start."""
        return [jnp.zeros(layer.weights_shape, jnp.float32) for layer in self.layers]

    def start(self, key: jax.Array) -> Params:
        """Starting point: a draw from the prior; zero for the last layer."""
        weights = draw_weights(self.layers, key)
        return [*weights[:-1], jnp.zeros_like(weights[-1])]

    def log_prior(self, params: Params) -> Number:
        """Log density of the prior, up to a constant."""
        return -sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)) / 2

    def prior_precision(self) -> Params:
        """Diagonal of the prior's precision, shaped as the parameters."""
        return jax.tree.map(jnp.ones_like, self.init())

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record ``{"x", "y"}``; zero for a class below zero."""
        return self._of(record["y"], self.outputs(params, record))

    def outputs(self, weights: Params, record: Record) -> jax.Array:
        """Outputs of one record: logits, or the mean."""
        return forward(self.layers, self.activation, weights, record["x"], jnp)[0]

    def score(self, params: Params, record: Record) -> Contribution:
        """Gradient of `log_likelihood`."""

        def value(taps):
            logits, seen = forward(self.layers, self.activation, params, record["x"], jnp, taps)
            return self._of(record["y"], logits), seen

        return gradients(self.layers, value)

    @staticmethod
    def _of(y, logits):
        logits = jnp.concatenate([jnp.zeros_like(logits), logits]) if logits.size == 1 else logits
        return jnp.where(y >= 0, logits[y.clip(0)] - jax.nn.logsumexp(logits), 0)


@pytree
@dataclass(frozen=True)
class Regressor(Classifier):
    """Network for the mean of a normal response, with a fitted log standard deviation.

    Parameters are ``(weights, z)``: the log standard deviation is ``log_scale + log_scale_sd * z``.
    """

    log_scale: Number = 0.0
    log_scale_sd: Number = 1.0

    def init(self) -> Params:
        """Mean of the prior, where a network cannot start."""
        return super().init(), jnp.zeros((), jnp.float32)

    def start(self, key: jax.Array) -> Params:
        """Starting point: a draw from the prior; zero for the last layer and the noise."""
        return super().start(key), jnp.zeros((), jnp.float32)

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record ``{"x", "y"}``."""
        return self._density(record["y"], self.outputs(params[0], record), params[1])

    def score(self, params: Params, record: Record) -> Contribution:
        """Gradient of `log_likelihood`."""

        def value(taps):
            mean, seen = forward(self.layers, self.activation, params[0], record["x"], jnp, taps)
            return self._density(record["y"], mean, params[1]), seen

        mean = self.outputs(params[0], record)
        of_z = jax.grad(lambda z: self._density(record["y"], mean, z))(params[1])
        return gradients(self.layers, value), of_z

    def _density(self, y, mean, z):
        log_scale = self.log_scale + self.log_scale_sd * z
        return (
            -(jnp.sum((y - mean) ** 2) * jnp.exp(-2 * log_scale)) / 2
            - log_scale
            - math.log(2 * math.pi) / 2
        )
