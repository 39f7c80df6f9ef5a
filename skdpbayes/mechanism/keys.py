"""Secret keys of a fit, and the stream cipher that they drive.

A fit has independent keys for sampling, noise, counting and the solver. All but the solver's are
secrets of 256 bits, used with ChaCha20 (RFC 8439; the implementation is OpenSSL's). The solver's
key may be released, as replaying a fit from its releases needs it (`threefry`).
"""

from __future__ import annotations

import numbers
import os
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from skdpbayes.mechanism.threefry import wrap_keys

RANDOM_SOURCE = "ChaCha20 (RFC 8439), 256-bit keys"

KEY_BYTES = 32
_BYTES_PER_NONCE = 2**37


class Stream:
    """Random bytes of a secret key, in order, each of them once.

    Parameters
    ----------
    key : bytes of length 32
    lane : int
        Streams of one key and different lanes, below 2^64, are independent.
    """

    def __init__(self, key: bytes, lane: int = 0) -> None:
        self._key, self._lane, self._nonce, self._left = key, lane, -1, 0

    def integers(
        self, dtype: type[np.unsignedinteger[Any]], shape: int | tuple[int, ...]
    ) -> np.ndarray:
        """Independent integers, uniform over all of an unsigned type."""
        n_bytes = np.empty(shape, dtype).nbytes
        # A block counter has 32 bits: take another nonce long before its end.
        if n_bytes > self._left:
            self._nonce, self._left = self._nonce + 1, max(_BYTES_PER_NONCE, n_bytes)
            nonce = self._nonce.to_bytes(4, "little") + self._lane.to_bytes(8, "little")
            start = bytes(4) + nonce  # the block counter is zero
            self._encrypt = (
                Cipher(algorithms.ChaCha20(self._key, start), mode=None).encryptor().update
            )
        self._left -= n_bytes
        return np.frombuffer(self._encrypt(bytes(n_bytes)), dtype).reshape(shape)


class Blocks:
    """Blocks of 512 random bits of a secret key: of any lane, from any block of it on.

    Parameters
    ----------
    key : bytes of length 32
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def begin(self, lane: int, block: int = 0) -> None:
        """Go to a block, below 2^32, of a lane, below 2^64."""
        place = block.to_bytes(4, "little") + bytes(4)
        self._cipher.reset_nonce(place + lane.to_bytes(8, "little"))

    def fill(self, out: np.ndarray) -> None:
        """Write the next blocks of the lane, which has 2^32, to an array."""
        self._cipher.update_into(bytes(out.nbytes), out.data.cast("B"))


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


RandomState: TypeAlias = int | np.random.RandomState | np.random.Generator | None


def fit_keys(random_state: RandomState, n_chains: int = 1) -> FitKeys:
    """Independent keys for sampling, noise and solver, for each chain, and one for counting.

    See `key_material`.
    """
    return keys_of(key_material(random_state, n_chains), n_chains)


def key_material(random_state: RandomState, n_chains: int = 1) -> bytes:
    """Secret bytes of which `keys_of` makes the keys of a fit.

    Parameters
    ----------
    random_state : None, int, numpy.random.RandomState or numpy.random.Generator
        None takes the keys from the operating system's entropy. Anything else is deterministic, and
        void of any guarantee: fits share their noise, and whoever can guess the seed can remove it.
    n_chains : int
    """
    n_bytes = n_chains * (2 * KEY_BYTES + 8) + KEY_BYTES
    if random_state is None:
        return os.urandom(n_bytes)
    if isinstance(random_state, numbers.Integral) and int(random_state) >= 0:
        seeds = np.random.SeedSequence(int(random_state))
        return seeds.generate_state(n_bytes // 4, np.uint32).tobytes()
    if isinstance(random_state, np.random.Generator):
        return random_state.integers(0, 2**32, n_bytes // 4, dtype=np.uint32).tobytes()
    if isinstance(random_state, np.random.RandomState):
        return random_state.randint(0, 2**32, n_bytes // 4, dtype=np.uint32).tobytes()
    raise ValueError(
        "random_state must be None, a non-negative integer, a RandomState or a Generator, "
        f"got {random_state!r}."
    )


def keys_of(material: bytes, n_chains: int = 1) -> FitKeys:
    """Keys of a fit of so many chains."""
    secrets = [material[i * KEY_BYTES : (i + 1) * KEY_BYTES] for i in range(2 * n_chains)]
    words = np.frombuffer(material[2 * n_chains * KEY_BYTES : -KEY_BYTES], np.uint32)
    solver = wrap_keys(words.reshape(n_chains, 2))
    return FitKeys(
        tuple(secrets[:n_chains]), tuple(secrets[n_chains:]), solver, material[-KEY_BYTES:]
    )
