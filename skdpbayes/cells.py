"""Single cells as plain values: nothing in a cell raises, and no code of its class runs."""

from __future__ import annotations

import datetime
import decimal
import fractions
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Value: TypeAlias = str | int | float | bool
"""Public value of a category or label."""

# By identity: to hash a class may run code of its metaclass.
_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), decimal.Decimal, datetime.date),
    *(kind for kind in set(np.sctypeDict.values()) if kind not in (np.object_, np.void)),
)
_PLAIN_IDS = frozenset(map(id, _PLAIN))

_BASES: tuple[tuple[type, Any], ...] = (
    (int, int.__int__),
    (float, float.__float__),
    (str, str.__str__),
    (bytes, bytes.__bytes__),
)

_FIRST = datetime.date(1970, 1, 1)
_DATE = re.compile(r"\s*(\d{4}-\d\d-\d\d)(?:[T ].*)?\s*$", re.ASCII)
NO_VALUE = float("nan")  # equal to no label, and no other object


def plain(cell: Any) -> Any:
    """The cell, if its class is known to run no code of its own; else `NO_VALUE`.

    An object of a subclass of int, float, str or bytes becomes one of these, by their own
    conversion.
    """
    kind = type(cell)
    if id(kind) in _PLAIN_IDS:
        return cell
    for base, converted in _BASES:
        if issubclass(kind, base):
            return converted(cell)
    if kind is fractions.Fraction:
        parts = (getattr(cell, "numerator", None), getattr(cell, "denominator", None))
        return cell if all(type(part) is int for part in parts) else NO_VALUE
    return NO_VALUE


def objects(values: Sequence[object]) -> np.ndarray:
    """Object array of values; their own code does not run."""
    out = np.empty(len(values), object)
    for i, item in enumerate(values):
        out[i] = item
    return out


def number(cell: Any) -> float:
    """A cell as a float; NaN, if it is no real number."""
    cell = plain(cell)
    try:
        if isinstance(cell, complex | np.complexfloating):
            return float(cell.real) if cell.imag == 0 else NO_VALUE
        return NO_VALUE if isinstance(cell, np.datetime64 | np.timedelta64) else float(cell)
    except Exception:  # any error at all would tell that the record is there
        return NO_VALUE


def day(cell: Any) -> float:
    """Days of a date since 1970-01-01; its time is left out.

    A date, a text like "2024-02-29" or "2024-02-29 10:00", or a number, which is such days already.
    NaN for anything else.
    """
    try:
        if issubclass(type(cell), datetime.date):  # by its own method: a subclass runs no code
            ordinal = datetime.date.toordinal(cell)
            return float(ordinal - _FIRST.toordinal()) if ordinal > 1 else NO_VALUE  # 1: NaT
        cell = plain(cell)
        if isinstance(cell, np.datetime64):
            return float(days(np.array([cell]))[0])
        if isinstance(cell, str):
            date = _DATE.match(cell)
            return NO_VALUE if date is None else day(datetime.date.fromisoformat(date[1]))
    except Exception:  # any error at all would tell that the record is there
        return NO_VALUE
    return number(cell)


def days(dates: np.ndarray) -> np.ndarray:
    """Days since 1970-01-01 of an array of ``datetime64``; times of a day are left out."""
    whole = dates.astype("datetime64[D]")
    return np.where(np.isnat(whole), np.nan, whole.astype(np.int64).astype(np.float64))


def parsed(X: np.ndarray) -> np.ndarray:
    """Float array of the cells of an array; cells that are no numbers are NaN."""
    # Cell by cell, always: NumPy converts some kinds (dates) in whole arrays but not by themselves,
    # so that a fallback for arrays with a bad cell would let that cell change all others.
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
    ):  # of a longdouble that is too large for a float
        warnings.simplefilter("error")
        return np.frompyfunc(number, 1, 1)(legible(X).astype(object)).astype(np.float64)


def legible(X: np.ndarray) -> np.ndarray:
    """The array; cells of text that hold no characters, on which NumPy fails, are made empty."""
    if X.dtype.kind != "U":
        return X
    points = np.ascontiguousarray(X).view(np.dtype(np.uint32).newbyteorder(X.dtype.byteorder))
    return np.where((points.reshape(*X.shape, -1) > sys.maxunicode).any(axis=-1), "", X)


def as_category(cell: object, like: Value) -> object:
    """A cell as a value of the kind of `like`: text as it is, or read as a number or a Boolean."""
    cell = plain(cell)
    if isinstance(like, str) or not isinstance(cell, str):
        return cell
    if isinstance(like, bool):
        return {"true": True, "false": False}.get(cell.strip().lower())
    return number(cell)


def of_kind(values: np.ndarray, kind: str | None) -> np.ndarray:
    """Numbers, those of another kind than a column's replaced by NaN, each by itself."""
    if kind not in ("integer", "count"):
        return values
    with np.errstate(all="ignore"):
        right = (
            np.isfinite(values)
            & (np.rint(values) == values)
            & ((kind == "integer") | (values >= 0))
        )
    return np.where(right, values, np.nan)
