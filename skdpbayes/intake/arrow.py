"""Tables of Arrow files, which stay on disk."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skdpbayes.intake.sources import Places, RecordSource
from skdpbayes.intake.stored import SEGMENT, drop_pages
from skdpbayes.intake.tables import ArrowFrame, arrow_dtype

if TYPE_CHECKING:
    import pyarrow as pa


def open_table(path: str | Path) -> ArrowTable:
    """Open a table of an Arrow file; its rows stay on disk, and may be more than fit into memory.

    The file is mapped. `fit` reads its rows part by part, and releases what it would release with
    the same table in memory, bit for bit. A missing cell, and one that is no number, do what they
    do in a data frame.

    Parameters
    ----------
    path : str or Path
        An Arrow IPC file that is not compressed. ``skdpbayes convert`` makes one of a Parquet, CSV
        or compressed file.

    Returns
    -------
    ArrowTable
        ``table["age"]`` is a column, for y. ``table[["age", "height"]]`` is a table of some
        columns, for X. ``table[:10]`` has the first rows in memory, as a `pyarrow.Table`.

    Raises
    ------
    ImportError
        Without pyarrow.
    ValueError
        For a file that is of another format, compressed, or has two columns of one name.

    See Also
    --------
    read_csv : Reads a table into memory.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import pyarrow as pa
    >>> from skdpbayes import DPBayesianLogisticRegression, open_table
    >>> path = Path(tempfile.mkdtemp()) / "table.arrow"
    >>> data = pa.table({"age": [20.0, 40.0, 60.0] * 100, "ill": [0, 0, 1] * 100})
    >>> with pa.ipc.new_file(path, data.schema) as file:
    ...     file.write_table(data)
    >>> table = open_table(path)
    >>> table.shape, table.names
    ((300, 2), ('age', 'ill'))
    >>> model = DPBayesianLogisticRegression(classes=[0, 1], data_norm=100.0)
    >>> model.fit(table[["age"]], table["ill"]).feature_names_in_.tolist()
    ['age']
    """
    file = _File.of(Path(path))
    return ArrowTable(file, tuple(file.header.schema.names))


@dataclass(frozen=True, eq=False)
class _File:
    """An open Arrow file.

    Attributes
    ----------
    mapped : mmap.mmap
    reader : pyarrow.ipc.RecordBatchFileReader
    ends : int array of shape (n_batches,)
        Numbers of the rows behind the last of each batch.
    header : pyarrow.Table
        The table without its rows.
    """

    mapped: mmap.mmap
    reader: Any
    ends: np.ndarray
    header: Any
    _lock: Any

    @classmethod
    def of(cls, path: Path) -> _File:
        pa = imported()
        # Not by pyarrow's memory_map, which does not give pages back.
        with open(path, "rb") as file:
            try:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                buffer = pa.py_buffer(mapped)
                reader = pa.ipc.open_file(buffer)
            except (ValueError, pa.ArrowException) as error:
                raise ValueError(
                    f"{path} is no Arrow IPC file ({error}). Make one by `skdpbayes convert SOURCE "
                    "TARGET`, of a Parquet, CSV or Feather file."
                ) from None
        names = reader.schema.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{path} has columns of one name: {', '.join(map(repr, twice))}.")
        if any(map(_compressed, pa.ipc.MessageReader.open_stream(buffer.slice(_MAGIC)))):
            raise ValueError(
                f"{path} is compressed, so that its rows cannot be read in place. Write it by "
                "`skdpbayes convert SOURCE TARGET`, or by pyarrow without compression."
            )
        sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        ends = np.cumsum(np.array(sizes, np.int64))
        return cls(mapped, reader, ends, reader.schema.empty_table(), threading.Lock())

    def batch(self, i: int) -> Any:
        """One batch, which lies in the file."""
        with self._lock:
            return self.reader.get_batch(i)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Batches that hold rows of a range, each with the number of its first row."""
        first, last = np.searchsorted(self.ends, (start, stop - 1), side="right")
        for i in range(first, last + 1):
            yield int(self.ends[i - 1]) if i else 0, self.batch(i)


