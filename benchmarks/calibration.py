"""Calibration on Adult, NA-DPVI paper, Table 3 and Figure 4: ``make bench-calibration``.

Beside bench-utility the only program that may read Adult's test split to judge defaults, so each
run is appended to ``results/calibration.jsonl`` with its commit. ``--holdout`` splits the training
rows into halves instead, for those who choose defaults. Pictures go to ``results/`` too.

A contender is a function ``(problem, epsilon, seed) -> {line of the table: probabilities of class
1}`` in `PRIVATE`.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks import _log
from benchmarks.development import adult_held_out
from benchmarks.problems import Problem
from benchmarks.utility import DELTA, adult
from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.calibration import calibration_error, reliability

Array = NDArray[np.float64]

EPSILONS = (0.1, 0.3, 1.0)
N_DRAWS = 1_000  # of each posterior
N_CALIBRATED = 20  # sets of labels, drawn from the predictions, behind each "perfect" figure
BINS = ("uniform", "quantile")
CURVE = ("predicted", "observed", "lower", "upper")

# The paper's Table 3, mean and standard deviation over 20 repeats, and what we are after: half of
# its best line.
PAPER = {
    "NA-DPVI (NUTS)": {0.1: (0.061, 0.031), 0.3: (0.026, 0.005), 1.0: (0.024, 0.007)},
    "NA-DPVI (Laplace)": {0.1: (0.084, 0.043), 0.3: (0.044, 0.011), 1.0: (0.046, 0.014)},
    "naive (last iterate)": {0.1: (0.120, 0.065), 0.3: (0.067, 0.024), 1.0: (0.054, 0.017)},
    "DPVIm": {0.1: (0.101, 0.052), 0.3: (0.065, 0.025), 1.0: (0.038, 0.014)},
}
TARGET = {0.1: 0.030, 0.3: 0.013, 1.0: 0.012}


class _WithNaive(DPBayesianLogisticRegression):
    """Keeps the naive posterior too: same mean, covariance without the noise of the releases."""

    def _finish(self, plan, outcome):
        state = outcome.state
        noiseless = state._replace(noise=np.zeros_like(state.noise))
        self.naive_ = plan.solver.posterior(plan.model, noiseless)
        super()._finish(plan, outcome)

    def naive(self, seed: int) -> DPBayesianLogisticRegression:
        """This fit with draws of the naive posterior."""
        draws = self.naive_.sample(np.random.default_rng(seed), N_DRAWS)
        other = copy.copy(self)
        other.posterior_samples_ = self._split(draws[:, None, :])
        return other


def _fitted(kind: type, problem: Problem, epsilon: float, seed: int, **parameters: Any) -> Any:
    """Our fitted estimator with default parameters; `parameters` choose the solver."""
    estimator = kind(
        epsilon=epsilon,
        delta=DELTA,
        classes=list(problem.classes),
        data_norm=problem.data_norm,
        n_posterior_samples=N_DRAWS,
        random_state=seed,
        **parameters,
    )
    return estimator.fit(problem.X_train, problem.y_train)


def dpvi(problem: Problem, epsilon: float, seed: int) -> dict[str, Array]:
    """Our dpvi, and the same fit read as if its releases had no noise."""
    fitted = _fitted(_WithNaive, problem, epsilon, seed, solver="dpvi")
    lines = {"dpvi": fitted, "dpvi, noise ignored": fitted.naive(seed)}
    return {line: model.predict_proba(problem.X_test)[:, 1] for line, model in lines.items()}


def na_dpvi(problem: Problem, epsilon: float, seed: int) -> dict[str, Array]:
    """Our noise-aware solver, with its default priors and with normal ones."""
    priors = {"na-dpvi": {}, "na-dpvi, normal prior": {"prior_df": None}}
    fit = partial(_fitted, DPBayesianLogisticRegression, problem, epsilon, seed, solver="na-dpvi")
    return {
        line: fit(**prior).predict_proba(problem.X_test)[:, 1] for line, prior in priors.items()
    }


def published(problem: Problem, epsilon: float, seed: int) -> dict[str, Array]:
    """The paper's recipe: one private run, its trace read three ways; and DPVIm's average."""
    from benchmarks._na_dpvi_collapsed import exact, laplace
    from benchmarks._na_dpvi_problems import adult as model_of
    from benchmarks._na_dpvi_recipe import Aligned, Published, fit
    from benchmarks.na_dpvi import mean_field

    train, test = (np.column_stack([X, np.ones(len(X))]) for X in (problem.X_train, problem.X_test))
    records = np.column_stack([train, problem.y_train]).astype(np.float32)[None]
    rng = np.random.default_rng(seed)
    settings = *model_of(train.shape[1]), epsilon, DELTA, records, rng
    state, regression = fit(Published, *settings)
    aligned, _ = fit(Aligned, *settings)
    optima = {
        "published, exact": exact(regression).sample(rng, N_DRAWS)[0],
        "published, Laplace": laplace(regression).sample(rng, N_DRAWS)[0],
        "published, last iterate": np.broadcast_to(state.phi, (N_DRAWS, *state.phi.shape)),
        "published, DPVIm": np.broadcast_to(aligned.sums.mean_x, (N_DRAWS, *aligned.phi.shape)),
    }
    return {line: predictive(test, mean_field(phi, rng)[:, 0]) for line, phi in optima.items()}


def predictive(rows: Array, draws: Array) -> Array:
    """Mean over draws of the probability of class 1, in blocks of rows."""
    blocks = np.array_split(rows, max(1, len(rows) // 1000))
    return np.concatenate([expit(block @ draws.T).mean(axis=1) for block in blocks])


def not_private(problem: Problem, epsilon: float, seed: int) -> dict[str, Array]:
    """scikit-learn, whose C=1 is our prior but for the intercept."""
    from sklearn.linear_model import LogisticRegression

    del epsilon, seed
    model = LogisticRegression(max_iter=1000).fit(problem.X_train, problem.y_train)
    return {"scikit-learn, not private": model.predict_proba(problem.X_test)[:, 1]}


Contender = Callable[[Problem, float, int], dict[str, Array]]
PRIVATE: dict[str, Contender] = {"dpvi": dpvi, "na-dpvi": na_dpvi, "published": published}


def score(y: Array, proba: Array, rng: np.random.Generator) -> dict[str, Any]:
    """Calibration by both kinds of bins, log-loss, AUC, and the reliability curve.

    "perfect" is what these predictions would score if they were calibrated: the mean error with
    labels drawn from them.
    """
    from sklearn.metrics import log_loss, roc_auc_score

    calibrated = rng.random((N_CALIBRATED, len(proba))) < proba
    found: dict[str, Any] = {}
    for bins in BINS:
        error = partial(calibration_error, proba=proba, strategy=bins, norm="rmse")
        found[bins] = error(y)
        found[f"{bins}, perfect"] = float(np.mean([error(labels) for labels in calibrated]))
    found["log-loss"] = float(log_loss(y, proba, labels=[0, 1]))
    found["AUC"] = float(roc_auc_score(y, proba))
    curve = reliability(y, proba)
    # JSON has no NaN, which is what empty bins hold.
    return found | {
        name: [x if x == x else None for x in getattr(curve, name).tolist()] for name in CURVE
    }


def run(
    problem_of: Callable[[int], Problem],
    epsilons: Iterable[float],
    contenders: Iterable[str],
    repeats: int,
) -> list[dict[str, Any]]:
    """Fit and score; one record for each level and line (infinity: not private)."""
    records: dict[tuple[float, str], dict[str, Any]] = {}
    problem = None
    runs = [(e, PRIVATE[name]) for e in epsilons for name in contenders] + [(math.inf, not_private)]
    for seed in range(repeats):
        # Adult has the same rows for every seed: read it once.
        if problem is None or problem_of is not adult:
            problem = problem_of(seed)
        for epsilon, contender in runs:
            start = time.perf_counter()
            lines = contender(problem, epsilon, seed)
            seconds = time.perf_counter() - start
            for i, (line, proba) in enumerate(lines.items()):
                record = records.setdefault(
                    (epsilon, line), {"epsilon": epsilon, "line": line, "seconds": []}
                )
                record["seconds"].append(seconds)
                for key, value in score(
                    problem.y_test, proba, np.random.default_rng([seed, i])
                ).items():
                    record.setdefault(key, []).append(value)
        print(f"repeat {seed + 1} of {repeats}: done", flush=True)
    return list(records.values())


HEADER = ["line", "equal widths", "perfect", "equal counts", "perfect", "log-loss", "AUC", "s/fit"]


def row(record: dict[str, Any]) -> list[str]:
    """One line of a level's table."""

    def spread(key: str) -> str:
        values = np.array(record[key])
        return f"{values.mean():.4f}" + (f" ±{values.std(ddof=1):.4f}" if len(values) > 1 else "")

    def mean(key: str, digits: int = 4) -> str:
        return f"{np.mean(record[key]):.{digits}f}"

    errors = [cell for bins in BINS for cell in (spread(bins), mean(f"{bins}, perfect"))]
    return [record["line"], *errors, spread("log-loss"), mean("AUC"), mean("seconds", 1)]


