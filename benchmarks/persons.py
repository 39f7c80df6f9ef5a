"""Persons with several rows: what they cost, and whether intervals hold: ``make bench-persons``.

Each line simulates data sets of persons, fits each with the person as the unit of privacy, and says
how often 90% intervals of the parameters hold the truth, the root mean square of the standardised
errors, and how much wider posteriors are than with the row as the unit, of the same rows at the
same epsilon. Rows of a person are ``all``: as many as may count, independent; ``one to``: one to
as many; ``alike``: half of the variance of their columns is the person's own.

A second table has densities: the log-likelihood that a row loses against a fit with the row as the
unit, if the person is the unit, and if each row has a part of the epsilon (group privacy). There,
rows that are ``alike`` have the person's own topics or component.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from benchmarks import _log

COMPARED = 3  # fits of each line that are repeated with the row as the unit


class Drawn(NamedTuple):
    """Rows, responses (None for densities), and the truth."""

    X: NDArray[Any]
    y: NDArray[Any] | None
    truth: NDArray[Any]


class Cell(NamedTuple):
    """One line of the table.

    Attributes
    ----------
    model, solver : str
        Name in `MODELS`, and its solver.
    epsilon : float
    persons, most, columns : int
    rows : str
        As above.
    """

    model: str
    solver: str
    epsilon: float
    persons: int
    most: int
    columns: int
    rows: str


def logistic(rng: np.random.Generator, X: NDArray[Any]) -> Drawn:
    """Coefficients and intercept from N(0, 1)."""
    truth = rng.normal(size=X.shape[1] + 1)
    y = (X @ truth[:-1] + truth[-1] + rng.logistic(size=len(X)) > 0).astype(int)
    return Drawn(X, y, truth)


def rare(rng: np.random.Generator, X: NDArray[Any]) -> Drawn:
    """As `logistic`, with about 4% of outcomes."""
    truth = np.append(rng.normal(size=X.shape[1]) / 2, -3.5)
    y = (X @ truth[:-1] + truth[-1] + rng.logistic(size=len(X)) > 0).astype(int)
    return Drawn(X, y, truth)


def linear(rng: np.random.Generator, X: NDArray[Any]) -> Drawn:
    """Coefficients from N(0, 1), noise of one."""
    truth = rng.normal(size=X.shape[1])
    return Drawn(X, X @ truth + rng.normal(size=len(X)), truth)


def binary(rng: np.random.Generator, X: NDArray[Any]) -> Drawn:
    """Independent binary columns."""
    truth = rng.uniform(0.1, 0.9, X.shape[1])
    return Drawn((rng.random(X.shape) < truth).astype(float), None, truth)


def repeated(rng: np.random.Generator, X: NDArray[Any]) -> Drawn:
    """Binary columns of these shares whose rows are alike, by a normal copula of the columns."""
    truth = np.array([0.03, 0.4, 0.9])[: X.shape[1]]
    return Drawn((norm.cdf(X) < truth).astype(float), None, truth)


def counts(rng: np.random.Generator, X: NDArray[Any]) -> Drawn:
    """A Poisson regression with an intercept in the last column."""
    X = np.column_stack([X, np.ones(len(X))])
    truth = np.append(0.3 * rng.normal(size=X.shape[1] - 1), 0.5)
    return Drawn(X, rng.poisson(np.exp(np.clip(X @ truth, -10, 4))).astype(float), truth)


def _poisson(x: Any, y: Any = None) -> None:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def estimator(cell: Cell, **more: Any) -> Any:
    """Estimator of a line."""
    import skdpbayes

    how: dict[str, Any] = {"epsilon": cell.epsilon, "solver": cell.solver, **more}
    if cell.model in ("logistic", "rare"):
        return skdpbayes.DPBayesianLogisticRegression(classes=[0, 1], **how)
    if cell.model == "linear":
        return skdpbayes.DPBayesianLinearRegression(bounds=((-4, 4), (-12, 12)), **how)
    if cell.model in ("binary", "repeated"):
        return skdpbayes.DPBetaBernoulli(**how)
    return skdpbayes.DPNumPyroModel(_poisson, **how)


def draws_of(fitted: Any, cell: Cell) -> NDArray[np.float64]:
    """Posterior draws of the parameters of `truth`, (n, n_parameters)."""
    draws = fitted.posterior_samples_
    if cell.model in ("logistic", "rare"):
        parts = [draws["coef"][:, 0], draws["intercept"]]
        return np.hstack([np.asarray(part) for part in parts])
    if cell.model == "linear":
        return np.asarray(draws["coef"])
    return np.asarray(draws["w"] if cell.model == "counts" else draws)


MODELS: dict[str, Callable[[np.random.Generator, NDArray[Any]], Drawn]] = {
    "logistic": logistic,
    "rare": rare,
    "linear": linear,
    "binary": binary,
    "repeated": repeated,
    "counts": counts,
}

CELLS = [
    Cell("logistic", "na-dpvi", 1.0, 2_000, 5, 5, "all"),
    Cell("logistic", "na-dpvi", 1.0, 2_000, 5, 5, "one to"),
    Cell("logistic", "na-dpvi", 1.0, 2_000, 5, 5, "alike"),
    Cell("logistic", "na-dpvi", 0.3, 1_000, 10, 3, "one to"),
    Cell("logistic", "na-dpvi", 3.0, 20_000, 3, 8, "alike"),
    Cell("rare", "na-dpvi", 1.0, 4_000, 5, 4, "all"),
    Cell("logistic", "dpvi", 1.0, 2_000, 5, 5, "all"),
    Cell("logistic", "sgld", 2.0, 4_000, 5, 5, "one to"),
    Cell("linear", "na-dpvi", 1.0, 2_000, 5, 4, "all"),
    Cell("linear", "na-dpvi", 1.0, 2_000, 5, 4, "one to"),
    Cell("binary", "na-dpvi", 1.0, 2_000, 5, 3, "one to"),
    Cell("binary", "dpvi", 1.0, 2_000, 5, 3, "all"),
    Cell("counts", "na-dpvi", 1.0, 2_000, 5, 3, "one to"),
    Cell("counts", "na-dpvi", 3.0, 1_000, 3, 3, "all"),
    Cell("counts", "dpvi", 1.0, 2_000, 5, 3, "all"),
    Cell("logistic", "vips", 1.0, 2_000, 5, 5, "all"),
    Cell("logistic", "vips", 3.0, 1_000, 3, 3, "alike"),
    Cell("linear", "vips", 1.0, 2_000, 5, 4, "one to"),
    Cell("linear", "vips", 3.0, 1_000, 3, 4, "alike"),
    Cell("binary", "vips", 1.0, 2_000, 5, 3, "all"),
    Cell("binary", "vips", 0.3, 1_000, 10, 3, "one to"),
    Cell("repeated", "vips", 1.0, 2_000, 5, 3, "alike"),
    Cell("repeated", "vips", 2.0, 20_000, 5, 3, "alike"),
]


class Density(NamedTuple):
    """A line of the table of densities; as `Cell`."""

    model: str
    solver: str
    epsilon: float
    persons: int
    most: int
    rows: str


def topics(rng: np.random.Generator, owner: NDArray[Any], alike: bool) -> NDArray[Any]:
    """Documents of about 80 words, of five topics over 200 words."""
    words = rng.dirichlet(np.full(200, 0.05), 5)
    proportions = rng.dirichlet(np.full(5, 0.1), len(owner))
    proportions = proportions[owner] if alike else proportions
    return rng.multinomial(rng.poisson(80, len(owner)), proportions @ words).astype(float)


def mixture(rng: np.random.Generator, owner: NDArray[Any], alike: bool) -> NDArray[Any]:
    """Three normal components in the plane."""
    means, label = 3 * rng.normal(size=(3, 2)), rng.integers(0, 3, len(owner))
    return means[label[owner] if alike else label] + rng.normal(size=(len(owner), 2))


def network(rng: np.random.Generator, owner: NDArray[Any], alike: bool) -> NDArray[Any]:
    """Thirty pixels that five hidden units explain."""
    weights, hidden = 2 * rng.normal(size=(30, 5)), rng.random((len(owner), 5)) < 0.5
    logits = ((hidden[owner] if alike else hidden) - 0.5) @ weights.T
    return (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)


DENSITIES: dict[str, Callable[[np.random.Generator, NDArray[Any], bool], NDArray[Any]]] = {
    "topics": topics,
    "mixture": mixture,
    "network": network,
}

LINES = [
    *(Density("topics", own, 1.0, 3_000, 5, "all") for own in ("vips", "na-dpvi", "dpvi")),
    Density("topics", "vips", 1.0, 3_000, 5, "alike"),
    *(Density("mixture", own, 0.5, 2_000, 5, "all") for own in ("vips", "na-dpvi", "dpvi")),
    Density("mixture", "vips", 0.5, 2_000, 5, "alike"),
    *(Density("network", own, 0.3, 4_000, 5, "all") for own in ("na-dpvi", "dpvi")),
    Density("network", "dpvi", 0.3, 4_000, 5, "alike"),
]


def density(of: Density, **more: Any) -> Any:
    """Estimator of a line of the second table."""
    import skdpbayes

    how: dict[str, Any] = {"solver": of.solver, "epsilon": of.epsilon, "random_state": 0} | more
    if of.model == "topics":
        return skdpbayes.DPLatentDirichletAllocation(n_components=5, **how)
    if of.model == "mixture":
        return skdpbayes.DPGaussianMixture(n_components=3, bounds=(-12, 12), **how)
    return skdpbayes.DPSigmoidBeliefNet(5, **how)


def lost(of: Density, fits: int) -> NDArray[np.float64]:
    """Nats a row (a word, of topics) that persons and group privacy lose, (fits, 2)."""

    def score(model: Any, X: NDArray[Any]) -> float:
        return -np.log(model.perplexity(X)) if of.model == "topics" else float(model.score(X))

    out = []
    for seed in range(fits):
        owner = np.repeat(np.arange(of.persons + 500), of.most)
        X = DENSITIES[of.model](np.random.default_rng(seed), owner, of.rows == "alike")
        train = owner < of.persons
        row = density(of).fit(X[train])
        person = density(of, max_rows_per_person=of.most).fit(X[train], groups=owner[train])
        part = density(of, epsilon=of.epsilon / of.most).fit(X[train])
        by_row, *others = (score(model, X[~train]) for model in (row, person, part))
        out.append([by_row - other for other in others])
    return np.array(out)


def persons(cell: Cell, seed: int) -> tuple[Drawn, NDArray[np.int64]]:
    """A data set, and whose each row is."""
    rng = np.random.default_rng(seed)
    each = np.full(cell.persons, cell.most)
    if cell.rows == "one to":
        each = rng.integers(1, cell.most + 1, cell.persons)
    owner = np.repeat(np.arange(cell.persons), each)
    X = rng.normal(size=(len(owner), cell.columns))
    if cell.rows == "alike":
        X = (X + rng.normal(size=(cell.persons, cell.columns))[owner]) / 2**0.5
    return MODELS[cell.model](rng, X), owner


def measured(cell: Cell, fits: int, by_row: bool = False) -> tuple[NDArray[np.float64], float]:
    """Standardised errors, (fits, n_parameters), and the width over that of rows.

    `by_row` makes the row the unit.
    """
    errors, widths = [], []
    for seed in range(fits):
        data, owner = persons(cell, seed)
        rows = (data.X,) if data.y is None else (data.X, data.y)
        if by_row:
            fitted = estimator(cell).fit(*rows)
        else:
            fitted = estimator(cell, max_rows_per_person=cell.most).fit(*rows, groups=owner)
        draws = draws_of(fitted, cell)
        errors.append((draws.mean(axis=0) - data.truth) / draws.std(axis=0))
        if seed < COMPARED and not by_row:
            of_rows = draws_of(estimator(cell).fit(*rows), cell)
            widths.append(draws.std(axis=0) / of_rows.std(axis=0))
    return np.array(errors), 1.0 if by_row else float(np.mean(widths))


def line(cell: Cell, z: NDArray[np.float64], width: float) -> list[str]:
    """Line of the table."""
    held = np.abs(z) < 1.645
    return [
        *(cell.model, cell.solver, f"{cell.epsilon:g}", f"{cell.persons} x {cell.columns}"),
        f"{cell.rows} {cell.most}" if cell.rows == "one to" else f"{cell.most}, {cell.rows}",
        *(f"{held.mean():.3f}", f"{held.mean(axis=0).min():.2f}"),
        *(f"{np.sqrt(np.mean(z**2)):.2f}", f"{width:.2f}"),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fits", type=int, default=40, help="data sets of a line (%(default)s)")
    names = [*MODELS, *DENSITIES]
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--solvers", nargs="+", help="those of the lines (all)")
    parser.add_argument("--by-row", action="store_true", help="the row as the unit instead")
    parser.add_argument("--epsilon", type=float, help="that of all lines (each its own)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    header = ["model", "solver", "epsilon", "persons", "rows", "held", "least", "rms z", "width"]
    lines = []
    for cell in CELLS:
        if cell.model in options.models and cell.solver in (options.solvers or [cell.solver]):
            cell = cell._replace(epsilon=options.epsilon or cell.epsilon)
            lines.append(line(cell, *measured(cell, options.fits, options.by_row)))
            print(*lines[-1], sep="  ", flush=True)
    if lines:
        print("\n" + _log.table(header, lines) + "\n")
    header = ["model", "solver", "epsilon", "persons", "rows", "person loses", "group privacy"]
    lines = []
    for of in LINES:
        if of.model in options.models and of.solver in (options.solvers or [of.solver]):
            of = of._replace(epsilon=options.epsilon or of.epsilon)
            losses = lost(of, -(-options.fits // 10)).mean(axis=0)
            lines.append(
                [*map(str, of[:4]), f"{of.most}, {of.rows}", *(f"{x:.4f}" for x in losses)]
            )
            print(*lines[-1], sep="  ", flush=True)
    if lines:
        print("\n" + _log.table(header, lines))


if __name__ == "__main__":
    main()
