"""Priors chosen from what a fit has released, beside a private search: ``make bench-choice``.

All have one budget in total, except `refit`:

- `defaults`: one fit;
- `prior`: the same fit, with `prior_scale` and `prior_df` chosen by `choose_prior`;
- `columns`: the same fit, with nested subsets of columns too;
- `search`: `DPRandomizedSearchCV` over the priors of `prior`, five runs on average;
- `refit`: a fit under the prior that `prior` chose, which would need a second budget: the
  approximation holds as far as both agree.

Figures are mean log-loss, in thousandths, with standard errors by seed: on simulations its excess
over the true probabilities', on fresh rows; on Adult, if it can be read, log-loss and AUC on
training rows held out.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from benchmarks import _log
from benchmarks.honesty import log_loss, parsed

Array = NDArray[np.float64]

GRID: dict[str, list[Any]] = {"prior_scale": [0.03, 0.1, 0.3, 1.0, 3.0], "prior_df": [None, 4.0]}
ROWS, COLUMNS, FRESH = 5_000, 20, 5_000
RUNS = 5.0
METHODS = ("defaults", "prior", "columns", "search", "refit")


class Task(NamedTuple):
    """Rows to fit, rows to predict, and their probabilities (or labels)."""

    X: Array
    y: NDArray[np.int64]
    fresh: Array
    probability: Array
    data_norm: float | None = None
    truth: Array | None = None


def simulation(coefficients: Callable[[np.random.Generator], Array]) -> Callable[[int], Task]:
    """Independent N(0, 1) columns, and the intercept -1/2."""

    def task(seed: int) -> Task:
        rng = np.random.default_rng([seed, 8])
        w = coefficients(rng)
        X, fresh = (rng.standard_normal((n, len(w))) for n in (ROWS, FRESH))
        y = rng.uniform(size=ROWS) < expit(X @ w - 0.5)
        probability: Array = expit(fresh @ w - 0.5)
        return Task(X, y.astype(np.int64), fresh, probability, truth=np.append(w, -0.5))

    return task


def _sparse(rng: np.random.Generator) -> Array:
    return rng.permutation(np.append(rng.choice([-1.0, 1.0], 3), np.zeros(COLUMNS - 3)))


def _dense(sd: float) -> Callable[[int], Task]:
    return simulation(lambda rng: sd * rng.standard_normal(COLUMNS))


def _adult(seed: int) -> Task:
    from benchmarks.development import adult_held_out

    found = adult_held_out(seed)
    return Task(found.X_train, found.y_train, found.X_test, 1.0 * found.y_test, found.data_norm)


TASKS = {
    "sparse": simulation(_sparse),
    "dense-0.1": _dense(0.1),
    "dense-0.5": _dense(0.5),
    "dense-2": _dense(2.0),
    "adult": _adult,
}


class Figures(NamedTuple):
    """Excess log-loss (Adult: log-loss), AUC of rows with labels, and seconds.

    `held` is the share of coefficients in their 90% intervals, where the truth is known.
    """

    loss: float
    auc: float
    held: float
    seconds: float
    chosen: str


def held(fitted: Any, truth: Array | None) -> float:
    """Share of coefficients in their 90% intervals; NaN where the truth is not known."""
    if truth is None:
        return np.nan
    away = np.append(fitted.coef_[0], fitted.intercept_) - truth
    return float(np.mean(np.abs(away) <= 1.645 * fitted.posterior_.std))


def fits(
    task: Task, epsilon: float, seed: int, methods: Sequence[str], **parameters: Any
) -> dict[str, Figures]:
    """Figures by method; parameters are of the fit."""
    from skdpbayes import DPBayesianLogisticRegression
    from skdpbayes.model_selection import DPRandomizedSearchCV, choose_prior

    floor = log_loss(task.probability, task.probability)
    labelled = np.isin(task.probability, (0, 1)).all()
    new = DPBayesianLogisticRegression(
        **{"data_norm": task.data_norm} | parameters,
        epsilon=epsilon,
        classes=[0, 1],
        random_state=seed,
    )
    found = {}
    fitted: dict[str, Any] = {}

    def made(method: str) -> Any:
        if method == "search":
            search = DPRandomizedSearchCV(
                new, GRID, epsilon=epsilon, n_iter=RUNS, random_state=seed
            ).fit(task.X, task.y)
            return search, search.best_params_
        if method == "defaults":
            return clone(new).fit(task.X, task.y), {}
        if method == "refit":
            return clone(fitted["prior"]).fit(task.X, task.y), {}
        more = {"columns": ["backward"]} if method == "columns" else {}
        choice = choose_prior(fitted["defaults"], GRID | more)
        return choice.estimator, choice.params

    for method in methods:
        start = time.perf_counter()
        fitted[method], chosen = made(method)
        seconds = time.perf_counter() - start
        p = fitted[method].predict_proba(task.fresh)[:, 1]
        found[method] = Figures(
            log_loss(p, task.probability) - floor,
            float(roc_auc_score(task.probability, p)) if labelled else np.nan,
            held(getattr(fitted[method], "best_estimator_", fitted[method]), task.truth),
            seconds,
            " ".join(str(np.sum(x) if np.ndim(x) else x) for x in chosen.values()),
        )
    return found


def line(name: str, epsilon: float, method: str, figures: Sequence[Figures]) -> list[str]:
    """Row of the table; the choice is the most frequent one."""
    loss = 1e3 * np.array([own.loss for own in figures])
    auc, share = np.mean([(own.auc, own.held) for own in figures], axis=0)
    names, counts = np.unique([own.chosen for own in figures], return_counts=True)
    return [
        name,
        f"{epsilon:g}",
        method,
        f"{loss.mean():.2f}",
        f"{loss.std(ddof=1) / len(loss) ** 0.5:.2f}" if len(loss) > 1 else "",
        "" if np.isnan(auc) else f"{auc:.4f}",
        "" if np.isnan(share) else f"{share:.2f}",
        f"{np.median([own.seconds for own in figures]):.2f}",
        str(names[counts.argmax()]),
    ]


HEADER = ["task", "epsilon", "method", "log-loss", "+-", "AUC", "held", "s", "most often"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), metavar="TASK")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.1, 0.3, 1.0])
    parser.add_argument("--seeds", type=int, default=10, help="(default: %(default)s)")
    parser.add_argument("--parameters", nargs="+", default=[], metavar="NAME=VALUE", help="of fits")
    options = parser.parse_args(arguments)
    parameters = parsed(options.parameters)

    names = options.tasks or list(TASKS)
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about seeds and delta
        for name in names:
            try:
                tasks = [TASKS[name](seed) for seed in range(options.seeds)]
            except (FileNotFoundError, ConnectionError) as error:
                print(f"{name}: {error}")
                continue
            for epsilon in options.epsilons:
                found = [
                    fits(task, epsilon, seed, METHODS, **parameters)
                    for seed, task in enumerate(tasks)
                ]
                for method in METHODS:
                    rows.append(line(name, epsilon, method, [own[method] for own in found]))
                    print("  ".join(rows[-1]), flush=True)
    print("\n" + _log.table(HEADER, rows))


if __name__ == "__main__":
    main()
