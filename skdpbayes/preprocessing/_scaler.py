"""A standard scaler that is private."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skdpbayes.estimators._base import Outcome, PrivateEstimator
from skdpbayes.facts import Facts
from skdpbayes.intake.measured import ClippedRows
from skdpbayes.intake.reading import shape_of
from skdpbayes.plans.settings import Bounds, Task
from skdpbayes.privacy import PrivacyLedger

if TYPE_CHECKING:
    from skdpbayes.plans.plan import Plan
    from skdpbayes.preprocessing._public import DeclaredBounds


class DPStandardScaler(OneToOneFeatureMixin, TransformerMixin, PrivateEstimator):
    """Standardise columns by means and standard deviations learnt under differential privacy.

    The first and second moments of all rows are released once. Values outside the bounds are
    clipped, in `fit` and in `transform`. A missing cell contributes nothing to its column, and
    stays missing.

    Parameters
    ----------
    bounds : tuple (low, high), dict or Schema
        Public bounds of the columns: numbers, or arrays with one entry for each column; for data
        frames, a dict from column names to pairs, or a `Schema` with bounds. There is no default:
        `fit` refuses None.
    epsilon : float, default=1.0
        Privacy budget; ``float("inf")`` adds no noise.
    delta : float, default=1e-5
        Probability with which the privacy bound may fail; well below one over the number of rows.
    with_mean, with_std : bool, default=True
        Whether to subtract means, and to divide by standard deviations.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Neighbouring relation. Under ``"add_remove"`` the number of rows is private too.
    numerics : {"secure", "fast"}, default="secure"
        Arithmetic of sums and noise: integers, for which the guarantee is proved, or floating
        point.
    max_rows_per_person : int, default=None
        Largest number of rows of a person. It makes the person the unit of privacy: `fit` takes the
        persons' names as `groups`, and keeps at most this many rows of each, evenly spaced. A
        person counts once, by the means over their rows. None: the row is the unit.
    ledger : PrivacyLedger, default=None
        Budget to charge; it refuses a fit that exceeds it. None: the ledger opened by ``with``, if
        any.
    random_state : None, int, RandomState or Generator, default=None
        None draws keys from the operating system. Any other value makes the noise reproducible,
        which voids the guarantee: for tests only.

    Attributes
    ----------
    mean_, var_, scale_ : arrays of shape (n_features,)
        Noisy means, variances and standard deviations. A variance below the noise level is replaced
        by that level.
    privacy_spent_ : PrivacySpent
        Cost of the fit, and the conditions under which the guarantee holds.
    usable_records_ : NoisyCount
        Noisy number of usable records: those without missing cells or unknown labels.
    n_features_in_, feature_names_in_
        As in scikit-learn.

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
        bounds: DeclaredBounds | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        with_mean: bool = True,
        with_std: bool = True,
        adjacency: str = "zero_out",
        numerics: str = "secure",
        max_rows_per_person: int | None = None,
        ledger: PrivacyLedger | None = None,
        random_state: int | np.random.RandomState | np.random.Generator | None = None,
    ) -> None:
        self.bounds = bounds
        self.epsilon = epsilon
        self.delta = delta
        self.with_mean = with_mean
        self.with_std = with_std
        self.adjacency = adjacency
        self.numerics = numerics
        self.max_rows_per_person = max_rows_per_person
        self.ledger = ledger
        self.random_state = random_state

    def __sklearn_is_fitted__(self) -> bool:
        return "scale_" in vars(self)

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Learn means and standard deviations.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored
        groups : array-like of shape (n_samples,), default=None
            The person that each row is of, where `max_rows_per_person` is set.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            For parameters out of range, shapes and dtypes, which are public. Never for the values
            in a row.
        """
        self._fit(X, y, groups)
        return self

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.moments import ColumnMoments

        return (ColumnMoments,)

    def _reader(self) -> ClippedRows:
        return ClippedRows(self.bounds)

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.moments import ColumnMoments

        return Task(ColumnMoments(facts.n_features), Bounds())

    def _also_public(self, facts: Facts, model: Any) -> dict[str, Any]:
        del model
        low, high = self._reader().bounds(facts.shape)
        return {"bounds": (low.tolist(), high.tolist())}

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        mean, variance = plan.solver.posterior(plan.model, outcome.state)
        low, high = self._reader().bounds(plan.facts.shape)
        half = (high - low) / 2
        self.n_iter_ = plan.n_steps
        self.mean_ = low + half * (mean + 1)
        self.var_ = half**2 * variance
        self.scale_ = np.sqrt(self.var_)

    def _slopes(self) -> tuple[np.ndarray, np.ndarray]:
        """Slope and offset of the map of each column, within its bounds."""
        slopes = 1 / self.scale_ if self.with_std else np.ones(len(self.scale_))
        return slopes, -slopes * self.mean_ * bool(self.with_mean)

    def _dense(self, X: Any) -> np.ndarray:
        return self._reader().numeric(self, X, reset=False)

    def transform(self, X: Any) -> np.ndarray:
        """Standardise columns; values outside the bounds are clipped first.

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

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Transform standardised columns back to their own units."""
        check_is_fitted(self)
        X = self._dense(X) * (self.scale_ if self.with_std else 1.0)
        return X + self.mean_ * bool(self.with_mean)
