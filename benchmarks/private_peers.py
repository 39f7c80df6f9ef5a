"""Other private methods for linear models, in NumPy: peers of ``benchmarks.private_comparison``.

All are (epsilon, delta)-private for the neighbours of our default, ``adjacency="zero_out"``: one
record replaced by one that contributes nothing, so the number of records is public. Every release
is Gaussian and full batch, so that the analytic Gaussian mechanism (Balle and Wang 2018) composes
exactly: a release that takes a share s of the budget adds ``noise / sqrt(s)`` times its
sensitivity, where `noise` is the noise multiplier of one release with the whole budget.

Rows are (x, 1), shortened and scaled to length 1 at most (`unit_rows`). Logistic scores then have
length 1 at most, and curvatures 1/4. Noise is floating point: these are baselines to compare with,
not programs to use on private data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit

from benchmarks.problems import Family, Problem, _factors, _Recipe, _simulate, clip_rows
from skdpbayes.privacy import calibrate_noise

Array = NDArray[np.float64]
Setting = dict[str, float]

CURVATURE = 0.25  # largest second derivative of the logistic loss


def noise_of(epsilon: float, delta: float) -> float:
    """Standard deviation, over the sensitivity, of one Gaussian release with the whole budget."""
    return calibrate_noise(epsilon, delta, 1.0, 1, rtol=1e-6).noise_multiplier


def unit_rows(X: Array, norm: float) -> Array:
    """Rows (x, 1) of length 1 at most: x is shortened to `norm`, and all divided by one number."""
    return np.column_stack([clip_rows(X, norm), np.ones(len(X))]) / math.hypot(norm, 1.0)


def log_loss(decision: Array, y: NDArray[np.int64]) -> float:
    """Mean negative log-likelihood of labels 0 and 1."""
    return float(-np.mean(log_expit(np.where(y == 1, decision, -decision))))


# --- Minimising a perturbed objective -------------------------------------------------------------


def minimum(Z: Array, y: NDArray[np.int64], ridge: float, linear: Array) -> Array:
    """Minimum of the summed log-loss + ridge |w|^2 / 2 + linear @ w, by damped Newton steps."""

    def objective(w: Array) -> float:
        return len(Z) * log_loss(Z @ w, y) + ridge * (w @ w) / 2 + linear @ w

    w, value = np.zeros(Z.shape[1]), len(Z) * math.log(2.0)
    for _ in range(200):
        p = expit(Z @ w)
        gradient = Z.T @ (p - y) + ridge * w + linear
        hessian = (Z.T * (p * (1 - p))) @ Z + ridge * np.eye(len(w))
        step = np.linalg.solve(hessian, gradient)
        decrement = gradient @ step
        if decrement < 1e-12:
            return w - step
        length = 1.0
        while objective(w - length * step) > value - length * decrement / 4 and length > 1e-9:
            length /= 2
        w = w - length * step
        value = objective(w)
    return w


def objective_ridge(epsilon: float, share: float) -> float:
    """The ridge at which determinants of Hessians cost `share` of epsilon."""
    return CURVATURE / math.expm1(share * epsilon) if share * epsilon < 700 else 0.0


def objective_perturbation(
    Z: Array,
    y: NDArray[np.int64],
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    share: float,
) -> Array:
    """Kifer, Smith and Thakurta 2012, algorithm 1; analysis after Redberg, Koskela and Wang 2023.

    The density of the minimum changes by the ratio of two determinants, at most
    ``1 + CURVATURE / ridge``, and by the ratio of two normal densities. The score of a record is
    its row times a number whose size depends on the noise and whose sign is given by the label.
    Hence the loss of the second part is at most ``max(0, mu Z + mu^2 / 2)``, where Z is standard
    normal and ``mu = 1 / sd``, and delta is at most the Gaussian mechanism's at epsilon less the
    logarithm of the first part. Redberg et al. bound all generalised linear models, whose scores
    may have either sign, by twice that delta; the smaller bound favours this peer.

    The proof is for a record added or removed, which covers a record that contributes nothing.
    """
    ridge = objective_ridge(epsilon, share)
    sd = noise_of((1 - share) * epsilon, delta)
    return minimum(Z, y, ridge, sd * rng.standard_normal(Z.shape[1]))


def output_perturbation(
    Z: Array,
    y: NDArray[np.int64],
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    ridge: float,
) -> Array:
    """Chaudhuri, Monteleoni and Sarwate 2011, algorithm 1, with Gaussian noise.

    Without one record's score, of length 1 at most, the minimum of a function that is strongly
    convex with constant `ridge` moves by 1 / ridge. (Their corollary 8 has 2 / ridge, as a record
    is exchanged there.)
    """
    w = minimum(Z, y, ridge, np.zeros(Z.shape[1]))
    return w + noise_of(epsilon, delta) / ridge * rng.standard_normal(len(w))


# --- Noisy descent --------------------------------------------------------------------------------


def clipped_scores(U: Array, y: NDArray[np.int64], w: Array, clip: float) -> Array:
    """Sum of the scores of records, each shortened to `clip`."""
    lengths = np.maximum(np.linalg.norm(U, axis=1), 1e-300)
    return U.T @ np.clip(expit(U @ w) - y, -clip / lengths, clip / lengths)


def descend(
    U: Array,
    y: NDArray[np.int64],
    rng: np.random.Generator,
    rounds: int,
    step: float,
    clip: float,
    sd: float,
) -> Array:
    """Full-batch gradient descent from zero, with noise of standard deviation `sd` a round."""
    w = np.zeros(U.shape[1])
    for _ in range(rounds):
        noise = sd * rng.standard_normal(len(w))
        w = w - step / len(U) * (clipped_scores(U, y, w, clip) + noise)
    return w


def gradient_descent(
    Z: Array,
    y: NDArray[np.int64],
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    rounds: float,
    step: float,
    clip: float,
) -> Array:
    """Bassily, Smith and Thakurta 2014 with full batches, and clipping as in Abadi et al. 2016.

    The sum of clipped scores has sensitivity `clip` in each round.
    """
    sd = clip * noise_of(epsilon, delta) * math.sqrt(rounds)
    return descend(Z, y, rng, int(rounds), step, clip, sd)


WHITENING = 0.2  # share of the budget


@dataclass(frozen=True)
class Whitener:
    """Map of rows to whitened coordinates, and the typical length of a row there."""

    matrix: Array
    length: float


def whitener(Z: Array, noise: float, rng: np.random.Generator) -> Whitener:
    """Inverse root of the second moment, released once; `noise` is that of this release.

    A row adds a matrix of Frobenius norm 1 at most. Entries above the diagonal count twice in that
    norm, so they carry half of the variance. The spectrum of the noise ends at noise sqrt(2 D).
    """
    d = Z.shape[1]
    drawn = noise * rng.standard_normal((d, d))
    values, vectors = np.linalg.eigh(Z.T @ Z + (drawn + drawn.T) / 2)
    floored = np.maximum(values, max(noise * math.sqrt(2 * d), 1e-9 * len(Z)))
    root = (vectors * np.sqrt(len(Z) / floored)) @ vectors.T
    return Whitener(root, math.sqrt(np.sum(np.maximum(values, 0.0) / floored)))


def whitened_descent(
    Z: Array,
    y: NDArray[np.int64],
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    step: float,
    clip: float,
    rounds: float = 10,
) -> Array:
    """Noisy gradient descent after private whitening; cf. Sun, Suresh and Menon 2023 (DPSGD-F).

    A fifth of the budget goes to the second moment of rows. Eigenvalues below the edge of the
    noise's spectrum are raised to it, rows are mapped by the inverse root and shortened to the
    typical length there, and their scores are clipped at `clip` times that length.
    """
    noise = noise_of(epsilon, delta)
    white = whitener(Z, noise / math.sqrt(WHITENING), rng)
    bound = clip * white.length
    sd = bound * noise * math.sqrt(rounds / (1 - WHITENING))
    U = clip_rows(Z @ white.matrix, white.length)
    return white.matrix @ descend(U, y, rng, int(rounds), step, bound, sd)


def direction_sensitivity(floor: float) -> float:
    """Largest change of a Newton direction per length of the gradient, "add" of algorithm 3."""
    return CURVATURE / (floor**2 + CURVATURE * floor)


def newton_shares(gradient: float, trace: float) -> tuple[float, float, float]:
    """Shares of a round's budget: gradient; of what is left, `trace` for the trace; direction."""
    return gradient, (1 - gradient) * trace, (1 - gradient) * (1 - trace)


