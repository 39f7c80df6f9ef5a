"""The DP-ADVI poster (Jälkö, Honkela and Kaski): accuracy on Abalone against epsilon.

The poster states: 4177 rows of eight features in two classes, 80% of them for training, z-scores,
independent normal guides, batches at q=.02, ten runs, gradients clipped to c, noise of standard
deviation ``2 c sigma`` with sigma from advanced composition. It has no numbers, and does not state
what follows, marked with a star in the tables: classes (here 10 rings or more), 1000 steps of Adam,
delta 1e-3 (both as in the paper that came of it), and the thresholds and batch sizes of the two
panels.

Z-scores here use means and standard deviations of the data's documentation (``abalone.names``),
which are public.
"""

from __future__ import annotations

import math
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks.papers._entry import (
    Entry,
    Found,
    Order,
    Table,
    at_home,
    by_level,
    curves,
    panels,
    plot,
)
from benchmarks.problems import Problem

Array = NDArray[np.float64]

DELTA, RATE, STEPS, LEARNING_RATE = 1e-3, 0.02, 1000, 0.02
LEVELS = (0.1, 0.3, 1.0, 3.0)
CLIPS, RATES = (0.3, 1.0, 5.0), (0.005, 0.02, 0.1)
# Of length, diameter, height and the weights (whole, shucked, viscera, shell), by abalone.names.
MEANS = (0.524, 0.408, 0.140, 0.829, 0.359, 0.181, 0.239)
DEVIATIONS = (0.120, 0.099, 0.042, 0.490, 0.222, 0.110, 0.139)
SEXES = {"M": 1.0, "I": 0.0, "F": -1.0}
SHAPES = {"advanced": ":", "exact": "--"}
RINGS = 10  # from here on an abalone is in the second class


@cache
def table() -> tuple[Array, NDArray[np.int64]]:
    """All rows, in public units, and their classes."""
    import pandas as pd

    frame = pd.read_csv(at_home("abalone.csv.gz"), keep_default_na=False)
    sizes = (frame.iloc[:, 1:8].to_numpy(float) - MEANS) / DEVIATIONS
    rows = np.column_stack([frame["sex"].map(SEXES).to_numpy(float), sizes])
    return rows, (frame["rings"].to_numpy() >= RINGS).astype(np.int64)


def abalone(seed: int) -> Problem:
    """80% of the rows for training, by seed."""
    X, y = table()
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = np.split(order, [round(0.8 * len(y))])
    return Problem("abalone", X[train], y[train], X[test], y[test], math.sqrt(X.shape[1]))


def advanced_epsilon(sigma: float, delta: float, rate: float, steps: int) -> float:
    """Epsilon of the poster's formula, with half of delta for advanced composition."""
    slack = delta / 2
    one = math.sqrt(2 * math.log(1.25 * steps * rate / (delta - slack))) / sigma
    amplified = math.log1p(rate * math.expm1(one)) if one < 700 else one + math.log(rate)
    drift = math.expm1(amplified) if amplified < 700 else math.inf
    return math.sqrt(2 * steps * math.log(1 / slack)) * amplified + steps * amplified * drift


@cache
def advanced_noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Noise multiplier over the clipping threshold, of which two rows' distance is the double."""

    def excess(log_sigma: float) -> float:
        found = advanced_epsilon(math.exp(log_sigma), delta, rate, steps)
        return min(math.log(found / epsilon), 50.0)

    return 2 * math.exp(brentq(excess, math.log(0.05), math.log(1e6)))


@cache
def exact_noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The same by exact accounting, for a row that is replaced by another."""
    from skdpbayes.privacy import calibrate_noise

    return calibrate_noise(epsilon, delta, rate, steps, adjacency="replace_one").noise_multiplier


def advi(
    problem: Problem,
    clip: float,
    rate: float,
    noise: float,
    rng: np.random.Generator,
    steps: int = STEPS,
) -> Array:
    """The poster's algorithm; means of the coefficients and, last, of the intercept.

    Each record's gradient of the bound with respect to means and ``u``, ``sd = softplus(u)``, is
    clipped, its share of prior and entropy included. One draw serves a batch.
    """
    X = np.column_stack([problem.X_train, np.ones(len(problem.X_train))])
    y, n = problem.y_train, len(problem.X_train)
    d = X.shape[1]
    phi = np.concatenate([np.zeros(d), np.full(d, math.log(math.expm1(0.1)))])
    first, second = np.zeros(2 * d), np.zeros(2 * d)
    for step in range(1, steps + 1):
        batch = np.flatnonzero(rng.random(n) < rate)
        mean, u = phi[:d], phi[d:]
        sd, e = np.logaddexp(0, u), rng.standard_normal(d)
        theta = mean + sd * e
        of_mean = (y[batch] - expit(X[batch] @ theta))[:, None] * X[batch] - theta / n
        gradients = np.hstack([of_mean, expit(u) * (of_mean * e + 1 / (n * sd))])
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
        total = (gradients * np.minimum(1, clip / np.maximum(lengths, 1e-300))).sum(axis=0)
        total = (total + noise * clip * rng.standard_normal(2 * d)) / rate
        first, second = 0.9 * first + 0.1 * total, 0.999 * second + 0.001 * total**2
        scaled = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        phi = phi + LEARNING_RATE * scaled
    return phi[:d]


def accuracy(problem: Problem, coefficients: Array) -> float:
    """Of the held-out rows."""
    decision = problem.X_test @ coefficients[:-1] + coefficients[-1]
    return float(((decision > 0) == problem.y_test).mean())


def of_poster(
    problem: Problem, epsilon: float, seed: int, clip: float, rate: float, noise
) -> float:
    """Accuracy of the poster's algorithm."""
    multiplier = 0.0 if math.isinf(epsilon) else noise(epsilon, DELTA, rate, STEPS)
    rng = np.random.default_rng([seed, 1])
    return accuracy(problem, advi(problem, clip, rate, multiplier, rng))


