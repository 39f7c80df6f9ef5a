"""Are posteriors and predictions calibrated? Checks on simulated data, and scores.

The checks read draws and truths as arrays, whoever made them; nothing here depends on how a
posterior was found. Importing this package does not load JAX, which `simulate` needs. Pictures are
in `skdpbayes.displays`.
"""

from __future__ import annotations

from skdpbayes.calibration._coverage import (
    Coverage,
    MarginalCoverage,
    expected_coverage_error,
    marginal_coverage,
    rmse_band,
    tarp_coverage,
)
from skdpbayes.calibration._predictive import Reliability, calibration_error, reliability
from skdpbayes.calibration._ranks import RankHistogram, simulation_based_calibration
from skdpbayes.calibration._scores import crps, interval_width
from skdpbayes.calibration._simulate import simulate

__all__ = [
    "Coverage",
    "MarginalCoverage",
    "RankHistogram",
    "Reliability",
    "calibration_error",
    "crps",
    "expected_coverage_error",
    "interval_width",
    "marginal_coverage",
    "reliability",
    "rmse_band",
    "simulate",
    "simulation_based_calibration",
    "tarp_coverage",
]
