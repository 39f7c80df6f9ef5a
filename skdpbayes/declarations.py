"""Public bounds, categories and labels, as parameters declare them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from skdpbayes.cells import objects, plain
from skdpbayes.schema import Outcome, Schema

PREPARED = -1.0, 1.0  # bounds of columns that `make_preprocessor` returns


@dataclass(frozen=True, eq=False)
class Declared:
    """Content of one parameter: public facts of the columns of a table, and of its response.

    Made once from the parameter, by `of_columns`, `of_regression` or `of_classes`. Values of single
    columns need their public number and names, which `bounds` and `categories` take.

    Attributes
    ----------
    parameter : str
        For errors.
    columns : object
        Bounds or categories of the columns: a `Schema`, a dict by column name, a list with an entry
        for each column, or one pair or list for all. None if nothing is declared.
    outcome : Outcome or None
        The response, if a schema describes it.
    response : pair of float or None
        Bounds of the response.
    labels : object
        Labels of the response, in the order of the parameter. None if none are declared.
    """

    parameter: str
    columns: Any = None
    outcome: Outcome | None = None
    response: tuple[float, float] | None = None
    labels: Any = None

    @classmethod
    def of_columns(cls, value: Any, parameter: str = "bounds") -> Declared:
        """Bounds or categories of columns."""
        return cls(parameter, value, value.outcome if isinstance(value, Schema) else None)

    @classmethod
    def of_regression(cls, bounds: Any) -> Declared:
        """Bounds of columns and response.

        Parameters
        ----------
        bounds : pair (X_bounds, y_bounds), Schema with an outcome that has bounds, or Outcome
            `y_bounds` is a pair (low, high), or the outcome of a schema. Of an outcome alone the
            columns are in [-1, 1], as those of `make_preprocessor`.
        """
        pair = (bounds, bounds.outcome) if isinstance(bounds, Schema) else bounds
        pair = (PREPARED, bounds) if isinstance(bounds, Outcome) else pair
        try:
            of_columns, of_response = pair
            outcome = of_response if isinstance(of_response, Outcome) else None
            ends: Any = of_response if outcome is None else outcome.bounds
            low, high = (float(end) for end in ends)
        except (TypeError, ValueError):
            raise ValueError(
                "bounds must be ((X_low, X_high), (y_low, y_high)), or a Schema whose outcome has "
                f"bounds, or that outcome, got {bounds!r}."
            ) from None
        return cls("bounds of X", of_columns, outcome, (low, high))

    @classmethod
    def of_classes(cls, labels: Any, parameter: str = "classes") -> Declared:
        """Labels: a list, a schema whose outcome has them, or that outcome."""
        schema = labels if isinstance(labels, Schema) else None
        outcome = labels if schema is None else schema.outcome
        if outcome is None and schema is not None:
            raise ValueError(f"{parameter}: the schema has no outcome, so no labels.")
        if not isinstance(outcome, Outcome):
            return cls(parameter, labels=labels)
        if outcome.labels is None:
            raise ValueError(
                f"{parameter}: the outcome {outcome.name!r} of the schema has bounds, "
                "and no labels."
            )
        return cls(parameter, schema, outcome, labels=list(outcome.labels))

    @property
    def schema(self) -> Schema | None:
        """The schema of the columns, if there is one."""
        return self.columns if isinstance(self.columns, Schema) else None

    @property
    def width(self) -> int | None:
        """Number of columns; None if the parameter says the same of any number of columns."""
        if isinstance(self.columns, Schema):
            return len(self.columns.columns)
        if isinstance(self.columns, Mapping):
            return len(self.columns)
        if not isinstance(self.columns, list | tuple | np.ndarray):
            return None
        sizes = {
            len(own)
            for own in self.columns
            if isinstance(own, list | tuple | np.ndarray) and np.ndim(own) == 1
        }
        return sizes.pop() if len(sizes) == 1 else None

    def bounds(self, n: int, names: Iterable[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Bounds (low, high) of each of `n` columns, which have `names` in a data frame.

        Raises
        ------
        ValueError
            For bounds that are not finite, not in order, or not as many as columns.
        """
        given, pairs = self.columns, None
        if isinstance(given, Schema):
            without = [column.name for column in given.columns if column.bounds is None]
            if without:
                raise ValueError(
                    f"{self.parameter}: the schema gives no bounds of the columns {without}."
                )
            pairs = [column.bounds for column in given.columns]
        elif isinstance(given, Mapping):
            pairs = by_name(given, names, self.parameter)
        return _ends(given, pairs, n, self.parameter)

    def response_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds (low, high) of the response, of shape (1,)."""
        return _ends(self.response, None, 1, "bounds of y")

    def classes(self) -> np.ndarray:
        """Labels of the response, sorted.

        Raises
        ------
        ValueError
            If there are none, or they make no sense.
        """
        if self.labels is None:
            raise ValueError(
                "classes=None takes the set of labels from y, and a plan sees no rows: pass "
                "classes=[...]."
            )
        return declared_labels(self.labels, self.parameter)

    def categories(self, n: int, names: Iterable[str] | None = None) -> list[np.ndarray]:
        """Categories of each of `n` columns, as object arrays."""
        given = self.columns
        if isinstance(given, Schema):
            without = [column.name for column in given.columns if column.categories is None]
            if without:
                raise ValueError(
                    f"The schema gives no categories of the columns {without}: encode only the "
                    "others, by categories=schema.select([...])."
                )
            lists: list[Any] = [column.categories for column in given.columns]
        elif isinstance(given, Mapping):
            lists = by_name(given, names, "categories")
        else:
            lists = list(given)
            if not any(isinstance(own, list | tuple | np.ndarray | Set) for own in lists):
                lists = [lists] * n
        if any(isinstance(own, Set) for own in (given, *lists)):
            raise ValueError(
                "categories must be a list, which has an order; that of a set differs between "
                f"processes, got {given!r}."
            )
        if len(lists) != n:
            raise ValueError(f"categories has {len(lists)} lists, X has {n} columns.")
        return [_distinct(own) for own in lists]


def declared_labels(labels: Any, name: str) -> np.ndarray:
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
            f"{name} must be a list of two or more different labels, all strings or all numbers, "
            f"got {labels!r}."
        )
    return np.unique(array)


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


def by_name(values: Mapping[str, Any], names: Iterable[str] | None, parameter: str) -> list[Any]:
    """Values of a dict in the order of the columns, whose names must be the same."""
    if names is None:
        raise ValueError(f"{parameter} given by column names needs a data frame.")
    names = list(names)
    if set(names) != set(values):
        differing = sorted(map(str, set(names) ^ set(values)))
        raise ValueError(
            f"{parameter} must name the columns of X, all and no others; it differs by {differing}."
        )
    return [values[name] for name in names]


def _ends(given: Any, pairs: Any, n: int, parameter: str) -> tuple[np.ndarray, np.ndarray]:
    """Arrays (low, high) of `n` numbers: of a list of pairs, or else of one pair."""
    try:
        ends = given if pairs is None else zip(*((low, high) for low, high in pairs), strict=True)
        low, high = (np.broadcast_to(np.asarray(end, np.float64), (n,)) for end in ends)
        right = bool((low < high).all() and np.isfinite(high - low).all())
    except (TypeError, ValueError):
        right = False
    if not right:
        raise ValueError(
            f"{parameter} must be a pair (low, high) of finite numbers or of arrays with one "
            f"number for each of the {n} columns, low below high (or, for data "
            f"frames, a dict of pairs by name; or a Schema), got {given!r}."
        )
    return low, high


def _distinct(own: Any) -> np.ndarray:
    found = objects(list(own))
    if not len(found) or len(set(found.tolist())) < len(found):
        raise ValueError(
            f"The categories of a column must be one or more different values, got {list(own)}."
        )
    if any(plain(value) is not value for value in found):
        raise ValueError(
            "The categories of a column must be texts, numbers or dates, got "
            f"{list(own)}: no cell of another class is looked at."
        )
    return found


# ------------------------------------------- single questions about one parameter


def schema_of(declared: object) -> Schema | None:
    """The value of a parameter if it is a schema, else None."""
    return declared if isinstance(declared, Schema) else None


def of_columns_and_response(bounds: Any) -> tuple[Any, tuple[float, float]]:
    """See `Declared.of_regression`."""
    declared = Declared.of_regression(bounds)
    assert declared.response is not None
    return declared.columns, declared.response
