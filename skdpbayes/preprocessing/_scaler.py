"""A standard scaler that is private."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skdpbayes.estimators._base import PrivateEstimator
from skdpbayes.intake.measured import ClippedRows
from skdpbayes.intake.reading import shape_of
from skdpbayes.plans.settings import Bounds, Task


class DPStandardScaler(OneToOneFeatureMixin, TransformerMixin, PrivateEstimator):
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

    _fixed: ClassVar = {"solver": "vips"}
    _fitted = (*PrivateEstimator._fitted, "mean_", "var_", "scale_")

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
        self._fit(X, y)
        return self

    @classmethod
    def _model_types(cls):
        from skdpbayes.models.moments import ColumnMoments

        return (ColumnMoments,)

    def _reader(self):
        return ClippedRows(self.bounds)

    def _task(self, facts):
        from skdpbayes.models.moments import ColumnMoments

        return Task(ColumnMoments(facts.n_features), Bounds())

    def _also_public(self, facts, model):
        del model
        low, high = self._reader().bounds(facts.shape)
        return {"bounds": (low.tolist(), high.tolist())}

    def _finish(self, plan, outcome):
        mean, variance = plan.solver.posterior(plan.model, outcome.state)
        low, high = self._reader().bounds(plan.facts.shape)
        half = (high - low) / 2
        self.n_iter_ = plan.n_steps
        self.mean_ = low + half * (mean + 1)
        self.var_ = half**2 * variance
        self.scale_ = np.sqrt(self.var_)

    def _dense(self, X):
        return self._reader().numeric(self, X, reset=False)

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
            X = self._dense(X).astype(np.float64)
            X = np.clip(X, *self._reader().bounds(shape_of(self, X)))
            return (X - self.mean_ * bool(self.with_mean)) / (self.scale_ if self.with_std else 1.0)

    def inverse_transform(self, X):
        """Columns in their own units."""
        check_is_fitted(self)
        X = self._dense(X) * (self.scale_ if self.with_std else 1.0)
        return X + self.mean_ * bool(self.with_mean)
