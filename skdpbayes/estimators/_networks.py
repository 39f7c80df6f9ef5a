"""Layers of networks, from the parameters of an estimator, and the base of Bayesian networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_choice, check_number
from skdpbayes.estimators._posterior import PosteriorEstimator
from skdpbayes.models.networks.layers import (
    ACTIVATIONS,
    ConvolutionalLayer,
    DenseLayer,
    Layer,
    forward,
)
from skdpbayes.plans.settings import Bounds, Defaults

BLOCK = 1024  # rows predicted at a time
_MOST_WEIGHTS = 2**30  # in all draws


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


class NetworkEstimator(PosteriorEstimator):
    """Base of the networks with random weights."""

    _clips: ClassVar = {"dpvi": 1.0, "sgld": 0.5}
    _curvature = 1.0  # of a row's log-likelihood, in the last layer
    _chains_mix = False
    _opaque = True
    _costly_records = True
    _guides = ("auto", "mean_field", "point")
    # The number of records limits the learning rate of linear models only.
    _defaults = Defaults(
        schedules={"dpvi": (1000, 2**11), "sgld": (2000, 2**11)},
        full_rank_up_to=-1,
        learning_rates=(0.05, 0.05),
        learning_rate=0.05,
        limited=False,
    )
    _refused: ClassVar = {
        name: (
            f"solver={name!r} is not offered for networks: it releases a matrix of all pairs of "
            "weights, or statistics that networks do not have. Use solver='dpvi' or solver='sgld'."
        )
        for name in ("na-dpvi", "vips")
    }
    _layers: tuple[Layer, ...]
    _fitted = (
        *PosteriorEstimator._fitted,
        *("posterior_samples_", "coefs_", "intercepts_", "_layers"),
    )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("activation", self.activation, ACTIVATIONS)
        check_number("prior_scale", self.prior_scale, 1e-6, 1e6, closed=True)
        check_choice("sampler", self.sampler, ("sgld", "sghmc", "sgnht"))
        check_number("friction", self.friction, 0, 1)

    def _network(self, d: int, n_out: int) -> tuple[Layer, ...]:
        sizes = layer_sizes(self.hidden_layer_sizes)
        layers = network(
            d, n_out, sizes, float(self.prior_scale), tuple(self.convolutions), self.image_shape
        )
        total = sum(math.prod(layer.weights_shape) for layer in layers)
        if total * self.n_posterior_samples > _MOST_WEIGHTS:
            raise ValueError(
                f"n_posterior_samples={self.n_posterior_samples} draws of {total} weights do not "
                f"fit in memory: take at most {max(1, _MOST_WEIGHTS // total)}, or a smaller "
                "network."
            )
        return layers

    def _bounds(self) -> Bounds:
        """Clipping norm, and curvature of a row, which clipping bounds, too."""
        private = math.isfinite(self.epsilon)
        # Without noise, hardly any row should be clipped.
        clip = self.clipping_norm or (self._clips[self.solver] if private else 64.0)
        return Bounds(
            math.inf, math.inf, 1.0, clip=float(clip), mean_curvature=min(self._curvature, clip**2)
        )

    def _set_weights(self, draws: np.ndarray, layers: tuple[Layer, ...]) -> None:
        """Set draws and usual weights; further columns of `draws` are other parameters."""
        self.posterior_samples_, self._layers = np.asarray(draws, np.float32), layers
        self.coefs_, self.intercepts_ = usual_weights(
            layers, split_weights(self.posterior_.mean, layers)
        )

    @property
    def n_layers_(self) -> int:
        """Number of layers, including the inputs."""
        check_is_fitted(self)
        return len(self._layers) + 1

    def sample_posterior(
        self, n_samples: int = 100, random_state: int | np.random.Generator | None = None
    ) -> np.ndarray:
        """Posterior draws of all parameters, in units of their priors.

        Parameters
        ----------
        n_samples : int, default=100
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        draws : array of shape (n_samples, n_parameters)
            Weights of each layer, ordered by output, with the intercept last.
        """
        return self._fresh_draws(n_samples, random_state)

    def _outputs(self, rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Outputs of the network under each draw, of shape (rows, draws, outputs)."""
        out = np.empty((len(rows), len(draws), self._layers[-1].n_out))
        for i, draw in enumerate(draws):
            weights = split_weights(draw.astype(np.float64), self._layers)
            out[:, i] = forward(self._layers, self.activation, weights, rows, np)[0]
        return out
