"""Tables under a schema: names, order and kinds of columns, categories, missing cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from scipy import sparse

from skdpbayes.cells import Value, as_category, day, days, of_kind, plain
from skdpbayes.intake.tables import Numbers, Table, as_table, kind_of
from skdpbayes.schema import Column, Schema


def agree(schema: Schema, X: Any) -> None:
    """Raise a `ValueError` unless names, order and number of the columns of X are the schema's."""
    table = as_table(X, len(schema.columns))
    if table.names is None:
        if table.n_columns != len(schema.columns):
            raise ValueError(
                f"X has {table.n_columns} columns, and the schema {len(schema.columns)}: "
                f"{list(schema.names)}. Behind a step that makes other columns pass "
                "schema.outcome, and for some of the columns schema.select(names)."
            )
        return
    names = list(table.names)
    missing = [name for name in schema.names if name not in names]
    more = [name for name in names if name not in schema.names]
    if missing or more:
        raise ValueError(
            f"X must have the columns of the schema and no others: it lacks {missing}, and has "
            f"{more} beside them. Take X[list(schema.names)] or schema.select(names); behind a "
            "step that makes other columns, schema.outcome."
        )
    if names != list(schema.names):
        raise ValueError(
            f"X must have the columns in the order of the schema, {list(schema.names)}; "
            f"got {names}."
        )


def numbers(X: Any, schema: Schema | None, width: int | None) -> Numbers:
    """X as numbers; under a schema cell by cell, with its values in the place of missing cells.

    Raises
    ------
    ValueError
        For public facts: shapes, dtypes, column names, a list without a declared width.
    """
    if schema is None:
        return as_table(X, width).numeric()
    table = as_table(X, len(schema.columns))
    agree(schema, table)
    for column in schema.columns:
        if column.categories is not None and isinstance(column.categories[0], str):
            raise ValueError(
                f"Column {column.name!r} of the schema is a category of text, and numbers are "
                "needed: encode it by skdpbayes.preprocessing.CategoryEncoder first, and pass "
                "schema.outcome behind it."
            )
    numeric = table.numeric(by_cell=True)
    if sparse.issparse(numeric):
        return numeric
    with np.errstate(all="ignore"):  # of a longdouble that is too large for a float
        numeric = numeric.astype(np.float64)  # a copy
    for j, (column, dtype) in enumerate(zip(schema.columns, table.dtypes, strict=True)):
        if column.kind == "date":
            numeric[:, j] = _days(column, dtype, table, j)
        elif kind_of(dtype) in ("M", "m"):
            raise ValueError(
                f"Column {column.name!r} holds dates or times ({dtype}), and its kind is "
                f"{column.kind!r}: declare dates with kind='date'."
            )
    return _substituted(numeric, schema.columns)


_DATES = ("Date", "date32", "date64")  # of polars and pyarrow


def _days(column: Column, dtype: Any, table: Table, j: int) -> np.ndarray:
    """Days of a column of dates, each cell by itself."""
    if isinstance(dtype, np.dtype) and dtype.kind == "M":
        return days(table.column(j))
    if kind_of(dtype) in ("M", "m") and str(dtype).split("[")[0] not in _DATES:
        raise ValueError(
            f"Column {column.name!r} holds times ({dtype}): convert it to dates, or to "
            "datetime64 without a time zone."
        )
    return np.array([day(cell) for cell in table.cells(j)], np.float64)


def _substituted(numeric: np.ndarray, columns: tuple[Column, ...]) -> np.ndarray:
    for j, column in enumerate(columns):
        values = numeric[:, j]
        if column.categories is not None:
            values = np.where(np.isin(values, np.array(column.categories, float)), values, np.nan)
        values = of_kind(values, column.kind)
        numeric[:, j] = (
            values
            if column.missing is None
            else np.where(np.isnan(values), float(column.missing), values)
        )
    return numeric


def as_declared(cells: Iterable[object], column: Column) -> list[object]:
    """Cells as categories of a column; others become its public value of missing cells, or None."""
    assert column.categories is not None
    own = dict.fromkeys(column.categories)
    return [
        value if _is_in(own, value := as_category(c, column.categories[0])) else column.missing
        for c in cells
    ]


def _is_in(own: Mapping[Value, None], value: Any) -> bool:
    try:
        return plain(value) in own
    except Exception:  # not hashable, as a signalling NaN
        return False
