"""Batches and noise of a run, drawn ahead: they depend on no record.

They are drawn outside the compiled loop, by the secret keys' stream cipher and integer arithmetic,
for as many steps at a time as memory allows. The loop gets arrays whose shapes do not depend on the
number of steps. An accelerator draws the noise itself, the same integers (`on_device`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

from skdpbayes.mechanism.integer_noise import LEVELS, WORDS, integer_noise, undrawn
from skdpbayes.mechanism.keys import Blocks, Stream
from skdpbayes.mechanism.on_device import DeviceNoise
from skdpbayes.mechanism.spec import MechanismSpec

_MOST_NOISE, _MOST_STEPS = 2**18, 2**9  # that are drawn at a time
_HITS = 2**16  # records that are sampled in a window or in one of its blocks, about
_ROOM = _HITS + 2**13  # for them: 32 standard deviations more
_AT_ONCE = 2**13  # noise variables that are made together, so that their bits stay in cache
_IN_A_THREAD = 2**14  # the same where threads wait for Python's lock in between
_LONG = 2**16  # noise variables of a step for which threads pay

# Relative margin of the sampler's rate below the rate that is charged (`poisson_sample`).
_RATE_MARGIN = 2.0**-20


class Draw(NamedTuple):
    """Batch and noise of one step; of `Draws` in the compiled loop."""

    indices: jax.Array
    starts: jax.Array
    noise: jax.Array | DeviceNoise


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
    noise : array of shape (n, width), or DeviceNoise
        Integers of standard deviation ``Mechanism.noise_std``, or for idealised arithmetic standard
        normal numbers. A release takes the first that it needs; those that were not drawn are
        `undrawn`, and make it not a number.
    """

    first: jax.Array
    stop: jax.Array
    indices: jax.Array
    starts: jax.Array
    noise: jax.Array | DeviceNoise

    def at(self, step: jax.Array) -> Draw:
        """Of one step."""
        return Draw(self.indices, self.starts[step - self.first], noise_at(self, step))


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
    last, parts, longest = -1, [], math.ceil(4 / rate)
    while last < length - 1:
        expected = (length - 1 - last) * rate
        bits = stream.integers(np.uint64, int(expected + 6 * math.sqrt(expected)) + 64)
        gaps = (bits >> np.uint64(11)).astype(np.float64)  # in place from here on: it is faster
        gaps += 1
        gaps *= 2.0**-53  # in (0, 1]: the logarithm is finite
        np.log(gaps, out=gaps)
        gaps /= log_survival
        np.floor(gaps, out=gaps)
        gaps += 1
        cut = gaps > longest
        np.minimum(gaps, longest, out=gaps)
        places = gaps.astype(np.int64)
        places[0] += last
        np.cumsum(places, out=places)
        last = int(places[-1])
        parts.append(places[~cut] if cut.any() else places)
    chosen = _joined(parts)
    return chosen[: np.searchsorted(chosen, length)]


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Places in one array, without a copy if there is but one part."""
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


class Sampler:
    """Poisson samples of records, of one window of steps after the other.

    Records are cut into blocks. Which records of a block are sampled in a window depends on the key
    and the places of both alone, so that whoever has a block can sample it, whatever others have,
    and a window can be sampled again. Where one block holds all records, a window has many steps,
    else one.

    Parameters
    ----------
    key : bytes
    rate : float
    stride : int
        At least the number of records: steps of a window are ranges of so many elements, laid end
        to end.
    """

    def __init__(self, key: bytes, rate: float, stride: int) -> None:
        self._key, self.rate, self.stride = key, rate, int(stride)
        self.hits = max(_HITS, math.ceil(rate * stride))  # in a window, about
        self.block = 1 << max(0, math.ceil(math.log2(_HITS / rate)))
        most = _MOST_STEPS if rate == 1 else int(_HITS / (rate * self.stride))
        self.window = min(_MOST_STEPS, max(1, most))

    def sample(self, step: int, n_steps: int, first: int, stop: int) -> np.ndarray:
        """Which records from `first` to `stop` are in some steps of a window.

        Returns
        -------
        places : int64 array
            ``i * stride + record`` for the i-th of these steps, in increasing order.
        """
        window, before = divmod(step, self.window)
        if before + n_steps > self.window:
            raise ValueError(f"{n_steps} steps from {step} on are not of one window.")
        n_steps, parts = before + n_steps, []
        for block in range(first // self.block, -(-stop // self.block)):
            # A window has several steps only where there is but one block.
            low = block * self.block
            length = min(self.block, n_steps * self.stride - low)
            stream = Stream(self._key, window << 32 | block)
            part = poisson_sample(stream, self.rate, length)
            part += low - before * self.stride
            parts.append(part)
        places = _joined(parts)
        record = self.record(places)
        inside = record < stop
        if first > 0:
            inside &= record >= first
        if before > 0:
            inside &= places >= 0
        return places[inside]

    def record(self, places: np.ndarray) -> np.ndarray:
        """Which record each place is of."""
        # Faster than the remainder.
        record: np.ndarray = places - places // self.stride * self.stride
        return record

    def starts(self, places: np.ndarray, steps: int, bounds: np.ndarray) -> np.ndarray:
        """Where, in a sample, each step and each group of records begins; and where steps end."""
        edges = np.arange(steps)[:, None] * self.stride + bounds
        starts: np.ndarray = np.searchsorted(places, edges)
        return starts


def noise_of_steps(key: bytes, levels: int | None, first: int, sizes: Iterable[int]) -> np.ndarray:
    """Noise variables of consecutive steps, one after the other.

    Parameters
    ----------
    key : bytes
    levels : int or None
        Of `integer_noise`; None asks for standard normal numbers in single precision, by a
        generator that is fast and not cryptographic.
    first : int
        The first of these steps.
    sizes : iterable of int
        Number of variables of each.

    Notes
    -----
    Each step has a lane of its own of the key's cipher, and each variable a block of it: integer
    noise does not depend on what it is drawn with. Fast noise does.
    """
    sizes = [int(size) for size in sizes]
    if levels is None:
        fast = np.random.Generator(np.random.SFC64([*key, first]))
        return np.asarray(fast.standard_normal(sum(sizes), np.float32))
    pieces = [
        (step, start, min(_LONG, size - start))
        for step, size in enumerate(sizes, first)
        for start in range(0, size, _LONG)
    ]
    noise = np.empty(sum(sizes), np.int64)
    if max(sizes, default=0) <= _LONG or (cores := _cores()) == 1:
        _integers(key, levels, pieces, noise, _AT_ONCE)
        return noise
    parts = np.split(noise, np.cumsum([number for *_, number in pieces])[:-1])

    def draw(piece: tuple[int, int, int], out: np.ndarray) -> None:
        _integers(key, levels, [piece], out, _IN_A_THREAD)

    with ThreadPoolExecutor(cores) as threads:  # ciphers and tables release Python's lock
        list(threads.map(draw, pieces, parts))
    return noise


def _cores() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _integers(
    key: bytes,
    levels: int,
    pieces: Sequence[tuple[int, int, int]],
    noise: np.ndarray,
    at_once: int,
) -> None:
    """Write noise variables: of each piece a step, the first of them there, and how many."""
    blocks, words = Blocks(key), np.empty((min(at_once, len(noise)), WORDS), np.uint64)
    made, filled = 0, 0
    for step, start, left in pieces:
        blocks.begin(step, start)
        while left:
            some = min(left, len(words) - filled)
            blocks.fill(words[filled : filled + some])
            left, filled = left - some, filled + some
            if filled == len(words) or made + filled == len(noise):
                noise[made : made + filled] = integer_noise(words[:filled], levels)
                made, filled = made + filled, 0


@cache
def check_device(device: jax.Device) -> None:
    """Compare a thousand integers that a device draws with the host's, once in a process.

    It does not see what happens seldom: ties with a threshold, and releases of other sizes where
    these have other programs (`by_operations`).

    Raises
    ------
    RuntimeError
        If they differ: its compiler must not be trusted with the noise.
    """
    key, size = bytes(range(32)), 1000
    with jax.enable_x64(True), jax.default_device(device):
        values = jax.jit(lambda noise: noise.values(size))
        for levels in range(1, LEVELS + 1):
            drawn = values(DeviceNoise.of(key, levels).at(1, 2))
            if not np.array_equal(drawn, noise_of_steps(key, levels, 1, [size])):
                raise RuntimeError(
                    f"{device} draws other noise than its host: no fit is run on it. Run fits on "
                    "the processor, jax.config.update('jax_platforms', 'cpu'), and report it."
                )


class Window(NamedTuple):
    """Consecutive steps that are drawn together.

    Attributes
    ----------
    first, stop : int
        Steps.
    noise : array of shape (n, width), or DeviceNoise
        As in `Draws`.
    """

    first: int
    stop: int
    noise: np.ndarray | DeviceNoise


def noise_at(drawn: Draws | Window, step: Any) -> Any:
    """Noise of a step."""
    noise = drawn.noise
    if isinstance(noise, DeviceNoise):
        return noise.at(step, drawn.stop)
    return noise[step - drawn.first]


def windows_of_chain(
    noise_key: bytes,
    spec: MechanismSpec,
    sizes: np.ndarray,
    sampler: Sampler,
    first: int = 0,
    *,
    padded: bool = True,
    on_device: bool = False,
) -> Iterator[Window]:
    """Windows of a chain, from the one on that has the step `first`.

    A window is the same whenever it is drawn: its length depends on public numbers alone.

    Parameters
    ----------
    noise_key : bytes
    spec : MechanismSpec
    sizes : int array of shape (n_steps,)
        Number of values in each step's release.
    sampler : Sampler
    first : int
    padded : bool
        Whether all windows of all runs have the same shape.
    on_device : bool
        Whether noise is drawn there.
    """
    width = int(np.max(sizes, initial=1))
    most = _MOST_STEPS if on_device else min(_MOST_STEPS, max(1, _MOST_NOISE // width))
    rows = min(sampler.window, most)
    of_device = jax.device_put(DeviceNoise.of(noise_key, spec.levels)) if on_device else None
    of_sampler = range(0, spec.n_steps, sampler.window)
    edges = [low for own in of_sampler for low in range(own, own + sampler.window, rows)]
    for start, stop in pairwise([*(low for low in edges if low < spec.n_steps), spec.n_steps]):
        if stop <= first:
            continue
        if of_device is not None:
            yield Window(start, stop, of_device)
            continue
        needed = np.asarray(sizes[start:stop])
        values = noise_of_steps(noise_key, spec.levels, start, needed)
        length = most if padded else stop - start
        if stop - start == length and (needed == width).all():
            noise = values.reshape(length, width)
        else:
            noise = np.full((length, width), undrawn(values.dtype), values.dtype)
            noise[: stop - start][np.arange(width) < needed[:, None]] = values
        yield Window(start, stop, noise)


def draws_of_chain(
    sampling_key: bytes,
    noise_key: bytes,
    spec: MechanismSpec,
    sizes: np.ndarray,
    bounds: Sequence[int],
    stride: int,
    first: int = 0,
    *,
    on_device: bool = False,
) -> Iterator[Draws]:
    """Batches and noise of one chain, some steps at a time, of records that are in memory.

    Parameters
    ----------
    sampling_key, noise_key : bytes
    spec : MechanismSpec
    sizes : int array of shape (n_steps,)
        Number of values in each step's release.
    bounds : int array of shape (n_groups + 1,)
        Where groups of records begin, and the number of records.
    stride : int
        As `Sampler`'s.
    first : int
        Windows before the one that has this step are left out.
    on_device : bool
        As of `windows_of_chain`.
    """
    sampler = Sampler(sampling_key, spec.sampling_rate, stride)
    for window in windows_of_chain(noise_key, spec, sizes, sampler, first, on_device=on_device):
        yield resident(sampler, window, np.asarray(bounds, np.int64))


def resident(sampler: Sampler, window: Window, bounds: np.ndarray) -> Draws:
    """Batches and noise of a window, of records in memory from ``bounds[0]`` on.

    Indices count from there.
    """
    steps, low = window.stop - window.first, int(bounds[0])
    if sampler.rate == 1:
        indices = np.arange(room(sampler), dtype=np.int32)
        starts = np.tile(bounds - low, (steps, 1))
    else:
        places = sampler.sample(window.first, steps, low, int(bounds[-1]))
        starts = sampler.starts(places, steps, bounds)
        indices = np.zeros(room(sampler, len(places)), np.int32)
        indices[: len(places)] = sampler.record(places) - low
    starts = np.pad(starts, ((0, rows_of(window) - steps), (0, 0)))
    return drawn(window, indices, starts, window.noise)


def rows_of(window: Window) -> int:
    """Rows for the steps of a window: the same for all but the windows of unpadded noise."""
    return _MOST_STEPS if isinstance(window.noise, DeviceNoise) else len(window.noise)


def drawn(window: Window, *arrays: Any) -> Draws:
    """Draws of a window: `arrays` are of NumPy until the compiled loop gets them."""
    of_steps: tuple[Any, Any] = np.int32(window.first), np.int32(window.stop)
    return Draws(*of_steps, *arrays)


def largest_batch(expected: float) -> float:
    """Number of records that nearly no batch exceeds: eight standard deviations more."""
    return expected + 8 * math.sqrt(expected)


def room(sampler: Sampler, size: int = 0) -> int:
    """Length of an array of indices: one of few, so that few programs are compiled."""
    if sampler.rate == 1:
        return max(_ROOM, sampler.stride)
    most, length = max(size, largest_batch(sampler.rate * sampler.stride)), _ROOM
    while length < most:
        length *= 4
    return length
