"""Tables that stay on disk: cells become numbers when their rows are read."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from skdpbayes.intake.columns import numbers
from skdpbayes.intake.rows import dense, refuse_text_columns
from skdpbayes.intake.sources import Places, RecordSource
from skdpbayes.schema import Schema

SEGMENT = 2**28
"""Bytes of a file that are mapped at a time."""


def source_of(X: Any) -> RecordSource | None:
    """What reads a table or a column part by part; None if it is in memory."""
    if isinstance(X, RecordSource):
        return X
    # Results of arithmetic are of the class, too, and in memory.
    if isinstance(X, np.memmap) and vars(X).get("_mmap") is not None:
        return MappedArray(X)
    return None


def drop_pages(mapped: mmap.mmap) -> None:
    """Drop the pages of a map from memory; they are read again when they are used."""
    if "MADV_DONTNEED" in vars(mmap):
        mapped.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True, eq=False)
class MappedArray(RecordSource):
    """Rows of an array that is mapped.

    Attributes
    ----------
    raw : numpy.memmap
    """

    raw: np.memmap

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.raw.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the array."""
        return self.raw.dtype

    @property
    def memory(self) -> tuple[np.ndarray, ...]:
        """The array."""
        return (self.raw,)

    def take(self, places: Places) -> np.ndarray:
        """A copy of some rows.

        Pages of the file are given back once they are copied, so that memory does not grow with it.
        """
        X = self.raw
        if isinstance(places, slice):
            found = np.array(X[places])
            self.give_back()
            return found
        found = np.empty((len(places), *X.shape[1:]), X.dtype)
        stop = max(1, SEGMENT // max(1, X.strides[0]))
        for low in range(0, len(X), stop):
            start, end = np.searchsorted(places, (low, low + stop))
            if end > start:
                np.take(X, places[start:end], axis=0, out=found[start:end], mode="clip")
                self.give_back()
        return found

    def give_back(self) -> None:
        """Drop the pages of the array, unless there are private changes, which would be lost."""
        if self.raw.mode != "c":
            drop_pages(vars(self.raw)["_mmap"])


@dataclass(frozen=True, eq=False)
class StoredNumbers(RecordSource):
    """A table on disk as numbers.

    Attributes
    ----------
    source : RecordSource
    schema : Schema or None
        What is public about its columns.
    to_dense : bool
        Whether sparse rows become arrays.

    Raises
    ------
    ValueError
        For public facts: the number of dimensions, an empty axis, a dtype that holds no numbers,
        other names or another number of columns than the schema's.
    """

    source: RecordSource
    schema: Schema | None = None
    to_dense: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.source, MappedArray) and self.source.dtype.kind not in "fiubc":
            raise ValueError(
                f"X has dtype {self.source.dtype}: a table that is read part by part holds numbers."
            )
        if self.schema is None:
            refuse_text_columns(self.source.header)
        self.take(slice(0, 1))  # one row, for what is public about all

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of rows and columns."""
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the numbers."""
        own: np.dtype[Any] = self[:1].dtype
        return own

    @property
    def memory(self) -> tuple[np.ndarray, ...]:
        """That of the table."""
        return self.source.memory

    def take(self, places: Places) -> Any:
        """Rows as numbers."""
        found = numbers(self.source.take(places), self.schema, None)
        self.source.give_back()
        return dense(found) if self.to_dense else found
