"""The estimators that all tests read, each under each solver that it offers.

A new estimator is one entry of `ENTRIES`: the grid, the contract, the kill matrix, the audit, the
fuzz test and scikit-learn's checks read it. A new solver of an estimator is there without one.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import skdpbayes
from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBayesianMLPClassifier,
    DPBayesianMLPRegressor,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGammaExponential,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
    DPLatentDirichletAllocation,
    DPNumPyroModel,
    DPSigmoidBeliefNet,
    DPVariationalAutoencoder,
    preprocessing,
)
from skdpbayes.estimators._base import PrivateEstimator, solvers_of
from skdpbayes.preprocessing import DPStandardScaler

N = 331  # rows; no other size in a fit is as large
QUICK = {"n_steps": 20, "sampling_rate": 0.3}
ONE_ROUND = ("vips",)  # solvers that take all rows, and neither steps nor a sampling rate


def public_estimators() -> list[type]:
    """Every private estimator that users are offered."""
    modules = (skdpbayes, preprocessing)
    offered = [getattr(module, name) for module in modules for name in module.__all__]
    return [cls for cls in offered if isinstance(cls, type) and issubclass(cls, PrivateEstimator)]


def default_solver(cls: type[PrivateEstimator]) -> str:
    """The solver of an estimator that nobody chose one for, and of few columns."""
    choice = inspect.signature(cls).parameters.get("solver")
    if choice is None:
        return solvers_of(cls)[0]
    return "na-dpvi" if choice.default == "auto" else choice.default


def sampling_solvers(cls: type = DPBayesianLogisticRegression) -> list[str]:
    """Solvers of an estimator that take steps, each with a batch of its own."""
    return [solver for solver in solvers_of(cls) if solver not in ONE_ROUND]


# Tables. Rows and responses that make sense to every model, none of which looks like another.


def numbers(rng, n):
    return rng.uniform(0.1, 2.9, size=(n, 2))


def codes(rng, n):
    return np.floor(rng.uniform(0.1, 2.9, size=(n, 1)))


def number_and_group(rng, n):
    X = numbers(rng, n)
    X[:, 1] = np.floor(X[:, 1])
    return X


class Hostile:
    """A cell that objects to everything, by what no handler of errors catches."""

    def __getattr__(self, name):
        raise KeyboardInterrupt(name)

    def __hash__(self):
        raise SystemExit("hash")

    def __eq__(self, other):
        raise KeyboardInterrupt("eq")

    def __float__(self):
        raise GeneratorExit("float")


# NumPyro models


def poisson(x, y=None):
    """A regression of counts."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def normal(x):
    """A density, one of whose parameters is positive."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(mean, spread).expand([2]).to_event(1), obs=x)


def factors(x, y=None):
    """One factor whose loading is a point."""
    loading = numpyro.param("loading", 0.5)
    with numpyro.plate("data", len(x)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        law = dist.Normal(loading * z[:, None], 1.0).expand([len(x), x.shape[1]])
        numpyro.sample("x", law.to_event(1), obs=x)


def encoder(x, y=None):
    """An amortised guide of `factors`."""
    weight = numpyro.param("weight", 0.1)
    with numpyro.plate("data", len(x)):
        numpyro.sample("z", dist.Normal(weight * x.sum(axis=1), 0.5))


def regression(x, y=None):
    """A linear regression that says as scikit-learn's checks ask what is wrong with a shape."""
    if x.ndim != 2:
        raise ValueError("Expected 2D array, got 1D array instead. Reshape your data.")
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def posterior_mean(fitted):
    return fitted.posterior_.mean


