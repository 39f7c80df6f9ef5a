"""Private variational auto-encoders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy.special import expit
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_choice, check_number, warn_user
from skdpbayes.estimators._base import Outcome, PrivateEstimator
from skdpbayes.estimators._densities import DensityScoreMixin
from skdpbayes.estimators._networks import (
    layer_sizes,
    network,
    split_weights,
    usual_weights,
)
from skdpbayes.facts import Facts
from skdpbayes.intake.documents import Probabilities, known_probabilities
from skdpbayes.intake.reading import Reader
from skdpbayes.models.networks.layers import ACTIVATIONS, Layer, forward
from skdpbayes.plans.settings import Bounds, Defaults, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan

_BLOCK = 1024  # rows processed at a time
_CLIP = 1.0  # default clipping norm


class DPVariationalAutoencoder(
    DensityScoreMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator
):
    """Variational auto-encoder under (epsilon, delta)-differential privacy.

    A generative model of rows with values between 0 and 1, such as images (Kingma and Welling
    2014). Latent variables are standard normal; one network, the decoder, maps them to
    probabilities of the features, and another, the encoder, maps a row to the approximate posterior
    of its latent variables. Encoder, decoder and `sample` are private; `transform` and
    `score_samples` do not protect the rows that they are given. The guarantee is that of
    `DPBayesianLogisticRegression`.

    Parameters
    ----------
    n_components : int, default=10
        Number of latent variables. Under privacy, few usually do better than many.
    hidden_layer_sizes : sequence of int, default=(400,)
        Number of units in each hidden layer of the encoder; the decoder reverses the order.
    activation : {"softplus", "tanh", "relu", "logistic", "identity"}, default="softplus"
        Activation function of the hidden units.
    epsilon, delta : float, default=1.0 and 1e-5
        Privacy budget; ``epsilon=float("inf")`` gives the non-private model.
    solver : {"dpvi"}, default="dpvi"
        Adam on the clipped and noisy gradient of the evidence lower bound. Weights are point
        estimates, so "na-dpvi", "sgld" and "vips" are refused: they need a posterior of the
        weights.
    adjacency, numerics, ledger
        As in `DPBayesianLogisticRegression`.
    convolutions : sequence of (filters, width, stride), default=()
        Convolutions before the encoder, without padding; they need `image_shape`. The decoder is
        dense.
    image_shape : tuple (height, width) or (height, width, channels), default=None
        Shape of the image in each row of X, flattened row by row, channels last.
    clipping_norm : float, default=None
        l2 bound on a row's gradient with respect to all weights, in units of their initial scale.
        None: 1.
    sampling_rate : float, default=None
        Probability with which each row enters a batch. None: a rate at which 1024 rows are
        expected.
    n_steps : int, default=None
        Number of releases. None: 1000.
    learning_rate : float, default=None
        Step size, in units of the weights' initial scale. None: 0.05.
    random_state, verbose
        As in `DPBayesianLogisticRegression`.

    Attributes
    ----------
    coefs_, intercepts_ : lists of arrays
        Weights and intercepts of the encoder's layers and then of the decoder's.
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    n_iter_ : int
        Number of releases.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    Values of X are clipped to [0, 1] and treated as probabilities. A row with NaN or infinity
    contributes nothing in `fit`, without a warning. The noise in a row's latent variables is a
    function of the row and a public key, so that it does not depend on other rows.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPVariationalAutoencoder
    >>> rng = np.random.default_rng(0)
    >>> parts = rng.random((5000, 2)) < 0.5
    >>> X = rng.random((5000, 20)) < np.where(np.repeat(parts, 10, axis=1), 0.9, 0.1)
    >>> model = DPVariationalAutoencoder(2, (20,), epsilon=2.0, n_steps=300).fit(X)
    >>> model.transform(X[:3]).shape
    (3, 2)
    >>> bool((model.reconstruct(X).round() == X).mean() > 0.8)  # 0.5 without latent variables
    True
    """

    _costly_records = True
    _defaults = Defaults(schedules={"dpvi": (1000, 2**10)}, learning_rate=0.05)
    _refused: ClassVar = {
        name: (
            f"solver={name!r} is not offered for auto-encoders, whose weights are not random "
            "variables. Use solver='dpvi'."
        )
        for name in ("na-dpvi", "sgld", "vips")
    }
    _fitted = (*PrivateEstimator._fitted, "coefs_", "intercepts_", "_encoder", "_decoder")

    def __init__(
        self,
        n_components: int = 10,
        hidden_layer_sizes: int | Sequence[int] = (400,),
        activation: str = "softplus",
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        solver: str = "dpvi",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        convolutions: Sequence[tuple[int, int, int]] = (),
        image_shape: tuple[int, ...] | None = None,
        clipping_norm: float | None = None,
        sampling_rate: float | None = None,
        n_steps: int | None = None,
        learning_rate: float | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.max_rows_per_person = max_rows_per_person
        self.ledger = ledger
        self.convolutions = convolutions
        self.image_shape = image_shape
        self.clipping_norm = clipping_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_is_fitted__(self) -> bool:
        return "coefs_" in vars(self)

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit encoder and decoder to private rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Values between 0 and 1.
        y : ignored
        groups : array-like of shape (n_samples,), default=None
            The person that each row is of, where `max_rows_per_person` is set.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range, shapes and dtypes, which are public. Never for the values
            in a row.
        """
        self._fit(X, y, groups)
        return self

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.networks.autoencoder import Autoencoder

        return (Autoencoder,)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("activation", self.activation, ACTIVATIONS)
        check_number("n_components", self.n_components, 1, 10**4, integral=True, closed=True)
        check_number("learning_rate", self.learning_rate, 0, none=True)
        self._check_solver()

    def _reader(self) -> Reader:
        return Probabilities()

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.networks.autoencoder import Autoencoder

        d, k = facts.n_features, int(self.n_components)
        sizes = layer_sizes(self.hidden_layer_sizes)
        encoder = network(d, 2 * k, sizes, 1.0, tuple(self.convolutions), self.image_shape)
        model = Autoencoder(encoder, network(k, d, sizes[::-1], 1.0), self.activation)
        return Task(model, Bounds(clip=float(self.clipping_norm or _CLIP)))

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        self.n_iter_ = plan.n_steps
        model = plan.model
        weights = split_weights(plan.solver.posterior(model, outcome.state).mean, model.layers)
        n = len(model.encoder)
        self._encoder, self._decoder = (model.encoder, weights[:n]), (model.decoder, weights[n:])
        self.coefs_, self.intercepts_ = usual_weights(model.layers, weights)

    # --------------------------------------------------------------------- rows

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components)

    def transform(self, X: Any) -> np.ndarray:
        """Posterior means of the latent variables of rows, of shape (n_samples, n_components).

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Not protected. A row with NaN or infinity has the prior means, zero, with a warning.
        """
        return self._encoded(X)[0]

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Probabilities of the features given latent variables, (n_samples, n_features)."""
        check_is_fitted(self)
        return expit(self._run_layers(*self._decoder, np.asarray(X, np.float64)))

    def reconstruct(self, X: Any) -> np.ndarray:
        """Probabilities of the features at the latent means of rows, shaped like X."""
        return self.inverse_transform(self.transform(X))

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.Generator | None = None
    ) -> np.ndarray:
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

    def _log_volume(self, facts: Facts) -> float:
        del facts
        return math.log(2)

    def score_samples(
        self, X: Any, n_draws: int = 10, random_state: int | np.random.Generator | None = 0
    ) -> np.ndarray:
        """Evidence lower bound of each row, in nats.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Not protected.
        n_draws : int, default=10
            Number of draws of the latent variables of each row.
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        bound : array of shape (n_samples,)
            NaN for a row with NaN or infinity.
        """
        check_number("n_draws", n_draws, 1, integral=True, closed=True)
        mean, log_sd, rows, known = self._encoded(X)
        rng = np.random.default_rng(random_state)
        bound = -(mean**2 + np.exp(2 * log_sd) - 1 - 2 * log_sd).sum(axis=1) / 2
        # All rows share the noise, so that a row's score does not depend on the other rows.
        for noise in rng.standard_normal((n_draws, mean.shape[1])):
            logits = self._run_layers(*self._decoder, mean + np.exp(log_sd) * noise)
            bound += (rows * logits - np.logaddexp(0, logits)).sum(axis=1) / n_draws
        return np.where(known, bound, np.nan)

    def _encoded(self, X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Latent means, latent log standard deviations, rows, and whether each row is finite."""
        check_is_fitted(self)
        rows, known = known_probabilities(self._reader().numeric(self, X, reset=False))
        if not known.all():
            warn_user(f"{(~known).sum()} of these rows hold NaN or infinity.")
        rows = rows.astype(np.float64)
        mean, log_sd = np.split(self._run_layers(*self._encoder, rows), 2, axis=1)
        mean[~known], log_sd[~known] = 0, 0
        return mean, log_sd, rows, known

    def _run_layers(
        self, layers: Sequence[Layer], weights: Sequence[np.ndarray], values: np.ndarray
    ) -> np.ndarray:
        blocks = [values[i : i + _BLOCK] for i in range(0, len(values), _BLOCK)] or [values]
        return np.concatenate(
            [forward(layers, self.activation, weights, block, np)[0] for block in blocks]
        )
