"""Private Bayesian neural networks for classification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdpbayes.declarations import schema_of
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._classes import BayesianClassifierMixin, class_probabilities
from skdpbayes.estimators._networks import BLOCK, NetworkEstimator
from skdpbayes.facts import Facts
from skdpbayes.intake.classified import ClassifiedRows
from skdpbayes.intake.reading import Reader
from skdpbayes.intake.rows import dense
from skdpbayes.plans.settings import Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan


class DPBayesianMLPClassifier(BayesianClassifierMixin, NetworkEstimator):
    """Bayesian neural network for classification, under (epsilon, delta)-differential privacy.

    Replaces `sklearn.neural_network.MLPClassifier`. Predictions are averaged over posterior draws
    of the weights. The guarantee is that of `DPBayesianLogisticRegression`.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int, default=(100,)
        Number of units in each hidden layer; ``()`` makes the model linear.
    activation : {"relu", "tanh", "logistic", "identity", "softplus"}, default="relu"
        Activation function of the hidden units.
    epsilon, delta : float, default=1.0 and 1e-5
        Privacy budget; ``epsilon=float("inf")`` gives the non-private model. `delta` should be well
        below one over the number of rows.
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
    classes : array-like of shape (n_classes,), Schema or Outcome, default=None
        Public set of labels. A `Schema` describes X too; its ``outcome`` describes y alone. None
        takes the labels from y, which is not private: it warns, and `privacy_spent_` records that
        the guarantee does not hold. A row with another label contributes nothing.
    data_norm : float, default=None
        Public bound on the l2 norm of a row; longer rows are scaled down to it. None: the square
        root of the number of features, which suits standardised features.
    convolutions : sequence of (filters, width, stride), default=()
        Convolutions before the hidden layers, without padding; they need `image_shape`.
    image_shape : tuple (height, width) or (height, width, channels), default=None
        Shape of the image in each row of X, flattened row by row, channels last.
    prior_scale : float, default=1.0
        Prior standard deviation of the intercepts. That of the weights is `prior_scale` over the
        square root of the number of inputs of their layer.
    clipping_norm : float, default=None
        l2 bound on a row's gradient with respect to all weights, in units of their priors. None: 1
        with "dpvi" and 0.5 with "sgld".
    sampling_rate : float, default=None
        Probability with which each row enters a batch. None: a rate at which 2048 rows are
        expected.
    n_steps : int, default=None
        Number of releases. None: 1000 with "dpvi", 2000 with "sgld". The last 2%, and at least 6,
        calibrate the outputs (see Notes).
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
        "output_scale" and "output_offsets", by which the last rounds multiplied and shifted the
        outputs, where there were such rounds. "sgld": R-hat and effective sample size of each
        weight. They raise no warning: hidden units are exchangeable, so weights do not mix even if
        predictions do.
    n_iter_ : int
        Number of releases.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    classes_ : array of shape (n_classes,)
        Labels.

    Notes
    -----
    Per-row gradients of dense layers are never formed: their norms and sum follow from each layer's
    inputs and from the gradient with respect to its outputs (Goodfellow 2015). A row with NaN or
    infinity contributes nothing.

    The last rounds hold the weights and fit a scale and offsets of the outputs, so that
    probabilities are calibrated (Platt 1999; Guo et al. 2017). There are none with
    ``epsilon=float("inf")``, with fewer than 18 rounds, or where noise would hide the scale.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianMLPClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(5000, 2))
    >>> y = (X[:, 0] * X[:, 1] > 0).astype(int)
    >>> model = DPBayesianMLPClassifier((20,), epsilon=2.0, classes=[0, 1], n_steps=300).fit(X, y)
    >>> bool(model.score(X, y) > 0.8)
    True
    """

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: str = "relu",
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        solver: str = "dpvi",
        guide: str = "auto",
        sampler: str = "sgld",
        friction: float = 0.1,
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        classes: Any = None,
        data_norm: float | None = None,
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
        self.solver = solver
        self.guide = guide
        self.sampler = sampler
        self.friction = friction
        self.adjacency = adjacency
        self.numerics = numerics
        self.max_rows_per_person = max_rows_per_person
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

    _fitted = (*NetworkEstimator._fitted, "classes_", "data_norm_")
    _longest = 1.0

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
            For parameters out of range, shapes, dtypes and feature names, which are public. With
            ``classes=None`` also for labels that are no classes.
        """
        self._fit(X, y, groups)
        return self

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.networks.perceptron import Classifier

        return (Classifier,)

    def _reader(self) -> Reader:
        return ClassifiedRows(
            schema_of(self.classes),
            classes=self.classes,
            data_norm=self.data_norm,
            intercept=False,
            always_dense=True,
        )

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.networks.perceptron import Classifier

        n = len(facts.own_labels())
        layers = self._network(facts.n_features, n if n > 2 else 1)
        return Task(Classifier(layers, self.activation), self._bounds())

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        draws = self._draws(plan, outcome)
        self._set_classes(plan.facts)
        self._set_weights(draws, plan.model.layers)

    def _over_rows(
        self, X: Any, summary: Callable[[np.ndarray], np.ndarray], draws: np.ndarray | None = None
    ) -> np.ndarray:
        check_is_fitted(self)
        rows = self._bounded(self._reader().numeric(self, X, reset=False))
        draws = self.posterior_samples_ if draws is None else draws
        out = []
        for start in range(0, rows.shape[0], BLOCK):
            logits = self._outputs(dense(rows[start : start + BLOCK]), draws)
            out.append(summary(class_probabilities(logits)))
        return np.concatenate(out)