def theirs(epsilon: float) -> list[list[str]]:
    """The paper's lines of a level, and the target."""
    lines = [
        (f"paper: {line}", f"{v[epsilon][0]:.3f} ±{v[epsilon][1]:.3f}")
        for line, v in PAPER.items()
        if epsilon in v
    ]
    lines += [("target", f"{TARGET[epsilon]:.3f}")] if epsilon in TARGET else []
    return [[f"    {line}", figure, *[""] * (len(HEADER) - 2)] for line, figure in lines]


def report(records: list[dict[str, Any]], *, with_paper: bool) -> str:
    """All tables."""
    text = []
    for epsilon in dict.fromkeys(record["epsilon"] for record in records):
        found = [record for record in records if record["epsilon"] == epsilon]
        rows = [row(record) for record in found]
        rows += theirs(epsilon) if with_paper else []
        text.append("\n".join([f"epsilon {epsilon:g}\n", _log.table(HEADER, rows)]))
    return "\n\n".join(text)


def draw(records: list[dict[str, Any]], path: Path) -> list[Path]:
    """Write the paper's Figure 4: observed frequency and its error against predicted probability.

    Lines are means over repeats and bands their standard deviations; in grey, what calibrated
    predictions give by chance in 95% of the cases, for the first line of each level.
    """
    from matplotlib.figure import Figure

    levels = list(dict.fromkeys(record["epsilon"] for record in records))
    names = list(dict.fromkeys(record["line"] for record in records))
    figure = Figure(figsize=(3.6 * len(levels), 7.5), layout="constrained")
    axes = figure.subplots(2, len(levels), sharex=True, sharey="row", squeeze=False)
    shown: dict[str, Any] = {}
    for column, epsilon in zip(axes.T, levels, strict=True):
        lines = [record for record in records if record["epsilon"] == epsilon]
        for ax, error in zip(column, (False, True), strict=True):
            for i, record in enumerate(lines):
                predicted, *others = (np.array(record[name], float) for name in CURVE)
                # Bins that some repeat leaves empty have no mean over repeats.
                common = np.isfinite(predicted).all(axis=0)
                at = predicted[:, common].mean(axis=0)
                curve, lower, upper = (
                    y[:, common] - (predicted[:, common] if error else 0) for y in others
                )
                if i == 0:
                    grey = {"color": "0.5", "alpha": 0.25, "linewidth": 0}
                    band = ax.fill_between(at, lower.mean(axis=0), upper.mean(axis=0), **grey)
                    shown["calibrated, 95%"] = band
                color, mean, sd = (
                    f"C{names.index(record['line'])}",
                    curve.mean(axis=0),
                    curve.std(axis=0),
                )
                ax.fill_between(at, mean - sd, mean + sd, color=color, alpha=0.15, linewidth=0)
                (shown[record["line"]],) = ax.plot(at, mean, ".-", color=color, linewidth=1)
            ax.plot([0, 1], [0, 0 if error else 1], color="0.3", linestyle="--", linewidth=0.8)
        column[0].set_title("not private" if math.isinf(epsilon) else f"$\\epsilon$ = {epsilon:g}")
    axes[0, 0].set_ylabel("fraction observed")
    axes[1, 0].set_ylabel("fraction observed minus predicted")
    figure.supxlabel("mean predicted probability")
    order = ["calibrated, 95%", *names]
    figure.legend(
        [shown[name] for name in order], order, loc="outside upper center", ncols=4, frameon=False
    )
    path.parent.mkdir(exist_ok=True)
    paths = [path.with_suffix(suffix) for suffix in (".png", ".pdf")]
    for to in paths:
        figure.savefig(to, dpi=130)
    return paths


