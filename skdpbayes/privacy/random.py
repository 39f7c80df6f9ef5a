"""Where keys come from.

Three independent keys drive a fit: sampling, noise and solver. The first two are secrets; the solver key may be
released (replaying a fit from its releases needs it). Keys are 64-bit Threefry keys: good statistics, but not a
cryptographic generator, which `privacy_spent_` says.
"""

from __future__ import annotations

import numbers
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

RANDOM_SOURCE = "threefry2x32, 64-bit keys (not cryptographic)"


class FitKeys(NamedTuple):
    """Independent keys of one fit, or of one of its rounds. Only the solver's may be released."""

    sampling: jax.Array
    noise: jax.Array
    solver: jax.Array

    def at(self, step) -> FitKeys:
        """Keys of one round (one vectorised hash for all three)."""
        return FitKeys(*jax.vmap(jax.random.fold_in, in_axes=(0, None))(jnp.stack(self), step))


def fit_keys(random_state, n_chains: int = 1) -> FitKeys:
    """Independent keys for sampling, noise and solver, for each chain.

    Parameters
    ----------
    random_state : None, int, numpy.random.RandomState or numpy.random.Generator
        None takes the keys from the operating system's entropy. Anything else is deterministic: whoever can guess
        the seed can remove the noise.
    n_chains : int

    Returns
    -------
    FitKeys
        Keys with a leading axis of length `n_chains`.
    """
    n_words = 3 * n_chains * 2
    if random_state is None:
        words = np.frombuffer(os.urandom(4 * n_words), np.uint32)
    elif isinstance(random_state, numbers.Integral) and random_state >= 0:
        words = np.random.SeedSequence(int(random_state)).generate_state(n_words)
    elif isinstance(random_state, np.random.Generator):
        words = random_state.integers(0, 2**32, n_words, dtype=np.uint32)
    elif isinstance(random_state, np.random.RandomState):
        words = random_state.randint(0, 2**32, n_words, dtype=np.uint32)
    else:
        raise ValueError(
            f"random_state must be None, a non-negative integer, a RandomState or a Generator, got {random_state!r}."
        )
    keys = jax.random.wrap_key_data(words.reshape(3, n_chains, 2), impl="threefry2x32")
    return FitKeys(*keys)
