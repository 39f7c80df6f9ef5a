"""Public facts about the rows of a fit: all that its plan may depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Field(NamedTuple):
    """One array of a NumPyro model's records: its name, the shape of one record in it, its dtype."""

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
        Of the response; zero and one without any.
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
        None where the adjacency keeps the number of rows private.
    n_features : int
    names : tuple of str or None
        Of the columns of a data frame.
    fields : tuple of Field
        Of a NumPyro model's records; empty for other tables.
    """

    n_rows: int | None
    n_features: int
    names: tuple[str, ...] | None = None
    fields: tuple[Field, ...] = ()


def never_shares(array: np.ndarray) -> bool:
    """Of facts that know of no rows."""
    del array
    return False


@dataclass(frozen=True, eq=False)
class Facts:
    """A table's shape, and what parameters declare of it (or what was taken from it).

    Attributes
    ----------
    shape : Shape
    labels : array or None
        Classes or categories, sorted.
    scales : Scales or None
    voided_by : tuple of str
        Reasons that void the guarantee, such as a range that was taken from the rows.
    shares : callable ``array -> bool``
        Whether an array lies in the rows' memory: a matter of addresses, not of values.
    """

    shape: Shape
    labels: np.ndarray | None = None
    scales: Scales | None = None
    voided_by: tuple[str, ...] = ()
    shares: Callable[[np.ndarray], bool] = never_shares

    @property
    def n_rows(self) -> int | None:
        """Number of rows."""
        return self.shape.n_rows

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.shape.n_features

    def own_labels(self) -> np.ndarray:
        """Labels, of tables that have some."""
        assert self.labels is not None
        return self.labels

    def own_scales(self) -> Scales:
        """Scales, of tables that have some."""
        assert self.scales is not None
        return self.scales
