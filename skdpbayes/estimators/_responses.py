"""Shared by regressions: public ranges, and predictions from posterior draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skdpbayes.cells import parsed
from skdpbayes.checks import check_number, warn_user
from skdpbayes.declarations import of_columns_and_response
from skdpbayes.facts import Facts, Scales
from skdpbayes.intake.labels import as_labels


class BayesianRegressorMixin(RegressorMixin):
    """Predictions of a regression with normal residuals.

    A subclass has the parameter `bounds`, `posterior_samples_`, `sample_posterior`, `_features` and
    `_means_and_noise`.
    """

    _scales: Scales
    _scorings: tuple[str, ...] = ("log_density",)
    _declared: tuple[str, ...] = ("bounds",)

    def _features(self, X: Any) -> np.ndarray:
        """Rows as the model takes them."""
        raise NotImplementedError

    def _means_and_noise(self, rows: np.ndarray, draws: Any) -> tuple[np.ndarray, np.ndarray]:
        """Means, of shape (rows, draws), and the residual standard deviation in each draw."""
        raise NotImplementedError

    def _bounds_of_columns(self) -> Any:
        """Declared ranges of the features; None if nothing is declared."""
        return None if self.bounds is None else of_columns_and_response(self.bounds)[0]

    def _null_rows_at(self, centre: np.ndarray | float, rows: np.ndarray) -> np.ndarray:
        """Rows to predict, where `centre` replaces null rows, with a warning."""
        null = ~np.isfinite(rows).all(axis=1)
        if null.any():
            warn_user(f"{null.sum()} of these rows hold NaN or infinity: predicted at the centre.")
        return np.where(null[:, None], centre, rows)

    def _log_density(self, X: Any, y: Any) -> np.ndarray:
        return self.log_predictive_density(X, parsed(np.asarray(as_labels(y))))

    def _log_volume(self, facts: Facts) -> float:
        return float(np.log(2 * facts.own_scales().y_half).mean())

    def _mean(self, rows: np.ndarray, means: np.ndarray | None = None) -> np.ndarray:
        """Posterior mean of each row's mean; `means` are its means given each draw, if known."""
        if means is None:
            means, _ = self._means_and_noise(rows, self.posterior_samples_)
        return means.mean(axis=1)

    def predict(
        self, X: Any, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Posterior predictive mean.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Not protected.
        return_std : bool, default=False
            Also return the standard deviation of the posterior predictive distribution.

        Returns
        -------
        mean : array of shape (n_samples,)
        std : array of shape (n_samples,)
            Only if `return_std`.
        """
        check_is_fitted(self)
        rows = self._features(X)
        if not return_std:
            return self._mean(rows)
        means, noise = self._means_and_noise(rows, self.posterior_samples_)
        return self._mean(rows, means), np.sqrt(np.var(means, axis=1) + np.mean(noise**2))

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Equal-tailed interval of the posterior predictive distribution of a response.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        level : float, default=0.95
            Mass of the interval, in (0, 1).

        Returns
        -------
        lower, upper : arrays of shape (n_samples,)
        """
        check_number("level", level, 0, 1, open_above=True)
        check_is_fitted(self)
        means, noise = self._means_and_noise(self._features(X), self.posterior_samples_)
        ends = [_quantiles(means, noise, tail) for tail in ((1 - level) / 2, (1 + level) / 2)]
        return ends[0], ends[1]

    def log_predictive_density(self, X: Any, y: Any) -> np.ndarray:
        """Log posterior predictive density of each response, of shape (n_samples,)."""
        check_is_fitted(self)
        means, noise = self._means_and_noise(self._features(X), self.posterior_samples_)
        z = (column_or_1d(y)[:, None] - means) / noise
        log = -0.5 * z**2 - np.log(noise) - 0.5 * math.log(2 * math.pi)
        return special.logsumexp(log, axis=1) - math.log(log.shape[1])

    def sample_posterior_predictive(
        self, X: Any, n_samples: int = 100, random_state: int | np.random.Generator | None = None
    ) -> np.ndarray:
        """Responses drawn from the posterior predictive, of shape (n_samples, n_rows)."""
        check_is_fitted(self)
        rng = np.random.default_rng(random_state)
        means, noise = self._means_and_noise(
            self._features(X), self.sample_posterior(n_samples, rng)
        )
        return means.T + noise[:, None] * rng.standard_normal(means.T.shape)


def _quantiles(means: np.ndarray, noise: np.ndarray, tail: float) -> np.ndarray:
    """Quantile of each row's mixture of normals, by Newton's method within shrinking bounds."""
    width = 10 * noise.max()
    low, high = means.min(axis=1) - width, means.max(axis=1) + width
    std = np.sqrt(means.var(axis=1) + np.mean(noise**2))
    found = means.mean(axis=1) + std * special.ndtri(tail)
    moved, enough = high - low, 1e-9 * std
    for _ in range(100):
        z = (found[:, None] - means) / noise
        excess = special.ndtr(z).mean(axis=1) - tail
        density = (np.exp(-0.5 * z**2) / noise).mean(axis=1) / math.sqrt(2 * math.pi)
        low, high = np.where(excess < 0, found, low), np.where(excess < 0, high, found)
        with np.errstate(all="ignore"):
            newton = found - excess / density
        # Steps that leave the bounds, or do not get shorter, give way to bisection.
        shorter = np.abs(newton - found) <= 0.5 * moved + enough
        good = (low <= newton) & (newton <= high) & shorter
        found, before = np.where(good, newton, (low + high) / 2), found
        moved = np.abs(found - before)
        if (moved <= enough).all():
            break
    return found
