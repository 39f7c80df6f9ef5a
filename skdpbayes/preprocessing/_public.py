"""Transformers by public bounds and categories: their `fit` looks at names and numbers of columns only.

What a cell holds never raises and never changes another row; a cell that is not a number becomes
NaN, which private estimators take for a row that is not there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from skdpbayes.cells import legible
from skdpbayes.checks import check_number
from skdpbayes.declarations import by_name, categories_of, column_bounds, schema_of, width_of
from skdpbayes.intake.columns import agree, as_declared, numbers
from skdpbayes.intake.labels import as_labels, codes, is_sequence, items
from skdpbayes.intake.rows import bounded_rows, check_table, columns_of, from_list
from skdpbayes.schema import Schema


class _Public(TransformerMixin, BaseEstimator):
    """Base: `fit` checks parameters against the columns, and keeps nothing but their names and number."""

    _sparse = False

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = True
        tags.input_tags.sparse = self._sparse
        return tags

    def fit(self, X, y=None):
        """Check the parameters against the columns; nothing is learned.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        self
        """
        del y
        self._columns(X, reset=True)
        self._check_parameters()
        return self

    def _declared_columns(self):
        """What parameters declare of the columns of X: bounds, categories or a schema; None if nothing."""
        return None

    def _width(self, *, reset):
        """Public number of columns, for lists of rows."""
        return (
            width_of(self._declared_columns()) if reset else getattr(self, "n_features_in_", None)
        )

    def _columns(self, X, *, reset):
        numeric = numbers(X, schema_of(self._declared_columns()), self._width(reset=reset))
        if sparse.issparse(numeric) and not self._sparse:
            raise TypeError(
                "Sparse data was passed, but dense data is required: zeros would not stay zero."
            )
        validate_data(
            self, X if hasattr(X, "columns") else numeric, skip_check_array=True, reset=reset
        )
        return numeric

    def __sklearn_is_fitted__(self):
        return hasattr(self, "n_features_in_")


class NormClipper(OneToOneFeatureMixin, _Public):
    """Shorten rows whose Euclidean norm exceeds a public bound.

    A row with a NaN or an infinity becomes NaN, which private estimators take for a row that is not
    there.

    Parameters
    ----------
    norm : float, default=1.0
        Largest norm of a row; give the next estimator the same as its ``data_norm``.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes.preprocessing import NormClipper
    >>> NormClipper(norm=5.0).fit_transform(np.array([[3.0, 4.0], [6.0, 8.0]])).tolist()
    [[3.0, 4.0], [3.0, 4.0]]
    """

    _sparse = True

    def __init__(self, norm=1.0):
        self.norm = norm

    def _check_parameters(self):
        check_number("norm", self.norm, 0, 1e30)

    def transform(self, X):
        """Rows of norm at most `norm`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        X_new : float array, or CSR array if X is sparse
        """
        check_is_fitted(self)
        rows, null = bounded_rows(self._columns(X, reset=False), float(self.norm), intercept=False)
        if sparse.issparse(rows):
            rows.data[np.repeat(null, np.diff(rows.indptr))] = np.nan
        else:
            rows[null] = np.nan
        return rows


class BoundedScaler(OneToOneFeatureMixin, _Public):
    """Map public bounds of each column to a common range; what lies outside goes to the nearer end.

    It is `sklearn.preprocessing.MinMaxScaler` with bounds that are declared and not learned.

    Parameters
    ----------
    bounds : tuple (low, high), dict or Schema
        Numbers, or arrays with one for each column; or, for data frames, a dict from each column's
        name to its pair; or a `Schema` that has them, whose values of missing cells are taken as
        well.
    feature_range : tuple (low, high), default=(0, 1)
    missing : float, array-like of shape (n_features,), or dict, default=None
        Public value, in the units of the column, that takes the place of a cell that is no number:
        a usual one that is known from elsewhere; for data frames a dict from each column's name to
        its own. None leaves it NaN, which private estimators take for a row that is not there.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from skdpbayes.preprocessing import BoundedScaler
    >>> BoundedScaler(bounds=([0, 0], [100, 10])).fit_transform([[50, 5], [200, -1]]).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    >>> BoundedScaler(bounds=([0, 0], [100, 100]), missing=40).fit_transform([[50, None]]).tolist()
    [[0.5, 0.4]]
    """

    def __init__(self, bounds=(0.0, 1.0), feature_range=(0.0, 1.0), missing=None):
        self.bounds = bounds
        self.feature_range = feature_range
        self.missing = missing

    def _declared_columns(self):
        return self.bounds

    def _check_parameters(self):
        self._map()
        self._instead()

    def _instead(self):
        """What takes the place of a missing cell of each column."""
        given = np.nan if self.missing is None else self.missing
        if isinstance(given, Mapping):
            given = by_name(given, getattr(self, "feature_names_in_", None), "missing")
        try:
            values = np.broadcast_to(np.asarray(given, float), (self.n_features_in_,))
            right = self.missing is None or bool(np.isfinite(values).all())
        except (TypeError, ValueError):
            right = False
        if not right:
            raise ValueError(
                f"missing must be a number, or one for each of the {self.n_features_in_} columns (for data frames, a "
                f"dict by name), or None, got {self.missing!r}."
            )
        return values

    def _map(self):
        low, high = column_bounds(
            self.bounds, self.n_features_in_, getattr(self, "feature_names_in_", None)
        )
        try:
            start, end = (float(value) for value in self.feature_range)
        except (TypeError, ValueError):
            start = end = np.nan
        if not start < end:
            raise ValueError(
                f"feature_range must be a pair (low, high) of numbers, got {self.feature_range!r}."
            )
        return low, high, start, end

    def transform(self, X):
        """Columns in `feature_range`; cells that are not numbers are NaN, or have the value of `missing`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        X_new : float array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        with np.errstate(all="ignore"):
            values = self._columns(X, reset=False).astype(np.float64)
        low, high, start, end = self._map()
        values = np.where(np.isnan(values), self._instead(), values)
        with np.errstate(all="ignore"):
            return start + (np.clip(values, low, high) - low) / (high - low) * (end - start)

    def inverse_transform(self, X):
        """Values within their bounds, from those within `feature_range`."""
        check_is_fitted(self)
        low, high, start, end = self._map()
        X = numbers(X, None, self.n_features_in_).astype(np.float64)
        return low + (X - start) / (end - start) * (high - low)


