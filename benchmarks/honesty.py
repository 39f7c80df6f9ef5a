"""Honesty of posteriors over a matrix of simulations: ``make bench-honesty``.

Mixtures, NumPyro models, rare events and hierarchies are in ``benchmarks.honesty_models``; the rest
of this page is of logistic regression.

A cell is a simulated problem at an epsilon. Each fit has its own rows, coefficients and labels. The
table has the coverage of 90% intervals (all coordinates with its standard error, worst coordinate,
intercept; all and intercept of the non-private posterior beside), rms z, width and CRPS over the
non-private posterior's, excess log-loss on fresh rows over the non-private posterior's, and seconds
of a fit. A truth drawn from the prior of the non-private posterior is covered by that exactly 90%
on average; elsewhere the non-private coverage says what the prior costs. The worst of d coordinates
is below 90% by chance too: by about 1.6 standard errors, sqrt(.09 / fits) each, for d = 10.

The non-private posterior is the normal distribution closest to the exact one in Kullback-Leibler
divergence (`reference`), given normal priors of scale `prior_scale` (1, if it is not a number). It
needs a few passes at any number of rows and columns, and agrees with Polya-Gamma Gibbs sampling
(``skdpbayes.reference.logistic_gibbs``), as the tests check.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import brentq
from scipy.special import expit, ndtr, softmax

from benchmarks import _log, honesty_models, honesty_networks
from benchmarks.honesty_models import LEVEL, WORST, least
from benchmarks.problems import clip_rows

Array = NDArray[np.float64]
Rows = Callable[[np.random.Generator, int, int], Array]

Z = 1.6448536269514722
COVERED = (0.86, 0.95)  # what coverage should be
N_FRESH, N_DRAWS = 2_000, 1_000
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_BLOCK = 50_000  # rows at a time


# --- Designs --------------------------------------------------------------------------------------


def normal(rng: np.random.Generator, n: int, d: int) -> Array:
    """Independent N(0, 1) columns."""
    return rng.standard_normal((n, d))


def uniform(rng: np.random.Generator, n: int, d: int) -> Array:
    """Columns of [-1, 1], as `BoundedScaler` returns them."""
    return rng.uniform(-1.0, 1.0, (n, d))


def autoregressive(rng: np.random.Generator, n: int, d: int) -> Array:
    """N(0, 1) columns; neighbours have correlation .9."""
    X = rng.standard_normal((n, d))
    for j in range(1, d):
        X[:, j] = 0.9 * X[:, j - 1] + math.sqrt(1 - 0.9**2) * X[:, j]
    return X


def one_hot(rng: np.random.Generator, n: int, d: int) -> Array:
    """Four categorical variables of skewed frequencies, and uniform numbers in a fifth of columns.

    The most frequent category of each variable is left out.
    """
    numbers = d // 5
    blocks = [rng.uniform(-1.0, 1.0, (n, numbers))]
    for part in np.array_split(np.arange(d - numbers), 4):
        frequencies = np.arange(1.0, len(part) + 2) ** -1.5
        categories = rng.choice(len(part) + 1, n, p=frequencies / frequencies.sum())
        blocks.append(np.eye(len(part) + 1)[categories, 1:])
    return np.hstack(blocks)


def unused(rng: np.random.Generator, n: int, d: int) -> Array:
    """Uniform rows in which the last column is zero, as that of a category that no row has."""
    X = rng.uniform(-1, 1, (n, d))
    X[:, -1] = 0
    return X


def lognormal(rng: np.random.Generator, n: int, d: int) -> Array:
    """Standardised lognormal columns: skewed."""
    e = math.e
    return (rng.lognormal(0.0, 1.0, (n, d)) - math.sqrt(e)) / math.sqrt((e - 1) * e)


def student(rng: np.random.Generator, n: int, d: int) -> Array:
    """Student t columns of three degrees of freedom and unit variance: heavy tails."""
    return rng.standard_t(3, (n, d)) / math.sqrt(3)


# --- Problems -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """How rows, coefficients and labels of a cell are drawn, and what is declared.

    Attributes
    ----------
    kind : str
        Design, as in the cell's name.
    rows : callable
    n, d : int
    epsilons : tuple of float
        One cell each.
    fits : int
        Fits of a cell, if not given.
    sd : float
        Standard deviation of true coefficients. 1 is that of the reference's prior, from which
        the intercept is drawn too.
    prevalence : float, optional
        Share of label 1, by the intercept.
    data_norm : float, optional
        Declared to the estimator. None: its default.
    shortened : bool
        Labels are drawn given rows shortened to `data_norm` (or ``sqrt(d)``), so that the model
        holds. Otherwise they are drawn given the rows as they are, and so is the non-private
        posterior: shortening may then bias.
    n_classes : int
        Beyond two, figures are of the contrasts with the first class.
    """

    kind: str
    rows: Rows
    n: int
    d: int
    epsilons: tuple[float, ...]
    fits: int = 100
    sd: float = 1.0
    prevalence: float | None = None
    data_norm: float | None = None
    shortened: bool = True
    n_classes: int = 2

    @property
    def name(self) -> str:
        """As in names of cells."""
        classes = "" if self.n_classes == 2 else f"-{self.n_classes}-classes"
        return f"{self.kind}{classes}-{self.n}x{self.d}"


def _one_hot(n: int, d: int, epsilons: tuple[float, ...], fits: int, **how: Any) -> Problem:
    """One-hot columns, with the norm that a schema of them declares."""
    how = {"kind": "one-hot", "data_norm": math.sqrt(4 + d // 5)} | how
    return Problem(rows=one_hot, n=n, d=d, epsilons=epsilons, fits=fits, **how)


PROBLEMS = [
    Problem("normal", normal, 300, 3, (0.5, 2.0, 8.0)),
    Problem("normal", normal, 500, 3, (0.5,)),
    Problem("normal", normal, 600, 20, (0.5, 2.0), 40),
    Problem("normal", normal, 600, 50, (2.0,), 40),
    Problem("normal", normal, 3_000, 10, (0.1, 0.5, 2.0, 50.0)),
    Problem("unshortened", normal, 3_000, 10, (0.5, 2.0), shortened=False),
    Problem("unshortened", normal, 100_000, 8, (1.0,), 40, shortened=False),
    Problem("normal", normal, 30_000, 50, (0.5, 2.0), 40, sd=0.3),
    Problem("normal", normal, 3_000, 100, (1.0,), 40, sd=0.2),
    Problem("normal", normal, 20_000, 200, (1.0, 8.0), 10, sd=0.15),
    Problem("strong", normal, 20_000, 20, (0.1, 0.3, 1.0), 50, sd=0.8),
    Problem("normal", normal, 100_000, 8, (0.3, 1.0, 3.0), 60),
    Problem("normal", normal, 300_000, 30, (1.0,), 16, sd=0.3),
    Problem("normal", normal, 1_000_000, 8, (1.0, 3.0), 20),
    Problem("ar", autoregressive, 3_000, 10, (0.5, 2.0)),
    Problem("ar", autoregressive, 3_000, 50, (0.5,), 40, sd=0.5),
    Problem("ar", autoregressive, 30_000, 20, (0.1, 1.0), 50),
    Problem("rare", normal, 3_000, 10, (0.5, 2.0, 8.0), 150, sd=0.3, prevalence=0.02),
    Problem("rare", normal, 3_000, 3, (0.5, 2.0), 150, sd=0.5, prevalence=0.02),
    Problem("rare", normal, 30_000, 10, (0.1, 2.0), 80, sd=0.3, prevalence=0.02),
    Problem("rare", normal, 300_000, 20, (0.5,), 16, sd=0.3, prevalence=0.02),
    Problem("tenth", normal, 3_000, 10, (0.1, 0.5), 60, sd=0.7, prevalence=0.1),
    Problem("large", uniform, 3_000, 4, (0.3, 1.0), 60, sd=3.0),
    Problem("large", uniform, 20_000, 8, (0.3, 1.0), 40, sd=3.0),
    Problem("steep", normal, 20_000, 8, (1.0,), 40, sd=2.0),
    Problem("steep", normal, 20_000, 3, (1.0, 3.0), 60, sd=5.0),
    _one_hot(3_000, 20, (0.5, 2.0), 100),
    _one_hot(30_000, 60, (0.1, 1.0), 30),
    _one_hot(30_000, 20, (1.0,), 50, kind="rare-one-hot", sd=0.5, prevalence=0.05),
    Problem("unused", unused, 5_000, 4, (1.0,), 40),
    Problem("lognormal", lognormal, 3_000, 10, (0.5, 2.0)),
    Problem("lognormal", lognormal, 30_000, 20, (1.0,), 50, sd=0.5),
    Problem("student", student, 3_000, 10, (0.5,)),
    Problem("student", student, 100_000, 30, (0.3,), 20, sd=0.5),
    Problem("normal", normal, 3_000, 5, (0.5, 2.0), 40, n_classes=3),
    Problem("normal", normal, 50_000, 5, (0.5,), 20, n_classes=6),
    Problem("one-hot", one_hot, 10_000, 10, (1.0,), 30, n_classes=4),
]  # fmt: skip


def cells() -> dict[str, tuple[Problem, float]]:
    """Problem and epsilon by name."""
    return {f"{p.name}-{epsilon:g}": (p, epsilon) for p in PROBLEMS for epsilon in p.epsilons}


class Data(NamedTuple):
    """A replicate of a problem.

    Attributes
    ----------
    truth : array of shape ((n_classes - 1) (d + 1),)
        Of each class but the first, whose weights are taken off; the intercept is last.
    X : array of shape (n, d)
    y : array of shape (n,)
    fresh : array of shape (N_FRESH, d)
    """

    truth: Array
    X: Array
    y: NDArray[np.int64]
    fresh: Array


def simulate(problem: Problem, seed: int) -> Data:
    """The same replicate for every solver and epsilon."""
    rng = np.random.default_rng([seed, problem.n, problem.d])
    d = problem.d
    norm = problem.data_norm or math.sqrt(d)

    def rows(n: int) -> Array:
        X = problem.rows(rng, n, d)
        return clip_rows(X, norm) if problem.shortened else X

    if problem.n_classes == 2:
        truth = np.append(problem.sd * rng.standard_normal(d), rng.standard_normal())
    else:
        weights = rng.standard_normal((problem.n_classes, d + 1))
        weights[:, :-1] *= problem.sd
        truth = (weights[1:] - weights[0]).ravel()
    if problem.prevalence is not None:
        share, linear = problem.prevalence, rows(20_000) @ truth[:-1]
        truth[-1] = brentq(lambda b: expit(linear + b).mean() - share, -50.0, 50.0)
    X, fresh = rows(problem.n), rows(N_FRESH)
    beyond = probabilities(X, truth)[:, :0:-1].cumsum(axis=1)  # of a class and those after it
    y = np.sum(rng.uniform(size=(problem.n, 1)) < beyond, axis=1)
    return Data(truth, X, y, fresh)


def probabilities(X: Array, weights: Array) -> Array:
    """Of all classes, (n, n_classes), given the weights of all but the first, or draws of them.

    Those of draws, of shape (draws, n_classes - 1, d + 1) ravelled, are averaged.
    """
    columns = np.column_stack([X, np.ones(len(X))])
    total: Any = 0.0
    draws = np.atleast_2d(weights)
    for one in draws:
        logits = columns @ one.reshape(-1, columns.shape[1]).T
        total = total + softmax(np.pad(logits, ((0, 0), (1, 0))), axis=1)
    return total / len(draws)


# --- Posteriors -----------------------------------------------------------------------------------


class Normal(NamedTuple):
    """A normal posterior: mean of shape (p,), covariance of shape (p, p)."""

    mean: Array
    covariance: Array

    @property
    def std(self) -> Array:
        """Standard deviations."""
        return np.sqrt(np.diag(self.covariance))


def reference(X: Array, y: NDArray[np.int64], prior_scale: float) -> Normal:
    """The normal distribution closest to the exact posterior; the intercept is last.

    At the optimum the expected gradient of the log posterior is zero, and the precision is minus
    the expected Hessian. Newton's method finds the mode first; the expectations are then one
    dimensional for each row, and fixed-point iteration converges since the covariance is small.
    """
    p = X.shape[1] + 1
    mean, covariance = np.zeros(p), np.zeros((p, p))
    prior = prior_scale**-2.0

    def expected(mean: Array, covariance: Array) -> tuple[Array, Array]:
        gradient, precision = -prior * mean, prior * np.eye(p)
        spread = covariance.any()
        for start in range(0, len(X), _BLOCK):
            part = slice(start, start + _BLOCK)
            rows = np.column_stack([X[part], np.ones(len(X[part]))])
            linear = rows @ mean
            if spread:
                sd = np.sqrt(np.einsum("ij,ij->i", rows @ covariance, rows))
                probability, slope = np.zeros(len(rows)), np.zeros(len(rows))
                for node, weight in zip(_NODES, _WEIGHTS, strict=True):
                    value = expit(linear + node * sd)
                    probability += weight * value
                    slope += weight * value * (1 - value)
            else:
                probability = expit(linear)
                slope = probability * (1 - probability)
            gradient += rows.T @ (y[part] - probability)
            precision += (rows * slope[:, None]).T @ rows
        return gradient, precision

    def step(mean: Array, covariance: Array) -> tuple[Array, Array, float]:
        gradient, precision = expected(mean, covariance)
        factor = cho_factor(precision)
        move = cho_solve(factor, gradient)
        # Newton decrement, in posterior standard deviations.
        length = math.sqrt(max(gradient @ move, 0.0))
        return mean + move / max(1.0, length / math.sqrt(len(X))), factor, length

    for _ in range(60):
        mean, factor, length = step(mean, covariance)
        if length < 1e-2:
            break
    for _ in range(60):
        covariance = cho_solve(factor, np.eye(p))
        mean, factor, length = step(mean, covariance)
        if length < 1e-3:
            break
    return Normal(mean, cho_solve(factor, np.eye(p)))


def reference_of_classes(
    X: Array, y: NDArray[np.int64], n_classes: int, prior_scale: float
) -> Normal:
    """Laplace's approximation, of the contrasts with the first class.

    Weights of all classes have independent priors, contrasts those that follow.
    """
    rows, k = np.column_stack([X, np.ones(len(X))]), n_classes - 1
    p = rows.shape[1]
    prior = np.kron(np.linalg.inv(np.eye(k) + 1), np.eye(p)) / prior_scale**2
    labels = (y[:, None] == np.arange(1, n_classes)).astype(float)
    mean = np.zeros(k * p)
    for _ in range(60):
        chance = probabilities(X, mean)[:, 1:]
        gradient = ((labels - chance).T @ rows).ravel() - prior @ mean
        slopes = [
            [
                (rows * (chance[:, i] * ((i == j) - chance[:, j]))[:, None]).T @ rows
                for j in range(k)
            ]
            for i in range(k)
        ]
        precision = np.block(slopes) + prior
        move = np.linalg.solve(precision, gradient)
        length = math.sqrt(gradient @ move)
        mean += move / max(1.0, length / math.sqrt(len(X)))
        if length < 1e-3:
            break
    return Normal(mean, np.linalg.inv(precision))


def normal_crps(mean: Array, std: Array, truth: Array) -> Array:
    """Continuous ranked probability score of normal distributions."""
    z = (truth - mean) / std
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))


def log_loss(predicted: Array, probability: Array) -> float:
    """Mean log-loss of predictions, expected over labels that have these probabilities.

    Both are of shape (n, n_classes), or (n,) for the second of two classes.
    """
    p, q = (np.column_stack([1 - x, x]) if x.ndim == 1 else x for x in (probability, predicted))
    return float(-(p * np.log(q.clip(1e-12))).sum(axis=1).mean())


class Scores(NamedTuple):
    """A posterior beside the truth, by coordinate: arrays of shape (p,)."""

    covered: NDArray[np.bool_]
    z: Array
    std: Array
    crps: Array


def normal_scores(mean: Array, std: Array, truth: Array) -> Scores:
    """Scores of normal marginals."""
    z = (mean - truth) / std
    return Scores(np.abs(z) < Z, z, std, normal_crps(mean, std, truth))


def draws_scores(draws: Array, truth: Array) -> Scores:
    """Scores of draws of shape (n, p)."""
    from skdpbayes.calibration import crps, marginal_coverage

    std = draws.std(axis=0)
    covered = marginal_coverage(draws[None], truth[None], LEVEL).coverage > 0.5
    z = (draws.mean(axis=0) - truth) / std
    return Scores(covered, z, std, crps(draws[None], truth[None])[0])


def scores(posterior: Any, truth: Array) -> Scores:
    """Scores of an estimator's posterior: by its moments if it is normal, else by draws."""
    from skdpbayes.posteriors import GaussianPosterior

    if isinstance(posterior, GaussianPosterior):
        return normal_scores(posterior.mean, posterior.std, truth)
    return draws_scores(posterior.sample(np.random.default_rng(0), 4_000), truth)


