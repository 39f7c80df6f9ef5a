"""Public bounds, categories and labels, as parameters declare them: pairs, dicts by column name, or a `Schema`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import sparse

from skdpbayes.cells import plain
from skdpbayes.intake.rows import as_numeric, is_frame
from skdpbayes.schema import Column, Schema, Value, as_category


def agree(schema: Schema, X: Any) -> None:
    """Raise a `ValueError` if names, order or number of the columns of X, which are public, are not the schema's."""
    if not is_frame(X):
        width = X.shape[1] if hasattr(X, "shape") and len(X.shape) == 2 else len(schema.columns)
        if width != len(schema.columns):
            raise ValueError(
                f"X has {width} columns, and the schema {len(schema.columns)}: {list(schema.names)}. Behind a step "
                "that makes other columns pass schema.outcome, and for some of the columns schema.select(names)."
            )
        return
    names = list(X.columns)
    missing = [name for name in schema.names if name not in names]
    more = [name for name in names if name not in schema.names]
    if missing or more:
        raise ValueError(
            f"X must have the columns of the schema and no others: it lacks {missing}, and has {more} beside them. "
            "Take X[list(schema.names)] or schema.select(names); behind a step that makes other columns, "
            "schema.outcome."
        )
    if names != list(schema.names):
        raise ValueError(
            f"X must have the columns in the order of the schema, {list(schema.names)}; got {names}."
        )


def numbers(X: Any, schema: Schema | None, width: int | None) -> Any:
    """X as numbers; under a schema cell by cell, with its substitutes in the place of what is missing.

    Raises
    ------
    ValueError
        For what is public: shapes, dtypes, column names, a list without a declared width.
    """
    if schema is None:
        return as_numeric(X, width)
    agree(schema, X)
    for column in schema.columns:
        if column.categories is not None and isinstance(column.categories[0], str):
            raise ValueError(
                f"Column {column.name!r} of the schema is a category of text, and numbers are needed: encode it by "
                "skdpbayes.preprocessing.CategoryEncoder first, and pass schema.outcome behind it."
            )
    numeric = as_numeric(X, len(schema.columns), by_cell=True)
    agree(schema, numeric)
    return numeric if sparse.issparse(numeric) else _substituted(numeric, schema.columns)


def _substituted(numeric: np.ndarray, columns: tuple[Column, ...]) -> np.ndarray:
    with np.errstate(all="ignore"):  # of a longdouble that is too large for a float
        numeric = numeric.astype(np.float64)
    for j, column in enumerate(columns):
        values = numeric[:, j]
        if column.categories is not None:
            values = np.where(np.isin(values, np.array(column.categories, float)), values, np.nan)
        values = column.of_kind(values)
        numeric[:, j] = (
            values
            if column.missing is None
            else np.where(np.isnan(values), float(column.missing), values)
        )
    return numeric


def as_declared(cells: Iterable[object], column: Column) -> list[object]:
    """Cells as values of a column of categories; others become the public value of missing cells, or None."""
    assert column.categories is not None
    own = dict.fromkeys(column.categories)
    return [
        value if _is_in(own, value := as_category(c, column.categories[0])) else column.missing
        for c in cells
    ]


def _is_in(own: dict[Value, None], value: Any) -> bool:
    try:
        return plain(value) in own
    except Exception:  # not hashable, as a signalling NaN
        return False
