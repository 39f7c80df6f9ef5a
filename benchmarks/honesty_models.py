"""Honesty of mixtures, NumPyro models, rare events and hierarchies: ``make bench-honesty``.

A cell is an estimator, a number of rows and a law of truths; `skdpbayes.calibration.check`
simulates and fits. The NumPyro models are written as ``docs/numpyro.md`` writes them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binom

from benchmarks import _log

if TYPE_CHECKING:
    from skdpbayes.calibration import CalibrationCheck

Values = dict[str, np.ndarray]

LEVEL = 0.9
COVERED, WORST = (0.85, 0.95), 0.80
FITS = 40
SOLVERS = ("vips", "dpvi", "na-dpvi", "sgld")
GRADIENT = ("dpvi", "na-dpvi")
PROGRAM_SETTINGS = tuple((n, epsilon) for n in (500, 3_000, 30_000) for epsilon in (0.5, 2.0, 8.0))


@dataclass(frozen=True)
class Cell:
    """One line.

    Attributes
    ----------
    estimator : callable
        It makes the estimator; models are imported when it is called.
    n_rows : int
    truths : callable or None
        Of a generator and a number of fits; None: the estimator's prior.
    n_features : int or None
    design : callable or None
        Public design, of a generator: an array, or arguments by name. None: standard normal rows.
    simulate : callable or None
        As in `check`.
    """

    estimator: Callable[[], Any]
    n_rows: int
    truths: Callable[[np.random.Generator, int], Values] | None = None
    n_features: int | None = None
    design: Callable[[np.random.Generator], Any] | None = None
    simulate: Callable[..., Any] | None = None


# --- Mixtures -------------------------------------------------------------------------------------


def _mixture(
    apart: float,
    epsilon: float,
    solver: str,
    kind: str,
    n_rows: int | None = None,
    bound: float = 8.0,
) -> Cell:
    """Two components: 5000 rows of two columns, or 20 000 of three, less alike; or `n_rows`."""
    plain = kind == "full"
    d, n = (2, n_rows or 5_000) if plain else (3, n_rows or 20_000)
    means = np.zeros((2, d))
    means[:, 0] = np.array([-0.5, 0.5]) * apart
    weights = np.array([0.6, 0.4] if plain else [0.3, 0.7])

    def estimator() -> Any:
        from skdpbayes import DPGaussianMixture

        return DPGaussianMixture(
            n_components=2, covariance_type=kind, bounds=(-bound, bound), epsilon=epsilon,
            solver=solver,
        )  # fmt: skip

    def truths(rng: np.random.Generator, fits: int) -> Values:
        del rng
        one = {"weights": weights, "means": means, "covariances": np.tile(np.eye(d), (2, 1, 1))}
        return _repeated(one, fits)

    return Cell(estimator, n, truths, d)


def _narrow(n: int, epsilon: float, kind: str) -> Cell:
    """Two wide components and a small, narrow one, with 5% of the rows."""
    means = np.array([[-4.0, 0.0], [4.0, 0.0], [0.0, 5.0]])
    variances = np.array([1.0, 1.0, 0.09])[:, None, None]

    def estimator() -> Any:
        from skdpbayes import DPGaussianMixture

        return DPGaussianMixture(
            n_components=3, covariance_type=kind, bounds=(-10, 10), epsilon=epsilon
        )

    def truths(rng: np.random.Generator, fits: int) -> Values:
        del rng
        weights = np.array([0.6, 0.35, 0.05])
        one = {"weights": weights, "means": means, "covariances": variances * np.eye(2)}
        return _repeated(one, fits)

    return Cell(estimator, n, truths, 2)


def _repeated(values: Values, fits: int) -> Values:
    return {name: np.broadcast_to(x, (fits, *np.shape(x))) for name, x in values.items()}


# --- NumPyro models -------------------------------------------------------------------------------


def poisson(x: Any, y: Any = None) -> None:
    """Poisson regression."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(intercept + x @ weights)), obs=y)


