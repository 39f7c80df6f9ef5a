"""Private Bayesian logistic regression."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_choice, check_number
from skdpbayes.declarations import schema_of
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._classes import (
    BayesianClassifierMixin,
    class_probabilities,
    warn_if_rows_weigh_little,
)
from skdpbayes.estimators._posterior import PosteriorEstimator
from skdpbayes.facts import Facts
from skdpbayes.intake.classified import ClassifiedRows
from skdpbayes.intake.reading import Reader
from skdpbayes.plans.settings import Bounds, Settings, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.models.logistic import LogisticRegression
    from skdpbayes.plans.plan import Plan
    from skdpbayes.posteriors import GaussianPosterior
    from skdpbayes.posteriors.evidence import Evidence, NormalLikelihood

_PRIOR_LEFT = 0.5  # share of the prior's width that a plan points out
_DEGREES = 4.0  # of freedom of the default prior of coefficients
_INTERCEPT_SCALE = 2.5  # of the default prior: a probability of .007 is two of it from one half
_NORMAL = 1e6  # degrees of freedom of a prior that is normal
_LITTLE = 0.1  # mean weight of rows, below which `fit` warns
_PREDICT_BLOCK = 2**18  # entries of the largest temporary of a prediction, which stays in cache


class DPBayesianLogisticRegression(BayesianClassifierMixin, PosteriorEstimator):
    """Bayesian logistic regression under (epsilon, delta)-differential privacy.

    A drop-in replacement for `sklearn.linear_model.LogisticRegression` that returns a posterior.
    The unit of privacy is one row: the fitted estimator with all its attributes, and every noisy
    sum released during the fit, are (epsilon, delta)-differentially private against an adversary
    who knows all other rows, the parameters and the code. The guarantee does not cover scores on
    training data, plain grid search, feature selection outside `fit`, or timing
    (`privacy_spent_` lists its conditions).

    Parameters
    ----------
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` gives the non-private model.
    delta : float, default=1e-5
        Probability with which the privacy bound may fail; well below one over the number of rows.
    solver : {"auto", "dpvi", "na-dpvi", "sgld", "vips"}, default="auto"
        - "auto" is "na-dpvi" up to 300 coefficients (all classes and intercepts together), and
          "dpvi" for more or if `guide` or `learning_rate` is given.
        - "dpvi" is variational inference with a Gaussian posterior.
        - "na-dpvi" is the normal posterior given all noisy releases.
        - "sgld" is Langevin dynamics, in coordinates and with curvature that are released. It
          refuses budgets too small for the number of rows. With a `learning_rate` it is a plain
          chain, which seldom mixes under small budgets, and then warns.
        - "vips" is a few closed-form rounds of noisy sufficient statistics. Its intervals cover
          well, and its predictions are somewhat worse (``docs/solvers/vips.md``). It takes neither
          `clipping_norm` nor `sampling_rate`, and refuses ``adjacency="add_remove"``. If
          `max_rows_per_person` exceeds one it goes in the rounds of "na-dpvi": statistics of a
          person add up, and scores do not.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighbouring relation. Under ``"add_remove"`` the number of rows is private too, and
        `sampling_rate` must be given.
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
    classes : array-like of shape (n_classes,), Schema or Outcome, default=None
        Public set of labels. A `Schema` describes X too; its ``outcome`` describes y alone. None
        takes the labels from y, which is not private: it warns, and `privacy_spent_` records that
        the guarantee does not hold. A row with another label contributes nothing.
    data_norm : float, default=None
        Public norm of a typical row, without the intercept. A longer row x has at most the weight
        ``(data_norm / |x|)**2``, which costs information and does not bias; without noise
        (``epsilon=inf``) it has its full weight. Predictions take rows as they are. None means
        ``sqrt(n_features)``, the typical norm of standardised features. Rows are cut at 1024 times
        this norm. It is never learnt from data; "na-dpvi", and "sgld" with a public number of rows,
        find from a release where rows are far shorter.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    prior_scale : float, default=1.0
        Scale of the prior of each coefficient; a first guess if `prior_df` is left to "na-dpvi".
    intercept_scale : float, default=None
        Standard deviation of the prior of the intercept. None means 2.5, or `prior_scale` if that
        is larger: rare outcomes have intercepts far from zero.
    prior_df : float, None or "auto", default="auto"
        Degrees of freedom, at least 3, of Student t priors of the coefficients ("na-dpvi" and
        "vips"), which shrink small coefficients and leave large ones alone. None: normal priors.
        "auto" is 4 for "na-dpvi", with scales that differ from `prior_scale` by a common factor,
        at most 8, where releases say that coefficients are smaller or larger, and None for the
        other solvers. The intercept's prior is normal.
    clipping_norm : float, default=None
        l2 bound on a row's contribution to a gradient. A smaller norm means less noise and less
        information, but no bias, since the weight of a clipped row does not depend on its label.
        None: "dpvi" starts at a public bound that suits the budget, and lowers it until a privately
        counted fraction of the rows is clipped, at 1% of the budget; "na-dpvi" and "sgld" take
        .5 to 1.5 times the typical norm of a whitened row, by the noise.
    sampling_rate : float, default=None
        Probability with which each row enters a batch. None: 1 for "na-dpvi"; for "sgld" a rate at
        which 65536 rows are expected; for "dpvi" 4096 rows, or 16 passes over X in all rounds
        together if that is more.
    n_steps : int, default=None
        Number of rounds. None: 500 ("dpvi"), 202 ("na-dpvi"; fewer, at least 22, for large tables;
        one less with more classes), 2001 ("sgld") or 11 ("vips"; 16 without noise). "vips" takes at
        most 16, and 1 is enough if rows are nearly normal.
    learning_rate : float, default=None
        Step size. For "dpvi", None means 0.2. For "sgld" it is the Langevin step size of a plain
        chain, in units of the log posterior; a step size too large for the budget is refused, and a
        smaller one spends less than epsilon. None means steps in units of the posterior's
        covariance (``docs/solvers/sgld.md``).
    guide : {"auto", "full_rank", "mean_field"}, default="auto"
        Covariance of the Gaussian posterior of "dpvi". "auto" is full rank up to 300 parameters.
    sampler : {"sgld", "sghmc", "sgnht"}, default="sgld"
        Variant of "sgld": without momentum, with momentum (Chen, Fox and Guestrin 2014), or with
        momentum and a thermostat (Ding et al. 2014).
    friction : float, default=0.5
        Friction of the samplers with momentum, in (0, 1]; "sgnht" starts there.
    step_schedule : {"constant", "decreasing"}, default="constant"
        Step sizes of a plain chain of "sgld"; decreasing ones fall as t^(-1/3).
    n_chains : int, default=1
        Number of independent chains of "sgld", with separate batches and noise and one budget.
        With a finite epsilon more than one need a `learning_rate`.
    n_posterior_samples : int, default=1000
        Number of posterior draws kept for predictions; for "sgld", iterates of all chains together.
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. Any other value makes the fit reproducible,
        **noise included**, by anyone who knows it. This voids the guarantee: it warns once and is
        recorded.
    verbose : int, default=0
        If positive, print the plan and its cost, and progress: public quantities only.

    Attributes
    ----------
    coef_ : array of shape (1, n_features) or (n_classes, n_features)
        Posterior mean of the coefficients.
    intercept_ : array of shape (1,) or (n_classes,)
        Posterior mean of the intercepts.
    classes_ : array of shape (n_classes,)
    posterior_ : GaussianPosterior or DrawsPosterior
        Posterior of the coefficients and the intercept of each row of `coef_`, flattened.
    posterior_samples_ : dict
        ``"coef"`` and ``"intercept"``: draws shaped like `coef_` and `intercept_`, with a first
        axis of length `n_posterior_samples`.
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    n_iter_ : int
        Number of rounds run.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    diagnostics_ : dict
        "sgld": ``"r_hat"`` and ``"ess"`` of each parameter. "dpvi": the last ``"clipping_norm"``,
        and with a full-rank guide the ``"last_step"``, in posterior standard deviations; `fit`
        warns above 1.5. "na-dpvi": the ``"mean_weight"`` of a row, and its
        ``"mean_weight_at_most"``, two standard errors above. "vips": empty.

    Notes
    -----
    No row raises an error: a row with NaN or infinity contributes nothing in `fit`, and is
    predicted as an all-zero row. Object cells that are not numbers count as NaN. Labels raise
    errors only with ``classes=None``.

    "dpvi" follows Jalko, Dikmen and Honkela (2017) and Jalko et al. (2023). "sgld" follows Li et
    al. (2019) with the temperature corrected. "na-dpvi" is based on an idea of Alrawajfeh, Jalko
    and Honkela (2025). ``docs/differences.md`` explains the differences.

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
        solver: str = "auto",
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        classes: Any = None,
        data_norm: float | None = None,
        fit_intercept: bool = True,
        prior_scale: float = 1.0,
        intercept_scale: float | None = None,
        prior_df: float | str | None = "auto",
        clipping_norm: float | None = None,
        sampling_rate: float | None = None,
        n_steps: int | None = None,
        learning_rate: float | None = None,
        guide: str = "auto",
        sampler: str = "sgld",
        friction: float = 0.5,
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
        self.max_rows_per_person = max_rows_per_person
        self.ledger = ledger
        self.classes = classes
        self.data_norm = data_norm
        self.fit_intercept = fit_intercept
        self.prior_scale = prior_scale
        self.intercept_scale = intercept_scale
        self.prior_df = prior_df
        self.clipping_norm = clipping_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.guide = guide
        self.sampler = sampler
        self.friction = friction
        self.step_schedule = step_schedule
        self.n_chains = n_chains
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    _automatic = ("auto",)
    _dims: ClassVar = {"coef": ("class", "feature"), "intercept": ("class",)}
    _estimated = ("coef", "intercept")
    _linear = True
    _log_odds = ("coef", "intercept")
    _farthest_prior = 0.25  # root mean square by which another prior may move linear predictors
    _fitted = (
        *PosteriorEstimator._fitted,
        "posterior_samples_",
        "coef_",
        "intercept_",
        "classes_",
        "data_norm_",
        "_likelihood",
        "_quiet",
        "_draws_seed",
    )

    # ------------------------------------------------------------------ fitting

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
        from skdpbayes.models.logistic import LogisticRegression

        return (LogisticRegression,)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number("prior_scale", self.prior_scale, 1e-6, 1e6, closed=True)
        check_number("intercept_scale", self.intercept_scale, 1e-6, 1e6, none=True, closed=True)
        check_choice("sampler", self.sampler, ("sgld", "sghmc", "sgnht"))
        check_number("friction", self.friction, 0, 1)
        if self.prior_df != "auto":
            check_number("prior_df", self.prior_df, 3, 1e6, none=True, closed=True)

    def _reader(self) -> Reader:
        return ClassifiedRows(
            schema_of(self.classes),
            classes=self.classes,
            data_norm=self.data_norm,
            longest=self._longest,
            intercept=bool(self.fit_intercept),
        )

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.whitened import WhitenedLogistic

        intercept = bool(self.fit_intercept)
        norm, private = self._norm(facts), math.isfinite(self.epsilon)
        row, longest = (math.hypot(own, intercept) for own in (norm, self._longest * norm))
        settings = self._settings(facts)
        # Without noise nothing has to be bounded: no row loses weight, and no clip bites.
        full_weight = np.float32(row if private else np.inf)
        model = replace(
            self._model(settings.solver, facts.n_features, len(facts.own_labels())),
            row_norm=full_weight,
        )
        score, curvature = model.bounds(row if private else longest)
        bounds = Bounds(
            score,
            curvature,
            float(np.max(1 / np.square(model.prior_scale, dtype=np.float64))),
            mean_curvature=model.bounds(row)[1],
        )
        n = facts.n_rows
        plain = settings.solver == "sgld" and settings.learning_rate is not None
        # Statistics of persons add up: "vips" releases them about their mean, which is as scores.
        of_scores = ("na-dpvi", "vips") if settings.most_rows > 1 else ("na-dpvi",)
        whitens = settings.solver in of_scores or (settings.solver == "sgld" and n is not None)
        if not whitens or plain or not private:
            return Task(model, bounds)
        persons = settings.most_rows > 1
        counted = settings.solver in of_scores and (n is None or persons)
        # Moments of persons are means over their rows.
        most = np.float32(np.inf)
        if n is not None and (counted or not persons):
            most = np.float32(n * settings.most_rows)
        return Task(WhitenedLogistic(model, np.float32(0.7 * row), most, counted), bounds)

    def _settings(self, facts: Facts) -> Settings:
        from skdpbayes.plans.registry import check_special

        own = super()._settings(facts)
        if own.solver not in self._automatic:
            return own
        n_classes = len(facts.own_labels())
        size = (facts.n_features + self.fit_intercept) * (1 if n_classes == 2 else n_classes)
        for_dpvi = own.guide != "auto" or own.learning_rate is not None
        large = size > own.defaults.full_rank_up_to
        solver = "dpvi" if for_dpvi or large else "na-dpvi"
        check_special(solver, self._parameters())
        return replace(own, solver=solver)

    def _model(self, solver: str, n_features: int, n_classes: int) -> LogisticRegression:
        """Model of so many features, with the priors of the parameters."""
        from skdpbayes.models.logistic import LogisticRegression

        intercept = bool(self.fit_intercept)
        columns = n_features + intercept
        scale = np.full(columns, self.prior_scale, np.float32)
        if intercept:
            scale[-1] = self._scale_of_intercept()
        degrees = self._degrees(solver, columns)
        # The default prior leaves it to the releases how large coefficients are.
        common = None
        if degrees is not None and self.prior_df == "auto":
            common = (degrees < _NORMAL).astype(np.float32)
        return LogisticRegression(
            columns, n_classes, scale, degrees, constant=intercept, common_scale=common
        )

    def _scale_of_intercept(self) -> float:
        own = self.intercept_scale
        return float(max(_INTERCEPT_SCALE, self.prior_scale) if own is None else own)

    def _degrees(self, solver: str, columns: int) -> np.ndarray | None:
        """Degrees of freedom of the priors by column; None: all are normal."""
        df: Any = self.prior_df
        if df == "auto":
            df = _DEGREES if solver == "na-dpvi" else None
        if df is None:
            return None
        by_column = np.full(columns, df, np.float32)
        if self.fit_intercept:
            by_column[-1] = _NORMAL
        return by_column

    def _hints(self, plan: Plan) -> Iterator[str]:
        norm, schema = self._norm(plan.facts), schema_of(self.classes)
        bounds = [] if schema is None else [own.bounds for own in schema.columns if own.bounds]
        middle = math.hypot(*((low + high) / 2 for low, high in bounds))
        if middle > 2 * norm:
            yield (
                f"A row in the middle of the declared bounds has the norm {middle:.3g}, and weighs "
                f"at most ({norm:.3g} / {middle:.3g})^2, as data_norm is {norm:.3g}: centre and "
                "scale columns by public bounds, with BoundedScaler."
            )
        if schema is not None and len(bounds) == len(schema.columns):
            longest = math.hypot(*(max(map(abs, own)) for own in bounds))
            if norm > 2 * longest:
                yield (
                    f"No row within the declared bounds is longer than {longest:.3g}, and noise is "
                    f"in units of data_norm, which is {norm:.3g}: take that of a typical row."
                )
        n = plan.facts.n_rows
        if n is None or not math.isfinite(self.epsilon):
            return
        # The most that scores of any clipping norm can tell, if all columns vary alike.
        steps, columns = plan.spec.rounds, plan.model.n_columns
        root = math.sqrt(
            sum(own.steps * (own.sampling_rate / own.noise_multiplier) ** 2 for own in steps)
        )
        told = n * math.hypot(norm, self.fit_intercept) / (2 * columns) * root
        left = 1 / math.hypot(1, self.prior_scale * told)
        if left > _PRIOR_LEFT:
            yield (
                f"Intervals will be at least {left:.0%} as wide as the prior's: {n} rows tell "
                f"little of {columns} columns at epsilon={self.epsilon:g}."
            )

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        draws = self._draws(plan, outcome)
        warn_if_rows_weigh_little(self.diagnostics_, _LITTLE)
        self._set_classes(plan.facts)
        self._describe(draws)
        self._draws_seed = int(outcome.rng.integers(2**63))

    def _found(self, plan: Plan, outcome: Outcome) -> Any:
        self._likelihood: NormalLikelihood | None = None
        self._quiet: np.ndarray | None = None
        if self._settings(plan.facts).solver != "na-dpvi":
            return super()._found(plan, outcome)
        run = plan.model, outcome.state
        posterior, self._likelihood = plan.solver.posterior_and_likelihood(*run)
        self._quiet = plan.solver.without_noise(*run).std
        return posterior

    def _describe(self, draws: np.ndarray) -> None:
        """Set the attributes that show `posterior_`."""
        rows = 1 if len(self.classes_) == 2 else len(self.classes_)
        mean = self._split(self.posterior_.mean.reshape(1, rows, -1))
        self.coef_, self.intercept_ = mean["coef"][0], mean["intercept"][0]
        self.posterior_samples_ = self._split(draws.reshape(len(draws), rows, -1))

    def _quiet_std(self) -> dict[str, np.ndarray]:
        if self._quiet is None:
            return {}
        own = self._split(self._quiet.reshape(1, len(self.intercept_), -1))
        return {name: std[0] for name, std in own.items()}

    # --------------------------------------------------------------- other priors

    def log_evidence(
        self,
        *,
        prior_scale: float | None = None,
        prior_df: float | str | None = "same",
        columns: Any = None,
    ) -> float:
        """Log evidence of a prior, from what the fit has released: it costs no budget.

        It is the logarithm of the mean likelihood under the prior, where the likelihood with all
        coefficients and intercepts zero is one. The likelihood is the normal one of "na-dpvi",
        quadratic about the estimate (``docs/choosing-priors.md``). The intercept keeps its prior.
        The common scale of the default priors is taken for one: "auto" is compared as 4.

        Parameters
        ----------
        prior_scale : float, default=None
            As the parameter of the estimator. None means the own one.
        prior_df : float, None, "auto" or "same", default="same"
            As the parameter of the estimator. "same" means the own one.
        columns : array-like, default=None
            Columns of X with coefficients: a mask, indices or names. The other coefficients are
            zero. None means all columns.

        Returns
        -------
        log_evidence : float

        Raises
        ------
        ValueError
            For parameters out of range, and unless the solver is "na-dpvi".
        """
        return self._with_prior_parameters(prior_scale, prior_df)._evidence(self._kept(columns)).log

    def with_prior(
        self,
        *,
        prior_scale: float | None = None,
        prior_df: float | str | None = "same",
        columns: Any = None,
    ) -> Self:
        """Copy of the fitted estimator with another prior; it reads no rows and costs no budget.

        Parameters
        ----------
        prior_scale, prior_df, columns
            As in `log_evidence`.

        Returns
        -------
        estimator
            Its posterior is what "na-dpvi" reports under this prior, given the same releases. A fit
            of a clone of it has the same prior, without the choice of columns. `privacy_spent_`
            stays that of the fit.

        Raises
        ------
        ValueError
            As `log_evidence`.
        """
        other, kept = self._with_prior_parameters(prior_scale, prior_df), self._kept(columns)
        other.posterior_, other._quiet = other._posterior_given(kept), None
        moved = self._moved(other.posterior_.mean)
        if moved > self._farthest_prior:
            warnings.warn(
                f"Under this prior the linear predictors differ by {moved:.2g} (root mean square) "
                "from those of the fit, near which alone its releases tell of the likelihood. "
                "Intervals may be too narrow: fit again with this prior.",
                UserWarning,
                stacklevel=2,
            )
        other._describe(other._fresh_draws(self.n_posterior_samples, self._draws_seed))
        return other

    def _nested_columns(self) -> Iterator[tuple[np.ndarray, Evidence]]:
        """Masks of columns with evidences: all columns, then one less at a time.

        The column that is left out is the one without which the evidence is largest.
        """
        kept = np.ones(self.n_features_in_, bool)
        while True:
            found = self._evidence(kept)
            yield kept, found
            if kept.sum() == (not self.fit_intercept):
                return
            without = found.without.reshape(len(self.intercept_), -1).sum(axis=0)
            kept = kept.copy()
            kept[np.flatnonzero(kept)[without[: kept.sum()].argmax()]] = False

    def _with_prior_parameters(
        self, prior_scale: float | None, prior_df: float | str | None
    ) -> Self:
        """Copy with other parameters of the prior, its posterior as it was."""
        check_is_fitted(self)
        if self._likelihood is None:
            raise ValueError(
                "Only solver='na-dpvi' leaves a likelihood by which priors can be compared."
            )
        columns = len(self._likelihood.linear) // len(self.intercept_)
        if columns != self.n_features_in_ + bool(self.fit_intercept):
            raise ValueError(
                f"fit_intercept={self.fit_intercept} is not that of the fit: priors are compared "
                "by its coefficients. Set it back, or fit again."
            )
        other = copy.copy(self)
        other.set_params(intercept_scale=self._scale_of_intercept())
        if prior_scale is not None:
            other.set_params(prior_scale=prior_scale)
        if not (isinstance(prior_df, str) and prior_df == "same"):
            other.set_params(prior_df=prior_df)
        other._check_parameters()
        return other

    def _kept(self, columns: Any) -> np.ndarray:
        """Mask of columns of X."""
        d = self.n_features_in_
        if columns is None:
            return np.ones(d, bool)
        given = np.asarray(columns)
        names = vars(self).get("feature_names_in_", ())
        if given.dtype.kind in "OUT":
            unknown = set(given.tolist()) - set(names)
            if unknown:
                raise ValueError(f"columns={sorted(unknown)} are no names of columns of the fit.")
            return np.isin(names, given)
        if given.dtype == bool:
            if given.shape != (d,):
                raise ValueError(f"A mask of columns must have shape ({d},), got {given.shape}.")
            return given
        if given.size and given.dtype.kind not in "iu":
            raise ValueError("columns must be a mask, indices or names.")
        if ((given < -d) | (given >= d)).any():
            raise ValueError(f"columns has indices outside of the {d} columns of the fit.")
        return np.isin(np.arange(d), np.arange(d)[given.astype(int)])

    def _among(self, kept: np.ndarray) -> np.ndarray:
        """Mask of the parameters, given one of columns."""
        own = np.append(kept, True) if self.fit_intercept else kept
        if not own.any():
            raise ValueError("columns leaves no coefficient.")
        return np.tile(own, len(self.intercept_))

    def _evidence(self, kept: np.ndarray) -> Evidence:
        """Evidence of the priors of the columns in a mask."""
        from skdpbayes.posteriors.evidence import Priors, evidence

        assert self._likelihood is not None
        model = self._model("na-dpvi", len(kept), len(self.classes_))
        df = model.prior_df
        by_column = np.full(model.n_columns, np.inf) if df is None else np.float64(df)
        by_column = np.where(by_column < _NORMAL, by_column, np.inf)
        priors = Priors(
            np.tile(np.float64(model.prior_scale), model.n_rows), np.tile(by_column, model.n_rows)
        )
        among = self._among(kept)
        found = evidence(self._likelihood.among(among), priors.among(among))
        mean = np.zeros(len(among))
        mean[among] = found.mean
        return found._replace(mean=mean)

    def _moved(self, mean: np.ndarray) -> float:
        """Root mean square by which linear predictors differ from those of the fit."""
        assert self._likelihood is not None
        return self._likelihood.moved(mean)

    def _posterior_given(self, kept: np.ndarray) -> GaussianPosterior:
        """Posterior under the own prior; coefficients of columns that are not kept are zero."""
        from skdpbayes.solvers.normal_posterior import posterior_given

        assert self._likelihood is not None
        among = self._among(kept)
        model = self._model("na-dpvi", int(kept.sum()), len(self.classes_))
        own = posterior_given(model, self._likelihood.among(among))
        return own.mapped(np.eye(len(among))[:, among])

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
            As `posterior_samples_`, with a first axis of length `n_samples`.
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
