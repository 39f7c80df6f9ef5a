"""How much privacy widens a regression, by the number of rows: ``python -m benchmarks.for_whom``.

Simulated tables of five columns, uniform on [-1, 1]. `noise` is the median share of a coefficient's
standard deviation that is privacy noise (`noise_share` of `summary`), `sd` the median posterior
standard deviation; effects are 1, -1, .5, -.5 and 0. `sign` is the share of the coefficients that
are not zero whose sign the posterior finds, with probability .95.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence

import numpy as np

from skdpbayes import DPBayesianLinearRegression, DPBayesianLogisticRegression
from skdpbayes.privacy import PrivacyLeakWarning

ROWS = (200, 500, 2000, 10000, 50000)
EPSILONS = (0.1, 0.3, 1.0, 3.0)
_EFFECTS = np.array([1.0, -1.0, 0.5, -0.5, 0.0])
_NAMES = [f"x{j}" for j in range(len(_EFFECTS))]

Cell = tuple[float, float, float]


def cell(model: str, n_rows: int, epsilon: float, n_fits: int) -> Cell:
    """Median noise share, median standard deviation, and share of the signs that are found.

    Parameters
    ----------
    model : {"logistic", "linear"}
    n_rows : int
    epsilon : float
    n_fits : int
        Tables, each with a fit.

    Returns
    -------
    noise, sd, sign : float
    """
    shares, widths, signs = [], [], []
    for seed in range(n_fits):
        rng = np.random.default_rng([seed, n_rows])
        X = rng.uniform(-1, 1, size=(n_rows, len(_EFFECTS)))
        table = _summary(model, X, epsilon, seed, rng)
        shares.append(table["noise_share"])
        widths.append(table["sd"])
        known = table["p_direction"].to_numpy() > 0.95
        right = np.sign(table["estimate"].to_numpy()) == np.sign(_EFFECTS)
        signs.append((known & right)[_EFFECTS != 0])
    return float(np.median(shares)), float(np.median(widths)), float(np.mean(signs))


def _summary(model, X, epsilon, seed, rng):  # type: ignore[no-untyped-def]
    """Rows of the coefficients."""
    if model == "logistic":
        y = (X @ _EFFECTS + rng.logistic(size=len(X)) > 0).astype(int)
        own = DPBayesianLogisticRegression(
            epsilon,
            classes=[0, 1],
            data_norm=(len(_EFFECTS) / 3) ** 0.5,
            prior_df=None,
            solver="na-dpvi",
            random_state=seed,
        )
    else:
        y = X @ _EFFECTS + rng.normal(size=len(X))
        own = DPBayesianLinearRegression(epsilon, bounds=((-1, 1), (-6, 6)), random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # of the seeds; rows are simulated
        return own.fit(X, y).summary().loc[_NAMES]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["logistic", "linear"])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--fits", type=int, default=10, help="tables of each line")
    args = parser.parse_args(argv)
    print("model       rows  epsilon  noise     sd  sign")
    for model in args.models:
        for n_rows in args.rows:
            for epsilon in args.epsilons:
                noise, sd, sign = cell(model, n_rows, epsilon, args.fits)
                print(
                    f"{model:8}  {n_rows:6d}  {epsilon:7g}  {noise:5.2f}  {sd:5.2f}  {sign:4.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