def negative_binomial(x: Any, y: Any = None) -> None:
    """Negative binomial regression with a learnt dispersion."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    concentration = numpyro.sample("concentration", dist.LogNormal(1, 0.5))
    with numpyro.plate("records", len(x)):
        mean = jnp.exp(intercept + x @ weights)
        numpyro.sample("y", dist.NegativeBinomial2(mean, concentration), obs=y)


def robust(x: Any, y: Any = None) -> None:
    """Regression with heavy tails and a learnt scale."""
    import numpyro
    import numpyro.distributions as dist

    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.StudentT(4.0, intercept + x @ weights, scale), obs=y)


def ordinal(x: Any, y: Any = None) -> None:
    """Ordinal regression: four ordered answers."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.distributions.transforms import OrderedTransform

    cutpoints = dist.TransformedDistribution(
        dist.Normal(0, 1).expand([3]).to_event(1), OrderedTransform()
    )
    cuts = numpyro.sample("cuts", cutpoints)
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.OrderedLogistic(x @ weights, cuts), obs=y)


def survival(x: Any, censored: Any, y: Any = None) -> None:
    """Exponential times until an event, censored at the end of the study."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", len(x)):
        times = dist.Exponential(jnp.exp(intercept + x @ weights))
        numpyro.sample("y", dist.RightCensoredDistribution(times, censored), obs=y)


def censored_times(rng: np.random.Generator, truth: Values, X: Values) -> dict[str, np.ndarray]:
    """Records of `survival`; the study ends at time 2."""
    rate = np.exp(truth["intercept"] + X["x"] @ truth["weights"])
    times = rng.exponential(1 / rate)
    return X | {"censored": (times > 2.0).astype(np.float32), "y": np.minimum(times, 2.0)}


def _predictor(x: Any) -> Any:
    """Linear predictor of the regressions below."""
    import numpyro
    import numpyro.distributions as dist

    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    return intercept + x @ weights


def gamma(x: Any, y: Any = None) -> None:
    """Positive numbers with a learnt shape, below one for some."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    mean, shape = jnp.exp(_predictor(x)), numpyro.sample("shape", dist.LogNormal(1, 0.7))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Gamma(shape, shape / mean), obs=y)


