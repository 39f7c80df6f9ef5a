"""Accuracy, AUC and log-loss of the default logistic regression, beside the peers' frozen figures.

``make bench-utility``, or with a choice: ``make bench-utility UTILITY_ARGS="--tasks adult
--epsilons 1 --seeds 3"``. Beside bench-calibration the only program that may read test splits to
judge defaults, so each run is appended to ``results/utility.jsonl`` with its commit. Guarantees
differ: ours is (epsilon, 1e-5), diffprivlib's is pure epsilon, so the comparison is with a weaker
promise of ours; its figures take the best C on the test set, ours take no choice.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks import _log
from benchmarks.problems import PEER_TASKS, Problem, breast_cancer

DELTA = 1e-5
INF = math.inf
METRICS = ("accuracy", "auc", "log_loss")


@dataclass(frozen=True)
class Task:
    """Problems by seed, levels to run, and by level the figures of peers: (name, figures)."""

    problem: Callable[[int], Problem]
    epsilons: tuple[float, ...]
    peers: dict[float, list[tuple[str, dict[str, float]]]] = field(default_factory=dict)


def adult(seed: int) -> Problem:
    """Adult in its original split, encoded with constants; the seed changes only the noise."""
    from skdpbayes.datasets import adult_preprocessor, load_adult

    data = load_adult()
    encode = adult_preprocessor().fit(data.X_train)
    labels = [(y == data.classes[1]).to_numpy(dtype=np.int64) for y in (data.y_train, data.y_test)]
    return Problem(
        "adult",
        encode.transform(data.X_train),
        labels[0],
        encode.transform(data.X_test),
        labels[1],
        data.data_norm,
    )


def _figures(
    accuracy: float | None = None, auc: float | None = None, log_loss: float | None = None
) -> dict[str, float]:
    given = {"accuracy": accuracy, "auc": auc, "log_loss": log_loss}
    return {name: value for name, value in given.items() if value is not None}


def _two_peers(
    diffprivlib: str, gradient_descent: str
) -> dict[float, list[tuple[str, dict[str, float]]]]:
    """Read "accuracy/AUC" entries at epsilon .1, .3, 1 and 3."""
    out: dict[float, list[tuple[str, dict[str, float]]]] = {}
    for name, line in (("diffprivlib", diffprivlib), ("noisy gradient descent", gradient_descent)):
        for epsilon, entry in zip((0.1, 0.3, 1.0, 3.0), line.split(), strict=True):
            out.setdefault(epsilon, []).append((name, _figures(*map(float, entry.split("/")))))
    return out


# Figures of others, measured once and frozen; nothing of ours is written here.
TASKS: dict[str, Task] = {
    "adult": Task(
        adult,
        (0.1, 0.3, 1.0, INF),
        {
            0.1: [
                ("dpvi, untuned prototype", _figures(0.828, 0.865, 0.375)),
                ("vips, full batch", _figures(None, 0.859, 0.383)),
                ("to reach", _figures(None, 0.872)),
            ],
            0.3: [
                ("dpvi, untuned prototype", _figures(0.838, 0.885, 0.349)),
                ("vips, full batch", _figures(None, 0.875, 0.371)),
                ("to reach", _figures(None, 0.889)),
            ],
            1.0: [
                ("dpvi, untuned prototype", _figures(0.842, 0.894, 0.337)),
                ("vips, full batch", _figures(None, 0.886, 0.354)),
                ("to reach", _figures(None, 0.898)),
            ],
            INF: [("not private", _figures(0.850, 0.903, 0.324))],
        },
    ),
    "breast-cancer": Task(
        PEER_TASKS["breast-cancer"],
        (0.1, 0.3, 1.0, 3.0, INF),
        {
            **_two_peers(
                ".672/.722 .758/.901 .898/.957 .939/.986", ".658/.733 .834/.913 .919/.978 .954/.991"
            ),
            INF: [("not private", _figures(0.971, 0.995))],
        },
    ),
    "digits-0": Task(
        PEER_TASKS["digits-0"],
        (0.1, 0.3, 1.0, 3.0, INF),
        {
            **_two_peers(
                ".902/.631 .902/.699 .912/.870 .942/.956", ".860/.650 .903/.836 .905/.994 .902/1.00"
            ),
            INF: [("not private", _figures(0.999, 1.0))],
        },
    ),
    "synth-A": Task(
        PEER_TASKS["synth-A"],
        (0.1, 0.3, 1.0, 3.0, INF),
        {
            **_two_peers(
                ".647/.692 .765/.853 .807/.891 .812/.894", ".768/.864 .786/.890 .788/.894 .788/.894"
            ),
            INF: [("not private", _figures(0.812, 0.895))],
        },
    ),
    "breast-cancer-5": Task(
        partial(breast_cancer, norm=5.0),
        (1.0, INF),
        {1.0: [("vips, one shot", _figures(None, 0.9886))]},
    ),
    "synth-B": Task(
        PEER_TASKS["synth-B"],
        (1.0, INF),
        {1.0: [("vips", _figures(None, 0.8611))], INF: [("not private", _figures(None, 0.8616))]},
    ),
}


def make_estimator(epsilon: float, problem: Problem, seed: int, **parameters: Any) -> Any:
    """Build the estimator under test: defaults, `parameters`, and the task's public facts."""
    from skdpbayes import DPBayesianLogisticRegression

    return DPBayesianLogisticRegression(
        epsilon=epsilon,
        delta=DELTA,
        classes=list(problem.classes),
        data_norm=problem.data_norm,
        random_state=seed,
        **parameters,
    )


