"""Coverage of estimators at settings drawn at random: run with ``--help``.

The cells of ``benchmarks.honesty`` were chosen by us. Here numbers of rows and columns, epsilon,
designs, truths and declared parameters are drawn, so that faults show that no cell was made for.
A setting is given by its family and its number: ``--families mixture --first 7 --settings 1`` runs
one again.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks import honesty_models
from benchmarks.honesty import autoregressive, lognormal, normal, one_hot, parsed, student
from benchmarks.honesty_models import Cell, Values

Rng = np.random.Generator
Setting = tuple[str, Cell]

_DESIGNS = {
    "normal": normal,
    "ar": autoregressive,
    "one-hot": one_hot,
    "lognormal": lognormal,
    "student": student,
    "uniform": lambda rng, n, d: rng.uniform(size=(n, d)),
    "counts": lambda rng, n, d: np.minimum(rng.poisson(1.5, (n, d)), 8).astype(float),
}


def _one_of(rng: Rng, *options: Any) -> Any:
    return options[rng.integers(len(options))]


def _size(rng: Rng, low: float, high: float) -> int:
    """Number of rows, uniform on a logarithmic scale."""
    return int(10 ** rng.uniform(low, high))


def _privacy(rng: Rng, low: float = -0.7) -> dict[str, Any]:
    """Epsilon, uniform on a logarithmic scale, and adjacency."""
    epsilon = float(np.round(10 ** rng.uniform(low, 0.9), 2))
    adjacency = _one_of(rng, "zero_out", "zero_out", "add_remove", "replace_one")
    # The number of records is not public then, and no rate is taken from it.
    rate = {"sampling_rate": 1.0} if adjacency == "add_remove" else {}
    return {"epsilon": epsilon, "adjacency": adjacency, **rate}


def _norm(rng: Rng, kind: str, d: int) -> float:
    """Norm that one in twenty rows exceeds."""
    return float(np.quantile(np.linalg.norm(_DESIGNS[kind](rng, 4_000, d), axis=1), 0.95))


def _text(**values: Any) -> str:
    return " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
    )


# --- Families -------------------------------------------------------------------------------------


def logistic(rng: Rng, norms: tuple[float, ...] = (1.0,)) -> Setting:
    """Two classes."""
    kind, n, d = _one_of(rng, *_DESIGNS), _size(rng, 2.7, 5), int(_one_of(rng, 2, 3, 5, 10, 20))
    own = _privacy(rng)
    sd, level = float(_one_of(rng, 0.3, 1.0)), float(rng.normal(0, 1.5))
    norm = _norm(rng, kind, d)
    longer = float(_one_of(rng, *norms))
    norm *= longer

    def estimator() -> Any:
        from skdpbayes import DPBayesianLogisticRegression

        return DPBayesianLogisticRegression(classes=[0, 1], data_norm=norm, **own)

    def truths(rng: Rng, fits: int) -> Values:
        return {"coef": rng.normal(0, sd, (fits, 1, d)), "intercept": np.full((fits, 1), level)}

    cell = Cell(estimator, n, truths, d, lambda rng: _DESIGNS[kind](rng, n, d))
    told = {"norm": longer} if longer > 1 else {}
    return _text(design=kind, n=n, d=d, sd=sd, intercept=level, **told, **own), cell


def norms(rng: Rng) -> Setting:
    """As `logistic`, with norms of rows that are too large."""
    return logistic(rng, (3.0, 10.0, 30.0))


def classes(rng: Rng) -> Setting:
    """Three classes and more, with truths of the prior."""
    kind, n, d = _one_of(rng, *_DESIGNS), _size(rng, 2.7, 4.7), int(_one_of(rng, 2, 3, 5, 10))
    own = _privacy(rng)
    k = int(_one_of(rng, 3, 4, 6))
    norm = _norm(rng, kind, d)

    def estimator() -> Any:
        from skdpbayes import DPBayesianLogisticRegression

        return DPBayesianLogisticRegression(classes=list(range(k)), data_norm=norm, **own)

    cell = Cell(estimator, n, None, d, lambda rng: _DESIGNS[kind](rng, n, d))
    return _text(design=kind, n=n, d=d, classes=k, **own), cell


def linear(rng: Rng, looser: tuple[float, ...] = (1.0, 2.0, 5.0)) -> Setting:
    """Bounds are those of the rows, or looser."""
    kind, n, d = _one_of(rng, *_DESIGNS), _size(rng, 2.5, 5), int(_one_of(rng, 2, 3, 5, 10, 20))
    own = _privacy(rng, -1)
    sd, noise = float(_one_of(rng, 0.1, 0.3, 1.0)), float(_one_of(rng, 0.1, 0.5, 1.0))
    loose = float(_one_of(rng, *looser))
    rows = _DESIGNS[kind](rng, 20_000, d)
    low, high = rows.min(axis=0), rows.max(axis=0)
    middle, half = (low + high) / 2, (high - low) / 2 * loose
    reach = loose * 4 * float(np.hypot(sd * np.sqrt((rows**2).sum(axis=1).mean()), noise))

    def estimator() -> Any:
        from skdpbayes import DPBayesianLinearRegression

        bounds = ((middle - half, middle + half), (-reach, reach))
        return DPBayesianLinearRegression(bounds=bounds, **own)

    def truths(rng: Rng, fits: int) -> Values:
        return {
            "coef": rng.normal(0, sd, (fits, d)),
            "intercept": rng.normal(0, sd, fits),
            "noise_std": np.full(fits, noise),
        }

    cell = Cell(estimator, n, truths, d, lambda rng: _DESIGNS[kind](rng, n, d))
    return _text(design=kind, n=n, d=d, sd=sd, noise=noise, loose=loose, **own), cell


def loose(rng: Rng) -> Setting:
    """As `linear`, with bounds that say little."""
    return linear(rng, (30.0, 300.0, 3000.0))


def categories(rng: Rng) -> Setting:
    """Linear regression on a variable of unequal categories, the first left out, and numbers."""
    k, n, own = int(_one_of(rng, 4, 6, 10)), _size(rng, 3, 5), _privacy(rng, -0.7)
    rarest = float(_one_of(rng, 0.005, 0.01, 0.03))
    share = np.r_[rarest, np.sort(rng.dirichlet(np.full(k - 1, 2.0)))]
    share = share[::-1] / share.sum()
    sd, noise = float(_one_of(rng, 0.3, 1.0)), float(_one_of(rng, 0.3, 1.0))
    loose = float(_one_of(rng, 1.0, 3.0, 10.0))
    reach = loose * 4 * float(np.hypot(sd, noise))
    ends = np.r_[np.zeros(k - 1), -1, -1], np.ones(k + 1)

    def design(rng: Rng) -> np.ndarray:
        level = rng.choice(k, n, p=share)
        return np.c_[np.eye(k)[level][:, 1:], rng.uniform(-1, 1, n), rng.normal(0, 0.3, n)]

    def estimator() -> Any:
        from skdpbayes import DPBayesianLinearRegression

        return DPBayesianLinearRegression(bounds=(ends, (-reach, reach)), **own)

    def truths(rng: Rng, fits: int) -> Values:
        return {
            "coef": rng.normal(0, sd, (fits, k + 1)),
            "intercept": rng.normal(0, sd, fits),
            "noise_std": np.full(fits, noise),
        }

    cell = Cell(estimator, n, truths, k + 1, design)
    return _text(n=n, k=k, rarest=rarest, sd=sd, noise=noise, loose=loose, **own), cell


def mixture(rng: Rng) -> Setting:
    """Normal components at random places, at least a given distance apart."""
    k, d, kind = (
        int(_one_of(rng, 2, 3, 4)),
        int(_one_of(rng, 1, 2, 3, 5)),
        _one_of(rng, "full", "diag", "spherical", "tied"),
    )
    n, own = _size(rng, 3, 5), _privacy(rng, -0.3)
    apart, spread = float(_one_of(rng, 2.5, 4.0, 6.0)), float(_one_of(rng, 0.5, 1.0))
    bound = 4 * apart * spread * float(_one_of(rng, 1.0, 2.0))
    reach = 1.5 * apart * spread
    means = rng.uniform(-reach, reach, (10_000, k, d))
    away = np.linalg.norm(means[:, :, None] - means[:, None], axis=3) + 1e9 * np.eye(k)
    means = means[np.argmax(np.minimum(away.min(axis=(1, 2)), apart * spread))]
    weights = rng.dirichlet(np.full(k, 5.0))
    covariances = np.tile(spread**2 * np.eye(d), (k, 1, 1))
    values = {"weights": weights, "means": means, "covariances": covariances}

    def estimator() -> Any:
        from skdpbayes import DPGaussianMixture

        return DPGaussianMixture(
            n_components=k, covariance_type=kind, bounds=(-bound, bound), **own
        )

    def truths(rng: Rng, fits: int) -> Values:
        del rng
        return {name: np.stack([value] * fits) for name, value in values.items()}

    cell = Cell(estimator, n, truths, d)
    return _text(n=n, d=d, k=k, kind=kind, apart=apart, spread=spread, bound=bound, **own), cell


def conjugate(rng: Rng) -> Setting:
    """Bernoulli, categorical and exponential rows."""
    name, n = _one_of(rng, "bernoulli", "categorical", "exponential"), _size(rng, 1.7, 5)
    own = _privacy(rng, -1.3)
    solver, level = _one_of(rng, "vips", "na-dpvi", "dpvi", "sgld"), 10 ** rng.uniform(-2, 0)
    k = int(_one_of(rng, 2, 4, 10))
    loose = float(_one_of(rng, 3.0, 10.0))

    def estimator() -> Any:
        from skdpbayes import DPBetaBernoulli, DPDirichletCategorical, DPGammaExponential

        if name == "bernoulli":
            return DPBetaBernoulli(solver=solver, **own)
        if name == "categorical":
            return DPDirichletCategorical(categories=list(range(k)), solver=solver, **own)
        return DPGammaExponential(upper=loose / level, prior_rate=1 / level, solver=solver, **own)

    def truths(rng: Rng, fits: int) -> Values:
        if name == "bernoulli":
            return {"probability": np.full((fits, 1), level / 2)}
        if name == "categorical":
            return {"probability": rng.dirichlet(np.full(k, 0.7), fits)}
        return {"rate": np.full((fits, 1), level)}

    cell = Cell(estimator, n, truths, None)
    return _text(model=name, n=n, solver=solver, level=float(level), k=k, **own), cell


def hierarchy(rng: Rng) -> Setting:
    """Logistic regression of groups, with truths of the prior."""
    groups, columns = int(_one_of(rng, 3, 8, 20)), int(_one_of(rng, 1, 2, 5))
    n = int(groups * 10 ** rng.uniform(1.7, 3.5))
    own = _privacy(rng)
    learnt, norm = _one_of(rng, None, 1.0), float(np.sqrt(columns) + 1)
    scale = float(_one_of(rng, 1.0, 2.5))

    def estimator() -> Any:
        from skdpbayes import DPHierarchicalLogisticRegression

        return DPHierarchicalLogisticRegression(
            groups,
            group_scale=learnt,
            prior_scale=scale,
            classes=[0, 1],
            data_norm=norm,
            **own,
        )

    cell = Cell(estimator, n, None, columns + 1)
    text = _text(n=n, groups=groups, columns=columns, group_scale=learnt, scale=scale, **own)
    return text, cell


def program(rng: Rng) -> Setting:
    """NumPyro models, with truths of the prior or easier ones."""
    several = honesty_models.SEVERAL  # they came later, and would change what numbers stand for
    name = _one_of(rng, *(name for name in honesty_models.PROGRAMS if name not in several))
    n, own, kind = _size(rng, 2.7, 4.7), _privacy(rng, -0.5), _one_of(rng, "", "positive", "prior")
    cell = honesty_models.program(name, "auto", kind, n)

    def estimator() -> Any:
        return cell.estimator().set_params(**own)

    return _text(model=name, n=n, columns=kind or "normal", **own), replace(
        cell, estimator=estimator
    )


FAMILIES: dict[str, Callable[[Rng], Setting]] = {
    "logistic": logistic,
    "norms": norms,
    "classes": classes,
    "linear": linear,
    "loose": loose,
    "categories": categories,
    "mixture": mixture,
    "conjugate": conjugate,
    "hierarchy": hierarchy,
    "program": program,
}


def setting(family: str, number: int) -> Setting:
    """Setting of a family by its number."""
    return FAMILIES[family](np.random.default_rng([number, *family.encode()]))


# --- Figures --------------------------------------------------------------------------------------


def line(family: str, number: int, label: str, found: dict[str, Any]) -> str:
    """Figures of a setting; by site its coverage, and the mean width in its unit."""
    sites = ", ".join(
        f"{name} {x:.2f} ({found['width'][name]:.3g})" for name, x in found["sites"].items()
    )
    return (
        f"{family} {number}: {label} | covered {found['covered']:.3f} +- {found['error']:.3f}, "
        f"rms z {found['rms_z']:.2f}, {found['seconds']:.1f} s; {sites}"
    )


def summary(family: str, sites: dict[int, dict[str, float]]) -> str:
    """Coverage of each site over settings, and the settings where it is least."""
    parts = []
    for site in sorted({name for own in sites.values() for name in own}):
        covered = {number: own[site] for number, own in sites.items() if site in own}
        values = np.array(list(covered.values()))
        worst = ", ".join(str(k) for k in sorted(covered, key=covered.__getitem__)[:3])
        parts.append(
            f"{site} {values.mean():.3f}, below .8 in {np.sum(values < 0.8)}, least in {worst}"
        )
    return f"{family}: {len(sites)} settings; " + "; ".join(parts)


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each setting, and one for each family."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--first", type=int, default=0, help="number of the first setting")
    parser.add_argument("--settings", type=int, default=10, help="settings of each family")
    parser.add_argument(
        "--parameters", nargs="+", default=[], help='of the estimator: "solver=vips prior_scale=3"'
    )
    parser.add_argument("--seeds", type=int, default=6, help="fits of each setting, two or more")
    parser.add_argument("--persons", type=int, help="records are persons of one to as many rows")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    given, most = parsed(options.parameters), options.persons
    summaries = []
    for family in options.families:
        sites = {}
        for number in range(options.first, options.first + options.settings):
            label, cell = setting(family, number)
            try:
                check = honesty_models.measured(cell, options.seeds, given, most_rows=most)
                found = honesty_models.summary(check)
            except ValueError as error:
                print(f"{family} {number}: {label} | REFUSED {error}", flush=True)
                continue
            sites[number] = found["sites"]
            print(line(family, number, label, found), flush=True)
        if sites:
            summaries.append(summary(family, sites))
    print("\nMean coverage of 90% intervals.", *summaries, sep="\n")


if __name__ == "__main__":
    main()
