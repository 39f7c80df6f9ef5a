"""Studies of 45 fits beside their steps alone: folds, budgets and priors, and searches.

``make bench-study``. Rows have Adult's shape: 32561 rows of 105 columns, of which a few numbers
and many zeros and ones. Each study is a fresh process, which imports JAX before its clock starts.

- **total**: seconds of the study, with all planning, compilation, fits and scores.
- **steps**: seconds of the compiled loops of the same fits, given their batches and noise. They
  run after each fit, while the clock of the study stands still, so that a busy machine slows down
  both alike. The **ratio** is total over steps.
- **compile**, **score**: seconds of the study in which XLA compiled or models were scored.
- **programs**: number of programs that XLA made in the first fit, and **later** in all others.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _log

N_RECORDS, N_NUMBERS = 32_561, 6
N_CATEGORIES = (9, 16, 7, 15, 6, 5, 41)  # of one-hot columns: 105 columns in all
FOLDS, EPSILONS, SCALES = 5, (0.3, 1.0, 3.0), (0.3, 1.0, 3.0)
CANDIDATES = tuple(np.geomspace(0.1, 10, 15).tolist())  # of the searches, with three folds

Data = tuple[NDArray[np.float64], NDArray[np.int64]]


def make_data(n: int) -> Data:
    """Numbers and one-hot columns, with labels from a logistic model."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((n, N_NUMBERS))]
    parts += [np.eye(size)[rng.choice(size, n, p=_shares(size))] for size in N_CATEGORIES]
    X = np.concatenate(parts, axis=1)
    logits = X @ (0.6 * rng.standard_normal(X.shape[1])) - 1
    return X, (logits + rng.logistic(size=n) > 0).astype(np.int64)


def _shares(size: int) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = 1 / np.arange(1, size + 1)
    return shares / shares.sum()


# ------------------------------------------------------------------- one study


class Clock:
    """Seconds of a study, those in which it stood still left out."""

    def __init__(self) -> None:
        self._start, self._still = time.perf_counter(), 0.0
        self.steps: list[float] = []
        self.score = 0.0
        self.compiled: list[tuple[int, float]] = []  # fits before, seconds

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._start - self._still

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stand still."""
        start, compiled = time.perf_counter(), len(self.compiled)
        yield
        del self.compiled[compiled:]
        self._still += time.perf_counter() - start

    @contextmanager
    def scoring(self) -> Iterator[None]:
        """Count as scoring."""
        start = time.perf_counter()
        yield
        self.score += time.perf_counter() - start


def steps_alone(keys: Any, model: Any, solver: Any, spec: Any, records: Any) -> float:
    """Seconds of the compiled programs of a run, given its batches and noise."""
    import jax

    from skdpbayes import inference
    from skdpbayes.mechanism.threefry import words_of_steps

    seconds = 0.0
    with jax.enable_x64(True):
        mechanism, records = jax.device_put((spec.traced(), records))
        sizes = inference.sizes_of_steps(model, solver, mechanism, records, spec.n_steps)
        kinds = inference._kinds_if_few(model, solver, mechanism, spec.n_steps, int(sizes.max()))
        own = (model, solver, mechanism)
        for i in range(spec.n_chains):
            chain = keys.chain(i)
            key = chain.solver[0]
            where = (sizes, records.bounds(), records.n_slots)
            drawn = inference.draws_of_chain(chain.sampling[0], chain.noise[0], spec, *where)
            draws = jax.block_until_ready([jax.device_put(part) for part in drawn])
            state = jax.block_until_ready(inference._start(key, model, solver))
            start = time.perf_counter()
            for part in draws:
                first, stop = int(part.first), int(part.stop)
                if kinds is None:
                    ends = np.int32(first), np.int32(stop)
                    state, _, _ = inference._steps(key, records, part, *ends, *own, state, None)
                    continue
                words = words_of_steps(key, first, stop)
                for step in range(first, stop):
                    how = (int(kinds[step]), words[step - first], np.int32(step))
                    release = inference._released(*how, records, part, *own, state)
                    state, _ = inference._learned(*how, release, *own, state)
            jax.block_until_ready(state)
            seconds += time.perf_counter() - start
    return seconds


@contextmanager
def watched() -> Iterator[Clock]:
    """A clock that sees every run, and runs its steps once more while it stands still."""
    import jax

    from skdpbayes import inference

    clock, run = Clock(), inference.run

    def note(event: str, seconds: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            clock.compiled.append((len(clock.steps), seconds))

    def run_and_again(*how: Any, **options: Any) -> Any:
        found = run(*how, **options)
        if how[3].n_steps > 1:  # else a private score
            with clock.stopped():
                clock.steps.append(steps_alone(*how))
        return found

    jax.monitoring.register_event_duration_secs_listener(note)
    inference.run = run_and_again
    try:
        yield clock
    finally:
        inference.run = run


def _model(solver: str, **parameters: Any) -> Any:
    from skdpbayes import DPBayesianLogisticRegression

    return DPBayesianLogisticRegression(classes=[0, 1], solver=solver, **parameters)


def folds(solver: str, data: Data, clock: Clock) -> None:
    """Fit and score each fold under each budget and prior."""
    from sklearn.model_selection import KFold

    X, y = data
    for epsilon, scale in product(EPSILONS, SCALES):
        for fitted, scored in KFold(FOLDS, shuffle=True, random_state=0).split(X):
            model = _model(solver, epsilon=epsilon, prior_scale=scale).fit(X[fitted], y[fitted])
            with clock.scoring():
                model.score(X[scored], y[scored])


def grid_search(solver: str, data: Data, clock: Clock) -> None:
    """Search 15 priors in three folds by scikit-learn's `GridSearchCV`, which is not private."""
    from sklearn.model_selection import GridSearchCV

    def score(model: Any, X: Any, y: Any) -> float:
        with clock.scoring():
            return float(model.score(X, y))

    grid = {"prior_scale": CANDIDATES}
    GridSearchCV(_model(solver), grid, scoring=score, cv=3, refit=False).fit(*data)


