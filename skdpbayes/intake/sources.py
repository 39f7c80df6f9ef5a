"""Rows that are not in memory: public facts about all of them, and those at some places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Places = slice | np.ndarray
"""A range of rows, or numbers of rows in increasing order (they may repeat)."""


class RecordSource(ABC):
    """Rows of a table, or items of a column, that are read when they are asked for.

    Each is read by itself: what `take` returns of a row depends on no other row.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Numbers of rows and columns; of a column, its length."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the items, which is public; objects if they are of several kinds."""

    @property
    def nullable(self) -> bool:
        """Whether items of a column of numbers may be missing, by its public type."""
        return False

    @abstractmethod
    def take(self, places: Places) -> Any:
        """Rows at some places, in memory: an array, a CSR array, or a table of pyarrow."""

    def give_back(self) -> None:
        """Drop from memory what `take` has mapped of a file; it is read again if it is used."""
        return

    @property
    def header(self) -> Any:
        """What has the names of the columns, if there are any, and at most one row."""
        return self

    @property
    def memory(self) -> tuple[np.ndarray, ...]:
        """Arrays through which others may reach the rows."""
        return ()

    @property
    def ndim(self) -> int:
        """Two for a table, one for a column."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, places: Any) -> Any:
        return self.take(places)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.asarray(self[:], dtype)


@dataclass(frozen=True, eq=False)
class Converted(RecordSource):
    """A source whose rows a function converts, each by itself.

    Attributes
    ----------
    source : RecordSource
    function : callable
        From rows in memory to as many rows in memory. What it returns has a public shape and dtype.
    """

    source: RecordSource
    function: Callable[[Any], Any]

    @cached_property
    def _first(self) -> Any:
        """One row, for its shape and dtype."""
        return self.take(slice(0, 1))

    @property
    def header(self) -> Any:
        """What the function makes of one row."""
        return self._first

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows, and shape of what the function makes of one."""
        return (len(self.source), *self._first.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of what the function returns."""
        own: np.dtype[Any] = self._first.dtype
        return own

    def take(self, places: Places) -> Any:
        """Converted rows."""
        found = self.function(self.source.take(places))
        self.source.give_back()
        return found


def converted(rows: Any, function: Callable[[Any], Any]) -> Any:
    """What a function makes of rows, each by itself; of a source, when they are read."""
    return Converted(rows, function) if isinstance(rows, RecordSource) else function(rows)


def loaded(rows: Any) -> Any:
    """Rows in memory: those of a source are read, others are returned as they are."""
    return rows[:] if isinstance(rows, RecordSource) else rows
