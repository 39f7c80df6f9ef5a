"""AUC of hierarchical logistic regression beside d3p's: ``make bench-d3p-hierarchical``.

The setting is that of d3p's Figures 4 and 5 (Prediger et al. 2021, section 5.3): 500 rows of five
features in three groups, as many held out, delta 1/500, ten fits a level. The paper has no numbers
for its figures: d3p itself, run as the authors' script does (PROBIC/d3p-paper-experiments), stands
for them. d3p 0.2.0 runs in an environment of its own, which this makes from
``benchmarks/peers/d3p.lock`` and which needs Python 3.11. With a choice of rows and parts: ``make
bench-d3p-hierarchical D3P_HIERARCHICAL_ARGS="--rows 200 --parts figure"``.

All of d3p's fits are 100,000 steps of batches of ten, with clipping at 1 and Adam's rate 1e-3. They
differ in noise:

- "as published": what d3p's own accountant asks for, which protects a row from being replaced by
  another. (The paper speaks of rows added or removed.)
- "exact noise": what exact accounting asks for if a row is set to zero: about half. Ours run on
  these terms, and with "replace_one" on the others. Batches count as if drawn by Poisson sampling;
  d3p's are of fixed size, which needs no less noise.

d3p is scored as in the script: the location of the effects gives the groups' weights. Ours are
averaged over draws. All but the figure's own model, as a user writes it for `DPNumPyroModel`, are
`DPHierarchicalLogisticRegression` at its defaults, with the figure's prior; it adds a constant to
what is known of the groups.

The last table is of data drawn from the model: how often 95% intervals cover the weights of groups.
About half of the rows there are longer than `data_norm` is by default.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks import _log, _peers
from skdpbayes import DPHierarchicalLogisticRegression, DPNumPyroModel
from skdpbayes.privacy import GaussianSteps, calibrate_noise, epsilon

Array = NDArray[np.float64]

LEVELS = (2.0, 4.0, 8.0)
PUBLISHED = {"iterations": 100_000, "batch": 10, "clip": 1.0, "rate": 1e-3}
# Rows: level: noise multiplier that d3p's `approximate_sigma` finds at these settings and delta 1 /
# rows.
PUBLISHED_NOISE = {
    100: {2.0: 70.5982, 4.0: 42.3129, 8.0: 25.8254},
    200: {2.0: 38.5883, 4.0: 22.6981, 8.0: 13.6307},
    500: {2.0: 17.0883, 4.0: 9.8524, 8.0: 5.8113},
    1000: {2.0: 9.1401, 4.0: 5.2052, 8.0: 3.0371},
}
PEER = "d3p as published", "d3p"  # with noise and without: what the others are compared with
# Rows, levels and bounds of rows' norms of the table of coverage; rows of five features are hardly
# longer than 6.
COVERAGE = [
    (n, norm, level) for n in (500, 5000) for norm in (6.0, None) for level in (1.0, 4.0, np.inf)
]


@dataclass(frozen=True)
class Problem:
    """Training rows and held-out ones, on the first axis, and what is known of the groups."""

    x: Array
    y: NDArray[np.int_]
    group: NDArray[np.int_]
    features: Array
    probability: Array

    @property
    def table(self) -> Array:
        """Rows with their group in the last column, as our estimator takes them."""
        return np.concatenate([self.x, self.group[..., None]], axis=2)

    def auc(self, scores: Array) -> float:
        """Area under the ROC curve of the held-out rows."""
        return float(roc_auc_score(self.y[1], scores))


def figure_data(seed: int, n: int) -> Problem:
    """Data as the authors' script draws them (NumPy's old generator); figures have seed 0."""
    rng = np.random.RandomState(seed)
    x, group, features = rng.randn(2, n, 5), rng.randint(0, 3, (2, n)), np.eye(3)
    effects = rng.randn(5, 3)
    y, probability = np.zeros((2, n), int), np.zeros((2, n))
    for g in range(3):
        weights = rng.multivariate_normal(effects @ features[g], 0.1 * np.eye(5))
        for half in range(2):
            own = group[half] == g
            probability[half, own] = expit(x[half, own] @ weights)
            y[half, own] = rng.binomial(1, probability[half, own])
    return Problem(x, y, group, features, probability)


def ours(
    problem: Problem, level: float, seed: int, **parameters: Any
) -> DPHierarchicalLogisticRegression:
    """The estimator under test, with the figure's prior and delta."""
    model = DPHierarchicalLogisticRegression(
        len(problem.features),
        problem.features,
        epsilon=level,
        delta=1 / problem.x.shape[1],
        prior_scale=4,
        group_scale=1.0,
        classes=[0, 1],
        fit_intercept=False,
        random_state=seed,
        **parameters,
    )
    return model.fit(problem.table[0], problem.y[0])


