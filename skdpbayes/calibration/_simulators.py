"""Simulators of estimators: truths from the prior, rows given a truth, draws by coordinate."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.special import expit, softmax
from sklearn.pipeline import Pipeline

from skdpbayes.calibration._check import Floats

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

Values = dict[str, np.ndarray]

_WORKING = (
    "logistic and linear regression, the exponential families, Gaussian mixtures, hierarchies and "
    "NumPyro models"
)


class Simulator(ABC):
    """What `check` has to know of an estimator. Values are arrays by name.

    Attributes
    ----------
    needed : tuple of str
        Names that truths must have; others of a NumPyro model are drawn from its prior.
    """

    needed: tuple[str, ...] = ()

    def __init__(self, estimator: Any, n_rows: int, n_features: int) -> None:
        self.estimator, self.n_rows, self.n_features = estimator, n_rows, n_features

    @abstractmethod
    def truth(self, rng: np.random.Generator) -> Values:
        """One draw from the prior."""

    @abstractmethod
    def rows(self, rng: np.random.Generator, truth: Values) -> tuple[Any, ...]:
        """Arguments of `fit`, drawn given the truth."""

    def draws(self, fitted: Any, n: int, rng: np.random.Generator, truth: Values) -> Values:
        """Posterior draws, with a first axis of length `n`."""
        drawn = fitted.sample_posterior(n, rng)
        return {name: drawn[name] for name in truth}

    def compared(self, truth: Values) -> Values:
        """The truth as the draws have it."""
        return truth

    def plain(self, rows: tuple[Any, ...], n: int, rng: np.random.Generator) -> Values | None:
        """Draws of the non-private posterior of the same rows; None: there is no reference."""
        del rows, n, rng
        return None

    def held(self, rows: tuple[Any, ...]) -> tuple[str, ...]:
        """Names of arrays of the estimator, as long as tables of records, that are not simulated.

        `rows` are arguments of `fit`.
        """
        del rows
        return ()


def simulator_of(
    estimator: BaseEstimator, n_rows: int, n_features: int | None, X: Any
) -> Simulator:
    """Simulator of an estimator.

    Raises
    ------
    ValueError
        If the estimator has none.
    """
    from skdpbayes import estimators

    regressions: dict[type, Callable[..., Simulator]] = {
        estimators.DPBayesianLogisticRegression: LogisticSimulator,
        estimators.DPBayesianLinearRegression: LinearSimulator,
        estimators.DPHierarchicalLogisticRegression: HierarchySimulator,
        estimators.DPNumPyroModel: NumPyroSimulator,
    }
    for kind, simulator in regressions.items():
        if isinstance(estimator, kind):
            return simulator(estimator, n_rows, n_features, X)
    densities: dict[type, Callable[..., Simulator]] = {
        estimators.DPBetaBernoulli: BernoulliSimulator,
        estimators.DPGammaExponential: ExponentialSimulator,
        estimators.DPDirichletCategorical: CategoricalSimulator,
        estimators.DPGaussianMixture: MixtureSimulator,
    }
    for kind, simulator in densities.items():
        if isinstance(estimator, kind):
            if X is not None:
                raise ValueError(f"{type(estimator).__name__} has no design: leave out X.")
            return simulator(estimator, n_rows, n_features)
    if isinstance(estimator, Pipeline):
        raise ValueError(
            "check simulates the columns that the model is given: check(pipeline[-1], ...), with "
            "prepared columns of public rows as X, or without."
        )
    raise ValueError(
        f"check does not apply to {type(estimator).__name__}: its parameters are not identified, "
        "so that intervals of single ones mean nothing. Check functions of rows instead: "
        "probabilities at public rows, by skdpbayes.calibration.calibration_error, reliability or "
        f"marginal_coverage. check applies to {_WORKING}."
    )


class _Design:
    """A public design: the rows given, or standard normal ones drawn for each fit."""

    def __init__(self, X: Any, n_rows: int, n_features: int) -> None:
        self.n_rows, self.n_features = n_rows, n_features
        self.given = None if X is None else np.asarray(X)

    def draw(self, rng: np.random.Generator) -> Floats:
        """Rows, of shape (n_rows, n_features)."""
        if self.given is not None:
            return self.given
        return rng.standard_normal((self.n_rows, self.n_features))


def _width(estimator: Any, n_features: int | None, X: Any, otherwise: int) -> int:
    """Number of columns: those of X, those given, those declared, or `otherwise`."""
    if X is not None:
        shape = np.shape(X)
        if len(shape) != 2:
            raise ValueError(f"X must have two axes, got the shape {shape}.")
        if n_features not in (None, shape[1]):
            raise ValueError(f"X has {shape[1]} columns, and n_features is {n_features}.")
        return shape[1]
    return n_features or estimator._reader().width() or otherwise


# --- Families -------------------------------------------------------------------------------------


class _FamilySimulator(Simulator):
    """A family with a conjugate prior: its non-private posterior is exact."""

    _name: str

    def __init__(self, estimator: Any, n_rows: int, n_features: int | None) -> None:
        super().__init__(estimator, n_rows, _width(estimator, n_features, None, 1))
        self.plan = estimator.plan(n_rows, self.n_features)
        self.needed = (self._name,)

    def draws(self, fitted: Any, n: int, rng: np.random.Generator, truth: Values) -> Values:
        return {self._name: fitted.sample_posterior(n, rng)}


class BernoulliSimulator(_FamilySimulator):
    """Zeros and ones with beta priors."""

    _name = "probability"

    def truth(self, rng: np.random.Generator) -> Values:
        own = self.estimator
        return {self._name: rng.beta(own.prior_a, own.prior_b, self.n_features)}

    def rows(self, rng: np.random.Generator, truth: Values) -> tuple[Any, ...]:
        p = truth[self._name]
        return ((rng.random((self.n_rows, len(p))) < p).astype(np.int64),)

    def plain(self, rows: tuple[Any, ...], n: int, rng: np.random.Generator) -> Values:
        ones, own = rows[0].sum(axis=0), self.estimator
        a, b = own.prior_a + ones, own.prior_b + self.n_rows - ones
        return {self._name: rng.beta(a, b, (n, len(ones)))}


class ExponentialSimulator(_FamilySimulator):
    """Waiting times with gamma priors."""

    _name = "rate"

    def truth(self, rng: np.random.Generator) -> Values:
        own = self.estimator
        return {self._name: rng.gamma(own.prior_shape, 1 / own.prior_rate, self.n_features)}

    def rows(self, rng: np.random.Generator, truth: Values) -> tuple[Any, ...]:
        rate = truth[self._name]
        return (rng.exponential(1 / rate, (self.n_rows, len(rate))),)

    def plain(self, rows: tuple[Any, ...], n: int, rng: np.random.Generator) -> Values:
        total, own = rows[0].sum(axis=0), self.estimator
        shape, rate = own.prior_shape + self.n_rows, own.prior_rate + total
        return {self._name: rng.gamma(shape, 1 / rate, (n, len(total)))}


class CategoricalSimulator(_FamilySimulator):
    """One categorical column with a Dirichlet prior; categories are sorted."""

    _name = "probability"

    def __init__(self, estimator: Any, n_rows: int, n_features: int | None) -> None:
        super().__init__(estimator, n_rows, n_features)
        self.categories = self.plan.facts.own_labels()
        self.concentration = np.asarray(self.plan.model.concentration, np.float64)

    def truth(self, rng: np.random.Generator) -> Values:
        return {self._name: rng.dirichlet(self.concentration)}

    def rows(self, rng: np.random.Generator, truth: Values) -> tuple[Any, ...]:
        return (rng.choice(self.categories, (self.n_rows, 1), p=truth[self._name]),)

    def plain(self, rows: tuple[Any, ...], n: int, rng: np.random.Generator) -> Values:
        counts = (rows[0] == self.categories).sum(axis=0)
        return {self._name: rng.dirichlet(self.concentration + counts, n)}


# --- Regressions ----------------------------------------------------------------------------------


def _common_scale(rng: np.random.Generator) -> float:
    """Draw of the common scale factor, of at most one: under larger ones labels are separable.

    The logarithm of its square has a logistic distribution (`over_common_scales`).
    """
    return float(np.exp(stats.logistic.ppf(rng.random() / 2) / 2))


class LogisticSimulator(Simulator):
    """Logistic regression; the reference for two classes is Polya-Gamma Gibbs sampling."""

    def __init__(self, estimator: Any, n_rows: int, n_features: int | None, X: Any) -> None:
        from skdpbayes.models.whitened import WhitenedLogistic

        if estimator.classes is None:
            estimator.set_params(classes=[0, 1])
        d = _width(estimator, n_features, X, 2)
        super().__init__(estimator, n_rows, d)
        self.design = _Design(X, n_rows, d)
        plan = estimator.plan(n_rows, d)
        self.classes = plan.facts.own_labels()
        self.model = plan.model.model if isinstance(plan.model, WhitenedLogistic) else plan.model
        self.needed = ("coef", "intercept") if estimator.fit_intercept else ("coef",)

    def truth(self, rng: np.random.Generator) -> Values:
        shape = (self.model.n_rows, self.model.n_columns)
        scale, df = np.asarray(self.model.prior_scale), self.model.prior_df
        weights = scale * (rng.standard_normal(shape) if df is None else rng.standard_t(df, shape))
        if self.model.common_scale is not None:
            weights *= np.where(self.model.common_scale, _common_scale(rng), 1)
        d = self.n_features
        own = {"coef": weights[:, :d]}
        return own | {"intercept": weights[:, d]} if self.estimator.fit_intercept else own

    def rows(self, rng: np.random.Generator, truth: Values) -> tuple[Any, ...]:
        X = self.design.draw(rng)
        logits = X @ truth["coef"].T + truth.get("intercept", 0.0)
        if len(self.classes) == 2:
            chosen = (rng.random(len(X)) < expit(logits[:, 0])).astype(np.int64)
        else:
            below = softmax(logits, axis=1).cumsum(axis=1)[:, :-1]
            chosen = (rng.random((len(X), 1)) > below).sum(axis=1)
        return X, self.classes[chosen]

    def plain(self, rows: tuple[Any, ...], n: int, rng: np.random.Generator) -> Values | None:
        from skdpbayes.reference import logistic_gibbs

        if len(self.classes) != 2:
            return None
        X, y = rows
        intercept = bool(self.estimator.fit_intercept)
        try:
            draws = logistic_gibbs(
                X,
                y == self.classes[1],
                prior_scale=np.asarray(self.model.prior_scale, np.float64),
                fit_intercept=intercept,
                n_draws=n,
                n_burn=200,
                n_chains=1,
                random_state=rng,
            )[0]
        except ImportError:
            return None
        d = self.n_features
        own = {"coef": draws[:, None, :d]}
        return own | {"intercept": draws[:, d:]} if intercept else own


class LinearSimulator(Simulator):
    """Linear regression within its declared bounds; the non-private posterior is exact."""

    needed = ("coef", "noise_std")

    def __init__(self, estimator: Any, n_rows: int, n_features: int | None, X: Any) -> None:
        if estimator.bounds is None:
            raise ValueError("check needs bounds: the prior is in units of half a range.")
        d = _width(estimator, n_features, X, 2)
        super().__init__(estimator, n_rows, d)
        self.X = None if X is None else np.asarray(X, np.float64)
        scales = estimator.plan(n_rows, d).facts.own_scales()
        self.centre, self.half, self.y_centre, self.y_half = (np.asarray(x) for x in scales)

    def truth(self, rng: np.random.Generator) -> Values:
        own = self.estimator
        variance = own.prior_scale / rng.gamma(own.prior_shape)
        d = self.n_features
        weights = rng.standard_normal((1, d + 1)) * np.sqrt(variance / own.prior_precision)
        return {name: x[0] for name, x in self._in_units(weights, np.array([variance])).items()}

    def rows(self, rng: np.random.Generator, truth: Values) -> tuple[Any, ...]:
        size = (self.n_rows, self.n_features)
        X = self.X
        if X is None:  # uniform on the declared ranges
            X = self.centre + self.half * rng.uniform(-1.0, 1.0, size)
        noise = truth["noise_std"] * rng.standard_normal(len(X))
        intercept = truth.get("intercept", self.y_centre - truth["coef"] @ self.centre)
        return X, X @ truth["coef"] + intercept + noise

    def plain(self, rows: tuple[Any, ...], n: int, rng: np.random.Generator) -> Values:
        X, y, own = *rows, self.estimator
        x, t = (X - self.centre) / self.half, (y - self.y_centre) / self.y_half
        if own.fit_intercept:
            x = np.column_stack([x, np.ones(len(x))])
        precision = x.T @ x + own.prior_precision * np.eye(x.shape[1])
        mean = np.linalg.solve(precision, x.T @ t)
        scale = own.prior_scale + (t @ t - mean @ precision @ mean) / 2
        variance = scale / rng.gamma(own.prior_shape + len(x) / 2, size=n)
        root = np.linalg.inv(np.linalg.cholesky(precision))  # root' root is the covariance
        noise = rng.standard_normal((n, len(mean))) @ root
        return self._in_units(mean + np.sqrt(variance)[:, None] * noise, variance)

    def _in_units(self, weights: Floats, variance: Floats) -> Values:
        """Draws of scaled weights and residual variance, in the units of the data."""
        d = self.n_features
        coef = weights[:, :d] * self.y_half / self.half
        values = {"coef": coef, "noise_std": np.sqrt(variance) * self.y_half}
        if self.estimator.fit_intercept:
            values["intercept"] = self.y_centre - coef @ self.centre + weights[:, d] * self.y_half
        return values


class HierarchySimulator(Simulator):
    """Hierarchical logistic regression; groups of a default design are equally frequent."""

    needed = ("weights",)

    def __init__(self, estimator: Any, n_rows: int, n_features: int | None, X: Any) -> None:
        from skdpbayes.intake.groups import place_of

        if estimator.classes is None:
            estimator.set_params(classes=[0, 1])
        columns = _width(estimator, n_features, X, 3)
        super().__init__(estimator, n_rows, columns)
        if isinstance(estimator.group_column, str):
            raise ValueError("check needs the position of the column of groups, not its name.")
        self.place = place_of(estimator.group_column, list(range(columns)))
        self.design = _Design(X, n_rows, columns)
        facts = estimator.plan(n_rows, columns).facts
        self.classes, self.spread = facts.own_labels(), estimator._spread(facts)
        self.groups, self.table = estimator._groups_and_table()

    def truth(self, rng: np.random.Generator) -> Values:
        own, (n_groups, k) = self.estimator, self.table.shape
        d = self.n_features - 1 + bool(own.fit_intercept)
        values = {"effects": own.prior_scale * rng.standard_normal((d, k))}
        spread = self.spread
        if spread is None:
            spread = own.prior_scale * abs(rng.standard_normal())
            values["group_scale"] = np.array(spread)
        about = self.table @ values["effects"].T
        values["weights"] = about + spread * rng.standard_normal((n_groups, d))
        return values

    def rows(self, rng: np.random.Generator, truth: Values) -> tuple[Any, ...]:
        X = self.design.draw(rng)
        if self.design.given is None:
            X = X.astype(object) if self.groups.dtype.kind in "OSU" else X
            X[:, self.place] = rng.choice(self.groups, len(X))
        code = np.searchsorted(self.groups, X[:, self.place].astype(self.groups.dtype))
        x = np.delete(X, self.place, axis=1).astype(np.float64)
        if self.estimator.fit_intercept:
            x = np.column_stack([x, np.ones(len(x))])
        chance = expit(np.einsum("nd,nd->n", x, truth["weights"][code]))
        return X, self.classes[(rng.random(len(x)) < chance).astype(np.int64)]


# --- Mixtures -------------------------------------------------------------------------------------


class MixtureSimulator(Simulator):
    """Gaussian mixtures. Components of a fit take the labels of the nearest true ones."""

    needed = ("weights", "means", "covariances")

    def __init__(self, estimator: Any, n_rows: int, n_features: int | None) -> None:
        declared = estimator.mean_prior if estimator.mean_prior is not None else [0.0]
        super().__init__(estimator, n_rows, _width(estimator, n_features, None, len(declared)))

    def truth(self, rng: np.random.Generator) -> Values:
        own, d = self.estimator, self.n_features
        k = int(own.n_components)
        if own.mean_prior is None or own.covariance_prior is None:
            raise ValueError(
                "DPGaussianMixture has no prior of its own unless mean_prior and covariance_prior "
                "are numbers, as it takes them from the first release: give them, or truths=."
            )
        given = own.degrees_of_freedom_prior
        freedom = float(d if given is None else given)
        scatter = np.asarray(own.covariance_prior, np.float64) * (
            np.eye(d) if np.ndim(own.covariance_prior) == 0 else 1.0
        )
        if own.covariance_type in ("full", "tied"):
            size = k if own.covariance_type == "full" else 1
            drawn = stats.invwishart(freedom, scatter).rvs(size, random_state=rng)
            covariances = np.reshape(drawn, (size, d, d))
        elif own.covariance_type == "diag":
            covariances = np.eye(d) * (np.diag(scatter) / rng.chisquare(freedom, (k, d)))[:, None]
        else:
            variances = np.trace(scatter) / rng.chisquare(freedom * d, (k, 1, 1))
            covariances = np.eye(d) * variances
        covariances = np.broadcast_to(covariances, (k, d, d))
        roots = np.linalg.cholesky(covariances) / np.sqrt(own.mean_precision_prior)
        noise = np.einsum("kij,kj->ki", roots, rng.standard_normal((k, d)))
        weights = rng.dirichlet(np.full(k, float(own.weight_concentration_prior)))
        means = np.asarray(own.mean_prior, np.float64) + noise
        return {"weights": weights, "means": means, "covariances": covariances}

    def rows(self, rng: np.random.Generator, truth: Values) -> tuple[Any, ...]:
        labels = rng.choice(len(truth["weights"]), self.n_rows, p=truth["weights"])
        roots = np.linalg.cholesky(truth["covariances"])[labels]
        noise = rng.standard_normal((self.n_rows, truth["means"].shape[1]))
        return (truth["means"][labels] + np.einsum("nij,nj->ni", roots, noise),)

    def draws(self, fitted: Any, n: int, rng: np.random.Generator, truth: Values) -> Values:
        drawn = fitted.sample_posterior(n, rng)
        unit = np.sqrt(np.diagonal(truth["covariances"], axis1=1, axis2=2))
        found = drawn["means"].mean(axis=0)
        square = (((truth["means"][:, None] - found) / unit[:, None]) ** 2).sum(axis=2)
        order = linear_sum_assignment(square)[1]
        aligned = {name: drawn[name][:, order] for name in ("weights", "means", "covariances")}
        return self._coordinates(aligned)

    def compared(self, truth: Values) -> Values:
        alone = self._coordinates({name: np.asarray(x)[None] for name, x in truth.items()})
        return {name: x[0] for name, x in alone.items()}

    def _coordinates(self, draws: Values) -> Values:
        """Weights (if several), means, and the entries of the covariances that are free."""
        kind, covariances = self.estimator.covariance_type, draws["covariances"]
        low, high = np.tril_indices(covariances.shape[-1])
        if kind in ("full", "tied"):
            free = covariances[..., low, high]
        else:
            free = np.diagonal(covariances, axis1=2, axis2=3)
        entries = {"tied": free[:, 0], "spherical": free[..., 0]}.get(kind, free)
        values = {"means": draws["means"], "covariances": entries}
        return values | ({"weights": draws["weights"]} if draws["weights"].shape[1] > 1 else {})


# --- NumPyro --------------------------------------------------------------------------------------


class NumPyroSimulator(Simulator):
    """NumPyro models, by their own prior predictive: the same two compiled programs for all fits.

    The sites in the plate of records are drawn in place of the response. A model without a
    response, as of a density, observes its first argument, which is replaced.
    """

    def __init__(self, estimator: Any, n_rows: int, n_features: int | None, X: Any) -> None:
        by_name = isinstance(X, Mapping)
        width = None if by_name else _width(estimator, n_features, X, 2)
        super().__init__(estimator, n_rows, width or 0)
        public = estimator.public or {}
        arguments = inspect.signature(estimator.model).parameters
        names = [name for name in arguments if name not in public]
        if by_name:
            self.by_name, self.fields = True, {name: np.asarray(x) for name, x in X.items()}
        else:
            self.by_name = False
            self.design = _Design(X, n_rows, width or 1)
            self.fields = {names[0]: self.design.draw(np.random.default_rng(0))}
        responses = (inspect.Parameter.empty, None)
        missing = [n for n in names if n not in self.fields]
        self.missing = [n for n in missing if arguments[n].default in responses]
        self._compile(public)

    def _compile(self, public: Mapping[str, Any]) -> None:
        import jax
        from numpyro import handlers
        from numpyro.primitives import Messenger

        from skdpbayes.models.numpyro.program import traced

        own, n_rows, missing = self.estimator, self.n_rows, self.missing

        class Unobserved(Messenger):
            """Draws the observed sites of the plate of records; keeps what they observed."""

            def __init__(self) -> None:
                super().__init__()
                self.observed: dict[str, Any] = {}

            def process_message(self, msg: dict[str, Any]) -> None:
                """Take the value off."""
                if msg["type"] == "sample" and msg["is_observed"] and _of_records(msg, n_rows):
                    self.observed[msg["name"]] = msg["value"]
                    msg["is_observed"], msg["value"] = False, None

        def sites_of(key: Any, truth: Any, fields: Any) -> tuple[Any, Any, Any]:
            """Values of latent sites and of sites of records, and what these observed."""
            unobserved = Unobserved()
            with traced(
                handlers.seed(rng_seed=key), handlers.substitute(data=truth), unobserved
            ) as sites:
                own.model(**fields, **dict.fromkeys(missing), **public)
            drawn = {name: x for name, x in sites.items() if x["type"] == "sample"}
            records = {name: x["value"] for name, x in drawn.items() if _of_records(x, n_rows)}
            latent = {name: x["value"] for name, x in drawn.items() if name not in records}
            return latent, records, unobserved.observed

        def arguments_of(key: Any, truth: Any, fields: Any) -> Any:
            """New values of arguments, by name."""
            _, records, observed = sites_of(key, truth, fields)
            arguments = {
                self._argument(name, observed.get(name), fields, len(records)): value
                for name, value in records.items()
            }
            if set(arguments) < set(missing) or not arguments:
                raise ValueError(_UNKNOWN.format(sorted(records)))
            return arguments

        self._prior = jax.jit(lambda key, fields: sites_of(key, {}, fields)[0])
        self._records = jax.jit(arguments_of)

    def _argument(self, site: str, observed: Any, fields: Mapping[str, Any], n: int) -> str:
        """Argument of the model that a site of the records observes."""
        for name, value in fields.items():
            if value is observed:
                return name
        if site in self.missing:
            return site
        if observed is None and n == len(self.missing) == 1:
            return self.missing[0]
        raise ValueError(_UNKNOWN.format([site]))

    def truth(self, rng: np.random.Generator) -> Values:
        import jax

        key = jax.random.key(rng.integers(2**31))
        return {name: np.asarray(x) for name, x in self._prior(key, self._typed()).items()}

    def rows(self, rng: np.random.Generator, truth: Values) -> tuple[Any, ...]:
        import jax

        if not self.by_name:
            (name,) = self.fields
            self.fields = {name: self.design.draw(rng)}
        single = {
            name: np.asarray(x, np.float32) if np.asarray(x).dtype.kind == "f" else np.asarray(x)
            for name, x in truth.items()
        }
        drawn = self._records(jax.random.key(rng.integers(2**31)), single, self._typed())
        fields = {**self.fields, **{name: np.asarray(x) for name, x in drawn.items()}}
        return (fields,) if self.by_name else tuple(fields.values())

    def held(self, rows: tuple[Any, ...]) -> tuple[str, ...]:
        from sklearn.base import clone

        own: Any = self.estimator
        return own._long_arrays(own._reader().read(clone(own), *rows).facts)

    def _typed(self) -> Values:
        from skdpbayes.intake.fields import typed

        return {name: typed(x) for name, x in self.fields.items()}


_UNKNOWN = (
    "Sites {} of the plate of records cannot be told to arguments of the model: name each site as "
    "its argument, or pass simulate=, a function of (rng, truth, X) that returns the arguments "
    "of fit."
)


def _of_records(site: Mapping[str, Any], n_rows: int) -> bool:
    """Whether a site is in a plate as long as the table."""
    return any(plate.size == n_rows for plate in site["cond_indep_stack"])
