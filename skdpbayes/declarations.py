"""Public bounds, categories and labels, as parameters declare them: pairs, dicts by column name, or a `Schema`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from skdpbayes.cells import plain
from skdpbayes.schema import Outcome, Schema


def declared_labels(labels, name: str) -> np.ndarray:
    """Sorted array of the public labels that a parameter declares.

    Raises
    ------
    ValueError
        Unless they are two or more different labels, all strings or all numbers.
    """
    array = np.asarray(np.asarray(labels).tolist())  # an object array of strings as strings
    comparable = array.ndim == 1 and array.dtype.kind in "USbiuf"
    if not comparable or len(array) < 2 or len(np.unique(array)) < len(array):
        raise ValueError(
            f"{name} must be a list of two or more different labels, all strings or all numbers, got {labels!r}."
        )
    return np.unique(array)


def schema_of(declared: object) -> Schema | None:
    """The value of a parameter if it is a schema, else None."""
    return declared if isinstance(declared, Schema) else None


def public_schema(values: Iterable[object]) -> dict[str, Any] | None:
    """Schemas and outcomes among the values of parameters, in JSON's types; None without any."""
    flat = [
        own for value in values for own in (value if isinstance(value, list | tuple) else [value])
    ]
    schemas = [own for own in flat if isinstance(own, Schema)]
    outcomes = [own for own in flat if isinstance(own, Outcome)] + [
        own.outcome for own in schemas if own.outcome
    ]
    found = {"columns": schemas[0].to_dict()["columns"]} if schemas else {}
    return found | ({"outcome": outcomes[0].to_dict()} if outcomes else {}) or None


def width_of(declared: object) -> int | None:
    """Number of columns that bounds, categories or a schema declare; None if they are alike for all columns."""
    if isinstance(declared, Schema):
        return len(declared.columns)
    if isinstance(declared, Mapping):
        return len(declared)
    if not isinstance(declared, list | tuple | np.ndarray):
        return None
    sizes = {
        len(own)
        for own in declared
        if isinstance(own, list | tuple | np.ndarray) and np.ndim(own) == 1
    }
    return sizes.pop() if len(sizes) == 1 else None


def by_name(values: Mapping[str, Any], names: Iterable[str] | None, parameter: str) -> list[Any]:
    """Values of a dict in the order of the columns, whose names must be the same."""
    if names is None:
        raise ValueError(f"{parameter} given by column names needs a data frame.")
    if set(names) != set(values):
        differing = sorted(map(str, set(names) ^ set(values)))
        raise ValueError(
            f"{parameter} must name the columns of X, all and no others; it differs by {differing}."
        )
    return [values[name] for name in names]


def column_bounds(
    bounds: Any, n: int, names: Iterable[str] | None = None, parameter: str = "bounds"
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of each of `n` columns, (low, high).

    Parameters
    ----------
    bounds : pair (low, high) of numbers or arrays, dict of pairs by column name, or Schema
    n : int
    names : iterable of str, default=None
        Of the columns, if X is a data frame.
    parameter : str
        For errors.

    Raises
    ------
    ValueError
        For bounds that are not finite, not in order, or not as many as columns.
    """
    if isinstance(bounds, Schema):
        without = [column.name for column in bounds.columns if column.bounds is None]
        if without:
            raise ValueError(f"{parameter}: the schema gives no bounds of the columns {without}.")
        pairs: Any = [column.bounds for column in bounds.columns]
    else:
        pairs = by_name(bounds, names, parameter) if isinstance(bounds, Mapping) else None
    try:
        ends = bounds if pairs is None else zip(*((low, high) for low, high in pairs), strict=True)
        low, high = (np.broadcast_to(np.asarray(end, np.float64), (n,)) for end in ends)
        right = bool((low < high).all() and np.isfinite(high - low).all())
    except (TypeError, ValueError):
        right = False
    if not right:
        raise ValueError(
            f"{parameter} must be a pair (low, high) of finite numbers or of arrays with one number for each of the "
            f"{n} columns, low below high (or, for data frames, a dict of pairs by name; or a Schema), got {bounds!r}."
        )
    return low, high


def of_columns_and_response(bounds: Any) -> tuple[Any, tuple[float, float]]:
    """Bounds of the columns, as they are, and of the response, of a parameter for both.

    Parameters
    ----------
    bounds : pair (X_bounds, y_bounds), or Schema with an outcome that has bounds
        `y_bounds` is a pair (low, high), or the outcome of a schema.
    """
    if isinstance(bounds, Schema):
        bounds = bounds, bounds.outcome
    try:
        of_columns, of_response = bounds
        if isinstance(of_response, Outcome):
            of_response = of_response.bounds
        low, high = (float(end) for end in of_response)
    except (TypeError, ValueError):
        raise ValueError(
            f"bounds must be ((X_low, X_high), (y_low, y_high)), or a Schema whose outcome has bounds, got {bounds!r}."
        ) from None
    return of_columns, (low, high)


def labels_of(labels: Any, parameter: str) -> Any:
    """Labels that a parameter declares: a list as it is, or the labels of a schema's outcome."""
    outcome = labels.outcome if isinstance(labels, Schema) else labels
    if isinstance(labels, Schema) and outcome is None:
        raise ValueError(f"{parameter}: the schema has no outcome, so no labels.")
    if isinstance(outcome, Outcome):
        if outcome.labels is None:
            raise ValueError(
                f"{parameter}: the outcome {outcome.name!r} of the schema has bounds, and no labels."
            )
        return list(outcome.labels)
    return labels


def categories_of(categories: Any, n: int, names: Iterable[str] | None = None) -> list[np.ndarray]:
    """Categories of each of `n` columns, as object arrays.

    Parameters
    ----------
    categories : dict of lists by column name, list of lists, list for all columns, or Schema
    """
    if isinstance(categories, Schema):
        without = [column.name for column in categories.columns if column.categories is None]
        if without:
            raise ValueError(
                f"The schema gives no categories of the columns {without}: encode only the others, by "
                "categories=schema.select([...])."
            )
        lists: list[Any] = [column.categories for column in categories.columns]
    elif isinstance(categories, Mapping):
        lists = by_name(categories, names, "categories")
    else:
        lists = list(categories)
        if not any(isinstance(own, list | tuple | np.ndarray) for own in lists):
            lists = [lists] * n
    if len(lists) != n:
        raise ValueError(f"categories has {len(lists)} lists, X has {n} columns.")
    return [_distinct(own) for own in lists]


def _distinct(own: Any) -> np.ndarray:
    found = np.empty(len(own), object)
    found[:] = list(own)
    if not len(own) or len(set(found.tolist())) < len(own):
        raise ValueError(
            f"The categories of a column must be one or more different values, got {list(own)}."
        )
    if any(plain(value) is not value for value in found):
        raise ValueError(
            f"The categories of a column must be texts, numbers or dates, got {list(own)}: no cell of another class "
            "is looked at."
        )
    return found
