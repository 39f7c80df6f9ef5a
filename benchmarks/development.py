"""Utility of the defaults where they may be tuned: simulated problems, held-out training rows.

``python -m benchmarks.development --epsilons 0.1 1 --seeds 2``. Test splits that we report on are
never read here.
"""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np

from benchmarks import _log
from benchmarks.problems import _RECIPES, DEVELOPMENT_PROBLEMS, Problem
from benchmarks.utility import METRICS, adult, make_estimator, score

LARGEST = 100_000  # rows of the largest problem in the default selection


def adult_held_out(seed: int, kept: float = 0.75) -> Problem:
    """A share of Adult's training rows, chosen by the seed, and the others to predict."""
    whole = adult(seed)
    order = np.random.default_rng(seed).permutation(len(whole.X_train))
    cut = int(kept * len(order))
    X, y = whole.X_train[order], whole.y_train[order]
    return dataclasses.replace(
        whole,
        name="adult-held-out",
        X_train=X[:cut],
        y_train=y[:cut],
        X_test=X[cut:],
        y_test=y[cut:],
    )


PROBLEMS = {**DEVELOPMENT_PROBLEMS, "adult-held-out": adult_held_out}


def main() -> None:
    """Run what the command line asks for and print means by problem and over all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), metavar="PROBLEM")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.1, 1.0])
    parser.add_argument(
        "--seeds", type=int, default=2, help="fits per problem and level (default: %(default)s)"
    )
    options = parser.parse_args()
    small = [name for name, recipe in _RECIPES.items() if recipe.n_train <= LARGEST]
    chosen = options.problems or [*small, "adult-held-out"]

    means: dict[float, list[np.ndarray]] = {epsilon: [] for epsilon in options.epsilons}
    rows = []
    for name in chosen:
        problems = [PROBLEMS[name](seed) for seed in range(options.seeds)]
        for epsilon in options.epsilons:
            figures = []
            for seed, problem in enumerate(problems):
                estimator = make_estimator(epsilon, problem, seed).fit(
                    problem.X_train, problem.y_train
                )
                found = score(estimator, problem)
                figures.append([found[metric] for metric in METRICS])
            means[epsilon].append(np.mean(figures, axis=0))
            rows.append([name, f"{epsilon:g}", *(f"{value:.4f}" for value in means[epsilon][-1])])
    rows += [
        ["mean of all", f"{epsilon:g}", *(f"{v:.4f}" for v in np.mean(m, axis=0))]
        for epsilon, m in means.items()
    ]
    print(_log.table(["problem", "epsilon", "accuracy", "AUC", "log-loss"], rows))


if __name__ == "__main__":
    main()
