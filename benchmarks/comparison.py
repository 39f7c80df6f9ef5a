"""Our figures beside the peers', measured in the same run: ``make bench-peers``.

A line has our figure, the peer's, by how much we are ahead, and the target. ``ratio`` is the peer's
over ours of whatever should be small (seconds, perplexity, errors: one less the accuracy or the
AUC), so that above 1 we are ahead: `ahead`, `level` (closer than can be told from one run) or
`BEHIND`. A target is met or not.

Other private methods run in this process (``--parts private``, or ``make bench-private-peers``).
Each other peer has an environment of its own, which this makes from ``benchmarks/peers/*.lock``
(Python 3.11). What cannot run is named and left out. ``SKDPBAYES_NA_DPVI_REFERENCE`` names the
folder of the NA-DPVI authors' code.

Test splits are read as by ``make bench-utility``, with default parameters, and our figures go to
its log too. The guarantees differ: diffprivlib's is pure epsilon, ours is (epsilon, 1e-5).
diffprivlib takes the best C on the test split, for accuracy and AUC each; noisy gradient descent is
untuned, and private if one row is exchanged for another.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _log, _peers, private_comparison, utility
from benchmarks.problems import Problem

REFERENCE = "SKDPBAYES_NA_DPVI_REFERENCE"
LEVEL = 0.05  # relative difference of two times that one run cannot tell
LEVEL_SCORE = 0.002  # of accuracy or AUC, at least; else two standard errors
TASKS = ("adult", "breast-cancer", "digits-0", "synth-A")
CS = (0.001, 0.01, 0.1, 1.0, 10.0)  # of diffprivlib
BUDGET = (1.0, 1e-5, 0.01, 10_000)  # epsilon, delta, sampling rate, rounds to find noise for


@dataclass(frozen=True)
class Line:
    """One line of the table.

    Attributes
    ----------
    part, name : str
    ours, theirs : float or None
        Figures. None where there is no peer, or it did not run.
    peer : str
        Whose figure `theirs` is, or why there is none.
    target : float, optional
        What ours should be, at most; at least, if `score`.
    score : bool
        An accuracy or an AUC, of which more is better.
    level : float
        Difference that counts as none: a share of the peer's figure or, of a score, as it stands.
    """

    part: str
    name: str
    ours: float | None
    theirs: float | None = None
    peer: str = ""
    target: float | None = None
    score: bool = False
    level: float = LEVEL

    @property
    def ratio(self) -> float | None:
        """Theirs over ours, of what should be small; above 1 we are ahead."""
        if self.ours is None or self.theirs is None:
            return None
        ours, theirs = (1 - self.ours, 1 - self.theirs) if self.score else (self.ours, self.theirs)
        return max(theirs, 1e-4) / max(ours, 1e-4)

    @property
    def mark(self) -> str:
        """Of ours against the peer's; against another figure of ours there is none."""
        if self.ours is None or self.theirs is None or self.peer.startswith("ours"):
            return ""
        lead = self.ours - self.theirs if self.score else 1 - self.ours / self.theirs
        return "level" if abs(lead) <= self.level else "ahead" if lead > 0 else "BEHIND"

    @property
    def met(self) -> str:
        """Of ours against the target."""
        if self.ours is None or self.target is None:
            return ""
        if self.ours == self.target:
            return "level"
        return "ahead" if (self.ours > self.target) == self.score else "BEHIND"

    def cells(self) -> list[str]:
        """Of the table."""

        def figure(value: float | None, sign: str = "") -> str:
            if value is None:
                return ""
            return sign + (
                f"{value:.4f}"
                if self.score
                else f"{value:.0f}"
                if value >= 1000
                else f"{value:.3g}"
            )

        ratio = (
            ""
            if self.ratio is None
            else f"{self.ratio:.2f}"
            if self.ratio < 100
            else f"{self.ratio:.0f}"
        )
        target = figure(self.target, ">=" if self.score else "<=")
        return [
            self.name,
            figure(self.ours),
            figure(self.theirs),
            self.peer,
            ratio,
            self.mark,
            target,
            self.met,
        ]


HEADER = ["", "ours", "peer's", "peer", "ratio", "", "target", ""]


