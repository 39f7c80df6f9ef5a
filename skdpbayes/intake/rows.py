"""Feature rows as numbers, one row at a time: the first step of `fit`, `predict` and `transform`.

Every function here is total and maps each row by itself. No content of a row raises or changes
another row: a cell that is not a number becomes NaN, and a row with a NaN or an infinity becomes
the null row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from skdpbayes.intake.sources import RecordSource
from skdpbayes.intake.tables import Numbers, as_table, frame_of, may_hold_numbers
from skdpbayes.mechanism.grid import BLOCK, peaks


def as_numeric(X: Any, width: int | None = None, *, by_cell: bool = False) -> Numbers:
    """A two-dimensional float array or CSR array; cells that are not numbers become NaN.

    See `Table.numeric`; `width` is the public number of columns, which a list does not have.
    """
    return as_table(X, width).numeric(by_cell=by_cell)


def bounded_rows(
    X: Numbers,
    bound: float,
    *,
    intercept: bool,
    dtype: DTypeLike = np.float64,
    out: np.ndarray | None = None,
) -> tuple[Numbers, np.ndarray]:
    """Rows scaled down to norm `bound` where they exceed it; null rows are zero.

    Parameters
    ----------
    X : array or CSR array of shape (n, d), from `as_numeric`
    bound : float
        Largest l2 norm of a row (the constant column not counted).
    intercept : bool
        Append a column of ones (zero in null rows, so that a null row contributes nothing).
    dtype : numpy dtype
    out : array of zeros of shape (m, d + intercept), optional
        Takes the rows of an array, as the first of its own.

    Returns
    -------
    rows : array or CSR array of shape (n, d + intercept), or `out`
    null : bool array of shape (n,)
        Rows that held a NaN or an infinity (after conversion to `dtype`).
    """
    if sparse.issparse(X):
        return _bounded_sparse(X, bound, intercept, dtype)
    n, d = X.shape
    rows = np.zeros((n, d + intercept), dtype) if out is None else out
    null = np.empty(n, bool)
    # Rows whose largest entry is smaller are surely not longer than the bound.
    short = bound / math.sqrt(d) * (1 - 2.0**-20)
    for start in range(0, n, BLOCK):
        part = slice(start, min(start + BLOCK, n))
        with np.errstate(all="ignore"):
            block = X[part].astype(
                dtype, order="C", copy=True
            )  # else a lone row is added up in another order
            peak = peaks(block)
            far = np.flatnonzero(peak > short)
            null[part] = ~np.isfinite(peak)  # NaN is the largest of numbers
            block[null[part]] = 0
            rows[part, :d] = block
            if len(far):
                rows[start + far, :d] = _shortened(block[far], bound)
        if intercept:
            rows[part, d] = ~null[part]
    return rows, null


def _shortened(block: np.ndarray, bound: float) -> np.ndarray:
    """Rows scaled down to norm `bound` where they exceed it."""
    peak = peaks(block).astype(np.float64)
    with np.errstate(under="ignore"):
        direction = block / _or_one(peak)[:, None]
        # The largest entry of a row as long as the bound: norms themselves could overflow.
        largest = bound / np.maximum(np.sqrt(np.square(direction).sum(axis=1)), 1)
        return np.where((peak > largest)[:, None], direction * largest[:, None], block)


def _bounded_sparse(
    X: sparse.csr_array, bound: float, intercept: bool, dtype: DTypeLike
) -> tuple[sparse.csr_array, np.ndarray]:
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


def counted(X: Numbers) -> tuple[sparse.csr_array, np.ndarray]:
    """Rows of counts as a CSR array of float32, columns sorted and distinct; null rows are empty.

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


def _or_one(peak: np.ndarray) -> np.ndarray:
    return np.where(peak > 0, peak, 1.0)


def refuse_text_columns(X: Any) -> None:
    """Raise for columns whose dtype, which is public, cannot hold numbers."""
    header = X.header if isinstance(X, RecordSource) else X
    frame = frame_of(header)
    if frame is None:
        # Of an array the dtype is public as well; not its width, which the longest cell has.
        if isinstance(header, np.ndarray) and header.ndim == 2 and header.dtype.kind in "SUT":
            raise ValueError(
                "X is an array of texts. Give numbers as numbers, X.astype(float), and encode "
                "texts with public categories, as skdpbayes.preprocessing.CategoryEncoder does."
            )
        return
    text = [
        f"{name!r} ({dtype})"
        for name, dtype in zip(frame.names, frame.dtypes, strict=True)
        if not may_hold_numbers(dtype)
    ]
    if text:
        raise ValueError(
            f"Columns {', '.join(text)} do not hold numbers. Encode them with public categories, "
            "as skdpbayes.preprocessing.CategoryEncoder does. If one bad cell may have made a "
            "column of numbers one of text, as in pandas.read_csv, read the file by "
            "skdpbayes.read_csv, or convert the column by pandas.to_numeric(column, "
            "errors='coerce'). Dates need a schema (kind='date'), or are days since a public one."
        )


def dense(rows: Numbers) -> np.ndarray:
    """Rows as an array, whatever their format."""
    return rows.toarray() if sparse.issparse(rows) else rows
