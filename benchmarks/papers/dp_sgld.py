"""DP-SGLD (Li, Chen, Liu and Carin 2019): step sizes, Adult, and networks on MNIST and SVHN.

A step of the paper, ``eta``, is for the mean gradient; ours, ``h``, for the log posterior, so that
``eta = N h``. Its algorithm 1 adds noise of variance ``eta / N``, half of what its drift asks for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit

from benchmarks import dp_sgld
from benchmarks.papers import _entry
from benchmarks.papers._entry import (
    Entry,
    Found,
    Line,
    Order,
    Table,
    by_level,
    curves,
    images,
    one_panel,
    panels,
    plot,
    quoted,
)
from benchmarks.private_peers import noise_of, unit_rows
from benchmarks.problems import Problem

Array = NDArray[np.float64]

# --- Figures 1 and 2: bounds on the step ----------------------------------------------------------

STEP_LEVELS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.7)
STATED = {"decreasing": 0.103, "Wang et al.": 1.54e-6}  # section 3.1, at epsilon .1


@cache
def bound(
    epsilon: float, delta: float, n: int, steps: int, clip: float, rate: float, schedule: str
) -> float:
    """Largest first step eta by exact accounting of our chain; algorithm 1 may take half of it."""
    from skdpbayes.privacy import step_size_bound

    return n * step_size_bound(
        epsilon, delta, n_steps=steps, sampling_rate=rate, clipping_norm=clip, schedule=schedule
    )


def wang(epsilon: float, delta: float, n: int, steps: int, clip: float) -> float:
    """The same by Wang, Fienberg and Smola (2015)."""
    from skdpbayes.privacy import wang_step_size_bound

    return n * wang_step_size_bound(epsilon, delta, n_steps=steps, clipping_norm=clip)


def fig1(order: Order) -> Found:
    """Left plot: steps against epsilon, N = 50 000, T = 10 000, L = 1, delta 1e-5."""
    setting = 1e-5, 50_000, 10_000, 1.0
    lines = {
        f"{schedule}, q={rate:g}": [bound(e, *setting, rate, schedule) for e in STEP_LEVELS]
        for rate in (1.0, 0.01)
        for schedule in ("decreasing", "constant")
    }
    lines["decreasing, algorithm 1, q=1"] = [x / 2 for x in lines["decreasing, q=1"]]
    lines["Wang et al."] = [wang(e, *setting) for e in STEP_LEVELS]
    rows = [[name, *(f"{x:.3g}" for x in values)] for name, values in lines.items()]
    rows += [
        [f"paper: {name}", *(f"{x:g}" if e == 0.1 else "" for e in STEP_LEVELS)]
        for name, x in STATED.items()
    ]
    header = ["largest first step eta", *(f"{e:g}" for e in STEP_LEVELS)]
    figure = one_panel(
        "Largest step that epsilon allows (N=50 000, T=10 000, L=1)",
        [
            *(
                Line(name, STEP_LEVELS, values, style={"linestyle": "--" if ".01" in name else "-"})
                for name, values in lines.items()
            ),
            quoted([0.1, 0.1], list(STATED.values()), "the paper, in its text"),
        ],
        xscale="log", yscale="log", xlabel="epsilon, at delta 1e-5", ylabel="first step eta = N h",
    )  # fmt: skip
    ran = "the paper's setting; it does not state q, which is 1 or .01 here. No randomness"
    return Found(ran, [Table("Exact bounds beside the paper's", header, rows)], figure)


def fig2(order: Order) -> Found:
    """By N with L = 1, and by L with N = 1e4; T = N, delta = 1/N."""
    sizes = (1_000, 10_000, 100_000, 1_000_000)
    clips, levels = (0.1, 0.5, 1.0, 10.0), (0.1, 0.2, 0.5, 1.0, 2.0)
    panel_lines = [
        {f"N={n:.0e}": (n, 1.0) for n in sizes},
        {f"L={clip:g}": (10_000, clip) for clip in clips},
    ]
    titles = ["by N, L=1", "by L, N=1e4"]
    figure, axes = panels([f"Decreasing steps, q=1, {title}" for title in titles])
    tables = []
    for ax, title, lines in zip(axes, titles, panel_lines, strict=True):
        rows = []
        for name, (n, clip) in lines.items():
            for rate in (1.0, 0.01):
                values = [bound(e, 1 / n, n, n, clip, rate, "decreasing") for e in levels]
                rows.append([f"{name}, q={rate:g}", *(f"{x:.3g}" for x in values)])
                if rate == 1:
                    plot(ax, [Line(name, levels, values)])
            values = [wang(e, 1 / n, n, n, clip) for e in levels]
            rows.append([f"{name}, Wang et al.", *(f"{x:.3g}" for x in values)])
        tables.append(
            Table(
                f"Largest first step eta, T=N, delta=1/N, {title}",
                ["", *(f"{e:g}" for e in levels)],
                rows,
            )
        )
        ax.axhspan(1e-4, 0.1, color="0.9", zorder=0, label="steps in practice, by the paper")
        ax.set(xscale="log", yscale="log", xlabel="epsilon, at delta 1/N", ylabel="eta = N h")
        ax.legend(fontsize="small")
    ran = "the paper's setting; it does not state q, which is 1 or .01 here. No randomness"
    return Found(ran, tables, figure)


# --- Figure 3: logistic regression on Adult -------------------------------------------------------

FIG3_DELTA, RATE = 1e-4, 0.01
RADII = (2.0, 5.0, 15.0)  # of the ball of coefficients of one posterior sample


def adult() -> Problem:
    """Adult in its original split."""
    from benchmarks import utility

    _entry.at_home("adult.csv.gz")
    return utility.adult(0)


class Posterior:
    """Tempered posterior of logistic regression with a standard normal prior, on rows (x, 1).

    Parameters
    ----------
    Z : array of shape (n, d)
    y : array of shape (n,)
    power : float
        Of the likelihood.
    radius : float, optional
        Coefficients lie in a ball of that radius.
    """

    def __init__(self, Z: Array, y: Array, power: float, radius: float = math.inf):
        self.Z, self.signs, self.power, self.radius = Z, np.where(y == 1, 1.0, -1.0), power, radius

    def log_density(self, w: Array) -> float:
        """Up to a constant."""
        if w @ w > self.radius**2:
            return -math.inf
        return float(self.power * log_expit(self.signs * (self.Z @ w)).sum() - w @ w / 2)

    def gradient(self, w: Array) -> Array:
        """Of the log density."""
        return self.power * (self.signs * expit(-self.signs * (self.Z @ w))) @ self.Z - w

    def precision(self, w: Array) -> Array:
        """Negative Hessian of the log density."""
        p = expit(self.Z @ w)
        return self.power * (self.Z.T * (p * (1 - p))) @ self.Z + np.eye(len(w))

    def sample(self, rng: np.random.Generator, steps: int) -> tuple[Array, float]:
        """The end of a chain of Langevin steps with Metropolis corrections, and its acceptance.

        Steps are scaled by the curvature near the mode, where the chain starts.
        """
        w = np.zeros(self.Z.shape[1])
        for _ in range(12):  # damped Newton steps, kept inside the ball
            move = np.linalg.solve(self.precision(w), self.gradient(w))
            while self.log_density(w + move) < self.log_density(w) and move @ move > 1e-16:
                move = move / 2
            w = w + move
        root = np.linalg.inv(np.linalg.cholesky(self.precision(w))).T
        h, accepted = 1.3 / len(w) ** (1 / 3), 0
        value, slope = self.log_density(w), self.gradient(w)
        for _ in range(steps):
            mean = w + h / 2 * root @ (root.T @ slope)
            noise = rng.standard_normal(len(w))
            other = mean + math.sqrt(h) * root @ noise
            other_value = self.log_density(other)
            ratio = -math.inf
            if other_value > -math.inf:
                other_slope = self.gradient(other)
                back = np.linalg.solve(root, w - other - h / 2 * root @ (root.T @ other_slope))
                ratio = other_value - value - (back @ back / h - noise @ noise) / 2
            if math.log(rng.uniform()) < ratio:
                w, value, slope, accepted = other, other_value, other_slope, accepted + 1
        return w, accepted / steps


def safe_power(epsilon: float, radius: float) -> float:
    """Power of the likelihood with which one posterior sample is epsilon-private."""
    return min(1.0, epsilon / math.log1p(math.exp(radius)))


def one_sample(Z: Array, y: Array, epsilon: float, rng, radius: float, steps: int) -> Array:
    """One posterior sample (Wang et al. 2015, theorem 1), epsilon-private, delta zero.

    Rows have length 1 at most, so that a record's log-likelihood is between 0 and
    ``-log(1 + exp(radius))``, and its power bounds what leaving the record out may change.
    """
    return Posterior(Z, y, safe_power(epsilon, radius), radius).sample(rng, steps)[0]


def one_sample_lipschitz(Z: Array, y: Array, epsilon: float, rng, steps: int) -> Array:
    """One posterior sample by the sharper bound of Gopi, Lee and Liu (2022), theorem 4.

    Without a record of Lipschitz constant 1, a density that is strongly log-concave with constant 1
    changes as the normal distributions N(0, 1) and N(power, 1) differ.
    """
    power = min(1.0, 1 / noise_of(epsilon, FIG3_DELTA))
    return Posterior(Z, y, power).sample(rng, steps)[0]


def langevin(
    Z: Array,
    y: Array,
    etas: Array,
    clip: float,
    rate: float,
    rng: np.random.Generator,
    start: Array,
) -> Array:
    """Algorithm 1 of the paper: mean of the iterates of the second half.

    Noise has variance eta / N. For a finite budget that noise is what protects the records.
    """
    n, w, total, kept = len(Z), start, np.zeros(Z.shape[1]), 0
    for t, eta in enumerate(etas):
        batch = np.flatnonzero(rng.random(n) < rate)
        rows = Z[batch]
        scores = (y[batch] - expit(rows @ w))[:, None] * rows
        lengths = np.linalg.norm(scores, axis=1, keepdims=True)
        total_score = (scores * np.minimum(1, clip / np.maximum(lengths, 1e-300))).sum(axis=0)
        w = w + eta * (total_score / (rate * n) - w / n)
        w = w + math.sqrt(eta / n) * rng.standard_normal(len(w))
        if 2 * t >= len(etas):
            total, kept = total + w, kept + 1
    return total / kept


def decreasing(first: float, steps: int) -> Array:
    """Steps that fall as t^(-1/3)."""
    return first * np.arange(1, steps + 1) ** (-1 / 3)


def algorithm1(
    Z: Array, y: Array, epsilon: float, rng, clip: float, steps: int, largest: float
) -> Array:
    """The paper's chain with the largest first step that exact accounting allows."""
    n = len(Z)
    allowed = bound(epsilon, FIG3_DELTA, n, steps, clip, RATE, "decreasing") / 2
    etas = decreasing(min(largest, allowed), steps)
    return langevin(Z, y, etas, clip, RATE, rng, np.zeros(Z.shape[1]))


