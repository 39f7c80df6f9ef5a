"""A standard scaler that is private."""

from __future__ import annotations

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skdpbayes.declarations import column_bounds
from skdpbayes.estimators._gradient import GradientEstimator
from skdpbayes.intake.rows import dense


class DPStandardScaler(OneToOneFeatureMixin, TransformerMixin, GradientEstimator):
    """Subtract each column's mean and divide by its standard deviation, both learned under differential privacy.

    One release of first and second moments, of all rows. What lies outside of the bounds is cut, in
    `fit` and in `transform`; a missing cell counts for nothing in its column, and stays missing.

    Parameters
    ----------
    bounds : tuple (low, high), dict or Schema
        Public bounds of the columns: numbers, or arrays with one for each column; or, for data
        frames, a dict from each column's name to its pair; or a `Schema` that has them.
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` adds no noise.
    delta : float, default=1e-5
        Privacy failure probability; well below one over the number of rows.
    with_mean, with_std : bool, default=True
        Whether to subtract means, and divide by standard deviations.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        What "with respect to one row" means.
    numerics : {"secure", "fast"}, default="secure"
        Integer sums and integer noise, for which the guarantee is proved; or floating-point ones.
    ledger : PrivacyLedger, default=None
        Budget that is charged, and may refuse the fit. None: the one opened by ``with``, if any.
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. Anything else makes the noise reproducible: for
        tests only.

    Attributes
    ----------
    mean_, var_, scale_ : arrays of shape (n_features,)
        With noise. A variance that the noise hides is set to what the noise could make of it.
    privacy_spent_ : PrivacySpent
        What the fit cost and under which conditions it holds.
    usable_records_ : NoisyCount
        Noisy number of records that count: those without missing cells or unknown labels.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.preprocessing import DPStandardScaler
    >>> X = np.random.default_rng(0).normal([50, 3], [10, 1], size=(5000, 2))
    >>> scaler = DPStandardScaler(bounds=([0, 0], [100, 10]), epsilon=1.0).fit(X)
    >>> bool(abs(scaler.mean_[0] - 50) < 1) and bool(abs(scaler.scale_[0] - 10) < 1)
    True
    """

    solver, sampling_rate, n_steps, verbose = (
        "vips",
        None,
        None,
        0,
    )  # what its base asks for, and nobody may set
    _fitted = ("mean_", "var_", "scale_", "usable_records_")

    def __init__(
        self,
        bounds=(-1.0, 1.0),
        epsilon=1.0,
        delta=1e-5,
        *,
        with_mean=True,
        with_std=True,
        adjacency="zero_out",
        numerics="secure",
        ledger=None,
        random_state=None,
    ):
        self.bounds = bounds
        self.epsilon = epsilon
        self.delta = delta
        self.with_mean = with_mean
        self.with_std = with_std
        self.adjacency = adjacency
        self.numerics = numerics
        self.ledger = ledger
        self.random_state = random_state

    def __sklearn_is_fitted__(self):
        return hasattr(self, "scale_")

    def fit(self, X, y=None):
        """Learn means and standard deviations.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range and for what is public: shapes and dtypes. Never for what a
            row holds.
        """
        del y
        self._check_privacy_parameters()
        X = self._dense(X, reset=True)
        low, high = self._column_bounds()

        from skdpbayes.models.moments import ColumnMoments

        public = self._public_facts(len(X), bounds=(low.tolist(), high.tolist()))
        model = ColumnMoments(self.n_features_in_)
        mean, variance = self._fit_posterior(
            model, None, len(X), lambda: self._pack(X, low, high), public=public
        )
        half = (high - low) / 2
        self.mean_ = low + half * (mean + 1)
        self.var_ = half**2 * variance
        self.scale_ = np.sqrt(self.var_)
        return self

    def _declared_columns(self):
        return self.bounds

    def _column_bounds(self):
        return column_bounds(
            self.bounds, self.n_features_in_, getattr(self, "feature_names_in_", None)
        )

    def _plan_solver(self, model, bounds, n):
        del bounds
        from skdpbayes.solvers.vips import one_release

        return one_release(model, n), self._spec(self._plan_noise(1, 1.0).steps)

    def _set_posterior(self, model, solver, state, rng):
        del rng
        return solver.posterior(model, state)

    def _dense(self, X, *, reset):
        return dense(self._numeric(X, reset=reset))

    def _pack(self, X, low, high):
        from skdpbayes.intake.packing import pack_records

        with np.errstate(all="ignore"):
            X = np.clip(X.astype(np.float64), low, high)
            return pack_records(x=(2 * (X - low) / (high - low) - 1).astype(np.float32))

    def transform(self, X):
        """Standardised columns; values outside of the bounds are cut there first.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        X_new : float array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        with np.errstate(all="ignore"):
            X = np.clip(self._dense(X, reset=False).astype(np.float64), *self._column_bounds())
            return (X - self.mean_ * bool(self.with_mean)) / (self.scale_ if self.with_std else 1.0)

    def inverse_transform(self, X):
        """Columns in their own units."""
        check_is_fitted(self)
        X = self._dense(X, reset=False) * (self.scale_ if self.with_std else 1.0)
        return X + self.mean_ * bool(self.with_mean)
