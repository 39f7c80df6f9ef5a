"""Public facts of a table: names, kinds, bounds and categories of columns, labels of the outcome.

A schema is written by hand, or made of public metadata. Nothing here sees a row.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from skdpbayes.cells import NO_VALUE, Value, day, of_kind
from skdpbayes.checks import check_bounds, check_finite, check_name, check_text, check_values

__all__ = ["Column", "Outcome", "Schema"]

KINDS = ("number", "integer", "count", "date", "category")


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name : str
    kind : {"number", "integer", "count", "date", "category"}, default=None
        An integer is a whole number, a count a whole number that is not negative; any other number
        in such a column is no value. A date is the number of days since 1970-01-01; its cells are
        dates, texts such as "2024-02-29", or such numbers. None: a category if there are
        categories, else a number.
    bounds : pair of float, or of dates, default=None
        Smallest and largest value that a cell is taken for; others are cut there. Of a date, dates
        or texts; the attribute has their days.
    categories : sequence of str, numbers or bool, default=None
        All values that a cell may have.
    unit : str, default=None
        For readers.
    missing : float, str, bool or date, default=None
        Public value that takes the place of a cell without a value: one that is no number, or no
        category.

    Raises
    ------
    ValueError
        For values that make no sense, by the name of the column.

    Examples
    --------
    >>> from skdpbayes.schema import Column
    >>> Column("age", bounds=(18, 100), unit="years").kind
    'number'
    """

    name: str
    kind: str | None = None
    bounds: tuple[float, float] | None = None
    categories: tuple[Value, ...] | None = None
    unit: str | None = None
    missing: Value | None = None

    def __post_init__(self) -> None:
        own = check_name("column", self.name)
        kind = self.kind or ("number" if self.categories is None else "category")
        if kind not in KINDS:
            raise ValueError(
                f"{own}: kind must be one of {', '.join(map(repr, KINDS))}, got {self.kind!r}."
            )
        if self.bounds is not None and self.categories is not None:
            raise ValueError(f"{own} has both bounds and categories: a column has one of them.")
        if (kind == "category") != (self.categories is not None):
            raise ValueError(
                f"{own}: kind {kind!r} {'needs' if kind == 'category' else 'takes no'} categories."
            )
        if kind == "date":
            _put(
                self,
                bounds=_days(own, "bounds", self.bounds),
                missing=None if self.missing is None else _day(own, "missing", self.missing),
            )
        bounds = None if self.bounds is None else check_bounds(own, self.bounds)
        if bounds is not None and kind == "count" and bounds[0] < 0:
            raise ValueError(f"{own}: bounds of a count must not be negative, got {self.bounds!r}.")
        categories = (
            None if self.categories is None else check_values(own, "categories", self.categories, 1)
        )
        check_text(own, "unit", self.unit)
        _put(
            self,
            kind=kind,
            bounds=bounds,
            categories=categories,
            missing=self._checked(own, kind, bounds, categories),
        )

    def _checked(
        self,
        own: str,
        kind: str,
        bounds: tuple[float, float] | None,
        categories: tuple[Value, ...] | None,
    ) -> Value | None:
        """The value of missing cells, which must be one that a cell may have."""
        if self.missing is None:
            return None
        if categories is not None:
            missing = check_values(own, "missing", [self.missing], 1)[0]
            if missing not in categories:
                raise ValueError(
                    f"{own}: missing must be one of the categories, got {self.missing!r}."
                )
            return missing
        missing = check_finite(own, "missing", self.missing)
        low, high = bounds or (-math.inf, math.inf)
        if not low <= missing <= high or math.isnan(of_kind(np.array([missing]), kind)[0]):
            raise ValueError(
                f"{own}: missing must be of the kind {kind!r} and within bounds, "
                f"got {self.missing!r}."
            )
        return missing

    def to_dict(self) -> dict[str, Any]:
        """The column in JSON's types."""
        own = _as_dict(self)
        if self.kind == "date":
            if self.bounds is not None:
                own["bounds"] = [_dated(end) for end in self.bounds]
            if self.missing is not None:
                own["missing"] = _dated(float(self.missing))
        return own


