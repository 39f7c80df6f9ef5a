"""Integer noise: an exact discrete normal variable, from random bytes, tables and integer sums.

A normal variable in floating point takes the values that its generator can produce and no others,
and which values a noisy sum can take then tells what was summed (Mironov 2012). Here nothing is
rounded: `integer_noise` has the claim and the proof.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

LEVELS = 4
"""Most base variables in a noise variable."""

WORDS = 2 * LEVELS
"""Words of 64 bits for a noise variable: a block of the stream cipher."""

MOST_UNITS = 2.0**43
"""Most grid steps in a clipping norm: the sum over a chunk then is exact in double precision."""

MOST_VALUES = 2**32
"""Values that the releases of one fit may have in all: `overhead` counts so many."""

RADIX, _BASE = 2**10, 2**11
ENTRIES = 2**16  # of the table: 16 standard deviations on either side
_BITS = 128  # a column's share of the mass is 2^-16, told in units of 2^-128
_LOWER, _UPPER = (0, 3) if sys.byteorder == "little" else (3, 0)  # 16 bits of a word of 64


def undrawn(dtype: np.dtype[Any]) -> int | float:
    """Value in the place of noise that was not drawn: less than any noise."""
    return np.iinfo(dtype).min if np.issubdtype(dtype, np.integer) else -math.inf


class Table(NamedTuple):
    """Columns of the alias method.

    A column stands for itself below its threshold (of 64 and 48 bits), else for its alias.
    """

    high: Any
    low: Any
    alias: Any


def masses() -> list[int]:
    """Mass of each entry of the table, as integers that sum to ``2**128``."""
    unit, half = 2**200, ENTRIES // 2
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


def _fixed_exp(x: float, unit: int) -> int:
    """exp(x) in units of 1/unit, for a small x that is exact in floating point."""
    numerator, denominator = x.as_integer_ratio()
    term = total = unit
    for k in range(1, 40):
        term = term * numerator // (denominator * k)
        total += term
    return total


@cache
def table() -> Table:
    """The table, made once (arrays of shape (2^16,))."""
    capacity = (1 << _BITS) // ENTRIES
    mass, alias = masses(), np.arange(ENTRIES)
    small = [i for i, m in enumerate(mass) if m < capacity]
    large = [i for i, m in enumerate(mass) if m >= capacity]
    while small and large:
        one, other = small.pop(), large[-1]
        alias[one] = other
        mass[other] -= capacity - mass[one]
        if mass[other] < capacity:
            small.append(large.pop())
    # Without an alias either side of the threshold is the same.
    thresholds = [min(m, capacity - 1) if alias[i] != i else 0 for i, m in enumerate(mass)]
    shift = _BITS - 16 - 64
    high = np.array([t >> shift for t in thresholds], np.uint64)
    low = np.array([t & (2**shift - 1) for t in thresholds], np.uint64)
    return Table(high, low, alias - ENTRIES // 2)


def noise_std(levels: int) -> float:
    """Standard deviation of the noise: a little above ``_BASE * RADIX ** (levels - 1)``."""
    return _BASE * math.sqrt(sum(RADIX ** (2 * i) for i in range(levels)))


def levels_for(noise_multiplier: float) -> int:
    """Base variables to take, as many as leave at most `MOST_UNITS` steps in a clipping norm."""
    levels = LEVELS
    while levels > 1 and noise_std(levels) > MOST_UNITS * noise_multiplier:
        levels -= 1
    return levels


def overhead(levels: int, epsilon: float) -> tuple[float, float]:
    """Most that finite tables and the grid add to epsilon and delta.

    Parameters
    ----------
    levels : int
        Of `integer_noise`.
    epsilon : float
        Of the same steps with real-valued noise.

    Returns
    -------
    epsilon, delta : float
        For `MOST_VALUES` values.

    Notes
    -----
    **Formal guarantee.** If the steps with real-valued noise are (e, d)-private, those with integer
    noise and at most `MOST_VALUES` values in all are so with these figures added to e and d.

    *Proof.* A real-valued normal variable of standard deviation S that is rounded after it was
    added to an integer is post-processing of the real-valued mechanism. The discrete law differs
    from the rounded one by a factor within exp(+-eta), ``eta = (z^2 + 1) / (24 S^2)`` at ``z S``,
    and z is at most 17; each of n values enters once for each of two neighbours, which makes ``2 n
    eta``. Tables, tails and the convolution move each law by at most t in total variation, which
    adds ``n t (1 + exp(e))`` to delta (`docs/arithmetic.md`, theorem). QED

    ``tests/mechanism/test_integer_noise.py``: `test_convolutions_are_discrete_normal` compares the
    laws.
    """
    largest = 17.0  # in standard deviations; a value further out cannot be drawn
    ratio = 2 * (largest**2 + 1) / (24 * noise_std(levels) ** 2)
    distance = 4 * levels * math.exp(-8 * math.pi**2) + levels * 2.0**-112
    grows = 1 + math.exp(min(epsilon, 700.0))
    return MOST_VALUES * ratio, MOST_VALUES * distance * grows


def integer_noise(words: np.ndarray, levels: int) -> np.ndarray:
    """Independent discrete normal variables of standard deviation `noise_std(levels)`.

    Parameters
    ----------
    words : uint64 array of shape (n, WORDS)
        Random bits of each variable: two words for each level, one after the other.
    levels : int

    Returns
    -------
    noise : int64 array of shape (n,)

    Notes
    -----
    **Formal guarantee.** The variables are independent, and the law of each is within ``levels *
    (4 exp(-8 pi^2) + 2^-112)``, some 1e-33, in total variation of the discrete normal law of
    parameter `noise_std(levels)`, if the words are uniform, independent and secret.

    *Proof.* A base variable k_j has the discrete normal law of parameter `_BASE`, drawn from a
    table by Walker's alias method: 16 bits choose a column, the 112 others are compared with its
    threshold (the first 16 of them by `_first`, and all where these are equal). The table's masses
    are integers that sum to 2^128, and within 2^-112 of the law in total variation; its 16 standard
    deviations leave out 1e-57. The variables are weighted by
    powers of `RADIX`,

        x = k_0 + R k_1 + R^2 k_2 + R^3 k_3,

    and the law of x is the discrete normal one of parameter `noise_std`, up to a relative error of
    4 exp(-8 pi^2) for each sum, because the base is two radices wide: by Poisson's summation
    formula the sum over ``y`` of ``exp(-(y - c)^2 / (2 tau^2))``, with tau = 2 here, depends on c
    by no more (`docs/arithmetic.md`; Micciancio and Walter 2017 use the same convolution). No
    floating-point number occurs between the random bits and x. QED

    ``tests/mechanism/test_integer_noise.py``: `test_the_table_stands_for_the_masses`,
    `test_masses_are_those_of_the_discrete_normal_law` and `test_levels_are_digits_of_their_own`
    die at another table, law or weight, `test_a_draw_compares_all_bits_of_the_threshold` and
    `test_ties_are_those_of_their_own_variables` if bits of the threshold are dropped.
    """
    parts = words.view(np.uint16).reshape(len(words), WORDS, 4)
    first = parts[:, 0 : 2 * levels : 2, _UPPER].T.copy()
    column = parts[:, 1 : 2 * levels : 2, _LOWER].T.copy()
    found = _first().take(column)
    alias, threshold = found.astype(np.uint16), (found >> np.uint32(16)).astype(np.uint16)
    kept = -(first < threshold).astype(np.uint16)  # all bits, or none
    digits = alias ^ (alias ^ column) & kept
    ties = np.flatnonzero(first == threshold)
    if len(ties):  # once in 2^16: the other bits decide
        level, i = np.divmod(ties, len(words))
        digits.flat[ties] = _digits(words[i, 2 * level], words[i, 2 * level + 1])
    out: np.ndarray = digits[0].astype(np.int64)
    for own in digits[1:]:
        out *= RADIX
        out += own
    out -= ENTRIES // 2 * sum(RADIX**level for level in range(levels))
    return out


def _digits(high: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Base variables, above the least, of 128 bits each: 64; 48 more, and the column."""
    known, column = table(), (rest & np.uint64(ENTRIES - 1)).astype(np.intp)
    below = high < known.high[column]
    below |= (high == known.high[column]) & (rest >> np.uint64(16) < known.low[column])
    digits: np.ndarray = np.where(below, column, known.alias[column] + ENTRIES // 2)
    return digits


@cache
def _first() -> np.ndarray:
    """The upper 16 bits of each threshold and the alias: small enough to stay in cache."""
    known = table()
    alias = (known.alias + ENTRIES // 2).astype(np.uint32)
    first: np.ndarray = (known.high >> np.uint64(48)).astype(np.uint32) << np.uint32(16) | alias
    return first