@dataclass(frozen=True)
class Run:
    """What the command line asks for.

    Attributes
    ----------
    python : callable ``(peer) -> Path``
        The Python of a peer's environment, which is made if it is not there; raises `Unavailable`.
    solver : str, optional
        Of our logistic regression beside other private methods; the default if None.
    """

    quick: bool
    seeds: int
    python: Callable[[str], Path]
    solver: str | None = None


def reference_folder() -> Path:
    """Where the NA-DPVI authors' code is.

    Raises
    ------
    Unavailable
        If the variable is not set, or names no folder of that code.
    """
    named = os.environ.get(REFERENCE)
    if not named:
        raise _peers.Unavailable(f"{REFERENCE} does not name the folder of the authors' code")
    folder = Path(named).resolve()
    if not (folder / "noise_aware_dpsgd.py").is_file():
        raise _peers.Unavailable(f"{REFERENCE} names {folder}, which has no noise_aware_dpsgd.py")
    return folder


_skipped: list[str] = []


def skipped(what: str, error: Exception) -> str:
    """Say loudly that something is left out; what the table says in the place of the peer."""
    message = f"SKIPPED: {what}: {error}"
    print(message, file=sys.stderr, flush=True)
    _skipped.append(message)
    return "not run"


def last_json(text: str) -> dict[str, Any]:
    """The last line that is an object of JSON; libraries print lines of their own."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise _peers.Unavailable("no figures were printed")
    return json.loads(lines[-1])


def printed(python: Path | str, *arguments: str) -> dict[str, Any]:
    """What a script prints, in a process of its own.

    Raises
    ------
    Unavailable
        If it fails.
    """
    own = dict(os.environ) if str(python) == sys.executable else _peers.clean_environment()
    done = subprocess.run(
        [str(python), *arguments], stdout=subprocess.PIPE, text=True, env=own, cwd=_log.ROOT
    )
    if done.returncode:
        raise _peers.Unavailable(f"{' '.join(arguments[:2])} ended with status {done.returncode}")
    return last_json(done.stdout)


def script(name: str) -> str:
    """Path of a script that runs in peers' environments."""
    return str(_peers.PEERS / name)


# --- Speed ----------------------------------------------------------------------------------------


def steps(run: Run) -> list[Line]:
    """Microseconds of a step of variational inference, by ``benchmarks.speed``."""
    from benchmarks import speed

    sizes = [10_000, 100_000, 1_000_000] if run.quick else [10_000, 100_000, 1_000_000, 10_000_000]
    options = ["--steps", "2000" if run.quick else "10000", "--rounds", "5" if run.quick else "7"]
    options += ["--sizes", *map(str, sizes)]
    d3p = speed.D3P
    try:
        options += ["--d3p", str(run.python("d3p"))]
    except _peers.Unavailable as error:
        d3p = skipped("steps of d3p", error)
    found = printed(sys.executable, "-m", "benchmarks.speed", *options)
    us = {name: figures["us_per_step"] for name, figures in found["figures"].items()}
    floor, secure, fast, full_floor, full_secure, full_fast = (
        us[name] for name in speed.CONTENDERS
    )
    theirs = us.get(speed.D3P)
    twentieth = None if theirs is None else theirs / 20
    line = partial(Line, "speed")
    lines = [
        line("step, us: fast", fast, floor, "NumPyro, not private", floor),
        line("step, us: secure", secure, fast, "ours, fast", 1.5 * fast),
        line("step, us: secure", secure, floor, "NumPyro, not private"),
        line("step, us: fast", fast, theirs, d3p, twentieth),
        line("step, us: secure", secure, theirs, d3p, twentieth),
        line("step, us: full rank, fast", full_fast, full_floor, "NumPyro, not private"),
        line("step, us: full rank, secure", full_secure, full_floor, "NumPyro, not private"),
    ]
    skipped(
        "d3p's Poisson sampler", _peers.Unavailable("d3p 0.2.0, the last release, does not have it")
    )
    for numerics, by_size in found["sizes"].items():
        few = by_size[str(sizes[0])]["us_per_step"]
        for n in sizes[1:]:
            own = by_size[str(n)]["ratio"] * few
            lines.append(
                line(f"step, us: {numerics}, {n:.0e} rows", own, few, "ours, 1e+04 rows", 1.2 * few)
            )
    return lines


