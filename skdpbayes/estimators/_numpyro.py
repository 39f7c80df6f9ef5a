"""Private inference for models that users write in NumPyro."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import special
from sklearn.base import clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skdpbayes.checks import check_number, warn_user
from skdpbayes.estimators._arviz import names_columns
from skdpbayes.estimators._densities import without_null
from skdpbayes.estimators._program import ProgramEstimator, name_of, with_short_first
from skdpbayes.facts import Facts, Field
from skdpbayes.intake.fields import FieldRows, facts_of, typed
from skdpbayes.intake.rows import dense
from skdpbayes.plans.settings import Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.models.numpyro.amortised import Amortised
    from skdpbayes.models.numpyro.model import NumPyroModel
    from skdpbayes.plans.plan import Plan

_BLOCK = 1024  # records predicted at a time
_FEW = 128  # the same, where there is a number for each posterior draw
_REPEATS = 4  # responses for each posterior draw, in intervals
_MANY_RECORDS = 20_000  # beyond, 200 rounds of all take far longer than the batches of "dpvi"
_LOCAL_DRAWS = 100  # of the latent sites of a record, where no other site has a posterior


def _warn_of_nan(found: np.ndarray) -> None:
    missing = np.isnan(found).reshape(len(found), -1).any(axis=1)
    if missing.any():
        warn_user(
            f"Results for {missing.sum()} records are NaN: they hold NaN, the model overflows, or "
            "their law has no mean at some posterior draws."
        )


def _has_few_values(estimator: DPNumPyroModel) -> bool:
    if "_model" in vars(estimator) and not estimator._model.program.values:
        raise AttributeError(
            "predict_proba needs a response of few values, as of a Bernoulli distribution."
        )
    return "_model" in vars(estimator)


def _has_local(estimator: DPNumPyroModel) -> bool:
    if "_model" in vars(estimator) and not estimator._model.program.local:
        raise AttributeError("The model has no latent sites in the plate of records.")
    return "_model" in vars(estimator)


class DPNumPyroModel(ProgramEstimator):
    """A Bayesian model written in NumPyro, fitted under (epsilon, delta)-differential privacy.

    Parameters
    ----------
    model : callable
        A NumPyro model with its records in one plate: ``model(X, y)`` or ``model(X)`` for arrays,
        keyword arguments for a dict of arrays, and `public` as further keyword arguments. It is
        called on batches of one record, and on records of zeros. The plate must be as large as the
        batch, such as ``numpyro.plate("data", len(X))``. ``docs/numpyro.md`` lists the models that
        are refused because they cannot be private.
    guide : {"auto", "full_rank", "mean_field"} or callable, default="auto"
        Posterior approximation of `dpvi`: a normal distribution ("auto" is full rank up to 100
        parameters), or a NumPyro guide for the latent sites, your own or one of
        `numpyro.infer.autoguide`. The spread of a NumPyro guide does not include the privacy noise;
        the spread of the normal distribution does. Your own guide may draw latent sites of single
        records, and with it sites that are `numpyro.param` are fitted as points
        (``docs/amortised.md``); ``solver="dpvi"`` alone takes it.
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` gives the non-private model.
    delta : float, default=1e-5
        Probability with which the privacy bound may fail; well below one over the number of
        records.
    solver : {"auto", "dpvi", "na-dpvi", "sgld"}, default="auto"
        As in `DPBayesianLogisticRegression`. "na-dpvi" replaces each prior by a normal one with the
        same 5% and 95% quantiles. "auto" is "na-dpvi" for models with up to 100 parameters and
        20 000 records or persons whose fit clipping does not bias (``docs/numpyro-clipping.md``),
        and whose priors that are not normal depend on no other site. It is "dpvi" for others,
        without noise, and where `guide` or `learning_rate` is set.
    public : dict, default=None
        Public arguments of the model, which hold no records: tables of groups, sizes,
        hyper-parameters. Arrays, lists and floats are passed as arrays, other values unchanged.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighbouring relation. Under ``"add_remove"`` the number of records is private too, and
        `sampling_rate` must be given.
    numerics : {"secure", "fast"}, default="secure"
        Arithmetic of sums and noise: integers, or floating point, for which the proof assumes exact
        arithmetic.
    max_rows_per_person : int, default=None
        Largest number of rows of a person. It makes the person the unit of privacy: `fit` takes the
        persons' names as `groups`, and keeps at most this many rows of each, evenly spaced. None:
        the row is the unit.
    ledger : PrivacyLedger, default=None
        Budget to charge; it refuses a fit that exceeds it. None: the ledger opened by ``with``, if
        any.
    clipping_norm : float, default=None
        l2 bound on the gradient of a record's log-likelihood, in coordinates in which each prior is
        standard normal. None: half the median norm, rounded up to a power of two, and up to six
        times as long as the median where noise is small. A release at 2%
        of the budget finds it at the prior's centre, and one at 5% finds it again after 15% of the
        rounds, where these have led, with coordinates in which gradients have entries of one size
        (``docs/numpyro-clipping.md``). Guides of one's own, "sgld" and ``epsilon=inf`` have the
        first alone, at 5%.
    sampling_rate, n_steps, learning_rate, step_schedule, n_chains, n_posterior_samples,
    random_state, verbose
        As in `DPBayesianLogisticRegression`.

    Attributes
    ----------
    posterior_samples_ : dict
        Draws of each latent site and of the deterministic sites that depend on no record, with a
        first axis of length `n_posterior_samples`, as `numpyro.infer.Predictive` takes them.
    params_ : dict of pytrees
        Point estimates of the `numpyro.param` sites of model and guide, if the guide is amortised
        or the model has such sites.
    posterior_
        Posterior of the coordinates, flattened in the order of the sites' names.
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    diagnostics_ : dict
        Diagnostics of the solver. "na-dpvi": the ``"mean_weight"`` of a record, and its
        ``"mean_weight_at_most"``, two standard errors above. "dpvi": the last ``"clipping_norm"``.
        Both, the latter with a full-rank guide: the ``"last_step"`` in posterior standard
        deviations; `fit` warns above 1.5.
    n_iter_ : int
        Number of rounds run.
    n_features_in_, feature_names_in_
        As in scikit-learn, if X is a table.

    Notes
    -----
    No record raises an error: one whose log-likelihood or gradient is not finite contributes
    nothing.

    d3p (Prediger et al. 2021) has the same purpose and clips the gradient of the evidence bound
    with respect to the guide's parameters. Here the gradient with respect to the latent sites is
    released, and clipping and noise leave prior, entropy and guide alone.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np, numpyro, numpyro.distributions as dist
    >>> from skdpbayes import DPNumPyroModel
    >>> def model(x, y=None):
    ...     w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    ...     with numpyro.plate("data", len(x)):
    ...         rate = numpyro.deterministic("rate", jnp.exp(x @ w))
    ...         numpyro.sample("y", dist.Poisson(rate), obs=y)
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> y = np.random.default_rng(1).poisson(np.exp(X @ [0.5, -0.5]))
    >>> fitted = DPNumPyroModel(model, epsilon=1.0, random_state=0).fit(X, y)
    >>> bool(abs(fitted.posterior_samples_["w"].mean(axis=0) - [0.5, -0.5]).max() < 0.2)
    True
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: str | Callable[..., Any] = "auto",
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        solver: str = "auto",
        public: dict[str, Any] | None = None,
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        clipping_norm: float | None = None,
        sampling_rate: float | None = None,
        n_steps: int | None = None,
        learning_rate: float | None = None,
        step_schedule: str = "constant",
        n_chains: int = 1,
        n_posterior_samples: int = 1000,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.guide = guide
        self.epsilon = epsilon
        self.delta = delta
        self.solver = solver
        self.public = public
        self.adjacency = adjacency
        self.numerics = numerics
        self.max_rows_per_person = max_rows_per_person
        self.ledger = ledger
        self.clipping_norm = clipping_norm
        self.sampling_rate = sampling_rate
        self.n_steps = n_steps
        self.learning_rate = learning_rate
        self.step_schedule = step_schedule
        self.n_chains = n_chains
        self.n_posterior_samples = n_posterior_samples
        self.random_state = random_state
        self.verbose = verbose

    # Columns as users have them are far from uncorrelated with the intercept: what is known worst
    # is a small curvature.
    _defaults = replace(ProgramEstimator._defaults, curvature_every=3)
    _record = "record"
    _automatic = ("auto",)
    _fitted = (*ProgramEstimator._fitted, "params_", "_amortised")

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit the posterior to private records.

        Parameters
        ----------
        X : array of shape (n_records, ...), data frame, sparse matrix, or dict of arrays and lists
            Arrays of a dict have a common first axis; a list in a dict holds numbers.
        y : array of shape (n_records, ...) or list of numbers, default=None
            The second argument of the model, if X is not a dict.
        groups : array-like of shape (n_samples,), default=None
            The person that each row is of, where `max_rows_per_person` is set.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range, for shapes and dtypes, and for sites of the model that
            cannot be private, by their names. Never for the values of a record.
        """
        self._fit(X, y, groups)
        return self

    def plan(
        self,
        n_rows: int | None = None,
        n_features: int | None = None,
        *,
        feature_names: Sequence[str] | None = None,
        fields: Mapping[str, ArrayLike] | None = None,
    ) -> Plan:
        """Plan of a fit to records of this shape; it reads no records and spends nothing.

        Parameters
        ----------
        n_rows, n_features, feature_names
            As in `DPBayesianLogisticRegression`, for ``model(X, y)`` or ``model(X)``, with rows of
            numbers and numeric responses.
        fields : dict of arrays, default=None
            For other models, an empty array for each argument, of shape ``(0, ...)`` and of the
            records' dtype.

        Returns
        -------
        Plan

        Raises
        ------
        ValueError
            If the model takes other arguments and `fields` is None; and as in
            `DPBayesianLogisticRegression`.
        """
        if fields is None:
            known = self._shape(n_rows, n_features, feature_names)
            return self._plan_of(replace(known, fields=self._table_fields(known.n_features)))
        empty = {name: np.asarray(value)[:0] for name, value in fields.items()}
        known = self._shape(n_rows, n_features or 1, feature_names)
        shape = facts_of(empty, n_features or 0).shape
        return self._plan_of(replace(shape, n_rows=known.n_rows))

    def _table_fields(self, n_features: int) -> tuple[Field, ...]:
        """Fields of ``model(X, y)`` or, for a model without a response, of ``model(X)``."""
        self._check_parameters()
        fields: tuple[Field, ...] = (
            Field("0", (n_features,), "float32"),
            Field("1", (), "float32"),
        )
        signature, public = inspect.signature(self.model), self.public or {}
        second = [name for name in signature.parameters if name not in public][1:2]
        # A response is required, or None by default; other defaults are those of public arguments.
        responses = (inspect.Parameter.empty, None)
        has_response = any(signature.parameters[name].default in responses for name in second)
        fields = fields if has_response else fields[:1]
        try:
            signature.bind(*fields, **public)
        except TypeError:
            raise ValueError(
                f"The model {name_of(self.model)}{signature} takes neither (X, y) nor (X), beside "
                "`public`: pass fields={...}, an empty array of shape (0, ...) for each argument."
            ) from None
        return fields

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not callable(self.model):
            raise ValueError(f"model must be a function, a NumPyro model, got {self.model!r}.")
        if self.public is not None and not isinstance(self.public, dict):
            raise ValueError(
                f"public must be a dict of arguments of the model, got {self.public!r}."
            )

    def _reader(self) -> FieldRows:
        return FieldRows()

    def _program(self, facts: Facts) -> tuple[Callable[..., Any], dict[str, Any]]:
        del facts
        return self.model, self.public or {}

    def _task(self, facts: Facts) -> Task:
        """That of programs, with the solver that "auto" stands for."""
        from skdpbayes.plans.gradients import n_parameters

        task = super()._task(facts)
        if self.solver not in self._automatic:
            return task
        learnt = task.model.model
        suits_na_dpvi = (
            math.isfinite(self.epsilon)
            and (facts.n_rows or 0) <= _MANY_RECORDS
            and self.guide == "auto"
            and self.learning_rate is None
            and learnt.program.unbiased
            and n_parameters(learnt) <= self._defaults.full_rank_up_to
            and learnt.has_independent_priors()
        )
        if not suits_na_dpvi:
            return task._replace(solver="dpvi")
        model = replace(task.model, coordinates="whitened")
        return task._replace(solver="na-dpvi", model=with_short_first(model))

    def _also_public(self, facts: Facts, model: Any) -> dict[str, Any]:
        """Names only; their values are public by declaration."""
        from skdpbayes.models.score_unit import AmortisedStart

        del facts
        code = {"model": self.model} | ({"guide": self.guide} if callable(self.guide) else {})
        named = {name: f"{name_of(value)}, and all that it holds" for name, value in code.items()}
        points = model.model.start if isinstance(model, AmortisedStart) else {}
        started = {"parameters, at their start": sorted(points)} if points else {}
        return named | {"arguments": sorted(self.public or {})} | started

    def _set_points(self, learnt: Amortised) -> Amortised:
        fitted = learnt.at(self.posterior_.guide_parameters())
        self._amortised = fitted
        self.params_ = fitted.constrained_parameters()
        return fitted

    def _fields(self, X: Any, y: Any = None) -> dict[str, Any]:
        return self._reader().fields(self, X, y, reset=False)

    def _finite_and_possible(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Masks of the records without NaN or infinity, and of those that the model can have.

        For `check_data`. They are possible if they have a density where the prior is centred.
        """
        import jax

        from skdpbayes.intake.packing import finite_rows

        fields = self._reader().fields(clone(self), X, y, reset=True)
        model, _ = self._programmed(facts_of(fields, 0))
        likelihood = jax.jit(jax.vmap(model.log_likelihood, (None, 0)))
        log = [likelihood(model.init(), batch) for batch in self._batches(fields)]
        finite = np.logical_and.reduce([finite_rows(typed(x)) for x in fields.values()])
        return finite, np.isfinite(np.concatenate(log))

    # --------------------------------------------------------------- predicting

    def _dimensions(self) -> dict[str, tuple[str, ...]]:
        """Plates of the latent sites."""
        return {site.name: site.axes for site in self._model.program.sites if site.axes}

    def _columns(
        self, feature_names: Sequence[str] | None, dims: Mapping[str, Sequence[str]] | None, n: int
    ) -> Sequence[str]:
        if feature_names is not None and not names_columns(dims):
            raise ValueError(
                "The package does not know which sites have an entry for each column: say so as in "
                "dims={'weights': ['feature']}."
            )
        return super()._columns(feature_names, dims, n)

    _scorings = ("log_density",)

    def _log_density(self, X: Any, y: Any) -> np.ndarray:
        return self.log_predictive_density(X, y)

    def log_predictive_density(self, X: Any, y: Any = None) -> np.ndarray:
        """Log posterior predictive density of each record.

        Parameters
        ----------
        X, y
            As in `fit`; not protected.

        Returns
        -------
        log_density : array of shape (n_records,)
        """
        density = self._log_predictive(X, y)
        _warn_of_nan(density)
        return density

    def _log_predictive(self, X: Any, y: Any) -> np.ndarray:
        """As `log_predictive_density`, without a warning."""
        log = self._log_densities(X, y)
        return special.logsumexp(log, axis=0) - math.log(len(log))

    def _log_densities(self, X: Any, y: Any) -> np.ndarray:
        """Log density of each record at each draw, of its latent sites too, if it has any."""
        from skdpbayes.models.numpyro.predict import log_densities, log_weights

        check_is_fitted(self)
        batches = self._batches(self._fields(X, y))
        blocks = (
            self._of_blocks(log_weights, batches, self._amortised)
            if self._model.program.local
            else self._of_blocks(log_densities, batches)
        )
        return np.concatenate(list(blocks), axis=1)

    @available_if(_has_local)
    def evidence_lower_bound(self, X: Any, y: Any = None) -> np.ndarray:
        """Evidence lower bound of each record, in nats, given the parameters.

        Parameters
        ----------
        X, y
            As in `fit`; not protected.

        Returns
        -------
        bound : array of shape (n_records,)
            Averaged over posterior draws or, without any, over 100 draws of the latent sites.
        """
        bound = self._log_densities(X, y).mean(axis=0)
        _warn_of_nan(bound)
        return bound

    @available_if(_has_local)
    def transform(self, X: Any, y: Any = None) -> np.ndarray | dict[str, np.ndarray]:
        """Posterior means, by the guide, of the latent sites of each record.

        Parameters
        ----------
        X, y
            As in `fit`; not protected. Records with NaN or infinity are read as records of zeros,
            with a warning.

        Returns
        -------
        means : array of shape (n_records, ...), or dict of such arrays
            A dict, by name, if there are several such sites.

        Raises
        ------
        ValueError
            If the guide's law of a site has no mean that NumPyro knows.
        """
        from skdpbayes.models.numpyro.predict import local_means

        check_is_fitted(self)
        draws = self._numbered_draws()
        batches = self._batches(self._fields(X, y), zeros_for_null=True)
        try:
            found = [local_means(self._amortised, draws, batch) for batch in batches]
        except NotImplementedError as error:
            raise ValueError(
                f"The guide's law of {', '.join(self._model.program.local)} has no mean that "
                "NumPyro knows."
            ) from error
        means = {name: np.concatenate([x[name] for x in found]) for name in found[0]}
        for values in means.values():
            _warn_of_nan(values)
        return means if len(means) > 1 else next(iter(means.values()))

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Private synthetic records, if the model needs nothing of a record but its observed sites.

        Parameters
        ----------
        n_samples : int, default=1
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        records : dict of arrays of shape (n_samples, ...)
            Observed sites, each record at a fresh posterior draw.

        Raises
        ------
        ValueError
            If the law of the observed sites depends on values of the record, such as covariates.
        """
        import jax

        from skdpbayes.models.numpyro.predict import DRAW, new_records, reads_records

        check_is_fitted(self)
        check_number("n_samples", n_samples, 0, integral=True)
        rng = np.random.default_rng(random_state)
        drawn, program = self.sample_posterior(n_samples, rng), self._model.program
        draws = {site.name: drawn[site.name] for site in program.sites}
        draws |= {DRAW: np.arange(n_samples, dtype=np.int32)}
        first = {name: np.ones((1, *x.shape[1:]), x.dtype) for name, x in draws.items()}
        if reads_records(self._model, first):
            raise ValueError(
                "New records depend on values of those that the model is given, such as "
                "covariates: take sample_posterior_predictive."
            )
        keys = jax.random.split(jax.random.key(rng.integers(2**31)), n_samples)
        return {n: np.asarray(x) for n, x in new_records(self._model, draws, keys).items()}

    def score(self, X: Any, y: Any = None) -> float:
        """Mean of `log_predictive_density`; records without one are left out, with a warning."""
        density = self._log_predictive(X, y)
        if np.isnan(density).all():
            _warn_of_nan(density)
        return float(np.mean(without_null(density, "hold NaN, or the model overflows")))

    def predict(self, X: Any) -> np.ndarray:
        """Posterior predictive mean of the response; its mode, if it has few values or categories.

        Parameters
        ----------
        X : array-like, or dict of array-likes
            As in `fit`, without the response, for which the model must take None; not protected.
            Records with NaN or infinity are predicted as records of zeros, with a warning.

        Returns
        -------
        response : array of shape (n_records, ...)

        Raises
        ------
        ValueError
            If the law of the response has no mean, or none that NumPyro knows.
        """
        mean = self._mean_response(X)
        values = self._model.program.values
        return np.array(values)[mean.argmax(axis=-1)] if values else mean

    @available_if(_has_few_values)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Posterior predictive probabilities of finitely many values, (n_records, n_values)."""
        return self._mean_response(X)

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Equal-tailed interval of a new response, or of the probability of each of its values.

        Parameters
        ----------
        X : array-like, or dict of array-likes
            As in `predict`.
        level : float, default=0.95
            Mass of the interval, in (0, 1).

        Returns
        -------
        lower, upper : arrays of shape (n_records, ...)
            For a response of few values or of categories, credible intervals of their
            probabilities, of shape (n_records, n_values). For others, quantiles of draws from the
            posterior predictive distribution; each call makes the same draws.
        """
        from skdpbayes.models.numpyro.predict import probabilities, responses

        check_number("level", level, 0, 1, open_above=True)
        check_is_fitted(self)
        tails, of_values = [(1 - level) / 2, (1 + level) / 2], bool(self._model.program.values)

        def quantiles(model: NumPyroModel, draws: Any, batch: Any) -> np.ndarray:
            if of_values:
                each = np.asarray(probabilities(model, draws, batch))
            else:
                each = np.concatenate([responses(model, draws, batch, i) for i in range(_REPEATS)])
            # "weibull": a new draw falls inside with probability `level`, however few draws.
            method: Any = "inverted_cdf" if each.dtype.kind in "biu" else "weibull"
            return np.moveaxis(np.quantile(each, tails, axis=0, method=method), 1, 0)

        bounds = self._of_response(quantiles, X, _FEW)
        return bounds[:, 0], bounds[:, 1]

    def _mean_response(self, X: Any) -> np.ndarray:
        from skdpbayes.models.numpyro.predict import mean_response

        return self._of_response(mean_response, X)

    def _of_response(self, function: Callable[..., Any], X: Any, size: int = _BLOCK) -> np.ndarray:
        """``function(model, draws, batch)`` for a model with one response, of all records.

        Raises
        ------
        ValueError
            If there are several responses, or if all results are NaN.
        """
        check_is_fitted(self)
        observed = self._model.program.observed
        if len(observed) != 1:
            raise ValueError(
                f"The model observes {', '.join(observed)}: take sample_posterior_predictive."
            )
        try:
            batches = self._batches(self._fields(X), size, zeros_for_null=True)
            found = np.concatenate(list(self._of_blocks(function, batches)))
        except NotImplementedError:
            found = np.full(1, np.nan)
        if np.isnan(found).all():
            raise ValueError(
                f"The law of {observed[0]!r} has no mean, or none that NumPyro knows, or NumPyro "
                "cannot draw from it: take predict_interval, sample_posterior_predictive or "
                "log_predictive_density."
            )
        _warn_of_nan(found)
        return found

    def _of_blocks(
        self, function: Callable[..., Any], batches: Iterable[dict[str, Any]], model: Any = None
    ) -> Iterator[np.ndarray]:
        """``function(model, draws, batch)`` for each batch."""
        check_is_fitted(self)
        draws, model = self._numbered_draws(), model or self._model
        for batch in batches:
            yield np.asarray(function(model, draws, batch))

    def _numbered_draws(self) -> dict[str, np.ndarray]:
        """Posterior draws of the latent sites, with their numbers."""
        from skdpbayes.models.numpyro.predict import DRAW

        program = self._model.program
        draws = {site.name: self.posterior_samples_[site.name] for site in program.sites}
        n = self.n_posterior_samples if draws else _LOCAL_DRAWS if program.local else 1
        return draws | {DRAW: np.arange(n, dtype=np.int32)}

    def _batches(
        self, fields: dict[str, Any], size: int | None = _BLOCK, *, zeros_for_null: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Dense blocks of records."""
        from skdpbayes.intake.packing import finite_rows

        null = ~np.logical_and.reduce([finite_rows(typed(x)) for x in fields.values()])
        if zeros_for_null and null.any():
            warn_user(
                f"{null.sum()} of these records hold NaN or infinity: predicted as records of "
                "zeros."
            )
        null &= zeros_for_null
        for start in range(0, len(null), size or len(null)):
            block = slice(start, start + (size or len(null)))
            batch = {name: typed(dense(x[block])) for name, x in fields.items()}
            if null[block].any():
                batch = {name: x.copy() for name, x in batch.items()}
                for x in batch.values():
                    x[null[block]] = 0
            yield batch

    def sample_posterior_predictive(
        self, X: Any, n_samples: int = 100, random_state: int | np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Draws of the observed sites for the records of X, one for each posterior draw.

        Parameters
        ----------
        X : array-like, or dict of array-likes
            As in `fit`, without the response, for which the model must take None; not protected.
        n_samples : int, default=100
        random_state : None, int or numpy.random.Generator

        Returns
        -------
        draws : dict of arrays of shape (n_samples, n_records, ...)
        """
        import jax
        from numpyro.infer import Predictive

        check_is_fitted(self)
        check_number("n_samples", n_samples, 0, integral=True)
        (fields,) = self._batches(self._fields(X), None, zeros_for_null=True)
        program = self._model.program
        rng = np.random.default_rng(random_state)
        # Fresh draws, since neighbours in `posterior_samples_` are correlated if from a chain.
        drawn = self.sample_posterior(n_samples, rng)
        latent = {site.name: drawn[site.name] for site in program.sites}
        predictive = Predictive(
            lambda: self._model.call(fields), latent, num_samples=n_samples, parallel=True
        )
        sites = predictive(jax.random.key(rng.integers(2**31)))
        return {name: np.asarray(x) for name, x in sites.items() if name in program.observed}