def newton(
    Z: Array,
    y: NDArray[np.int64],
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    rounds: float,
    gradient_share: float,
    floor_scale: float,
    upper: float,
    trace_share: float = 0.1,
) -> Array:
    """Ganesh, Haghifam, Steinke and Thakurta 2023, algorithm 3 (double noise, "add").

    Each round releases the gradient, then the trace of the Hessian, which sets the multiple of the
    identity that is added to it, then the Newton direction of the released gradient. With `upper`
    their quadratic upper bound of the loss takes the place of the Hessian.
    """
    noise = noise_of(epsilon, delta) * math.sqrt(rounds)
    shares = newton_shares(gradient_share, trace_share)
    gradient_sd, trace_noise, direction_noise = (noise / math.sqrt(share) for share in shares)
    trace_sd = CURVATURE * trace_noise
    w = np.zeros(Z.shape[1])
    for _ in range(int(rounds)):
        decision = Z @ w
        p = expit(decision)
        gradient = Z.T @ (p - y) + gradient_sd * rng.standard_normal(len(w))
        half = np.maximum(np.abs(decision), 1e-8) / 2
        hessian = (Z.T * (np.tanh(half) / (4 * half) if upper else p * (1 - p))) @ Z
        trace = max(np.trace(hessian) + trace_sd * rng.standard_normal(), 0.0)
        floor = max((2 * floor_scale * trace * direction_noise**2) ** (1 / 3), 1.0)
        direction = np.linalg.solve(hessian + floor * np.eye(len(w)), gradient)
        sd = direction_noise * np.linalg.norm(gradient) * direction_sensitivity(floor)
        w = w - direction + sd * rng.standard_normal(len(w))
    return w