def calibration(run: Run) -> list[Line]:
    """Seconds to find the noise of a budget, and that noise."""
    rounds = 1 if run.quick else 3
    arguments = [script("noise_calibration.py")], [f"{number:g}" for number in BUDGET]
    interpreters: dict[str, Path | str] = {
        "skdpbayes": sys.executable,
        "dp_accounting": sys.executable,
    }
    try:
        interpreters["d3p"] = run.python("d3p")
    except _peers.Unavailable as error:
        skipped("d3p's noise calibration", error)
    turns: dict[str, list[dict[str, float]]] = {library: [] for library in interpreters}
    for _ in range(rounds):
        for library, python in interpreters.items():
            turns[library].append(printed(python, *arguments[0], library, *arguments[1]))
    seconds = {
        library: float(np.median([turn["seconds"] for turn in each]))
        for library, each in turns.items()
    }
    noise = {library: each[0]["noise_multiplier"] for library, each in turns.items()}
    lines = [
        Line("speed", "noise calibration, s", seconds["skdpbayes"], seconds[library], library, 0.3)
        for library in interpreters
        if library != "skdpbayes"
    ]
    line = partial(Line, "speed", level=0.01)
    lines.append(
        line("noise multiplier", noise["skdpbayes"], noise["dp_accounting"], "dp_accounting")
    )
    if "d3p" in noise:
        exchanged = turns["skdpbayes"][0]["replace_one"]
        lines.append(line("noise multiplier, one row exchanged", exchanged, noise["d3p"], "d3p"))
    return lines


def adult_arrays() -> dict[str, Any]:
    """Adult's training rows."""
    problem = utility.adult(0)
    return {"X": problem.X_train, "y": problem.y_train, "norm": problem.data_norm}


def adult_fits(run: Run) -> list[Line]:
    """Seconds of first and second fits of Adult in new processes, and recompilations."""
    turns: dict[str, list[dict[str, float]]] = {"dpvi": [], "diffprivlib": []}
    peer = "diffprivlib (no posterior)"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adult.npz"
        np.savez(path, **adult_arrays())

        def of(what: str, python: Path | str) -> dict[str, float]:
            return printed(python, script("adult_fits.py"), what, str(time.time()), str(path))

        python = None
        try:
            python = run.python("diffprivlib")
        except _peers.Unavailable as error:
            peer = skipped("diffprivlib's fits of Adult", error)
        for _ in range(3):
            turns["dpvi"].append(of("dpvi", sys.executable))
            if python:
                turns["diffprivlib"].append(of("diffprivlib", python))
        search = of("search", sys.executable)

    def least(library: str, name: str) -> float | None:
        return min((turn[name] for turn in turns[library]), default=None)

    line = partial(Line, "speed")
    return [
        line(
            "Adult, first fit of a process, s",
            least("dpvi", "first"),
            least("diffprivlib", "first"),
            peer,
            5.0,
        ),
        line(
            "Adult, second fit, s",
            least("dpvi", "second"),
            least("diffprivlib", "second"),
            peer,
            0.5,
        ),
        line("Adult, programs compiled for it", least("dpvi", "recompiled"), target=0.0),
        line("Adult, programs of 45 more fits", search["recompiled"], target=0.0),
        line("Adult, seconds of those", search["seconds"]),
    ]


def imports(run: Run) -> list[Line]:
    """Seconds to import, beyond scikit-learn, and how many heavy libraries come with it."""
    heavy = ("jax", "numpyro", "dp_accounting")
    own = [
        printed(
            sys.executable,
            script("import_time.py"),
            "skdpbayes",
            "DPBayesianLogisticRegression",
            *heavy,
        )
        for _ in range(5)
    ]
    theirs, peer = None, "diffprivlib"
    try:
        python = run.python("diffprivlib")
        command = script("import_time.py"), "diffprivlib.models", "LogisticRegression"
        theirs = min(printed(python, *command)["seconds"] for _ in range(5))
    except _peers.Unavailable as error:
        peer = skipped("diffprivlib's import", error)
    return [
        Line(
            "speed",
            "import beyond scikit-learn, s",
            min(x["seconds"] for x in own),
            theirs,
            peer,
            0.3,
        ),
        Line("speed", "jax, numpyro, dp_accounting imported", len(own[0]["loaded"]), target=0.0),
    ]