# --- Fits and figures -----------------------------------------------------------------------------


class Fit(NamedTuple):
    """Figures of one fit."""

    private: Scores
    plain: Scores
    excess: float
    seconds: float


def replicate(
    problem: Problem, epsilons: Sequence[float], seed: int, parameters: dict[str, Any]
) -> list[Fit | str]:
    """Fits of the same rows at several epsilons; the message of an estimator that refuses."""
    from skdpbayes import DPBayesianLogisticRegression

    data = simulate(problem, seed)
    declared = {} if problem.data_norm is None else {"data_norm": problem.data_norm}
    given = declared | parameters
    prior_scale = given.get("prior_scale", 1.0)
    rng, classes = np.random.default_rng(seed), problem.n_classes
    scale = prior_scale if isinstance(prior_scale, int | float) else 1.0
    if classes == 2:
        plain = reference(data.X, data.y, scale)
    else:
        plain = reference_of_classes(data.X, data.y, classes, scale)
    probability = probabilities(data.fresh, data.truth)
    root = np.linalg.cholesky(plain.covariance)
    draws = plain.mean + rng.standard_normal((N_DRAWS, len(plain.mean))) @ root.T
    floor = log_loss(probabilities(data.fresh, draws), probability)
    contrasts = np.kron(np.eye(classes)[1:] - np.eye(classes)[0], np.eye(problem.d + 1))
    found: list[Fit | str] = []
    for epsilon in epsilons:
        model = DPBayesianLogisticRegression(
            **{"epsilon": epsilon, "classes": list(range(classes)), "random_state": seed} | given
        )
        start = time.perf_counter()
        try:
            model.fit(data.X, data.y)
        except ValueError as error:
            found.append(str(error))
            continue
        seconds = time.perf_counter() - start
        excess = log_loss(model.predict_proba(data.fresh), probability) - floor
        found_posterior = model.posterior_ if classes == 2 else model.posterior_.mapped(contrasts)
        private = scores(found_posterior, data.truth)
        beside = normal_scores(plain.mean, plain.std, data.truth)
        found.append(Fit(private, beside, excess, seconds))
    return found


