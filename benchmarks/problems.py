"""Frozen problems: the peers' tasks, for reports, and simulated ones, for tuning defaults.

The two lists share nothing. A figure that is reported on :data:`PEER_TASKS` (or on Adult's test
split) says something only as long as no default was chosen there; defaults are chosen on
:data:`DEVELOPMENT_PROBLEMS` (and rows held out of Adult's training split,
``benchmarks.development``). Both are frozen: to change one is to begin a new table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """A binary classification problem with the public bound on the norm of its rows."""

    name: str
    X_train: Array
    y_train: NDArray[np.int64]
    X_test: Array
    y_test: NDArray[np.int64]
    data_norm: float
    classes: tuple[int, int] = (0, 1)


def clip_rows(X: Array, norm: float) -> Array:
    """Shorten every row that is longer than `norm`, row by row: a record changes nobody else's."""
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    return X * np.minimum(1.0, norm / np.maximum(lengths, np.finfo(float).tiny))


# --- The peers' tasks -----------------------------------------------------------------------------
# Labels are drawn from the rows before the clip. Where the wording leaves an order of draws open
# it is features, weights, labels.


def breast_cancer(seed: int, norm: float = 30.0**0.5) -> Problem:
    """scikit-learn's breast-cancer table, 70/30, standardised with the whole table's moments."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    X, y = load_breast_cancer(return_X_y=True)
    X = clip_rows((X - X.mean(axis=0)) / X.std(axis=0), norm)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.3, stratify=y, random_state=seed
    )
    return Problem("breast-cancer", X_train, y_train, X_test, y_test, norm)


def digits_0(seed: int) -> Problem:
    """scikit-learn's digits, 0 against the rest, 70/30, pixels divided by 16."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, digit = load_digits(return_X_y=True)
    X, y = clip_rows(X / 16.0, 4.0), (digit == 0).astype(np.int64)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.3, stratify=y, random_state=seed
    )
    return Problem("digits-0", X_train, y_train, X_test, y_test, 4.0)


def synth_a(seed: int) -> Problem:
    """30000 + 10000 Gaussian rows, d=50, weights of norm 2.5 drawn by seed, intercept .5."""
    rng = np.random.RandomState(1000 + seed)
    X = rng.standard_normal((40_000, 50))
    w = rng.standard_normal(50)
    y = (rng.uniform(size=40_000) < expit(X @ (2.5 * w / np.linalg.norm(w)) + 0.5)).astype(np.int64)
    return _split("synth-A", X, y, 30_000, 1.2 * 50**0.5)


def synth_b(seed: int) -> Problem:
    """30000 + 10000 Gaussian rows, d=50, weights of norm 2 for all seeds, no intercept."""
    w = np.random.default_rng(7).standard_normal(50)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((40_000, 50))
    y = (rng.uniform(size=40_000) < expit(X @ (2.0 * w / np.linalg.norm(w)))).astype(np.int64)
    return _split("synth-B", X, y, 30_000, 7.0)


def _split(name: str, X: Array, y: NDArray[np.int64], n_train: int, norm: float) -> Problem:
    X = clip_rows(X, norm)
    return Problem(name, X[:n_train], y[:n_train], X[n_train:], y[n_train:], norm)


PEER_TASKS: dict[str, Callable[[int], Problem]] = {
    "breast-cancer": breast_cancer,
    "digits-0": digits_0,
    "synth-A": synth_a,
    "synth-B": synth_b,
}


# --- Simulated problems for development -----------------------------------------------------------
# A family draws rows given the generator, their number and the number of columns. It draws the
# constants of its columns (rates, loadings) from another generator, seeded by their number: the
# population is part of the problem, and only rows and weights change with the seed.

Family = Callable[[np.random.Generator, int, int], Array]


def _gaussian(rng: np.random.Generator, n: int, d: int) -> Array:
    return rng.standard_normal((n, d))


def _uniform(rng: np.random.Generator, n: int, d: int) -> Array:
    return rng.uniform(-1.0, 1.0, (n, d))


