"""Tables as records: how `fit` reads rows, and what of them is public.

A reader holds what parameters declare. `Reader.declared` gives the public facts of a table that
nobody has seen; `Reader.read` gives those of a table that is there, and a function that packs its
rows. The two agree, unless a parameter is left to be taken from the rows, which voids the
guarantee.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils.validation import column_or_1d, validate_data

from skdpbayes.cells import parsed
from skdpbayes.declarations import Declared
from skdpbayes.facts import Facts, Shape
from skdpbayes.intake.columns import numbers
from skdpbayes.intake.labels import as_labels
from skdpbayes.intake.rows import dense, refuse_text_columns
from skdpbayes.intake.sources import Places, RecordSource
from skdpbayes.intake.stored import StoredNumbers, source_of
from skdpbayes.intake.tables import named

if TYPE_CHECKING:
    from skdpbayes.mechanism.records import Records
    from skdpbayes.mechanism.stored import StoredRecords


class Rows(NamedTuple):
    """A table that was given to `fit`.

    Attributes
    ----------
    facts : Facts
        Public.
    pack : callable ``() -> Records``
        Private; called once the fit has been charged.
    part : callable ``places -> Records`` or None
        Packs some of the rows, where they are stored; None if they are in memory.
    n_rows : int
        Of those that `part` has.
    counted : callable ``places -> Records`` or None
        As `part`, if no more is asked than which records are usable. None: `part`.
    """

    facts: Facts
    pack: Callable[[], Records]
    part: Callable[[Places], Records] | None = None
    n_rows: int = 0
    counted: Callable[[Places], Records] | None = None


def table_rows(
    facts: Facts,
    pack: Callable[..., Records],
    *arrays: Any,
    counted: Callable[..., Records] | None = None,
) -> Rows:
    """Rows of arrays of equal length, which `pack` packs row by row.

    If no more is asked than which records are usable, `counted` packs them, where that is faster.
    """

    def part(places: Places, pack: Callable[..., Records] = pack) -> Records:
        return pack(*(own[places] for own in arrays))

    if any(isinstance(own, RecordSource) for own in arrays):
        to_count = None if counted is None else partial(part, pack=counted)
        return Rows(facts, lambda: part(slice(None)), part, len(arrays[0]), to_count)
    return Rows(facts, lambda: pack(*arrays))


def records_of(rows: Rows) -> Records | StoredRecords:
    """Packed rows, or what packs them part by part where they are stored."""
    from skdpbayes.mechanism.stored import StoredRecords

    if rows.part is None:
        return rows.pack()
    return StoredRecords(rows.n_rows, rows.part, rows.counted)


@dataclass(frozen=True)
class Reader(ABC):
    """How the rows of one kind of model are read.

    Attributes
    ----------
    columns : object
        What parameters declare of the columns of X: bounds, categories or a schema; None if
        nothing.
    only_dense : str
        Why sparse rows are refused; empty if they are not.
    """

    columns: Any = None
    only_dense: str = ""
    to_dense: ClassVar[bool] = False  # whether sparse rows become arrays
    by_part: ClassVar[bool] = False  # whether stored rows are packed part by part

    @cached_property
    def declaration(self) -> Declared:
        """What parameters declare, read once."""
        return Declared.of_columns(self.columns)

    @abstractmethod
    def declared(self, shape: Shape) -> Facts:
        """Facts of a table of this shape, from parameters alone.

        Raises
        ------
        ValueError
            If a parameter that the plan depends on is not declared.
        """

    @abstractmethod
    def read(self, owner: Any, X: Any, y: Any = None) -> Rows:
        """Facts of a table, and its rows.

        Parameters
        ----------
        owner : estimator
            It gets `n_features_in_` and `feature_names_in_`.
        X, y
            As given to `fit`.
        """

    def made_up(self, n_rows: int, shape: Shape) -> tuple[Any, Any]:
        """A table that nobody has, for a trial run: X of one half, and no y."""
        return np.full((n_rows, shape.n_features), 0.5), None

    def width(self) -> int | None:
        """Number of columns that parameters declare; None if they declare none."""
        return self.declaration.width

    def numeric(self, owner: Any, X: Any, *, reset: bool) -> Any:
        """X as numbers, with feature names and their number checked (or remembered)."""
        if self.only_dense and sparse.issparse(X):
            raise TypeError(
                f"Sparse data was passed, but dense data is required: {self.only_dense} Use "
                "X.toarray() if it fits in memory."
            )
        schema = self.declaration.schema
        source = source_of(X)
        if self.by_part and reset and source is not None:
            stored = StoredNumbers(source, schema, self.to_dense)
            validate_data(owner, named(source, stored), skip_check_array=True, reset=reset)
            return stored
        if schema is None:
            refuse_text_columns(X)
        # A list has the declared width, or else the one of an earlier fit of this object.
        width = self.declaration.width or vars(owner).get("n_features_in_")
        found = numbers(X, schema, width)
        validate_data(owner, named(X, found), skip_check_array=True, reset=reset)
        return dense(found) if self.to_dense else found


def shape_of(owner: Any, X: Any) -> Shape:
    """Shape of a table of numbers whose owner has checked its names."""
    names = vars(owner).get("feature_names_in_")
    return Shape(
        int(X.shape[0]), int(X.shape[1]), None if names is None else tuple(map(str, names))
    )


def response(owner: Any, y: Any, n: int, *, one_by_one: bool) -> Any:
    """The response, checked by its public shape; a list is taken item by item if so asked.

    It is an array, or a `RecordSource` that is read item by item.
    """
    if y is None:
        raise ValueError(
            f"This {type(owner).__name__} estimator requires y to be passed, but the target y is "
            "None."
        )
    source = source_of(y)
    if source is not None and source.ndim == 1:
        y = source if one_by_one else source[:]
    else:
        y = column_or_1d(as_labels(y) if one_by_one else y, warn=True)
    if len(y) != n:
        raise ValueError(
            "Found input variables with inconsistent numbers of samples: X and y differ in length."
        )
    return y


def response_numbers(y: np.ndarray) -> np.ndarray:
    """The response as numbers, each by itself."""
    with np.errstate(all="ignore"):
        return y.astype(np.float64) if y.dtype.kind in "fiub" else parsed(y)


@dataclass(frozen=True)
class PlainRows(Reader):
    """Rows of numbers, as they are."""

    to_dense: ClassVar[bool] = True
    by_part: ClassVar[bool] = True

    def declared(self, shape: Shape) -> Facts:
        """Shapes alone."""
        return Facts(shape)

    def read(self, owner: Any, X: Any, y: Any = None) -> Rows:
        """Rows in single precision."""
        del y
        X = self.numeric(owner, X, reset=True)
        return table_rows(self.declared(shape_of(owner, X)), self.pack, X)

    def pack(self, X: np.ndarray) -> Records:
        """One field, ``x``."""
        from skdpbayes.intake.packing import pack_records

        with np.errstate(all="ignore"):
            return pack_records(x=X.astype(np.float32))
