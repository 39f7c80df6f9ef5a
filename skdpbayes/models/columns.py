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
"""Waves of a column, for widths from 1 down to 1 / 200. Each more of them halves the least."""
_LOWEST = 0.7  # frequency of the longest; each other one has twice the frequency before
# Priors in units of half the range: where a column lies, and the logarithm of its width.
_LOCATION = 0.5
_WIDTH, _LOG_WIDTH, _ANY_LOG_WIDTH = 0.25, 1.2, 2.0
_FAR = 1.25
_NARROW = 0.01  # width from which on `_near` says where a column may be
_CAUTION = 0.25  # of the variance of the logarithm of a width, by which it is taken for less
_MISFIT = 0.02  # standard deviation of what no normal column has, of long waves
_DISCRETE = 0.05  # squared amplitude of short waves, of the share that has one value
# Sizes of columns of few values: where unknown, and the least if long waves do not show it.
_USUAL_DISCRETE, _LEAST_DISCRETE = 0.5, 0.3
_APART = 0.25  # squared amplitude that waves lack if values are far apart for them
_NEAR, _IMPROBABLE = 0.7, 0.3  # values as far apart are seen by the longest waves; probability
_LEAST_MOMENTS = 0.01, 0.3  # second moments of such columns, over squares of sizes


class Columns(NamedTuple):
    """Centre and standard deviation of each column."""

    centre: jax.Array  # (d,)
    std: jax.Array  # (d,)


class Sizes(NamedTuple):
    """What waves tell of columns of any law: arrays of shape (d,).

    Attributes
    ----------
    centre, size : array
        Posterior means. The size of a column is the width of its bulk; that of one of few values
        is its standard deviation.
    doubt : array
        Posterior standard deviation of the logarithm of the width.
    least : array
        Second moment that the column has at least, over the square of its size.
    """

    centre: jax.Array
    size: jax.Array
    doubt: jax.Array
    least: jax.Array


def waves(x, n_waves: int = N_WAVES):
    """Cosines and sines of the columns of a record, (2, d, n_waves), of norm 1 together."""
    angle = x[:, None] * _frequencies(n_waves).astype(np.float32)
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)]) / math.sqrt(x.size * n_waves)


def fit_columns(value, total, noise, rate) -> Columns:
    """Columns whose waves sum to `value`, of `total` records, with noise of that deviation.

    Each column is taken for normal as far as waves longer than its width tell. What shorter ones
    say is not used, since they show its parts: several groups, say.
    """
    told = _Told.of(value, total, noise, rate)
    centres, log_stds = _grid(value.shape[2])
    # Even, so that a mean over it is one over the posterior.
    fine = np.meshgrid(np.linspace(-1.5, 1.5, 25), np.linspace(-1, 1, 17), indexing="ij")

    def of_column(value):
        best = jnp.argmax(told.log_posterior(value, centres, log_stds))
        best_std = jnp.asarray(log_stds)[best]
        centre = jnp.asarray(centres)[best] + jnp.exp(best_std) * fine[0]
        log_std = best_std + fine[1]
        share = jax.nn.softmax(told.log_posterior(value, centre, log_std).ravel())
        return Columns(share @ centre.ravel(), jnp.exp(share @ log_std.ravel()))

    return jax.vmap(of_column, in_axes=1)(value)


def sizes_of_columns(value, total, noise) -> Sizes:
    """As `fit_columns`, of columns that may be far narrower, have heavy tails, or few values.

    If many entries are equal, as those of a rare category, the bulk has no width. What a sample of
    the records would add to the noise is less than such columns differ from normal ones.
    """
    told = _Told.of(value, total, noise, 1.0)
    error = jnp.sqrt(told.variance) / told.unit  # of an amplitude

    def of_column(value):
        centre, log_width, doubt = _bulk(told, value)
        power = jnp.sum((value / told.unit) ** 2, axis=0) - 2 * error**2
        variance, lowest = _variance(power, error)
        few = _has_few_values(power, error)
        # A column may be narrower than it seems; in units too large its noise would not show.
        size = jnp.where(few, jnp.sqrt(variance), jnp.exp(log_width - _CAUTION * doubt**2))
        least = jnp.where(few, (lowest / variance).clip(*_LEAST_MOMENTS), jnp.exp(-2 * doubt))
        return Sizes(centre, size, doubt, least)

    return jax.vmap(of_column, in_axes=1)(value)


