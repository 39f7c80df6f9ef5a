"""Scale and offsets of a classifier's outputs: a model of few parameters, its weights being held.

A network that was fitted under noise may be too sure of its classes or not sure enough: clipping
shortens the gradients of surprising records most, noise leaves weights near their start, and
independent posteriors of weights are wide. What is wrong with the outputs as a whole, few numbers
mend (Platt 1999; Guo et al. 2017), and few numbers need few releases:

    p(y | x) = mean over draws of the weights of softmax(exp(s) f(x) + b)[y]

Records respond by a class, so scores can be clipped without bias (`skdpbayes.models.responses`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from skdpbayes.models.protocols import Params, Record, Response
from skdpbayes.pytrees import pytree

if TYPE_CHECKING:
    from skdpbayes.models.networks.perceptron import Classifier

_TINY = 1e-30
_PRIOR_SD = {"log_scale": 1.0, "offsets": 0.5}


@pytree
@dataclass(frozen=True)
class Outputs:
    """Logistic model of the classes given a network's outputs.

    Parameters are ``{"log_scale": s, "offsets": b}``, independent and normal about zero, with
    standard deviations 1 and 0.5.

    Attributes
    ----------
    network : Classifier
    draws : array of shape (n_draws, n_weights), optional
        Of the ravelled weights. None: none yet, and no record may be asked.
    """

    network: Classifier
    draws: jax.Array | None = None

    known_responses: ClassVar[bool] = True

    def init(self) -> Params:
        """Outputs as they are."""
        n = self.network.layers[-1].n_out
        return {"log_scale": jnp.zeros((), jnp.float32), "offsets": jnp.zeros(n, jnp.float32)}

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the prior, up to a constant."""
        scaled = [jnp.ravel(params[name]) / sd for name, sd in _PRIOR_SD.items()]
        return -jnp.sum(jnp.concatenate(scaled) ** 2) / 2

    def prior_precision(self) -> Params:
        """Diagonal of the prior's precision, shaped as the parameters."""
        return {name: jnp.full_like(x, _PRIOR_SD[name] ** -2) for name, x in self.init().items()}

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record ``{"x", "y"}``; zero for a class below zero."""
        logits = _of_classes(_scaled(params, self._logits(record)) + params["offsets"])
        logs = jax.nn.logsumexp(jax.nn.log_softmax(logits), axis=0) - math.log(len(logits))
        return jnp.where(record["y"] >= 0, logs[record["y"].clip(0)], 0)

    def response(self, params: Params, record: Record) -> Response:
        """The class of a record; the law's parameters are the logarithms of all shares."""
        scaled = _scaled(params, self._logits(record))
        logits = _of_classes(scaled + params["offsets"])
        own_shares = jax.nn.softmax(logits)  # of each draw
        shares, y = own_shares.mean(axis=0), record["y"]
        # Slopes of the shares, then of their logarithms.
        centred = _of_classes(scaled)
        centred -= jnp.sum(own_shares * centred, axis=1, keepdims=True)
        in_scale = jnp.mean(own_shares * centred, axis=0)
        in_offsets = jnp.diag(shares) - own_shares.T @ own_shares / len(logits)
        slope = jnp.concatenate([in_scale[:, None], in_offsets[:, -scaled.shape[1] :]], axis=1)
        others = jnp.eye(len(shares)) - shares
        own = jnp.where(y >= 0, others[y.clip(0)], jnp.nan)
        slope /= jnp.maximum(shares, _TINY)[:, None]
        return Response(slope, own[None], others[None], shares[None])

    def rescaling(self, params: Params) -> tuple[np.ndarray, np.ndarray]:
        """Factor and shift of the network's ravelled weights by which its outputs become these."""
        layers = self.network.layers
        factors = [np.ones(layer.weights_shape) for layer in layers]
        shifts = [np.zeros(layer.weights_shape) for layer in layers]
        factors[-1] *= math.exp(params["log_scale"])
        shifts[-1][:, -1] = params["offsets"] / layers[-1].gain  # weights of the constant input
        factor, shift = (np.concatenate([x.ravel() for x in own]) for own in (factors, shifts))
        return factor, shift

    def _logits(self, record: Record) -> jax.Array:
        """Outputs under each draw, (n_draws, n_outputs)."""
        assert self.draws is not None
        unravel = ravel_pytree(self.network.init())[1]
        return jax.vmap(lambda draw: self.network.outputs(unravel(draw), record))(self.draws)


def _scaled(params: Params, logits: jax.Array) -> jax.Array:
    return jnp.exp(params["log_scale"]) * logits


def _of_classes(logits: jax.Array) -> jax.Array:
    """Logits of all classes: of two, the first has zero."""
    if logits.shape[-1] > 1:
        return logits
    return jnp.concatenate([jnp.zeros_like(logits), logits], axis=-1)
