"""Are posteriors and predictions calibrated? Checks on simulated data, scores, and pictures of them.

The checks read draws and truths as arrays, whoever made them; nothing here depends on how a posterior was found.
Importing this package loads neither JAX nor matplotlib: `simulate` needs the one and `plot` the other.
"""

from __future__ import annotations

from ._coverage import (
    Coverage,
    MarginalCoverage,
    expected_coverage_error,
    marginal_coverage,
    rmse_band,
    tarp_coverage,
)
from ._display import CoverageDisplay, RankDisplay, ReliabilityDisplay
from ._predictive import Reliability, calibration_error, reliability
from ._ranks import RankHistogram, simulation_based_calibration
from ._scores import crps, interval_width
from ._simulate import simulate

__all__ = [
    "Coverage",
    "CoverageDisplay",
    "MarginalCoverage",
    "RankDisplay",
    "RankHistogram",
    "Reliability",
    "ReliabilityDisplay",
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
