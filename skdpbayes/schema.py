"""What is public about a table: names, kinds, bounds and categories of its columns, and labels of the outcome.

A schema is written by hand, or made of public metadata. Nothing here reads it off the rows.
"""

from __future__ import annotations

import csv
import io
import json
import math
import numbers
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from skdpbayes.cells import number, objects, plain

__all__ = ["Column", "Outcome", "Schema"]

Value: TypeAlias = str | int | float | bool
KINDS = ("number", "integer", "count", "category")


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name : str
    kind : {"number", "integer", "count", "category"}, default=None
        An integer is a whole number, a count one that is not negative; any other number in such a
        column is no value. None: a category if there are categories, else a number.
    bounds : pair of float, default=None
        Smallest and largest value that a cell is taken for; others are cut there.
    categories : sequence of str, numbers or bool, default=None
        All values that a cell may have.
    unit : str, default=None
        For readers.
    missing : float, str or bool, default=None
        Public value that takes the place of a cell without a value: one that is no number, or no
        category.

    Raises
    ------
    ValueError
        For what makes no sense, by the name of the column.

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
        own = _named("column", self.name)
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
        bounds = None if self.bounds is None else _bounds(own, self.bounds)
        if bounds is not None and kind == "count" and bounds[0] < 0:
            raise ValueError(f"{own}: bounds of a count must not be negative, got {self.bounds!r}.")
        categories = (
            None if self.categories is None else _values(own, "categories", self.categories, 1)
        )
        _text(own, "unit", self.unit)
        _put(
            self,
            kind=kind,
            bounds=bounds,
            categories=categories,
            missing=self._checked(own, kind, bounds, categories),
        )

    def _checked(self, own, kind, bounds, categories):
        """The value of missing cells, which must be one that a cell may have."""
        if self.missing is None:
            return None
        if categories is not None:
            missing = _values(own, "missing", [self.missing], 1)[0]
            if missing not in categories:
                raise ValueError(
                    f"{own}: missing must be one of the categories, got {self.missing!r}."
                )
            return missing
        missing = _finite(own, "missing", self.missing)
        low, high = bounds or (-math.inf, math.inf)
        if not low <= missing <= high or math.isnan(self.of_kind(np.array([missing]), kind)[0]):
            raise ValueError(
                f"{own}: missing must be of the kind {kind!r} and within bounds, got {self.missing!r}."
            )
        return missing

    def of_kind(self, values: np.ndarray, kind: str | None = None) -> np.ndarray:
        """Numbers, those of another kind than the column's replaced by NaN."""
        kind = kind or self.kind
        if kind not in ("integer", "count"):
            return values
        with np.errstate(all="ignore"):
            right = (
                np.isfinite(values)
                & (np.rint(values) == values)
                & ((kind == "integer") | (values >= 0))
            )
        return np.where(right, values, np.nan)

    def to_dict(self) -> dict[str, Any]:
        """The column in JSON's types."""
        return _as_dict(self)


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
        For what makes no sense, by the name of the outcome.

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
        own = _named("outcome", self.name)
        if (self.labels is None) == (self.bounds is None):
            raise ValueError(f"{own} needs either labels (classification) or bounds (regression).")
        _text(own, "unit", self.unit)
        _put(
            self,
            labels=None if self.labels is None else _values(own, "labels", self.labels, 2),
            bounds=None if self.bounds is None else _bounds(own, self.bounds),
        )

    def to_dict(self) -> dict[str, Any]:
        """The outcome in JSON's types."""
        return _as_dict(self)