def summary(fits: Sequence[Fit]) -> dict[str, float]:
    """Figures of a cell."""
    private, plain = (
        Scores(*(np.stack(x) for x in zip(*(fit[k] for fit in fits), strict=True))) for k in (0, 1)
    )
    by_fit = private.covered.mean(axis=1)
    return {
        "fits": len(fits),
        "covered": float(private.covered.mean()),
        "error": float(by_fit.std(ddof=1) / math.sqrt(len(fits))) if len(fits) > 1 else math.nan,
        "worst": float(private.covered.mean(axis=0).min()),
        "least": least(*private.covered.shape),
        "intercept": float(private.covered[:, -1].mean()),
        "plain_covered": float(plain.covered.mean()),
        "plain_intercept": float(plain.covered[:, -1].mean()),
        "rms_z": float(np.sqrt((private.z**2).mean())),
        "intercept_mean_z": float(private.z[:, -1].mean()),
        "plain_intercept_mean_z": float(plain.z[:, -1].mean()),
        "width": float(private.std.mean() / plain.std.mean()),
        "crps": float(private.crps.mean() / plain.crps.mean()),
        "excess": float(np.mean([fit.excess for fit in fits])),
        "seconds": float(np.median([fit.seconds for fit in fits])),
    }


HEADER = [
    "cell", "fits", "covered", "+-", "worst", "intercept", "n.p.", "n.p. int.", "rms z",
    "int. z", "width", "CRPS", "log-loss", "s", "",
]  # fmt: skip


