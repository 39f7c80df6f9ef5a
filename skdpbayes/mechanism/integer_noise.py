"""Integer noise: an exact discrete normal variable, from random bytes, tables and integer sums.

A normal variable in floating point takes the values that its generator can produce and no others,
and which values a noisy sum can take then tells what was summed (Mironov 2012). Here nothing is
rounded. A base variable has the discrete normal law of parameter `_BASE` on the integers, drawn
from a table whose entries hold 128 bits (Walker's alias method: one entry, one comparison). Several
of them, weighted by powers of `_RADIX`,

    x = k_0 + R k_1 + R^2 k_2 + R^3 k_3,

have the discrete normal law of parameter `noise_std` up to a relative error below 1e-33, because
the base is two radices wide (by Poisson's summation formula; Micciancio and Walter 2017 use the
same convolution). `docs/arithmetic.md` has the proof, and what all errors together add to epsilon
and delta.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

LEVELS = 4
"""Most base variables in a noise variable."""

MOST_UNITS = 2.0**43
"""Most grid steps in a clipping norm: the sum over a chunk then is exact in double precision."""

_RADIX, _BASE = 2**10, 2**11
_ENTRIES = 2**16  # of the table: 16 standard deviations on either side
_BITS = 128  # a column's share of the mass is 2^-16, told in units of 2^-128
_AT_ONCE = 2**14  # variables drawn at a time, so that they stay in cache


class _Table(NamedTuple):
    """Columns of the alias method: `below` the threshold, of 64 and 48 bits, a column stands for itself."""

    high: np.ndarray
    low: np.ndarray
    alias: np.ndarray


def masses():
    """Mass of each entry of the table, as integers that sum to ``2**128``."""
    unit, half = 2**200, _ENTRIES // 2
    step = _fixed_exp(-1 / _BASE**2, unit)  # exact arguments: powers of two
    ratio, value, weights = _fixed_exp(-0.5 / _BASE**2, unit), unit, [unit]
    for _ in range(half):
        value, ratio = value * ratio // unit, ratio * step // unit
        weights.append(value)
    weights = weights[half:0:-1] + weights[:half]  # from -half to half - 1
    total = sum(weights)
    out = [(weight << _BITS) // total for weight in weights]
    out[half] += (1 << _BITS) - sum(out)
    return out


def _fixed_exp(x, unit):
    """exp(x) in units of 1/unit, for a small x that is exact in floating point."""
    numerator, denominator = x.as_integer_ratio()
    term = total = unit
    for k in range(1, 40):
        term = term * numerator // (denominator * k)
        total += term
    return total


@cache
def _table():
    capacity = (1 << _BITS) // _ENTRIES
    mass, alias = masses(), np.arange(_ENTRIES)
    small = [i for i, m in enumerate(mass) if m < capacity]
    large = [i for i, m in enumerate(mass) if m >= capacity]
    while small and large:
        one, other = small.pop(), large[-1]
        alias[one] = other
        mass[other] -= capacity - mass[one]
        if mass[other] < capacity:
            small.append(large.pop())
    thresholds = [
        min(m, capacity - 1) if alias[i] != i else 0 for i, m in enumerate(mass)
    ]  # else either is the same
    shift = _BITS - 16 - 64
    high = np.array([t >> shift for t in thresholds], np.uint64)
    low = np.array([t & (2**shift - 1) for t in thresholds], np.uint64)
    return _Table(high, low, alias - _ENTRIES // 2)


def noise_std(levels: int) -> float:
    """Standard deviation of the noise: a little above ``_BASE * _RADIX ** (levels - 1)``."""
    return _BASE * math.sqrt(sum(_RADIX ** (2 * i) for i in range(levels)))


def levels_for(noise_multiplier: float) -> int:
    """Base variables to take, as many as leave at most `MOST_UNITS` in a clipping norm."""
    levels = LEVELS
    while levels > 1 and noise_std(levels) > MOST_UNITS * noise_multiplier:
        levels -= 1
    return levels


MOST_VALUES = 2**32
"""Values that the releases of one fit may have in all: `overhead` counts so many."""


def overhead(levels: int, epsilon: float) -> tuple[float, float]:
    """Most that finite tables and the grid add to epsilon and delta, over `MOST_VALUES` values (`docs/arithmetic.md`).

    Parameters
    ----------
    levels : int
        Of `integer_noise`.
    epsilon : float
        Of the same steps with real-valued noise.
    """
    largest = 17.0  # in standard deviations; a value further out cannot be drawn
    ratio = (
        2 * (largest**2 + 1) / (24 * noise_std(levels) ** 2)
    )  # discrete to rounded normal, twice
    distance = (
        4 * levels * math.exp(-8 * math.pi**2) + levels * 2.0**-112
    )  # tables, tails and the convolution
    grows = 1 + math.exp(min(epsilon, 700.0))
    return MOST_VALUES * ratio, MOST_VALUES * distance * grows


def integer_noise(stream, size: int, levels: int):
    """Independent discrete normal variables of standard deviation `noise_std(levels)`.

    Parameters
    ----------
    stream : Stream
        Where random bytes come from.
    size, levels : int

    Returns
    -------
    noise : int64 array of shape (size,)
    """
    table, out = _table(), np.zeros(size, np.int64)
    for first in range(0, size, _AT_ONCE):
        part = out[first : first + _AT_ONCE]
        shape = (levels, len(part))
        high, column = (
            stream.integers(np.uint64, shape),
            stream.integers(np.uint16, shape).astype(np.intp),
        )
        threshold = table.high[column]
        own = high < threshold
        ties = np.nonzero(high == threshold)
        if len(ties[0]):  # once in 2^64: the other 48 bits decide
            own[ties] = (stream.integers(np.uint64, len(ties[0])) >> np.uint64(16)) < table.low[
                column[ties]
            ]
        for values in np.where(own, column - _ENTRIES // 2, table.alias[column]):
            part *= _RADIX
            part += values
    return out
