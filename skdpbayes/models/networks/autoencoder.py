"""Variational auto-encoders (Kingma and Welling 2014)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from skdpbayes.models.latent_noise import record_key
from skdpbayes.models.networks.gradients import draw_weights, gradients
from skdpbayes.models.networks.layers import Layer, forward
from skdpbayes.models.protocols import Contribution, Number, Params, Record
from skdpbayes.pytrees import pytree


@pytree
@dataclass(frozen=True)
class Autoencoder:
    """Auto-encoder of values in [0, 1], with standard normal latent variables.

    Parameters are the weights of all layers, fitted as a point. The prior from which their start is
    drawn enters the objective with `prior_weight`.

    Attributes
    ----------
    encoder, decoder : tuple of Layer
        The encoder gives means and log standard deviations, the decoder logits.
    activation : str
    prior_weight : float
        Weight of the normal prior of the weights.
    key : key or None
        Key of the latent variables' noise; None: no noise.
    """

    encoder: tuple[Layer, ...] = field(metadata={"static": True})
    decoder: tuple[Layer, ...] = field(metadata={"static": True})
    activation: str = field(metadata={"static": True})
    prior_weight: Number = 0.0
    key: Any = None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers of encoder and decoder."""
        return self.encoder + self.decoder

    def init(self) -> Params:
        """Zeros, where a network cannot start; see `start`."""
        return [jnp.zeros(layer.weights_shape, jnp.float32) for layer in self.layers]

    def start(self, key: jax.Array) -> Params:
        """Starting point: a draw from the prior."""
        return draw_weights(self.layers, key)

    def log_prior(self, params: Params) -> Number:
        """Log density of the prior, up to a constant."""
        return -self.prior_weight * sum(jnp.sum(w**2) for w in params) / 2

    def drawn(self, key):
        """The model, with noise in the latent variables."""
        return replace(self, key=key)

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Evidence lower bound of one record ``{"x"}``, at one draw of its latent variables."""
        return self._bound(params, record)[0]

    def score(self, params: Params, record: Record) -> Contribution:
        """Gradient of `log_likelihood`; those of dense layers are not formed."""
        return gradients(self.layers, lambda taps: self._bound(params, record, taps))

    def _bound(self, params, record, taps=None):
        x, n = record["x"], len(self.encoder)
        of_encoder, of_decoder = (None, None) if taps is None else (taps[:n], taps[n:])
        encoded, seen = forward(self.encoder, self.activation, params[:n], x, jnp, of_encoder)
        mean, log_sd = jnp.split(encoded, 2)
        z = mean + jnp.exp(log_sd) * self._noise(x, mean.shape)
        logits, more = forward(self.decoder, self.activation, params[n:], z, jnp, of_decoder)
        likelihood = jnp.sum(x * logits - jax.nn.softplus(logits))
        divergence = jnp.sum(mean**2 + jnp.exp(2 * log_sd) - 1 - 2 * log_sd) / 2
        return likelihood - divergence, seen + more

    def _noise(self, x, shape):
        """Normal noise, a function of the key and the record alone."""
        if self.key is None:
            return jnp.zeros(shape, jnp.float32)
        return jax.random.normal(record_key(self.key, (x,)), shape, jnp.float32)