def listing(x, group, y=None, *, features):
    """The model of d3p's listing 4."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    effects = numpyro.sample(
        "effects", dist.Normal(0, 4).expand([x.shape[1], features.shape[1]]).to_event(2)
    )
    with numpyro.plate("groups", len(features)):
        weights = numpyro.sample("weights", dist.Normal(features @ effects.T, 1).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.BernoulliLogits(jnp.einsum("nd,nd->n", x, weights[group])), obs=y)


def as_a_user(problem: Problem, level: float, seed: int, **parameters: Any) -> DPNumPyroModel:
    """That model, fitted by `dpvi`, as d3p fits it."""
    public, delta = {"features": problem.features}, 1 / problem.x.shape[1]
    model = DPNumPyroModel(
        listing,
        epsilon=level,
        delta=delta,
        solver="dpvi",
        public=public,
        random_state=seed,
        **parameters,
    )
    return model.fit({"x": problem.x[0], "group": problem.group[0], "y": problem.y[0]})


def score_of_ours(problem: Problem, model: Any) -> float:
    """AUC of the posterior predictive probabilities."""
    rows = (
        {"x": problem.x[1], "group": problem.group[1]}
        if isinstance(model, DPNumPyroModel)
        else problem.table[1]
    )
    return problem.auc(model.predict_proba(rows)[:, 1])


OURS: dict[str, Callable[..., Any]] = {
    "ours, dpvi": ours,
    "ours, na-dpvi": partial(ours, solver="na-dpvi"),
    "ours, DPNumPyroModel": as_a_user,
}


def score_of_release(problem: Problem, location: Array) -> float:
    """AUC of what d3p released, as the authors' script scores it."""
    weights = problem.features @ location.T
    return problem.auc(np.einsum("nd,nd->n", problem.x[1], weights[problem.group[1]]))


def exact_noise(level: float, n: int) -> float:
    """Noise multiplier with which d3p's steps spend `level` if a row is set to zero."""
    return calibrate_noise(
        level, 1 / n, PUBLISHED["batch"] / n, int(PUBLISHED["iterations"])
    ).noise_multiplier


