"""Batches and noise of a run, drawn ahead: they depend on no record.

They are drawn outside the compiled loop, by the secret keys' stream cipher and integer arithmetic,
for as many steps at a time as memory allows. The loop gets arrays whose shapes do not depend on the
number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from skdpbayes.mechanism.integer_noise import integer_noise
from skdpbayes.mechanism.keys import Stream
from skdpbayes.mechanism.spec import MechanismSpec

_MOST_NOISE, _MOST_INDICES, _MOST_STEPS = 2**18, 2**17, 2**12  # that are drawn at a time

# Relative margin of the sampler's rate below the rate that is charged (`poisson_sample`).
_RATE_MARGIN = 2.0**-20


def undrawn(dtype: np.dtype[Any]) -> int | float:
    """Value in the place of noise that was not drawn: less than any noise."""
    return np.iinfo(dtype).min if np.issubdtype(dtype, np.integer) else -math.inf


class Draw(NamedTuple):
    """Batch and noise of one step; of `Draws` in the compiled loop."""

    indices: jax.Array
    starts: jax.Array
    noise: jax.Array


class Draws(NamedTuple):
    """Batches and noise of consecutive steps of one chain: NumPy's, traced in the compiled loop.

    Attributes
    ----------
    first, stop : int
        Steps.
    indices : int32 array
        Sampled records in increasing order, of one step after the other.
    starts : int array of shape (n, n_groups + 1)
        Where in `indices` the part of a step begins that belongs to each group of records, and
        where the last one ends. Steps that have all records share theirs.
    noise : array of shape (n, width)
        Integers of standard deviation ``Mechanism.noise_std``, or for idealised arithmetic standard
        normal numbers. A release takes the first that it needs; those that were not drawn are
        `undrawn`, and make it not a number.
    """

    first: jax.Array
    stop: jax.Array
    indices: jax.Array
    starts: jax.Array
    noise: jax.Array

    def at(self, step: jax.Array) -> Draw:
        """Of one step."""
        i = step - self.first
        return Draw(self.indices, self.starts[i], self.noise[i])


def poisson_sample(stream: Stream, rate: float, length: int) -> np.ndarray:
    """Elements of ``range(length)``, each chosen independently; in increasing order.

    Parameters
    ----------
    stream : Stream
    rate : float
        From `LEAST_RATE` to below one. The probability to be chosen is a little smaller.
    length : int

    Returns
    -------
    indices : int64 array
        A sample costs as much as it has elements.

    Notes
    -----
    **Formal guarantee.** Given all other choices, each element is chosen with a probability of at
    most `rate`, if the stream's integers are uniform, independent and secret. A mechanism on the
    sample then is no less private than one of Poisson sampling at `rate`.

    *Proof.* Gaps between chosen elements are independent Geometric variables, ``floor(log u /
    log(1 - p)) + 1`` for a uniform u. A gap beyond ``4 / rate`` is cut there without choosing the
    element it lands on, and drawing goes on: by memorylessness that is the same law. It keeps u,
    which is a multiple of 2^-53, away from its tail, where its grid would distort the chance of
    being chosen: what the grid leaves is a relative error of that chance below 1e-7, given all
    others (`docs/arithmetic.md`). p is below `rate` by a relative margin of 2^-20 > 9e-7, which
    covers it. QED

    ``tests/mechanism/test_draws.py``: `test_gaps_are_geometric` dies at another law and without the
    cut, `test_the_sampler_stays_below_the_rate_that_is_charged` without the margin;
    `test_logarithms_are_as_exact_as_the_proof_takes_them_to_be` checks its figures.
    """
    log_survival = math.log1p(-rate * (1 - _RATE_MARGIN))
    last, parts, longest = -1, [np.zeros(0, np.int64)], math.ceil(4 / rate)
    while last < length - 1:
        expected = (length - 1 - last) * rate
        bits = stream.integers(
            np.uint64, int(expected + 6 * math.sqrt(expected)) + 64
        ) >> np.uint64(11)
        uniform = (bits.astype(np.float64) + 1) * 2.0**-53  # in (0, 1]: its logarithm is finite
        gaps = np.floor(np.log(uniform) / log_survival) + 1
        places = last + np.cumsum(np.minimum(gaps, longest).astype(np.int64))
        parts.append(places[gaps <= longest])
        last = int(places[-1])
    chosen = np.concatenate(parts)
    return chosen[: np.searchsorted(chosen, length)]


class Sampler:
    """Poisson samples of records, of one step after the other.

    Parameters
    ----------
    key : bytes
    rate : float
    bounds : int array of shape (n_groups + 1,)
        Where groups of records begin, and the number of records.
    stride : int
        At least the number of records. Steps are ranges of so many elements, laid end to end.
    """

    def __init__(self, key: bytes, rate: float, bounds: Sequence[int], stride: int) -> None:
        self._stream, self._rate = Stream(key), rate
        self._bounds, self._stride = np.asarray(bounds, np.int64), int(stride)
        self._capacity = max(_MOST_INDICES, self._stride)

    def most_steps(self) -> int:
        """Steps whose samples take half of the room for indices; one always has room."""
        if self._rate == 1:
            return _MOST_STEPS
        return max(1, int(self._capacity / (2 * self._rate * self._stride)))

    def draw(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """`indices` and `starts` of some steps."""
        if self._rate == 1:
            return np.arange(self._capacity, dtype=np.int32), np.tile(self._bounds, (steps, 1))
        chosen = poisson_sample(self._stream, self._rate, steps * self._stride)
        chosen = chosen[chosen % self._stride < self._bounds[-1]]
        starts = np.searchsorted(chosen, np.arange(steps)[:, None] * self._stride + self._bounds)
        indices = np.zeros(self._capacity, np.int32)
        indices[: len(chosen)] = chosen % self._stride
        return indices, starts


def noise_source(key: bytes, levels: int | None) -> Callable[[int], np.ndarray]:
    """Function from a number to as many noise variables, new ones in each call.

    Parameters
    ----------
    key : bytes
    levels : int or None
        Of `integer_noise`; None asks for standard normal numbers in single precision, by a
        generator that is fast and not cryptographic.
    """
    if levels is None:
        fast = np.random.Generator(np.random.SFC64(list(key)))
        return lambda size: np.asarray(fast.standard_normal(size, np.float32))
    stream = Stream(key)
    return lambda size: integer_noise(stream, size, levels)


def draws_of_chain(
    sampling_key: bytes,
    noise_key: bytes,
    spec: MechanismSpec,
    sizes: np.ndarray,
    bounds: Sequence[int],
    stride: int,
) -> Iterator[Draws]:
    """Batches and noise of one chain, some steps at a time.

    Parameters
    ----------
    sampling_key, noise_key : bytes
    spec : MechanismSpec
    sizes : int array of shape (n_steps,)
        Number of values in each step's release.
    bounds, stride
        As `Sampler`'s.
    """
    sampler = Sampler(sampling_key, spec.sampling_rate, bounds, stride)
    noise_of = noise_source(noise_key, spec.levels)
    width = int(np.max(sizes, initial=1))
    rows = min(_MOST_STEPS, max(1, _MOST_NOISE // width))
    most = min(rows, sampler.most_steps())
    for first in range(0, spec.n_steps, most):
        stop = min(first + most, spec.n_steps)
        needed = np.asarray(sizes[first:stop])
        values = noise_of(int(needed.sum()))
        if stop - first == rows and (needed == width).all():
            noise = values.reshape(rows, width)
        else:
            noise = np.full((rows, width), undrawn(values.dtype))
            noise[: stop - first][np.arange(width) < needed[:, None]] = values
        indices, starts = sampler.draw(stop - first)
        starts = np.pad(starts, ((0, rows - len(starts)), (0, 0)))
        drawn: tuple[Any, ...] = (np.int32(first), np.int32(stop), indices, starts, noise)
        yield Draws(*drawn)