def honest(found: dict[str, float]) -> bool:
    """Whether coverage is within its limits."""
    return honesty_models.honest(found, COVERED)


def row(name: str, found: dict[str, float]) -> list[str]:
    """A line of the table; log-loss in thousandths."""
    shares = ("covered", "error", "worst", "intercept", "plain_covered", "plain_intercept")
    ratios = ("rms_z", "intercept_mean_z", "width", "crps")
    return [
        name,
        f"{found['fits']:.0f}",
        *(f"{found[k]:.3f}" for k in shares),
        *(f"{found[k]:.2f}" for k in ratios),
        f"{1e3 * found['excess']:.2f}",
        f"{found['seconds']:.2f}",
        "" if honest(found) else "OUT",
    ]


def run(
    names: Sequence[str], seeds: int | None, parameters: dict[str, Any], report: Callable[..., None]
) -> dict[str, dict[str, float] | str]:
    """Figures of cells, or the message of an estimator that refuses, as `report` gets them."""
    known = cells()
    by_problem: dict[Problem, list[str]] = {}
    for name in names:
        by_problem.setdefault(known[name][0], []).append(name)
    results: dict[str, dict[str, float] | str] = {}
    for problem, group in by_problem.items():
        epsilons = [known[name][1] for name in group]
        fits: list[list[Fit | str]] = []
        for seed in range(seeds or problem.fits):
            fits.append(replicate(problem, epsilons, seed, parameters))
            if all(isinstance(fit, str) for fit in fits[-1]):
                break
        for name, found in zip(group, zip(*fits, strict=True), strict=True):
            refused = [fit for fit in found if isinstance(fit, str)]
            made = [fit for fit in found if isinstance(fit, Fit)]
            results[name] = refused[0] if refused else summary(made)
            report(name, results[name])
    return results


