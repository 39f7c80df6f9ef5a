"""Figures tracked over commits: steps, warm fits, compilations, a calibration, the import."""

import subprocess
import sys
import time

import numpy as np

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.privacy import calibrate_noise

SOLVERS = ["dpvi", "na-dpvi", "vips", "sgld"]


def problem(solver, rows, n_steps):
    """An estimator, and rows without signal; `vips` has its own few rounds."""
    rng = np.random.default_rng(0)
    own = {} if solver == "vips" else {"n_steps": n_steps, "sampling_rate": 300 / rows}
    # So that sgld is not refused.
    own |= {"epsilon": 8.0, "classes": [0, 1], "random_state": 0}
    estimator = DPBayesianLogisticRegression(solver=solver, **own)
    return estimator, rng.standard_normal((rows, 30)), rng.integers(0, 2, rows)


class WarmFit:
    """Whole fits, compiled before they are timed; expected batches of 300."""

    params = (SOLVERS, [2_000, 32_000])
    param_names = ("solver", "rows")

    def setup(self, solver, rows):
        self.estimator, self.X, self.y = problem(solver, rows, 500)
        self.estimator.fit(self.X, self.y)

    def time_fit(self, solver, rows):
        self.estimator.fit(self.X, self.y)

    def peakmem_fit(self, solver, rows):
        self.estimator.fit(self.X, self.y)


class Step:
    """Of the solvers that take many steps: what each more of them costs."""

    params = ([solver for solver in SOLVERS if solver != "vips"],)
    param_names = ("solver",)
    unit = "us"
    few, many = 500, 1_500

    def setup(self, solver):
        self.fits = {n: problem(solver, 32_000, n) for n in (self.few, self.many)}
        for estimator, X, y in self.fits.values():
            estimator.fit(X, y)

    def track_step(self, solver):
        least = {}
        for n, (estimator, X, y) in self.fits.items():
            times = []
            for _ in range(3):
                start = time.perf_counter()
                estimator.fit(X, y)
                times.append(time.perf_counter() - start)
            least[n] = min(times)
        return 1e6 * (least[self.many] - least[self.few]) / (self.many - self.few)


class Programs:
    """Programs that XLA compiles in a fresh process: first fit, and one with other parameters."""

    params = (SOLVERS,)
    param_names = ("solver",)
    unit = "programs"

    def setup(self, solver):
        import jax

        self.seen = []
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, seconds, **kwargs: (
                self.seen.append(event) if "backend_compile" in event else None
            )
        )
        self.estimator, self.X, self.y = problem(solver, 2_000, 500)

    def track_first_fit(self, solver):
        self.estimator.fit(self.X, self.y)
        return len(self.seen)

    def track_second_fit(self, solver):
        self.estimator.fit(self.X, self.y)
        self.seen.clear()
        self.estimator.set_params(epsilon=7.0, prior_scale=2.0).fit(self.X[:1_900], self.y[:1_900])
        return len(self.seen)


class Calibration:
    """Noise for a budget, nothing cached."""

    def setup(self):
        calibrate_noise(2.0, 1e-5, 0.02, 100)  # imports
        self.epsilon = 1.0

    def time_calibrate(self):
        self.epsilon += 1e-6  # a value that is not in the cache
        calibrate_noise(self.epsilon, 1e-5, 0.01, 10_000)


class Import:
    """In a new process."""

    def time_import(self):
        subprocess.run(
            [sys.executable, "-c", "from skdpbayes import DPBayesianLogisticRegression"], check=True
        )