def noise_aware(run: Run) -> list[Line]:
    """CPU seconds of NA-DPVI: posterior given a trace, and a whole fit of Adult."""
    arrays = adult_arrays()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adult.npz"
        np.savez(path, **arrays)
        whole = printed(
            sys.executable, script("adult_fits.py"), "na_dpvi", str(time.time()), str(path)
        )["cpu"]
    nuts = adult_theirs = None
    names = ["the authors' NUTS, {} draws", "the authors' run, without NUTS, extrapolated"]
    own = own_postprocessing()
    try:
        folder = reference_folder()
        command = [str(run.python("na_dpvi")), script("na_dpvi_runs.py"), str(folder)]
        with _peers.Worker(
            command, {"x": np.column_stack([arrays["X"], arrays["y"] ** 0]), "y": arrays["y"]}
        ) as worker:
            from skdpbayes.privacy import calibrate_noise

            noise = calibrate_noise(1.0, 1e-5, 0.1, 10_000).noise_multiplier
            draws = (
                {"warmup": 100, "samples": 200} if run.quick else {"warmup": 1000, "samples": 4000}
            )
            answer = worker.ask(what="posterior", noise=noise, iterations=10_000, **draws)
            nuts = answer["nuts_cpu"]
            names[0] = names[0].format(sum(draws.values()))
            print(same_posterior(answer), flush=True)
            run_ = worker.ask(what="adult", noise=noise, iterations=[10, 40])
            adult_theirs = (run_["cpu"][1] - run_["cpu"][0]) / 30 * 10_000
    except _peers.Unavailable as error:
        names = [skipped("the NA-DPVI authors' code", error)] * 2
    return [
        Line("speed", "NA-DPVI, posterior of a trace, d=24, CPU s", own, nuts, names[0], 0.05),
        Line("speed", "NA-DPVI, whole fit of Adult, CPU s", whole, adult_theirs, names[1], 20.0),
    ]


def own_postprocessing() -> float:
    """CPU seconds of our posterior given the trace of the paper's recipe, 4000 draws."""
    from benchmarks import na_dpvi
    from benchmarks._na_dpvi_collapsed import exact
    from benchmarks._na_dpvi_recipe import Published

    rng = np.random.default_rng(0)
    cell = next(
        cell for cell in na_dpvi.CELLS if cell.problem == "linear regression" and cell.epsilon == 1
    )
    _, regression = na_dpvi._run(Published, cell, na_dpvi.simulate(cell, 0, 1), rng)
    times = []
    for _ in range(5):
        start = time.process_time()
        exact(regression).sample(rng, na_dpvi.N_DRAWS)
        times.append(time.process_time() - start)
    return min(times)


LEAST_ESS = 100  # effective draws of a chain that ours is compared with


def same_posterior(answer: dict[str, Any]) -> str:
    """How far our posterior of the authors' trace is from what their NUTS found.

    Convergence comes first: the largest split R-hat and the smallest effective sample size, of the
    parameters and of their squared deviations, and the number of divergent transitions. Chains of
    fewer than `LEAST_ESS` effective draws are not compared.
    """
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    from benchmarks._na_dpvi_collapsed import Regression, TraceSums, exact

    x = {name: np.asarray(values, float) for name, values in answer.items()}
    theirs = x["draws"]
    mean, sd = theirs.mean(axis=(0, 1)), theirs.std(axis=(0, 1))
    monitored = theirs, (theirs - mean) ** 2
    with np.errstate(invalid="ignore"):  # a chain that does not move
        r_hat = max(split_gelman_rubin(y).max() for y in monitored)
        ess = min(effective_sample_size(y).min() for y in monitored)
    text = (
        f"NA-DPVI: the authors' NUTS on their trace: largest R-hat {r_hat:.2f}, smallest effective "
        f"sample size {ess:.0f}, {x['divergences']:.0f} divergences. "
    )
    if not ess >= LEAST_ESS:  # NaN too
        return text + f"NOT COMPARED: the effective sample size is below {LEAST_ESS}."
    sums = TraceSums(*(x[name] for name in TraceSums._fields))
    given = (x[name] for name in ("noise_variance", "kappa", "v_mean", "v_sd", "prior_mean"))
    draws = exact(Regression(sums, *given, subsampling=1.0)).sample(np.random.default_rng(0), 4000)[
        0
    ]
    gap, width = np.abs(draws.mean(axis=0) - mean) / sd, draws.std(axis=0) / sd
    return text + (
        f"Our posterior differs in means by {np.median(gap):.2f} (median) and {gap.max():.2f} "
        "(largest) of its standard deviations; widths over theirs "
        f"{np.median(width):.2f} (median), {width.min():.2f} to {width.max():.2f}."
    )


