"""Batches and noise of a run, drawn ahead: they do not depend on any record.

They are drawn outside of the compiled loop, by the secret keys' stream cipher and integer arithmetic, for as many steps
at a time as memory allows. The loop gets arrays whose shapes do not depend on the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from skdpbayes.privacy.lattice import integer_noise
from skdpbayes.privacy.random import Stream

_NOISE, _INDICES, _STEPS = 2**18, 2**17, 2**12  # most values that are drawn at a time, and steps


class Draw(NamedTuple):
    """Batch and noise of one step; of `Draws` in the compiled loop."""

    indices: Any
    starts: Any
    full: Any
    noise: Any


class Draws(NamedTuple):
    """Batches and noise of consecutive steps of one chain.

    Attributes
    ----------
    first, stop : int
        Steps.
    indices : int32 array
        Sampled records in increasing order, of one step after the other.
    starts : int array of shape (n, n_groups + 1)
        Where in `indices` the part of a step begins that belongs to each group of records, and where the last one
        ends. Of full batches, the records themselves.
    full : bool
        Whether each record is in each batch.
    noise : array of shape (n, width)
        Integers of standard deviation ``Mechanism.noise_std``, or for idealised arithmetic standard normal numbers. A
        release takes the first that it needs.
    """

    first: Any
    stop: Any
    indices: Any
    starts: Any
    full: Any
    noise: Any

    def at(self, step) -> Draw:
        """Of one step."""
        i = step - self.first
        return Draw(self.indices, self.starts[i], self.full, self.noise[i])


def poisson_sample(stream: Stream, rate: float, log_survival: float, length: int):
    """Elements of ``range(length)``, each chosen independently; in increasing order.

    Gaps between chosen elements are independent Geometric variables, so a sample costs as much as it has elements.
    A gap beyond ``8/q`` is cut there without choosing the element it lands on, and drawing goes on: by memorylessness
    that is the same law, and it keeps the 53-bit uniform away from its tail, where its grid would distort the chance
    of being chosen.

    Parameters
    ----------
    stream : Stream
    rate : float
        Below one.
    log_survival : float
        Logarithm of the probability not to be chosen.
    length : int
    """
    last, parts, longest = -1, [np.zeros(0, np.int64)], math.ceil(8 / rate)
    while last < length - 1:
        expected = (length - 1 - last) * rate
        bits = stream.integers(np.uint64, int(expected + 6 * math.sqrt(expected)) + 64) >> np.uint64(11)
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
    rate, log_survival : float
        As `poisson_sample`'s.
    bounds : int array of shape (n_groups + 1,)
        Where groups of records begin, and the number of records.
    stride : int
        At least the number of records. Steps are ranges of so many elements, laid end to end.
    """

    def __init__(self, key, rate, log_survival, bounds, stride):
        self._stream, self._rate, self._log_survival = Stream(key), rate, log_survival
        self._bounds, self._stride = np.asarray(bounds, np.int64), int(stride)
        self.capacity = max(_INDICES, self._stride)

    def most_steps(self):
        """Steps whose samples fit into `capacity` (but for a chance of less than 1e-30)."""
        if self._rate == 1:
            return _STEPS
        root = math.sqrt(36 + self.capacity - 100) - 6  # of the m with m + 12 sqrt(m) + 100 = capacity
        return max(1, min(_STEPS, int(root**2 / (self._rate * self._stride))))

    def draw(self, steps):
        """`indices` and `starts` of some steps."""
        if self._rate == 1:
            return np.zeros(self.capacity, np.int32), np.tile(self._bounds, (steps, 1))
        chosen = poisson_sample(self._stream, self._rate, self._log_survival, steps * self._stride)
        record = chosen % self._stride
        keep = record < self._bounds[-1]
        chosen, record = chosen[keep], record[keep]
        if len(record) > self.capacity:
            raise RuntimeError("More records were sampled than fit into memory, which has a chance below 1e-30.")
        starts = np.searchsorted(chosen, np.arange(steps)[:, None] * self._stride + self._bounds)
        return np.pad(record.astype(np.int32), (0, self.capacity - len(record))), starts


class NoiseSource:
    """Noise of one step after the other.

    Parameters
    ----------
    key : bytes
    levels : int or None
        Of `integer_noise`; None asks for standard normal numbers in single precision, by a generator that is fast
        and not cryptographic.
    """

    def __init__(self, key, levels):
        if levels is None:
            source = np.random.Generator(np.random.SFC64(list(key)))
            self._noise: Callable[[int], np.ndarray] = lambda size: np.asarray(source.standard_normal(size, np.float32))
        else:
            stream = Stream(key)
            self._noise = lambda size: integer_noise(stream, size, levels)

    def draw(self, sizes, width):
        """Array of shape (len(sizes), width), row i of which has ``sizes[i]`` noise variables and then zeros."""
        flat = self._noise(int(np.sum(sizes)))
        out = np.zeros((len(sizes), width), flat.dtype)
        out[np.arange(width) < np.asarray(sizes)[:, None]] = flat
        return out


def draws_of_chain(sampling_key, noise_key, spec, sizes, bounds, stride) -> Iterator[Draws]:
    """Everything that one chain of a run needs of chance, some steps at a time.

    Parameters
    ----------
    sampling_key, noise_key : bytes
    spec : MechanismSpec
    sizes : int array of shape (n_steps,)
        Number of values in each step's release.
    bounds, stride
        As `Sampler`'s.
    """
    sampler = Sampler(sampling_key, spec.sampling_rate, spec.log_survival, bounds, stride)
    source = NoiseSource(noise_key, spec.levels)
    width = int(np.max(sizes, initial=1))
    rows = min(_STEPS, max(1, _NOISE // width))
    most = min(rows, sampler.most_steps())
    for first in range(0, spec.n_steps, most):
        stop = min(first + most, spec.n_steps)
        indices, starts = sampler.draw(stop - first)
        noise = source.draw(sizes[first:stop], width)
        unused = ((0, rows - len(noise)), (0, 0))
        full = np.bool_(spec.sampling_rate == 1)
        yield Draws(np.int32(first), np.int32(stop), indices, np.pad(starts, unused), full, np.pad(noise, unused))
