"""How often 95% credible intervals of coefficients cover the truth: ``make bench-coverage``.

The first coefficient is the largest, where a bias shows first. Errors and standard deviations of a
calibrated posterior agree: the standardised errors have mean 0 and standard deviation 1.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks import _log
from benchmarks.problems import clip_rows

INTERCEPT = 0.5
# rows, columns, epsilon, the first coefficients (the others are zero)
SETTINGS: list[tuple[int, int, float, list[float]]] = [
    (500, 2, 1.0, [1.0, -1.0]),
    (2_000, 3, 0.3, [2.0, -1.0]),
    (2_000, 3, 1.0, [2.0, -1.0]),
    (2_000, 3, 10.0, [2.0, -1.0]),
    (5_000, 10, 0.3, [1.5, -1.0, 0.5]),
    (5_000, 10, 1.0, [1.5, -1.0, 0.5]),
    (20_000, 3, 1.0, [2.0, -1.0]),
    (30_000, 30, 1.0, [1.0, -1.0, 0.5]),
]
# rows, epsilon: two numbers and two one-hot variables, one with a category that nobody has
ONE_HOT = [(3_000, 0.3), (3_000, 1.0), (30_000, 1.0)]


def standardised_error(
    X: NDArray[np.float64], truth: NDArray[np.float64], rng: np.random.Generator, **parameters: Any
) -> NDArray[np.float64]:
    """(estimate - truth) / posterior standard deviation; the intercept is last in `truth`."""
    from skdpbayes import DPBayesianLogisticRegression

    y = (rng.uniform(size=len(X)) < expit(X @ truth[:-1] + truth[-1])).astype(int)
    posterior = DPBayesianLogisticRegression(classes=[0, 1], **parameters).fit(X, y).posterior_
    return np.asarray((posterior.mean - truth) / posterior.std)


def one_hot_errors(n: int, epsilon: float, fits: int, **parameters: Any) -> NDArray[np.float64]:
    """As `standardised_errors`, for columns collinear with the intercept, truth from the prior."""
    errors = []
    for seed in range(fits):
        rng = np.random.default_rng(seed)
        categories = np.eye(2)[rng.integers(0, 2, n)], np.eye(4)[rng.integers(0, 3, n)]
        X, truth = np.hstack([rng.uniform(-1, 1, (n, 2)), *categories]), rng.standard_normal(9)
        errors.append(
            standardised_error(
                X, truth, rng, epsilon=epsilon, data_norm=2.0, random_state=seed, **parameters
            )
        )
    return np.array(errors)


def standardised_errors(
    n: int, d: int, epsilon: float, first: list[float], fits: int, **parameters: Any
) -> NDArray[np.float64]:
    """Of `fits` data sets: an array of shape (fits, d + 1)."""
    truth = np.array([*first, *[0.0] * (d - len(first)), INTERCEPT])
    errors = []
    for seed in range(fits):
        rng = np.random.default_rng(seed)
        X = clip_rows(rng.standard_normal((n, d)), d**0.5)
        errors.append(
            standardised_error(
                X, truth, rng, epsilon=epsilon, prior_scale=2.0, random_state=seed, **parameters
            )
        )
    return np.array(errors)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--fits", type=int, default=200, help="data sets per line (default: %(default)s)"
    )
    parser.add_argument(
        "--solver",
        default="dpvi",
        choices=["dpvi", "na-dpvi", "sgld"],
        help="(default: %(default)s)",
    )
    options = parser.parse_args()
    fits, solver = options.fits, options.solver
    rows = []

    def add(n: int, columns: str, epsilon: float, z: NDArray[np.float64]) -> None:
        covered = np.abs(z) < 1.96
        figures = covered.mean(), covered[:, 0].mean(), z[:, 0].mean(), z.std()
        rows.append([f"{n}", columns, f"{epsilon:g}", *(f"{figure:.2f}" for figure in figures)])

    for n, d, epsilon, first in SETTINGS:
        add(n, f"{d}", epsilon, standardised_errors(n, d, epsilon, first, fits, solver=solver))
    for n, epsilon in ONE_HOT:
        add(n, "8, one-hot", epsilon, one_hot_errors(n, epsilon, fits, solver=solver))
    header = [
        "rows",
        "columns",
        "epsilon",
        "covered",
        "first covered",
        "first: mean error",
        "sd of errors",
    ]
    print(
        f"95% intervals of {solver}, {fits} data sets a line; errors in posterior standard "
        "deviations.\n"
    )
    print(_log.table(header, rows))


if __name__ == "__main__":
    main()