def of_peer(python: Path, data: list[Problem], plan: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """d3p's fits of a plan: a record for each entry, with AUC and seconds of its fits."""
    records: list[dict[str, Any]] = [{**entry, "auc": [], "seconds": []} for entry in plan]
    arrays = {
        **{
            name: np.array([getattr(problem, name)[0] for problem in data])
            for name in ("x", "y", "group")
        },
        "features": np.array([problem.features for problem in data]),
    }
    for release in _peers.run(python, "d3p_hierarchical_fits.py", arrays, plan):
        record = records[release["entry"]]
        record["auc"].append(
            score_of_release(data[release["fit"] % len(data)], np.array(release["location"]))
        )
        record["seconds"].append(release["seconds"])
    return records


def compare(
    python: Path, data: list[Problem], levels: tuple[float, ...], fits: int
) -> list[dict[str, Any]]:
    """Fit both sides to each data set in turn; one record for each line of the table.

    Records without noise have no epsilon.
    """
    n = data[0].x.shape[1]
    plan: list[dict[str, Any]] = []
    for level in levels:
        if level in PUBLISHED_NOISE[n]:
            plan.append({"epsilon": level, "line": PEER[0], "noise": PUBLISHED_NOISE[n][level]})
        plan.append({"epsilon": level, "line": "d3p, exact noise", "noise": exact_noise(level, n)})
    plan.append({"epsilon": None, "line": PEER[1], "noise": None})
    plan = [{"entry": i, **entry, "fits": fits, **PUBLISHED} for i, entry in enumerate(plan)]
    records = of_peer(python, data, plan)

    def add(line: str, level: float | None, fit: Callable[..., Any], score=score_of_ours) -> None:
        record: dict[str, Any] = {"epsilon": level, "line": line, "auc": [], "seconds": []}
        for i in range(fits):
            problem = data[i % len(data)]
            start = time.perf_counter()
            model = fit(problem, seed=i)
            record["seconds"].append(time.perf_counter() - start)
            record["auc"].append(score(problem, model))
        records.append(record)

    for line, fit in OURS.items():
        for level in levels:
            for suffix, adjacency in (("", "zero_out"), (", replace_one", "replace_one")):
                add(line + suffix, level, partial(fit, level=level, adjacency=adjacency))
        add(line, None, partial(fit, level=np.inf))
    add(
        "scikit-learn, no groups",
        None,
        lambda problem, seed: LogisticRegression().fit(problem.x[0], problem.y[0]),
        lambda problem, model: problem.auc(model.decision_function(problem.x[1])),
    )
    add(
        "the true probabilities",
        None,
        lambda problem, seed: None,
        lambda problem, _: problem.auc(problem.probability[1]),
    )
    return sorted(records, key=lambda record: (record["epsilon"] is None, record["epsilon"] or 0.0))


def rows_of(records: list[dict[str, Any]]) -> list[list[str]]:
    """Table rows; how far they are ahead is beside d3p as published, or without noise."""
    published = {r["epsilon"]: np.array(r["auc"]) for r in records if r["line"] in PEER}
    rows = []
    for record in records:
        level, auc = record["epsilon"], np.array(record["auc"])
        name = record["line"] if level is None else f"epsilon {level:g}: {record['line']}"
        figures = [f"{value:.3f}" for value in (np.median(auc), auc.mean(), auc.min(), auc.max())]
        ahead = ["", ""]
        if level in published and record["line"] not in PEER:
            gain = auc - published[level]
            error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else np.nan
            ahead = [
                f"{np.median(auc) - np.median(published[level]):+.3f}",
                f"{gain.mean():+.3f} ±{error:.3f}",
            ]
        rows.append([name, *figures, *ahead, f"{np.median(record['seconds']):.2f}"])
    return rows


def charges(n: int, levels: tuple[float, ...]) -> list[list[str]]:
    """For each level: d3p's published noise, its exact cost, and the noise for the level."""
    rows = []
    for level, noise in (
        (level, PUBLISHED_NOISE[n][level]) for level in levels if level in PUBLISHED_NOISE[n]
    ):
        steps = GaussianSteps(noise, PUBLISHED["batch"] / n, int(PUBLISHED["iterations"]))
        spent = [
            epsilon(steps, 1 / n, adjacency=adjacency) for adjacency in ("replace_one", "zero_out")
        ]
        rows.append(
            [
                f"epsilon {level:g}",
                *(f"{value:.3f}" for value in (noise, *spent, exact_noise(level, n))),
            ]
        )
    return rows


def coverage(
    n: int, data_norm: float | None, level: float, solver: str, fits: int
) -> dict[str, Any]:
    """Coverage of 95% intervals of weights, and their mean width relative to the prior's.

    The data sets are drawn from the model; figures are by fit.
    """
    record: dict[str, Any] = {
        "rows": n,
        "data_norm": data_norm,
        "epsilon": f"{level:g}",
        "solver": solver,
    }
    record |= {"covered": [], "width": [], "slope": [], "seconds": []}
    for seed in range(fits):
        rng = np.random.default_rng(seed)
        features, x, group = (
            rng.standard_normal((3, 3)),
            rng.standard_normal((n, 5)),
            rng.integers(0, 3, n),
        )
        table = np.column_stack([features, np.ones(3)])  # the estimator adds the constant
        weights = table @ rng.standard_normal((5, 4)).T + rng.standard_normal((3, 5))
        y = (rng.uniform(size=n) < expit((x * weights[group]).sum(axis=1))).astype(int)
        start = time.perf_counter()
        model = DPHierarchicalLogisticRegression(
            3,
            features,
            epsilon=level,
            delta=1 / n,
            solver=solver,
            prior_scale=1.0,
            group_scale=1.0,
            classes=[0, 1],
            data_norm=data_norm,
            fit_intercept=False,
            random_state=seed,
        ).fit(np.column_stack([x, group]), y)
        record["seconds"].append(time.perf_counter() - start)
        low, high = np.quantile(model.posterior_samples_["weights"], [0.025, 0.975], axis=0)
        prior = 2 * 1.96 * np.sqrt((table**2).sum(axis=1) + 1)
        record["covered"].append(float(((low <= weights) & (weights <= high)).mean()))
        record["width"].append(float(((high - low) / prior[:, None]).mean()))
        record["slope"].append(float((model.coef_ * weights).sum() / (weights**2).sum()))
    return record


def coverage_row(record: dict[str, Any]) -> list[str]:
    """Table row: settings, coverage and its standard error, width, size of the estimates."""
    covered = np.array(record["covered"])
    error = covered.std(ddof=1) / len(covered) ** 0.5 if len(covered) > 1 else np.nan
    norm = "default" if record["data_norm"] is None else f"{record['data_norm']:g}"
    figures = [
        f"{covered.mean():.3f} ±{error:.3f}",
        f"{np.mean(record['width']):.3f}",
        f"{np.mean(record['slope']):.2f}",
    ]
    return [
        record["solver"],
        f"{record['rows']}",
        norm,
        record["epsilon"],
        *figures,
        f"{np.median(record['seconds']):.2f}",
    ]


def main() -> None:
    """Run what the command line asks for, print the tables, log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--rows",
        type=int,
        choices=list(PUBLISHED_NOISE),
        default=500,
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--epsilons", nargs="+", type=float, default=list(LEVELS), help="(default: the figures')"
    )
    parser.add_argument(
        "--fits",
        type=int,
        default=10,
        help="fits a level, and fresh data sets (default: %(default)s)",
    )
    parser.add_argument(
        "--coverage-fits", type=int, default=60, help="data sets a line (default: %(default)s)"
    )
    parts = ["figure", "fresh", "coverage"]
    parser.add_argument(
        "--parts", nargs="+", choices=parts, default=parts, metavar="PART", help="(default: all)"
    )
    _peers.add_options(parser)
    options = parser.parse_args()
    if min(options.fits, options.coverage_fits) < 1:
        parser.error("--fits and --coverage-fits must be at least 1")
    warnings.simplefilter("ignore")
    n, levels, logged = options.rows, tuple(options.epsilons), {}

    sets = {"figure": [0], "fresh": range(1, options.fits + 1)}
    titles = {"figure": "the figure's own data set", "fresh": "fresh data sets, a fit each"}
    chosen = [part for part in sets if part in options.parts]
    if chosen:
        python = _peers.environment("d3p", options.python, options.env)
        print(
            "\nNoise of d3p as published, epsilon that it costs (a row replaced, set to zero), "
            "exact noise.\n"
        )
        print(_log.table(["", "published", "replaced", "set to zero", "exact"], charges(n, levels)))
    for part in chosen:
        logged[part] = compare(
            python, [figure_data(seed, n) for seed in sets[part]], levels, options.fits
        )
        print(f"\nAUC of {n} held-out rows after {n}; {titles[part]}, {options.fits} fits a line.")
        print(
            "Ahead of d3p as published (without noise: of d3p): difference of medians, mean "
            "difference.\n"
        )
        print(
            _log.table(
                ["", "median", "mean", "min", "max", "ahead", "on average", "s/fit"],
                rows_of(logged[part]),
            )
        )
    if "coverage" in options.parts:
        lines = [(*setting, solver) for setting in COVERAGE for solver in ("dpvi", "na-dpvi")]
        logged["coverage"] = [coverage(*line, options.coverage_fits) for line in lines]
        print(
            f"\nGroups' weights in their 95% intervals, {options.coverage_fits} data sets a line; "
            "width beside that of"
        )
        print("the prior's; slope of estimates on the truth.\n")
        header = ["", "rows", "data_norm", "epsilon", "covered", "width", "slope", "s/fit"]
        print(_log.table(header, [coverage_row(record) for record in logged["coverage"]]))
    path = _log.append("d3p_hierarchical", {"rows": n, "fits": options.fits, **logged})
    print(f"\nAppended to {path.relative_to(_log.ROOT)}")


if __name__ == "__main__":
    main()
