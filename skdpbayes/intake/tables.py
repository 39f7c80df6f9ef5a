"""Tables and columns of every library behind one type: no other code tells the libraries apart.

A library is recognised by its classes where it is loaded, and is never imported. Shapes, names and
dtypes are public. No cell decides anything here, and none raises: each is read by itself.
"""

from __future__ import annotations

import datetime
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from skdpbayes.cells import NO_VALUE, legible, objects, parsed
from skdpbayes.intake.sources import RecordSource

Numbers: TypeAlias = Any
"""An array or a CSR array of SciPy, which ships no types."""

_FIRST_DAY, _LAST_DAY = (
    (day - datetime.date(1970, 1, 1)).days for day in (datetime.date.min, datetime.date.max)
)


# ------------------------------------------------------------------- tables


@dataclass(frozen=True, eq=False, repr=False)
class Table(ABC):
    """Rows of any library: a public shape, public names and dtypes, and cells."""

    raw: Any
    """The rows as their library has them."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.raw.shape[0]

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.raw.shape[1]

    @property
    def names(self) -> tuple[Any, ...] | None:
        """Names of the columns; None if the library gives none."""
        return None

    @property
    def dtypes(self) -> tuple[Any, ...]:
        """Dtypes of the columns, of NumPy or of the library."""
        return (self.raw.dtype,) * self.n_columns

    @abstractmethod
    def column(self, j: int) -> np.ndarray:
        """One column: an array of its dtype if that is NumPy's, else of objects, cell by cell."""

    def cells(self, j: int) -> list[object]:
        """Cells of one column."""
        return list(legible(self.column(j)))

    @abstractmethod
    def select(self, places: Sequence[int]) -> Table:
        """The table of some columns."""

    def numeric(self, *, by_cell: bool = False) -> Numbers:
        """Floats; cells that are no numbers are NaN.

        Parameters
        ----------
        by_cell : bool, default=False
            Read each cell of a data frame by itself, whatever the dtypes.
        """
        del by_cell
        return _floats(self.raw)


class ArrayTable(Table):
    """A two-dimensional array."""

    def column(self, j: int) -> np.ndarray:
        """One column."""
        return self.raw[:, j]

    def select(self, places: Sequence[int]) -> ArrayTable:
        """The table of some columns."""
        return ArrayTable(self.raw[:, list(places)])


class SparseTable(Table):
    """A CSR array."""

    def column(self, j: int) -> np.ndarray:
        """One column, with its zeros."""
        return self.raw[:, [j]].toarray().ravel()

    def select(self, places: Sequence[int]) -> SparseTable:
        """The table of some columns."""
        return SparseTable(self.raw[:, list(places)])


class Frame(Table):
    """A data frame. In dtypes of its library one missing value may decide about a whole column."""

    @property
    def names(self) -> tuple[Any, ...]:
        """Names of the columns."""
        return tuple(self.raw.columns)

    @property
    def dtypes(self) -> tuple[Any, ...]:
        """Dtypes of the columns, of NumPy or of the library."""
        return tuple(self.raw.dtypes)

    @abstractmethod
    def series(self, j: int) -> Any:
        """One column as its library has it."""

    def column(self, j: int) -> np.ndarray:
        """One column: an array of its dtype if that is NumPy's, else of objects, cell by cell."""
        return column_labels(self.series(j))

    def cells(self, j: int) -> list[object]:
        """Cells of one column, as its library hands them out."""
        return items(self.series(j))

    def numeric(self, *, by_cell: bool = False) -> np.ndarray:
        """Floats; cells that are no numbers are NaN."""
        if not by_cell and all(
            isinstance(dtype, np.dtype) and dtype.kind in "fiubc" for dtype in self.dtypes
        ):
            found = np.asarray(self.raw)
            check_table(found)
            return _floats(found)
        found = np.empty((self.n_rows, self.n_columns))
        with np.errstate(all="ignore"):
            for j, dtype in enumerate(self.dtypes):
                whole = (
                    kind_of(dtype) in "fiub" if isinstance(dtype, np.dtype) else _is_float(dtype)
                )
                found[:, j] = self.series(j).to_numpy() if whole else parsed(objects(self.cells(j)))
        return found