@dataclass(frozen=True, repr=False)
class Schema:
    r"""What is public about a table, for every estimator and transformer that takes bounds, categories or classes.

    Pass it where they are asked for: ``bounds=schema``, ``categories=schema``, ``classes=schema``.
    Then it describes X: names and order of a data frame's columns must be its own, and other tables
    must have as many columns. Behind a step that makes other columns, pass ``schema.outcome``,
    which describes y alone; for some of the columns, ``schema.select(names)``.

    Parameters
    ----------
    columns : sequence of Column, or of mappings with their parameters; or a mapping from names to those
    outcome : Outcome or mapping, default=None

    Raises
    ------
    ValueError
        For what makes no sense, by the name of the column. Never for what a row holds: a schema
        sees none.

    Examples
    --------
    >>> import io
    >>> from skdpbayes import Schema
    >>> schema = Schema(
    ...     {"age": {"bounds": [18, 100], "unit": "years"}, "city": {"categories": ["Oslo", "Bergen"]}},
    ...     outcome={"name": "ill", "labels": ["no", "yes"]},
    ... )
    >>> schema.names, schema.outcome.labels
    (('age', 'city'), ('no', 'yes'))
    >>> Schema.from_json(schema.to_json()) == schema
    True
    >>> X, y = schema.read_csv(io.StringIO("city,age,ill\nOslo,44,no\nBergen,forty,yes\n"))
    >>> X["age"].tolist(), y.tolist()
    ([44.0, nan], ['no', 'yes'])
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
                f"Names of columns and outcome must differ: {', '.join(map(repr, twice))} comes twice."
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
        """A schema of ``{"columns": ..., "outcome": ...}``, as `to_dict` gives it or written by hand."""
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
        """The schema in JSON's types, without what is None."""
        own: dict[str, Any] = {"columns": [column.to_dict() for column in self.columns]}
        return own if self.outcome is None else own | {"outcome": self.outcome.to_dict()}

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """A schema of a JSON text; the order of columns is that of the text."""
        return cls.from_dict(json.loads(text, object_pairs_hook=_without_repeats))

    def to_json(self, indent: int | None = None) -> str:
        """The schema as JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_toml(cls, text: str) -> Schema:
        """A schema of a TOML text; the order of columns is that of the text."""
        return cls.from_dict(tomllib.loads(text))

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """A schema of a file whose name ends in ``.toml`` or ``.json``."""
        path = Path(path)
        if path.suffix not in (".toml", ".json"):
            raise ValueError(
                f"The name of a schema's file must end in .toml or .json, got {str(path)!r}."
            )
        text = path.read_text("utf-8")
        return cls.from_toml(text) if path.suffix == ".toml" else cls.from_json(text)

    # ------------------------------------------------------------------- rows

    def read_csv(
        self, source: str | Path | BinaryIO | io.StringIO, *, delimiter: str = ","
    ) -> tuple[Any, Any]:
        r"""Read a table cell by cell, so that no record decides what another becomes, or whether there is an error.

        **A record is a line**: it ends at ``\n``, within quotation marks too. So a quotation mark
        that is not closed spoils its own line; and a text with a line break in it is more than one
        record, so leave such columns out of the file. After the header each line is one row, an
        empty one too.

        A cell that is no number becomes NaN, and so does one that is not of its column's kind. A
        category is kept as it is, also an unknown one. A line that is not UTF-8, has too few or too
        many cells, or that the csv module does not read, becomes a row of missing cells. White
        space around cells is dropped.

        Parameters
        ----------
        source : path, binary file or io.StringIO
            UTF-8. The first line is the header, which is public. Other columns than the schema's
            are left out.
        delimiter : str, default=","

        Returns
        -------
        X : data frame of pandas; without pandas, an array of shape (n_rows, n_columns)
            Numbers as float64, categories as objects.
        y : array of shape (n_rows,), or None without an outcome
            Text labels as objects, other ones and responses as float64.

        Raises
        ------
        ValueError
            If the header lacks a column, or has it twice. Never for what a record holds.
        """
        lines = _lines(source)
        header = _parsed_line(next(lines, b""), delimiter, header=True)
        wanted: list[Column | Outcome] = [
            *self.columns,
            *([] if self.outcome is None else [self.outcome]),
        ]
        missing = [column.name for column in wanted if column.name not in header]
        twice = [column.name for column in wanted if header.count(column.name) > 1]
        if missing or twice:
            wrong = [f"it lacks {missing}"] * bool(missing) + [f"it repeats {twice}"] * bool(twice)
            raise ValueError(
                f"The header must name each column of the schema once, but {' and '.join(wrong)}. Read with "
                f"delimiter={delimiter!r}, it has {header}."
            )
        places = [header.index(column.name) for column in wanted]
        cells: list[list[str | None]] = [[] for _ in wanted]
        for line in lines:
            row = _parsed_line(line, delimiter)
            whole = len(row) == len(header)
            for own, place in zip(cells, places, strict=True):
                own.append(row[place] if whole else None)
        read = [_read(column, own) for column, own in zip(wanted, cells, strict=True)]
        y = None if self.outcome is None else read.pop()
        return self._table(read), y

    def _table(self, read: list[np.ndarray]) -> Any:
        """Columns as a data frame, or as an array where there is no pandas."""
        try:
            import pandas as pd
        except ImportError:
            dtype = object if any(values.dtype == object for values in read) else np.float64
            out = np.empty((len(read[0]), len(read)), dtype)
            for j, values in enumerate(read):
                out[:, j] = values
            return out
        return pd.DataFrame(
            {
                name: pd.Series(values, dtype=values.dtype)
                for name, values in zip(self.names, read, strict=True)
            }
        )


# ------------------------------------------------------------------- checks


def _put(self: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(self, name, value)


def _named(what: str, name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"Each {what} needs a name, a text that is not empty; got {name!r}.")
    return f"{what} {name!r}"


def _with_name(name: object, own: object) -> object:
    own_name = _named("column", name)
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
    own_name = _named(what, own.get("name"))
    known = [field.name for field in fields(kind)]
    unknown = [key for key in own if key not in known]
    if unknown:
        raise ValueError(f"{own_name} has the unknown keys {unknown}; known are {known}.")
    return kind(**own)


def _finite(own: str, what: str, value: object) -> float:
    try:
        real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
        converted = float(value) if real else math.nan  # type: ignore[arg-type]
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise ValueError(f"{own}: {what} must be finite numbers, got {value!r}.")
    return converted


def _bounds(own: str, bounds: Any) -> tuple[float, float]:
    if (
        isinstance(bounds, str | Mapping)
        or not isinstance(bounds, Iterable)
        or len(pair := list(bounds)) != 2
    ):
        raise ValueError(f"{own}: bounds must be a pair (low, high) of numbers, got {bounds!r}.")
    low, high = (_finite(own, "bounds", end) for end in pair)
    if not low < high or math.isinf(high - low):
        raise ValueError(
            f"{own}: bounds must be (low, high) with low < high, and a finite range, got {bounds!r}."
        )
    return low, high


def _values(own: str, what: str, values: Any, least: int) -> tuple[Value, ...]:
    """Public values, all texts, all numbers or all Booleans, none twice."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise ValueError(f"{own}: {what} must be a list, got {values!r}.")
    found = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    kinds = {
        str if isinstance(v, str) else bool if isinstance(v, bool) else numbers.Real for v in found
    }
    if len(kinds) > 1 or not all(isinstance(value, str | int | float) for value in found):
        raise ValueError(
            f"{own}: {what} must be all texts, all numbers or all Booleans, got {list(found)}."
        )
    for value in found if kinds == {numbers.Real} else ():
        _finite(own, what, value)
    if len(found) < least or len(set(found)) < len(found):
        raise ValueError(
            f"{own}: {what} must be {least} or more different values, got {list(found)}."
        )
    return found