@dataclass(frozen=True)
class Entry:
    """An estimator as tests use it.

    Attributes
    ----------
    name : str
        In the ids of tests.
    cls : type
    model : str or mapping
        Class of the model that its fits plan, or one for each solver.
    parameters : mapping
        What it must be told; nothing that is for speed.
    table : callable
        Rows, of a generator of random numbers and their number.
    supervised : bool
        Whether `y` counts: labels zero and one, which every supervised estimator takes.
    only : tuple of str
        Solvers of an entry that stands beside another one of the same estimator. Slow in the grid.
    probed : tuple of str, optional
        Solvers under which tests of every fit run (`every_fit`). None: the default one.
    slow_in_grid : tuple of str
        Solvers that take long there, or have tests of their own.
    slow : bool
        Whether tests of every fit are slow.
    checked : mapping, optional
        Parameters in scikit-learn's checks, which bring rows of their own. None: not checked there.
    private_size : mapping, optional
        Parameters of a fit whose number of rows may be private. None: those of a solver that samples.
    learnt : callable
        Array that a fit sets, and that every row moves.
    smooth : tuple of int
        Of each column, 1 if its values may be any numbers, 0 if they are codes.
    """

    name: str
    cls: type
    model: str | Mapping[str, str]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    table: Callable[[np.random.Generator, int], np.ndarray] = numbers
    supervised: bool = False
    only: tuple[str, ...] = ()
    probed: tuple[str, ...] | None = None
    slow_in_grid: tuple[str, ...] = ("dpvi", "na-dpvi")
    slow: bool = False
    checked: Mapping[str, Any] | None = field(default_factory=dict)
    private_size: Mapping[str, Any] | None = None
    learnt: Callable[[Any], np.ndarray] = posterior_mean
    smooth: tuple[int, ...] = (1, 1)

    @property
    def solvers(self) -> tuple[str, ...]:
        return self.only or solvers_of(self.cls)


@cache
def _table(make, n):
    """Made once; the labels come after the rows."""
    rng = np.random.default_rng(0)
    return make(rng, n), rng.integers(0, 2, n)


@dataclass(frozen=True)
class Case:
    """An entry under one solver."""

    entry: Entry
    solver: str
    rows_each: int = 1
    """Rows of a record, which is a person if there are several."""

    @property
    def id(self) -> str:
        usual = len(self.entry.only) == 1 or self.solver == default_solver(self.cls)
        return self.entry.name if usual else f"{self.entry.name}, {self.solver}"

    @property
    def cls(self) -> type:
        return self.entry.cls

    @property
    def model(self) -> str:
        """Class of the model that a fit plans."""
        model = self.entry.model
        return model if isinstance(model, str) else model[self.solver]

    @property
    def samples(self) -> bool:
        """Whether it takes steps, each with a batch of its own."""
        return self.solver not in ONE_ROUND

    def has(self, parameter: str) -> bool:
        return parameter in inspect.signature(self.cls).parameters

    def as_users_have_it(self, **changes):
        """The estimator with what it must be told, and nothing that is for speed."""
        solver = {"solver": self.solver} if self.has("solver") else {}
        return self.cls(**(solver | dict(self.entry.parameters) | changes))

    @property
    def quick(self) -> Mapping[str, Any]:
        """Parameters of a quick fit."""
        if self.model == "WhitenedLogistic" and self.solver == "sgld":
            return QUICK | {"n_steps": 401, "epsilon": 2.0}  # a chain that has to mix
        if self.entry.name == "topics" and self.solver == "sgld" and self.rows_each > 1:
            return QUICK | {"epsilon": 20.0}  # with more noise its persons are too few
        if self.model == "Classifier":
            return QUICK | {"epsilon": 20.0}  # with more noise no round is on the outputs
        return QUICK if self.samples else {}

    def make(self, **changes):
        """The estimator with few steps, few draws and a seed."""
        draws = {"n_posterior_samples": 20} if self.has("n_posterior_samples") else {}
        persons = {"max_rows_per_person": self.rows_each} if self.rows_each > 1 else {}
        return self.as_users_have_it(
            **({"random_state": 0} | draws | self.quick | persons | changes)
        )

    @property
    def least(self) -> int:
        """Records of a small table that can be fitted."""
        return 160 if self.model == "WhitenedLogistic" and self.solver == "sgld" else 40

    @property
    def fewest_steps(self) -> int:
        """Steps that a fit must have: a chain with released curvature has to mix."""
        return 401 if self.least > 40 else 1

    def groups(self, X):
        """Persons of the rows, if records are persons."""
        return None if self.rows_each == 1 else np.arange(len(X)) // self.rows_each

    def plan(self, n: int = N, **changes):
        """Plan of a fit of `data`, from public numbers alone."""
        X, y = self.data(0)
        density = self.cls is DPNumPyroModel and y is None  # which `plan` takes by its arguments
        shape = {"fields": {"x": X}} if density else {"n_features": X.shape[1]}
        return self.make(**changes).plan(n, **shape)

    def private_size(self) -> dict[str, Any]:
        """Changes under which the number of rows may be private."""
        if self.entry.private_size is not None:
            return {"adjacency": "add_remove", **self.entry.private_size}
        first, *rest = sampling_solvers(self.cls)
        return {"adjacency": "add_remove", "solver": "dpvi" if "dpvi" in rest else first, **QUICK}

    def rows(self, n: int = N):
        """Rows, and labels whether they count or not; copies."""
        X, y = _table(self.entry.table, n)
        return X.copy(), y.copy()

    def data(self, n: int = N):
        """What the estimator is fitted to."""
        X, y = self.rows(n)
        return X, y if self.entry.supervised else None

    def null(self, n: int = N):
        """As `data`, of null records alone."""
        X, y = self.data(n)
        return np.full_like(X, np.nan), y


