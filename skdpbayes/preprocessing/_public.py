"""Transformers with public bounds and categories; `fit` reads only the columns' names and number.

No cell raises an error or changes another row. A cell that is not a number becomes NaN, and private
estimators treat its row as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from skdpbayes.cells import objects
from skdpbayes.checks import check_choice, check_number, warn_user
from skdpbayes.declarations import Declared, by_name
from skdpbayes.intake.columns import agree, as_declared, numbers
from skdpbayes.intake.labels import codes, refuse_mixed
from skdpbayes.intake.rows import bounded_rows
from skdpbayes.intake.tables import Numbers, SparseTable, as_table, named
from skdpbayes.schema import Schema

RawRows: TypeAlias = ArrayLike | Sequence[Sequence[object]] | sparse.sparray | sparse.spmatrix
"""Rows as users have them: data frames, arrays, lists of cells, sparse matrices."""

Ends: TypeAlias = tuple[ArrayLike, ArrayLike]
DeclaredBounds: TypeAlias = Ends | Mapping[str, tuple[float, float]] | Schema
DeclaredCategories: TypeAlias = (
    Mapping[str, Sequence[object]] | Sequence[Sequence[object]] | Sequence[object] | Schema
)


_ROUNDING = 1e-6
_TELLING: ContextVar[bool] = ContextVar("telling", default=False)


@contextmanager
def rows_to_predict() -> Iterator[None]:
    """Rows of this context are not protected: steps tell of cells that are not as declared."""
    token = _TELLING.set(True)
    try:
        yield
    finally:
        _TELLING.reset(token)


class _Public(TransformerMixin, BaseEstimator):
    """Base: `fit` checks parameters against the columns, and keeps only their names and number."""

    _sparse = False

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = True
        tags.input_tags.sparse = self._sparse
        return tags

    def fit(self, X: RawRows, y: object = None) -> Self:
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
        self._check_columns(X)
        self._check_parameters()
        return self

    def _check_columns(self, X: RawRows) -> None:
        """Keep the number and the names of the columns."""
        self._numeric(X, reset=True)

    def _check_parameters(self) -> None:
        """Raise a `ValueError` unless the parameters fit the columns."""
        raise NotImplementedError

    def _declared(self) -> Declared:
        """Bounds, categories or schema of the columns, from the parameters."""
        return Declared.of_columns(None)

    def _width(self, *, reset: bool) -> int | None:
        """Public number of columns, for lists of rows."""
        return self._declared().width if reset else vars(self).get("n_features_in_")

    def _names(self) -> np.ndarray | None:
        """Names of the columns, if X was a data frame."""
        return vars(self).get("feature_names_in_")

    def _numeric(self, X: RawRows, *, reset: bool) -> Numbers:
        """Rows as numbers, with the columns checked."""
        numeric = numbers(X, self._declared().schema, self._width(reset=reset))
        if sparse.issparse(numeric) and not self._sparse:
            raise TypeError(
                "Sparse data was passed, but dense data is required: zeros would not stay zero."
            )
        validate_data(self, named(X, numeric), skip_check_array=True, reset=reset)
        return numeric

    def __sklearn_is_fitted__(self) -> bool:
        return "n_features_in_" in vars(self)


class NormClipper(OneToOneFeatureMixin, _Public):
    """Shorten rows whose Euclidean norm exceeds a public bound.

    A row with a NaN or an infinity becomes NaN, and private estimators treat it as absent.

    Parameters
    ----------
    norm : float, default=1.0
        Largest norm of a row; give the same ``data_norm`` to the next estimator.

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

    def __init__(self, norm: float = 1.0) -> None:
        self.norm = norm

    def _check_parameters(self) -> None:
        check_number("norm", self.norm, 0, 1e30)

    def transform(self, X: RawRows) -> Numbers:
        """Rows of norm at most `norm`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)

        Returns
        -------
        X_new : float array, or CSR array if X is sparse
        """
        check_is_fitted(self)
        rows, null = bounded_rows(self._numeric(X, reset=False), float(self.norm), intercept=False)
        if sparse.issparse(rows):
            rows.data[np.repeat(null, np.diff(rows.indptr))] = np.nan
        else:
            rows[null] = np.nan
        return rows