class CategoryEncoder(_Public):
    """One-hot encoding by public categories; whatever is not among them becomes zeros.

    It is `sklearn.preprocessing.OneHotEncoder` with declared categories that no cell can make raise
    or warn. A missing cell becomes zeros too, so that a row of missing cells is still a row.

    Parameters
    ----------
    categories : dict, list of lists, list or Schema
        For data frames, a dict from each column's name to its categories; for arrays, the
        categories of each column, or those of all: texts, numbers or dates. Or a `Schema` that has
        them, whose values of missing cells take the place of unknown ones.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from skdpbayes.preprocessing import CategoryEncoder
    >>> CategoryEncoder(categories=[["no", "yes"]]).fit_transform([["yes"], ["perhaps"]]).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """

    def __init__(self, categories):
        self.categories = categories

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        return tags

    def _check_parameters(self):
        self._lists()

    def _lists(self):
        return categories_of(
            self.categories, self.n_features_in_, getattr(self, "feature_names_in_", None)
        )

    def _declared_columns(self):
        return self.categories

    def _width(self, *, reset):
        if not reset or isinstance(self.categories, Schema | Mapping):
            return super()._width(reset=reset)
        each = isinstance(self.categories, list | tuple) and isinstance(
            self.categories[0], list | tuple | np.ndarray
        )
        return len(self.categories) if each else None

    def _columns(self, X, *, reset):
        schema = schema_of(self.categories)
        if schema is not None:
            categories_of(schema, len(schema.columns))  # refuses columns without categories
        if not hasattr(X, "columns"):
            X = _cells(X, self._width(reset=reset))
        if schema is not None:
            agree(schema, X)
        validate_data(self, X, skip_check_array=True, reset=reset)
        columns = columns_of(X) if hasattr(X, "columns") else X.T
        if schema is None:
            return [as_labels(items(column)) for column in columns]
        return [
            as_labels(as_declared(items(column), own))
            for column, own in zip(columns, schema.columns, strict=True)
        ]

    def transform(self, X):
        """Zeros, and a one for the category of each cell.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        X_new : float array of shape (n_samples, n_categories)
        """
        check_is_fitted(self)
        columns = self._columns(X, reset=False)
        out = []
        for column, own in zip(columns, self._lists(), strict=True):
            code = codes(column, own)
            out.append((code[:, None] == np.arange(len(own))).astype(np.float64))
        return np.concatenate(out, axis=1)

    def get_feature_names_out(self, input_features=None):
        """Names of the columns: the column's, an underscore, the category's."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", input_features)
        names = [f"x{j}" for j in range(self.n_features_in_)] if names is None else names
        return np.array(
            [f"{name}_{c}" for name, own in zip(names, self._lists(), strict=True) for c in own],
            object,
        )


def _cells(X, width):
    """Object array of cells, of which a list is taken one by one."""
    if sparse.issparse(X):
        raise TypeError("Sparse data was passed, but dense data is required: use X.toarray().")
    if is_sequence(X):
        return from_list(X, width)
    X = np.asarray(X)
    check_table(X)
    return legible(X)
