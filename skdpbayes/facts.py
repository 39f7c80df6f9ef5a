"""Public facts about the rows of a fit: everything that its plan may depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds


class Field(NamedTuple):
    """One array of a NumPyro model's records: name, shape of one record, dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Scales(NamedTuple):
    """Units of the columns and of a response, in the units of the data.

    Attributes
    ----------
    centre, half : array of shape (n_features,)
        Centre and half of the range of each column.
    y_centre, y_half : array of shape (1,)
        Centre and half range of the response; zero and one if there is none.
    """

    centre: np.ndarray
    half: np.ndarray
    y_centre: np.ndarray
    y_half: np.ndarray


@dataclass(frozen=True)
class Shape:
    """Shape of a table.

    Attributes
    ----------
    n_rows : int or None
        None if the adjacency keeps the number of rows private.
    n_features : int
    names : tuple of str or None
        Names of the columns of a data frame.
    fields : tuple of Field
        Arrays of a NumPyro model's records; empty for other tables.
    """

    n_rows: int | None
    n_features: int
    names: tuple[str, ...] | None = None
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, eq=False)
class Facts:
    """Shape of a table, and what is declared of it or was taken from it.

    Attributes
    ----------
    shape : Shape
    labels : array or None
        Classes or categories, sorted.
    scales : Scales or None
    voided_by : tuple of str
        Reasons that void the guarantee, such as a range that was taken from the rows.
    memory : tuple of (int, int)
        First address of the rows, and the one behind their last; of each array of them.
    """

    shape: Shape
    labels: np.ndarray | None = None
    scales: Scales | None = None
    voided_by: tuple[str, ...] = ()
    memory: tuple[tuple[int, int], ...] = ()

    @property
    def n_rows(self) -> int | None:
        """Number of rows."""
        return self.shape.n_rows

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.shape.n_features

    def shares(self, array: np.ndarray) -> bool:
        """Whether an array may lie in the rows' memory: a matter of addresses, not of values."""
        low, high = byte_bounds(array)
        return array.size > 0 and any(low < end and start < high for start, end in self.memory)

    def own_labels(self) -> np.ndarray:
        """Labels of a table that has labels."""
        assert self.labels is not None
        return self.labels

    def own_scales(self) -> Scales:
        """Scales of a table that has scales."""
        assert self.scales is not None
        return self.scales