class BoundedScaler(OneToOneFeatureMixin, _Public):
    """Map public bounds of each column to a common range; values outside are clipped.

    It is `sklearn.preprocessing.MinMaxScaler` with declared bounds instead of learned ones. A
    `PrivatePipeline` warns of values outside when it predicts.

    Parameters
    ----------
    bounds : tuple (low, high), dict or Schema
        Numbers, or arrays with one for each column; for data frames also a dict from each column's
        name to its pair; or a `Schema`, whose values for missing cells are used too. There is no
        default: `fit` refuses None.
    feature_range : tuple (low, high), default=(0, 1)
    missing : float, array-like of shape (n_features,), or dict, default=None
        Public value, in the units of the column, that replaces a cell that is not a number: a
        typical one, known from elsewhere. For data frames also a dict by column name. None leaves
        NaN, and private estimators treat the row as absent.

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

    def __init__(
        self,
        bounds: DeclaredBounds | None = None,
        feature_range: tuple[float, float] = (0.0, 1.0),
        missing: ArrayLike | Mapping[str, float] | None = None,
    ) -> None:
        self.bounds = bounds
        self.feature_range = feature_range
        self.missing = missing

    def _declared(self) -> Declared:
        return Declared.of_columns(self.bounds)

    def _check_parameters(self) -> None:
        self._map()
        self._instead()

    def _instead(self) -> np.ndarray:
        """Value of each column for its missing cells."""
        given = np.nan if self.missing is None else self.missing
        if isinstance(given, Mapping):
            given = by_name(given, self._names(), "missing")
        try:
            values = np.broadcast_to(np.asarray(given, float), (self.n_features_in_,))
            right = self.missing is None or bool(np.isfinite(values).all())
        except (TypeError, ValueError):
            right = False
        if not right:
            raise ValueError(
                f"missing must be a number, or one for each of the {self.n_features_in_} columns "
                f"(for data frames, a dict by name), or None, got {self.missing!r}."
            )
        return values

    def _map(self) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Lower and upper bounds of the columns, and both ends of `feature_range`."""
        low, high = self._declared().bounds(self.n_features_in_, self._names())
        try:
            start, end = (float(value) for value in self.feature_range)
        except (TypeError, ValueError):
            start = end = np.nan
        if not start < end:
            raise ValueError(
                f"feature_range must be a pair (low, high) of numbers, got {self.feature_range!r}."
            )
        return low, high, start, end

    def _slopes(self) -> tuple[np.ndarray, np.ndarray]:
        """Slope and offset of the map of each column, within its bounds."""
        low, high, start, end = self._map()
        slopes = (end - start) / (high - low)
        return slopes, start - low * slopes

    def transform(self, X: RawRows) -> np.ndarray:
        """Columns in `feature_range`; cells that are not numbers are NaN, or the value `missing`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        X_new : float array of shape (n_samples, n_features)
        """
        check_is_fitted(self)
        with np.errstate(all="ignore"):
            values = self._numeric(X, reset=False).astype(np.float64)
        low, high, start, end = self._map()
        values = np.where(np.isnan(values), self._instead(), values)
        if _TELLING.get():
            room = _ROUNDING * np.maximum(np.abs(low), np.abs(high))  # of single precision
            _tell_of(
                np.sum((values < low - room) | (values > high + room), axis=0),
                self._names(),
                "beyond the declared bounds",
                "They count as the bounds.",
            )
        with np.errstate(all="ignore"):
            return start + (np.clip(values, low, high) - low) / (high - low) * (end - start)

    def inverse_transform(self, X: ArrayLike) -> np.ndarray:
        """Columns in their own units."""
        check_is_fitted(self)
        low, high, start, end = self._map()
        values = numbers(X, None, self.n_features_in_).astype(np.float64)
        return low + (values - start) / (end - start) * (high - low)