QUICK_CHECKS = {
    "guide": "mean_field",
    "n_steps": 5,
    "clipping_norm": 1.0,
    "n_posterior_samples": 10,
}
BOUNDS = ((-3, 3), (-3, 3))  # of columns and of the response
TWO = {"n_components": 2}

ENTRIES = [
    Entry(
        "logistic",
        DPBayesianLogisticRegression,
        dict.fromkeys(("na-dpvi", "sgld"), "WhitenedLogistic")
        | dict.fromkeys(("dpvi", "vips"), "LogisticRegression"),
        {"classes": [0, 1]},
        supervised=True,
        slow_in_grid=("dpvi", "na-dpvi", "vips"),
        probed=("na-dpvi", "vips"),
        checked={
            "solver": "dpvi",
            "guide": "mean_field",
            "n_steps": 100,
            "n_posterior_samples": 100,
        },
    ),
    Entry(
        "linear",
        DPBayesianLinearRegression,
        {"na-dpvi": "RescaledLinear", "vips": "LinearSums"},
        {"bounds": BOUNDS},
        supervised=True,
        probed=("na-dpvi", "vips"),
        checked={"epsilon": 100.0, "n_posterior_samples": 100},
    ),
    Entry("gamma", DPGammaExponential, "GammaExponential", checked={"n_posterior_samples": 100}),
    Entry("beta", DPBetaBernoulli, "BetaBernoulli", checked={"n_posterior_samples": 100}),
    Entry(
        "dirichlet",
        DPDirichletCategorical,
        "DirichletCategorical",
        {"categories": [0, 1, 2]},
        codes,
        checked=None,  # their tables have no categories
        smooth=(0,),
    ),
    Entry(
        "mixture",
        DPGaussianMixture,
        "GaussianMixture",
        {"bounds": (-3, 3), "covariance_type": "spherical", **TWO},
        probed=(),
        slow_in_grid=("dpvi", "na-dpvi", "sgld", "vips"),
        checked={"n_posterior_samples": 100},
    ),
    Entry(
        "mixture, means given",
        DPGaussianMixture,
        "GaussianMixture",
        {
            "bounds": (-3, 3),
            "covariance_type": "diag",
            "means_init": [[0, 0], [2, 2]],
            **TWO,
        },
        only=("vips",),
        slow=True,
        checked=None,
        private_size={"sampling_rate": 0.3},
    ),
    Entry(
        "belief network",
        DPSigmoidBeliefNet,
        "SigmoidBeliefNet",
        TWO,
        slow=True,
        checked={"n_posterior_samples": 10, **TWO},
        private_size={"sampling_rate": 0.3},
    ),
    Entry(
        "topics",
        DPLatentDirichletAllocation,
        "LatentDirichletAllocation",
        TWO,
        slow_in_grid=("dpvi", "na-dpvi", "sgld", "vips"),
        checked={"n_posterior_samples": 10, **TWO},
        private_size={"sampling_rate": 0.3},
    ),
    Entry(
        "hierarchical",
        DPHierarchicalLogisticRegression,
        {"na-dpvi": "GroupedLogistic"} | dict.fromkeys(("dpvi", "sgld"), "Reduced"),
        {"groups": 3, "classes": [0, 1]},
        number_and_group,
        supervised=True,
        slow=True,  # a program, as "NumPyro" is
        checked={"groups": 3, "group_column": 0, **QUICK_CHECKS},
        smooth=(1, 0),
    ),
    Entry(
        "NumPyro",
        DPNumPyroModel,
        "NumPyroModel",
        {"model": poisson},
        supervised=True,
        slow_in_grid=("dpvi", "na-dpvi", "sgld"),
        checked={"model": regression, **QUICK_CHECKS},
    ),
    Entry(
        "NumPyro, own guide",
        DPNumPyroModel,
        "NumPyroModel",
        {"model": poisson, "guide": AutoNormal(poisson)},
        supervised=True,
        only=("dpvi",),
        slow=True,
        checked=None,
    ),
    Entry(
        "NumPyro, density",
        DPNumPyroModel,
        "NumPyroModel",
        {"model": normal},
        only=("dpvi", "na-dpvi", "sgld"),
        probed=(),
        checked=None,
    ),
    Entry(
        "NumPyro, amortised guide",
        DPNumPyroModel,
        "Amortised",
        {"model": factors, "guide": encoder},
        only=("dpvi",),
        slow=True,
        checked=None,
        learnt=lambda fitted: fitted.params_["loading"],
    ),
    Entry(
        "network",
        DPBayesianMLPClassifier,
        "Classifier",
        {"hidden_layer_sizes": (3,), "classes": [0, 1]},
        supervised=True,
        slow=True,
        checked={
            "hidden_layer_sizes": (10,),
            "epsilon": 100.0,
            "n_steps": 300,
            "n_posterior_samples": 10,
        },
    ),
    Entry(
        "network, regression",
        DPBayesianMLPRegressor,
        "Regressor",
        {"hidden_layer_sizes": (3,), "bounds": BOUNDS},
        supervised=True,
        probed=(),
        checked={
            "hidden_layer_sizes": (10,),
            "epsilon": 100.0,
            "n_steps": 300,
            "n_posterior_samples": 10,
        },
    ),
    Entry(
        "network, regression, sgnht",
        DPBayesianMLPRegressor,
        "Regressor",
        {"hidden_layer_sizes": (3,), "bounds": BOUNDS, "sampler": "sgnht"},
        supervised=True,
        only=("sgld",),
        checked=None,
        private_size={"solver": "dpvi", "sampler": "sgld", **QUICK},
    ),
    Entry(
        "auto-encoder",
        DPVariationalAutoencoder,
        "Autoencoder",
        {"hidden_layer_sizes": (3,), **TWO},
        slow=True,
        checked={"hidden_layer_sizes": (5,), "n_steps": 5, **TWO},
        learnt=lambda fitted: fitted.coefs_[-1],
    ),
    Entry(
        "scaler",
        DPStandardScaler,
        "ColumnMoments",
        {"bounds": (-3, 3)},
        checked=None,  # with the other transformers
        private_size={},
        learnt=lambda fitted: fitted.mean_,
    ),
]
CASES = [Case(entry, solver) for entry in ENTRIES for solver in entry.solvers]