def table(results: dict[str, dict[str, float] | str]) -> str:
    """All cells, those refused below."""
    rows = [row(name, x) for name, x in results.items() if not isinstance(x, str)]
    text = _log.table(HEADER, rows)
    out = [name for name, x in results.items() if not isinstance(x, str) and not honest(x)]
    text += (
        f"\n{len(rows) - len(out)} of {len(rows)} cells hold: coverage in {COVERED[0]}-{COVERED[1]}"
        f", worst coordinate at least {WORST:.2f} (or what chance gives with few fits)."
    )
    for name, x in results.items():
        if isinstance(x, str):
            text += f"\nREFUSED {name}: {x}"
    return text


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """``["prior_scale=3", "solver=vips"]`` as parameters; words that are no literals are text."""
    parameters: dict[str, Any] = {}
    for word in " ".join(words).split():
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"a parameter must read name=value, got {word!r}.")
        try:
            parameters[name] = math.inf if value == "inf" else ast.literal_eval(value)
        except (ValueError, SyntaxError):
            parameters[name] = value
    return parameters


def chosen(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Names that equal one of the words, or begin with it and a hyphen."""
    found = [n for n in names if any(n == word or n.startswith(word + "-") for word in words)]
    for word in words:
        if not any(name == word or name.startswith(word + "-") for name in names):
            raise ValueError(f"no cell is named {word!r}: --list prints the names.")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--solver",
        help="of logistic regression, and no other cells unless named (default: its own)",
    )
    parser.add_argument("--seeds", type=int, help="fits of every cell (default: by cell)")
    parser.add_argument(
        "--cells", nargs="+", metavar="CELL", help="names, or beginnings such as mixture-2sd"
    )
    parser.add_argument(
        "--parameters", nargs="+", default=[], help='of the estimator: "prior_scale=3 n_steps=100"'
    )
    parser.add_argument("--json", type=Path, help="file to write figures to")
    parser.add_argument("--list", action="store_true", help="print names of cells only")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join([*cells(), *honesty_models.cells(), *honesty_networks.cells()]))
        return
    known = [*cells(), *honesty_models.cells(), *honesty_networks.cells()]
    try:
        of_solver = list(cells()) if options.solver else known
        names = chosen(options.cells, known) if options.cells else of_solver
    except ValueError as error:
        parser.error(str(error))
    parameters = parsed(options.parameters)
    logistic = [name for name in names if name in cells()]
    others = [name for name in names if name in honesty_models.cells()]
    networks = [name for name in names if name in honesty_networks.cells()]
    results: dict[str, Any] = {}
    if logistic:
        own = parameters if options.solver is None else parameters | {"solver": options.solver}
        results |= of_logistic_regression(logistic, options.seeds, own)
    if others:
        found = honesty_models.run(others, options.seeds, parameters)
        print("\n90% intervals; width and CRPS by site, in its unit.\n")
        print(honesty_models.table(found))
        results |= found
    if networks:
        of_networks = honesty_networks.run(networks, options.seeds, parameters)
        print("\nECE: of the most probable class, in 15 bins; excess: over the true law.\n")
        print(honesty_networks.table(of_networks))
        results |= of_networks
    if options.json is not None:
        given = parameters if options.solver is None else parameters | {"solver": options.solver}
        record = {**_log.context(), "parameters": repr(given), "cells": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def of_logistic_regression(
    names: Sequence[str], seeds: int | None, parameters: dict[str, Any]
) -> dict[str, dict[str, float] | str]:
    """Run cells, and print their lines and the table."""

    from sklearn.exceptions import ConvergenceWarning

    from skdpbayes.privacy import PrivacyLeakWarning

    def report(name: str, found: dict[str, float] | str) -> None:
        print("  ".join([name, found] if isinstance(found, str) else row(name, found)), flush=True)

    print("  ".join(HEADER))
    with warnings.catch_warnings():
        # About seeds, which are not the data's; about the default delta, for many rows; and about
        # chains, whose coverage is printed.
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        warnings.filterwarnings("ignore", "delta=", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        results = run(names, seeds, parameters, report)
    print(
        "\n90% intervals; n.p.: non-private; int.: intercept; width and CRPS over the non-private "
        "posterior's;\nexcess log-loss in thousandths; seconds: median fit.\n"
    )
    print(table(results))
    return results


if __name__ == "__main__":
    main()
