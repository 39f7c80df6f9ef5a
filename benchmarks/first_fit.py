"""First fit of a fresh process: imports, tracing, lowering and compilation, beside a second fit.

Each cell is an estimator under a solver, with the data of the example in the estimator's docstring.
A process of its own imports the package, fits twice, and says where the time went.

- **imports**: seconds inside import statements, those of `fit` included.
- **trace, lower, compile**: seconds that JAX reports for making programs, without overlap;
  **programs**: number of programs that XLA made, or read from a cache.
- **first**: seconds of the process from its first import to the end of its first fit.
- **second**: seconds of the same fit again. The **ratio** is first over second.
- **CPU**: CPU seconds of first, all threads. Compare these where a machine is busy.

Run it as ``python -m benchmarks.first_fit``, with names of cells, or their beginnings, as
arguments.
``--cache FOLDER`` uses a compilation cache: the first turn is cold if the folder is empty, the last
turn warm.
"""

from __future__ import annotations

import argparse
import builtins
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _log

Data = tuple[NDArray[Any], ...]
Making = dict[str, list[tuple[float, float]]]

_EVENTS = {
    "trace": "/jax/core/compile/jaxpr_trace_duration",
    "lower": "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "compile": "/jax/core/compile/backend_compile_duration",
}


def _logistic() -> Data:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 3))
    return X, (X @ [2.0, -1.0, 0.0] + rng.logistic(size=2000) > 0).astype(int)


def _linear() -> Data:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(5000, 2))
    return X, X @ [2.0, -1.0] + 0.5 + 0.3 * rng.normal(size=5000)


def _binary() -> Data:
    return (np.random.default_rng(0).random((5000, 1)) < 0.3,)


def _letters() -> Data:
    letters = np.random.default_rng(0).choice(["a", "b", "c"], size=(5000, 1), p=[0.5, 0.3, 0.2])
    return (letters,)


def _times() -> Data:
    return (np.random.default_rng(0).exponential(1 / 4, size=(5000, 1)),)


def _clusters() -> Data:
    rng = np.random.default_rng(0)
    return (np.concatenate([rng.normal(-2, 0.5, (3000, 2)), rng.normal(2, 0.5, (3000, 2))]),)


def _words() -> Data:
    rng = np.random.default_rng(0)
    topics = np.repeat(np.eye(2), 10, axis=1) / 10
    return (rng.poisson(30 * rng.dirichlet([0.2, 0.2], size=3000) @ topics),)


def _pixels() -> Data:
    rng = np.random.default_rng(0)
    parts = rng.random((5000, 2)) < 0.5
    return (rng.random((5000, 20)) < np.where(np.repeat(parts, 10, axis=1), 0.9, 0.1),)


def _grouped() -> Data:
    rng = np.random.default_rng(0)
    group, x = rng.integers(0, 3, 3000), rng.normal(size=(3000, 2))
    logits = (x * np.array([[2, 0], [1, 1], [0, 2]])[group]).sum(axis=1)
    y = (logits + rng.logistic(size=3000) > 0).astype(int)
    return np.column_stack([x, group]), y


def _counts() -> Data:
    X = np.random.default_rng(0).normal(size=(2000, 2))
    return X, np.random.default_rng(1).poisson(np.exp(X @ [0.5, -0.5]))


def _quadrants() -> Data:
    X = np.random.default_rng(0).normal(size=(5000, 2))
    return X, (X[:, 0] * X[:, 1] > 0).astype(int)


def _sine() -> Data:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(5000, 1))
    return X, np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=5000)


def _poisson_model() -> dict[str, Any]:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", len(x)):
            rate = numpyro.deterministic("rate", jnp.exp(x @ w))
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    return {"model": model}


@dataclass(frozen=True)
class Example:
    """An estimator, the data of its example, its solvers (the default first) and parameters."""

    name: str
    data: Callable[[], Data]
    solvers: tuple[str, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    more: Callable[[], dict[str, Any]] = dict  # parameters that need imports
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)  # of one solver


