"""What is worth tracking from commit to commit: a step, a warm fit, a calibration, the import."""

import subprocess
import sys

import numpy as np

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.privacy import calibrate_noise


class WarmFit:
    """Whole fits, compiled before they are timed."""

    params = (["dpvi", "sgld"], [2_000, 32_000])
    param_names = ("solver", "rows")

    def setup(self, solver, rows):
        rng = np.random.default_rng(0)
        self.X = rng.standard_normal((rows, 30))
        self.y = rng.integers(0, 2, rows)
        self.estimator = DPBayesianLogisticRegression(solver=solver, classes=[0, 1], n_steps=300)
        self.estimator.fit(self.X, self.y)

    def time_fit(self, solver, rows):
        self.estimator.fit(self.X, self.y)

    def peakmem_fit(self, solver, rows):
        self.estimator.fit(self.X, self.y)


class Calibration:
    """Noise for a budget, nothing cached."""

    def setup(self):
        calibrate_noise(2.0, 1e-5, 0.02, 100)  # imports
        self.epsilon = 1.0

    def time_calibrate(self):
        self.epsilon += 1e-6  # a value that is not in the cache
        calibrate_noise(self.epsilon, 1e-5, 0.01, 10_000)


class Import:
    def time_import(self):
        subprocess.run([sys.executable, "-c", "import skdpbayes"], check=True)
