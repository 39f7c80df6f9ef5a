"""What regressions share: the units of features and response, and predictions by draws."""

from __future__ import annotations

import math
import warnings

import numpy as np
from scipy import special
from sklearn.base import RegressorMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skdpbayes.cells import parsed
from skdpbayes.checks import check_number
from skdpbayes.declarations import column_bounds, of_columns_and_response
from skdpbayes.intake.labels import as_labels
from skdpbayes.privacy import PrivacyLeakWarning
from skdpbayes.schema import Outcome, Schema


def scales_of(bounds, X, y, *, centred=True, names=None):
    """Centres and half ranges of X and y, and what voids the guarantee.

    Parameters
    ----------
    bounds : tuple (X_bounds, y_bounds), Schema or None
        What the user declares.
    X, y : arrays
    centred : bool
        Whether centres may be other than zero.
    names : iterable of str, default=None
        Of the columns, if X is a data frame.

    Returns
    -------
    scales : tuple of arrays
        Centre and half range of X, (n_features,), and of y, (1,).
    voided_by : tuple of str
    """
    voided_by: tuple[str, ...] = ()
    if bounds is None:
        warnings.warn(
            "bounds=None takes the ranges of X and y from the data, which is not private. Pass "
            "bounds=((X_low, X_high), (y_low, y_high)).",
            PrivacyLeakWarning,
            stacklevel=4,
        )
        voided_by = ("the ranges of X and y were taken from the data (bounds=None)",)
        finite = X[np.isfinite(X).all(axis=1)]
        x_range = (finite.min(axis=0), finite.max(axis=0)) if len(finite) else (-1.0, 1.0)
        pairs = x_range, (y.min(), y.max())
    else:
        of_columns, of_response = of_columns_and_response(bounds)
        pairs = (
            column_bounds(of_columns, X.shape[1], names, "bounds of X"),
            column_bounds(of_response, 1, parameter="bounds of y"),
        )
    scales: list[np.ndarray] = []
    for pair, size in zip(pairs, (X.shape[1], 1), strict=True):
        low, high = (np.broadcast_to(np.asarray(end, np.float64), size) for end in pair)
        half = np.where(high > low, (high - low) / 2, 1.0)
        scales += [(low + high) / 2, half] if centred else [np.zeros(size), np.maximum(-low, high)]
    scales[1], scales[3] = (np.where(half > 0, half, 1.0) for half in (scales[1], scales[3]))
    return tuple(scales), voided_by


def response_numbers(y, bounds):
    """The response as numbers, each by itself; one that is taken for its own bounds must be finite."""
    by_cell = isinstance(bounds, Schema) or (
        isinstance(bounds, list | tuple) and isinstance(bounds[-1], Outcome)
    )
    if y.dtype.kind in "US" and not by_cell:
        raise ValueError(f"y holds text (dtype {y.dtype}); a regression needs numbers.")
    if bounds is None:
        assert_all_finite(y, input_name="y")
    with np.errstate(all="ignore"):
        return y.astype(np.float64) if y.dtype.kind in "fiub" else parsed(y)


class BayesianRegressorMixin(RegressorMixin):
    """Predictions of a regression with normal noise.

    It has ``_features(X)``, rows as the model takes them, and of those ``_means_and_noise(rows,
    draws)``: the mean of each row given each draw (rows, draws), and the noise's standard deviation
    in each draw; and `posterior_samples_` and `sample_posterior`.
    """

    _scorings: tuple[str, ...] = ("log_density",)

    def _log_density(self, X, y):
        return self.log_predictive_density(X, parsed(np.asarray(as_labels(y))))

    def _log_volume(self):
        scales, _ = self._scaling(np.zeros((1, self.n_features_in_)), np.zeros(1))
        return float(np.log(2 * scales[3]).mean())

    def _declared_columns(self):
        return None if self.bounds is None else of_columns_and_response(self.bounds)[0]

    def _mean(self, rows, means=None):
        """Posterior mean of the mean of each row; `means` are those given each draw, if they are known."""
        if means is None:
            means, _ = self._means_and_noise(rows, self.posterior_samples_)
        return means.mean(axis=1)

    def predict(self, X, return_std=False):
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

    def predict_interval(self, X, level=0.95):
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
        ends = []
        for tail in ((1 - level) / 2, (1 + level) / 2):  # of a mixture of normals, by bisection
            spread = 10 * noise.max()
            low, high = means.min(axis=1) - spread, means.max(axis=1) + spread
            for _ in range(50):
                middle = (low + high) / 2
                mass = special.ndtr((middle[:, None] - means) / noise).mean(axis=1)
                low, high = np.where(mass < tail, middle, low), np.where(mass < tail, high, middle)
            ends.append((low + high) / 2)
        return ends[0], ends[1]

    def log_predictive_density(self, X, y):
        """Log posterior predictive density of each response, of shape (n_samples,)."""
        check_is_fitted(self)
        means, noise = self._means_and_noise(self._features(X), self.posterior_samples_)
        z = (column_or_1d(y)[:, None] - means) / noise
        log = -0.5 * z**2 - np.log(noise) - 0.5 * math.log(2 * math.pi)
        return special.logsumexp(log, axis=1) - math.log(log.shape[1])

    def sample_posterior_predictive(self, X, n_samples=100, random_state=None):
        """Responses drawn from the posterior predictive, of shape (n_samples, n_rows)."""
        check_is_fitted(self)
        rng = np.random.default_rng(random_state)
        means, noise = self._means_and_noise(
            self._features(X), self.sample_posterior(n_samples, rng)
        )
        return means.T + noise[:, None] * rng.standard_normal(means.T.shape)