@dataclass(frozen=True)
class Outcome:
    """The column that a model predicts: labels of a classification, or bounds of a regression.

    Parameters
    ----------
    name : str
    labels : sequence of str, numbers or bool, default=None
        Two or more.
    bounds : pair of float, default=None
    unit : str, default=None

    Raises
    ------
    ValueError
        For values that make no sense, by the name of the outcome.

    Examples
    --------
    >>> from skdpbayes.schema import Outcome
    >>> Outcome("ill", labels=["no", "yes"]).labels
    ('no', 'yes')
    """

    name: str
    labels: tuple[Value, ...] | None = None
    bounds: tuple[float, float] | None = None
    unit: str | None = None

    def __post_init__(self) -> None:
        own = check_name("outcome", self.name)
        if (self.labels is None) == (self.bounds is None):
            raise ValueError(f"{own} needs either labels (classification) or bounds (regression).")
        check_text(own, "unit", self.unit)
        _put(
            self,
            labels=None if self.labels is None else check_values(own, "labels", self.labels, 2),
            bounds=None if self.bounds is None else check_bounds(own, self.bounds),
        )

    def to_dict(self) -> dict[str, Any]:
        """The outcome in JSON's types."""
        return _as_dict(self)


@dataclass(frozen=True, repr=False)
class Schema:
    """Public facts of a table, for everything that takes bounds, categories or classes.

    Pass it where they are asked for: ``bounds=schema``, ``categories=schema``, ``classes=schema``.
    Then it describes X: names and order of a data frame's columns must be its own, and other tables
    must have as many columns. Behind a step that makes other columns, pass ``schema.outcome``,
    which describes y alone; for some of the columns, ``schema.select(names)``. A file is read under
    a schema by `skdpbayes.read_csv`.

    Parameters
    ----------
    columns : sequence or mapping
        `Column` objects, or mappings with their parameters; or a mapping from names to those.
    outcome : Outcome or mapping, default=None

    Raises
    ------
    ValueError
        For values that make no sense, by the name of the column. Never for a row: a schema sees
        none.

    Examples
    --------
    >>> from skdpbayes import Schema
    >>> schema = Schema(
    ...     {"age": {"bounds": [18, 100]}, "city": {"categories": ["Oslo", "Bergen"]}},
    ...     outcome={"name": "ill", "labels": ["no", "yes"]},
    ... )
    >>> schema.names, schema.outcome.labels
    (('age', 'city'), ('no', 'yes'))
    >>> Schema.from_json(schema.to_json()) == schema
    True
    """

    columns: tuple[Column, ...]
    outcome: Outcome | None = None

    def __init__(self, columns: Any, outcome: Any = None) -> None:
        if isinstance(columns, Mapping):
            columns = [_with_name(name, own) for name, own in columns.items()]
        if isinstance(columns, str) or not isinstance(columns, Iterable):
            raise ValueError(
                f"columns must be a list of columns, or a dict by name, got {columns!r}."
            )
        made = tuple(_made(Column, "column", own) for own in columns)
        target = None if outcome is None else _made(Outcome, "outcome", outcome)
        if not made:
            raise ValueError("A schema needs one or more columns.")
        names = [column.name for column in made] + ([] if target is None else [target.name])
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                "Names of columns and outcome must differ: "
                f"{', '.join(map(repr, twice))} comes twice."
            )
        _put(self, columns=made, outcome=target)

    def __repr__(self) -> str:
        own = self.to_dict()
        return f"Schema({own['columns']!r}" + (
            f", {own['outcome']!r})" if "outcome" in own else ")"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    def select(self, names: Iterable[str]) -> Schema:
        """The schema of some columns, in the order of `names`, without the outcome."""
        names = [names] if isinstance(names, str) else list(names)
        own = dict(zip(self.names, self.columns, strict=True))
        unknown = [name for name in names if name not in own]
        if unknown:
            raise ValueError(
                f"The schema has no column {', '.join(map(repr, unknown))}; it has {list(own)}."
            )
        return Schema([own[name] for name in names])

    # ------------------------------------------------------------------ texts

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """A schema of ``{"columns": ..., "outcome": ...}``, as `to_dict` gives it."""
        if not isinstance(data, Mapping):
            raise ValueError(
                f"A schema is made of a dict with 'columns' and 'outcome', got {data!r}."
            )
        unknown = [key for key in data if key not in ("columns", "outcome")]
        if unknown or "columns" not in data:
            raise ValueError(
                f"A schema has 'columns' and, if need be, an 'outcome'; got the keys {list(data)}."
            )
        return cls(data["columns"], data.get("outcome"))

    def to_dict(self) -> dict[str, Any]:
        """The schema in JSON's types, without entries that are None."""
        own: dict[str, Any] = {"columns": [column.to_dict() for column in self.columns]}
        return own if self.outcome is None else own | {"outcome": self.outcome.to_dict()}

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """A schema of a JSON text; columns are in the order of the text."""
        return cls.from_dict(json.loads(text, object_pairs_hook=_without_repeats))

    def to_json(self, indent: int | None = None) -> str:
        """The schema as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_toml(cls, text: str) -> Schema:
        """A schema of a TOML text; columns are in the order of the text."""
        return cls.from_dict(tomllib.loads(text))

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """A schema of a file whose name ends in ``.toml`` or ``.json``; errors name the file."""
        path = Path(path)
        if path.suffix not in (".toml", ".json"):
            raise ValueError(
                f"The name of a schema's file must end in .toml or .json, got {str(path)!r}."
            )
        text = path.read_text("utf-8")
        try:
            return cls.from_toml(text) if path.suffix == ".toml" else cls.from_json(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the schema to a file whose name ends in ``.json``, for `load`."""
        path = Path(path)
        if path.suffix != ".json":
            raise ValueError(f"A schema is saved as .json, got {str(path)!r}.")
        path.write_text(self.to_json(indent=2) + "\n", "utf-8")


# ------------------------------------------------------------------- values


def _put(self: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(self, name, value)


def _days(own: str, what: str, given: object) -> object:
    """A pair of dates as days; anything else as it is."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        return given
    return tuple(_day(own, what, item) for item in given)


def _day(own: str, what: str, given: object) -> float:
    found = NO_VALUE if isinstance(given, int | float | np.number) else day(given)
    if math.isnan(found):
        raise ValueError(
            f"{own}: {what} of a date must be dates, or texts such as '2024-02-29', got {given!r}."
        )
    return found


def _dated(days: float) -> str:
    """Days since 1970-01-01 as the text of a date."""
    return str(np.datetime64(int(days), "D"))


def _with_name(name: object, own: object) -> object:
    own_name = check_name("column", name)
    if isinstance(own, Column):
        if own.name != name:
            raise ValueError(f"{own_name} is given under another name than its own, {own.name!r}.")
        return own
    if not isinstance(own, Mapping):
        raise ValueError(f"{own_name} must be a dict of its parameters, got {own!r}.")
    if own.get("name", name) != name:
        raise ValueError(f"{own_name} is given under another name than its own, {own['name']!r}.")
    return {**own, "name": name}


def _made(kind: Any, what: str, own: Any) -> Any:
    if isinstance(own, kind):
        return own
    if not isinstance(own, Mapping):
        raise ValueError(
            f"A {what} must be a {kind.__name__} or a dict of its parameters, got {own!r}."
        )
    own_name = check_name(what, own.get("name"))
    known = [field.name for field in fields(kind)]
    unknown = [key for key in own if key not in known]
    if unknown:
        raise ValueError(f"{own_name} has the unknown keys {unknown}; known are {known}.")
    return kind(**own)


def _as_dict(item: Column | Outcome) -> dict[str, Any]:
    values = {field.name: getattr(item, field.name) for field in fields(item)}
    return {
        name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v is not None
    }


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"The JSON text gives {', '.join(map(repr, twice))} twice.")
    return dict(pairs)
