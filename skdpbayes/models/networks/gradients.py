"""Gradients of one record in the weights of layers; those of dense layers are not formed.

The gradient in the weights of a dense layer is the outer product of the gradient in its output and
its input: a `RankOne` contribution. Its norm, and its sum over a batch, need no gradient per record
(Goodfellow 2015). A convolution is a dense layer at each place of an image; its weights are few, so
the sum over places is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.contributions import RankOne
from skdpbayes.models.networks.layers import ConvolutionalLayer, Layer


def draw_weights(layers: Sequence[Layer], key):
    """Weights from their priors."""
    keys = jax.random.split(key, len(layers))
    return [
        jax.random.normal(k, layer.weights_shape, jnp.float32)
        for k, layer in zip(keys, layers, strict=True)
    ]


def gradients(layers: Sequence[Layer], value_of: Callable[..., Any]):
    """Gradient of a number in the weights of layers, of one record.

    Parameters
    ----------
    layers : sequence of Layer
    value_of : callable
        From taps, added to the output of each layer, to the number and the inputs of the layers.
    """
    taps = [jnp.zeros(layer.n_out, jnp.float32) for layer in layers]
    # Gradients are noisy: accelerators may take products at the precision that is fastest there.
    with jax.default_matmul_precision("default"):
        slopes, seen = jax.grad(value_of, has_aux=True)(taps)
    return [_gradient(*of_layer) for of_layer in zip(layers, slopes, seen, strict=True)]


def _gradient(layer, slopes, inputs):
    if isinstance(layer, ConvolutionalLayer):
        return slopes.reshape(-1, layer.n_filters).T @ inputs
    return RankOne(slopes, inputs)