def hybrid(Z: Array, y: Array, epsilon: float, rng, radius: float, chain: int, steps: int) -> Array:
    """Hybrid posterior sampling of Wang et al.: one sample, then Langevin steps by their bound.

    Half of epsilon for each part.
    """
    start = one_sample(Z, y, epsilon / 2, rng, radius, chain)
    eta = wang(epsilon / 2, FIG3_DELTA, len(Z), steps, 1.0)
    return langevin(Z, y, np.full(steps, eta), 1.0, RATE, rng, start)


def fig3(order: Order) -> Found:
    """Adult: accuracy against epsilon at delta 1e-4."""
    from skdpbayes import DPBayesianLogisticRegression

    problem = adult()
    seeds = order.fits(1, 10)
    chain, steps = order.choose((150, 4_000), (2_000, len(problem.y_train)))
    levels = order.choose((0.08, 0.3, 1.0), (0.02, 0.05, 0.08, 0.2, 0.5, 1.0, 2.0))
    radii = order.choose(RADII[1:], RADII)
    Z, test = (unit_rows(X, problem.data_norm) for X in (problem.X_train, problem.X_test))
    y = problem.y_train

    def scored(w: Array) -> float:
        return float(((test @ w > 0) == problem.y_test).mean())

    def of(method: Callable[..., Array], level: float, seed: int) -> float:
        return scored(method(Z, y, level, np.random.default_rng(seed)))

    def estimator(level: float, seed: int, **parameters: object) -> float:
        model = DPBayesianLogisticRegression(
            level, FIG3_DELTA, classes=[0, 1], data_norm=problem.data_norm, random_state=seed,
            **parameters,
        )  # fmt: skip
        try:
            model.fit(problem.X_train, y)
        except ValueError:  # sgld refuses budgets that are too small for it
            return math.nan
        return float(model.score(problem.X_test, problem.y_test))

    chains = {"chain": chain, "steps": steps}
    methods: dict[str, Callable[[float, int], float]] = {
        **{
            f"one posterior sample, radius {r:g} (epsilon, 0)": partial(
                of, partial(one_sample, radius=r, steps=chain)
            )
            for r in radii
        },
        "one posterior sample, Gopi et al.": partial(
            of, partial(one_sample_lipschitz, steps=chain)
        ),
        f"hybrid, radius {RADII[1]:g}": partial(of, partial(hybrid, radius=RADII[1], **chains)),
        "algorithm 1, L=1, eta<=8, exact": partial(
            of, partial(algorithm1, clip=1.0, steps=steps, largest=8.0)
        ),
        "ours, sgld": partial(estimator, solver="sgld"),
        "ours, dpvi": partial(estimator, solver="dpvi"),
        "ours, defaults": estimator,
    }
    scores = {
        name: {level: [method(level, seed) for seed in range(seeds)] for level in levels}
        for name, method in methods.items()
    }
    rng = np.random.default_rng(0)
    plain = langevin(Z, y, decreasing(8.0, steps), 1.0, RATE, rng, np.zeros(Z.shape[1]))
    scores["algorithm 1, L=1, eta=8, no budget"] = {math.inf: [scored(plain)]}
    exact, _ = Posterior(Z, y, 1.0).sample(rng, chain)
    scores["one sample of the posterior, not private"] = {math.inf: [scored(exact)]}
    scores["ours, defaults"][math.inf] = [estimator(math.inf, 0)]

    n = len(y)
    sigmas = [(eta, math.sqrt(1 / (n * eta)) * RATE * n) for eta in (0.1, 1.0, 8.0)]
    costs = [[f"eta={eta:g}", f"{sigma:.2f}", f"{_spent(sigma, steps):.3g}"]
             for eta, sigma in sigmas]  # fmt: skip
    figure = one_panel(
        "Adult, Bayesian logistic regression",
        [line for line in curves(scores) if line.x],
        xscale="log", xlabel=f"epsilon, at delta {FIG3_DELTA:g} (delta 0 where it says so)",
        ylabel="accuracy of the test rows", ylim=(0.7, 0.86),
    )  # fmt: skip
    title = "Accuracy on Adult by epsilon (inf: without a budget; -: refused by name)"
    tables = [
        by_level(title, scores, digits=4),
        Table(
            f"What first steps of algorithm 1 cost, L=1, q={RATE:g}, T={steps}, decreasing",
            ["first step", "noise multiplier", "epsilon"],
            costs,
        ),
    ]
    ran = (
        f"{'T=N as the paper suggests' if order.full else 'fewer steps than the paper'}: {steps} "
        f"steps at q={RATE:g}, chains of {chain} for one sample, {seeds} fits a level (paper: "
        "ten), seeds from 0. The paper states neither batch, step nor L"
    )
    return Found(ran, tables, figure)


