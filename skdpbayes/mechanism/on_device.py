"""Noise that an accelerator draws for itself: the integers that the host would have drawn.

Nothing is sent to the device in a round, and releases of millions of values need no memory for
noise that waits. The key is there while the fit runs, as the records are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from skdpbayes.mechanism.integer_noise import ENTRIES, LEVELS, RADIX, table, undrawn

Words: TypeAlias = tuple[jax.Array, ...]
"""Words of 32 bits, of many blocks or of all."""

_CONSTANTS = np.frombuffer(b"expand 32-byte k", np.uint32)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
MANY = 2**16  # blocks for which long kernels pay


def default_device() -> jax.Device:
    """Where JAX puts arrays, and so where rounds run."""
    (device,) = jnp.zeros(()).devices()
    return device


def chacha20(key: jax.Array, counter: jax.Array, nonce: Words) -> Words:
    """Blocks of ChaCha20 (RFC 8439, section 2.3).

    Parameters
    ----------
    key : uint32 array of shape (8,)
    counter : uint32 array of shape (n,)
        Which blocks.
    nonce : three uint32 numbers

    Returns
    -------
    words : 16 uint32 arrays of shape (n,)
    """
    start = (*map(jnp.uint32, _CONSTANTS), *key, counter, *nonce)
    words = _two_rounds(0, start)
    # Kernels exchange words through memory, and a long kernel takes seconds to compile.
    words = jax.lax.fori_loop(0, 8, _two_rounds, words, unroll=4 if counter.size > MANY else 1)
    words = _two_rounds(0, words)
    return tuple(x + y for x, y in zip(words, start, strict=True))


def _two_rounds(_: int, words: Words) -> Words:
    x = list(words)
    for a, b, c, d in (*_COLUMNS, *_DIAGONALS):
        for i, j, k, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[i] = x[i] + x[j]
            mixed = x[k] ^ x[i]
            x[k] = mixed << jnp.uint32(turn) | mixed >> jnp.uint32(32 - turn)
    return tuple(x)


def columns() -> np.ndarray:
    """The table of `integer_noise`: threshold and alias of each column in one row, (2^16, 2)."""
    known = table()
    alias = (known.alias + ENTRIES // 2).astype(np.uint64)
    return np.stack([known.high, known.low << np.uint64(16) | alias], axis=1)


def integer_noise_of(words: Words, levels: jax.Array, known: jax.Array) -> jax.Array:
    """`integer_noise`, on the device.

    Parameters
    ----------
    words : 16 uint32 arrays
        Halves of the words of 64 bits, the lower one first.
    levels : int
        A traced number, for which nothing is compiled anew.
    known : array of shape (2^16, 2)
        `columns`.
    """
    pairs = zip(words[::2], words[1::2], strict=True)
    wide = [low.astype(jnp.uint64) | high.astype(jnp.uint64) << 32 for low, high in pairs]
    out = jnp.zeros(words[0].shape, jnp.int64)
    for level in range(LEVELS):
        high, rest = wide[2 * level], wide[2 * level + 1]
        column = (rest & jnp.uint64(ENTRIES - 1)).astype(jnp.int32)
        threshold, more = (
            known.at[column, i].get(mode="promise_in_bounds") for i in range(known.shape[1])
        )
        tie = (high == threshold) & (rest >> jnp.uint64(16) < more >> jnp.uint64(16))
        alias = (more & jnp.uint64(ENTRIES - 1)).astype(jnp.int32)
        value = jnp.where((high < threshold) | tie, column, alias) - ENTRIES // 2
        out = jnp.where(level < levels, out * RADIX + value.astype(jnp.int64), out)
    return out


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceNoise:
    """Noise of a chain, drawn where it is added.

    Attributes
    ----------
    key : uint32 array of shape (8,)
        The chain's secret noise key.
    levels : int or None
        Of `integer_noise`; None: standard normal numbers in single precision.
    known : array of shape (2^16, 2), or None
        `columns`.
    step : int
        Current step.
    stop : int
        Steps from here on have no noise: all of it is `undrawn`.
    """

    key: ArrayLike = field(repr=False)
    levels: ArrayLike | None
    known: ArrayLike | None = field(repr=False)
    step: ArrayLike
    stop: ArrayLike

    @classmethod
    def of(cls, key: bytes, levels: int | None) -> DeviceNoise:
        """Noise of a secret key, at step 0."""
        words = np.frombuffer(key, np.uint32)
        if levels is None:
            return cls(words, None, None, np.int32(0), np.int32(1))
        return cls(words, np.int32(levels), columns(), np.int32(0), np.int32(1))

    @property
    def dtype(self) -> np.dtype:
        """Integers or floating-point numbers."""
        return np.dtype(np.float32 if self.levels is None else np.int64)

    def at(self, step: ArrayLike, stop: ArrayLike) -> DeviceNoise:
        """Noise of a step, if it is before `stop`."""
        return replace(self, step=step, stop=stop)

    def values(self, size: int) -> jax.Array:
        """`size` noise variables of this step; the same ones at each call, so call it once.

        Raises
        ------
        TypeError
            If the table has lost bits, as where an array was made without 64 bits.
        """
        key, step = jnp.asarray(self.key), jnp.asarray(self.step).astype(jnp.uint32)
        if self.levels is None:
            # JAX's Threefry, not ours (`mechanism.threefry`), whose branch waits for the host.
            own = jax.random.fold_in(jax.random.wrap_key_data(key[:2], impl="threefry2x32"), step)
            return self._unless_over(jax.random.normal(own, (size,), jnp.float32))
        nothing = jnp.uint32(0)
        words = chacha20(key, jnp.arange(size, dtype=jnp.uint32), (nothing, step, nothing))
        known = jnp.asarray(self.known)
        if known.dtype != jnp.uint64 or key.dtype != jnp.uint32:
            raise TypeError(
                f"The noise's table and key are of {known.dtype} and {key.dtype}: 64 bits are "
                "needed, jax.enable_x64(True)."
            )
        return self._unless_over(integer_noise_of(words, jnp.asarray(self.levels), known))

    def _unless_over(self, noise: jax.Array) -> jax.Array:
        return jnp.where(jnp.asarray(self.step) < self.stop, noise, undrawn(noise.dtype))
