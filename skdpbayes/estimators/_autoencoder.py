"""Private variational auto-encoders."""

from __future__ import annotations

import warnings
from typing import ClassVar

import numpy as np
from scipy.special import expit
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skdpbayes._layers import forward
from skdpbayes.estimators._base import check_choice, check_number
from skdpbayes.estimators._belief_net import known_probabilities
from skdpbayes.estimators._gradient import GradientEstimator
from skdpbayes.estimators._networks import HIDDEN, layer_sizes, network, split_weights

_BLOCK = 1024  # rows at a time


class DPVariationalAutoencoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, GradientEstimator):
    """Variational auto-encoder under (epsilon, delta)-differential privacy."""

    _solvers = ("dpvi",)
    _schedules: ClassVar = {"dpvi": (1000, 2**10)}
    _fitted = (*GradientEstimator._fitted, "encoder_", "decoder_")

    def __init__(
        self,
        n_components=20,
        hidden_layer_sizes=(400,),
        activation="softplus",
        *,
        epsilon=1.0,
        delta=1e-5,
        solver="dpvi",
        adjacency="zero_out",
        numerics="secure",
        ledger=None,
        convolutions=(),
        image_shape=None,
        clipping_norm=None,
        sampling_rate=None,
        n_steps=None,
        learning_rate=None,
        random_state=None,
        verbose=0,
    ):
        self.n_components = n_components
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.ledger = ledger
        self.convolutions = convolutions
        self.image_shape = image_shape
        self.clipping_norm = clipping_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_is_fitted__(self):
        return hasattr(self, "decoder_")

    # ------------------------------------------------------------------ fitting

    def fit(self, X, y=None):
        """Fit encoder and decoder to private rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Values between 0 and 1.
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range and for what is public: shapes and dtypes. Never for what a row holds.
        """
        del y
        self._check_parameters()
        X = self._numeric(X, reset=True)
        n, d = X.shape
        self._fit_posterior(self._model(d), None, n, lambda: self._pack(X), public=self._public_facts(n))
        return self

    def _check_parameters(self):
        self._check_privacy_parameters()
        check_choice("activation", self.activation, HIDDEN)
        check_number("n_components", self.n_components, 1, 10**4, integral=True, closed=True)
        check_number("learning_rate", self.learning_rate, 0, none=True)
        if self.solver != "dpvi":
            raise ValueError(
                f"solver={self.solver!r} is not offered for auto-encoders, whose weights are not random variables. "
                "Use solver='dpvi'."
            )

    def _model(self, d):
        from skdpbayes.models.autoencoder import Autoencoder

        sizes, k = layer_sizes(self.hidden_layer_sizes), int(self.n_components)
        encoder = network(d, 2 * k, sizes, 1.0, tuple(self.convolutions), self.image_shape)
        return Autoencoder(encoder, network(k, d, sizes[::-1], 1.0), self.activation)

    def _plan_solver(self, model, bounds, n):
        from skdpbayes.solvers.adam import Adam

        del model, bounds
        n_steps, batch = self._n_rounds(())
        rate = self._sampling_rate(n, batch)
        solver = Adam(np.float32(self.learning_rate or _LEARNING_RATE), np.float32(self.clipping_norm or _CLIP))
        return solver, self._spec(self._plan_noise(n_steps, rate).steps)

    @staticmethod
    def _pack(X):
        from skdpbayes.records import pack_records

        rows, known = known_probabilities(X)
        rows[~known] = np.nan
        return pack_records(x=rows)

    def _set_posterior(self, model, solver, state, rng):
        del rng
        weights = split_weights(solver.posterior(model, state).mean, model.layers)
        n = len(model.encoder)
        self.encoder_ = list(zip(model.encoder, weights[:n], strict=True))
        self.decoder_ = list(zip(model.decoder, weights[n:], strict=True))

    # --------------------------------------------------------------------- rows

    @property
    def _n_features_out(self):
        return int(self.n_components)

    def transform(self, X):
        """Posterior means of the latent variables of rows, of shape (n_samples, n_components).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Not protected. A row with NaN or infinity has those of no row at all, zero, with a warning.
        """
        return self._encoded(X)[0]

    def inverse_transform(self, X):
        """Probabilities of the features, of shape (n_samples, n_features), given latent variables."""
        check_is_fitted(self)
        return expit(self._run_layers(self.decoder_, np.asarray(X, np.float64)))

    def reconstruct(self, X):
        """Probabilities of the features given what rows tell of latent variables, shaped as X."""
        return self.inverse_transform(self.transform(X))

    def sample(self, n_samples=1, random_state=None):
        """Private synthetic rows: probabilities of the features, of shape (n_samples, n_features).

        Parameters
        ----------
        n_samples : int, default=1
        random_state : None, int or numpy.random.Generator
        """
        check_is_fitted(self)
        check_number("n_samples", n_samples, 0, integral=True)
        latent = np.random.default_rng(random_state).standard_normal((n_samples, self.n_components))
        return self.inverse_transform(latent)

    def score_samples(self, X, n_draws=10, random_state=0):
        """Evidence lower bound of each row, in nats.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Not protected.
        n_draws : int, default=10
            Of the latent variables of each row.
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        bound : array of shape (n_samples,)
            NaN for a row that holds one, or an infinity.
        """
        check_number("n_draws", n_draws, 1, integral=True, closed=True)
        mean, log_sd, rows, known = self._encoded(X)
        rng = np.random.default_rng(random_state)
        bound = -(mean**2 + np.exp(2 * log_sd) - 1 - 2 * log_sd).sum(axis=1) / 2
        # The same noise for all rows: a row's score does not depend on which others are scored with it.
        for noise in rng.standard_normal((n_draws, mean.shape[1])):
            logits = self._run_layers(self.decoder_, mean + np.exp(log_sd) * noise)
            bound += (rows * logits - np.logaddexp(0, logits)).sum(axis=1) / n_draws
        return np.where(known, bound, np.nan)

    def score(self, X, y=None):
        """Mean of `score_samples`."""
        del y
        return float(np.mean(self.score_samples(X)))

    def _encoded(self, X):
        """Means and log standard deviations of the latent variables, rows, and which are known."""
        check_is_fitted(self)
        rows, known = known_probabilities(self._numeric(X, reset=False))
        if not known.all():
            warnings.warn(f"{(~known).sum()} of these rows hold NaN or infinity.", stacklevel=3)
        rows = rows.astype(np.float64)
        mean, log_sd = np.split(self._run_layers(self.encoder_, rows), 2, axis=1)
        mean[~known], log_sd[~known] = 0, 0
        return mean, log_sd, rows, known

    def _run_layers(self, layers, values):
        layers, weights = zip(*layers, strict=True)
        blocks = [values[i : i + _BLOCK] for i in range(0, len(values), _BLOCK)] or [values]
        return np.concatenate([forward(layers, self.activation, weights, block, np)[0] for block in blocks])


_LEARNING_RATE, _CLIP = 0.01, 1.0