def beta(x: Any, y: Any = None) -> None:
    """Shares with a learnt precision; many densities have no bound."""
    import jax
    import numpyro
    import numpyro.distributions as dist

    mean = jax.nn.sigmoid(_predictor(x))
    precision = numpyro.sample("precision", dist.LogNormal(2, 1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Beta(mean * precision, (1 - mean) * precision), obs=y)


def zeros(x: Any, y: Any = None) -> None:
    """Counts, some of which are zero for another reason."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    rate, gate = jnp.exp(_predictor(x)), numpyro.sample("gate", dist.Beta(2, 4))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate), obs=y)


def tails(x: Any, y: Any = None) -> None:
    """Regression with heavy tails, whose degrees of freedom and scale are learnt."""
    import numpyro
    import numpyro.distributions as dist

    location, scale = _predictor(x), numpyro.sample("scale", dist.HalfNormal(1))
    df = numpyro.sample("df", dist.Gamma(4.0, 0.5))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.StudentT(df, location, scale), obs=y)


def answers(x: Any, y: Any = None) -> None:
    """Four yes/no answers of each record: a predictor, and thresholds of their own."""
    import numpyro
    import numpyro.distributions as dist

    intercepts = numpyro.sample("intercepts", dist.Normal(0, 2).expand([4]).to_event(1))
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", len(x)):
        logits = (x @ weights)[:, None] + intercepts
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def outcomes(x: Any, count: Any = None, amount: Any = None) -> None:
    """A count and an amount of each record, which share a predictor."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    predictor = _predictor(x)
    effect, centre = (numpyro.sample(name, dist.Normal(0, 1)) for name in ("effect", "centre"))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("count", dist.Poisson(jnp.exp(predictor)), obs=count)
        numpyro.sample("amount", dist.Normal(centre + effect * predictor, scale), obs=amount)


_EASY: dict[str, dict[str, Callable[[np.random.Generator, int], np.ndarray]]] = {
    "poisson": {"intercept": lambda rng, n: rng.normal(0.5, 0.3, n)},
    "negative-binomial": {
        "intercept": lambda rng, n: rng.normal(0.5, 0.3, n),
        "concentration": lambda rng, n: rng.lognormal(1.0, 0.3, n),
    },
    "robust": {
        "intercept": lambda rng, n: rng.normal(0.0, 0.5, n),
        "scale": lambda rng, n: rng.uniform(0.2, 0.6, n),
    },
    "ordinal": {
        "cuts": lambda rng, n: np.sort(rng.normal([-1.5, 0.0, 1.5], 0.2, (n, 3)), axis=1),
    },
    "survival": {"intercept": lambda rng, n: rng.normal(-0.5, 0.3, n)},
    "gamma": {
        "intercept": lambda rng, n: rng.normal(0.0, 0.4, n),
        "shape": lambda rng, n: rng.lognormal(0.7, 0.7, n),
    },
    "beta": {
        "intercept": lambda rng, n: rng.normal(0.0, 0.4, n),
        "precision": lambda rng, n: rng.lognormal(2.0, 0.6, n),
    },
    "zeros": {
        "intercept": lambda rng, n: rng.normal(0.3, 0.3, n),
        "gate": lambda rng, n: rng.beta(3, 7, n),
    },
    "tails": {
        "intercept": lambda rng, n: rng.normal(0.0, 0.4, n),
        "scale": lambda rng, n: rng.uniform(0.3, 1.0, n),
        "df": lambda rng, n: rng.uniform(3, 12, n),
    },
    "answers": {"intercepts": lambda rng, n: rng.normal(0.0, 1.0, (n, 4))},
    "outcomes": {
        "intercept": lambda rng, n: rng.normal(0.5, 0.3, n),
        "effect": lambda rng, n: rng.normal(0.7, 0.3, n),
        "centre": lambda rng, n: rng.normal(0.0, 0.5, n),
        "scale": lambda rng, n: rng.uniform(0.3, 0.8, n),
    },
}
PROGRAMS: dict[str, Callable[..., None]] = {
    "poisson": poisson,
    "negative-binomial": negative_binomial,
    "robust": robust,
    "ordinal": ordinal,
    "survival": survival,
    "gamma": gamma,
    "beta": beta,
    "zeros": zeros,
    "tails": tails,
    "answers": answers,
    "outcomes": outcomes,
}
SEVERAL = ("answers", "outcomes")  # responses of each record
TABLE_SETTINGS = ((500, 2.0), (3_000, 0.3), (3_000, 1.0), (30_000, 1.0))
_MODERATE = ("gamma", "beta", "zeros", "tails", *SEVERAL)  # truths, and not those of the prior


def patients(rng: np.random.Generator, n: int) -> np.ndarray:
    """Two numbers far from zero; two answers; and a category of four, the first left out.

    None is centred, so that all are correlated with the intercept.
    """
    age, index = rng.normal(0.5, 0.2, n).clip(0, 1), rng.gamma(4, 0.08, n).clip(0, 1)
    answers = rng.random((n, 2)) < [0.5, 0.2]
    ward = rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])
    return np.c_[age, index, answers, np.eye(4)[ward][:, 1:]]


def program(
    name: str, solver: str, kind: str = "", n_rows: int = 3_000, epsilon: float = 1.0
) -> Cell:
    """A NumPyro model: moderate truths, or those of its prior.

    Columns are normal, or (kind "positive") uniform between 0 and 1, as of a scaled table, or
    (kind "table") those of `patients`.
    """
    from_prior = kind == "prior"
    d = {"prior": 4, "table": 7}.get(kind, 3)

    def estimator() -> Any:
        from skdpbayes import DPNumPyroModel

        return DPNumPyroModel(PROGRAMS[name], epsilon=epsilon, solver=solver)

    def truths(rng: np.random.Generator, fits: int) -> Values:
        return {site: draw(rng, fits) for site, draw in _EASY[name].items()} | {
            "weights": rng.normal(0.0, 0.6, (fits, d))
        }

    def design(rng: np.random.Generator) -> Any:
        x = rng.standard_normal((n_rows, d)) * (1.0 if from_prior else 0.5)
        if kind == "positive":
            x = rng.uniform(size=(n_rows, d))
        if kind == "table":
            x = patients(rng, n_rows)
        others = {"survival": {"censored": np.zeros(len(x), np.float32)}, "outcomes": {}}
        return {"x": x} | others[name] if name in others else x

    simulate = censored_times if name == "survival" else None
    return Cell(estimator, n_rows, None if from_prior else truths, None, design, simulate)


# --- Records that do not follow the model ---------------------------------------------------------

OTHER_SETTINGS = ((5_000, 1.0), (10_000, 2.0), (30_000, 1.0), (30_000, 8.0))


