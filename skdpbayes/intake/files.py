"""Tables from files, cell by cell."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np

from skdpbayes.cells import as_category, day, number, objects, of_kind
from skdpbayes.checks import check_choice
from skdpbayes.schema import Column, Outcome, Schema


@overload
def read_csv(
    source: str | Path | BinaryIO | io.StringIO,
    schema: Schema,
    *,
    delimiter: str = ",",
    decimal: str = ".",
    groups: None = None,
) -> tuple[Any, np.ndarray | None]: ...


@overload
def read_csv(
    source: str | Path | BinaryIO | io.StringIO,
    schema: Schema,
    *,
    delimiter: str = ",",
    decimal: str = ".",
    groups: str,
) -> tuple[Any, np.ndarray | None, np.ndarray]: ...


def read_csv(
    source: str | Path | BinaryIO | io.StringIO,
    schema: Schema,
    *,
    delimiter: str = ",",
    decimal: str = ".",
    groups: str | None = None,
) -> tuple[Any, ...]:
    r"""Read a table cell by cell: no record decides about another, or about an error.

    **A record is a line**: it ends at ``\n``, within quotation marks too. So an open quotation mark
    spoils its own line alone; and a text with a line break in it is more than one record, so leave
    such columns out of the file. After the header each line is one row, an empty one too.

    A cell that is no number becomes NaN, and so does one that is not of its column's kind. A
    category is kept as it is, also an unknown one. A line that is not UTF-8, has too few or too
    many cells, or that the csv module does not read, becomes a row of missing cells. White space
    around cells is dropped.

    Parameters
    ----------
    source : path, binary file or io.StringIO
        UTF-8. The first line is the header, which is public. Other columns than the schema's are
        left out.
    schema : Schema
        For rows to predict, whose file has no outcome: ``schema.select(schema.names)``.
    delimiter : str, default=","
    decimal : {".", ","}, default="."
        Decimal point. With a comma, a cell with a point is no number.
    groups : str, default=None
        Name of a column that is not in the schema, and names the person of each row.

    Returns
    -------
    X : data frame of pandas; without pandas, an array of shape (n_rows, n_columns)
        Numbers as float64, categories as objects.
    y : array of shape (n_rows,), or None without an outcome
        Text labels as objects, other ones and responses as float64.
    groups : array of shape (n_rows,), only if `groups` is given
        Texts, for `fit(X, y, groups=...)`; None where a cell is empty or its line is not read.

    Raises
    ------
    ValueError
        If the header lacks a column, or has it twice, or for a `decimal` that is no point or is
        the delimiter. Never for the content of a record.

    Examples
    --------
    >>> import io
    >>> from skdpbayes import Schema, read_csv
    >>> schema = Schema({"age": {"bounds": [18, 100]}}, {"name": "ill", "labels": ["no", "yes"]})
    >>> X, y = read_csv(io.StringIO("ill,age\nno,44\nyes,forty\n"), schema)
    >>> X["age"].tolist(), y.tolist()
    ([44.0, nan], ['no', 'yes'])
    """
    check_format(delimiter, decimal)
    wanted = described(schema)
    (cells,) = csv_cells(source, schema, delimiter, groups=groups)
    persons = [] if groups is None else [objects([cell or None for cell in cells.pop()])]
    read = [values_of(column, own, decimal) for column, own in zip(wanted, cells, strict=True)]
    y = None if schema.outcome is None else read.pop()
    return _table(schema.names, read), y, *persons


def described(schema: Schema) -> list[Column | Outcome]:
    """Columns of a schema, the outcome last."""
    return [*schema.columns, *([] if schema.outcome is None else [schema.outcome])]


def csv_cells(
    source: str | Path | BinaryIO | io.StringIO,
    schema: Schema,
    delimiter: str,
    size: int | None = None,
    groups: str | None = None,
) -> Iterator[list[list[str | None]]]:
    """Cells of each column that a schema describes, and of `groups`, by `size` lines or all.

    See `read_csv`.
    """
    names = [column.name for column in described(schema)] + ([] if groups is None else [groups])
    lines = _lines(source)
    header = _parsed_line(next(lines, b""), delimiter, header=True)
    missing = [name for name in names if name not in header]
    twice = [name for name in names if header.count(name) > 1]
    if missing or twice:
        wrong = [f"it lacks {missing}"] * bool(missing) + [f"it repeats {twice}"] * bool(twice)
        told = (
            "The header must name each column of the schema, and that of groups, once, but "
            f"{' and '.join(wrong)}. Read with delimiter={delimiter!r}, it has {header}."
        )
        if schema.outcome is not None and missing == [schema.outcome.name] and not twice:
            told += " Rows to predict have no outcome: give schema.select(schema.names)."
        raise ValueError(told)
    places = [header.index(name) for name in names]
    while True:
        cells: list[list[str | None]] = [[] for _ in names]
        n = 0
        for line in itertools.islice(lines, size):
            n += 1
            row = _parsed_line(line, delimiter)
            whole = len(row) == len(header)
            for own, place in zip(cells, places, strict=True):
                own.append(row[place] if whole else None)
        yield cells
        if size is None or n < size:
            return


def _table(names: Sequence[str], columns: list[np.ndarray]) -> Any:
    """Columns as a data frame, or as an array where there is no pandas."""
    try:
        import pandas as pd
    except ImportError:
        dtype = object if any(values.dtype == object for values in columns) else np.float64
        out = np.empty((len(columns[0]), len(columns)), dtype)
        for j, values in enumerate(columns):
            out[:, j] = values
        return out
    return pd.DataFrame(
        {
            name: pd.Series(values, dtype=values.dtype)
            for name, values in zip(names, columns, strict=True)
        }
    )


def values_of(column: Column | Outcome, cells: Sequence[object], decimal: str = ".") -> np.ndarray:
    """One column of cells as float64; categories and labels of text or Booleans as objects."""
    like = category_like(column)
    if like is not None:
        return objects([as_category(cell, like) for cell in cells])
    dated = isinstance(column, Column) and column.kind == "date"
    if decimal == "," and not dated:
        cells = [_with_point(cell) for cell in cells]
    read = day if dated else number
    found = np.array([read(cell) for cell in cells], np.float64)
    return of_kind(found, column.kind) if isinstance(column, Column) else found


def check_format(delimiter: str, decimal: str) -> None:
    """Raise a `ValueError` unless numbers and cells can be told apart."""
    check_choice("decimal", decimal, (".", ","))
    if decimal == delimiter:
        raise ValueError(f"decimal and delimiter are both {decimal!r}: give delimiter=';', say.")


def _with_point(cell: object) -> object:
    """A number with a decimal comma as one with a point; nothing, if it has a point already."""
    if not isinstance(cell, str):
        return cell
    return None if "." in cell else cell.replace(",", ".")


def category_like(column: Column | Outcome) -> str | bool | None:
    """The first category or label if they are texts or Booleans, which are kept as objects."""
    own = column.categories if isinstance(column, Column) else column.labels
    return own[0] if own is not None and isinstance(own[0], str | bool) else None


def _lines(source: Any) -> Iterator[bytes]:
    """Lines as bytes, ended by a line feed alone; opening may raise, no record does."""
    if isinstance(source, str | Path):
        with open(source, "rb") as file:
            yield from file
    elif isinstance(source, io.StringIO):
        yield from io.BytesIO(source.read().encode("utf-8", "surrogatepass"))
    elif isinstance(source, io.TextIOBase) or not hasattr(source, "read"):
        raise ValueError(
            "Give a path, a file opened in binary mode ('rb') or an io.StringIO, got "
            f"{source!r}: a text file raises on a byte that is no character, and may take other "
            "characters for the end of a line."
        )
    else:
        yield from source


def _parsed_line(line: bytes, delimiter: str, *, header: bool = False) -> list[str]:
    """Cells of a line; none, if it cannot be read."""
    try:
        text = line.decode("utf-8-sig" if header else "utf-8").removesuffix("\n").removesuffix("\r")
        # One line at a time: an open quotation mark would swallow the lines after it.
        return [
            cell.strip() for cell in next(csv.reader([text], delimiter=delimiter, strict=True), [])
        ]
    except (UnicodeDecodeError, csv.Error) as error:
        if header:
            raise ValueError(f"The header cannot be read: {error}.") from None
        return []
