"""Our defaults beside other private methods, paired by seed: ``make bench-private-peers``.

``python -m benchmarks.private_comparison --tasks synth-A --epsilons 0.1 1 --seeds 3``. The peers
are those of ``benchmarks.private_peers``; they and ours have equal (epsilon, delta) and equal
neighbours, one record replaced by one that contributes nothing. Nothing is installed.

Peers choose their settings on simulated tables of the same size, public norm and kind of columns,
and read no row of the task; ours has default parameters. Noise differs by seed, and so do the rows,
but for Adult's. A lead is the mean over seeds of our figure less the peer's (of log-losses and
errors the peer's less ours), with its standard error; ``ahead?`` says `yes` or `NO` if it is more
than two standard errors from zero, else `level`. Without a second seed there is no standard error.

Test splits are read as by ``make bench-utility``, and our figures go to its log too.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks import _log, private_peers, utility
from benchmarks.private_peers import PEERS, Kind, tuned, unit_rows
from benchmarks.problems import Problem, _census, _factors, _gaussian

EPSILONS = (0.1, 0.3, 1.0, 3.0)
KINDS = {
    "adult": Kind(_census, prevalence=0.25),
    "breast-cancer": Kind(_factors),
    "digits-0": Kind(private_peers._positive_factors, prevalence=0.1),
    "synth-A": Kind(_gaussian),
    "synth-B": Kind(_gaussian),
}
SOLVERS = ("dpvi", "na-dpvi", "sgld", "vips")
METRICS = ("auc", "accuracy", "log_loss")


@dataclass(frozen=True)
class Setting:
    """A simulated linear regression: epsilon, and the width of bounds over what is needed."""

    epsilon: float
    looseness: float = 1.0

    @property
    def name(self) -> str:
        """Of the table."""
        bounds = "tight bounds" if self.looseness == 1 else f"bounds {self.looseness:g} x too loose"
        return f"linear regression, {bounds}"


LINEAR = (Setting(1.0), Setting(1.0, 10.0), Setting(0.1))


@dataclass(frozen=True)
class Lead:
    """Our figures and a peer's, by seed.

    Attributes
    ----------
    task, peer, metric : str
    epsilon : float
    ours, theirs : tuple of float
    """

    task: str
    epsilon: float
    peer: str
    metric: str
    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def score(self) -> bool:
        """Whether more is better."""
        return self.metric in ("auc", "accuracy")

    @property
    def mean(self) -> float:
        """By how much we are ahead."""
        difference = float(np.mean(np.subtract(self.ours, self.theirs)))
        return difference if self.score else -difference

    @property
    def error(self) -> float:
        """Standard error of `mean`; zero with one seed."""
        n = len(self.ours)
        if n == 1:
            return 0.0
        return float(np.subtract(self.ours, self.theirs).std(ddof=1)) / math.sqrt(n)

    @property
    def ahead(self) -> str:
        """Whether we are ahead."""
        if abs(self.mean) <= 2 * self.error:
            return "level"
        return "yes" if self.mean > 0 else "NO"

    def cells(self) -> list[str]:
        """Of the table: the peer's figure, the lead, the verdict."""
        error = f" ±{self.error:.4f}" if len(self.ours) > 1 else ""
        return [f"{np.mean(self.theirs):.4f}", f"{self.mean:+.4f}{error}", self.ahead]


def peer_scores(
    problem: Problem, name: str, kind: Kind, epsilon: float, seed: int
) -> dict[str, float]:
    """Figures of a peer on the test split."""
    from sklearn.metrics import roc_auc_score

    n, d = problem.X_train.shape
    setting = tuned(name, kind, n, d, problem.data_norm, epsilon, utility.DELTA)
    Z, tests = (unit_rows(X, problem.data_norm) for X in (problem.X_train, problem.X_test))
    rng = np.random.default_rng([seed, 1])
    w = PEERS[name].fit(Z, problem.y_train, epsilon, utility.DELTA, rng, **setting)
    decision = tests @ w
    return {
        "auc": float(roc_auc_score(problem.y_test, decision)),
        "accuracy": float(np.mean((decision > 0) == problem.y_test)),
        "log_loss": private_peers.log_loss(decision, problem.y_test),
    }


def classification(
    task: str, epsilons: tuple[float, ...], seeds: int, solver: str | None = None
) -> list[Lead]:
    """Leads on a task, of all peers and metrics; our figures go to the log of bench-utility."""
    parameters = {} if solver is None else {"solver": solver}
    records = utility.run(task, epsilons, seeds, partial(utility.make_estimator, **parameters))
    _log.append(
        "utility",
        {
            "seeds": seeds,
            "solver": solver or "default",
            "records": [utility.loggable(record) for record in records],
        },
    )
    make = utility.TASKS[task].problem
    problems = [make(0)] * seeds if make is utility.adult else [make(s) for s in range(seeds)]
    leads = []
    for record in records:
        epsilon = record["epsilon"]
        for name in PEERS:
            found = [
                peer_scores(problem, name, KINDS[task], epsilon, seed)
                for seed, problem in enumerate(problems)
            ]
            for metric in METRICS:
                theirs = tuple(each[metric] for each in found)
                leads.append(Lead(task, epsilon, name, metric, tuple(record[metric]), theirs))
    return leads