class PandasFrame(Frame):
    """A data frame of pandas, or of a library with its interface."""

    def series(self, j: int) -> Any:
        """One column as a Series."""
        return self.raw.iloc[:, j]

    def select(self, places: Sequence[int]) -> PandasFrame:
        """The table of some columns."""
        return PandasFrame(self.raw.iloc[:, list(places)])


class PolarsFrame(Frame):
    """A data frame of polars."""

    def series(self, j: int) -> Any:
        """One column as a Series."""
        return self.raw[:, j]

    def select(self, places: Sequence[int]) -> PolarsFrame:
        """The table of some columns."""
        return PolarsFrame(self.raw[:, list(places)])


class ArrowFrame(Frame):
    """A table of pyarrow."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.raw.column_names)

    @property
    def dtypes(self) -> tuple[Any, ...]:
        """Dtypes of NumPy for numbers and Booleans, of pyarrow for others."""
        return tuple(arrow_dtype(own.type) or own.type for own in self.raw.schema)

    def series(self, j: int) -> Any:
        """One column as a chunked array."""
        return self.raw.column(j)

    def select(self, places: Sequence[int]) -> ArrowFrame:
        """The table of some columns."""
        return ArrowFrame(self.raw.select(list(places)))

    def column(self, j: int) -> np.ndarray:
        """One column: an array of its dtype, but of objects if a cell is not of that dtype."""
        own, dtype = self.series(j), arrow_dtype(self.raw.schema.field(j).type)
        if dtype is None or (own.null_count and dtype.kind != "f"):
            return objects(items(own))
        found = np.empty(len(own), dtype)
        _fill(found, own)
        return found

    def numeric(self, *, by_cell: bool = False) -> np.ndarray:
        """Floats; cells that are no numbers are NaN."""
        del by_cell  # of these dtypes, a cell alone is what it is among others
        dtypes = [arrow_dtype(own.type) for own in self.raw.schema]
        short = all(dtype == np.float32 for dtype in dtypes)
        found = np.empty(self.raw.shape, np.float32 if short else np.float64)
        for j, dtype in enumerate(dtypes):
            own = self.series(j)
            if dtype is None:
                found[:, j] = parsed(objects(items(own)))
            else:
                _fill(found[:, j], own)
        return found


def _fill(found: np.ndarray, column: Any) -> None:
    """Write a column of numbers of pyarrow into an array; what is missing is NaN."""
    start = 0
    for chunk in column.chunks:
        cells = found[start : start + len(chunk)]
        start += len(chunk)
        if not chunk.null_count:
            cells[:] = chunk.to_numpy(zero_copy_only=False)
            continue
        cells[:] = chunk.fill_null(False if str(chunk.type) == "bool" else 0).to_numpy(
            zero_copy_only=False
        )
        cells[chunk.is_null().to_numpy(zero_copy_only=False)] = np.nan


def as_table(X: Any, width: int | None = None) -> Table:
    """Rows as a `Table`.

    Parameters
    ----------
    X : array-like, data frame, sparse matrix, list of rows, or Table
    width : int, default=None
        Public number of columns, which a list of rows does not have.

    Raises
    ------
    ValueError
        For public facts: the number of dimensions, an empty axis, a complex dtype, a list without
        a width.
    """
    if isinstance(X, Table):
        return X
    if isinstance(X, RecordSource):
        return as_table(X[:], width)
    frame = frame_of(X)
    if frame is not None:
        _check_shape(frame.raw.shape)
        return frame
    if sparse.issparse(X):
        table: Table = SparseTable(_within(sparse.csr_array(X)))
    else:
        table = ArrayTable(from_list(X, width) if is_sequence(X) else np.asarray(X))
    check_table(table.raw)
    return table


def frame_of(X: Any) -> Frame | None:
    """A data frame of any library; None for anything else."""
    if isinstance(X, Frame):
        return X
    if _is_a(X, "DataFrame", _PANDAS):
        return PandasFrame(X)
    if _is_a(X, "Table", _ARROW):
        return ArrowFrame(X)
    return PolarsFrame(X) if _is_a(X, "DataFrame", _POLARS) else None


def named(X: Any, values: Any) -> Any:
    """X itself if its columns have names, for scikit-learn to remember; else `values`."""
    frame = frame_of(X.header if isinstance(X, RecordSource) else X)
    return values if frame is None else frame.raw


# ---------------------------------------------------------------- libraries


_PANDAS, _POLARS, _ARROW = ("pandas", "modin.pandas"), ("polars",), ("pyarrow",)


def _is_a(value: object, kind: str, libraries: tuple[str, ...]) -> bool:
    """Whether a value is of a class of one of the libraries, if that is loaded."""
    classes = (getattr(sys.modules.get(library), kind, None) for library in libraries)
    return any(own is not None and isinstance(value, own) for own in classes)


def kind_of(dtype: Any) -> str:
    """NumPy's letter for a dtype of any library: "U" for texts, "O" for unknown ones."""
    if isinstance(dtype, np.dtype):
        return dtype.kind
    if _is_a(dtype, "DataType", _POLARS):
        if str(dtype).split("(")[0] in ("String", "Enum", "Categorical"):
            return "U"
        if dtype.is_numeric():
            return "f"
        return "b" if str(dtype) == "Boolean" else "M" if dtype.is_temporal() else "O"
    if _is_a(dtype, "DataType", _ARROW):
        own = arrow_dtype(dtype)
        of = str(dtype.value_type if _is_a(dtype, "DictionaryType", _ARROW) else dtype)
        if own is not None:
            return own.kind
        texts, times = ("string", "large_string", "string_view"), ("date", "time", "duration")
        return "U" if of in texts else "M" if of.startswith(times) else "O"
    if _is_of_pandas(dtype):
        return "U" if dtype.type is str else dtype.kind
    return "O"


