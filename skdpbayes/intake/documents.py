"""Rows of counts and of probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import sparse

from skdpbayes.facts import Facts, Shape
from skdpbayes.intake.reading import Reader, Rows, shape_of, table_rows
from skdpbayes.intake.rows import counted, dense

if TYPE_CHECKING:
    from skdpbayes.mechanism.records import Records


_WORDS = 60  # of a document that is made up


@dataclass(frozen=True)
class Documents(Reader):
    """Counts of words."""

    def declared(self, shape: Shape) -> Facts:
        """Shapes alone."""
        return Facts(shape)

    def read(self, owner: Any, X: Any, y: Any = None) -> Rows:
        """Documents; those with NaN, infinity or a negative count are empty."""
        del y
        X = self.numeric(owner, X, reset=True)
        return table_rows(self.declared(shape_of(owner, X)), self.pack, X)

    def made_up(self, n_rows: int, shape: Shape) -> tuple[Any, Any]:
        """Documents of `_WORDS` different words, or of all that there are."""
        words = min(_WORDS, shape.n_features)
        columns = np.tile(np.arange(words), n_rows)
        starts = np.arange(n_rows + 1) * words
        values = np.ones(n_rows * words)
        return sparse.csr_array((values, columns, starts), (n_rows, shape.n_features)), None

    def pack(self, X: Any) -> Records:
        """Columns and values of each document."""
        from skdpbayes.intake.packing import pack_ragged

        return pack_ragged(counted(X)[0])


@dataclass(frozen=True)
class Probabilities(Documents):
    """Rows of zeros, ones and what lies between.

    Attributes
    ----------
    marked : bool
        Whether null rows are zero, and a field ``known`` tells them apart; else they are NaN.
    """

    marked: bool = False
    by_part: ClassVar[bool] = True

    def pack(self, X: Any) -> Records:
        """Rows ``y`` and ``known``, or ``x``."""
        from skdpbayes.intake.packing import pack_records

        rows, known = known_probabilities(X)
        if self.marked:
            return pack_records(usable=known, y=rows, known=known.astype(np.float32))
        rows[~known] = np.nan
        return pack_records(x=rows)


def known_probabilities(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows cut to [0, 1] in float32, zero where one holds NaN or infinity; and a mask of others."""
    X = dense(X)
    with np.errstate(all="ignore"):
        known = np.isfinite(X).all(axis=1)
        return np.where(known[:, None], np.clip(X, 0, 1), 0).astype(np.float32), known
