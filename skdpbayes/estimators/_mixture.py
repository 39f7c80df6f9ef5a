"""Private Gaussian mixtures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from sklearn.base import DensityMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_choice, check_number, warn_user
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._densities import DensityScoreMixin
from skdpbayes.estimators._posterior import PosteriorEstimator
from skdpbayes.facts import Facts
from skdpbayes.intake.measured import BoundedRows
from skdpbayes.intake.reading import Reader
from skdpbayes.plans.settings import Bounds, Defaults, Settings, Task
from skdpbayes.posteriors.mixture import MixturePosterior
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan


# Variances of the noise in the average score, were the whole budget spent on one release, over that
# of sampling. From the first on the start is worth more than rounds, with these shares of columns,
# moments, sketch and choice; from the second on intervals are too narrow.
_MUCH_NOISE, _SHARES_IN_NOISE = 1.0, (0.1, 0.02, 0.7, 0.05)
_MOST_NOISE = 2.0


class DPGaussianMixture(DensityScoreMixin, DensityMixin, PosteriorEstimator):
    """Bayesian Gaussian mixture, under (epsilon, delta)-differential privacy.

    Replaces `sklearn.mixture.GaussianMixture` and `BayesianGaussianMixture`. The starting values
    come from four releases: place and width of each column, the moments of all rows, a sketch of
    them, and a choice among the mixtures that fit the sketch (``docs/solvers/vips-mixtures.md``).
    After that, a fixed number of rounds releases sums of expected statistics, or of gradients. The
    guarantee is that of `DPBayesianLogisticRegression`.

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` adds no noise.
    delta : float, default=1e-5
        Probability with which the privacy bound may fail; well below one over the number of rows.
    n_components : int, default=1
        Number of components.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
        Structure of the covariances, as in scikit-learn. Fewer numbers mean less noise in each.
    bounds : tuple (low, high), dict or Schema, default=None
        Public ranges of the features, each end a number or an array of shape (n_features,); for
        data frames, a dict from column names to pairs, or a `Schema` with bounds. Rows far outside
        are down-weighted, and the others are not altered. A huge value (1e30) makes a bounded but
        meaningless contribution to each release. Bounds up to ten times too wide cost little,
        since only the first release depends on them. Ones that cut off much of the data ruin a fit
        of a few thousand rows. None takes the ranges from the data, which is not private: it warns,
        and `privacy_spent_` records that the guarantee does not hold.
    solver : {"auto", "na-dpvi", "dpvi", "vips", "sgld"}, default="auto"
        "vips" is variational Bayes from noisy sums of expected statistics: quick, but its intervals
        are too narrow if components overlap. The others use the likelihood with the component
        labels summed out, so that their intervals include the uncertainty of the labels. "na-dpvi"
        and "dpvi" give normal posteriors around the starting values, "dpvi" wider ones; "sgld" runs
        a chain from there, which needs many rows and steps. "auto" is "na-dpvi"; it is "vips" for
        more than 300 parameters and under ``adjacency="add_remove"``; and "dpvi" if `guide` or
        `learning_rate` is given.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighbouring relation. Under ``"add_remove"`` the number of rows is private too, so that it
        is estimated from the releases, and `sampling_rate` must be given.
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
    weight_concentration_prior : float, default=1.0
        Concentration of the Dirichlet prior of the weights, for each component.
    mean_prior : array-like of shape (n_features,), default=None
        Mean of the normal prior of the means. None: the released mean of all rows.
    mean_precision_prior : float, default=0.01
        The normal prior of a component's mean has the component's covariance over this number.
        Scikit-learn's 1 pulls distant components, where noise leaves little else.
    covariance_prior : float or array-like of shape (n_features, n_features), default=None
        Scatter matrix of the inverse Wishart prior; unlike in scikit-learn a matrix for every
        covariance type. A number stands for a multiple of the identity. None:
        `degrees_of_freedom_prior` times the mean covariance of the components at the released
        start, in the size of the component as far as that is known, or more where noise hides it;
        with `means_init` and with one component, times the released covariance of all rows over
        ``n_components ** (2 / n_features)``.
    degrees_of_freedom_prior : float, default=None
        Degrees of freedom of the inverse Wishart prior. None: the number of features.
    reg_covar : float, default=1e-6
        Added to variances in each round of "vips".
    means_init : array-like of shape (n_components, n_features), default=None
        Public starting means. With them, or with one component, nothing is spent on a sketch and a
        choice.
    weights_init : array-like of shape (n_components,), default=None
        Public starting weights; they need `means_init`. None: equal weights.
    sampling_rate : float, default=None
        Probability with which each row enters a round. None: 1 with "vips"; otherwise a rate at
        which 65 536 rows ("na-dpvi": 131 072) are expected.
    n_steps : int, default=None
        Number of releases, including the four for the starting values (two without a sketch).
        None: these and 6 ("vips"), 60 ("dpvi"), 20 ("na-dpvi") or 2000 ("sgld") rounds.
    clipping_norm : float, default=None
        l2 bound on a row's gradient, in coordinates in which components are roughly standard
        normal; not for "vips". None: the typical norm of a gradient. The bias of clipping is
        corrected as if rows came from the mixture of the starting values.
    learning_rate : float, default=None
        Step size of "dpvi" and "sgld", as in `DPBayesianLogisticRegression`.
    guide : {"auto", "full_rank", "mean_field"}, default="auto"
        Covariance of the normal posterior of "dpvi". "auto" is full rank up to 300 parameters.
    step_schedule : {"constant", "decreasing"}, default="constant"
        Step sizes of "sgld".
    n_posterior_samples : int, default=1000
        Number of posterior draws kept.
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. Any other value makes the noise reproducible,
        which voids the guarantee: for tests only.
    verbose : int, default=0
        If positive, print the plan and progress: public quantities only.

    Attributes
    ----------
    weights_ : array of shape (n_components,)
        Posterior mean with "vips"; with the other solvers, the weights at the posterior mean of
        their logarithms.
    means_ : array of shape (n_components, n_features)
        Posterior mean.
    covariances_, precisions_, precisions_cholesky_
        `precisions_` is the posterior mean of the precisions, and `covariances_` its inverse, with
        the shapes that scikit-learn has for each `covariance_type`.
    weight_concentration_, mean_precision_, degrees_of_freedom_ : arrays of shape (n_components,)
        Parameters of the posterior, as in `BayesianGaussianMixture`; with "vips" only.
    posterior_samples_ : dict
        Draws ``"weights"``, ``"means"`` and ``"covariances"`` (matrices for every type), with a
        first axis of length `n_posterior_samples`.
    posterior_
        Posterior of these parameters, flattened, in the units in which `bounds` are -1 and 1, with
        ``mean``, ``std``, ``covariance`` and ``sample``.
    converged_ : bool
        Whether no mean moved by more than a tenth of its component's standard deviation in the last
        round. It is a function of the releases and does not affect the number of rounds. With
        "vips" only.
    n_iter_ : int
        Number of releases.
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    diagnostics_ : dict
        Estimated number of rows, and diagnostics of the solver: for "vips" the standard deviation
        of the noise in the sums, for "sgld" R-hat and effective sample sizes. "na-dpvi": the
        ``"mean_weight"`` of a row, its ``"mean_weight_at_most"``, two standard errors above, and
        the ``"last_step"`` from the late rounds to the estimate, in posterior standard deviations;
        `fit` warns above 1.5.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    There is no `lower_bound_`, since the bound of the training rows is not released. `score`,
    `bic`, `aic`, `predict` and `fit_predict` do not protect the rows that they are given.

    Posterior draws include the privacy noise to first order. With "vips" they do not include the
    uncertainty of the component labels, as is usual in variational Bayes, so that intervals of
    overlapping components are too narrow.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPGaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(-2, 0.5, (3000, 2)), rng.normal(2, 0.5, (3000, 2))])
    >>> model = DPGaussianMixture(epsilon=1.0, n_components=2, bounds=(-5, 5)).fit(X)
    >>> bool(np.abs(np.sort(model.means_[:, 0]) - [-2, 2]).max() < 0.2)
    True
    >>> rows, labels = model.sample(3)
    >>> rows.shape
    (3, 2)
    """

    _positive = ("weights", "std")
    _declared = ("bounds",)
    _automatic = ("auto",)
    _dims: ClassVar = {
        "weights": ("component",),
        "means": ("component", "feature"),
        "std": ("component", "feature"),  # of the summary
        "covariances": ("component", "feature", "other_feature"),
    }
    _defaults = Defaults(
        schedules={"dpvi": (60, 2**16), "na-dpvi": (20, 2**17), "sgld": (2000, 2**16)},
        rounds=(6, 6),
        opening_shares=(0.05, 0.03, 0.33, 0.1),  # for columns, moments, sketch and choice
        learning_rates=(0.05, 0.05),
    )
    _fitted = (
        *PosteriorEstimator._fitted,
        *("posterior_samples_", "weights_", "means_", "covariances_", "precisions_"),
        *("precisions_cholesky_", "weight_concentration_", "mean_precision_"),
        *("degrees_of_freedom_", "converged_", "_scales", "_quiet"),
    )

    def __init__(
        self,
        n_components: int = 1,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        covariance_type: str = "full",
        bounds: Any = None,
        solver: str = "auto",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        weight_concentration_prior: float = 1.0,
        mean_prior: ArrayLike | None = None,
        mean_precision_prior: float = 0.01,
        covariance_prior: ArrayLike | None = None,
        degrees_of_freedom_prior: float | None = None,
        reg_covar: float = 1e-6,
        means_init: ArrayLike | None = None,
        weights_init: ArrayLike | None = None,
        sampling_rate: float | None = None,
        n_steps: int | None = None,
        clipping_norm: float | None = None,
        learning_rate: float | None = None,
        guide: str = "auto",
        step_schedule: str = "constant",
        n_posterior_samples: int = 1000,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.bounds = bounds
        self.solver = solver
        self.adjacency = adjacency
        self.numerics = numerics
        self.max_rows_per_person = max_rows_per_person
        self.ledger = ledger
        self.weight_concentration_prior = weight_concentration_prior
        self.mean_prior = mean_prior
        self.mean_precision_prior = mean_precision_prior
        self.covariance_prior = covariance_prior
        self.degrees_of_freedom_prior = degrees_of_freedom_prior
        self.reg_covar = reg_covar
        self.means_init = means_init
        self.weights_init = weights_init
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.clipping_norm = clipping_norm
        self.learning_rate = learning_rate
        self.guide = guide
        self.step_schedule = step_schedule
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    # ------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit the posterior to private data.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
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
        from skdpbayes.models.mixtures.gaussian import GaussianMixture

        return (GaussianMixture,)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("covariance_type", self.covariance_type, ("full", "tied", "diag", "spherical"))
        check_number("weight_concentration_prior", self.weight_concentration_prior, 1e-6, 1e6)
        check_number("mean_precision_prior", self.mean_precision_prior, 1e-9, 1e9)
        check_number("reg_covar", self.reg_covar, 0, 1e30, closed=True)
        if self.weights_init is not None and self.means_init is None:
            raise ValueError(
                "weights_init needs means_init, the components that they are weights of."
            )

    def _reader(self) -> Reader:
        return BoundedRows(
            self.bounds,
            "a mixture takes distances.",
            round=self.covariance_type == "spherical",
        )

    def _settings(self, facts: Facts) -> Settings:
        from skdpbayes.plans.registry import check_special

        own, size = super()._settings(facts), self._size(facts.n_features)
        sketched = self.means_init is None and self.n_components > 1
        if sketched and self._noise(own, facts) > _MUCH_NOISE:
            own = replace(own, defaults=replace(own.defaults, opening_shares=_SHARES_IN_NOISE))
        if own.solver not in self._automatic:
            return own
        if own.guide != "auto" or own.learning_rate is not None:
            solver = "dpvi"
        elif facts.n_rows is None:
            solver = "vips"
        else:
            solver = "vips" if size > own.defaults.full_rank_up_to else "na-dpvi"
        check_special(solver, self._parameters())
        return replace(own, solver=solver)

    def _noise(self, own: Settings, facts: Facts) -> float:
        """Variance of the noise of scores over that of sampling; zero where rows are not public."""
        if facts.n_rows is None:
            return 0.0
        return own.least_noise() ** 2 * self._size(facts.n_features) / facts.n_rows

    def _hints(self, plan: Plan) -> Iterator[str]:
        noise = self._noise(super()._settings(plan.facts), plan.facts)
        if noise > _MOST_NOISE:
            yield (
                f"The noise of scores has {noise:.2g} times their variance: intervals may not "
                f"hold here. Take about {noise / _MOST_NOISE:.2g} times as many rows, a larger "
                "epsilon, or fewer parameters (n_components, or covariance_type='diag')."
            )

    def _size(self, d: int) -> int:
        """Number of free parameters, with `d` features."""
        k = int(self.n_components)
        free = {"full": k * d * (d + 1) / 2, "tied": d * (d + 1) / 2, "diag": k * d, "spherical": k}
        return int(free[self.covariance_type] + k * d + k - 1)

    def _log_volume(self, facts: Facts) -> float:
        return float(np.log(2 * facts.own_scales().half).mean())

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.mixtures.gaussian import GaussianMixture, mean_weights
        from skdpbayes.models.mixtures.marginal import nodes_for
        from skdpbayes.models.mixtures.sketch import frequencies

        centre, half = facts.own_scales()[:2]
        k, d = int(self.n_components), facts.n_features
        radius = math.sqrt(d + 3) if math.isfinite(self.epsilon) else 200.0
        freedom = (
            float(d) if self.degrees_of_freedom_prior is None else self.degrees_of_freedom_prior
        )
        check_number("degrees_of_freedom_prior", freedom, d - 1, 1e9)
        means, weights, mean_prior = None, None, None
        if self.means_init is not None:
            start = _array("means_init", self.means_init, (k, d))
            means = ((start - centre) / half).astype(np.float32)
            weights = self._start_weights()
        if self.mean_prior is not None:
            prior = _array("mean_prior", self.mean_prior, (d,))
            mean_prior = ((prior - centre) / half).astype(np.float32)
        model = GaussianMixture(
            kind=self.covariance_type,
            n_components=k,
            n_features=d,
            concentration=np.float32(self.weight_concentration_prior),
            precision=np.float32(self.mean_precision_prior),
            freedom=np.float32(freedom),
            mean_prior=mean_prior,
            covariance_prior=self._scaled_covariance_prior(half),
            ridge=(self.reg_covar / half**2).astype(np.float32),
            radius=np.float32(radius),
            kept=mean_weights(radius, d),
            frequencies=frequencies(d, k) if means is None and k > 1 else None,
            means=means,
            weights=weights,
            nodes=nodes_for(facts.n_rows, d, self._size(d)),
        )
        return Task(model, self._gradient_bounds(d))

    def _gradient_bounds(self, d: int) -> Bounds:
        """Bounds of a typical row, in the coordinates of `MarginalMixture`."""
        square = 1 + 3 * d + (d * (d - 1) / 2 if self.covariance_type in ("full", "tied") else 0)
        score = math.sqrt(square) if math.isfinite(self.epsilon) else 1e3
        mean_curvature = 4.0 * min(1, 2 / self.n_components)
        if self.covariance_type == "spherical":
            mean_curvature *= d
        precision = float(self.n_components)
        return Bounds(score, score**2 / 2, precision, clip=score, mean_curvature=mean_curvature)

    def _start_weights(self) -> np.ndarray:
        """`weights_init`, or equal weights."""
        k = int(self.n_components)
        if self.weights_init is None:
            return np.full(k, 1 / k, np.float32)
        weights = _array("weights_init", self.weights_init, (k,))
        if not ((weights > 0).all() and abs(weights.sum() - 1) < 1e-6):
            raise ValueError(
                f"weights_init must be positive and sum to 1, got {self.weights_init!r}."
            )
        return weights.astype(np.float32)

    def _scaled_covariance_prior(self, half: np.ndarray) -> np.ndarray | None:
        """`covariance_prior` as a matrix, in units of half ranges."""
        if self.covariance_prior is None:
            return None
        d = len(half)
        if np.ndim(self.covariance_prior) == 0:
            covariance = _array("covariance_prior", self.covariance_prior, ()) * np.eye(d)
        else:
            covariance = _array("covariance_prior", self.covariance_prior, (d, d))
        if not (np.linalg.eigvalsh(covariance) > 0).all():
            raise ValueError(
                f"covariance_prior must be positive definite, got {self.covariance_prior!r}."
            )
        return (covariance / np.outer(half, half)).astype(np.float32)

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        draws, quiet = self._draws_and_quiet_ones(plan, outcome)
        params = outcome.state.params
        self.diagnostics_["n_records"] = float(params.total)
        if isinstance(self.posterior_, MixturePosterior):
            self.converged_ = bool(params.moved < 0.1)
            self.weight_concentration_ = self.posterior_.concentration
            self.mean_precision_ = self.posterior_.precision
            self.degrees_of_freedom_ = self.posterior_.freedom
        self._scales = plan.facts.own_scales()[:2]
        self._set_components(draws)
        own = {} if quiet is None else self._summarised(self._in_units(quiet))
        self._quiet = {name: draws.std(axis=0) for name, draws in own.items()}

    def _set_components(self, draws: np.ndarray) -> None:
        self.posterior_samples_ = self._in_units(draws)
        centre, half = self._scales
        self.weights_, means, covariances = self.posterior_.estimate()
        self.means_ = means * half + centre
        full = covariances * np.outer(half, half)
        factor = np.swapaxes(np.linalg.inv(np.linalg.cholesky(full)), 1, 2)
        self.covariances_, self.precisions_cholesky_ = self._of_type(full), self._of_type(factor)
        self.precisions_ = self._of_type(factor @ np.swapaxes(factor, 1, 2))

    def _of_type(self, matrices: np.ndarray) -> np.ndarray:
        """Matrices (K, d, d) as scikit-learn stores those of this type."""
        if self.covariance_type == "full":
            return matrices
        if self.covariance_type == "tied":
            return matrices[0]
        diagonals = np.diagonal(matrices, axis1=1, axis2=2).copy()
        return diagonals if self.covariance_type == "diag" else diagonals[:, 0]

    def _summary_draws(self) -> dict[str, np.ndarray]:
        return self._summarised(self.posterior_samples_)

    @staticmethod
    def _summarised(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        variances = np.diagonal(draws["covariances"], axis1=2, axis2=3)
        return {"weights": draws["weights"], "means": draws["means"], "std": np.sqrt(variances)}

    def _in_units(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        centre, half = self._scales
        k, d = int(self.n_components), len(half)
        weights, means, covariances = np.split(draws, [k, k + k * d], axis=1)
        return {
            "weights": weights,
            "means": means.reshape(-1, k, d) * half + centre,
            "covariances": covariances.reshape(-1, k, d, d) * np.outer(half, half),
        }

    @property
    def lower_bound_(self) -> float:
        """Not available: raises an `AttributeError` with the reason."""
        raise AttributeError(
            "lower_bound_ does not exist: the bound of the training rows is not among the releases."
        )

    # --------------------------------------------------------------- predicting

    def _factors(self) -> np.ndarray:
        """Upper factors of the precisions, (K, d, d)."""
        k, d = self.means_.shape
        factor = self.precisions_cholesky_
        if self.covariance_type == "spherical":
            return factor[:, None, None] * np.eye(d)
        if self.covariance_type == "diag":
            return factor[:, :, None] * np.eye(d)
        return np.broadcast_to(factor, (k, d, d))

    def _log_joint(self, X: Any) -> np.ndarray:
        """Log weight plus log density of each component, (n, K); NaN for non-finite rows."""
        check_is_fitted(self)
        X = self._reader().numeric(self, X, reset=False).astype(np.float64)
        X = np.where(np.isfinite(X).all(axis=1, keepdims=True), X, np.nan)
        return _log_joint(X, self.weights_, self.means_, self._factors())

    def score_samples(self, X: Any) -> np.ndarray:
        """Log density of each row under the mixture of `weights_`, `means_` and `covariances_`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Not protected.

        Returns
        -------
        log_density : array of shape (n_samples,)
            NaN for a row with NaN or infinity.
        """
        return special.logsumexp(self._log_joint(X), axis=1)

    def log_predictive_density(self, X: Any, n_samples: int = 100) -> np.ndarray:
        """Log posterior predictive density of each row, averaged over posterior draws.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Not protected.
        n_samples : int, default=100
            Largest number of draws. They are evenly spaced, since neighbours in a chain are
            correlated.

        Returns
        -------
        log_density : array of shape (n_samples,)
        """
        check_is_fitted(self)
        check_number("n_samples", n_samples, 0, integral=True)
        X = self._reader().numeric(self, X, reset=False).astype(np.float64)
        kept = len(self.posterior_samples_["weights"])
        spaced = np.linspace(0, kept - 1, min(n_samples, kept)).astype(int)
        draws = [values[spaced] for values in self.posterior_samples_.values()]
        each = []
        for weights, means, covariances in zip(*draws, strict=True):
            factors = np.swapaxes(np.linalg.inv(np.linalg.cholesky(covariances)), 1, 2)
            each.append(special.logsumexp(_log_joint(X, weights, means, factors), axis=1))
        return special.logsumexp(each, axis=0) - math.log(len(each))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each component, of shape (n_samples, n_components).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Not protected. A row with NaN or infinity gets `weights_`.
        """
        log = self._log_joint(X)
        null = np.isnan(log).any(axis=1)
        if null.any():
            warn_user(f"{null.sum()} of these rows hold NaN or infinity: they get the weights.")
            log[null] = np.log(self.weights_)
        return special.softmax(log, axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """Most probable component of each row, of shape (n_samples,)."""
        return self.predict_proba(X).argmax(axis=1)

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit, and return the most probable component of each row, which is **not** private."""
        return self.fit(X, y).predict(X)

    def bic(self, X: Any) -> float:
        """Bayesian information criterion of X, which is not protected; lower is better.

        Rows with NaN or infinity are left out, with a warning.
        """
        log = self._known_log_densities(X)
        return float(-2 * log.sum() + self._size(self.means_.shape[1]) * math.log(len(log)))

    def aic(self, X: Any) -> float:
        """Akaike information criterion of X, as `bic`."""
        log = self._known_log_densities(X)
        return float(-2 * log.sum() + 2 * self._size(self.means_.shape[1]))

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.Generator | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Private synthetic rows from the fitted mixture, with their components.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        X : array of shape (n_samples, n_features)
        y : array of shape (n_samples,)
        """
        check_is_fitted(self)
        check_number("n_samples", n_samples, 0, integral=True)
        rng = np.random.default_rng(random_state)
        labels = np.sort(rng.choice(len(self.weights_), n_samples, p=self.weights_))
        noise = rng.standard_normal((n_samples, self.means_.shape[1]))
        roots = np.swapaxes(np.linalg.inv(self._factors()), 1, 2)
        return self.means_[labels] + np.einsum("nij,nj->ni", roots[labels], noise), labels

    def sample_posterior(
        self, n_samples: int = 1000, random_state: int | np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Fresh posterior draws, a dict like `posterior_samples_`.

        Parameters
        ----------
        n_samples : int, default=1000
        random_state : None, int or numpy.random.Generator
        """
        return self._in_units(self._fresh_draws(n_samples, random_state))


def _array(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter as finite numbers of this shape."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite numbers of shape {shape}, got {value!r}.")
    return array


def _log_joint(X: Any, weights: np.ndarray, means: np.ndarray, factors: np.ndarray) -> np.ndarray:
    log = np.empty((len(X), len(weights)))
    for k, (weight, mean, factor) in enumerate(zip(weights, means, factors, strict=True)):
        with np.errstate(all="ignore"):
            square = np.square((X - mean) @ factor).sum(axis=1)
            constant = (
                np.log(weight)
                + np.log(np.abs(np.diag(factor))).sum()
                - len(mean) / 2 * math.log(2 * math.pi)
            )
            log[:, k] = constant - square / 2
    return log
