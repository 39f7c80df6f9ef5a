"""How far records can move a statistic: a search that tries to exceed the bound which a model declares.

Records are unconstrained vectors. The search starts from many, with values of all sizes, infinities
and NaN among them, and climbs from each by gradients and by random steps. A statistic that is not
finite counts as zero, as in the private sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

EXTREMES = np.array([0, 1e-42, 1e-20, 0.5, 1, 1e3, 1e20, 1e38, np.inf, np.nan], np.float32)
N_DRAWS, N_STEPS = 256, 240


@dataclass(frozen=True)
class Case:
    """A statistic and what is claimed of it.

    Attributes
    ----------
    statistic : callable
        Of a record; returns an array or a pytree of arrays, all of which are released together.
    bound : float
        Declared largest norm of a statistic: what one record moves a sum by when it is nulled.
    substitution : float
        Largest distance of two statistics, derived for this model; at most twice `bound`, which is
        accounted.
    size : int
    record : callable
        Makes a record of any vector of that size.
    scale : float
        Of values that are neither small nor extreme.
    """

    statistic: Callable[[Any], Any]
    bound: float
    substitution: float
    size: int
    record: Callable[[jax.Array], Any]
    scale: float = 1.0


def _released(statistic):
    flat, _ = ravel_pytree(statistic)
    flat = flat.astype(jnp.float32)
    return jnp.where(jnp.isfinite(flat).all(), flat, 0)


def _start(rng: np.random.Generator, scale: float, shape: tuple[int, ...]):
    """Vectors of all lengths, a third of them with some extreme entries."""
    lengths = scale * np.exp(rng.normal(size=(*shape[:-1], 1)))
    vectors = rng.normal(size=shape) * lengths
    odd = EXTREMES[rng.integers(len(EXTREMES), size=shape)] * rng.choice([-1, 1], shape)
    swapped = (rng.random((*shape[:-1], 1)) < 1 / 3) & (rng.random(shape) < 0.5)
    return np.where(swapped, odd, vectors).astype(np.float32)


@functools.lru_cache
def _search(statistic, record, size: int, scale: float) -> tuple[float, float]:
    def height(vectors, both):
        one, other = jax.vmap(lambda v: _released(statistic(record(v))))(vectors)
        return jnp.sum((one - both * other) ** 2)

    # One program for everything, quickly compiled: that takes longer than the search.
    rng, hills = np.random.default_rng(0), jax.vmap(jax.value_and_grad(height), (0, None))
    first = _start(rng, scale, (N_DRAWS, 2, size))
    program = (
        jax.jit(hills).lower(first, np.float32(0)).compile({"xla_backend_optimization_level": 0})
    )
    found = []
    for both in np.float32([0, 1]):
        at = first
        best, slope = map(np.array, program(at, both))
        for step in range(N_STEPS):
            length = scale * 1e-4 ** (step / N_STEPS)
            if step % 2:
                move = rng.standard_normal(at.shape, np.float32)
            else:
                slope[~np.isfinite(slope)] = 0
                norm = np.linalg.norm(slope.astype(np.float64), axis=(1, 2), keepdims=True)
                move = (slope / np.where(norm > 0, norm, 1)).astype(np.float32)
            with np.errstate(over="ignore"):
                moved = at + np.float32(length) * move
            value, steepness = program(moved, both)
            better = np.asarray(value) > best
            at, best = np.where(better[:, None, None], moved, at), np.where(better, value, best)
            slope = np.where(better[:, None, None], steepness, slope)
        found.append(float(np.sqrt(best.max())))
    return found[0], found[1]


def farthest(case: Case) -> tuple[float, float]:
    """Largest norm found of one record's statistic, and largest distance of those of two."""
    return _search(case.statistic, case.record, case.size, case.scale)


def check(case: Case, slack: float = 0.03) -> None:
    """Raise AssertionError if a record or a pair exceeds its bound, or if none comes within `slack` of it."""
    for found, most, what in zip(
        farthest(case), (case.bound, case.substitution), ("record", "pair"), strict=True
    ):
        assert found <= most * (1 + 1e-5), f"a {what} reaches {found:.6g}, above {most:.6g}"
        assert found >= most * (1 - slack), f"no {what} reaches more than {found:.6g} of {most:.6g}"
    assert case.substitution <= 2 * case.bound * (1 + 1e-6), (
        "the distance accounted for is twice the bound"
    )
