"""Coverage of intervals of logistic regression by `vips`: ``make bench-vips-coverage``.

Coefficients are drawn from the prior, then rows, labels, and a whole private fit; all replicates of
a line run in one compiled program. The naive posterior is that of the same releases as if they had
no noise, at the same mean.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _log
from benchmarks._idealised import final_state
from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.calibration import simulate
from skdpbayes.mechanism.records import Records
from skdpbayes.solvers import vips_logistic
from skdpbayes.solvers.opened import Opened

Rows = Callable[[Any, int, int], Any]
_NOISE = ("response_variance", "product_variance", "curvature_variance")  # in the state of vips


def _normal(key: Any, n: int, d: int) -> Any:
    x = jax.random.normal(key, (n, d))
    return x * jnp.minimum(1, 1.2 * math.sqrt(d) / jnp.linalg.norm(x, axis=1, keepdims=True))


def _uniform(key: Any, n: int, d: int) -> Any:
    return jax.random.uniform(key, (n, d), minval=-1.0)


def _skewed(key: Any, n: int, d: int) -> Any:
    return jnp.minimum(0.3 * jax.random.exponential(key, (n, d)), 1)


def _binary(key: Any, n: int, d: int) -> Any:
    return (jax.random.uniform(key, (n, d)) < 0.3).astype(jnp.float32)


ROWS: dict[str, tuple[Rows, float]] = {
    "normal": (_normal, 1.2),
    "uniform": (_uniform, 1.0),
    "skewed": (_skewed, 1.0),
    "binary": (_binary, 1.0),
}
# kind of rows, number, columns
SETTINGS = [
    ("normal", 1_000, 3),
    ("normal", 5_000, 5),
    ("normal", 10_000, 10),
    ("uniform", 5_000, 5),
    ("skewed", 10_000, 5),
    ("binary", 10_000, 5),
    ("normal", 569, 30),
]
_BATCHED_UP_TO = 12  # columns: XLA has been seen to hang on batches of larger matrices in a loop


def replicate(
    solver: str, epsilon: float, kind: str, n: int, d: int, prior_df: float | None = None
) -> Callable[[Any], Any]:
    """Simulate from a key: truth, and draws (mean; deviation; naive deviation)."""
    rows, length = ROWS[kind]
    norm = length * math.sqrt(d)
    estimator = DPBayesianLogisticRegression(
        epsilon, solver=solver, classes=[0, 1], data_norm=norm, prior_df=prior_df
    )
    plan = estimator.plan(n, d)
    model, planned, spec = plan.model, plan.solver, plan.spec

    def moments(state: Any) -> tuple[Any, Any]:
        if solver == "vips":
            mean, precision = vips_logistic.settled(model, planned, state)
        else:
            opened = isinstance(planned, Opened)
            own = model.marginal(state.params) if opened else model
            found = planned.solver.found(own, state.solver) if opened else planned.found(own, state)
            mean, precision, _ = found
            if opened:
                back = jnp.linalg.inv(own.prior_axes())
                mean, precision = own.prior_axes() @ mean, back.T @ precision @ back
        return mean, jnp.sqrt(jnp.diag(jnp.linalg.inv(precision)))

    def noiseless(state: Any) -> Any:
        if solver == "vips":
            quiet = {name: jnp.zeros_like(getattr(state, name)) for name in _NOISE}
            return state._replace(precisions=jnp.where(state.precisions > 0, 1e12, 0), **quiet)
        if isinstance(planned, Opened):
            return state._replace(solver=quiet_trace(state.solver))
        return quiet_trace(state)

    def quiet_trace(state: Any) -> Any:
        nothing = jnp.zeros_like(state.blocks.noise)
        return state._replace(blocks=state.blocks._replace(noise=nothing))

    def simulator(key: Any) -> Any:
        of_weights, of_rows, of_labels, of_fit = jax.random.split(key, 4)
        shape = (d + 1,)
        truth = (
            jax.random.normal(of_weights, shape)
            if prior_df is None
            else jax.random.t(of_weights, prior_df, shape)
        )
        x = jnp.concatenate([rows(of_rows, n, d), jnp.ones((n, 1))], axis=1).astype(jnp.float32)
        y = jax.random.uniform(of_labels, (n,)) < jax.nn.sigmoid(x @ truth)
        records = Records({"x": x, "y": y.astype(jnp.int32)}, jnp.int32(n))
        state = final_state(of_fit, records, model, planned, spec)
        mean, sd = moments(state)
        naive = moments(noiseless(state))[1]
        return truth, jnp.stack([mean, sd, naive])

    return simulator


def coverage(
    solver: str,
    epsilon: float,
    kind: str,
    n: int,
    d: int,
    replicates: int,
    prior_df: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Coverage of 95% intervals by coordinate, honest and naive; width beside errors."""
    truth, found = simulate(
        replicate(solver, epsilon, kind, n, d, prior_df),
        replicates,
        batch_size=max(1, min(50, 200_000 // n)) if d <= _BATCHED_UP_TO else 1,
        random_state=seed,
    )
    mean, sd, naive = np.moveaxis(found, 1, 0)
    error = np.abs(mean - truth)
    return {
        "covered": (error < 1.96 * sd).mean(axis=0),
        "naive": (error < 1.96 * naive).mean(axis=0),
        "sd": np.median(sd),
        "z": ((mean - truth) / sd).std(),
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--replicates", type=int, default=2_000, help="fits per line (default: %(default)s)"
    )
    parser.add_argument(
        "--solver", default="vips", choices=["vips", "na-dpvi"], help="(default: %(default)s)"
    )
    parser.add_argument(
        "--prior-df",
        type=float,
        help="Student t priors, for the truth as well (default: normal ones)",
    )
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.3, 1.0])
    parser.add_argument(
        "--settings", nargs="+", type=int, default=range(len(SETTINGS)), help="numbers of lines"
    )
    options = parser.parse_args()
    rows = []
    for kind, n, d in (SETTINGS[k] for k in options.settings):
        for epsilon in options.epsilons:
            start = time.perf_counter()
            found = coverage(
                options.solver, epsilon, kind, n, d, options.replicates, options.prior_df
            )
            covered = found["covered"]
            figures = (
                covered.mean(),
                covered.min(),
                covered.max(),
                found["naive"].mean(),
                found["z"],
                found["sd"],
            )
            seconds = f"{time.perf_counter() - start:.0f}"
            rows.append(
                [kind, f"{n}", f"{d}", f"{epsilon:g}", *(f"{x:.3f}" for x in figures), seconds]
            )
            print(".", end="", flush=True)
    header = [
        "rows",
        "number",
        "columns",
        "epsilon",
        "covered",
        "least",
        "most",
        "naive",
        "sd of z",
        "sd",
        "s",
    ]
    print(
        f"\n95% intervals of {options.solver}, {options.replicates} fits a line; least and most by "
        "coefficient.\n"
    )
    print(_log.table(header, rows))


if __name__ == "__main__":
    main()
