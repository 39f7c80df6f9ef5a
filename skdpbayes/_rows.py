"""Feature rows as numbers, one row at a time: what `fit`, `predict` and `transform` do to X before anything else.

Every function here is total and maps each row by itself. What is in a row never raises and never changes another
row: a cell that is not a number becomes NaN, and a row with a NaN or an infinity becomes the null row.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
from scipy import sparse

from skdpbayes._labels import kind_of

_BLOCK = 65536  # rows handled at a time, to bound temporaries


def as_numeric(X):
    """A two-dimensional float array or CSR matrix; cells that are not numbers become NaN.

    Raises
    ------
    ValueError
        For what is public: the number of dimensions, an empty axis, a complex dtype.
    """
    # Of other dtypes than NumPy's, one missing value may decide the precision of all.
    own = hasattr(X, "columns") and not all(isinstance(dtype, np.dtype) for dtype in X.dtypes)
    if sparse.issparse(X):
        X = _within(sparse.csr_array(X))
    elif isinstance(X, list | tuple):
        X = from_list(X)
    else:
        X = np.asarray(X)
    check_table(X)
    if X.dtype.kind not in "fiub":
        return parsed(X)
    with np.errstate(all="ignore"):
        return X if X.dtype.kind == "f" and not own else X.astype(np.float64)


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
        raise ValueError(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
    if X.shape[1] == 0:
        raise ValueError(f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")


def _within(X):
    """A CSR array of floats whose entries outside of its columns are NaN: they would be written into other rows."""
    if X.dtype.kind not in "fiub":
        return X
    # Not by X.astype: it adds up entries that repeat, as integers, and moves those that `outside` is about.
    data, indices = X.data if X.dtype.kind == "f" else X.data.astype(np.float64), X.indices
    outside = (indices < 0) | (indices >= X.shape[1])
    if outside.any():
        data, indices = data.copy(), indices.copy()
        data[outside], indices[outside] = np.nan, 0
    return sparse.csr_array((data, indices, X.indptr), shape=X.shape)


def from_list(rows):
    """Cells of a list of rows, each by itself: `numpy.asarray` would let one cell decide the dtype of all.

    The number of features is that of the first row; a row of another length, or of another kind, becomes NaN.
    """
    if not rows or not _is_row(rows[0]):
        raise ValueError(
            "Expected 2D array: X as a list must hold lists, tuples or one-dimensional arrays. Reshape your data, or "
            "pass an array or a data frame."
        )
    width = len(rows[0])
    out = np.full((len(rows), width), np.nan, object)
    for i, row in enumerate(rows):
        try:
            if _is_row(row) and len(row) == width:
                for j, cell in enumerate(row):
                    out[i, j] = cell
        except Exception:  # has no length, as rows of SciPy's one-dimensional sparse arrays, or not the one it says
            out[i] = np.nan
    return out


def _is_row(row) -> bool:
    try:
        return isinstance(row, list | tuple) or getattr(row, "ndim", None) == 1
    except Exception:  # whatever the object in a cell raises when asked: an error would tell of this one record
        return False


def parsed(X):
    """Float array of the cells of an array; what is not a number is NaN."""
    # Cell by cell, always: NumPy converts some kinds (dates) in whole arrays but not by themselves, so that a fallback
    # for arrays with a bad cell would let that cell change all others.
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # of a longdouble that is too large for a float
        warnings.simplefilter("error")
        return np.frompyfunc(_number, 1, 1)(legible(X).astype(object)).astype(np.float64)


def legible(X):
    """The array; of one of text, cells with what is no character, which NumPy fails to hand out, are made empty."""
    if X.dtype.kind != "U":
        return X
    points = np.ascontiguousarray(X).view(np.dtype(np.uint32).newbyteorder(X.dtype.byteorder))
    return np.where((points.reshape(*X.shape, -1) > sys.maxunicode).any(axis=-1), "", X)


def _number(cell) -> float:
    try:
        return np.nan if isinstance(cell, complex | np.complexfloating) else float(cell)
    except Exception:  # any error at all would tell that the record is there
        return np.nan


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
            block = X[part].astype(dtype, order="C", copy=True)  # else a lone row is added up in another order
        null[part] = ~np.isfinite(block).all(axis=1)
        block[null[part]] = 0
        peak = np.abs(block).max(axis=1).astype(np.float64)
        with np.errstate(under="ignore"):
            direction = block / _or_one(peak)[:, None]
            # The largest entry of a row as long as the bound: norms themselves could overflow.
            largest = bound / np.maximum(np.sqrt(np.square(direction).sum(axis=1)), 1)
            rows[part, :d] = np.where((peak > largest)[:, None], direction * largest[:, None], block)
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
    if not (hasattr(X, "columns") and hasattr(X, "dtypes")):
        return
    text = [
        f"{name!r} ({dtype})"
        for name, dtype in zip(X.columns, X.dtypes, strict=True)
        if kind_of(dtype) not in ("fiub" if type(dtype).__module__.startswith("pandas") else "fiubO")
    ]
    if text:
        raise ValueError(
            f"Columns {', '.join(text)} do not hold numbers. Encode them with public categories, as "
            "skdpbayes.preprocessing.CategoryEncoder does, or, if they hold numbers as text, convert them by "
            "pandas.to_numeric(column, errors='coerce')."
        )


def dense(rows):
    """Rows as an array, whatever their format."""
    return rows.toarray() if sparse.issparse(rows) else rows
