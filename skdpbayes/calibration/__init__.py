"""Calibration of posteriors and predictions: checks on simulated data, and scores.

`check` simulates and fits an estimator. The other checks take arrays of draws and truths, so they
work with any posterior. Only `check` and `simulate` load JAX. Pictures are in `skdpbayes.displays`.
"""

from __future__ import annotations

from skdpbayes.calibration._coverage import (
    Coverage,
    MarginalCoverage,
    marginal_coverage,
    rmse_band,
    tarp_coverage,
)
from skdpbayes.calibration._coverage import (
    expected_coverage_error as expected_coverage_error,  # deprecated
)
from skdpbayes.calibration._model_check import CalibrationCheck, check
from skdpbayes.calibration._predictive import Reliability, calibration_error, reliability
from skdpbayes.calibration._ranks import RankHistogram, simulation_based_calibration
from skdpbayes.calibration._scores import crps, interval_width
from skdpbayes.calibration._simulate import simulate

__all__ = [
    "CalibrationCheck",
    "Coverage",
    "MarginalCoverage",
    "RankHistogram",
    "Reliability",
    "calibration_error",
    "check",
    "crps",
    "interval_width",
    "marginal_coverage",
    "reliability",
    "rmse_band",
    "simulate",
    "simulation_based_calibration",
    "tarp_coverage",
]