@dataclass(frozen=True, eq=False)
class ArrowTable(RecordSource):
    """A table of an Arrow file, as `skdpbayes.open_table` opens it.

    Attributes
    ----------
    names : tuple of str
        Names of the columns.
    shape : tuple of int
        Numbers of rows and columns.
    """

    _file: _File
    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of rows and columns."""
        return self._file.n_rows, len(self.names)

    @cached_property
    def header(self) -> Any:
        """A `pyarrow.Table` of these columns without rows."""
        return self._file.header.select(self.names)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype that holds the numbers of all columns."""
        return ArrowFrame(self.header).numeric().dtype

    def __repr__(self) -> str:
        return f"ArrowTable of {self.shape[0]} rows, columns {list(self.names)}"

    def __getitem__(self, what: Any) -> Any:
        """A column by its name, a table by a list of names; of a slice, the rows in memory."""
        if isinstance(what, slice):
            return self.take(what)
        names = [what] if isinstance(what, str) else list(what)
        if not names or len(set(names)) < len(names) or not set(names) <= set(self.names):
            raise KeyError(
                f"Give a slice, or name different columns of the table, which has "
                f"{list(self.names)}; got {what!r}."
            )
        table = ArrowTable(self._file, tuple(names))
        return ArrowColumn(table) if isinstance(what, str) else table

    def take(self, places: Places) -> pa.Table:
        """Some rows, in memory; those of a slice of step 1 lie in the file."""
        if isinstance(places, slice):
            start, stop, step = places.indices(len(self))
            if step == 1:
                return self._joined(self._slices(start, stop))
            own = np.arange(start, stop, step)
            return self.take(own) if step > 0 else self.take(own[::-1])[::-1]
        return self._joined(self._gathered(places))

    def _joined(self, batches: Iterator[Any]) -> Any:
        pa = imported()
        return pa.Table.from_batches(list(batches), self.header.schema)

    def _slices(self, start: int, stop: int) -> Iterator[Any]:
        if stop <= start:
            return
        for first, batch in self._file.pieces(start, stop):
            low = max(start - first, 0)
            yield batch.slice(low, stop - first - low).select(self.names)

    def _gathered(self, places: np.ndarray) -> Iterator[Any]:
        if not len(places):
            return
        pa = imported()
        stop = max(1, SEGMENT * len(self) // len(self._file.mapped))
        for low in range(int(places[0]), int(places[-1]) + 1, stop):
            start, end = np.searchsorted(places, (low, low + stop))
            own = places[start:end]
            if not len(own):
                continue
            for first, batch in self._file.pieces(int(own[0]), int(own[-1]) + 1):
                edges = np.searchsorted(own, (first, first + batch.num_rows))
                some = own[slice(*edges)] - first
                if len(some):
                    yield batch.select(self.names).take(pa.array(some))
            self.give_back()

    def give_back(self) -> None:
        """Drop the pages of the file from memory."""
        drop_pages(self._file.mapped)


@dataclass(frozen=True, eq=False)
class ArrowColumn(RecordSource):
    """A column of an `ArrowTable`: an array where it is read, with objects for missing items.

    Attributes
    ----------
    table : ArrowTable
        Of this column alone.
    """

    table: ArrowTable

    @property
    def _field(self) -> Any:
        return self.table.header.schema.field(0)

    @property
    def nullable(self) -> bool:
        """Whether the file says that items may be missing."""
        return bool(self._field.nullable)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of items."""
        return self.table.shape[:1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of NumPy of numbers and Booleans; that of objects for others."""
        return arrow_dtype(self._field.type) or np.dtype(object)

    def __repr__(self) -> str:
        return f"ArrowColumn {self.table.names[0]!r} of {len(self)} items"

    def take(self, places: Places) -> np.ndarray:
        """A copy of some items."""
        found = ArrowFrame(self.table.take(places)).column(0)
        self.table.give_back()
        return found


# ------------------------------------------------------------------- format


def imported() -> Any:
    """The module pyarrow.

    Raises
    ------
    ImportError
        With the command that installs it.
    """
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError as error:
        raise ImportError(
            "Arrow files need pyarrow: pip install skdpbayes[arrow] (or pyarrow itself)."
        ) from error
    return pa


_MAGIC = 8  # bytes of a file before its messages
_HEADER, _COMPRESSION = 2, 3  # places of fields in the tables `Message` and `RecordBatch`


def _compressed(message: Any) -> bool:
    """Whether the body of a batch is compressed, by its metadata; pyarrow does not tell.

    See https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format: metadata
    are FlatBuffers, whose tables begin with the distance to the places of their fields.
    """
    if message.type != "record batch":
        return False
    data = memoryview(message.metadata)

    def at(place: int, kind: str) -> int:
        return int(np.frombuffer(data, kind, 1, place)[0])

    def field(table: int, number: int) -> int:
        """Place of a field of a table; 0 if it is not there."""
        places = table - at(table, "<i4")
        known = 4 + 2 * number < at(places, "<u2")
        offset = at(places + 4 + 2 * number, "<u2") if known else 0
        return table + offset if offset else 0

    header = field(at(0, "<u4"), _HEADER)
    return field(header + at(header, "<u4"), _COMPRESSION) > 0