def _autoregressive(rng: np.random.Generator, n: int, d: int) -> Array:
    """Unit-variance columns, neighbours correlated .9."""
    X = rng.standard_normal((n, d))
    for j in range(1, d):
        X[:, j] = 0.9 * X[:, j - 1] + (1 - 0.9**2) ** 0.5 * X[:, j]
    return X


def _factors(rng: np.random.Generator, n: int, d: int) -> Array:
    """Three common factors and a little noise of each column's own: nearly collinear columns."""
    loadings = np.random.default_rng(d).standard_normal((3, d)) / 3**0.5
    return rng.standard_normal((n, 3)) @ loadings + 0.3 * rng.standard_normal((n, d))


def _heavy_tailed(rng: np.random.Generator, n: int, d: int) -> Array:
    """Student's t with three degrees of freedom, unit variance: no bound holds."""
    return rng.standard_t(3, (n, d)) / 3**0.5


def _scales(rng: np.random.Generator, n: int, d: int) -> Array:
    """Gaussian columns with standard deviations from 1 down to .03: no standardisation."""
    return rng.standard_normal((n, d)) * np.geomspace(1.0, 0.03, d)


def _one_hot(rng: np.random.Generator, n: int, d: int) -> Array:
    """Five categorical variables with unequal levels, one-hot encoded: rows of norm sqrt(5)."""
    sizes = [len(part) for part in np.array_split(np.arange(d), 5)]
    population = np.random.default_rng(d)
    blocks = []
    for size in sizes:
        level = rng.choice(size, n, p=population.dirichlet(np.full(size, 0.7)))
        blocks.append(np.eye(size)[level])
    return np.hstack(blocks)


def _sparse_binary(rng: np.random.Generator, n: int, d: int) -> Array:
    """Presence of words, with rates that fall as a power of the rank."""
    rates = 0.5 / np.arange(1, d + 1) ** 0.6
    return (rng.uniform(size=(n, d)) < rates).astype(float)


def _skewed(rng: np.random.Generator, n: int, d: int) -> Array:
    """Amounts of money: mostly zero, else lognormal, divided by a bound far above the usual."""
    amounts = rng.lognormal(0.0, 1.0, (n, d)) * (rng.uniform(size=(n, d)) < 0.3)
    return np.minimum(amounts / 10.0, 1.0)


def _census(rng: np.random.Generator, n: int, d: int) -> Array:
    """Categorical variables beside four numbers in [0, 1]."""
    return np.hstack([_one_hot(rng, n, d - 4), rng.beta(2.0, 3.0, (n, 4))])


@dataclass(frozen=True)
class _Recipe:
    """What makes a development problem; `simulate` turns it and a seed into rows."""

    family: Family
    n_train: int
    d: int
    data_norm: float
    signal: float = 1.5  # standard deviation of the true logit over the population
    prevalence: float = 0.5  # of label 1
    support: float = 1.0  # share of the weights that are not zero
    flipped: float = 0.0  # share of the labels that are drawn by a fair coin instead
    curvature: float = 0.0  # of a quadratic term that a linear model cannot follow


def _simulate(name: str, recipe: _Recipe, seed: int) -> Problem:
    n_test = min(max(recipe.n_train, 5_000), 20_000)
    rng = np.random.default_rng([seed, recipe.n_train, recipe.d])
    w = rng.standard_normal(recipe.d) * (rng.uniform(size=recipe.d) < recipe.support)
    w[0] = w[0] or 1.0  # A support that misses every column would leave nothing to learn.

    # Rows apart from the problem's own fix the scale and the intercept, which belong to the
    # population.
    reference = recipe.family(rng, 4_000, recipe.d)
    centre, spread = (reference @ w).mean(), (reference @ w).std()

    def logits(X: Array) -> Array:
        linear = (X @ w - centre) / spread
        return recipe.signal * (linear + recipe.curvature * (linear**2 - 1.0))

    def excess(b: float) -> float:
        return float(expit(logits(reference) + b).mean() - recipe.prevalence)

    intercept = brentq(excess, -50.0, 50.0)
    X = recipe.family(rng, recipe.n_train + n_test, recipe.d)
    y = rng.uniform(size=len(X)) < expit(logits(X) + intercept)
    coin = rng.uniform(size=len(X)) < recipe.flipped
    y = np.where(coin, rng.uniform(size=len(X)) < 0.5, y).astype(np.int64)
    n = recipe.n_train
    return Problem(name, X[:n], y[:n], X[n:], y[n:], recipe.data_norm)