def skewed(n_rows: int, epsilon: float) -> Cell:
    """Linear regression on exponential residuals."""

    def estimator() -> Any:
        from skdpbayes import DPBayesianLinearRegression

        return DPBayesianLinearRegression(epsilon, bounds=((-1, 1), (-4, 8)))

    def truths(rng: np.random.Generator, fits: int) -> Values:
        coef, intercept = rng.normal(0, 1, (fits, 3)), rng.normal(0, 1, fits)
        return {"coef": coef, "intercept": intercept, "noise_std": np.ones(fits)}

    def simulate(rng: np.random.Generator, truth: Values, X: Any) -> tuple[Any, Any]:
        mean = truth["intercept"] + X @ truth["coef"]
        return X, mean + rng.exponential(1.0, n_rows) - 1

    def design(rng: np.random.Generator) -> Any:
        return rng.uniform(-1, 1, (n_rows, 3))

    return Cell(estimator, n_rows, truths, 3, design, simulate)


def overdispersed(n_rows: int, epsilon: float) -> Cell:
    """Poisson regression on counts whose variance is up to a few times their mean."""

    def simulate(rng: np.random.Generator, truth: Values, X: Any) -> tuple[np.ndarray, np.ndarray]:
        rate = np.exp(truth["intercept"] + X @ truth["weights"])
        return X, rng.poisson(rate * rng.gamma(2, 0.5, n_rows)).astype(np.float32)

    return replace(program("poisson", "auto", "", n_rows, epsilon), simulate=simulate)


def dispersed(mean: float, n_rows: int, epsilon: float) -> Cell:
    """Negative binomial regression on counts of this mean and about its square as variance."""

    def truths(rng: np.random.Generator, fits: int) -> Values:
        level = math.log(mean)
        return {
            "intercept": rng.normal(level, 0.3, fits),
            "concentration": rng.lognormal(0.0, 0.5, fits),
            "weights": rng.normal(0.0, 0.6, (fits, 3)),
        }

    cell = program("negative-binomial", "auto", "", n_rows, epsilon)
    return replace(cell, truths=truths)


# --- Rare events and hierarchies ------------------------------------------------------------------


def _rare(p: float, n: int, solver: str) -> Cell:
    def estimator() -> Any:
        from skdpbayes import DPBetaBernoulli

        return DPBetaBernoulli(epsilon=1.0, solver=solver)

    def truths(rng: np.random.Generator, fits: int) -> Values:
        del rng
        return {"probability": np.full((fits, 1), p)}

    return Cell(estimator, n, truths, 1)


def _hierarchy(n: int, groups: int, epsilon: float, solver: str, columns: int = 2) -> Cell:
    """A learnt spread; truths of the prior, standard normal columns and a feature of groups."""

    def estimator() -> Any:
        from skdpbayes import DPHierarchicalLogisticRegression

        features = np.linspace(-1.0, 1.0, groups)[:, None]
        return DPHierarchicalLogisticRegression(
            groups,
            features,
            epsilon=epsilon,
            prior_scale=1.0,
            classes=[0, 1],
            solver=solver,
        )

    return Cell(estimator, n, None, columns + 1)


def _groups(size: float, solver: str, n: int = 10_000, groups: int = 10, columns: int = 3) -> Cell:
    """Default priors; weights differ from group to group by as much as from zero, on average."""

    def estimator() -> Any:
        from skdpbayes import DPHierarchicalLogisticRegression

        return DPHierarchicalLogisticRegression(groups, classes=[0, 1], solver=solver)

    def truths(rng: np.random.Generator, fits: int) -> Values:
        common = rng.standard_normal((fits, 1, columns + 1))
        own = rng.standard_normal((fits, groups, columns + 1))
        return {"weights": size * (common + own)}

    return Cell(estimator, n, truths, columns + 1)