_ALL = ("vips", "dpvi", "na-dpvi", "sgld")
EXAMPLES = {
    "logistic": Example(
        "DPBayesianLogisticRegression",
        _logistic,
        ("na-dpvi", "dpvi", "sgld", "vips"),
        {"epsilon": 1.0, "classes": [0, 1]},
    ),
    "linear": Example(
        "DPBayesianLinearRegression",
        _linear,
        ("na-dpvi", "vips"),
        {"epsilon": 1.0, "bounds": ((-1, 1), (-4, 4))},
    ),
    "beta": Example("DPBetaBernoulli", _binary, _ALL, {"epsilon": 1.0}),
    "dirichlet": Example(
        "DPDirichletCategorical", _letters, _ALL, {"epsilon": 1.0, "categories": ["a", "b", "c"]}
    ),
    "gamma": Example(
        "DPGammaExponential",
        _times,
        _ALL,
        {"epsilon": 1.0, "prior_shape": 8.0, "prior_rate": 2.0},
    ),
    "mixture": Example(
        "DPGaussianMixture",
        _clusters,
        ("na-dpvi", "vips", "dpvi", "sgld"),
        {"epsilon": 1.0, "n_components": 2, "bounds": (-5, 5)},
    ),
    "topics": Example(
        "DPLatentDirichletAllocation",
        _words,
        _ALL,
        {"epsilon": 1.0, "n_components": 2},
        changes={"sgld": {"epsilon": 4.0}},  # too few documents for a smaller one
    ),
    "belief-net": Example("DPSigmoidBeliefNet", _pixels, _ALL, {"epsilon": 1.0, "n_components": 2}),
    "hierarchical": Example(
        "DPHierarchicalLogisticRegression",
        _grouped,
        ("na-dpvi", "dpvi", "sgld"),
        {"groups": 3, "epsilon": 2.0, "classes": [0, 1]},
    ),
    "numpyro": Example(
        "DPNumPyroModel", _counts, ("na-dpvi", "dpvi", "sgld"), {"epsilon": 1.0}, _poisson_model
    ),
    "autoencoder": Example(
        "DPVariationalAutoencoder",
        _pixels,
        ("dpvi",),
        {"n_components": 2, "hidden_layer_sizes": (20,), "epsilon": 2.0, "n_steps": 300},
    ),
    "classifier": Example(
        "DPBayesianMLPClassifier",
        _quadrants,
        ("dpvi", "sgld"),
        {"hidden_layer_sizes": (20,), "epsilon": 2.0, "classes": [0, 1], "n_steps": 300},
    ),
    "regressor": Example(
        "DPBayesianMLPRegressor",
        _sine,
        ("dpvi", "sgld"),
        {
            "hidden_layer_sizes": (20,),
            "activation": "tanh",
            "epsilon": 2.0,
            "bounds": ((-1, 1), (-1.5, 1.5)),
            "n_steps": 300,
        },
    ),
}


def cells() -> list[str]:
    """Names of all cells: an example and a solver."""
    return [f"{name}, {solver}" for name, one in EXAMPLES.items() for solver in one.solvers]


# ------------------------------------------------------------------- one process


class _Imports:
    """Seconds inside outermost import statements."""

    def __init__(self) -> None:
        self.seconds, self._depth, self._plain = 0.0, 0, builtins.__import__

    def __enter__(self) -> _Imports:
        builtins.__import__ = self._timed
        return self

    def __exit__(self, *_: object) -> None:
        builtins.__import__ = self._plain

    def _timed(self, *args: Any, **kwargs: Any) -> Any:
        if self._depth:
            return self._plain(*args, **kwargs)
        self._depth, start = 1, time.perf_counter()
        try:
            return self._plain(*args, **kwargs)
        finally:
            self._depth = 0
            self.seconds += time.perf_counter() - start


