"""Feature rows as numbers, one row at a time: what `fit`, `predict` and `transform` do to X before anything else.

Every function here is total and maps each row by itself. What is in a row never raises and never
changes another row: a cell that is not a number becomes NaN, and a row with a NaN or an infinity
becomes the null row.
"""

from __future__ import annotations

import sys

import numpy as np
from scipy import sparse

from skdpbayes.cells import legible, objects, parsed
from skdpbayes.intake.labels import is_sequence, items, kind_of

_BLOCK = 65536  # rows handled at a time, to bound temporaries


def as_numeric(X, width=None, *, by_cell=False):
    """A two-dimensional float array or CSR matrix; cells that are not numbers become NaN.

    Parameters
    ----------
    X : array-like, data frame, sparse matrix or list of rows
    width : int, default=None
        Public number of columns, which a list of rows does not have.
    by_cell : bool, default=False
        Read every cell of a data frame by itself, whatever the dtypes.

    Raises
    ------
    ValueError
        For what is public: the number of dimensions, an empty axis, a complex dtype, a list without
        a width.
    """
    if sparse.issparse(X):
        X = _within(sparse.csr_array(X))
    elif is_sequence(X):
        X = from_list(X, width)
    elif is_frame(X) and (by_cell or not all(_is_plain(dtype) for dtype in X.dtypes)):
        X = _by_columns(X)
    else:
        X = np.asarray(X)
    check_table(X)
    if X.dtype.kind not in "fiub":
        return parsed(X)
    with np.errstate(all="ignore"):
        return X if X.dtype.kind == "f" else X.astype(np.float64)


def is_frame(X) -> bool:
    """Whether X is a data frame, of pandas or polars."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def _is_plain(dtype) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "fiubc"


def columns_of(frame):
    """Columns of a data frame, in their order."""
    return [
        frame.iloc[:, j] if hasattr(frame, "iloc") else frame[:, j] for j in range(frame.shape[1])
    ]


def _by_columns(frame):
    """Float array of a data frame; of other dtypes than NumPy's, one missing value may decide the precision of all."""
    out = np.empty(frame.shape)
    for j, column in enumerate(columns_of(frame)):
        dtype = column.dtype
        numeric = (
            dtype.kind in "fiub"
            if isinstance(dtype, np.dtype)
            else hasattr(dtype, "is_float") and dtype.is_float()
        )
        with np.errstate(all="ignore"):
            out[:, j] = column.to_numpy() if numeric else parsed(objects(items(column)))
    return out


def check_table(X):
    """Raise a `ValueError` unless X is a table with rows and columns, and not complex."""
    if X.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: X has dtype {X.dtype}.")
    if X.ndim != 2:
        raise ValueError(
            f"Expected 2D array, got {'scalar array' if X.ndim == 0 else f'{X.ndim}D array'} instead. Reshape your "
            "data with X.reshape(-1, 1) if it has a single feature or X.reshape(1, -1) if it is a single sample."
        )
    if X.shape[0] == 0:
        raise ValueError(
            f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required."
        )
    if X.shape[1] == 0:
        raise ValueError(
            f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is required."
        )


def _within(X):
    """A CSR array of floats whose entries outside of its columns are NaN: they would be written into other rows."""
    if X.dtype.kind not in "fiub":
        return X
    # Not by X.astype: it adds up entries that repeat, as integers, and moves those that `outside`
    # is about.
    data, indices = X.data if X.dtype.kind == "f" else X.data.astype(np.float64), X.indices
    outside = (indices < 0) | (indices >= X.shape[1])
    if outside.any():
        data, indices = data.copy(), indices.copy()
        data[outside], indices[outside] = np.nan, 0
    return sparse.csr_array((data, indices, X.indptr), shape=X.shape)


def from_list(rows, width):
    """Cells of a list of rows, each by itself: `numpy.asarray` would let one cell decide the dtype of all.

    A row is a list, a tuple, a one-dimensional array or a Series of pandas. One of another length
    than `width`, or of another kind, becomes NaN.
    """
    if width is None:
        raise ValueError(
            "X is a list, and nothing public says how many columns it has: the length of a row is that of one record. "
            "Pass numpy.asarray(X, float), whose shape you state, or a data frame; or declare the columns by a "
            "skdpbayes.Schema, or by bounds or categories with an entry for each column."
        )
    rows = list(rows)
    out = np.full((len(rows), width), np.nan, object)
    for i, row in enumerate(rows):
        cells = _cells(row)
        if len(cells) == width:
            for j, cell in enumerate(cells):
                out[i, j] = cell
    return out