def cells() -> dict[str, Cell]:
    """Cells by name."""
    found = {
        f"mixture-{apart:g}sd{'' if kind == 'full' else '-' + kind}-{epsilon:g}-{solver}": _mixture(
            apart, epsilon, solver, kind
        )
        for kind in ("full", "diag")
        for apart in (2.0, 5.0)
        for epsilon in (0.5, 2.0)
        for solver in SOLVERS
    }
    found |= {  # batches, from 131 072 rows on
        f"mixture-{n:.0e}-{kind}-{epsilon:g}-{solver}".replace("e+0", "e"): _mixture(
            2.0, epsilon, solver, kind, n
        )
        for kind, n, epsilon in (
            ("full", 300_000, 0.5), ("full", 1_000_000, 2.0), ("diag", 300_000, 2.0)
        )
        for solver in ("dpvi", "na-dpvi")
    }  # fmt: skip
    found |= {  # other numbers of rows and budgets; bounds that fit, and far too wide ones
        f"mixture-{n}-{epsilon:g}-{'auto' if bound == 8 else 'loose'}": _mixture(
            3.0, epsilon, "auto", "full", n, bound
        )
        for n, epsilon in PROGRAM_SETTINGS
        for bound in (8.0, 40.0)
    }
    found |= {
        f"narrow-{n}-{epsilon:g}-{kind}": _narrow(n, epsilon, kind)
        for n, epsilon, kind in (
            (5000, 0.5, "diag"), (5000, 8.0, "diag"), (5000, 8.0, "full"), (20_000, 1.0, "full")
        )
    }  # fmt: skip
    found |= {
        f"{name}{kind and '-' + kind}-{solver}": program(name, solver, kind)
        for name in PROGRAMS
        for kind in (("",) if name in _MODERATE else ("", "prior", "positive"))
        for solver in GRADIENT
    }
    found |= {  # other numbers of records and budgets
        f"{name}-{n}-{epsilon:g}-auto": program(name, "auto", "", n, epsilon)
        for name in PROGRAMS
        for n, epsilon in PROGRAM_SETTINGS
    }
    found |= {  # columns as users have them
        f"table-{name}-{n}-{epsilon:g}": program(name, "auto", "table", n, epsilon)
        for name in PROGRAMS
        for n, epsilon in TABLE_SETTINGS
    }
    for name, cell in (("skewed", skewed), ("overdispersed", overdispersed)):
        found |= {f"{name}-{n}-{epsilon:g}": cell(n, epsilon) for n, epsilon in OTHER_SETTINGS}
    found |= {
        f"dispersed-{mean:g}-{n}-{epsilon:g}": dispersed(mean, n, epsilon)
        for mean, n, epsilon in ((8, 3_000, 1.0), (8, 10_000, 3.0), (40, 5_000, 1.0))
    }
    found |= {
        f"bernoulli-{p:g}-{n}-{solver}": _rare(p, n, solver)
        for p, n in ((0.004, 500), (0.02, 5_000))
        for solver in SOLVERS
    }
    found |= {
        f"groups-{size:g}-{solver}": _groups(size, solver)
        for size in (0.3, 1.0, 3.0)
        for solver in ("na-dpvi", "dpvi")
    }
    found |= {  # logits whose standard deviation is six
        f"hierarchy-10-columns-8x3000-{epsilon:g}-{solver}": _hierarchy(
            3_000, 8, epsilon, solver, columns=10
        )
        for epsilon in (0.5, 2.0)
        for solver in GRADIENT
    }
    return found | {
        f"hierarchy-{groups}x{n}-{epsilon:g}-{solver}": _hierarchy(n, groups, epsilon, solver)
        for n, groups, epsilon in (
            (1_000, 5, 1.0),
            (1_000, 20, 2.0),
            (3_000, 8, 0.5),
            (3_000, 8, 2.0),
            (5_000, 8, 8.0),
            (10_000, 30, 2.0),
            (20_000, 20, 8.0),
            (300_000, 8, 1.0),
        )
        for solver in GRADIENT
    }


# --- Figures --------------------------------------------------------------------------------------


def measured(
    cell: Cell, fits: int, parameters: dict[str, Any], seed: int = 0, most_rows: int | None = None
) -> CalibrationCheck:
    """`check` of a cell; records are persons of one to `most_rows` rows, if that is given."""
    from skdpbayes.calibration import check

    rng = np.random.default_rng([seed, 26])
    groups = None
    if most_rows is not None:
        each = np.random.default_rng([seed, 30]).integers(1, most_rows + 1, cell.n_rows)
        groups = np.repeat(np.arange(cell.n_rows), each)[: cell.n_rows]
        parameters = parameters | {"max_rows_per_person": most_rows}
    return check(
        cell.estimator().set_params(**parameters),
        cell.n_rows,
        n_features=cell.n_features if cell.design is None else None,
        X=None if cell.design is None else cell.design(rng),
        truths=None if cell.truths is None else cell.truths(rng, fits),
        simulate=cell.simulate,
        groups=groups,
        n_fits=fits,
        level=LEVEL,
        random_state=seed,
    )


