"""Shared by density models: the score of rows."""

from __future__ import annotations

from typing import Any

import numpy as np


class DensityScoreMixin:
    """The mean log density of rows as their score. A subclass has `score_samples`."""

    _scorings: tuple[str, ...] = ("log_density",)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log density of each row."""
        raise NotImplementedError

    def score(self, X: Any, y: Any = None) -> float:
        """Mean of `score_samples`."""
        del y
        return float(np.mean(self.score_samples(X)))
