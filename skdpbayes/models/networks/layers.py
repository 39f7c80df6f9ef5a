"""Layers of networks, for arrays of NumPy and of JAX: ``xp`` is one of the two.

Values have any leading axes and then one, of the values that a layer takes. Weights have standard
normal priors: what a layer multiplies them by, its *inputs*, carries the scale. The last column of
the weights has the intercepts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ACTIVATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "identity": lambda x, xp: x,
    "logistic": lambda x, xp: (1 + xp.tanh(x / 2)) / 2,
    "tanh": lambda x, xp: xp.tanh(x),
    "relu": lambda x, xp: xp.maximum(x, 0),
    "softplus": lambda x, xp: xp.logaddexp(x, 0),
}


@dataclass(frozen=True)
class DenseLayer:
    """A layer with a weight for each pair of an input and an output.

    Attributes
    ----------
    n_in, n_out : int
    gain : float
        Prior standard deviation of what inputs of unit mean square give.
    """

    n_in: int
    n_out: int
    gain: float = 1.0

    @property
    def weights_shape(self) -> tuple[int, int]:
        """Shape of the weights."""
        return self.n_out, self.n_in + 1

    def inputs(self, values, xp):
        """Inputs of the weights, (..., n_in + 1)."""
        return _with_constant(values, self.gain, xp)

    def __call__(self, weights, inputs):
        """Values, (..., n_out), before the activation."""
        return inputs @ weights.T

    def usual(self, weights):
        """Weights and intercepts in the usual units."""
        return self.gain * weights[:, :-1].T / math.sqrt(self.n_in), self.gain * weights[:, -1]


@dataclass(frozen=True)
class ConvolutionalLayer:
    """A layer that multiplies each square of an image by the same weights; without padding.

    Attributes
    ----------
    height, breadth, n_channels : int
        Shape of the input image.
    n_filters : int
    width, stride : int
        Of a square, and from one square to the next.
    gain : float
        As of `DenseLayer`.
    """

    height: int
    breadth: int
    n_channels: int
    n_filters: int
    width: int
    stride: int
    gain: float = 1.0

    @property
    def places(self) -> tuple[int, int]:
        """Height and breadth of the image that it gives."""
        return (self.height - self.width) // self.stride + 1, (
            self.breadth - self.width
        ) // self.stride + 1

    @property
    def n_out(self) -> int:
        """Values that it gives."""
        return math.prod(self.places) * self.n_filters

    @property
    def weights_shape(self) -> tuple[int, int]:
        """Shape of the weights."""
        return self.n_filters, self.width**2 * self.n_channels + 1

    def inputs(self, values, xp):
        """Inputs of the weights: patches, (..., places, size of a patch + 1)."""
        lead = values.shape[:-1]
        image = values.reshape(*lead, self.height, self.breadth, self.n_channels)
        rows, columns = (
            self.stride * np.arange(n)[:, None] + np.arange(self.width) for n in self.places
        )
        squares = image[..., rows[:, None, :, None], columns[None, :, None, :], :]
        return _with_constant(squares.reshape(*lead, math.prod(self.places), -1), self.gain, xp)

    def __call__(self, weights, inputs):
        """Values, (..., places * n_filters), before the activation."""
        return (inputs @ weights.T).reshape(*inputs.shape[:-2], -1)

    def usual(self, weights):
        """Filters, (width, width, n_channels, n_filters), and intercepts in the usual units."""
        size = self.weights_shape[1] - 1
        filters = weights[:, :-1].T.reshape(self.width, self.width, self.n_channels, self.n_filters)
        return self.gain * filters / math.sqrt(size), self.gain * weights[:, -1]


Layer = DenseLayer | ConvolutionalLayer


def _with_constant(values, gain, xp):
    scaled = values * np.float32(gain / math.sqrt(values.shape[-1]))
    return xp.concatenate([scaled, xp.full((*values.shape[:-1], 1), gain, scaled.dtype)], axis=-1)


def forward(layers: Sequence[Layer], activation: str, weights, values, xp, taps=None):
    """Output of layers; the activation follows all of them but the last.

    Parameters
    ----------
    layers : sequence of Layer
    activation : str
        Of `ACTIVATIONS`.
    weights : sequence of arrays
        Of each layer.
    values : array of shape (..., n_in)
    xp : module
    taps : sequence of arrays, optional
        Values added to the output of each layer.

    Returns
    -------
    values : array of shape (..., n_out)
    inputs : list
        Inputs of the weights of each layer.
    """
    seen = []
    for i, (layer, own) in enumerate(zip(layers, weights, strict=True)):
        seen.append(layer.inputs(ACTIVATIONS[activation](values, xp) if i else values, xp))
        values = layer(own, seen[-1])
        if taps is not None:
            values = values + taps[i]
    return values, seen
