"""Private Bayesian logistic regression."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_number
from skdpbayes.declarations import schema_of
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._classes import BayesianClassifierMixin, class_probabilities
from skdpbayes.estimators._posterior import PosteriorEstimator
from skdpbayes.facts import Facts
from skdpbayes.intake.classified import ClassifiedRows
from skdpbayes.intake.reading import Reader
from skdpbayes.plans.settings import Bounds, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan

_PREDICT_BLOCK = 2**22  # entries of the largest temporary of a prediction


class DPBayesianLogisticRegression(BayesianClassifierMixin, PosteriorEstimator):
    """Bayesian logistic regression under (epsilon, delta)-differential privacy.

    A drop-in for `sklearn.linear_model.LogisticRegression` that returns a posterior. One row is one
    record: the fitted estimator, everything it exposes and every noisy sum released on the way are
    (epsilon, delta)-differentially private with respect to one row, for an adversary who knows all
    other rows, the parameters and the code. Scoring on training data, plain grid search and feature
    selection outside of `fit` are not covered, nor is timing (`privacy_spent_` lists all this).

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` gives the non-private model.
    delta : float, default=1e-5
        Privacy failure probability; well below one over the number of rows.
    solver : {"dpvi", "na-dpvi", "sgld", "vips"}, default="dpvi"
        Variational inference with a Gaussian posterior; the posterior given all that the noisy
        releases say, whose intervals cover better; Langevin dynamics; or noisy sufficient
        statistics: a few closed-form rounds, with intervals that cover well too and predictions
        somewhat behind (``docs/solvers/vips.md``). Langevin dynamics is experimental:
        under small budgets it seldom mixes at its defaults (it warns). "vips" takes neither
        `clipping_norm`, `sampling_rate` nor ``adjacency="add_remove"``.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        What "with respect to one row" means. Under ``"add_remove"`` the number of rows is private
        too, and `sampling_rate` must be given.
    numerics : {"secure", "fast"}, default="secure"
        Integer sums and integer noise, for which the guarantee is proved; or floating-point ones
        ("fast"), for which it is idealised: an adversary who knows all other rows may learn from
        the last bits of a release.
    ledger : PrivacyLedger, default=None
        Budget that is charged, and may refuse the fit. None: the one opened by ``with``, if any.
    classes : array-like of shape (n_classes,), Schema or Outcome, default=None
        The public set of labels; a `Schema` describes X too, its ``outcome`` y alone. None takes it
        from y, which is not private: it warns, and `privacy_spent_` records that the guarantee does
        not hold. Labels outside `classes` make a row contribute nothing.
    data_norm : float, default=None
        Public bound on the l2 norm of a row (the intercept not counted); longer rows are scaled
        down to it, here and in predictions. None means ``sqrt(n_features)``, the typical norm of
        standardised features: it shortens two rows in five of those, and the model is one of the
        shortened rows; declare a larger bound (1.5 times it, say) if you know that rows are longer.
        It is never learnt from data.
    fit_intercept : bool, default=True
    prior_scale : float, default=1.0
        Standard deviation of the normal prior on every coefficient and intercept, or scale of the
        Student t prior.
    prior_df : float, default=None
        Degrees of freedom, 3 or more, of a Student t prior (`na-dpvi` and `vips`), which shrinks
        small coefficients and leaves large ones: 4 is a usual choice where a few coefficients are
        far larger than most. None: a normal prior.
    clipping_norm : float, default=None
        l2 bound on a row's contribution to a gradient. None starts at a public bound that suits the
        budget and lowers it (`dpvi`) until a privately counted fraction of the rows is shortened,
        at 1% of the budget, or takes a fifth (`na-dpvi`) or a quarter (`sgld`) of the largest
        possible. Smaller means less noise and less information; rows are weighted without regard to
        their labels, so that it is not a bias.
    sampling_rate : float, default=None
        Probability with which each row enters a batch. None: 4096 rows (`dpvi`), 131072 (`na-dpvi`)
        or 65536 (`sgld`) expected.
    n_steps : int, default=None
        Number of rounds. None: 500 (`dpvi`), 200 (`na-dpvi`), 2000 (`sgld`) or 11 (`vips`, at most
        16; 16 without noise; 1 is enough where rows are near to normal).
    learning_rate : float, default=None
        Size of `dpvi`'s steps (None: 0.4, or 0.2 for the mean field). For `sgld`, the Langevin step
        size in units of the log posterior (None: the largest that both the budget and a public
        bound on the curvature allow). A step size too large for the budget is refused; a smaller
        one spends less than epsilon.
    guide : {"auto", "full_rank", "mean_field"}, default="auto"
        Covariance of `dpvi`'s Gaussian. "auto" is full rank up to 300 parameters.
    step_schedule : {"constant", "decreasing"}, default="constant"
        Step sizes of `sgld`; decreasing ones fall as t^(-1/3).
    n_chains : int, default=1
        Independent chains of `sgld`, each with its own batches and noise; they share the budget.
    n_posterior_samples : int, default=1000
        Posterior draws kept for predictions (`sgld` keeps as many iterates in all, if the run is
        long enough).
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. An integer makes the fit, **noise included**,
        reproducible, by anyone who knows it: it warns once and is recorded.
    verbose : int, default=0
        Print public quantities only: what is about to run and what it costs.

    Attributes
    ----------
    coef_ : array of shape (1, n_features) or (n_classes, n_features)
        Posterior mean of the coefficients.
    intercept_ : array of shape (1,) or (n_classes,)
    classes_ : array of shape (n_classes,)
    posterior_ : GaussianPosterior or DrawsPosterior
        Over the flattened (coefficients, intercept) of each row of `coef_`.
    posterior_samples_ : dict
        ``"coef"``, ``n_posterior_samples`` arrays like `coef_`, and ``"intercept"``, as many like
        `intercept_`.
    privacy_spent_ : PrivacySpent
        What the fit cost and under which conditions it holds.
    usable_records_ : NoisyCount
        Noisy number of records that count: those without missing cells or unknown labels.
    n_iter_ : int
        Rounds run.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.
    diagnostics_ : dict
        `sgld`: ``"r_hat"`` and ``"ess"`` for each parameter. `dpvi`: the ``"clipping_norm"``
        reached. `na-dpvi`: the ``"mean_weight"`` of a row. `vips`: empty.

    Notes
    -----
    No row raises: a row with NaN or infinity contributes nothing in `fit`, and is predicted as an
    all-zero row. Object cells that are not numbers count as NaN. Only ``classes=None`` looks at
    labels, and may raise on them.

    `dpvi` follows Jalko, Dikmen and Honkela (2017) and Jalko et al. (2023); `sgld` follows Li et
    al. (2019) with the temperature corrected; `na-dpvi` has the idea of Alrawajfeh, Jalko and
    Honkela (2025). See ``docs/differences.md`` for where and why we differ.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianLogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 3))
    >>> y = (X @ [2.0, -1.0, 0.0] + rng.logistic(size=2000) > 0).astype(int)
    >>> model = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1]).fit(X, y)
    >>> model.predict_proba(X[:5]).shape
    (5, 2)
    >>> model.privacy_spent_.epsilon <= 1.0
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        solver: str = "dpvi",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        ledger: PrivacyLedger | None = None,
        classes: Any = None,
        data_norm: float | None = None,
        fit_intercept: bool = True,
        prior_scale: float = 1.0,
        prior_df: float | None = None,
        clipping_norm: float | None = None,
        sampling_rate: float | None = None,
        n_steps: int | None = None,
        learning_rate: float | None = None,
        guide: str = "auto",
        step_schedule: str = "constant",
        n_chains: int = 1,
        n_posterior_samples: int = 1000,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.ledger = ledger
        self.classes = classes
        self.data_norm = data_norm
        self.fit_intercept = fit_intercept
        self.prior_scale = prior_scale
        self.prior_df = prior_df
        self.clipping_norm = clipping_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.guide = guide
        self.step_schedule = step_schedule
        self.n_chains = n_chains
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    _dims: ClassVar = {"coef": ("class", "feature"), "intercept": ("class",)}
    _fitted = (
        *PosteriorEstimator._fitted,
        "posterior_samples_",
        "coef_",
        "intercept_",
        "classes_",
        "data_norm_",
    )

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any) -> Self:
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
        self._fit(X, y)
        return self

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.logistic import LogisticRegression

        return (LogisticRegression,)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("prior_scale", self.prior_scale, 1e-6, 1e6, closed=True)
        check_number("prior_df", self.prior_df, 3, 1e6, none=True, closed=True)

    def _reader(self) -> Reader:
        return ClassifiedRows(
            schema_of(self.classes),
            classes=self.classes,
            data_norm=self.data_norm,
            intercept=bool(self.fit_intercept),
        )

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.logistic import LogisticRegression

        intercept = bool(self.fit_intercept)
        columns = facts.n_features + intercept
        row = math.hypot(self._norm(facts), intercept)
        prior_df = None if self.prior_df is None else np.float32(self.prior_df)
        scale = np.full(columns, self.prior_scale, np.float32)
        model = LogisticRegression(columns, len(facts.own_labels()), scale, prior_df)
        score, curvature = model.bounds(row)
        precision = self.prior_scale**-2
        return Task(model, Bounds(score, curvature, precision, constant_column=intercept))

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        draws = self._draws(plan, outcome)
        self._set_classes(plan.facts)
        rows = (plan.model.n_rows, plan.model.n_columns)
        mean = self._split(self.posterior_.mean.reshape(1, *rows))
        self.coef_, self.intercept_ = mean["coef"][0], mean["intercept"][0]
        self.posterior_samples_ = self._split(draws.reshape(-1, *rows))

    # --------------------------------------------------------------- predicting

    def sample_posterior(
        self, n_samples: int = 1000, random_state: int | np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Fresh posterior draws.

        Parameters
        ----------
        n_samples : int, default=1000
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        draws : dict
            ``"coef"``, `n_samples` arrays like `coef_`, and ``"intercept"``, as many like
            `intercept_`.
        """
        draws = self._fresh_draws(n_samples, random_state)
        return self._split(draws.reshape(n_samples, len(self.intercept_), -1))

    def _over_rows(
        self,
        X: Any,
        summary: Callable[[np.ndarray], np.ndarray],
        draws: dict[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        check_is_fitted(self)
        X = self._bounded(self._reader().numeric(self, X, reset=False))
        draws = self.posterior_samples_ if draws is None else draws
        n_draws, n_rows, d = draws["coef"].shape
        weights, intercept = draws["coef"].reshape(-1, d).T, draws["intercept"].ravel()
        block = max(1, _PREDICT_BLOCK // len(intercept))
        out = []
        for start in range(0, X.shape[0], block):
            logits = (X[start : start + block] @ weights + intercept).reshape(-1, n_draws, n_rows)
            out.append(summary(class_probabilities(logits)))
        return np.concatenate(out)

    def _split(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Coefficients and intercepts of draws of shape (n, n_rows, n_columns)."""
        d = self.n_features_in_
        intercept = draws[:, :, d] if self.fit_intercept else np.zeros(draws.shape[:2])
        return {
            "coef": np.ascontiguousarray(draws[:, :, :d]),
            "intercept": np.ascontiguousarray(intercept),
        }
