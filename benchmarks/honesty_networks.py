"""Calibration of networks: ``make bench-honesty HONESTY_ARGS="--cells network"``.

A cell is a task, a number of rows, a budget and a solver. Simulated tasks know the true
probabilities, so the excess of the log-loss is printed, too. ``pixels`` and ``convolutions`` are
MNIST at epsilon 1, where the folder that ``SKDPBAYES_DATA_HOME`` names has it; fits see training
rows and are scored on other training rows.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax

from benchmarks import _log, _mnist, dp_sgld

FITS = 5
TEST_ROWS = 20_000
MOST = 0.02  # expected calibration error


# From rows of standard normal columns to the logits of all classes.


def _product(X: np.ndarray) -> np.ndarray:
    """Two classes, by the product of two columns."""
    return np.stack([np.zeros(len(X)), 3 * X[:, 0] * X[:, 1]], axis=1)


def _teacher(X: np.ndarray) -> np.ndarray:
    """Four classes of a network with twenty hidden units."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(10, 20)) * 1.5 / 10**0.5
    return np.tanh(X @ first) @ (rng.normal(size=(20, 4)) * 3 / 20**0.5)


def _weak(X: np.ndarray) -> np.ndarray:
    """Three classes of which columns say little."""
    return 0.3 * X @ np.random.default_rng(1).normal(size=(10, 3))


def _rare(X: np.ndarray) -> np.ndarray:
    """Two classes, one of a row in 25."""
    return np.stack([np.zeros(len(X)), -4.5 + 1.5 * X[:, 0] + X[:, 1] * X[:, 2]], axis=1)


TASKS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int]] = {
    "product": (_product, 2),
    "teacher": (_teacher, 10),
    "weak": (_weak, 10),
    "rare": (_rare, 5),
}


@dataclass(frozen=True)
class Cell:
    """One line."""

    task: str
    n_rows: int
    epsilon: float
    solver: str


def cells() -> dict[str, Cell]:
    """Cells by name."""
    found = [
        Cell(task, n, epsilon, solver)
        for task in TASKS
        for n, epsilon in ((500, 2.0), (3_000, 0.5), (3_000, 8.0), (30_000, 1.0))
        for solver in ("dpvi", "sghmc")
    ]
    found += [
        Cell(task, 50_000, 1.0, solver)
        for task in ("pixels", "convolutions")
        for solver in ("dpvi", "sghmc")
    ]
    return {f"network-{x.task}-{x.n_rows}-{x.epsilon:g}-{x.solver}": x for x in found}


def simulate(cell: Cell, seed: int) -> tuple[np.ndarray, ...]:
    """Rows and classes to fit, rows and classes to score, and the true logits of the latter."""
    law, d = TASKS[cell.task]
    rng = np.random.default_rng([seed, cell.n_rows])
    X = rng.standard_normal((cell.n_rows + TEST_ROWS, d))
    logits = law(X)
    y = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    n = cell.n_rows
    return X[:n], y[:n], X[n:], y[n:], logits[n:]


def fit(cell: Cell, seed: int, parameters: dict[str, Any]) -> dict[str, float]:
    """Figures of one fit."""
    from skdpbayes import DPBayesianMLPClassifier

    own: dict[str, Any] = {"hidden_layer_sizes": (20,), "activation": "tanh"}
    best = None
    if cell.task in TASKS:
        X, y, X_test, y_test, logits = simulate(cell, seed)
        best = -log_softmax(logits, axis=1)[np.arange(len(y_test)), y_test].mean()
        own["classes"] = range(logits.shape[1])
    else:
        train, y, test, y_test = _mnist.load(holdout=True)
        name = "784-100-10" if cell.task == "pixels" else "convolutional"
        X, X_test = (dp_sgld.features(name, x) for x in (train, test))
        own |= {"classes": range(10), "data_norm": 60.0, **dp_sgld.NETWORKS[name]}
    model = DPBayesianMLPClassifier(
        epsilon=cell.epsilon,
        numerics="fast",
        random_state=seed,
        **{**own, **dp_sgld.SOLVERS[cell.solver], **parameters},
    )
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    proba = model.predict_proba(X_test)
    found = dp_sgld.scores(proba, y_test)
    return {
        **found,
        "excess": float("nan") if best is None else found["loss"] - float(best),
        "confidence": float(proba.max(axis=1).mean()),
        "seconds": seconds,
    }


HEADER = ["cell", "fits", "accuracy", "confidence", "log-loss", "excess", "ECE", "s", ""]


def calibrated(found: dict[str, float]) -> bool:
    """Whether the calibration error is within its limit."""
    return found["ece"] <= MOST


def row(name: str, found: dict[str, float]) -> list[str]:
    """A line of the table."""
    return [
        name,
        f"{found['fits']:.0f}",
        *(f"{found[k]:.3f}" for k in ("accuracy", "confidence", "loss", "excess", "ece")),
        f"{found['seconds']:.1f}",
        "" if calibrated(found) else "OUT",
    ]


def run(
    names: Sequence[str], seeds: int | None, parameters: dict[str, Any]
) -> dict[str, dict[str, float] | str]:
    """Mean figures of cells, printed as they come, or why there are none."""
    known, results = cells(), dict[str, dict[str, float] | str]()
    print("  ".join(HEADER), flush=True)
    for name in names:
        cell = known[name]
        fits = seeds or (FITS if cell.task in TASKS else 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of chains and of the default delta
            try:
                found = [fit(cell, seed, parameters) for seed in range(fits)]
            except (ValueError, SystemExit) as error:
                results[name] = str(error)
                print(f"{name}  {error}", flush=True)
                continue
        means = {key: float(np.mean([x[key] for x in found])) for key in found[0]}
        results[name] = {"fits": fits, **means}
        print("  ".join(row(name, results[name])), flush=True)
    return results


def table(results: dict[str, dict[str, float] | str]) -> str:
    """All cells, those without figures below."""
    made = {name: x for name, x in results.items() if not isinstance(x, str)}
    lines = [_log.table(HEADER, [row(name, x) for name, x in made.items()])]
    held = sum(calibrated(x) for x in made.values())
    lines.append(f"{held} of {len(made)} cells have an ECE of at most {MOST}.")
    none = {name: x for name, x in results.items() if isinstance(x, str)}
    return "\n".join(lines + [f"NONE {name}: {x}" for name, x in none.items()])
