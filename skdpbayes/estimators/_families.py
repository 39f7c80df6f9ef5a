"""Private density estimators of conjugate exponential families."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_number
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._densities import DensityScoreMixin
from skdpbayes.estimators._posterior import PosteriorEstimator
from skdpbayes.facts import Facts
from skdpbayes.intake.classified import CategoryColumn
from skdpbayes.intake.labels import codes
from skdpbayes.intake.reading import PlainRows, Reader
from skdpbayes.plans.settings import Bounds, Settings, Task
from skdpbayes.posteriors.base import MappedPosterior
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan

_PARAMETERS = """epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` gives the non-private model.
    delta : float, default=1e-5
        Privacy failure probability; well below one over the number of rows."""

_SOLVER = """solver : {"vips", "dpvi", "na-dpvi", "sgld"}, default="vips"
        "vips" releases a bounded statistic once and gives the exact posterior of it, noise
        included. The others are the gradient solvers (see `DPBayesianLogisticRegression`).
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighbouring relation. "vips" needs a public number of rows and refuses ``"add_remove"``.
    numerics : {"secure", "fast"}, default="secure"
        Arithmetic of sums and noise. "secure" is integer arithmetic, for which the guarantee is
        proved. "fast" is floating point: the proof assumes exact arithmetic, and an adversary who
        knows all other rows may learn from the last bits of a release.
    ledger : PrivacyLedger, default=None
        Budget to charge; it refuses a fit that exceeds it. None: the ledger opened by ``with``, if
        any.
    clipping_norm, sampling_rate, n_steps, learning_rate, guide, step_schedule, n_chains
        Parameters of the gradient solvers, as in `DPBayesianLogisticRegression`.
    n_posterior_samples : int, default=1000
        Number of posterior draws kept for predictions.
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. Any other value makes the noise reproducible,
        which voids the guarantee: for tests only.
    verbose : int, default=0
        If positive, print the plan and progress: public quantities only."""

_ATTRIBUTES = """posterior_samples_ : array of shape (n_posterior_samples, n_parameters)
        Draws of the parameter.
    posterior_
        The posterior, with ``mean``, ``std``, ``covariance`` and ``sample``.
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    diagnostics_ : dict
        Diagnostics of the solver.
    n_features_in_, feature_names_in_, n_iter_
        As in scikit-learn."""


def _described(cls):
    cls.__doc__ = cls.__doc__.format(parameters=_PARAMETERS, solver=_SOLVER, attributes=_ATTRIBUTES)
    return cls


class _FamilyEstimator(DensityScoreMixin, DensityMixin, PosteriorEstimator):
    """Base of the families; subclasses give a model, records, and densities."""

    _fitted = (*PosteriorEstimator._fitted, "posterior_samples_")

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the posterior to private data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range, shapes and dtypes, which are public. Never for the values
            in a row.
        """
        self._fit(X, y)
        return self

    def _reader(self) -> Reader:
        return PlainRows()

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        draws = self._draws(plan, outcome)
        if self.solver != "vips":  # the posterior is of the unconstrained parameter
            self.posterior_ = MappedPosterior(self.posterior_, type(plan.model).constrained)
            draws = plan.model.constrained(draws)
        self._set_parameter(plan, draws)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log posterior predictive density of each row, averaged over the posterior draws.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Not protected.

        Returns
        -------
        log_density : array of shape (n_samples,)
        """
        check_is_fitted(self)
        log = self._log_densities(self._check_rows(X))
        return special.logsumexp(log, axis=1) - math.log(log.shape[1])

    def _check_rows(self, X: Any) -> np.ndarray:
        return self._reader().numeric(self, X, reset=False)

    def sample_posterior(
        self, n_samples: int = 1000, random_state: int | np.random.Generator | None = None
    ) -> np.ndarray:
        """Fresh posterior draws of the parameter, of shape (n_samples, n_parameters)."""
        return self._fresh_draws(n_samples, random_state)

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.Generator | None = None
    ) -> np.ndarray:
        """Rows from the posterior predictive distribution, each from a separate posterior draw.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        X : array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        check_number("n_samples", n_samples, 0, integral=True)
        rng = np.random.default_rng(random_state)
        return self._draw_rows(rng, self.sample_posterior(n_samples, rng))


@_described
class DPGammaExponential(_FamilyEstimator):
    """Exponential waiting times with a Gamma prior on their rates, under differential privacy.

    ``x_j ~ Exponential(rate_j)``, ``rate_j ~ Gamma(prior_shape, prior_rate)``, independently for
    each feature. The likelihood accounts for the censoring of values above `upper`, which therefore
    causes no bias.

    Parameters
    ----------
    {parameters}
    prior_shape, prior_rate : float, default=1.0
        Shape and rate of the Gamma prior, whose mean is their ratio. They set the units of the
        data, so the defaults rarely fit.
    upper : float, default=None
        Public bound at which values are censored. None takes the bound with the narrowest expected
        posterior under the prior, without looking at the data.
    {solver}

    Attributes
    ----------
    rate_ : array of shape (n_features,)
        Posterior mean.
    upper_ : float
        Censoring bound of the fit.
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPGammaExponential
    >>> X = np.random.default_rng(0).exponential(1 / 4, size=(5000, 1))
    >>> model = DPGammaExponential(epsilon=1.0, prior_shape=8.0, prior_rate=2.0).fit(X)
    >>> bool(abs(model.rate_[0] - 4) < 0.5)
    True
    >>> model.sample(3).shape
    (3, 1)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        prior_shape: float = 1.0,
        prior_rate: float = 1.0,
        upper: float | None = None,
        solver: str = "vips",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        ledger: PrivacyLedger | None = None,
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
        self.prior_shape = prior_shape
        self.prior_rate = prior_rate
        self.upper = upper
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.ledger = ledger
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

    _draws_name = "rate"
    _dims: ClassVar = {"rate": ("feature",)}
    _fitted = (*_FamilyEstimator._fitted, "rate_", "upper_")

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.families import GammaExponential

        return (GammaExponential,)

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.families import GammaExponential

        check_number("prior_shape", self.prior_shape, 0, 1e6)
        check_number("prior_rate", self.prior_rate, 0, 1e30)
        check_number("upper", self.upper, 0, 1e30, none=True)
        upper = float(self.upper) if self.upper is not None else self._best_upper(facts)
        d = facts.n_features
        model = GammaExponential(
            d, np.float32(self.prior_shape), np.float32(self.prior_rate), np.float32(upper)
        )
        most = stats.gamma(self.prior_shape, scale=1 / self.prior_rate).ppf(0.999)
        score, curvature = model.bounds(most)
        return Task(model, Bounds(score, curvature, self.prior_shape))

    def _log_volume(self, facts: Facts) -> float:
        del facts
        return math.log(self.upper or 2 * self.prior_rate / self.prior_shape)

    def _best_upper(self, facts: Facts) -> float:
        """Bound with the largest posterior precision of the log rate, averaged over the prior."""
        prior = stats.gamma(self.prior_shape, scale=1 / self.prior_rate)
        rates = prior.ppf((np.arange(64) + 0.5) / 64)[:, None]
        rates = np.maximum(rates, 1e-6 * rates[-1])  # nearly improper priors reach down to zero
        n = facts.n_rows
        if n is None:  # information and noise cannot be compared
            return 2 * self.prior_rate / self.prior_shape
        upper = np.geomspace(0.05 / rates[-1, 0], 40 / rates[0, 0], 400)
        t = rates * upper
        information = -np.expm1(-t) - t * np.exp(-t)  # -(d mean / d log rate) * rate
        square = 2 * special.gammainc(2, t)
        variance = np.maximum(square - np.expm1(-t) ** 2, 0)
        one = Settings.of(self._parameters(), self._defaults).noise(1, 1.0).noise_multiplier
        noise = one * t / 2 * math.sqrt(facts.n_features)
        precision = (n * information) ** 2 / (n * variance + noise**2) + self.prior_shape
        gain = np.log(precision).mean(axis=0)
        # Of nearly equal bounds the smallest, since float32 sums lose values far below the bound.
        return float(upper[np.argmax(gain >= gain.max() - 0.005)])

    def _also_public(self, facts: Facts, model: Any) -> dict[str, Any]:
        del facts
        return {"upper": float(model.upper)}

    def _set_parameter(self, plan: Plan, draws: np.ndarray) -> None:
        self.posterior_samples_, self.rate_ = draws, draws.mean(axis=0)
        self.upper_ = float(plan.model.upper)

    def _log_densities(self, X: Any) -> np.ndarray:
        rates = self.posterior_samples_.T
        log = np.log(rates).sum(axis=0) - np.where(X < 0, 0, X) @ rates
        return np.where((X < 0).any(axis=1, keepdims=True), -np.inf, log)

    def _draw_rows(self, rng: np.random.Generator, parameters: np.ndarray) -> np.ndarray:
        return rng.exponential(1 / parameters)


@_described
class DPBetaBernoulli(_FamilyEstimator):
    """Binary features with Beta priors on their probabilities, under differential privacy.

    ``x_j ~ Bernoulli(probability_j)``, ``probability_j ~ Beta(prior_a, prior_b)``, independently
    for each feature. Values above 1/2 count as 1.

    Parameters
    ----------
    {parameters}
    prior_a, prior_b : float, default=1.0
        Parameters of the Beta prior.
    {solver}

    Attributes
    ----------
    probability_ : array of shape (n_features,)
        Posterior mean.
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBetaBernoulli
    >>> X = np.random.default_rng(0).random((5000, 1)) < 0.3
    >>> model = DPBetaBernoulli(epsilon=1.0).fit(X)
    >>> bool(abs(model.probability_[0] - 0.3) < 0.05)
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        prior_a: float = 1.0,
        prior_b: float = 1.0,
        solver: str = "vips",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        ledger: PrivacyLedger | None = None,
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
        self.prior_a = prior_a
        self.prior_b = prior_b
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.ledger = ledger
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

    _draws_name = "probability"
    _dims: ClassVar = {"probability": ("feature",)}
    _fitted = (*_FamilyEstimator._fitted, "probability_")

    def _log_volume(self, facts: Facts) -> float:
        del facts
        return math.log(2)

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.families import BetaBernoulli

        return (BetaBernoulli,)

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.families import BetaBernoulli

        check_number("prior_a", self.prior_a, 0, 1e6)
        check_number("prior_b", self.prior_b, 0, 1e6)
        model = BetaBernoulli(facts.n_features, np.float32(self.prior_a), np.float32(self.prior_b))
        score, curvature = model.bounds()
        a, b = self.prior_a, self.prior_b
        return Task(model, Bounds(score, curvature, a * b / (a + b)))

    def _set_parameter(self, plan: Plan, draws: np.ndarray) -> None:
        self.posterior_samples_, self.probability_ = draws, draws.mean(axis=0)

    def _log_densities(self, X: Any) -> np.ndarray:
        p = np.clip(self.posterior_samples_.T, 1e-300, 1 - 1e-16)
        ones = np.where(np.isnan(X), np.nan, X > 0.5)
        return ones @ np.log(p) + (1 - ones) @ np.log1p(-p)

    def _draw_rows(self, rng: np.random.Generator, parameters: np.ndarray) -> np.ndarray:
        return (rng.random(parameters.shape) < parameters).astype(np.int64)


@_described
class DPDirichletCategorical(_FamilyEstimator):
    """One categorical column with a Dirichlet prior, under differential privacy.

    Parameters
    ----------
    {parameters}
    categories : array-like of shape (n_categories,) or Schema, default=None
        Public set of categories, or a `Schema` of one column. None takes the categories from X,
        which is not private: it warns, and `privacy_spent_` records that the guarantee does not
        hold. A row with another value contributes nothing.
    concentration : float or array-like of shape (n_categories,), default=1.0
        Concentration of the Dirichlet prior, in the order of `categories` (sorted, if they are
        taken from X).
    {solver}

    Attributes
    ----------
    categories_ : array of shape (n_categories,)
        Sorted categories.
    probability_ : array of shape (n_categories,)
        Posterior mean.
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPDirichletCategorical
    >>> X = np.random.default_rng(0).choice(["a", "b", "c"], size=(5000, 1), p=[0.5, 0.3, 0.2])
    >>> model = DPDirichletCategorical(epsilon=1.0, categories=["a", "b", "c"]).fit(X)
    >>> bool(abs(model.probability_[0] - 0.5) < 0.05)
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        categories: Any = None,
        concentration: ArrayLike = 1.0,
        solver: str = "vips",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        ledger: PrivacyLedger | None = None,
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
        self.categories = categories
        self.concentration = concentration
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.ledger = ledger
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

    _draws_name = "probability"
    _dims: ClassVar = {"probability": ("category",)}
    _fitted = (*_FamilyEstimator._fitted, "probability_", "categories_")
    _declared = ("categories",)

    def _reader(self) -> CategoryColumn:
        return CategoryColumn(self.categories)

    def _log_volume(self, facts: Facts) -> float:
        return math.log(len(facts.own_labels()))

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.families import DirichletCategorical

        return (DirichletCategorical,)

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.families import DirichletCategorical

        labels = facts.own_labels()
        try:
            concentration = np.broadcast_to(np.asarray(self.concentration, np.float32), len(labels))
        except ValueError:
            raise ValueError(
                "concentration must be a number or one for each category, got "
                f"{self.concentration!r}."
            ) from None
        public = self._reader().public()
        if public is not None:  # `categories_` are sorted
            order = np.argsort(np.asarray(np.asarray(public).tolist()), kind="stable")
            concentration = concentration[order]
        if not (np.isfinite(concentration) & (concentration > 0)).all():
            raise ValueError(f"concentration must be positive, got {self.concentration!r}.")
        model = DirichletCategorical(concentration.copy())
        score, curvature = model.bounds()
        return Task(model, Bounds(score, curvature, float(np.min(model.prior_precision()))))

    def _also_public(self, facts: Facts, model: Any) -> dict[str, Any]:
        del model
        return {"categories": [str(label) for label in facts.own_labels()]}

    def _set_parameter(self, plan: Plan, draws: np.ndarray) -> None:
        self.posterior_samples_, self.probability_ = draws, draws.mean(axis=0)
        self.categories_ = plan.facts.own_labels()

    def _check_rows(self, X: Any) -> np.ndarray:
        return codes(self._reader().column(self, X, reset=False), self.categories_)

    def _log_densities(self, X: Any) -> np.ndarray:
        with np.errstate(divide="ignore"):
            log = np.log(self.posterior_samples_)
        return np.where(X[:, None] >= 0, log[:, X].T, -np.inf)

    def _draw_rows(self, rng: np.random.Generator, parameters: np.ndarray) -> np.ndarray:
        chosen = (rng.random((len(parameters), 1)) > parameters.cumsum(axis=1)[:, :-1]).sum(axis=1)
        return self.categories_[chosen][:, None]