def autoencoders(run: Run) -> list[Line]:
    """Seconds of an epoch of auto-encoders, by ``benchmarks.autoencoder``."""
    from benchmarks import autoencoder

    del run
    try:
        images, _ = autoencoder.mnist(False)
    except FileNotFoundError as error:
        skipped("auto-encoders", error)
        return []
    floor = autoencoder.numpyro_seconds_per_epoch(images)
    fast, secure = (
        autoencoder.seconds_per_epoch(images, numerics) for numerics in ("fast", "secure")
    )
    peer = "NumPyro, not private"
    return [
        Line("autoencoder", "auto-encoder, s an epoch: fast", fast, floor, peer, 4 * floor),
        Line("autoencoder", "auto-encoder, s an epoch: secure", secure, floor, peer),
    ]


# --- Utility --------------------------------------------------------------------------------------


def noisy_gradient_descent(
    problem: Problem, epsilon: float, seed: int, n_steps: int = 100
) -> dict[str, float]:
    """Untuned, full batch: rows scaled so that gradients have length 1 at most, and steps of 4.

    Private if one row is exchanged for any other, which moves a sum by 2.
    """
    from scipy.special import expit

    from skdpbayes.privacy import calibrate_noise

    def rows(X: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.column_stack([X / problem.data_norm, np.ones(len(X))]) / math.sqrt(2)

    noise = calibrate_noise(
        epsilon, utility.DELTA, 1.0, n_steps, adjacency="replace_one"
    ).noise_multiplier
    X, rng = rows(problem.X_train), np.random.default_rng(seed)
    w = np.zeros(X.shape[1])
    for _ in range(n_steps):
        gradient = X.T @ (expit(X @ w) - problem.y_train) + noise * rng.standard_normal(len(w))
        w -= 4 * gradient / len(X)
    return scores(rows(problem.X_test) @ w, problem)


def scores(decision: NDArray[np.float64], problem: Problem) -> dict[str, float]:
    """Accuracy and AUC on the test split."""
    from sklearn.metrics import roc_auc_score

    accuracy = np.mean((decision > 0) == problem.y_test)
    return {"accuracy": float(accuracy), "auc": float(roc_auc_score(problem.y_test, decision))}


def not_private(problem: Problem) -> dict[str, float]:
    """scikit-learn's logistic regression."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(problem.X_train, problem.y_train)
    return scores(model.decision_function(problem.X_test), problem)


def problems_of(task: str, seeds: int) -> list[Problem]:
    """One for each seed; Adult is the same for all."""
    make = utility.TASKS[task].problem
    return [make(0)] * seeds if make is utility.adult else [make(seed) for seed in range(seeds)]


def diffprivlib(
    problems: list[Problem], epsilons: tuple[float, ...], python: Path
) -> NDArray[np.float64]:
    """Accuracy and AUC, an array of shape (seeds, epsilons, Cs, 2)."""
    found: list[Any] = []
    for seed, problem in enumerate(problems):
        arrays = {
            "X": problem.X_train,
            "y": problem.y_train,
            "X_test": problem.X_test,
            "y_test": problem.y_test,
        }
        with _peers.Worker(
            [str(python), script("diffprivlib_fits.py")], {**arrays, "norm": problem.data_norm}
        ) as worker:
            found.append(
                worker.ask(epsilons=list(epsilons), cs=list(CS), seed=seed)["accuracy_auc"]
            )
    return np.array(found)


def best(found: NDArray[np.float64], level: int, metric: int) -> NDArray[np.float64]:
    """By seed, at the C with the best mean of that metric."""
    by_c = found[:, level, :, metric]
    return by_c[:, by_c.mean(axis=0).argmax()]


def score_line(
    name: str, ours: list[float], theirs: Any, peer: str, target: float | None = None
) -> Line:
    """Line of an accuracy or AUC by seed; a tie is a difference within two standard errors."""
    own, other = np.asarray(ours, float), np.asarray(theirs, float)
    error = (own - other).std(ddof=1) / math.sqrt(len(own)) if len(own) == len(other) > 1 else 0.0
    figures = float(own.mean()), (float(other.mean()) if len(other) else None)
    return Line(
        "utility", name, *figures, peer, target, score=True, level=max(LEVEL_SCORE, 2 * error)
    )


def target_of(task: str, epsilon: float) -> dict[str, float]:
    """The target: a figure that says so, or the best that was measured for peers."""
    frozen = dict(utility.TASKS[task].peers.get(epsilon, []))
    if "to reach" in frozen:
        return frozen["to reach"]
    names = {metric for figures in frozen.values() for metric in figures}
    return {
        metric: max(figures.get(metric, 0.0) for figures in frozen.values()) for metric in names
    }


def classification(run: Run, tasks: tuple[str, ...] = TASKS) -> list[Line]:
    """Test accuracy and AUC with default parameters; appended to the log of bench-utility."""
    lines: list[Line] = []
    log: list[dict[str, Any]] = []
    for task in tasks:
        epsilons = tuple(e for e in utility.TASKS[task].epsilons if math.isfinite(e))
        records = utility.run(task, epsilons, run.seeds)
        log += records
        problems = problems_of(task, run.seeds)
        peer = "diffprivlib"
        try:
            found = diffprivlib(problems, epsilons, run.python("diffprivlib"))
        except _peers.Unavailable as error:
            peer = skipped(f"diffprivlib on {task}", error)
            found = np.empty((0, len(epsilons), len(CS), 2))
        floor = [not_private(problem) for problem in problems] if task == "adult" else []
        for level, record in enumerate(records):
            epsilon = epsilons[level]
            descent = [
                noisy_gradient_descent(problem, epsilon, seed)
                for seed, problem in enumerate(problems)
            ]
            targets = target_of(task, epsilon)
            for k, metric in enumerate(("accuracy", "auc")):
                line = partial(score_line, f"{task}, epsilon {epsilon:g}, {metric}", record[metric])
                lines.append(
                    line(best(found, level, k) if len(found) else [], peer, targets.get(metric))
                )
                lines.append(line([each[metric] for each in descent], "noisy gradient descent"))
                if floor:
                    lines.append(
                        line([each[metric] for each in floor], "scikit-learn, not private")
                    )
        print(f"{task}: done", flush=True)
    _log.append(
        "utility",
        {"seeds": run.seeds, "solver": "dpvi", "records": [utility.loggable(r) for r in log]},
    )
    return lines


def synth_b(run: Run) -> list[Line]:
    """AUC on synth-B at epsilon 1, beside scikit-learn without privacy."""
    (record,) = utility.run("synth-B", (1.0,), run.seeds)
    _log.append(
        "utility", {"seeds": run.seeds, "solver": "dpvi", "records": [utility.loggable(record)]}
    )
    floor = [not_private(problem)["auc"] for problem in problems_of("synth-B", run.seeds)]
    target = target_of("synth-B", 1.0)["auc"]
    return [
        score_line(
            "synth-B, epsilon 1, auc", record["auc"], floor, "scikit-learn, not private", target
        )
    ]


def lda(run: Run) -> list[Line]:
    """Completion perplexity on lda-A, by ``benchmarks.topics``."""
    from benchmarks import topics

    corpus = topics.simulated(holdout=False)
    records = topics.run("lda-A", corpus, (1.0, 4.0), run.seeds, scikit_learn=False)
    perplexity = {record["line"]: float(np.mean(record["perplexity"])) for record in records}
    online = topics.of_model(topics.not_private(corpus, 0, learning_method="online"), corpus.test)
    lines = []
    for level, target in (("1", 97.0), ("4", 91.0)):
        figures = perplexity[f"epsilon {level}"], online
        name = f"lda-A, epsilon {level}, perplexity"
        lines.append(
            Line("utility", name, *figures, "scikit-learn, not private", target, level=0.005)
        )
    return lines


def line_of(lead: private_comparison.Lead) -> Line:
    """Line of a lead over another private method, level within two standard errors."""
    theirs = float(np.mean(lead.theirs))
    return Line(
        "private",
        f"{lead.task}, epsilon {lead.epsilon:g}, {lead.metric.replace('_', '-')}",
        float(np.mean(lead.ours)),
        theirs,
        lead.peer,
        score=lead.score,
        level=2 * lead.error / (1.0 if lead.score else theirs),
    )


def private(run: Run) -> list[Line]:
    """Other private methods in this process, by ``benchmarks.private_comparison``."""
    leads = private_comparison.measure(seeds=run.seeds, solver=run.solver)
    print(f"\n{private_comparison.tables(leads)}\n", flush=True)
    return [line_of(lead) for lead in leads]


PARTS: dict[str, list[Callable[[Run], list[Line]]]] = {
    "speed": [steps, calibration, adult_fits, imports, noise_aware],
    "utility": [classification, synth_b, lda],
    "private": [private],
    "autoencoder": [autoencoders],
}


# --- Output ---------------------------------------------------------------------------------------


def table(lines: list[Line]) -> str:
    """All lines, and how many are of each mark."""
    text = _log.table(HEADER, [line.cells() for line in lines])
    for what, marks in (("peers", [x.mark for x in lines]), ("targets", [x.met for x in lines])):
        counts = ", ".join(f"{marks.count(mark)} {mark}" for mark in ("ahead", "level", "BEHIND"))
        text += f"\nagainst {what}: {counts}"
    return text


def draw(lines: list[Line], path: Path) -> Path:
    """Bars of the ratios, on a logarithmic axis about 1."""
    from matplotlib.figure import Figure

    colours = {"ahead": "C0", "level": "0.6", "BEHIND": "C3"}
    shown = [line for line in lines if line.mark][::-1]
    figure = Figure(figsize=(9, 1.2 + 0.17 * len(shown)), layout="constrained")
    ax = figure.subplots()
    ratios = [line.ratio or 1.0 for line in shown]
    bars = [colours[line.mark] for line in shown]
    ax.barh(range(len(shown)), [r - 1 for r in ratios], left=1.0, color=bars)
    ax.set_xscale("log")
    ax.axvline(1.0, color="0.2", linewidth=0.8)
    ax.set_yticks(
        range(len(shown)), [f"{line.name} ({line.peer})" for line in shown], fontsize="x-small"
    )
    ax.set_ylim(-0.6, len(shown) - 0.4)
    ax.set_xlabel("peer's figure over ours (of scores, distances from 1)")
    for mark, colour in colours.items():
        ax.barh([0], [0], left=1.0, color=colour, label=mark)
    ax.legend(loc="lower right", fontsize="small")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=130)
    return path


def loggable(line: Line) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(line), "ratio": line.ratio, "mark": line.mark, "met": line.met}


def main() -> None:
    """Run what the command line asks for, print the table, log, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=list(PARTS),
        default=["speed", "utility", "private"],
        metavar="PART",
    )
    parser.add_argument(
        "--seeds", type=int, default=10, help="fits per task and level (default: %(default)s)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer steps, rounds and draws; up to a million rows"
    )
    parser.add_argument(
        "--solver",
        choices=private_comparison.SOLVERS,
        help="of our logistic regression in the part private (default: the package's)",
    )
    _peers.add_python(parser)
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {options.seeds}")
    warnings.simplefilter("ignore")
    run = Run(
        options.quick,
        options.seeds,
        partial(_peers.environment, python=options.python),
        options.solver,
    )
    lines: list[Line] = []
    for part in options.parts:
        for measure in PARTS[part]:
            start = time.perf_counter()
            lines += measure(run)
            print(f"{part}, {measure.__name__}: {time.perf_counter() - start:.0f} s", flush=True)
    print(
        f"\n{options.seeds} seeds. Ratio: the peer's figure over ours, of scores their distances "
        "from 1.\n"
    )
    print(table(lines))
    print("\n".join(_skipped))
    asked = {"parts": options.parts, "seeds": options.seeds, "quick": options.quick}
    path = _log.append(
        "peers", {**asked, "skipped": _skipped, "lines": [loggable(line) for line in lines]}
    )
    picture = draw(lines, path.with_suffix(".png"))
    print(f"\nAppended to {path.relative_to(_log.ROOT)}; picture: {picture.relative_to(_log.ROOT)}")


if __name__ == "__main__":
    main()