def _text(own: str, what: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{own}: {what} must be a text, got {value!r}.")


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


# -------------------------------------------------------------------- cells


def as_category(cell: object, like: Value) -> object:
    """A cell as a value of the kind of `like`: text as it is, or read as a number or a Boolean."""
    cell = plain(cell)
    if isinstance(like, str) or not isinstance(cell, str):
        return cell
    if isinstance(like, bool):
        return {"true": True, "false": False}.get(cell.strip().lower())
    return number(cell)


def _read(column: Column | Outcome, cells: list[str | None]) -> np.ndarray:
    """Values of one column of text: numbers as float64, categories and labels of text or Booleans as objects."""
    values = column.categories if isinstance(column, Column) else column.labels
    if values is not None and isinstance(values[0], str | bool):
        return objects([as_category(cell, values[0]) for cell in cells])
    found = np.array([number(cell) for cell in cells], np.float64)
    return column.of_kind(found) if isinstance(column, Column) else found


def _lines(source: Any) -> Iterator[bytes]:
    """Lines as bytes, ended by a line feed alone; errors of opening a file are those of the file, not of a record."""
    if isinstance(source, str | Path):
        with open(source, "rb") as file:
            yield from file
    elif isinstance(source, io.StringIO):
        yield from io.BytesIO(source.read().encode("utf-8", "surrogatepass"))
    elif isinstance(source, io.TextIOBase) or not hasattr(source, "read"):
        raise ValueError(
            f"Give a path, a file opened in binary mode ('rb') or an io.StringIO, got {source!r}: a text file "
            "raises on a byte that is no character, and may take other characters for the end of a line."
        )
    else:
        yield from source


def _parsed_line(line: bytes, delimiter: str, *, header: bool = False) -> list[str]:
    """Cells of a line; none, if it cannot be read."""
    try:
        text = line.decode("utf-8-sig" if header else "utf-8").removesuffix("\n").removesuffix("\r")
        # Of one line at a time: a quotation mark that is not closed would swallow the lines after
        # it.
        return [
            cell.strip() for cell in next(csv.reader([text], delimiter=delimiter, strict=True), [])
        ]
    except (UnicodeDecodeError, csv.Error) as error:
        if header:
            raise ValueError(f"The header cannot be read: {error}.") from None
        return []