def _spent(first: float, steps: int) -> float:
    """Epsilon of steps whose noise multipliers grow as t^(1/6), on a few levels."""
    from skdpbayes.privacy import GaussianSteps, compose

    edges = np.unique(np.geomspace(1, steps + 1, 33).astype(int))
    parts = tuple(GaussianSteps(first * a ** (1 / 6), RATE, int(b - a)) for a, b in pairwise(edges))
    return compose(parts, "zero_out").epsilon(FIG3_DELTA)


# --- Table 1: networks ----------------------------------------------------------------------------


def table1(order: Order, name: str, eta: float, clip: float, delta: float, rows: list) -> Found:
    """A network at the epsilon that the paper's setting has, by exact accounting.

    The chain is ours, in units of the prior, with the paper's batch, passes and clipping norm, and
    with the largest step that this epsilon allows: its noise multiplier is the paper's.
    """
    from skdpbayes import DPBayesianMLPClassifier
    from skdpbayes.privacy import GaussianSteps, compose

    data, batch = images(order, name), 128
    epochs = order.choose(5, 20)
    n = len(data.y_train)
    sigma = math.sqrt(eta / n) / (eta * clip / batch)

    def spent(passes: int) -> float:
        steps = GaussianSteps(sigma, batch / n, max(1, passes * n // batch))
        return compose((steps,), "zero_out").epsilon(delta)

    epsilon = spent(epochs)
    X, X_test = (
        np.asarray((x / np.float32(255) - 0.13) / 0.31, np.float32)
        for x in (data.x_train, data.x_test)
    )
    common = {
        "activation": "tanh", "classes": range(int(data.y_train.max()) + 1), "delta": delta,
        "data_norm": 2.2 * X.shape[1] ** 0.5, "numerics": "fast", "random_state": 0,
    }  # fmt: skip
    theirs = {"sampling_rate": batch / n, "n_steps": max(1, epochs * n // batch)}
    ours = {"sampling_rate": min(1.0, 2048 / n), "n_steps": max(1, epochs * n // 2048)}
    dense = {"hidden_layer_sizes": (100,)}
    small = {
        "convolutions": [(16, 8, 2), (32, 4, 2)], "image_shape": data.shape,
        "hidden_layer_sizes": (32,),
    }  # fmt: skip
    networks = {"784-100-10" if name == "mnist" else "dense, 100 hidden": dense}
    if order.full:
        networks["two convolutions"] = small
    lines = []
    for network, shape in networks.items():
        lines += [
            (f"{network}: paper's setting", epsilon,
             shape | theirs | {"solver": "sgld", "clipping_norm": clip}),
            (f"{network}: paper's setting, no noise but the chain's", math.inf,
             shape | theirs | {"solver": "sgld", "clipping_norm": clip,
                               "learning_rate": eta / n}),
            (f"{network}: sghmc, batches of 2048", epsilon,
             shape | ours | {"solver": "sgld", "sampler": "sghmc"}),
            (f"{network}: point estimate by DP-Adam, batches of 2048", epsilon,
             shape | ours | {"solver": "dpvi", "guide": "point", "clipping_norm": 0.3}),
        ]  # fmt: skip
    pixels = X, X_test
    runs = [(*line, pixels) for line in lines]
    if name == "mnist":  # what we would do at the epsilon that the paper claims
        histograms = [dp_sgld.features("histograms", x) for x in (data.x_train, data.x_test)]
        size = dp_sgld.BATCHES["histograms"]
        own = dp_sgld.NETWORKS["histograms"] | {
            "solver": "sgld", "sampler": "sghmc", "sampling_rate": min(1.0, size / n),
            "n_steps": max(1, 40 * n // size), "data_norm": 60.0,
        }  # fmt: skip
        runs.append(("histograms of gradients: sghmc, 40 passes", 0.99, own, histograms))
    cells, points = [], []
    for line, level, own, (rows_in, rows_out) in runs:
        start = time.perf_counter()
        model = DPBayesianMLPClassifier(epsilon=level, **(common | own))
        proba = model.fit(rows_in, data.y_train).predict_proba(rows_out)
        right = float((proba.argmax(axis=1) == data.y_test).mean())
        loss = -np.mean(np.log(np.maximum(proba[np.arange(len(proba)), data.y_test], 1e-30)))
        seconds = time.perf_counter() - start
        cells.append([line, f"{level:.3g}", f"{right:.2%}", f"{loss:.3f}", f"{seconds:.0f}"])
        if math.isfinite(level):
            points.append((line, level, right))
        print(": ".join(cells[-1]), flush=True)
    cells += [[f"paper: {who}", *figures, "", ""] for who, *figures in rows]
    title = (
        f"{name}: the paper's eta={eta:g}, L={clip:g}, batches of {batch}: noise multiplier "
        f"{sigma:.3g}, epsilon {epsilon:.3g} after {epochs} passes, {spent(20):.3g} after 20, at "
        f"delta {delta:g}"
    )
    known = [(float(e), float(a.rstrip("%")) / 100, who) for who, e, a in rows if e != "inf"]
    figure = one_panel(
        f"{name}: accuracy of networks",
        [
            *(Line(line, [level], [right], style={"linestyle": "none"})
              for line, level, right in points),
            *(Line(f"paper: {who}", [e], [a], style={"linestyle": "none", "marker": "D"})
              for e, a, who in known),
        ],
        xscale="log", xlabel=f"epsilon, at delta {delta:g} (the paper's: as claimed)",
        ylabel="accuracy of the test images",
    )  # fmt: skip
    ran = (
        f"{epochs} passes over {n} images ({'as the paper' if order.full else 'the paper: 20'}); "
        "seed 0, one fit a line. SVHN's batch and passes are not stated in the paper"
    )
    header = ["network", "epsilon", "accuracy", "log-loss", "s"]
    return Found(ran, [Table(title, header, cells)], figure)


MNIST = [
    ("DP-SGLD", "0.99", "99.21%"), ("DP-SGD", "0.5", "90.00%"), ("DP-SGD", "8", "97.00%"),
    ("CGNMax", "1.97", "98.51%"), ("not private", "inf", "99.34%"),
]  # fmt: skip
SVHN = [
    ("DP-SGLD", "2.97", "91.89%"), ("CGNMax", "4.96", "91.62%"), ("not private", "inf", "92.80%")
]  # fmt: skip

ENTRIES = [
    Entry("dp-sgld-fig1", "DP-SGLD", "Figure 1", "Largest step against epsilon", fig1),
    Entry("dp-sgld-fig2", "DP-SGLD", "Figure 2", "Largest step by N and by L", fig2),
    Entry("dp-sgld-fig3", "DP-SGLD", "Figure 3", "Accuracy on Adult against epsilon", fig3),
    Entry(
        "dp-sgld-table1-mnist",
        "DP-SGLD",
        "Table 1, MNIST",
        "Accuracy of networks at the epsilon that the paper's setting has",
        partial(table1, name="mnist", eta=0.3, clip=0.3, delta=1e-5, rows=MNIST),
    ),
    Entry(
        "dp-sgld-table1-svhn",
        "DP-SGLD",
        "Table 1, SVHN",
        "The same on SVHN (--data svhn=FILE.npz)",
        partial(table1, name="svhn", eta=0.1, clip=5.0, delta=1e-6, rows=SVHN),
    ),
]