def _covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of spans of time."""
    total, end = 0.0, -np.inf
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def measure(cell: str, numerics: str, cache: str | None) -> dict[str, float]:
    """Two fits of a cell in this process, which has imported neither JAX nor the package."""
    import warnings

    warnings.simplefilter("ignore")
    name, solver = cell.split(", ")
    example = EXAMPLES[name]
    data = example.data()
    made: Making = {event: [] for event in _EVENTS.values()}

    def note(event: str, start: float, stop: float, **_: Any) -> None:
        made.get(event, []).append((start, stop))

    start, cpu = time.perf_counter(), time.process_time()
    with _Imports() as imports:
        import skdpbayes

        if cache is not None:
            skdpbayes.set_compilation_cache(cache)
        import jax

        jax.monitoring.register_event_time_span_listener(note)
        parameters = example.parameters | example.more() | {"numerics": numerics}
        if solver != "dpvi" or len(example.solvers) > 1:  # auto-encoders have one solver
            parameters |= {"solver": solver} | example.changes.get(solver, {})
        before_fit = time.perf_counter()
        getattr(skdpbayes, example.name)(**parameters).fit(*data)
        first, cpu = time.perf_counter(), time.process_time() - cpu
    parts = {part: _covered(made[event]) for part, event in _EVENTS.items()}
    programs = len(made[_EVENTS["compile"]])
    again = time.perf_counter()
    getattr(skdpbayes, example.name)(**parameters).fit(*data)
    second = time.perf_counter() - again
    return {
        "imports": imports.seconds,
        **parts,
        "programs": programs,
        "fit": first - before_fit,
        "first": first - start,
        "second": second,
        "ratio": (first - start) / second,
        "CPU": cpu,
        "late": len(made[_EVENTS["compile"]]) - programs,
    }


# ------------------------------------------------------------------ all processes

COLUMNS = {
    "imports": ".2f",
    "trace": ".2f",
    "lower": ".2f",
    "compile": ".2f",
    "programs": ".0f",
    "first": ".2f",
    "CPU": ".2f",
    "second": ".3f",
    "ratio": ".0f",
}


def fresh(cell: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure a cell in a process of its own."""
    how = ["--numerics", options.numerics, *(["--cache", options.cache] if options.cache else [])]
    return _log.in_fresh_process("benchmarks.first_fit", cell, *how)


def main() -> None:
    """Measure cells, print a table and one line of JSON, and log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cells", nargs="*", help="names of cells or their beginnings (all)")
    parser.add_argument("--quick", action="store_true", help="only the default solvers")
    parser.add_argument("--list", action="store_true", help="print the names of the cells")
    parser.add_argument(
        "--turns", type=int, default=1, help="fresh processes of each cell (%(default)s)"
    )
    parser.add_argument("--numerics", default="secure", choices=("secure", "fast"))
    parser.add_argument("--cache", metavar="FOLDER", help="use a compilation cache in this folder")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_this_process:
        print(json.dumps(measure(options.cells[0], options.numerics, options.cache)))
        return
    wanted = [f"{n}, {e.solvers[0]}" for n, e in EXAMPLES.items()] if options.quick else cells()
    if options.cells:
        wanted = [cell for cell in wanted if cell.startswith(tuple(options.cells))]
    if options.list:
        print("\n".join(wanted))
        return
    threads = (
        os.cpu_count() if not hasattr(os, "sched_getaffinity") else len(os.sched_getaffinity(0))
    )
    figures: dict[str, list[dict[str, float]]] = {}
    rows = []
    for cell in wanted:
        figures[cell] = [fresh(cell, options) for _ in range(options.turns)]
        for turn, found in enumerate(figures[cell]):
            label = cell if options.turns == 1 else f"{cell} ({turn + 1})"
            rows.append([label, *(format(found[name], how) for name, how in COLUMNS.items())])
            print(f"{label}: {found['first']:.2f} s", file=sys.stderr, flush=True)
    print(f"fresh processes, {threads} cores, numerics {options.numerics}, seconds")
    print(_log.table(["first fit", *COLUMNS], rows))
    record = {"numerics": options.numerics, "cache": bool(options.cache), "figures": figures}
    print(json.dumps(record))
    _log.append("first_fit", record)


if __name__ == "__main__":
    main()
