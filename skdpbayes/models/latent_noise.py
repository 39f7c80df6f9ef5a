"""Keys of the noise in a record's latent variables."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np


def record_key(key: jax.Array, fields: Iterable[jax.Array]) -> jax.Array:
    """A key for one record: a function of a key and of the record's values alone.

    If it depended on the place in the batch, a record's contribution would depend on which others
    are there. Equal records share their key.
    """
    bits = jnp.concatenate([_bits(x) for x in fields])
    factors = np.random.default_rng(0).integers(2**32, size=bits.size, dtype=np.uint32)
    # Zeros and ones differ in few high bits, which a product with a factor would lose.
    code = jnp.sum((bits ^ (bits >> 23)) * (factors | np.uint32(1)), dtype=jnp.uint32)
    return jax.random.fold_in(key, code)


def _bits(x):
    """Values as integers, ravelled."""
    if x.dtype.kind == "f":
        return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32).ravel()
    return x.astype(jnp.uint32).ravel()
