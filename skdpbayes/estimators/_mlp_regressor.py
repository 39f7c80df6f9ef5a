"""Private Bayesian neural networks for regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._networks import BLOCK, NetworkEstimator
from skdpbayes.estimators._responses import BayesianRegressorMixin
from skdpbayes.facts import Facts
from skdpbayes.intake.measured import MeasuredRows
from skdpbayes.intake.reading import Reader
from skdpbayes.plans.settings import Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan

# Prior mean and standard deviation of the log residual standard deviation, in half ranges of y.
_LOG_NOISE = (-1.5, 1.0)


class DPBayesianMLPRegressor(BayesianRegressorMixin, NetworkEstimator):
    """Bayesian neural network for regression, under (epsilon, delta)-differential privacy.

    Replaces `sklearn.neural_network.MLPRegressor`. Residuals are normal; predictions are averaged
    over posterior draws of all weights. The guarantee is that of `DPBayesianLogisticRegression`.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int, default=(100,)
        Number of units in each hidden layer; ``()`` makes the model linear.
    activation : {"relu", "tanh", "logistic", "identity", "softplus"}, default="relu"
        Activation function of the hidden units.
    epsilon, delta : float, default=1.0 and 1e-5
        Privacy budget; ``epsilon=float("inf")`` gives the non-private model. `delta` should be well
        below one over the number of rows.
    bounds : tuple (X_bounds, y_bounds) or Schema, default=None
        Public ranges of features and response: a `Schema` whose outcome has bounds, or two pairs
        ``(low, high)`` of numbers or of arrays of shape (n_features,). The feature ranges may also
        be a dict by column name or a schema, and the response range an outcome. They set the units;
        values beyond them are not altered. None takes the ranges from the data, which is not
        private: it warns, and `privacy_spent_` records that the guarantee does not hold.
    solver : {"dpvi", "sgld"}, default="dpvi"
        Variational inference, or Langevin dynamics driven by the privacy noise. "na-dpvi" and
        "vips" are refused.
    guide : {"auto", "mean_field", "point"}, default="auto"
        Posterior approximation of "dpvi": independent normal distributions (also "auto"), or a
        point estimate of the most probable weights by Adam, as in DP-SGD (Abadi et al. 2016). A
        point expresses no uncertainty.
    sampler : {"sgld", "sghmc", "sgnht"}, default="sgld"
        Variant of "sgld": without momentum, with momentum (Chen, Fox and Guestrin 2014), or with
        momentum and a thermostat that absorbs the noise of subsampling (Ding et al. 2014).
    friction : float, default=0.1
        Friction of the samplers with momentum, in (0, 1].
    adjacency, numerics, ledger
        As in `DPBayesianLogisticRegression`.
    convolutions : sequence of (filters, width, stride), default=()
        Convolutions before the hidden layers, without padding; they need `image_shape`.
    image_shape : tuple (height, width) or (height, width, channels), default=None
        Shape of the image in each row of X, flattened row by row, channels last.
    prior_scale : float, default=1.0
        Prior standard deviation of the intercepts. That of the weights is `prior_scale` over the
        square root of the number of inputs of their layer.
    clipping_norm : float, default=None
        l2 bound on a row's gradient with respect to all weights, in units of their priors. None:
        10. If most rows are clipped, the residual standard deviation is underestimated.
    sampling_rate : float, default=None
        Probability with which each row enters a batch. None: a rate at which 2048 rows are
        expected.
    n_steps : int, default=None
        Number of releases. None: 1000 with "dpvi", 2000 with "sgld".
    learning_rate : float, default=None
        Step size: for "dpvi", in units of the prior; for "sgld", as in
        `DPBayesianLogisticRegression`.
    step_schedule : {"constant", "decreasing"}, default="constant"
        Step sizes of "sgld".
    n_posterior_samples : int, default=50
        Number of posterior draws kept for predictions; for "sgld", evenly spaced iterates after the
        burn-in.
    random_state, verbose
        As in `DPBayesianLogisticRegression`.

    Attributes
    ----------
    coefs_, intercepts_ : lists of arrays
        Posterior means of the weights and intercepts of each layer, shaped (n_in, n_out) and
        (n_out,) as in scikit-learn; those of convolutions are shaped (width, width, channels,
        filters) and (filters,).
    posterior_ : GaussianPosterior or DrawsPosterior
        Posterior of all parameters, in units of their priors, layer by layer. Within a layer the
        weights are ordered by output, and intercepts come last.
    posterior_samples_ : array of shape (n_posterior_samples, n_parameters)
        Draws from `posterior_`.
    n_layers_ : int
        Number of layers, including the inputs.
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    diagnostics_ : dict
        "sgld": R-hat and effective sample size of each weight. They raise no warning: hidden units
        are exchangeable, so weights do not mix even if predictions do.
    n_iter_ : int
        Number of releases.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    noise_std_ : float
        Posterior mean of the residual standard deviation, in the units of y.

    Notes
    -----
    Clipping gradients down-weights outlying responses, and intervals describe the clipped model. A
    row with NaN or infinity contributes nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianMLPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(5000, 1))
    >>> y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=5000)
    >>> model = DPBayesianMLPRegressor(
    ...     (20,), "tanh", epsilon=2.0, bounds=((-1, 1), (-1.5, 1.5)), n_steps=300
    ... )
    >>> bool(model.fit(X, y).score(X, y) > 0.8)
    True
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str = "relu",
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        bounds: Any = None,
        solver: str = "dpvi",
        guide: str = "auto",
        sampler: str = "sgld",
        friction: float = 0.1,
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        convolutions: Sequence[tuple[int, int, int]] = (),
        image_shape: tuple[int, ...] | None = None,
        prior_scale: float = 1.0,
        clipping_norm: float | None = None,
        sampling_rate: float | None = None,
        n_steps: int | None = None,
        learning_rate: float | None = None,
        step_schedule: str = "constant",
        n_posterior_samples: int = 50,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
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
        self.max_rows_per_person = max_rows_per_person
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

    # Clipping most rows would bias the residual standard deviation downwards.
    _clips: ClassVar = {"dpvi": 10.0, "sgld": 10.0}
    _curvature = 100.0  # at a residual standard deviation of a tenth
    _opaque = False
    _estimated = _positive = ("noise_std",)
    _fitted = (*NetworkEstimator._fitted, "noise_std_", "_scales")

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Fit the posterior to private data.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        groups : array-like of shape (n_samples,), default=None
            The person that each row is of, where `max_rows_per_person` is set.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range, shapes and dtypes, which are public. With ``bounds=None``
            also for a response that is not finite.
        """
        self._fit(X, y, groups)
        return self

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.networks.perceptron import Regressor

        return (Regressor,)

    def _reader(self) -> Reader:
        return MeasuredRows(self._bounds_of_columns(), bounds=self.bounds)

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.networks.perceptron import Regressor

        layers = self._network(facts.n_features, 1)
        return Task(Regressor(layers, self.activation, *_LOG_NOISE), self._bounds())

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        draws = self._draws(plan, outcome)
        self._scales = plan.facts.own_scales()
        self._set_weights(draws, plan.model.layers)
        self.noise_std_ = float(self._noise(self.posterior_samples_).mean())

    def _summary_draws(self) -> dict[str, np.ndarray]:
        return {"noise_std": self._noise(self.posterior_samples_)}  # weights mean nothing

    def _noise(self, draws: np.ndarray) -> np.ndarray:
        """Residual standard deviation in each draw, in the units of y."""
        mean, sd = _LOG_NOISE
        log_noise = np.clip(mean + sd * draws[:, -1].astype(np.float64), -300, 300)
        return np.exp(log_noise) * self._scales.y_half

    def _features(self, X: Any) -> np.ndarray:
        X = self._reader().numeric(self, X, reset=False)
        with np.errstate(all="ignore"):
            rows = (X - self._scales.centre) / self._scales.half
        return self._null_rows_at(0.0, rows)

    def _means_and_noise(
        self, rows: np.ndarray, draws: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        starts = range(0, len(rows), BLOCK)
        means = np.concatenate([self._outputs(rows[i : i + BLOCK], draws)[:, :, 0] for i in starts])
        return self._scales.y_centre + self._scales.y_half * means, self._noise(draws)
