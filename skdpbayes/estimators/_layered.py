"""Layers of a network, from the parameters of an estimator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from skdpbayes.checks import check_number
from skdpbayes.models.networks.layers import ConvolutionalLayer, DenseLayer, Layer


def layer_sizes(value: int | Sequence[int], name: str = "hidden_layer_sizes") -> tuple[int, ...]:
    """Sizes of hidden layers, from a sequence of positive integers or a single one."""
    sizes = (value,) if isinstance(value, int | np.integer) else value
    try:
        sizes = tuple(sizes)
    except TypeError:
        raise ValueError(
            f"{name} must be a sequence of positive integers, got {value!r}."
        ) from None
    for size in sizes:
        check_number(f"each of {name}", size, 1, 2**20, integral=True, closed=True)
    return tuple(int(size) for size in sizes)


def network(
    d: int,
    n_out: int,
    sizes: Sequence[int],
    gain: float,
    convolutions: Sequence[tuple[int, int, int]] = (),
    image_shape: tuple[int, ...] | None = None,
) -> tuple[Layer, ...]:
    """Layers from `d` inputs to `n_out` outputs: convolutions of images, then dense layers.

    Raises
    ------
    ValueError
        If the convolutions do not fit `image_shape`.
    """
    layers: list[Layer] = []
    if convolutions:
        shape = tuple(image_shape or ())
        if len(shape) not in (2, 3) or math.prod(shape) != d:
            raise ValueError(
                "convolutions need image_shape, (height, width) or (height, width, channels), "
                f"whose product is the number of features, {d}; got {image_shape!r}."
            )
        height, breadth, channels = (*shape, 1)[:3]
        for convolution in convolutions:
            try:
                filters, width, stride = (int(number) for number in convolution)
            except (TypeError, ValueError):
                raise ValueError(
                    f"convolutions must hold triples (filters, width, stride), got {convolution!r}."
                ) from None
            if min(filters, width, stride) < 1 or width > min(height, breadth):
                raise ValueError(
                    f"The convolution {convolution!r} does not fit an image of {height} by "
                    f"{breadth}: numbers must be positive, and its width at most that of the image."
                )
            layer = ConvolutionalLayer(height, breadth, channels, filters, width, stride, gain)
            layers.append(layer)
            (height, breadth), channels, d = layer.places, filters, layer.n_out
    elif image_shape is not None:
        raise ValueError("image_shape needs convolutions: dense layers do not look at it.")
    for size in (*sizes, n_out):
        layers.append(DenseLayer(d, size, gain))
        d = size
    return tuple(layers)


def split_weights(vector: np.ndarray, layers: Sequence[Layer]) -> list[np.ndarray]:
    """Weights of each layer, from the vector of all weights."""
    ends = np.cumsum([math.prod(layer.weights_shape) for layer in layers])
    return [
        own.reshape(layer.weights_shape)
        for own, layer in zip(np.split(vector, ends)[: len(layers)], layers, strict=True)
    ]


def usual_weights(
    layers: Sequence[Layer], weights: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Weights and intercepts of layers, as scikit-learn's `coefs_` and `intercepts_`."""
    usual = [layer.usual(own) for layer, own in zip(layers, weights, strict=True)]
    return [w for w, _ in usual], [b for _, b in usual]