def summary(found: CalibrationCheck) -> dict[str, Any]:
    """Figures of a cell."""
    covered, sites = found.coverage.coverage, np.array([n.split("[")[0] for n in found.names])
    low, high = np.quantile(
        found.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1, method="weibull"
    )
    by_fit = ((low <= found.truth) & (found.truth <= high)).mean(axis=1)
    z = (found.draws.mean(axis=1) - found.truth) / found.draws.std(axis=1)
    return {
        "fits": found.n_fits,
        "covered": float(covered.mean()),
        "error": float(by_fit.std(ddof=1) / math.sqrt(len(by_fit))) if found.n_fits > 1 else None,
        "worst": float(covered.min()),
        "worst_name": found.names[int(covered.argmin())],
        "least": least(found.n_fits, len(covered)),
        "rms_z": float(np.sqrt((z**2).mean())),
        "tarp": None if found.tarp is None else float(found.tarp.rmse),
        "sites": {site: float(covered[sites == site].mean()) for site in sorted({*sites})},
        "width": {site: float(found.width[sites == site].mean()) for site in sorted({*sites})},
        "crps": {site: float(found.crps[sites == site].mean()) for site in sorted({*sites})},
        "seconds": found.seconds,
    }


HEADER = ["cell", "fits", "covered", "+-", "worst", "rms z", "TARP", "s", "", "of", "width", "CRPS"]


def least(fits: int, coordinates: int) -> float:
    """Limit of the worst coordinate's coverage.

    Lower than `WORST` if, with so few fits, one in a hundred calibrated posteriors were below it.
    """
    by_chance = float(binom.ppf(0.01 / coordinates, fits, LEVEL)) / fits
    return min(WORST, by_chance)


def honest(found: dict[str, Any], limits: tuple[float, float] = COVERED) -> bool:
    """Whether coverage is within its limits."""
    return limits[0] <= found["covered"] <= limits[1] and found["worst"] >= found["least"]


def _by_site(figures: dict[str, float], form: str) -> str:
    return " / ".join(format(x, form) for x in figures.values())


def row(name: str, found: dict[str, Any]) -> list[str]:
    """A line of the table; figures by site have the order of the sites' names."""
    sites = " ".join(f"{site} {share:.2f}" for site, share in found["sites"].items())
    return [
        name,
        f"{found['fits']}",
        f"{found['covered']:.3f}",
        "-" if found["error"] is None else f"{found['error']:.3f}",
        f"{found['worst']:.2f}",
        f"{found['rms_z']:.2f}",
        "-" if found["tarp"] is None else f"{found['tarp']:.3f}",
        f"{found['seconds']:.2f}",
        "" if honest(found) else "OUT",
        sites,
        _by_site(found["width"], ".3g"),
        _by_site(found["crps"], ".2g"),
    ]


def run(
    names: Sequence[str], fits: int | None, parameters: dict[str, Any]
) -> dict[str, dict[str, Any] | str]:
    """Figures of cells, printed as they come; the message of an estimator that refuses."""
    known, results = cells(), {}
    print("  ".join(HEADER), flush=True)
    for name in names:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "delta=", UserWarning)
            try:
                results[name] = summary(measured(known[name], fits or FITS, parameters))
            except ValueError as error:
                results[name] = str(error)
        line = results[name]
        shown = [name, line] if isinstance(line, str) else row(name, line)
        print("  ".join(shown), flush=True)
    return results


def table(results: dict[str, dict[str, Any] | str]) -> str:
    """All cells, those refused below."""
    made = {name: x for name, x in results.items() if not isinstance(x, str)}
    lines = [_log.table(HEADER, [row(name, x) for name, x in made.items()])]
    held = sum(honest(x) for x in made.values())
    lines.append(
        f"{held} of {len(made)} cells hold: coverage in {COVERED[0]}-{COVERED[1]}, worst "
        f"coordinate at least {WORST:.2f} (or what chance gives with few fits)."
    )
    refused = {name: x for name, x in results.items() if isinstance(x, str)}
    return "\n".join(lines + [f"REFUSED {name}: {x}" for name, x in refused.items()])
