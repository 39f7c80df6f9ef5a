"""Microseconds per step of our private fit and of NumPyro's non-private one, in one run.

``make bench-speed``. Bayesian logistic regression, N=32561, d=105, expected batch 326, one thread,
warm. Absolute times move from machine to machine and with whatever else runs, so the contenders
take turns and what counts is the median of the ratios within a turn. ``--d3p`` adds d3p's own
steps, ``--sizes`` how a step's time goes with the number of records at a fixed batch.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _log, _peers

N_RECORDS, N_FEATURES, SAMPLING_RATE = 32_561, 105, 0.01
BATCH = 326
SIZE_FEATURES = 30  # where the number of records goes up to ten million
D3P = "d3p 0.2.0, batches of fixed size, private"

Float32 = NDArray[np.float32]
# A contender gets the data and the number of steps, and returns what runs them: seconds for those
# steps.
Contender = Callable[[Float32, NDArray[np.int64], int], Callable[[], float]]


def use_one_thread() -> None:
    """Keep this process to one core and one thread; only before jax is imported."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["XLA_FLAGS"] = (
        f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}".strip()
    )
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def make_data() -> tuple[Float32, NDArray[np.int64]]:
    """Draw Gaussian rows, with labels from a logistic model."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_RECORDS, N_FEATURES))
    w = rng.standard_normal(N_FEATURES) / N_FEATURES**0.5
    y = (rng.uniform(size=N_RECORDS) < 1 / (1 + np.exp(-X @ w))).astype(np.int64)
    return X.astype(np.float32), y


def numpyro_svi(
    X: Float32, y: NDArray[np.int64], n_steps: int, guide: str = "mean_field"
) -> Callable[[], float]:
    """Set up SVI with a normal guide and Adam, all steps in one compiled scan; not private.

    Tuned to be the fastest of what was tried: the analytic entropy of TraceMeanField_ELBO, plain
    bits modulo N as indices, drawn for all steps at once (``randint`` in every step costs a third
    of the step), and gathers that do not check their indices.
    """
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

    def model(x: Any, labels: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([N_FEATURES]).to_event(1))
        with numpyro.plate("records", N_RECORDS, subsample_size=BATCH):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=labels)

    automatic, elbo = (
        (AutoNormal, TraceMeanField_ELBO)
        if guide == "mean_field"
        else (AutoMultivariateNormal, Trace_ELBO)
    )
    svi = SVI(model, automatic(model), numpyro.optim.Adam(1e-3), elbo())
    features, labels = jnp.asarray(X), jnp.asarray(y, dtype=jnp.float32)
    state = svi.init(jax.random.key(0), features[:BATCH], labels[:BATCH])

    @jax.jit
    def run(state: Any, key: Any, features: Any, labels: Any) -> Any:
        bits = jax.random.bits(key, (n_steps, BATCH), jnp.uint32)
        batches = (bits % jnp.uint32(N_RECORDS)).astype(jnp.int32)

        def step(state: Any, batch: Any) -> tuple[Any, None]:
            x = features.at[batch].get(mode="promise_in_bounds")
            return svi.update(state, x, labels.at[batch].get(mode="promise_in_bounds"))[0], None

        return jax.lax.scan(step, state, batches)[0]

    def timed() -> float:
        start = time.perf_counter()
        jax.block_until_ready(run(state, jax.random.key(1), features, labels))
        return time.perf_counter() - start

    return timed


def ours(
    X: Float32,
    y: NDArray[np.int64],
    n_steps: int,
    guide: str = "mean_field",
    numerics: str = "secure",
) -> Callable[[], float]:
    """Set up the private loop of `fit`, with all work per step and without work done once.

    The expected batch is the same whatever the number of records.
    """
    import jax

    from skdpbayes import DPBayesianLogisticRegression
    from skdpbayes.inference import run
    from skdpbayes.intake.packing import pack_records
    from skdpbayes.mechanism.keys import fit_keys

    n, d = X.shape
    estimator = DPBayesianLogisticRegression(
        classes=[0, 1],
        data_norm=1.2 * d**0.5,
        sampling_rate=SAMPLING_RATE * N_RECORDS / n,
        n_steps=n_steps,
        fit_intercept=False,
        guide=guide,
        numerics=numerics,
    )
    plan = estimator.plan(n, d)
    records = jax.device_put(pack_records(x=X.copy(), y=y.astype(np.int32), on_grid=True))

    def timed() -> float:
        keys = fit_keys(None)
        start = time.perf_counter()
        jax.block_until_ready(run(keys, plan.model, plan.solver, plan.spec, records))
        return time.perf_counter() - start

    return timed


def d3p(X: Float32, y: NDArray[np.int64], n_steps: int, python: Path) -> Callable[[], float]:
    """Set up d3p's private steps, with its fixed-size sampler, in its own environment."""
    worker = _peers.Worker([str(python), str(_peers.PEERS / "d3p_steps.py")], {"x": X, "y": y})
    return lambda: worker.ask(n_steps=n_steps, batch=BATCH)["seconds"]


