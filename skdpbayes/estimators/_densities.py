"""Shared by density models: the score of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from skdpbayes.checks import warn_user


class DensityScoreMixin:
    """The mean log density of rows as their score. A subclass has `score_samples`."""

    _scorings: tuple[str, ...] = ("log_density",)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log density of each row."""
        raise NotImplementedError

    def score(self, X: Any, y: Any = None) -> float:
        """Mean of `score_samples`; rows with NaN or infinity are left out, with a warning."""
        del y
        return float(np.mean(self._known_log_densities(X)))

    def _known_log_densities(self, X: Any) -> np.ndarray:
        """Log density of each row that has one."""
        return without_null(self.score_samples(X), "hold NaN or infinity")


def without_null(log: np.ndarray, why: str) -> np.ndarray:
    """Log densities but those that are NaN, with a warning; all, if all are."""
    null = np.isnan(log)
    if null.any() and not null.all():
        warn_user(f"{null.sum()} of these rows {why}: they are left out.")
        return log[~null]
    return log