def main() -> None:
    """Run what the command line asks for, print the tables, draw, log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--repeats", type=int, default=10, help="fits per level (default: %(default)s)"
    )
    parser.add_argument(
        "--epsilons", nargs="+", type=float, default=EPSILONS, help="(default: %(default)s)"
    )
    parser.add_argument("--contenders", nargs="+", choices=list(PRIVATE), default=list(PRIVATE))
    parser.add_argument(
        "--holdout",
        action="store_true",
        help="halves of the training rows instead of the test split",
    )
    options = parser.parse_args()
    if options.repeats < 1 or not all(0 < e < math.inf for e in options.epsilons):
        parser.error("--repeats must be at least 1, and --epsilons positive and finite")

    problem_of = partial(adult_held_out, kept=0.5) if options.holdout else adult
    split = "holdout" if options.holdout else "test"
    records = run(problem_of, options.epsilons, options.contenders, options.repeats)
    print(
        f"\nAdult, {split} split: RMSE of calibration over ten bins, mean of {options.repeats} "
        "fits and standard"
    )
    print(
        f"deviation. Private lines: (epsilon, {DELTA:g}). The paper does not say which bins it "
        "takes; its figures"
    )
    print("stand under equal widths. perfect: calibrated predictions with the same probabilities.")
    if options.holdout:
        print("Half as many records as in the paper, whose figures do not compare.")
    print(f"\n{report(records, with_paper=not options.holdout)}")
    name = "calibration_holdout" if options.holdout else "calibration"
    pictures = draw(records, _log.ROOT / "results" / name)
    # JSON has no infinity.
    loggable = [{**record, "epsilon": f"{record['epsilon']:g}"} for record in records]
    path = _log.append(
        "calibration", {"split": split, "repeats": options.repeats, "records": loggable}
    )
    print(
        f"\nPictures: {', '.join(p.name for p in pictures)}. Appended to "
        f"{path.relative_to(_log.ROOT)}"
    )


if __name__ == "__main__":
    main()
