"""Checks of parameters, with errors that name the parameter, its value and its range."""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any

import numpy as np

from skdpbayes.cells import Value

_INSIDE = ("skdpbayes.", "sklearn.", "joblib.")


class LongFitWarning(UserWarning):
    """A fit will probably take minutes, by a rough guess from public numbers.

    Examples
    --------
    >>> import warnings
    >>> from skdpbayes import LongFitWarning
    >>> warnings.filterwarnings("ignore", category=LongFitWarning)
    """


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called this package, or scikit-learn's pipelines."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def check_number(
    name: str,
    value: Any,
    low: float,
    high: float = math.inf,
    *,
    none: bool = False,
    integral: bool = False,
    closed: bool = False,
    open_above: bool = False,
) -> None:
    """Raise a `ValueError` with parameter, value and range unless the value is in ``(low, high]``.

    Parameters
    ----------
    closed, open_above : bool
        Whether `low` itself is allowed; whether `high` itself is not.
    """
    kind: Any = numbers.Integral if integral else numbers.Real
    if none and value is None:
        return
    inside = (
        isinstance(value, kind) and not isinstance(value, (bool, np.bool_)) and low <= value <= high
    )
    if not inside or (value == low and not closed) or (value == high and open_above):
        wanted = "an integer" if integral else "a number"
        interval = f"{'[' if closed else '('}{low}, {high}{')' if open_above else ']'}"
        raise ValueError(
            f"{name} must be {wanted} in {interval}{' or None' if none else ''}, got "
            f"{shown(value)}."
        )


def shown(value: object) -> str:
    """A parameter as an error shows it: tables that stand in its place are not printed."""
    plain = isinstance(value, str) or not isinstance(value, Iterable)
    return repr(value) if plain else f"a table or list ({type(value).__name__})"


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise a `ValueError` unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_name(what: str, name: object) -> str:
    """Description of an item of a schema, such as "column 'age'"; its name must be a text."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"Each {what} needs a name, a text that is not empty; got {name!r}.")
    return f"{what} {name!r}"


def check_text(own: str, what: str, value: object) -> None:
    """Raise a `ValueError` unless `value` is a text or None."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{own}: {what} must be a text, got {value!r}.")


def check_finite(own: str, what: str, value: object) -> float:
    """A finite number as a float."""
    try:
        real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
        converted = float(value) if real else math.nan  # type: ignore[arg-type]
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise ValueError(f"{own}: {what} must be finite numbers, got {value!r}.")
    return converted


def check_bounds(own: str, bounds: Any) -> tuple[float, float]:
    """A pair (low, high) of finite numbers in order, as floats."""
    if (
        isinstance(bounds, str | Mapping)
        or not isinstance(bounds, Iterable)
        or len(pair := list(bounds)) != 2
    ):
        raise ValueError(f"{own}: bounds must be a pair (low, high) of numbers, got {bounds!r}.")
    low, high = (check_finite(own, "bounds", end) for end in pair)
    if not low < high or math.isinf(high - low):
        raise ValueError(
            f"{own}: bounds must be (low, high) with low < high, and a finite range, "
            f"got {bounds!r}."
        )
    return low, high


def check_values(own: str, what: str, values: Any, least: int) -> tuple[Value, ...]:
    """Distinct public values: all texts, all numbers or all Booleans."""
    unordered = isinstance(values, str | Mapping | Set)  # a set's order differs between processes
    if unordered or not isinstance(values, Iterable):
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
        check_finite(own, what, value)
    if len(found) < least or len(set(found)) < len(found):
        raise ValueError(
            f"{own}: {what} must be {least} or more different values, got {list(found)}."
        )
    return found
