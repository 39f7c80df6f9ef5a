"""Where keys come from, and what is drawn with them.

Three independent keys drive a fit: sampling, noise and solver. The first two are secrets, of 256
bits, and are used with ChaCha20 (RFC 8439; the implementation is OpenSSL's). The solver key may be
released (replaying a fit from its releases needs it); inside of the compiled loop it drives
Threefry-2x32, JAX's generator, of which nothing secret hangs.

Threefry is written here without its loop over rounds: unrolled, XLA fuses it into one kernel, which
makes 100 normal numbers inside of a loop in a fifth of the time of JAX's own.
"""

from __future__ import annotations

import math
import numbers
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jax.extend.random import define_prng_impl

RANDOM_SOURCE = "ChaCha20 (RFC 8439), 256-bit keys"

KEY_BYTES = 32
_BYTES_PER_NONCE = 2**37


class Stream:
    """Random bytes of a secret key, in order, each of them once.

    Parameters
    ----------
    key : bytes of length 32
    """

    def __init__(self, key: bytes):
        self._key, self._nonce, self._left = key, -1, 0

    def integers(self, dtype, shape):
        """Independent integers, uniform over all of an unsigned type."""
        n_bytes = np.empty(shape, dtype).nbytes
        if (
            n_bytes > self._left
        ):  # a block counter has 32 bits: another nonce, long before it is at its end
            self._nonce, self._left = self._nonce + 1, max(_BYTES_PER_NONCE, n_bytes)
            start = bytes(4) + self._nonce.to_bytes(12, "little")
            self._encrypt = (
                Cipher(algorithms.ChaCha20(self._key, start), mode=None).encryptor().update
            )
        self._left -= n_bytes
        return np.frombuffer(self._encrypt(bytes(n_bytes)), dtype).reshape(shape)


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_BITS, _FOLD_IN, _SPLIT, _SEED = range(
    4
)  # high counter words: what a key is used for never overlaps


def threefry(key, high, low):
    """Threefry-2x32, 20 rounds, of counters ``(high, low)``: two arrays of 32-bit words."""
    words = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    x, y = high + words[0], low + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = ((y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation))) ^ x
        x, y = x + words[(group + 1) % 3], y + words[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def _random_bits(key, bit_width, shape):
    """One counter for each element: to concatenate both halves of the output would keep it from vectorising."""

    def draw():
        counters = jnp.arange(math.prod(shape), dtype=jnp.uint32)
        x, y = threefry(key, jnp.full_like(counters, _BITS), counters)
        bits = (x.astype(jnp.uint64) << 32) | y if bit_width == 64 else x >> (32 - bit_width)
        return bits.astype(f"uint{bit_width}").reshape(shape)

    # XLA would draw anew in every kernel that reads the bits, however many: it heeds no barrier
    # there, only a branch. This one is always taken, which XLA does not see.
    return jax.lax.cond((key[0] | 1) != 0, draw, draw)


def _fold_in(key, data):
    return jnp.stack(threefry(key, jnp.uint32(_FOLD_IN), jnp.asarray(data).astype(jnp.uint32)))


def _split(key, shape):
    counters = jnp.arange(math.prod(shape), dtype=jnp.uint32)
    return jnp.stack(threefry(key, jnp.full_like(counters, _SPLIT), counters), axis=-1).reshape(
        *shape, 2
    )


def _seed(seed):
    """Key of a small integer (only `jax.random.key` needs this; fits take `fit_keys`)."""
    low = jnp.asarray(seed).astype(jnp.uint32)
    return jnp.stack(threefry(jnp.zeros(2, jnp.uint32), jnp.uint32(_SEED), low))


GENERATOR = define_prng_impl(
    key_shape=(2,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in,
    name="skdpbayes_threefry2x32", tag="skt",
)  # fmt: skip


def wrap_keys(words):
    """Keys from 32-bit words, of shape (..., 2)."""
    return jax.random.wrap_key_data(jnp.asarray(words, jnp.uint32), impl=GENERATOR)


class FitKeys(NamedTuple):
    """Independent keys of a fit and of its chains. Only the solver's may be released.

    Attributes
    ----------
    sampling, noise : tuple of bytes
        A secret key for each chain.
    solver : array of keys of shape (n_chains,)
    counting : bytes
        Secret key of the noise in the number of usable records.
    """

    sampling: tuple[bytes, ...]
    noise: tuple[bytes, ...]
    solver: jax.Array
    counting: bytes

    def chain(self, i: int) -> FitKeys:
        """Keys of one of the chains."""
        own = slice(i, i + 1)
        return FitKeys(self.sampling[own], self.noise[own], self.solver[own], self.counting)


def fit_keys(random_state, n_chains: int = 1) -> FitKeys:
    """Independent keys for sampling, noise and solver, for each chain, and one for the count of usable records.

    Parameters
    ----------
    random_state : None, int, numpy.random.RandomState or numpy.random.Generator
        None takes the keys from the operating system's entropy. Anything else is deterministic, and
        void of any guarantee: fits share their noise, and whoever can guess the seed can remove it.
    n_chains : int

    Returns
    -------
    FitKeys
    """
    n_bytes = n_chains * (2 * KEY_BYTES + 8) + KEY_BYTES
    if random_state is None:
        material = os.urandom(n_bytes)
    elif isinstance(random_state, numbers.Integral) and int(random_state) >= 0:
        material = (
            np.random.SeedSequence(int(random_state))
            .generate_state(n_bytes // 4, np.uint32)
            .tobytes()
        )
    elif isinstance(random_state, np.random.Generator):
        material = random_state.integers(0, 2**32, n_bytes // 4, dtype=np.uint32).tobytes()
    elif isinstance(random_state, np.random.RandomState):
        material = random_state.randint(0, 2**32, n_bytes // 4, dtype=np.uint32).tobytes()
    else:
        raise ValueError(
            f"random_state must be None, a non-negative integer, a RandomState or a Generator, got {random_state!r}."
        )
    secrets = [material[i * KEY_BYTES : (i + 1) * KEY_BYTES] for i in range(2 * n_chains)]
    words = np.frombuffer(material[2 * n_chains * KEY_BYTES : -KEY_BYTES], np.uint32)
    solver = wrap_keys(words.reshape(n_chains, 2))
    return FitKeys(
        tuple(secrets[:n_chains]), tuple(secrets[n_chains:]), solver, material[-KEY_BYTES:]
    )
