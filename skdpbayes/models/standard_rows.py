"""Standard normal rows from public draws, and rows of given second moments made of them."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from skdpbayes.models.protocols import Array

_ROWS_OF_A_COLUMN = 10  # and as many mirrored ones


def normal_rows(standard: Array, axes: Array, constant_row: Array) -> jax.Array:
    """Rows with a constant column and the second moments of the axes."""
    # The axes are known up to a factor: the constant column's second moment is 1.
    constant = jnp.linalg.solve(axes, constant_row)
    unit = constant / jnp.linalg.norm(constant)
    rows = standard + (1 - standard @ unit)[:, None] * unit
    rows = rows / jnp.linalg.norm(constant)
    return jnp.linalg.solve(axes.T, rows.T).T


@cache
def standard_rows(n_columns: int, least: int = 512, seed: int = 0) -> np.ndarray:
    """Standard normal rows with mean zero and unit second moments, in mirrored pairs.

    There are at least as many pairs as `least`.
    """
    half = max(least, _ROWS_OF_A_COLUMN * n_columns)
    rows = np.random.default_rng(seed).standard_normal((half, n_columns))
    root = np.linalg.cholesky(rows.T @ rows / half)
    rows = np.linalg.solve(root, rows.T).T
    return np.concatenate([rows, -rows]).astype(np.float32)


def deviation_variance(spread: jax.Array) -> jax.Array:
    """Mean variance of a logit; with several classes, of its deviation from their mean.

    Parameters
    ----------
    spread : array of shape (n_rows, n_rows)
        Covariance of the logits of a row.
    """
    k = len(spread)
    return spread[0, 0] if k == 1 else (jnp.trace(spread) - spread.mean() * k) / (k - 1)