def cases(*, cls: type | None = None, solver: str | None = None) -> list[Case]:
    """Cases of an estimator, under a solver, or all of them."""
    return [case for case in CASES if cls in (None, case.cls) and solver in (None, case.solver)]


def _is_probed(case: Case) -> bool:
    probed = case.entry.probed
    if probed is None:
        probed = case.entry.only[:1] or (default_solver(case.cls),)
    return case.solver in probed


EVERY_FIT = [case for case in CASES if _is_probed(case)]


def named(name: str) -> Case:
    """The case with an id."""
    (found,) = (case for case in CASES if case.id == name)
    return found


BY_PERSON = [dataclasses.replace(case, rows_each=3) for case in CASES]
"""The same, where a record is a person of up to three rows."""


def every_fit(
    *,
    quick: bool = False,
    only: Callable[[Case], bool] = lambda case: True,
    slow: tuple[str, ...] = (),
):
    """Parameters of a test of what holds for each fit: a case or two of each estimator.

    With `quick`, cases that are slow are left out; else they are marked. `slow` names entries or
    cases that are so in this test alone.
    """
    return [
        pytest.param(case, id=case.id, marks=[pytest.mark.slow] if is_slow else [])
        for case in EVERY_FIT
        for is_slow in [case.entry.slow or not {case.id, case.entry.name}.isdisjoint(slow)]
        if only(case) and not (quick and is_slow)
    ]


def slow_but(values: Iterable[Any], *always: Any) -> list[Any]:
    """Parameters of a test that takes long: those of `always` run in every run of the tests."""
    return [
        pytest.param(value, marks=[] if value in always else [pytest.mark.slow]) for value in values
    ]


def mapped(function, **axes):
    """`jax.vmap`, compiled: operation by operation each one is a program."""
    return jax.jit(jax.vmap(function, **axes))