# --- Sums of products -----------------------------------------------------------------------------


def adassp(
    Z: Array,
    targets: Array,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    failure: float = 0.05,
) -> Array:
    """Wang 2018, algorithm 2, a third of the budget each for three Gaussian releases.

    Rows are of length 1 at most and targets of absolute value 1 at most, so the least eigenvalue,
    the products of rows and their products with targets have sensitivity 1.
    """
    d = Z.shape[1]
    noise = noise_of(epsilon, delta) * math.sqrt(3.0)
    products = Z.T @ Z
    least = np.linalg.eigvalsh(products)[0] + noise * rng.standard_normal()
    least = max(least - noise * math.sqrt(math.log(6 / delta)), 0.0)
    ridge = max(noise * math.sqrt(d * math.log(2 * d**2 / failure)) - least, 0.0)
    upper = np.triu(noise * rng.standard_normal((d, d)))
    products = products + upper + np.triu(upper, 1).T + ridge * np.eye(d)
    return np.linalg.solve(products, Z.T @ targets + noise * rng.standard_normal(d))


def adassp_labels(
    Z: Array, y: NDArray[np.int64], epsilon: float, delta: float, rng: np.random.Generator
) -> Array:
    """AdaSSP of labels coded -1 and 1, and the logit of the probability that it means at 1/2.

    Near zero (1 + f) / 2 is the logistic function of 2 f.
    """
    return 2.0 * adassp(Z, 2.0 * y - 1.0, epsilon, delta, rng)


# --- Peers and their settings ---------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A method, and the settings among which `tuned` chooses.

    Attributes
    ----------
    fit : callable ``(Z, y, epsilon, delta, rng, **setting) -> weights``
    settings : tuple of dict
    relation : str
        Neighbours of its proof.
    """

    fit: Callable[..., Array]
    settings: tuple[Setting, ...] = ({},)
    relation: str = "zero_out"


def _grid(**values: tuple[float, ...]) -> tuple[Setting, ...]:
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


PEERS: dict[str, Peer] = {
    "objective perturbation": Peer(
        objective_perturbation,
        _grid(share=(0.6, 0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.003)),
        "zero_out; proved for add_remove, which implies it",
    ),
    "output perturbation": Peer(
        output_perturbation,
        _grid(ridge=(1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)),
        "zero_out; its paper exchanges a record, at twice the sensitivity",
    ),
    "DP-Newton": Peer(
        newton,
        _grid(
            rounds=(2, 4, 8, 16),
            gradient_share=(0.2, 0.5, 0.8),
            floor_scale=(0.1, 0.3, 1.0, 3.0),
            upper=(0, 1),
        ),
    ),
    "whitened gradient descent": Peer(
        whitened_descent, _grid(step=(0.5, 1.0, 2.0, 4.0, 8.0), clip=(0.15, 0.3, 0.6, 1.0))
    ),
    "tuned gradient descent": Peer(
        gradient_descent,
        _grid(rounds=(5, 20, 60, 180), step=(1.0, 4.0, 16.0, 64.0), clip=(0.1, 0.3, 1.0)),
    ),
    "AdaSSP of labels": Peer(
        adassp_labels, relation="zero_out; proved for add_remove, which implies it"
    ),
}


def _positive_factors(rng: np.random.Generator, n: int, d: int) -> Array:
    """Correlated columns without negative values, as of pixels."""
    return np.abs(_factors(rng, n, d))


@dataclass(frozen=True)
class Kind:
    """Public description of a task, from which tables to tune on are simulated."""

    family: Family
    prevalence: float = 0.5


def simulated(kind: Kind, n: int, d: int, norm: float, seed: int) -> Problem:
    """A table of that kind and size, whose median row has .8 of the public norm."""
    recipe = _Recipe(kind.family, n, d, norm, signal=2.0, prevalence=kind.prevalence)
    problem = _simulate("tuning", recipe, seed)
    scale = 0.8 * norm / float(np.median(np.linalg.norm(problem.X_train, axis=1)))
    return replace(problem, X_train=scale * problem.X_train, X_test=scale * problem.X_test)


@cache
def tuned(
    name: str, kind: Kind, n: int, d: int, norm: float, epsilon: float, delta: float
) -> Setting:
    """The setting with the least mean log-loss on simulated tables of the kind and size.

    One table for 20000 rows or more, up to ten for fewer: no row of the task is read.
    """
    peer = PEERS[name]
    if len(peer.settings) == 1:
        return peer.settings[0]
    totals = np.zeros(len(peer.settings))
    for seed in range(min(max(20_000 // n, 1), 10)):
        problem = simulated(kind, n, d, norm, 10_000 + seed)
        Z, tests = unit_rows(problem.X_train, norm), unit_rows(problem.X_test[:5000], norm)
        for k, setting in enumerate(peer.settings):
            rng = np.random.default_rng([seed, k])
            w = peer.fit(Z, problem.y_train, epsilon, delta, rng, **setting)
            totals[k] += log_loss(tests @ w, problem.y_test[:5000])
    return peer.settings[int(totals.argmin())]
