"""Location and size of each column, from one noisy sum of sines and cosines.

A column may be a hundred times narrower than its bounds. Its moments would drown in noise for the
whole range; waves of all lengths have norm 1, and those about as long as the column is wide tell
where it lies, whatever the range.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

N_WAVES = 9
"""Waves of a column."""
_FREQUENCIES = 0.7 * 2.0 ** np.arange(N_WAVES)  # for widths from 1 down to 1 / 200
# Priors in units of half the range: where a column lies, and the logarithm of its width.
_LOCATION = 0.5
_WIDTH, _LOG_WIDTH = 0.25, 1.2
# Grid of locations (in widths) and widths; then a finer one about the best point.
_WIDTHS = np.exp(np.linspace(math.log(1 / 200), math.log(1.5), 20))
_FAR = 1.25
_MISFIT = 0.02  # standard deviation of what no normal column has, of long waves


class Columns(NamedTuple):
    """Centre and standard deviation of each column."""

    centre: jax.Array  # (d,)
    std: jax.Array  # (d,)


def waves(x):
    """Cosines and sines of the columns of a record, (2, d, N_WAVES), of norm 1 together."""
    angle = x[:, None] * _FREQUENCIES.astype(np.float32)
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)]) / math.sqrt(x.size * N_WAVES)


def fit_columns(value, total, noise, rate) -> Columns:
    """Columns whose waves sum to `value`, of `total` records, with noise of that deviation.

    Each column is taken for normal as far as waves longer than its width tell. What shorter ones
    say is not used, since they show its parts: several groups, say.
    """
    d = value.shape[1]
    unit = total / math.sqrt(d * N_WAVES)
    variance = noise**2 + total / (2 * d * N_WAVES * rate)

    def log_posterior(value, centre, log_std):
        """Of one column, at arrays of points."""
        std = jnp.exp(log_std)
        angle, size = centre[..., None] * _FREQUENCIES, std[..., None] * _FREQUENCIES
        expected = jnp.exp(-(size**2) / 2)
        short = 1 - jnp.exp(-(size**3) / 3)
        spread = variance + unit**2 * (_MISFIT**2 + short**2 / 2)
        error = value[0] - unit * expected * jnp.cos(angle)
        error = error**2 + (value[1] - unit * expected * jnp.sin(angle)) ** 2
        fit = -jnp.sum(error / (2 * spread) + jnp.log(spread), axis=-1)
        prior = (centre / _LOCATION) ** 2 + ((log_std - math.log(_WIDTH)) / _LOG_WIDTH) ** 2
        return fit - prior / 2

    # Locations half of the least width apart would be many: each width has its own.
    steps = [np.arange(-_FAR, _FAR, w / 2) for w in _WIDTHS]
    centres = np.concatenate(steps)
    log_stds = np.repeat(np.log(_WIDTHS), [len(s) for s in steps])
    # Even, so that a mean over it is one over the posterior.
    fine = np.meshgrid(np.linspace(-1.5, 1.5, 25), np.linspace(-1, 1, 17), indexing="ij")

    def of_column(value):
        best = jnp.argmax(log_posterior(value, centres, log_stds))
        best_std = jnp.asarray(log_stds)[best]
        centre = jnp.asarray(centres)[best] + jnp.exp(best_std) * fine[0]
        log_std = best_std + fine[1]
        share = jax.nn.softmax(log_posterior(value, centre, log_std).ravel())
        return Columns(share @ centre.ravel(), jnp.exp(share @ log_std.ravel()))

    return jax.vmap(of_column, in_axes=1)(value)