def score(estimator: Any, problem: Problem) -> dict[str, float]:
    """Accuracy, AUC and log-loss on the test split."""
    from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

    probability = estimator.predict_proba(problem.X_test)
    return {
        "accuracy": float(accuracy_score(problem.y_test, estimator.predict(problem.X_test))),
        "auc": float(roc_auc_score(problem.y_test, probability[:, 1])),
        "log_loss": float(log_loss(problem.y_test, probability, labels=list(problem.classes))),
    }


def run(
    name: str,
    epsilons: tuple[float, ...],
    seeds: int,
    make: Callable[[float, Problem, int], Any] = make_estimator,
) -> list[dict[str, Any]]:
    """Fit and score a task at each level with each seed; one record for each level."""
    task = TASKS[name]
    records = [
        {"task": name, "epsilon": e, "delta": DELTA, "seconds": [], **{m: [] for m in METRICS}}
        for e in epsilons
    ]
    problem = None
    for seed in range(seeds):
        # Adult has the same rows for every seed: read it once.
        if problem is None or task.problem is not adult:
            problem = task.problem(seed)
        for record in records:
            estimator = make(record["epsilon"], problem, seed)
            start = time.perf_counter()
            estimator.fit(problem.X_train, problem.y_train)
            record["seconds"].append(time.perf_counter() - start)
            for metric, value in score(estimator, problem).items():
                record[metric].append(value)
    return records


def rows_of(record: dict[str, Any]) -> list[list[str]]:
    """Table rows of one level: ours, then what peers reached and by how much we are ahead."""

    def entry(metric: str) -> str:
        values = np.array(record[metric])
        error = f" ±{values.std(ddof=1) / len(values) ** 0.5:.4f}" if len(values) > 1 else ""
        return f"{values.mean():.4f}{error}"

    def lead(figures: dict[str, float], metric: str) -> str:
        return f"{np.mean(record[metric]) - figures[metric]:+.3f}" if metric in figures else ""

    level = f"{record['epsilon']:g}"
    seconds = f"{np.mean(record['seconds']):.2f}"
    rows = [
        [f"{record['task']}, epsilon {level}: skdpbayes", *map(entry, METRICS), seconds, "", ""]
    ]
    for peer, figures in TASKS[record["task"]].peers.get(record["epsilon"], []):
        cells = [f"{figures[m]:.3f}" if m in figures else "" for m in METRICS]
        rows.append([f"    {peer}", *cells, "", lead(figures, "accuracy"), lead(figures, "auc")])
    return rows


def loggable(record: dict[str, Any]) -> dict[str, Any]:
    """Write the level as a string, because JSON has no infinity."""
    return {**record, "epsilon": f"{record['epsilon']:g}"}


def main() -> None:
    """Run what the command line asks for, print the table, log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="TASK"
    )
    parser.add_argument(
        "--epsilons",
        nargs="+",
        type=float,
        help="levels (default: those of each task; inf: not private)",
    )
    parser.add_argument(
        "--seeds", type=int, default=10, help="fits per level (default: %(default)s)"
    )
    parser.add_argument(
        "--solver", default="auto", choices=["auto", "dpvi", "na-dpvi", "sgld", "vips"]
    )
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}")

    records: list[dict[str, Any]] = []
    for name in options.tasks:
        make = partial(make_estimator, solver=options.solver)
        records += run(name, tuple(options.epsilons or TASKS[name].epsilons), options.seeds, make)
        print(f"{name}: done", flush=True)
    rows = [row for record in records for row in rows_of(record)]
    print(
        f"\nTest split, mean of {options.seeds} fits and its standard error. "
        f"Ours: (epsilon, {DELTA:g}), default parameters but for solver={options.solver!r}."
    )
    print(
        "diffprivlib: pure epsilon, best C on the test set. The last columns: ours less theirs.\n"
    )
    header = ["task", "accuracy", "AUC", "log-loss", "s/fit", "accuracy ahead", "AUC ahead"]
    print(_log.table(header, rows))
    path = _log.append(
        "utility",
        {
            "seeds": options.seeds,
            "solver": options.solver,
            "records": [loggable(record) for record in records],
        },
    )
    print(f"\nAppended to {path.relative_to(_log.ROOT)}")


if __name__ == "__main__":
    main()
