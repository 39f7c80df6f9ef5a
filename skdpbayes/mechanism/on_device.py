"""Noise that an accelerator draws for itself: the integers that the host would have drawn.

Nothing is sent to the device in a round, and releases of millions of values need no memory for
noise that waits. The key is there while the fit runs, as the records are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from skdpbayes.mechanism.integer_noise import ENTRIES, LEVELS, RADIX, table, undrawn
from skdpbayes.pytrees import pytree

Words: TypeAlias = tuple[jax.Array, ...]
"""Words of 32 bits, of many blocks or of all."""

_CONSTANTS = np.frombuffer(b"expand 32-byte k", np.uint32)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
MANY = 2**16  # blocks for which long kernels pay
_IN_A_BLOCK = 256  # variables that a block of a GPU's threads draws


def default_device() -> jax.Device:
    """Where JAX puts arrays, and so where rounds run."""
    (device,) = jnp.zeros(()).devices()
    return device


def chacha20(key: jax.Array | Sequence[jax.Array], counter: jax.Array, nonce: Words) -> Words:
    """Blocks of ChaCha20 (RFC 8439, section 2.3).

    Parameters
    ----------
    key : 8 uint32 numbers
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
    """The table of `integer_noise`, in two parts, (2, 2^16).

    The first has the upper 48 bits of each threshold and the alias of its column, which nearly
    always suffice; the second has the other 64 bits.
    """
    known, low = table(), np.uint64(16)
    alias = (known.alias + ENTRIES // 2).astype(np.uint64)
    return np.stack([known.high >> low << low | alias, known.high << np.uint64(48) | known.low])


def integer_noise_of(
    words: Words, levels: jax.Array, look: Callable[[int, jax.Array], jax.Array]
) -> jax.Array:
    """`integer_noise`, on the device.

    Parameters
    ----------
    words : 16 uint32 arrays
        Halves of the words of 64 bits, the lower one first.
    levels : int
        A traced number, for which nothing is compiled anew.
    look : callable ``(part, column) -> entries``
        Entries of a part of `columns`.
    """
    pairs = zip(words[::2], words[1::2], strict=True)
    half, low, entries = np.uint64(32), np.uint64(16), np.uint64(ENTRIES - 1)
    wide = [down.astype(jnp.uint64) | up.astype(jnp.uint64) << half for down, up in pairs]
    out = jnp.zeros(words[0].shape, jnp.int64)
    for level in range(LEVELS):
        high, rest = wide[2 * level], wide[2 * level + 1]
        column = (rest & entries).astype(jnp.int32)
        known = look(0, column)
        first, threshold = high >> low, known >> low
        tie = first == threshold
        # Without a tie, which happens once in 2^48, all look at the same entry: that costs little.
        more = look(1, jnp.where(tie, column, 0))
        below = (first < threshold) | tie & (high << np.uint64(48) | rest >> low < more)
        value = jnp.where(below, column, (known & entries).astype(jnp.int32)) - ENTRIES // 2
        out = jnp.where(level < levels, out * RADIX + value.astype(jnp.int64), out)
    return out


def by_operations(
    size: int, key: jax.Array, step: jax.Array, levels: jax.Array, known: jax.Array
) -> jax.Array:
    """`size` variables of a step, on any device."""
    nothing = jnp.uint32(0)
    words = chacha20(key, jnp.arange(size, dtype=jnp.uint32), (nothing, step, nothing))
    return integer_noise_of(
        words, levels, lambda part, column: known[part].at[column].get(mode="promise_in_bounds")
    )


def by_kernel(
    size: int,
    key: jax.Array,
    step: jax.Array,
    levels: jax.Array,
    known: jax.Array,
    *,
    interpret: bool = False,
) -> jax.Array:
    """The same variables by one kernel, for GPUs of NVIDIA: words never leave the registers."""
    try:
        from jax.experimental import pallas as pl  # takes a while to import
        from jax.experimental.pallas import triton

        inputs, options = [pl.no_block_spec] * 4, triton.CompilerParams(num_warps=4)
    except (ImportError, AttributeError):  # JAX 0.11 calls Pallas' way to Triton deprecated
        return by_operations(size, key, step, levels, known)

    def kernel(
        key: jax.Ref, step: jax.Ref, levels: jax.Ref, known: jax.Ref, drawn: jax.Ref
    ) -> None:
        counter = pl.program_id(0) * _IN_A_BLOCK + jnp.arange(_IN_A_BLOCK, dtype=jnp.int32)
        nothing = jnp.uint32(0)
        of_key = [key[i] for i in range(8)]
        words = chacha20(of_key, counter.astype(jnp.uint32), (nothing, step[0], nothing))
        drawn[...] = integer_noise_of(words, levels[0], lambda *entry: known[entry])

    blocks = pl.cdiv(size, _IN_A_BLOCK)
    drawn: jax.Array = pl.pallas_call(
        kernel,
        grid=(blocks,),
        in_specs=inputs,
        out_specs=pl.BlockSpec((_IN_A_BLOCK,), lambda i: (i,)),
        out_shape=jax.ShapeDtypeStruct((blocks * _IN_A_BLOCK,), jnp.int64),
        compiler_params=options,
        interpret=interpret,
    )(key, step[None], levels[None], known)
    return drawn[:size]


@pytree
@dataclass(frozen=True)
class DeviceNoise:
    """Noise of a chain, drawn where it is added.

    Attributes
    ----------
    key : uint32 array of shape (8,)
        The chain's secret noise key.
    levels : int or None
        Of `integer_noise`; None: standard normal numbers in single precision.
    known : array of shape (2, 2^16), or None
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
        known = jnp.asarray(self.known)
        if known.dtype != jnp.uint64 or key.dtype != jnp.uint32:
            raise TypeError(
                f"The noise's table and key are of {known.dtype} and {key.dtype}: 64 bits are "
                "needed, jax.enable_x64(True)."
            )
        drawn = jax.lax.platform_dependent(
            *(key, step, jnp.asarray(self.levels), known),
            cuda=partial(by_kernel, size),
            default=partial(by_operations, size),
        )
        return self._unless_over(drawn)

    def _unless_over(self, noise: jax.Array) -> jax.Array:
        return jnp.where(jnp.asarray(self.step) < self.stop, noise, undrawn(noise.dtype))
