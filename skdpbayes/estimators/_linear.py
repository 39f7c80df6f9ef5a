"""Private Bayesian linear regression."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils import Tags

from skdpbayes.checks import check_number
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._posterior import PosteriorEstimator
from skdpbayes.estimators._responses import BayesianRegressorMixin
from skdpbayes.facts import Facts
from skdpbayes.intake.measured import RegressionRows
from skdpbayes.intake.reading import Reader
from skdpbayes.plans.settings import Bounds, Defaults, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan

_ROW_NORM = 0.85  # of the sums that are released once, in units of a typical row's


class DPBayesianLinearRegression(BayesianRegressorMixin, PosteriorEstimator):
    """Bayesian linear regression with an unknown noise variance, under (epsilon, delta)-differential privacy.

    A drop-in for `sklearn.linear_model.BayesianRidge` whose posterior accounts for the privacy
    noise. What is private, and against whom, is as for `DPBayesianLogisticRegression`.

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` gives a non-private fit, robust with "na-dpvi" and exact
        with "vips".
    delta : float, default=1e-5
        Privacy failure probability; well below one over the number of rows.
    bounds : tuple (X_bounds, y_bounds) or Schema, default=None
        Public ranges of features and response: a `Schema` whose outcome has bounds, or two pairs.
        Those of features may be a dict by column name or a schema, that of the response its
        outcome; else each is ``(low, high)``, of numbers or of arrays of shape (n_features,). They
        say in which units the data are; priors are in units of half a range. With "na-dpvi" rows
        beyond them are not altered: a long row counts less, and a residual beyond two standard
        deviations counts as two. With "vips" a long row counts less and responses are cut at their
        bounds. None takes the ranges from the data, which is not private: it warns, and
        `privacy_spent_` records that the guarantee does not hold.
    solver : {"na-dpvi", "vips"}, default="na-dpvi"
        Noise-aware inference from scores and curvatures over 20 rounds, or one release of sums of
        products and the posterior given the noisy sums (``docs/solvers/vips.md``). The second has wider
        intervals.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        What "with respect to one row" means. Under ``"add_remove"`` the number of rows is private
        too, and `sampling_rate` must be given; "vips" refuses it.
    numerics : {"secure", "fast"}, default="secure"
        Integer sums and integer noise, for which the guarantee is proved; or floating-point ones
        ("fast"), for which it is idealised: an adversary who knows all other rows may learn from
        the last bits of a release.
    ledger : PrivacyLedger, default=None
        Budget that is charged, and may refuse the fit. None: the one opened by ``with``, if any.
    fit_intercept : bool, default=True
        If False, data are scaled and not centred.
    prior_precision : float, default=0.1
        Coefficients have a normal prior of variance (noise variance) / `prior_precision`, in scaled
        units.
    prior_shape, prior_scale : float, default=1.0 and 0.02
        Of the inverse-gamma prior of the noise variance, in scaled units.
    clipping_norm : float, default=None
        l2 bound on a row's contribution to a score. None: a fifth of what a typical row could
        contribute.
    sampling_rate : float, default=None
        Probability with which each row enters a batch. None: all rows, up to 131072 expected.
    n_steps : int, default=None
        Number of rounds. None: 20. "vips" has none of these three.
    n_posterior_samples : int, default=1000
        Posterior draws kept for predictions.
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. Anything else makes the noise reproducible: for
        tests only.
    verbose : int, default=0
        Print public quantities only.

    Attributes
    ----------
    coef_ : array of shape (n_features,)
        Posterior mean of the coefficients, in the units of the data.
    intercept_ : float
    noise_std_ : float
        Posterior mean of the residuals' standard deviation, in the units of y.
    posterior_
        Over (a multiple of the log noise variance, coefficients, intercept), in scaled units, with
        ``mean``, ``std``, ``covariance`` and ``sample``.
    posterior_samples_ : dict
        Draws in the units of the data: ``"coef"``, of shape (n_posterior_samples, n_features),
        ``"intercept"`` and ``"noise_std"``, of shape (n_posterior_samples,).
    privacy_spent_ : PrivacySpent
        What the fit cost and under which conditions it holds.
    usable_records_ : NoisyCount
        Noisy number of records that count: those without missing cells or unknown labels.
    n_iter_ : int
        Rounds run.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    No row raises: a row that holds NaN or infinity contributes nothing in `fit`. With "na-dpvi"
    residuals are cut (Huber's proposal 2), with the estimating functions centred, so that intervals
    hold for normal residuals and outliers do little harm.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBayesianLinearRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(5000, 2))
    >>> y = X @ [2.0, -1.0] + 0.5 + 0.3 * rng.normal(size=5000)
    >>> model = DPBayesianLinearRegression(epsilon=1.0, bounds=((-1, 1), (-4, 4))).fit(X, y)
    >>> bool(abs(model.coef_[0] - 2.0) < 0.3)
    True
    >>> mean, std = model.predict(X[:3], return_std=True)
    >>> std.shape
    (3,)
    """

    _dims: ClassVar = {"coef": ("feature",)}
    _defaults = Defaults(schedules={"na-dpvi": (20, 2**17)}, curvature_every=2)
    _refused: ClassVar = {
        name: (
            f"solver={name!r} is not offered for linear regression: its intervals of the noise "
            "variance do not hold. Use solver='na-dpvi', which takes the same scores, or "
            "solver='vips', which releases once."
        )
        for name in ("dpvi", "sgld")
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        bounds: Any = None,
        solver: str = "na-dpvi",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        ledger: PrivacyLedger | None = None,
        fit_intercept: bool = True,
        prior_precision: float = 0.1,
        prior_shape: float = 1.0,
        prior_scale: float = 0.02,
        clipping_norm: float | None = None,
        sampling_rate: float | None = None,
        n_steps: int | None = None,
        n_posterior_samples: int = 1000,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.ledger = ledger
        self.fit_intercept = fit_intercept
        self.prior_precision = prior_precision
        self.prior_shape = prior_shape
        self.prior_scale = prior_scale
        self.clipping_norm = clipping_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    _fitted = (
        *PosteriorEstimator._fitted,
        *("posterior_samples_", "coef_", "intercept_", "noise_std_", "_scales", "_unit"),
    )

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the posterior to private data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range and for what is public: shapes and dtypes. With
            ``bounds=None`` also for a response that is not finite.
        """
        self._fit(X, y)
        return self

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.linear import LinearRegression
        from skdpbayes.models.linear_sums import LinearSums

        return LinearRegression, LinearSums

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("prior_precision", self.prior_precision, 1e-12, 1e12)
        check_number("prior_shape", self.prior_shape, 1e-3, 1e6)
        check_number("prior_scale", self.prior_scale, 1e-12, 1e12)

    def _reader(self) -> Reader:
        return RegressionRows(
            self._bounds_of_columns(),
            "linear regression centres its columns.",
            bounds=self.bounds,
            centred=bool(self.fit_intercept),
        )

    def _task(self, facts: Facts) -> Task:
        make = self._sums_model if self.solver == "vips" else self._scores_model
        return make(facts.n_features)

    def _row_norms(self, d: int) -> tuple[float, float]:
        """Norm of a typical scaled row (features uniform on their ranges), and the largest norm."""
        constant = bool(self.fit_intercept)
        return math.sqrt(d / 3 + constant), math.sqrt(d + constant)

    def _scores_model(self, d: int) -> Task:
        """Model of scores, and public bounds."""
        from skdpbayes.models.linear import LinearRegression, normal_prior

        typical, longest = self._row_norms(d)
        model = LinearRegression(
            d + bool(self.fit_intercept),
            precision=np.float32(self.prior_precision),
            shape=np.float32(self.prior_shape),
            scale=np.float32(self.prior_scale),
            unit=np.float32(0.7 * typical),
            normal=normal_prior(self.prior_precision, self.prior_shape, self.prior_scale),
        )
        # Bounds for rows within the declared ranges; the mechanism clips the others all the same.
        score, curvature = model.bounds(longest)
        precision = self.prior_precision * self.prior_shape / self.prior_scale
        return Task(model, Bounds(score, curvature, precision, typical=model.bounds(1.1 * typical)))

    def _sums_model(self, d: int) -> Task:
        """Model of the single release; only rows near typical length or longer lose weight."""
        from skdpbayes.models.linear_sums import LinearSums

        model = self._scores_model(d).model
        typical, longest = self._row_norms(d)
        norm = _ROW_NORM * typical if math.isfinite(self.epsilon) else 1.01 * longest
        fields = vars(model) | {"unit": np.float32(1)}
        sums = LinearSums(**fields, row_norm=np.float32(norm), intercept=bool(self.fit_intercept))
        return Task(sums, Bounds())

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        draws = self._draws(plan, outcome)
        self._scales = plan.facts.own_scales()
        self._unit = float(plan.model.unit)
        self.posterior_samples_ = self._in_units(draws)
        mean = self._in_units(self.posterior_.mean[None])
        self.coef_, self.intercept_ = mean["coef"][0], float(mean["intercept"][0])
        self.noise_std_ = float(self.posterior_samples_["noise_std"].mean())

    def _in_units(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Draws of (log variance / unit, coefficients, intercept) in the units of the data."""
        x_centre, x_half, y_centre, y_half = self._scales
        d = len(x_half)
        coef = draws[:, 1 : d + 1] * y_half / x_half
        intercept = y_centre - coef @ x_centre
        if self.fit_intercept:
            intercept = intercept + draws[:, d + 1] * y_half
        noise = np.exp(np.clip(draws[:, 0] * self._unit / 2, -300, 300)) * y_half
        return {
            "coef": coef,
            "intercept": np.broadcast_to(intercept, len(draws)).copy(),
            "noise_std": noise,
        }

    # --------------------------------------------------------------- predicting

    def sample_posterior(
        self, n_samples: int = 1000, random_state: int | np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Fresh posterior draws, a dict like `posterior_samples_`.

        Parameters
        ----------
        n_samples : int, default=1000
        random_state : None, int or numpy.random.Generator
        """
        draws = self._fresh_draws(n_samples, random_state)
        return self._in_units(draws)

    def _mean(self, rows: np.ndarray, means: np.ndarray | None = None) -> np.ndarray:
        del means  # those of draws differ from it by chance
        return rows @ self.coef_ + self.intercept_

    def _means_and_noise(
        self, rows: np.ndarray, draws: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        return rows @ draws["coef"].T + draws["intercept"], draws["noise_std"]

    def _features(self, X: Any) -> np.ndarray:
        return self._null_rows_at(self._scales.centre, self._reader().numeric(self, X, reset=False))
