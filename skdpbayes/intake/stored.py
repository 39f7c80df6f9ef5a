"""Tables that stay on disk: cells become numbers when their rows are read."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from skdpbayes.intake.columns import agree, numbers
from skdpbayes.intake.tables import Numbers, check_table
from skdpbayes.schema import Schema

_SEGMENT = 2**28  # bytes of a file that are mapped at a time

Places = slice | np.ndarray
"""A range of rows, or numbers of rows in increasing order."""


def is_stored(X: Any) -> bool:
    """Whether a table, or a column, is read part by part: a `numpy.memmap`."""
    # Results of arithmetic are of the class, too, and in memory.
    return isinstance(X, np.memmap) and vars(X).get("_mmap") is not None


def rows_at(X: Any, places: Places) -> Any:
    """Some rows of an array, or of a `StoredNumbers`.

    Pages of a file are given back once they are copied, so that memory does not grow with it.
    """
    if not is_stored(X):
        return X[places]
    if isinstance(places, slice):
        found = np.array(X[places])
        _give_back(X)
        return found
    found = np.empty((len(places), *X.shape[1:]), X.dtype)
    stop = max(1, _SEGMENT // max(1, X.strides[0]))
    for low in range(0, len(X), stop):
        start, end = np.searchsorted(places, (low, low + stop))
        if end > start:
            np.take(X, places[start:end], axis=0, out=found[start:end], mode="clip")
            _give_back(X)
    return found


def _give_back(X: np.memmap) -> None:
    # Private changes of copy-on-write maps would be lost.
    if X.mode != "c" and "MADV_DONTNEED" in vars(mmap):
        mapped: Any = X
        mapped._mmap.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, eq=False)
class StoredNumbers:
    """A stored table as numbers.

    Attributes
    ----------
    raw : array of shape (n, d)
    schema : Schema or None
        What is public about its columns.

    Raises
    ------
    ValueError
        For public facts: the number of dimensions, an empty axis, a dtype that holds no numbers,
        another number of columns than the schema's.
    """

    raw: Any
    schema: Schema | None = None

    def __post_init__(self) -> None:
        check_table(self.raw)
        if self.raw.dtype.kind not in "fiub":
            raise ValueError(
                f"X has dtype {self.raw.dtype}: a table that is read part by part holds numbers."
            )
        if self.schema is not None:
            agree(self.schema, self.raw[:1])

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.raw.shape

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, places: Places) -> Numbers:
        return numbers(rows_at(self.raw, places), self.schema, None)