CONTENDERS: dict[str, Contender] = {
    "NumPyro SVI AutoNormal, not private": numpyro_svi,
    "skdpbayes dpvi, mean field, private": ours,
    "skdpbayes dpvi, mean field, private, fast numerics": partial(ours, numerics="fast"),
    "NumPyro SVI AutoMultivariateNormal, not private": partial(numpyro_svi, guide="full_rank"),
    "skdpbayes dpvi, full rank, private": partial(ours, guide="full_rank"),
    "skdpbayes dpvi, full rank, private, fast numerics": partial(
        ours, guide="full_rank", numerics="fast"
    ),
}


def measure(
    runs: dict[Any, Callable[[], float]], n_steps: int, rounds: int
) -> dict[Any, list[float]]:
    """Microseconds per step, turn by turn; the first turn compiles and is dropped."""
    turns: dict[Any, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            turns[name].append(run() / n_steps * 1e6)
    return {name: values[1:] for name, values in turns.items()}


def by_size(sizes: list[int], n_steps: int, rounds: int, numerics: str) -> dict[int, list[float]]:
    """Microseconds per step with each number of records, for the same expected batch."""
    rng = np.random.default_rng(0)
    runs = {}
    for n in sizes:
        X = rng.standard_normal((n, SIZE_FEATURES), dtype=np.float32)
        runs[n] = ours(X, rng.integers(0, 2, n), n_steps, numerics=numerics)
    return measure(runs, n_steps, rounds)


def ratio(values: list[float], floor: list[float]) -> float:
    """Median of the ratios within a turn."""
    return float(np.median(np.array(values) / np.array(floor)))


def main() -> None:
    """Measure, print a table and one line of JSON, and log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--steps", type=int, default=10_000, help="steps per turn (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="turns that count (default: %(default)s)"
    )
    parser.add_argument("--floor-only", action="store_true", help="only the non-private floor")
    parser.add_argument(
        "--d3p", type=Path, metavar="PYTHON", help="d3p's steps too, by this Python that has it"
    )
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[],
        help="numbers of records to compare at one batch",
    )
    options = parser.parse_args()

    use_one_thread()
    names = list(CONTENDERS)[:1] if options.floor_only else list(CONTENDERS)
    X, y = make_data()
    runs = {name: CONTENDERS[name](X, y, options.steps) for name in names}
    if options.d3p:
        runs[D3P] = d3p(X, y, options.steps, options.d3p)
    turns = measure(runs, options.steps, options.rounds)
    figures = {
        name: {
            "us_per_step": float(np.median(values)),
            "fastest_us_per_step": float(np.min(values)),
            # Against NumPyro with the same family of guides, which stands before it in the list.
            "ratio": ratio(values, turns[names[0 if name == D3P else i - i % 3]]),
        }
        for i, (name, values) in enumerate(turns.items())
    }
    rows = [
        [name, f"{f['us_per_step']:.1f}", f"{f['fastest_us_per_step']:.1f}", f"{f['ratio']:.2f}"]
        for name, f in figures.items()
    ]
    print(
        f"N={N_RECORDS}, d={N_FEATURES}, expected batch {BATCH}, one thread, "
        f"{options.rounds} turns of {options.steps} steps"
    )
    print(_log.table(["implementation", "us/step", "fastest", "ratio"], rows))
    record: dict[str, Any] = {
        "steps": options.steps,
        "rounds": options.rounds,
        "figures": figures,
        "sizes": {},
    }
    for numerics in ("secure", "fast") if options.sizes else ():
        turns = by_size(options.sizes, options.steps, options.rounds, numerics)
        record["sizes"][numerics] = {
            n: {"us_per_step": float(np.median(us)), "ratio": ratio(us, turns[options.sizes[0]])}
            for n, us in turns.items()
        }
    if options.sizes:
        rows = [
            [f"{numerics}, {n:,} records", f"{f['us_per_step']:.1f}", f"{f['ratio']:.2f}"]
            for numerics, found in record["sizes"].items()
            for n, f in found.items()
        ]
        print(f"\nd={SIZE_FEATURES}, expected batch {BATCH}, against the fewest records")
        print(_log.table(["private", "us/step", "ratio"], rows))
    print(json.dumps(record))
    _log.append("speed", record)


if __name__ == "__main__":
    main()