def _bulk(told: _Told, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Posterior means of the centre and the logarithm of the width; standard deviation of it."""
    rough, rough_stds = _grid(value.shape[1], _NARROW)
    rough_fit = told.log_posterior(value, rough, rough_stds, _ANY_LOG_WIDTH)
    near, near_stds = _near(value, jnp.asarray(rough)[jnp.argmax(rough_fit)])
    near_fit = told.log_posterior(value, near, near_stds, _ANY_LOG_WIDTH)
    centres, log_stds = jnp.concatenate([rough, near]), np.concatenate([rough_stds, near_stds])
    # Points are half a width apart: each stands for as much.
    share = jax.nn.softmax(jnp.concatenate([rough_fit, near_fit]) + log_stds)
    centre, log_width = share @ centres, share @ log_stds
    return centre, log_width, jnp.sqrt(share @ (log_stds - log_width) ** 2)


def _has_few_values(power: jax.Array, error: jax.Array) -> jax.Array:
    """Whether many entries are equal: the shortest waves have the power of longer ones.

    The four shortest have some where the column is narrow. Where noise is large, eight tell more.
    """
    four, eight = jnp.mean(power[-4:]), jnp.mean(power[-8:])
    flat = (eight > _DISCRETE + 2.5 * error**2) & (four > eight / 2)
    return flat | (four > _DISCRETE + 5 * error**2)


def _variance(power: jax.Array, error: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Variance of a column of few values, and the least that it may have.

    Waves that are short beside the differences of values show no more than longer ones: powers are
    about one down to some wave, and less from there on. If none of the longest ones is that wave,
    its length tells the variance; else what the longest one shows, unless noise hides it.
    """
    frequencies = jnp.asarray(_frequencies(len(power)))
    n = jnp.arange(len(power), 0, -1)
    lost = jnp.cumsum((1 - power)[::-1])[::-1] / n
    first = jnp.argmax(n * lost.clip(0) ** 2)  # least squares
    apart = (first > 1) & (lost[first] > _APART + 6 * error / jnp.sqrt(n[first]))
    apart &= _probably_near(power, error) > _IMPROBABLE
    step = (lost[first] / frequencies[first] ** 2).clip(0, 1)

    told = -jnp.log(power[0].clip(0.05, 1)) / frequencies[0] ** 2
    told_error, usual = 2**1.5 * error / frequencies[0] ** 2, _USUAL_DISCRETE**2
    long = usual + usual**2 / (usual**2 + told_error**2) * (told - usual)
    variance = jnp.where(apart, step, long.clip(_LEAST_DISCRETE**2, 1))
    return variance, jnp.where(apart, step / 4, told - 2 * told_error)


def _probably_near(power: jax.Array, error: jax.Array) -> jax.Array:
    """Probability that values are nearer than the longest waves see, if both are as probable.

    Two values a apart, of shares q and 1 - q, have power ``1 - 2 q (1 - q) (1 - cos(a f))`` at the
    frequency f. Where a wave is short beside a, the cosine may be any.
    """
    frequencies = _frequencies(len(power))
    apart = 2 * 2.0 ** (-0.5 * np.arange(2 * len(power) + 2))
    lost = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0])  # 2 q (1 - q), or more of more values
    angle = apart[:, None, None] * frequencies
    short = angle > 2
    expected = 1 - lost[:, None] * np.where(short, 1, 1 - np.cos(angle))
    spread = np.where(short, lost[:, None] ** 2 / 2, 0)
    spread = spread + 4 * error**2 * (jnp.abs(expected) + error**2) + _MISFIT**2
    fit = -jnp.sum((power - expected) ** 2 / spread + jnp.log(spread), axis=-1) / 2
    near = apart < _NEAR
    prior = np.where(near, 1 / near.sum(), 1 / (~near).sum())
    return jnp.sum(jax.nn.softmax((fit + np.log(prior)[:, None]).ravel()).reshape(fit.shape)[near])


class _Told(NamedTuple):
    """Waves of a column that all records are at, and the variance of each."""

    unit: jax.Array
    variance: jax.Array

    @staticmethod
    def of(value, total, noise, rate) -> _Told:
        _, d, n_waves = value.shape
        return _Told(total / math.sqrt(d * n_waves), noise**2 + total / (2 * d * n_waves * rate))

    def log_posterior(self, value, centre, log_std, log_width=_LOG_WIDTH):
        """Of one column, at arrays of points."""
        frequencies = _frequencies(value.shape[1])
        std = jnp.exp(log_std)
        angle, size = centre[..., None] * frequencies, std[..., None] * frequencies
        expected = jnp.exp(-(size**2) / 2)
        short = 1 - jnp.exp(-(size**3) / 3)
        spread = self.variance + self.unit**2 * (_MISFIT**2 + short**2 / 2)
        error = value[0] - self.unit * expected * jnp.cos(angle)
        error = error**2 + (value[1] - self.unit * expected * jnp.sin(angle)) ** 2
        fit = -jnp.sum(error / (2 * spread) + jnp.log(spread), axis=-1)
        prior = (centre / _LOCATION) ** 2 + ((log_std - math.log(_WIDTH)) / log_width) ** 2
        return fit - prior / 2


def _frequencies(n_waves: int) -> np.ndarray:
    return _LOWEST * 2.0 ** np.arange(n_waves)


def _grid(n_waves: int, least: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Locations and logarithms of widths.

    Locations half of the least width apart would be many: each width has its own.
    """
    widths = _widths(n_waves)
    widths = widths[widths >= least]
    steps = [np.arange(-_FAR, _FAR, w / 2) for w in widths]
    return np.concatenate(steps), np.repeat(np.log(widths), [len(s) for s in steps])


def _widths(n_waves: int) -> np.ndarray:
    least = 0.9 / _frequencies(n_waves)[-1]
    return np.geomspace(least, 1.5, 20 + 2 * max(0, n_waves - N_WAVES))


def _near(value: jax.Array, centre: jax.Array) -> tuple[jax.Array, np.ndarray]:
    """Points for columns narrower than `_NARROW`, given about where one is.

    Locations so close would be too many on all of the range. The phase of each wave tells better
    than that of the one before where a narrow column lies.
    """
    widths, frequencies = _widths(value.shape[1]), _frequencies(value.shape[1])
    widths = widths[widths < _NARROW]
    reached = np.searchsorted(frequencies, 0.7 / widths, side="right") - 1
    places = {}
    for wave in range(reached.min(), reached.max() + 1):
        ahead = jnp.arctan2(value[1, wave], value[0, wave]) - frequencies[wave] * centre
        ahead = ahead - 2 * math.pi * jnp.round(ahead / (2 * math.pi))
        centre = places[wave] = centre + ahead / frequencies[wave]
    around = [places[k] + np.linspace(-4, 4, 17) * w for k, w in zip(reached, widths, strict=True)]
    return jnp.concatenate(around), np.repeat(np.log(widths), 17)