# Norms are what somebody who knows the kind of data, and not the data, would declare: about 1.2
# sqrt(d) for standardised columns, exact where columns are bounded, and in the problems named so
# too large or too small. Rows are not clipped here: that is the estimator's work.
_RECIPES: dict[str, _Recipe] = {
    "gaussian-500x5": _Recipe(_gaussian, 500, 5, 2.7),
    "gaussian-1000x20-weak": _Recipe(_gaussian, 1_000, 20, 5.4, signal=0.5),
    "gaussian-5000x10-rare": _Recipe(_gaussian, 5_000, 10, 3.8, prevalence=0.05),
    "gaussian-10000x100": _Recipe(_gaussian, 10_000, 100, 12.0, signal=2.5),
    "gaussian-20000x30-loose": _Recipe(_gaussian, 20_000, 30, 20.0),
    "gaussian-20000x30-tight": _Recipe(_gaussian, 20_000, 30, 3.0),
    "gaussian-100000x200-sparse": _Recipe(_gaussian, 100_000, 200, 17.0, signal=2.0, support=0.1),
    "gaussian-1000000x20": _Recipe(_gaussian, 1_000_000, 20, 5.4),
    "uniform-2000x8-strong": _Recipe(_uniform, 2_000, 8, 8**0.5, signal=6.0),
    "uniform-50000x40-noisy": _Recipe(_uniform, 50_000, 40, 40**0.5, flipped=0.2),
    "uniform-10000x15-curved": _Recipe(_uniform, 10_000, 15, 15**0.5, curvature=0.4),
    "autoregressive-5000x50": _Recipe(_autoregressive, 5_000, 50, 8.5),
    "autoregressive-50000x100-weak": _Recipe(_autoregressive, 50_000, 100, 12.0, signal=0.7),
    "factors-3000x40": _Recipe(_factors, 3_000, 40, 8.0),
    "factors-30000x80-rare": _Recipe(_factors, 30_000, 80, 11.0, prevalence=0.1),
    "heavy-tailed-5000x20": _Recipe(_heavy_tailed, 5_000, 20, 5.4),
    "heavy-tailed-40000x60": _Recipe(_heavy_tailed, 40_000, 60, 9.3, signal=2.5),
    "scales-10000x25": _Recipe(_scales, 10_000, 25, 2.5),
    "one-hot-2000x30": _Recipe(_one_hot, 2_000, 30, 5**0.5),
    "one-hot-30000x100": _Recipe(_one_hot, 30_000, 100, 5**0.5, prevalence=0.25, signal=2.0),
    "one-hot-300000x50-weak": _Recipe(_one_hot, 300_000, 50, 5**0.5, signal=0.5),
    "sparse-binary-4000x150": _Recipe(_sparse_binary, 4_000, 150, 4.5, signal=2.0),
    "sparse-binary-60000x200-rare": _Recipe(_sparse_binary, 60_000, 200, 5.0, prevalence=0.08),
    "skewed-8000x12": _Recipe(_skewed, 8_000, 12, 12**0.5, prevalence=0.3),
    "census-15000x60": _Recipe(_census, 15_000, 60, 3.0, prevalence=0.25, signal=2.0),
    "census-80000x110": _Recipe(
        _census, 80_000, 110, 3.0, prevalence=0.2, signal=2.5, flipped=0.05
    ),
}

DEVELOPMENT_PROBLEMS: dict[str, Callable[[int], Problem]] = {
    name: partial(_simulate, name, recipe) for name, recipe in _RECIPES.items()
}