def may_hold_numbers(dtype: Any) -> bool:
    """Whether cells of a column may be numbers; those of an unknown dtype of pandas may not."""
    return kind_of(dtype) in ("fiub" if _is_of_pandas(dtype) else "fiubO")


def _is_of_pandas(dtype: object) -> bool:
    """Whether a dtype is pandas' own, or an extension of pandas."""
    return _is_a(dtype, "ExtensionDtype", ("pandas.api.extensions",))


def _is_float(dtype: Any) -> bool:
    """Whether a dtype of polars holds floats."""
    return _is_a(dtype, "DataType", _POLARS) and dtype.is_float()


def arrow_dtype(dtype: Any) -> np.dtype[Any] | None:
    """NumPy's dtype of numbers and Booleans of pyarrow; None for other types."""
    name = {"float": "float32", "double": "float64"}.get(str(dtype), str(dtype))
    return np.dtype(name) if name in _ARROW_NUMBERS else None


_ARROW_NUMBERS = frozenset(
    ["bool", "float32", "float64", *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64))]
)


def dtype_of(column: Any) -> Any:
    """Public dtype of a column of any library; None for lists, frames and things without one."""
    if is_sequence(column) or frame_of(column) is not None:
        return None
    return getattr(column, "dtype", None)


# ------------------------------------------------------------------ columns


def column_labels(column: Any) -> np.ndarray:
    """A column or Series as an array, cell by cell unless its dtype is NumPy's.

    In other dtypes one missing value would decide the dtype of all.
    """
    return column.to_numpy() if isinstance(column.dtype, np.dtype) else objects(items(column))


def items(column: Any) -> list[object]:
    """Items of a column or Series, each by itself; `NO_VALUE` where its library fails.

    Python has no date before year 1 or after 9999: pandas raises on those, and polars panics.
    """
    if _is_a(column, "Series", _POLARS):
        dtype = column.dtype
        if str(dtype) == "Date":
            days = column.to_physical().fill_null(0).to_numpy()
            fine = (days >= _FIRST_DAY) & (days <= _LAST_DAY)
            found = iter(column.gather(np.flatnonzero(fine)).to_list())
            return [next(found) if own else NO_VALUE for own in fine]
        if dtype.is_temporal() or dtype.is_nested():  # of classes that are not looked at
            return [NO_VALUE] * len(column)
    if _is_a(column, "ChunkedArray", _ARROW):
        return [item for chunk in column.chunks for item in _arrow_items(chunk)]
    try:
        return list(column)
    except Exception:  # one item cannot be handed out: the others are, one by one
        places = column.iloc if _is_a(column, "Series", _PANDAS) else column
        return [_item(places, i) for i in range(len(column))]


def _arrow_items(chunk: Any) -> list[object]:
    """Items of an array of pyarrow; times, and nested or foreign types, are no values."""
    kind = str(chunk.type)
    if _is_a(chunk, "DictionaryArray", _ARROW):
        known, places = _arrow_items(chunk.dictionary), chunk.indices.to_pylist()
        return [None if place is None else known[place] for place in places]
    if arrow_dtype(chunk.type) is None and not kind.startswith(_ARROW_CELLS):
        return [NO_VALUE] * len(chunk)
    try:
        return chunk.to_pylist()
    except Exception:  # text that is not UTF-8, a date that Python does not have
        return [_arrow_item(chunk, i) for i in range(len(chunk))]


