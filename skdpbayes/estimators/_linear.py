"""Private Bayesian linear regression."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils import Tags

from skdpbayes.checks import check_number, warn_user
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._posterior import PosteriorEstimator
from skdpbayes.estimators._responses import BayesianRegressorMixin
from skdpbayes.facts import Facts
from skdpbayes.intake.measured import RegressionRows
from skdpbayes.intake.reading import Reader
from skdpbayes.plans.settings import Bounds, Defaults, Settings, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.models.linear import Huber
    from skdpbayes.plans.plan import Plan

_UNIT = 1.4  # of the log variance, over the norm of a typical row, for residuals cut at 1
_ROW_NORM = 0.85  # clipping norm of rows in the single release, over a typical row's norm
# Residual standard deviation over the released size of the responses, which is twice theirs or
# more (`RescaledLinear`), above which `fit` warns.
_EXCESS = 0.85


class DPBayesianLinearRegression(BayesianRegressorMixin, PosteriorEstimator):
    """Bayesian linear regression under (epsilon, delta)-differential privacy.

    A drop-in replacement for `sklearn.linear_model.BayesianRidge` whose posterior accounts for the
    privacy noise. The residual variance is unknown. The guarantee is that of
    `DPBayesianLogisticRegression`.

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` gives a non-private fit, which is robust with "na-dpvi"
        and exact with "vips".
    delta : float, default=1e-5
        Probability with which the privacy bound may fail; well below one over the number of rows.
    bounds : tuple (X_bounds, y_bounds), Schema or its outcome, default=None
        Public ranges of features and response: a `Schema` whose outcome has bounds; that outcome
        alone, for columns in [-1, 1] as `make_preprocessor` returns them; or two pairs
        ``(low, high)`` of numbers or of arrays of shape (n_features,). The feature ranges may also
        be a dict by column name or a schema, and the response range an outcome. They set the units:
        priors are in units of half a range. With "na-dpvi", a release finds where columns lie
        within them and how wide they are, if public numbers say that noise would not hide it, and
        priors are at least as wide as in these units; values beyond the bounds are not altered; a
        row that is long in these units is down-weighted, and a residual beyond two standard
        deviations counts as two. With
        "vips", a long row is down-weighted and responses are clipped at their bounds. None takes
        the ranges from the data, which is not private: it warns, and `privacy_spent_` records that
        the guarantee does not hold.
    solver : {"na-dpvi", "vips"}, default="na-dpvi"
        "na-dpvi" is noise-aware inference from scores and curvatures over 30 rounds. "vips" is one
        release of sums of products, and the posterior given the noisy sums, with wider intervals
        (``docs/solvers/vips.md``).
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighbouring relation. Under ``"add_remove"`` the number of rows is private too, and
        `sampling_rate` must be given; "vips" refuses it.
    numerics : {"secure", "fast"}, default="secure"
        Arithmetic of sums and noise. "secure" is integer arithmetic, for which the guarantee is
        proved. "fast" is floating point: the proof assumes exact arithmetic, and an adversary who
        knows all other rows may learn from the last bits of a release.
    max_rows_per_person : int, default=None
        Largest number of rows of a person. It makes the person the unit of privacy: `fit` takes the
        persons' names as `groups`, and keeps at most this many rows of each, evenly spaced. None:
        the row is the unit.
    ledger : PrivacyLedger, default=None
        Budget to charge; it refuses a fit that exceeds it. None: the ledger opened by ``with``, if
        any.
    fit_intercept : bool, default=True
        Whether to fit an intercept. False: data are scaled but not centred.
    prior_precision : float, default=0.1
        The normal prior of the coefficients has the variance (residual variance) /
        `prior_precision`, in scaled units.
    prior_shape, prior_scale : float, default=1.0 and 0.02
        Shape and scale of the inverse-gamma prior of the residual variance, in scaled units.
    clipping_norm : float, default=None
        l2 bound on a row's contribution to a score, in the units found. None: a fifth of a typical
        row's largest contribution, and more where noise is small.
    sampling_rate : float, default=None
        Probability with which each row enters a batch. None: 1, or a rate at which 131072 rows are
        expected if there are more.
    n_steps : int, default=None
        Number of rounds, those that find columns included. None: 30. "vips" takes none of
        `clipping_norm`, `sampling_rate` and `n_steps`.
    n_posterior_samples : int, default=1000
        Number of posterior draws kept for predictions.
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. Any other value makes the noise reproducible,
        which voids the guarantee: for tests only.
    verbose : int, default=0
        If positive, print the plan and progress: public quantities only.

    Attributes
    ----------
    coef_ : array of shape (n_features,)
        Posterior mean of the coefficients, in the units of the data.
    intercept_ : float
        Posterior mean of the intercept.
    noise_std_ : float
        Posterior mean of the residual standard deviation, in the units of y.
    posterior_
        Posterior of (log residual variance, coefficients, intercept), in the units of the data,
        with ``mean``, ``std``, ``covariance`` and ``sample``; without the intercept, if none is
        fitted.
    posterior_samples_ : dict
        Draws in the units of the data: ``"coef"``, of shape (n_posterior_samples, n_features),
        ``"intercept"`` and ``"noise_std"``, of shape (n_posterior_samples,).
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    n_iter_ : int
        Number of rounds run.
    diagnostics_ : dict
        "na-dpvi": the ``"mean_weight"`` of a row, its ``"mean_weight_at_most"``, two standard
        errors above, and the ``"last_step"`` from the late rounds to the estimate, in posterior
        standard deviations; `fit` warns above 1.5. "vips": empty.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    No row raises an error: a row with NaN or infinity contributes nothing in `fit`. "na-dpvi"
    clips residuals (Huber's proposal 2) and centres the estimating functions, so that intervals are
    valid for normal residuals, and outliers do little harm.

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
    _estimated = ("coef", "intercept", "noise_std")
    _positive = ("noise_std",)
    _linear = True
    _defaults = Defaults(schedules={"na-dpvi": (30, 2**17)}, curvature_every=2)
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
        max_rows_per_person: int | None = None,
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
        self.max_rows_per_person = max_rows_per_person
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
        *("posterior_samples_", "coef_", "intercept_", "noise_std_", "_scales", "_quiet"),
    )

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any, *, groups: Any = None) -> Self:
        """Fit the posterior to private data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
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
        d, n = facts.n_features, facts.n_rows
        if self.solver == "vips":
            return self._sums_model(d)
        return self._rescaled_model(d, n)

    def _row_norms(self, d: int) -> tuple[float, float]:
        """Norm of a typical scaled row (features uniform on their ranges), and the largest norm."""
        constant = bool(self.fit_intercept)
        return math.sqrt(d / 3 + constant), math.sqrt(d + constant)

    def _scores_model(self, d: int, huber: Huber) -> Task:
        """Model of scores, and public bounds."""
        from skdpbayes.models.linear import LinearRegression, normal_prior

        typical, longest = self._row_norms(d)
        model = LinearRegression(
            d + bool(self.fit_intercept),
            precision=np.float32(self.prior_precision),
            shape=np.float32(self.prior_shape),
            scale=np.float32(self.prior_scale),
            unit=np.float32(_UNIT * typical / huber.cut),
            normal=normal_prior(self.prior_precision, self.prior_shape, self.prior_scale),
            huber=huber,
        )
        # Bounds for rows within the declared ranges; the mechanism clips the others all the same.
        score, curvature = model.bounds(longest)
        precision = self.prior_precision * self.prior_shape / self.prior_scale
        return Task(model, Bounds(score, curvature, precision, typical=model.bounds(1.1 * typical)))

    def _rescaled_model(self, d: int, n: int | None) -> Task:
        """Model that finds the scales of columns first, if noise would not hide them."""
        from skdpbayes.models.linear import Huber
        from skdpbayes.models.rescaled import RescaledLinear
        from skdpbayes.plans.gradients import rescaling_shares, residual_cut, row_reach

        intercept = bool(self.fit_intercept)
        settings = Settings.of(self._parameters(), self._defaults)
        shares = rescaling_shares(settings, d, intercept, n)
        huber = Huber.at(residual_cut(settings, d + intercept, n))
        task = self._scores_model(d, huber)
        if not shares:
            return task
        typical = math.sqrt(d + intercept)
        row_norm, reach = 1.1 * typical, row_reach(settings, d + intercept, n)
        unit = np.float32(_UNIT * typical / huber.cut)
        scores = replace(task.model, unit=unit)
        model = RescaledLinear(
            scores,
            intercept,
            whitened=len(shares) > 1,
            row_norm=np.float32(row_norm),
            reach=np.float32(reach),
            n_records=np.float32(np.inf if n is None else n),
        )
        return Task(model, task.bounds._replace(typical=scores.bounds(row_norm * reach)))

    def _sums_model(self, d: int) -> Task:
        """Model of the single release; only rows near typical length or longer lose weight."""
        from skdpbayes.models.linear import Huber
        from skdpbayes.models.linear_sums import LinearSums

        model = self._scores_model(d, Huber.at(2)).model  # sums cut no residuals
        typical, longest = self._row_norms(d)
        norm = _ROW_NORM * typical if math.isfinite(self.epsilon) else 1.01 * longest
        fields = vars(model) | {"unit": np.float32(1)}
        sums = LinearSums(**fields, row_norm=np.float32(norm), intercept=bool(self.fit_intercept))
        return Task(sums, Bounds())

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        from skdpbayes.solvers.opened import OpenedState

        draws = self._draws(plan, outcome)
        self._scales = plan.facts.own_scales()
        self.posterior_samples_ = self._split(draws)
        mean = self._split(self.posterior_.mean[None])
        self.coef_, self.intercept_ = mean["coef"][0], float(mean["intercept"][0])
        self.noise_std_ = float(self.posterior_samples_["noise_std"].mean())
        if isinstance(outcome.state, OpenedState) and "response" in outcome.state.params:
            self._warn_if_residuals_exceed(float(outcome.state.params["response"]))

    def _warn_if_residuals_exceed(self, responses: float) -> None:
        """Warn if a fit is not one of these rows, by the size of their responses."""
        least = np.quantile(self.posterior_samples_["noise_std"], 0.05)
        if least > _EXCESS * responses * float(self._scales.y_half[0]):
            warn_user(
                f"The residual standard deviation, {self.noise_std_:.3g}, seems to be larger than "
                "that of the responses: the fit may be wrong. `bounds` of y, or of a column, may "
                "leave out most of its values; check_data counts them.",
                UserWarning,
            )

    def _set_posterior(self, plan: Plan, outcome: Outcome) -> None:
        super()._set_posterior(plan, outcome)
        units = self._units(plan)
        self.posterior_ = self.posterior_.mapped(*units)
        self._quiet: np.ndarray | None = None
        if self.solver == "na-dpvi":
            quiet = plan.solver.without_noise(plan.model, outcome.state)
            self._quiet = quiet.mapped(*units).std

    def _units(self, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        """Axes and offset of the data's units.

        They map (log residual variance over the model's unit, coefficients, intercept), in half
        ranges, to the posterior's parameters.
        """
        x_centre, x_half, y_centre, y_half = plan.facts.own_scales()
        slopes = y_half / x_half
        own = [[float(plan.model.unit)], slopes, y_half if self.fit_intercept else []]
        axes = np.diag(np.concatenate(own))
        offset = np.zeros(len(axes))
        offset[:1] = 2 * np.log(y_half)
        if self.fit_intercept:
            axes[-1, 1:-1], offset[-1:] = -slopes * x_centre, y_centre
        return axes, offset

    def _quiet_std(self) -> dict[str, np.ndarray]:
        if self._quiet is None:
            return {}
        log_variance, *others = self._quiet
        d = len(self.coef_)
        # The standard deviation is half the logarithm's, times the value.
        own = {"coef": others[:d], "noise_std": log_variance / 2 * self.noise_std_}
        return own | ({"intercept": others[d]} if self.fit_intercept else {})

    def _split(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Draws of the posterior's parameters by name."""
        end = -1 if self.fit_intercept else None
        intercept = draws[:, -1] if self.fit_intercept else np.zeros(len(draws))
        return {
            "coef": draws[:, 1:end].copy(),
            "intercept": intercept.copy(),
            "noise_std": np.exp(np.clip(draws[:, 0] / 2, -300, 300)),
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
        return self._split(self._fresh_draws(n_samples, random_state))

    def _mean(self, rows: np.ndarray, means: np.ndarray | None = None) -> np.ndarray:
        del means  # their average differs from the posterior mean by Monte Carlo error
        return rows @ self.coef_ + self.intercept_

    def _means_and_noise(
        self, rows: np.ndarray, draws: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        return rows @ draws["coef"].T + draws["intercept"], draws["noise_std"]

    def _features(self, X: Any) -> np.ndarray:
        return self._null_rows_at(self._scales.centre, self._reader().numeric(self, X, reset=False))
