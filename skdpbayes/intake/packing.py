"""Arrays and CSR matrices as `Records`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from skdpbayes.intake.tables import Numbers
from skdpbayes.mechanism.grid import BLOCK, GRID, VECTOR, Grid, peaks, put_on_grid
from skdpbayes.mechanism.records import (
    NARROWEST,
    RaggedRows,
    Records,
    SparseRows,
    aligned_zeros,
    padded_size,
)


def pack_records(
    usable: np.ndarray | None = None, *, n: int | None = None, on_grid: bool = False, **fields: Any
) -> Records:
    """Records from arrays or CSR matrices of equal length, padded with zeros.

    Parameters
    ----------
    usable : bool array of shape (n,), optional
        Which records can contribute. None: those without a NaN, an infinity or a negative code.
    n : int, optional
        Number of records, where arrays may be padded already.
    on_grid : bool
        Whether to put the vectors `x`, an array of float32, on a grid: it is overwritten.
    **fields : array of shape (n, ...) or scipy CSR matrix of shape (n, m)
        Arrays keep their dtype.
    """
    lengths = {name: field.shape[0] for name, field in fields.items()}
    if n is None:
        n = min(lengths.values())
        allowed = {n}
    else:
        allowed = {n, padded_size(n)}
    if not set(lengths.values()) <= allowed:
        raise ValueError(f"Fields must have equal lengths, got {lengths}.")
    if usable is None:
        usable = np.logical_and.reduce([_without_nulls(field[:n]) for field in fields.values()])
    packed = {name: _pad(field, padded_size(n)) for name, field in fields.items()}
    if on_grid:
        grid = put_on_grid(packed[VECTOR][:n])
        packed[GRID] = Grid(*(_pad(of_each, padded_size(n)) for of_each in grid))
    return Records(packed, np.int32(n), usable=usable)


def finite_rows(field: Numbers) -> np.ndarray:
    """Mask of the rows of an array or CSR matrix that hold neither NaN nor infinity."""
    if sparse.issparse(field):
        fine = np.ones(field.shape[0], bool)
        owner = np.repeat(np.arange(field.shape[0]), np.diff(field.indptr))
        fine[owner[~np.isfinite(field.data)]] = False
        return fine
    return np.isfinite(peaks(field.reshape(len(field), -1)))


def _without_nulls(field: Numbers) -> np.ndarray:
    """Mask of the rows that are finite, or not negative where they hold codes."""
    return field >= 0 if field.dtype.kind == "i" and field.ndim == 1 else finite_rows(field)


def pack_ragged(rows: Any) -> Records:
    """Records ``{"columns": ..., "values": ...}`` of the rows of a CSR matrix, shortest first.

    Parameters
    ----------
    rows : scipy CSR matrix of shape (n, m)
        Columns of a row must be distinct and in increasing order.
    """
    lengths = np.diff(rows.indptr)
    order = np.argsort(lengths, kind="stable")
    rows, lengths = rows[order], lengths[order]
    longest = lengths[-1] if len(lengths) else 0
    widths = [NARROWEST]
    while widths[-1] < longest:
        widths.append(2 * widths[-1])
    ends = np.searchsorted(lengths, widths, side="right").astype(np.int32)
    packed = _pad(rows, padded_size(rows.shape[0]))
    ragged = RaggedRows(packed.data, packed.columns, packed.row_starts, packed.template)
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    usable = lengths > 0
    return Records(ragged, np.int32(len(order)), ends, tuple(widths), usable=usable, places=places)


def _pad(field: Any, size: int) -> Any:
    if sparse.issparse(field):
        field = field.tocsr()
        n_values = padded_size(field.nnz)
        starts = np.full(size + 1, field.nnz, np.int32)
        starts[: field.shape[0] + 1] = field.indptr
        return SparseRows(
            _pad(field.data, n_values),
            _pad(field.indices.astype(np.int32), n_values),
            starts,
            np.zeros(field.shape[1], field.dtype),
        )
    if len(field) == size:
        return field
    out = aligned_zeros((size, *field.shape[1:]), field.dtype)
    out[: len(field)] = field
    return out


def padded_zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Room for records in single precision, and zeros behind them: what a fit takes as it is."""
    return aligned_zeros((padded_size(shape[0]), *shape[1:]), np.float32)


def padded_rows(shape: tuple[int, ...], rows: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Records in single precision, made some at a time, and zeros behind them.

    Parameters
    ----------
    shape : tuple of int
        Of the records.
    rows : callable ``slice -> array``
        Some of them.
    """
    out = padded_zeros(shape)
    with np.errstate(all="ignore"):
        for start in range(0, shape[0], BLOCK):
            part = slice(start, min(start + BLOCK, shape[0]))
            out[part] = rows(part)
    return out