_ARROW_CELLS = ("string", "large_string", "date", "decimal", "halffloat", "null")


def _arrow_item(chunk: Any, i: int) -> object:
    try:
        return chunk[i].as_py()
    except Exception:  # an error would tell of this one record
        return NO_VALUE


def _item(places: Any, i: int) -> object:
    try:
        return places[i]
    except Exception:  # an error would tell of this one record
        return NO_VALUE


def is_sequence(X: Any) -> bool:
    """Whether a container holds its items one by one, as lists do, but not arrays and frames."""
    if isinstance(X, list | tuple):
        return True
    array = isinstance(X, str | bytes | bytearray | memoryview | np.generic) or any(
        hasattr(X, name)
        for name in ("__array__", "__array_interface__", "dtype", "typecode", "shape", "keys")
    )
    return isinstance(X, Iterable) and not array


# --------------------------------------------------------- arrays and lists


def check_table(X: Any) -> None:
    """Raise a `ValueError` unless X is a table with rows and columns, and not complex."""
    if X.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: X has dtype {X.dtype}.")
    _check_shape(X.shape)


def _check_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise ValueError(
            f"Expected 2D array, got {f'{len(shape)}D' if shape else 'scalar'} array instead. "
            "Reshape your data with X.reshape(-1, 1) if it has a single feature or "
            "X.reshape(1, -1) if it is a single sample."
        )
    for size, what in zip(shape, ("sample", "feature"), strict=True):
        if size == 0:
            raise ValueError(
                f"Found array with 0 {what}(s) (shape={shape}) while a minimum of 1 is required."
            )


def _floats(X: Numbers) -> Numbers:
    """Numbers as floats, other cells parsed one by one."""
    if X.dtype.kind not in "fiub":
        return parsed(X)
    with np.errstate(all="ignore"):
        return X if X.dtype.kind == "f" else X.astype(np.float64)


def _within(X: sparse.csr_array) -> sparse.csr_array:
    """A CSR array of floats; entries outside of its columns would go to other rows: NaN."""
    if X.dtype.kind not in "fiub":
        return X
    # Not by X.astype: it adds up entries that repeat, as integers, and moves those that `outside`
    # is about.
    data, indices = X.data if X.dtype.kind == "f" else X.data.astype(np.float64), X.indices
    outside = (indices < 0) | (indices >= X.shape[1])
    if outside.any():
        data, indices = data.copy(), indices.copy()
        data[outside], indices[outside] = np.nan, 0
    return sparse.csr_array((data, indices, X.indptr), shape=X.shape)


def from_list(rows: Iterable[object], width: int | None) -> np.ndarray:
    """Cells of a list of rows, each by itself; `numpy.asarray` would let one decide every dtype.

    A row is a list, a tuple, a one-dimensional array or a Series of pandas. One of another length
    than `width`, or of another kind, becomes NaN.
    """
    if width is None:
        raise ValueError(
            "X is a list, and nothing public says how many columns it has: the length of a row is "
            "that of one record. Pass numpy.asarray(X, float), whose shape you state, or a data "
            "frame; or declare the columns by a skdpbayes.Schema, or by bounds or categories with "
            "an entry for each column."
        )
    rows = list(rows)
    out = np.full((len(rows), width), np.nan, object)
    for i, row in enumerate(rows):
        cells = _cells(row)
        if len(cells) == width:
            for j, cell in enumerate(cells):
                out[i, j] = cell
    return out


def _cells(row: Any) -> list[object]:
    """Cells of a row; none, if its class could run code of its own."""
    kind, pandas = type(row), sys.modules.get("pandas")
    if issubclass(kind, list):
        return list.copy(row)
    if issubclass(kind, tuple):
        return list(tuple.__getitem__(row, slice(None)))
    if (
        pandas is not None
        and kind is pandas.Series
        and isinstance(row.dtype, np.dtype | pandas.StringDtype)
    ):
        row = kind.to_numpy(row, dtype=object)
    return list(legible(row)) if type(row) is np.ndarray and row.ndim == 1 else []
