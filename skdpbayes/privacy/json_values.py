"""Values of JSON's types, which reports are made of."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn


def positive(value: Any, name: str) -> float:
    """Return `value` as a finite float above 0, or raise ValueError."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0.0 < float(value) < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}.")
    return float(value)


def texts(values: Iterable[str], name: str) -> tuple[str, ...]:
    """Return `values` as a tuple of str, or raise ValueError if it is a str itself."""
    if isinstance(values, str):
        raise ValueError(f"{name} must be a sequence of str, got the str {values!r}.")
    return tuple(str(value) for value in values)


def pure(value: object, name: str) -> Any:
    """Return `value` rebuilt from JSON's types, or raise ValueError.

    NumPy scalars and arrays are converted.
    """

    def refuse(own: object) -> NoReturn:
        raise ValueError(f"{name} must be made of numbers, strings, lists and dicts, got {own!r}.")

    return _rebuilt(value, refuse, lambda array: array.tolist())


def told(value: object) -> Any:
    """Return `value` in JSON's types, with a text for what they have no name for, such as dates."""

    def in_text(own: object) -> list[Any] | str:
        if isinstance(own, Iterable) and not isinstance(own, bytes):
            return [told(item) for item in own]
        return str(own)

    def listed(array: Any) -> Any:  # nanoseconds would be numbers
        of_dates = str(getattr(array, "dtype", "")).startswith(("datetime64", "timedelta64"))
        return (array.astype(str) if of_dates else array).tolist()

    return _rebuilt(value, in_text, listed)


def _rebuilt(value: Any, other: Callable[[object], Any], listed: Callable[[Any], Any]) -> Any:
    """`value` in JSON's types: `listed` makes lists of arrays, and `other` is for all else."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _rebuilt(item, other, listed) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return _rebuilt(listed(value), other, listed)
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [_rebuilt(item, other, listed) for item in value]
    return other(value)


def finite(value: Any) -> Any:
    """Return JSON's types with infinities and NaN, which strict JSON does not have, as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def in_words(value: Any) -> str:
    """Return values for readers, such as ``age (kind number, bounds [18, 100])`` for a column."""
    if isinstance(value, Mapping):
        title = value.get("name") if isinstance(value.get("name"), str) else None
        own = {key: item for key, item in value.items() if title is None or key != "name"}
        inside = ", ".join(f"{key} {in_words(item)}" for key, item in own.items())
        return f"({inside})" if title is None else f"{title} ({inside})"
    if hasattr(value, "tolist"):
        return in_words(value.tolist())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(in_words, value))}]"
    if isinstance(value, str) and set(value) & set(",()[]"):
        return repr(value)
    return f"{value:.15g}" if isinstance(value, float) else str(value)