def regression(setting: Setting, seeds: int, n: int = 2000, d: int = 4) -> list[Lead]:
    """Error of coefficients, beside AdaSSP and zeros.

    Columns are uniform on [-1, 1], coefficients normal with standard deviation .3, the intercept
    .2, residuals normal with standard deviation .3. Tight bounds are [-1, 1] and [-2, 2].
    """
    from skdpbayes import DPBayesianLinearRegression

    found: dict[str, list[float]] = {"ours": [], "AdaSSP": [], "zeros": []}
    x_bound, y_bound = setting.looseness, 2 * setting.looseness
    for seed in range(seeds):
        rng = np.random.default_rng([seed, n, d])
        X, truth = rng.uniform(-1, 1, (n, d)), 0.3 * rng.standard_normal(d)
        y = X @ truth + 0.2 + 0.3 * rng.standard_normal(n)
        ours = DPBayesianLinearRegression(
            epsilon=setting.epsilon,
            delta=utility.DELTA,
            bounds=((-x_bound, x_bound), (-y_bound, y_bound)),
            random_state=seed,
        ).fit(X, y)
        norm = math.sqrt(d)
        targets = np.clip(y / y_bound, -1, 1)
        Z = unit_rows(X / x_bound, norm)
        w = private_peers.adassp(Z, targets, setting.epsilon, utility.DELTA, rng)
        theirs = w[:-1] / math.hypot(norm, 1.0) * y_bound / x_bound
        for name, estimate in (("ours", ours.coef_), ("AdaSSP", theirs), ("zeros", 0 * truth)):
            found[name].append(float(np.sqrt(np.mean((estimate - truth) ** 2))))
    own = tuple(found.pop("ours"))
    return [
        Lead(setting.name, setting.epsilon, peer, "coefficient RMSE", own, tuple(figures))
        for peer, figures in found.items()
    ]


def measure(
    tasks: tuple[str, ...] = tuple(KINDS),
    epsilons: tuple[float, ...] = EPSILONS,
    seeds: int = 10,
    solver: str | None = None,
    linear: bool = True,
) -> list[Lead]:
    """All leads; tasks whose data are not here are named and left out."""
    leads: list[Lead] = []
    for task in tasks:
        start = time.perf_counter()
        try:
            leads += classification(task, epsilons, seeds, solver)
        except (FileNotFoundError, ConnectionError) as error:
            print(f"SKIPPED: {task}: {error}", flush=True)
            continue
        print(f"{task}: {time.perf_counter() - start:.0f} s", flush=True)
    for setting in LINEAR if linear else ():
        leads += regression(setting, seeds)
    return leads


def tables(leads: list[Lead]) -> str:
    """A table for each metric, and how many are ahead."""
    texts = []
    for metric in dict.fromkeys(lead.metric for lead in leads):
        of_metric = [lead for lead in leads if lead.metric == metric]
        rows, last = [], ""
        for lead in of_metric:
            name = f"{lead.task}, epsilon {lead.epsilon:g}"
            ours = [name, f"{np.mean(lead.ours):.4f}"] if name != last else ["", ""]
            rows.append([*ours, lead.peer, *lead.cells()])
            last = name
        counts = [lead.ahead for lead in of_metric]
        header = [metric, "ours", "peer", "peer's", "lead", "ahead?"]
        texts.append(_log.table(header, rows))
        texts.append(", ".join(f"{counts.count(word)} {word}" for word in ("yes", "level", "NO")))
    return "\n".join(texts)


def notes() -> str:
    """Neighbours of each line."""
    rows = [[name, peer.relation] for name, peer in PEERS.items()]
    rows.append(["AdaSSP", PEERS["AdaSSP of labels"].relation])
    return _log.table(["peer", "neighbours"], [["ours", "zero_out"], *rows])


def loggable(lead: Lead) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(lead), "lead": lead.mean, "error": lead.error, "ahead": lead.ahead}


def main() -> None:
    """Run what the command line asks for, print the tables, log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--tasks", nargs="*", choices=list(KINDS), default=list(KINDS), metavar="TASK"
    )
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument(
        "--seeds", type=int, default=10, help="fits per task and level (default: %(default)s)"
    )
    parser.add_argument(
        "--solver",
        choices=SOLVERS,
        help="of our logistic regression (default: the package's)",
    )
    parser.add_argument("--no-linear", action="store_true", help="leave linear regression out")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}")
    if not all(0 < epsilon < math.inf for epsilon in options.epsilons):
        parser.error("--epsilons must be positive and finite")
    warnings.simplefilter("ignore")
    leads = measure(
        tuple(options.tasks),
        tuple(options.epsilons),
        options.seeds,
        options.solver,
        not options.no_linear,
    )
    print(
        f"\nMeans of {options.seeds} seeds; leads with their standard errors. "
        f"(epsilon, {utility.DELTA:g}), and neighbours:\n"
    )
    print(notes(), tables(leads), sep="\n\n")
    asked = {"seeds": options.seeds, "solver": options.solver or "default"}
    path = _log.append("private-peers", {**asked, "leads": [loggable(lead) for lead in leads]})
    print(f"\nAppended to {path.relative_to(_log.ROOT)}")


if __name__ == "__main__":
    main()