def private_search(solver: str, data: Data, clock: Clock) -> None:
    """Search 15 priors in 45 runs, or as many as are drawn with seed 2, privately."""
    from skdpbayes import model_selection

    plain = model_selection.scores

    def scores(*how: Any) -> Any:
        with clock.scoring():
            return plain(*how)

    model_selection.scores = scores
    grid = {"prior_scale": CANDIDATES}
    search = model_selection.DPRandomizedSearchCV(
        _model(solver), grid, epsilon=3.0, n_iter=45, eta=5.0, random_state=2
    )
    search.fit(*data)


STUDIES: dict[str, Callable[[str, Data, Clock], None]] = {
    "folds": folds,
    "GridSearchCV": grid_search,
    "DPRandomizedSearchCV": private_search,
}
SOLVERS = ("auto", "dpvi")


def measure(study: str, solver: str, n: int) -> dict[str, float]:
    """Figures of a study in this process."""
    import warnings

    warnings.simplefilter("ignore")
    data = make_data(n)
    with watched() as clock:
        STUDIES[study](solver, data, clock)
        total = clock.seconds
    steps = sum(clock.steps)
    return {
        "fits": len(clock.steps),
        "total": total,
        "steps": steps,
        "ratio": total / steps,
        "compile": sum(seconds for _, seconds in clock.compiled),
        "score": clock.score,
        # The posterior of the first fit comes after its steps.
        "programs": sum(before <= 1 for before, _ in clock.compiled),
        "later": sum(before > 1 for before, _ in clock.compiled),
    }


# ----------------------------------------------------------------- all studies

COLUMNS = {
    "fits": ".0f",
    "total": ".1f",
    "steps": ".1f",
    "ratio": ".2f",
    "compile": ".1f",
    "score": ".1f",
    "programs": ".0f",
    "later": ".0f",
}


def fresh(study: str, solver: str, n: int) -> dict[str, float]:
    """Figures of a study in a process of its own."""
    how = ("--studies", study, "--solvers", solver, "--rows", str(n))
    return _log.in_fresh_process("benchmarks.study", *how)


def main() -> None:
    """Measure studies, print a table and one line of JSON, and log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=SOLVERS)
    parser.add_argument("--rows", type=int, default=N_RECORDS, help="(default: %(default)s)")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_this_process:
        found = measure(options.studies[0], options.solvers[0], options.rows)
        print(json.dumps(found))
        return
    figures, rows = {}, []
    for study, solver in product(options.studies, options.solvers):
        found = figures[f"{study}, {solver}"] = fresh(study, solver, options.rows)
        rows.append(
            [f"{study}, {solver}", *(format(found[name], how) for name, how in COLUMNS.items())]
        )
        print(f"{study}, {solver}: {found['total']:.1f} s", file=sys.stderr, flush=True)
    width = N_NUMBERS + sum(N_CATEGORIES)
    print(f"{options.rows} rows of {width} columns, fresh processes, seconds")
    print(_log.table(["study, solver", *COLUMNS], rows))
    record: dict[str, Any] = {"rows": options.rows, "figures": figures}
    print(json.dumps(record))
    _log.append("study", record)


if __name__ == "__main__":
    main()