def _cells(row) -> list:
    """Cells of a row; none, if its class could run code of its own."""
    kind, pandas = type(row), sys.modules.get("pandas")
    if issubclass(kind, list):
        return list.copy(row)
    if issubclass(kind, tuple):
        return list(tuple.__getitem__(row, slice(None)))
    if (
        pandas is not None
        and kind is pandas.Series
        and isinstance(row.dtype, np.dtype | pandas.StringDtype)
    ):
        row = kind.to_numpy(row, dtype=object)
    return list(legible(row)) if type(row) is np.ndarray and row.ndim == 1 else []


def bounded_rows(X, bound: float, *, intercept: bool, dtype=np.float64):
    """Rows scaled down to norm `bound` where they exceed it, null rows zeroed, with a constant column appended.

    Parameters
    ----------
    X : array or CSR array of shape (n, d), from `as_numeric`
    bound : float
        Largest l2 norm of a row (the constant column not counted).
    intercept : bool
        Append a column of ones (zero in null rows, so that a null row contributes nothing).
    dtype : numpy dtype

    Returns
    -------
    rows : array or CSR array of shape (n, d + intercept)
    null : bool array of shape (n,)
        Rows that held a NaN or an infinity (after conversion to `dtype`).
    """
    if sparse.issparse(X):
        return _bounded_sparse(X, bound, intercept, dtype)
    n, d = X.shape
    rows, null = np.zeros((n, d + intercept), dtype), np.empty(n, bool)
    for start in range(0, n, _BLOCK):
        part = slice(start, start + _BLOCK)
        with np.errstate(all="ignore"):
            block = X[part].astype(
                dtype, order="C", copy=True
            )  # else a lone row is added up in another order
        null[part] = ~np.isfinite(block).all(axis=1)
        block[null[part]] = 0
        peak = np.abs(block).max(axis=1).astype(np.float64)
        with np.errstate(under="ignore"):
            direction = block / _or_one(peak)[:, None]
            # The largest entry of a row as long as the bound: norms themselves could overflow.
            largest = bound / np.maximum(np.sqrt(np.square(direction).sum(axis=1)), 1)
            rows[part, :d] = np.where(
                (peak > largest)[:, None], direction * largest[:, None], block
            )
        if intercept:
            rows[part, d] = ~null[part]
    return rows, null


def _bounded_sparse(X, bound, intercept, dtype):
    with np.errstate(all="ignore"):
        X = sparse.csr_array(X, dtype=dtype, copy=True)
    X.sum_duplicates()
    owner = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    null = np.zeros(X.shape[0], bool)
    null[owner[~np.isfinite(X.data)]] = True
    X.data[null[owner]] = 0
    peak = np.zeros(X.shape[0])
    np.maximum.at(peak, owner, np.abs(X.data))
    with np.errstate(under="ignore"):
        direction = X.data / _or_one(peak)[owner]
        root = np.sqrt(np.bincount(owner, np.square(direction), minlength=X.shape[0]))
        largest = bound / np.maximum(root, 1)
        X.data = np.where((peak > largest)[owner], direction * largest[owner], X.data).astype(dtype)
    if intercept:
        X = sparse.hstack([X, sparse.csr_array((~null).astype(dtype)[:, None])], format="csr")
    return X, null


def counted(X):
    """Rows of counts as a CSR array of float32 with sorted columns, none twice; null rows are empty.

    Parameters
    ----------
    X : array or CSR array of shape (n, d), from `as_numeric`

    Returns
    -------
    rows : CSR array of shape (n, d)
    null : bool array of shape (n,)
        Rows that held a NaN, an infinity or a negative number.
    """
    with np.errstate(all="ignore"):
        rows = sparse.csr_array(X, dtype=np.float32, copy=True)
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    null = np.zeros(rows.shape[0], bool)
    with np.errstate(invalid="ignore"):
        null[owner[~(np.isfinite(rows.data) & (rows.data >= 0))]] = True
    rows.data[null[owner]] = 0
    rows.sum_duplicates()
    rows.data[~np.isfinite(rows.data)] = 0
    rows.eliminate_zeros()
    return rows, null


def _or_one(peak):
    return np.where(peak > 0, peak, 1.0)


def refuse_text_columns(X):
    """Raise for columns of a data frame whose dtype, which is public, cannot hold numbers."""
    if not is_frame(X):
        return
    text = [
        f"{name!r} ({dtype})"
        for name, dtype in zip(X.columns, X.dtypes, strict=True)
        if kind_of(dtype)
        not in ("fiub" if type(dtype).__module__.startswith("pandas") else "fiubO")
    ]
    if text:
        raise ValueError(
            f"Columns {', '.join(text)} do not hold numbers. Encode them with public categories, as "
            "skdpbayes.preprocessing.CategoryEncoder does. If one bad cell may have made a column of numbers one of "
            "text, as in pandas.read_csv, read the file by skdpbayes.Schema.read_csv, or convert the column by "
            "pandas.to_numeric(column, errors='coerce')."
        )


def dense(rows):
    """Rows as an array, whatever their format."""
    return rows.toarray() if sparse.issparse(rows) else rows