class CategoryEncoder(_Public):
    """One-hot encoding by public categories; all other cells become zeros, or NaN with `drop`.

    It is `sklearn.preprocessing.OneHotEncoder` with declared categories: no cell raises an error or
    a warning. A missing cell becomes zeros too, so a row of missing cells still counts as a row. A
    `PrivatePipeline` warns of cells without a category when it predicts.

    Parameters
    ----------
    categories : dict, list of lists, list or Schema
        Texts, numbers or dates. For data frames, a dict from each column's name to its categories;
        for arrays, the categories of each column, or of all. Or a `Schema`, whose values for
        missing cells replace unknown ones.
    drop : {"first", "if_binary"}, dict, list or None, default=None
        Category of each column that gets no column of its own, so that an intercept is determined:
        the first that is declared, the first in columns of two categories, or one for each column
        (None: none), by name for data frames. Zeros then mean this category, so that any other cell
        becomes NaN: in a fit private estimators treat its row as absent, and they predict it as a
        row of zeros, with a warning.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from skdpbayes.preprocessing import CategoryEncoder
    >>> CategoryEncoder(categories=[["no", "yes"]]).fit_transform([["yes"], ["perhaps"]]).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    >>> encoder = CategoryEncoder(categories=[["no", "yes"]], drop="first")
    >>> encoder.fit_transform([["yes"], ["no"], ["perhaps"]]).tolist()
    [[1.0], [0.0], [nan]]
    """

    def __init__(
        self,
        categories: DeclaredCategories,
        drop: str | Mapping[str, object] | Sequence[object] | None = None,
    ) -> None:
        self.categories = categories
        self.drop = drop

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        return tags

    def _check_parameters(self) -> None:
        self._dropped(self._lists())

    def _dropped(self, lists: list[np.ndarray]) -> list[int]:
        """Position of the category of each column that is left out; -1 if none is."""
        if self.drop is None:
            return [-1] * len(lists)
        if isinstance(self.drop, str):
            check_choice("drop", self.drop, ("first", "if_binary"))
            return [0 if self.drop == "first" or len(own) == 2 else -1 for own in lists]
        given = self.drop
        own_drop = by_name(given, self._names(), "drop") if isinstance(given, Mapping) else given
        if len(own_drop) != len(lists):
            raise ValueError(f"drop has {len(own_drop)} categories, X has {len(lists)} columns.")
        places = []
        for category, own in zip(own_drop, lists, strict=True):
            if category is not None and category not in own.tolist():
                raise ValueError(f"drop={category!r} is not among the categories {own.tolist()}.")
            places.append(-1 if category is None else own.tolist().index(category))
        return places

    def _lists(self) -> list[np.ndarray]:
        """Categories of each column."""
        return self._declared().categories(self.n_features_in_, self._names())

    def _declared(self) -> Declared:
        return Declared.of_columns(self.categories, "categories")

    def _width(self, *, reset: bool) -> int | None:
        given = self.categories
        if not reset or isinstance(given, Schema | Mapping):
            return super()._width(reset=reset)
        each = isinstance(given, list | tuple) and isinstance(given[0], list | tuple | np.ndarray)
        return len(given) if each else None

    def _check_columns(self, X: RawRows) -> None:
        cells, own = self._cells(X, reset=True), self._lists()
        dtypes = as_table(X, self.n_features_in_).dtypes
        # Under a schema text is read as numbers or Booleans, but not the other way round.
        read = self._declared().schema is not None
        names = self._names()
        told = range(len(cells)) if names is None else names
        for name, dtype, categories in zip(told, dtypes, own, strict=True):
            kinds = {isinstance(category, str) for category in categories}
            if kinds == {True} or (kinds == {False} and not read):
                labels = np.asarray(categories.tolist())
                refuse_mixed(dtype, labels, f"The column {name!r}", "categories")

    def _cells(self, X: RawRows, *, reset: bool) -> list[np.ndarray]:
        """Cells of each column, with the columns checked."""
        schema = self._declared().schema
        if schema is not None:
            self._declared().categories(len(schema.columns))  # refuses columns without categories
        table = as_table(X, self._width(reset=reset))
        if isinstance(table, SparseTable):
            raise TypeError("Sparse data was passed, but dense data is required: use X.toarray().")
        if schema is not None:
            agree(schema, table)
        validate_data(self, table.raw, skip_check_array=True, reset=reset)
        columns = [table.cells(j) for j in range(table.n_columns)]
        if schema is not None:
            pairs = zip(columns, schema.columns, strict=True)
            columns = [as_declared(cells, own) for cells, own in pairs]
        return [objects(cells) for cells in columns]

    def transform(self, X: RawRows) -> np.ndarray:
        """Zeros, and a one for the category of each cell; with `drop`, NaN for cells without one.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        X_new : float array of shape (n_samples, n_categories)
        """
        check_is_fitted(self)
        lists, out, unknown = self._lists(), [], []
        for column, own, dropped in zip(
            self._cells(X, reset=False), lists, self._dropped(lists), strict=True
        ):
            code = codes(column, own)
            ones = (code[:, None] == np.delete(np.arange(len(own)), _at(dropped))).astype(float)
            if dropped >= 0:
                ones[code < 0] = np.nan
            out.append(ones)
            unknown.append(int((code < 0).sum()))
        if _TELLING.get():
            instead = "Their columns are zeros."
            if any(n and at >= 0 for n, at in zip(unknown, self._dropped(lists), strict=True)):
                instead = (
                    "Where drop leaves a category out, such a row is NaN, and predicted as a row "
                    "of zeros: as the categories left out, and with zeros for all its other "
                    "columns too, whatever they hold."
                )
            _tell_of(unknown, self._names(), "without a declared category", instead)
        return np.concatenate(out, axis=1)

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> np.ndarray:
        """Names of the output: column, underscore, category."""
        check_is_fitted(self)
        own = self._names()
        names = input_features if own is None else own
        names = [f"x{j}" for j in range(self.n_features_in_)] if names is None else names
        lists = self._lists()
        kept = [
            np.delete(own, _at(at)) for own, at in zip(lists, self._dropped(lists), strict=True)
        ]
        return np.array(
            [f"{name}_{c}" for name, own in zip(names, kept, strict=True) for c in own], object
        )


def _tell_of(
    counts: Sequence[int] | np.ndarray, names: np.ndarray | None, what: str, instead: str
) -> None:
    """Warn of cells of rows to predict, by column, if there are any."""
    own = [f"x{j}" for j in range(len(counts))] if names is None else names
    found = [f"{n} in {str(name)!r}" for n, name in zip(counts, own, strict=True) if n]
    if found:
        warn_user(f"Rows to predict hold cells {what}: {', '.join(found)}. {instead}")


def _at(place: int) -> list[int]:
    """The place in a list; an empty one for -1."""
    return [] if place < 0 else [place]