def of_ours(problem: Problem, epsilon: float, seed: int, **parameters: object) -> float:
    """Accuracy of our estimator, for a row that is replaced by another."""
    from skdpbayes import DPBayesianLogisticRegression

    model = DPBayesianLogisticRegression(
        epsilon, DELTA, classes=[0, 1], adjacency="replace_one", random_state=seed, **parameters
    )
    return float(model.fit(problem.X_train, problem.y_train).score(problem.X_test, problem.y_test))


def not_private(problem: Problem) -> float:
    """Accuracy of scikit-learn's logistic regression."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(problem.X_train, problem.y_train)
    return float(model.score(problem.X_test, problem.y_test))


def fig1(order: Order) -> Found:
    """Both panels."""
    table()  # before anything is fitted
    seeds = order.fits(5, 10)
    clips, rates = order.choose((CLIPS, RATES), ((0.1, *CLIPS, 10.0), (*RATES, 0.5)))
    both = ("advanced", advanced_noise), ("exact", exact_noise)
    panel_lines = [
        {
            **{f"poster, c={c:g}, {name}": partial(of_poster, clip=c, rate=RATE, noise=noise)
               for name, noise in both for c in clips},
            **{f"ours, dpvi, c={c:g}": partial(of_ours, solver="dpvi", clipping_norm=c)
               for c in clips},
            "ours, defaults": of_ours,
        },
        {
            **{f"poster, q={q:g}, {name}": partial(of_poster, clip=1.0, rate=q, noise=noise)
               for name, noise in both for q in rates},
            **{f"ours, dpvi, q={q:g}": partial(of_ours, solver="dpvi", sampling_rate=q)
               for q in rates},
            "ours, defaults": of_ours,
        },
    ]  # fmt: skip
    titles = ["(a) clipping thresholds, q=.02", "(b) sample sizes, c=1"]
    figure, axes = panels(titles, sharey=True)
    figure.set_size_inches(13, 6)
    tables = []
    problems = [abalone(seed) for seed in range(seeds)]
    floor = [not_private(problem) for problem in problems]
    for ax, title, lines in zip(axes, titles, panel_lines, strict=True):
        scores = {
            name: {
                level: [fit(problem, level, seed) for seed, problem in enumerate(problems)]
                for level in (LEVELS if name.startswith("ours") else (*LEVELS, math.inf))
            }
            for name, fit in lines.items()
        }
        scores["scikit-learn, not private"] = {math.inf: floor}
        tables.append(by_level(f"Accuracy on Abalone*, {title}; inf: without noise", scores))
        found = [line for line in curves(scores) if line.x]
        for line in found:
            kind = next((s for word, s in SHAPES.items() if line.label.endswith(word)), "-")
            line.style.update(linestyle=kind)
        plot(ax, found)
        ax.axhline(np.mean(floor), color="0.4", linestyle=":", label="not private")
        ax.set(xscale="log", xlabel=f"epsilon, at delta {DELTA:g}")
        ax.legend(fontsize="x-small", ncols=2)
    axes[0].set_ylabel("accuracy of held-out rows")
    rows = [
        [f"q={rate:g}", *(f"{noise(level, DELTA, rate, STEPS) / 2:.3g}"
                          for level in LEVELS for _, noise in both)]
        for rate in rates
    ]  # fmt: skip
    header = [f"{name}, {level:g}" for level in LEVELS for name, _ in both]
    title = f"sigma of the poster's noise 2 c sigma, by accountant and epsilon, {STEPS} steps*"
    tables.append(Table(title, ["", *header], rows))
    ran = (
        f"{'the poster runs ten' if not order.full else 'as the poster'}: {seeds} random splits, "
        f"{STEPS} steps*, delta {DELTA:g}*, classes by {RINGS} rings*; seeds 0 to {seeds - 1}"
    )
    return Found(ran, tables, figure)


ENTRIES = [
    Entry(
        "dp-advi-fig1",
        "DP-ADVI",
        "Figure (a), (b)",
        "Accuracy on Abalone against epsilon, by clipping threshold and by batch size",
        fig1,
    )
]
