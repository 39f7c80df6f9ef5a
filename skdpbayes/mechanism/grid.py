"""Vectors on a grid: what has to be known of a record's vector is computed once, not every round.

Sums are exact if vectors are of integers (`contributions`). Rounding a vector and finding its
length take longer than everything else in a round of a generalised linear model, and neither
depends on the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# Bits of the length of a vector in steps of its grid; a clipping norm has some 40. Models see the
# rounded vectors, so that this rounding is as harmless as that of a measurement. The rounding of
# the other factor is not, and needs the larger part.
_BITS = 16
_LEAST = np.float32(2.0**-100)  # largest entry of a vector that is not taken for zero
_NARROW = 64  # NumPy takes maxima of shorter rows one number at a time, of columns several

BLOCK = 2**13
"""Rows handled at a time, so that temporaries stay in cache."""

VECTOR, GRID = "x", "grid"  # fields of a record: its vector, and the vector's `Grid`


class Grid(NamedTuple):
    """Grid of a vector, whose entries are integers over `scale`; or of many vectors.

    Attributes
    ----------
    scale : float32
        A power of two.
    length : float32
        Norm of the vector, or a little more; infinite beyond single precision, NaN where the vector
        was not finite.
    """

    scale: Any
    length: Any


def grid_of(record: Any) -> Grid | None:
    """Grid of a record's own vector; None if it has none."""
    grid = record.get(GRID) if isinstance(record, Mapping) else None
    return grid if isinstance(grid, Grid) else None


@np.errstate(all="ignore")  # what a vector holds raises nothing, whatever NumPy is told
def peaks(vectors: np.ndarray) -> np.ndarray:
    """Largest absolute entry of each vector: not finite where an entry is not."""
    n, d = vectors.shape
    if d > _NARROW:
        out: np.ndarray = np.abs(vectors).max(axis=1, initial=0)
        return out
    out = np.empty(n, vectors.dtype)
    for start in range(0, n, BLOCK):
        part = slice(start, start + BLOCK)
        np.abs(vectors[part].T, order="C").max(axis=0, initial=0, out=out[part])
    return out


@np.errstate(all="ignore")
def put_on_grid(vectors: np.ndarray) -> Grid:
    """Round vectors, in place, each by itself.

    Parameters
    ----------
    vectors : float32 array of shape (n, d)
        A vector that is not finite becomes zero.

    Returns
    -------
    grid : Grid of arrays of shape (n,)

    Notes
    -----
    **Formal guarantee.** Afterwards each vector is one of integers, of norm at most 2^16, divided
    by its scale; and its norm is at most the length given.

    *Proof.* The largest entry is below 2^e, so that steps, cut at 2^bits - 1, have a norm below
    sqrt(d) 2^bits <= 2^16. Factors are powers of two and steps have at most 16 bits: products are
    exact in single precision. The sum of squares is one of integers below 2^53, exact in double
    precision in any order; its root is rounded, and then moved up to the next number of single
    precision. QED

    ``tests/mechanism/test_own_vectors.py``: `test_vectors_are_on_their_grid` dies at a shorter
    length and at another rounding.
    """
    n, d = vectors.shape
    bits = _BITS - math.ceil(math.log2(max(d, 1)) / 2)
    grid = Grid(np.empty(n, np.float32), np.empty(n, np.float32))
    for start in range(0, n, BLOCK):
        part = slice(start, start + BLOCK)
        block = vectors[part]
        peak = peaks(block)
        infinite, small = ~np.isfinite(peak), ~(peak >= _LEAST)
        block[infinite | small] = 0
        peak[infinite | small] = 1
        scale = np.ldexp(np.float32(1), bits - np.frexp(peak)[1])
        block *= scale[:, None]
        np.rint(block, out=block)
        np.clip(block, 1 - 2.0**bits, 2.0**bits - 1, out=block)
        squares = np.einsum("ij,ij->i", block, block, dtype=np.float64)
        block /= scale[:, None]
        length = (np.sqrt(squares) / scale).astype(np.float32)
        length = np.where(length > 0, np.nextafter(length, np.float32(np.inf)), length)
        grid.scale[part], grid.length[part] = scale, np.where(infinite, np.nan, length)
    return grid
