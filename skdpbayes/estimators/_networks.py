"""Private Bayesian neural networks."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.utils.validation import check_is_fitted

from skdpbayes._labels import codes
from skdpbayes._layers import ConvolutionalLayer, DenseLayer, forward
from skdpbayes._rows import bounded_rows
from skdpbayes.estimators._base import check_choice, check_number
from skdpbayes.estimators._classes import BayesianClassifierMixin, classes_of
from skdpbayes.estimators._gradient import Bounds, GradientEstimator
from skdpbayes.estimators._responses import BayesianRegressorMixin, response_numbers, scales_of

_BLOCK = 1024  # rows of a prediction at a time
_MOST_WEIGHTS = 2**30  # in all draws
HIDDEN = ("relu", "tanh", "logistic", "identity", "softplus")


def layer_sizes(value, name="hidden_layer_sizes"):
    """Sizes of hidden layers: positive integers, or one."""
    sizes = (value,) if isinstance(value, int | np.integer) else value
    try:
        sizes = tuple(sizes)
    except TypeError:
        raise ValueError(f"{name} must be a sequence of positive integers, got {value!r}.") from None
    for size in sizes:
        check_number(f"each of {name}", size, 1, 2**20, integral=True, closed=True)
    return tuple(int(size) for size in sizes)


def network(d, n_out, sizes, gain, convolutions=(), image_shape=None):
    """Layers from `d` values to `n_out`: convolutions of images of `image_shape`, then dense ones.

    Raises
    ------
    ValueError
        If convolutions and the shape of images do not fit together.
    """
    layers: list[Any] = []
    if convolutions:
        shape = tuple(image_shape or ())
        if len(shape) not in (2, 3) or math.prod(shape) != d:
            raise ValueError(
                f"convolutions need image_shape, (height, width) or (height, width, channels), whose product is the "
                f"number of features, {d}; got {image_shape!r}."
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
                    f"The convolution {convolution!r} does not fit an image of {height} by {breadth}: numbers must be "
                    "positive, and its width at most that of the image."
                )
            layers.append(ConvolutionalLayer(height, breadth, channels, filters, width, stride, gain))
            (height, breadth), channels, d = layers[-1].places, filters, layers[-1].n_out
    elif image_shape is not None:
        raise ValueError("image_shape needs convolutions: dense layers do not look at it.")
    for size in (*sizes, n_out):
        layers.append(DenseLayer(d, size, gain))
        d = size
    return tuple(layers)


class NetworkEstimator(GradientEstimator):
    """Base of the networks with random weights."""

    _solvers = ("dpvi", "sgld")
    _schedules: ClassVar = {"dpvi": (1000, 2**11), "sgld": (2000, 2**11)}
    _fitted = (*GradientEstimator._fitted, "coefs_", "intercepts_", "_draws", "_layers")

    def _check_solver_parameters(self):
        if self.solver in ("na-dpvi", "vips"):
            raise ValueError(
                f"solver={self.solver!r} is not offered for networks: it releases a matrix of all pairs of weights, or "
                "statistics that networks do not have. Use solver='dpvi' or solver='sgld'."
            )
        super()._check_solver_parameters()
        check_choice("activation", self.activation, HIDDEN)
        check_number("prior_scale", self.prior_scale, 1e-6, 1e6, closed=True)
        check_choice("sampler", self.sampler, ("sgld", "sghmc", "sgnht"))
        check_number("friction", self.friction, 0, 1)
        if self.sampler != "sgld" and self.solver != "sgld":
            raise ValueError(f"sampler={self.sampler!r} needs solver='sgld'; {self.solver!r} does not sample.")

    def _check_guide(self):
        check_choice("guide", self.guide, ("mean_field", "point"))

    def _network(self, d, n_out):
        sizes = layer_sizes(self.hidden_layer_sizes)
        layers = network(d, n_out, sizes, float(self.prior_scale), tuple(self.convolutions), self.image_shape)
        total = sum(math.prod(layer.weights_shape) for layer in layers)
        if total * self.n_posterior_samples > _MOST_WEIGHTS:
            raise ValueError(
                f"n_posterior_samples={self.n_posterior_samples} draws of {total} weights do not fit in memory: take "
                f"at most {max(1, _MOST_WEIGHTS // total)}, or a smaller network."
            )
        return layers

    def _bounds(self):
        clip = 1.0 if self.clipping_norm is None else float(self.clipping_norm)
        return Bounds(math.inf, math.inf, 1.0, clip=clip, mean_curvature=clip**2)

    def _plan_solver(self, model, bounds, n):
        if self.solver == "sgld" or self.guide == "mean_field":
            return super()._plan_solver(model, bounds, n)
        from skdpbayes.solvers.adam import Adam

        n_steps, batch = self._n_rounds(())
        rate = self._sampling_rate(n, batch)
        learning_rate = self.learning_rate or 0.02
        solver = Adam(np.float32(learning_rate), np.float32(bounds.clip))
        return solver, self._spec(self._plan_noise(n_steps, rate).steps)

    def _set_weights(self, draws, layers):
        """Set draws and usual weights; `draws` are of all weights, layer by layer, and may have more columns."""
        self._draws, self._layers = np.asarray(draws, np.float32), layers
        usual = [
            layer.usual(own) for layer, own in zip(layers, split_weights(self.posterior_.mean, layers), strict=True)
        ]
        self.coefs_, self.intercepts_ = [w for w, _ in usual], [b for _, b in usual]

    @property
    def n_layers_(self):
        """Number of layers, that of the inputs among them."""
        check_is_fitted(self)
        return len(self._layers) + 1

    @property
    def posterior_samples_(self):
        """Draws of all parameters, in units of their priors, of shape (n_posterior_samples, n_parameters)."""
        check_is_fitted(self)
        return self._draws

    def sample_posterior(self, n_samples=100, random_state=None):
        """Posterior draws of all parameters, in units of their priors.

        Parameters
        ----------
        n_samples : int, default=100
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        draws : array of shape (n_samples, n_parameters)
            Weights of the layers, each by rows with the intercept last.
        """
        check_is_fitted(self)
        return self.posterior_.sample(np.random.default_rng(random_state), n_samples)

    def _outputs(self, rows, draws):
        """What the network gives for rows under each draw, of shape (rows, draws, outputs)."""
        out = np.empty((len(rows), len(draws), self._layers[-1].n_out))
        for i, draw in enumerate(draws):
            weights = split_weights(draw.astype(np.float64), self._layers)
            out[:, i] = forward(self._layers, self.activation, weights, rows, np)[0]
        return out


def split_weights(vector, layers):
    """Weights of each layer."""
    ends = np.cumsum([math.prod(layer.weights_shape) for layer in layers])
    return [
        own.reshape(layer.weights_shape)
        for own, layer in zip(np.split(vector, ends)[: len(layers)], layers, strict=True)
    ]


class DPBayesianMLPClassifier(BayesianClassifierMixin, NetworkEstimator):
    """Bayesian neural network for classification, under (epsilon, delta)-differential privacy."""

    def __init__(
        self,
        hidden_layer_sizes=(100,),
        activation="relu",
        *,
        epsilon=1.0,
        delta=1e-5,
        solver="dpvi",
        guide="mean_field",
        sampler="sgld",
        friction=0.1,
        adjacency="zero_out",
        numerics="secure",
        ledger=None,
        classes=None,
        data_norm=None,
        convolutions=(),
        image_shape=None,
        prior_scale=1.0,
        clipping_norm=None,
        sampling_rate=None,
        n_steps=None,
        learning_rate=None,
        step_schedule="constant",
        n_posterior_samples=50,
        random_state=None,
        verbose=0,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.guide = guide
        self.sampler = sampler
        self.friction = friction
        self.adjacency = adjacency
        self.numerics = numerics
        self.ledger = ledger
        self.classes = classes
        self.data_norm = data_norm
        self.convolutions = convolutions
        self.image_shape = image_shape
        self.prior_scale = prior_scale
        self.clipping_norm = clipping_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.step_schedule = step_schedule
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    _declared = ("classes",)
    _fitted = (*NetworkEstimator._fitted, "classes_", "data_norm_")

    def fit(self, X, y):
        """Fit the posterior to private data.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range and for what is public: shapes, dtypes, feature names. With
            ``classes=None`` also for labels that do not make a classification problem.
        """
        from skdpbayes.models.network import Classifier

        self._check_solver_parameters()
        check_number("data_norm", self.data_norm, 1e-6, 1e6, none=True, closed=True)
        X = self._numeric(X, reset=True)
        n, d = X.shape
        given, y = y, self._response(y, n, one_by_one=self.classes is not None)
        classes, voided_by = classes_of(self.classes, given, y)
        data_norm = math.sqrt(d) if self.data_norm is None else float(self.data_norm)
        layers = self._network(d, len(classes) if len(classes) > 2 else 1)
        draws = self._fit_posterior(
            Classifier(layers, self.activation),
            self._bounds(),
            n,
            lambda: self._pack(X, y, classes, data_norm),
            public=self._public_facts(n, classes=[str(c) for c in classes], data_norm=data_norm),
            voided_by=voided_by,
        )
        self.classes_, self.data_norm_ = classes, data_norm
        self._set_weights(draws, layers)
        return self

    @staticmethod
    def _pack(X, y, classes, data_norm):
        from skdpbayes.records import pack_records

        rows, null = bounded_rows(X, data_norm, intercept=False, dtype=np.float32)
        return pack_records(x=_dense(rows), y=np.where(null, np.int32(-1), codes(y, classes)))

    def _over_rows(self, X, summary, draws=None):
        check_is_fitted(self)
        rows, null = bounded_rows(self._numeric(X, reset=False), self.data_norm_, intercept=False)
        if null.any():
            warnings.warn(f"{null.sum()} of these rows hold NaN or infinity: predicted as all-zero rows.", stacklevel=3)
        out = []
        for start in range(0, rows.shape[0], _BLOCK):
            logits = self._outputs(_dense(rows[start : start + _BLOCK]), self._draws if draws is None else draws)
            if logits.shape[2] == 1:
                out.append(summary(np.concatenate([expit(-logits), expit(logits)], axis=2)))
            else:
                out.append(summary(softmax(logits, axis=2)))
        return np.concatenate(out)


def _dense(rows):
    return rows.toarray() if sparse.issparse(rows) else rows


class DPBayesianMLPRegressor(BayesianRegressorMixin, NetworkEstimator):
    """Bayesian neural network for regression, under (epsilon, delta)-differential privacy."""

    def __init__(
        self,
        hidden_layer_sizes=(100,),
        activation="relu",
        *,
        epsilon=1.0,
        delta=1e-5,
        bounds=None,
        solver="dpvi",
        guide="mean_field",
        sampler="sgld",
        friction=0.1,
        adjacency="zero_out",
        numerics="secure",
        ledger=None,
        convolutions=(),
        image_shape=None,
        prior_scale=1.0,
        clipping_norm=None,
        sampling_rate=None,
        n_steps=None,
        learning_rate=None,
        step_schedule="constant",
        n_posterior_samples=50,
        random_state=None,
        verbose=0,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.solver = solver
        self.guide = guide
        self.sampler = sampler
        self.friction = friction
        self.adjacency = adjacency
        self.numerics = numerics
        self.ledger = ledger
        self.convolutions = convolutions
        self.image_shape = image_shape
        self.prior_scale = prior_scale
        self.clipping_norm = clipping_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.step_schedule = step_schedule
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    _declared = ("bounds",)
    _fitted = (*NetworkEstimator._fitted, "noise_std_", "_scales")

    def fit(self, X, y):
        """Fit the posterior to private data.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range and for what is public: shapes and dtypes. With ``bounds=None`` also for a
            response that is not finite.
        """
        from skdpbayes.models.network import Regressor

        self._check_solver_parameters()
        X = _dense(self._numeric(X, reset=True))
        n, d = X.shape
        y = response_numbers(self._response(y, n, one_by_one=self.bounds is not None), self.bounds)
        scales, voided_by = scales_of(self.bounds, X, y)
        layers = self._network(d, 1)
        draws = self._fit_posterior(
            Regressor(layers, self.activation, *_LOG_NOISE),
            self._bounds(),
            n,
            lambda: self._pack(X, y, scales),
            public=self._public_facts(n),
            voided_by=voided_by,
        )
        self._scales = scales
        self._set_weights(draws, layers)
        self.noise_std_ = float(self._noise(self._draws).mean())
        return self

    @staticmethod
    def _pack(X, y, scales):
        from skdpbayes.records import pack_records

        with np.errstate(all="ignore"):
            response = ((y - scales[2]) / scales[3]).astype(np.float32)
        return pack_records(x=_scaled(X, scales).astype(np.float32), y=response)

    def _noise(self, draws):
        """Standard deviation of the noise in each draw, in the units of y."""
        mean, sd = _LOG_NOISE
        return np.exp(np.clip(mean + sd * draws[:, -1].astype(np.float64), -300, 300)) * self._scales[3]

    def _means_and_noise(self, X, draws):
        rows = _scaled(_dense(self._numeric(X, reset=False)), self._scales)
        null = ~np.isfinite(rows).all(axis=1)
        if null.any():
            warnings.warn(f"{null.sum()} of these rows hold NaN or infinity: predicted at the centre.", stacklevel=3)
            rows[null] = 0
        blocks = [self._outputs(rows[i : i + _BLOCK], draws)[:, :, 0] for i in range(0, len(rows), _BLOCK)]
        return self._scales[2] + self._scales[3] * np.concatenate(blocks), self._noise(draws)


_LOG_NOISE = -1.5, 1.0  # prior mean and standard deviation of the log noise, in half ranges of y


def _scaled(X, scales):
    """Features in half ranges about the centre; a row beyond three of them, or not finite, is not a number."""
    with np.errstate(all="ignore"):
        rows = (X - scales[0]) / scales[1]
    return rows
