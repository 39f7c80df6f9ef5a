"""Checks of parameters, with errors that name the parameter, its value and its range."""

from __future__ import annotations

import math
import numbers

import numpy as np


def check_number(
    name, value, low, high=math.inf, *, none=False, integral=False, closed=False, open_above=False
):
    """Raise a `ValueError` that names parameter, value and range unless `value` lies in ``(low, high]``.

    Parameters
    ----------
    closed, open_above : bool
        Whether `low` itself is allowed, and `high` is not.
    """
    kind = numbers.Integral if integral else numbers.Real
    if none and value is None:
        return
    inside = (
        isinstance(value, kind) and not isinstance(value, (bool, np.bool_)) and low <= value <= high
    )
    if not inside or (value == low and not closed) or (value == high and open_above):
        wanted = "an integer" if integral else "a number"
        interval = f"{'[' if closed else '('}{low}, {high}{')' if open_above else ']'}"
        raise ValueError(
            f"{name} must be {wanted} in {interval}{' or None' if none else ''}, got {value!r}."
        )


def check_choice(name, value, choices):
    """Raise a `ValueError` unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
