"""What a record may contribute: arrays, or products that are clipped, rounded and summed without being formed.

Each kind is a product of a *head*, which is scaled when the contribution is clipped, and of vectors
that stay. The `gain` is the norm of what stays, so that the norm of a contribution is that of its
head times its gain. Where sums have to be exact, vectors and heads are rounded to integers:
products and sums of integers are exact (`docs/arithmetic.md`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp


class _Structured:
    _head: ClassVar[str]

    @property
    def head(self) -> Any:
        """The factor that is scaled."""
        return getattr(self, self._head)

    def with_head(self, head):
        """Contribution with another head."""
        return replace(self, **{self._head: head})  # type: ignore[type-var]

    def scaled(self, factor):
        """Contribution times a number."""
        return self.with_head(self.head * factor)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RankOne(_Structured):
    """A contribution ``left right'`` (K x d) that is never formed: the gradient of a generalised linear model."""

    _head = "left"

    left: jax.Array
    right: jax.Array

    def prepared(self, scale, units, exact):
        """Batch with `right` finite and, if exact, of integers; and a bound on its length."""
        right, scale, length = _vectors(self.right, squares(self.left) * scale**2, units, exact, 1)
        return RankOne(self.left.astype(float) / scale[:, None], right), length

    def total(self):
        """Sum over the batch, (K, d)."""
        return _outer_sum(self.left, self.right)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Quadratic(_Structured):
    """A contribution ``weight (x) vector vector'`` (K x d x K x d), never formed per record: a GLM's curvature."""

    _head = "weight"

    weight: jax.Array  # (K, K)
    vector: jax.Array  # (d,)

    def prepared(self, scale, units, exact):
        """Batch with `vector` finite and, if exact, of integers; and its squared length."""
        vector, scale, length = _vectors(
            self.vector, squares(self.weight) * scale**2, units, exact, 2
        )
        gain = jnp.where(jnp.isfinite(length), squares(vector), jnp.nan) if exact else length**2
        return Quadratic(self.weight.astype(float) / scale[:, None, None] ** 2, vector), gain

    def total(self):
        """Sum over the batch, (K, d, K, d)."""
        left = self.weight[:, :, :, None] * self.vector.astype(self.weight.dtype)[:, None, None, :]
        _, k, _, d = left.shape
        return (
            _outer_sum(left.reshape(-1, k * k * d), self.vector)
            .reshape(k, k, d, d)
            .transpose(0, 2, 1, 3)
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scattered(_Structured):
    """A contribution (n_rows x K) that is zero but in a few rows.

    Attributes
    ----------
    rows : int array of shape (L,)
        In increasing order, without repetition: a record for which they are not contributes
        nothing, as its norm would not be that of the values. ``n_rows`` marks an entry that is not
        used.
    values : array of shape (L, K)
    n_rows : int
    """

    _head = "values"

    rows: jax.Array
    values: jax.Array
    n_rows: int = field(metadata={"static": True})

    def prepared(self, scale, units, exact):
        """Batch; and one, or NaN where rows are not as they must be."""
        del scale, units, exact
        distinct = (self.rows[:, 1:] > self.rows[:, :-1]) | (self.rows[:, 1:] == self.n_rows)
        gain = jnp.where(distinct.all(axis=1) & (self.rows[:, 0] >= 0), 1, jnp.nan)
        return self.with_head(self.values.astype(float)), gain

    def total(self):
        """Sum over the batch, (n_rows, K)."""
        values = self.values.reshape(-1, self.values.shape[-1])
        total = jnp.zeros((self.n_rows, values.shape[1]), values.dtype)
        return total.at[self.rows.reshape(-1)].add(values, mode="drop")


@dataclass(frozen=True)
class Dense(_Structured):
    """A contribution that is an array (any shape)."""

    _head = "value"

    value: jax.Array

    def prepared(self, scale, units, exact):
        """Batch; and one."""
        del scale, units, exact
        return Dense(self.value.astype(float)), jnp.ones(self.value.shape[0])

    def total(self):
        """Sum over the batch."""
        return jnp.sum(self.value, axis=0)


def _vectors(vectors, head_square, units, exact, power):
    """A batch of vectors that are finite, what they were multiplied by, and bounds on their lengths.

    If sums are to be exact, vectors are rounded, such that the vectors of a contribution (`power`
    of them) and its head (of squared length `head_square`, in steps of the grid) are about equally
    long: then rounding costs least. They are multiplied by powers of two, which keep zeros and
    ones, and whatever has few binary digits, exact. A vector that is not finite becomes zero, with
    a length that is not finite.
    """
    length = jnp.sqrt(squares(vectors))
    usable = (length > 0) & jnp.isfinite(length)
    if not exact:
        return jnp.where(usable[:, None], vectors, 0), jnp.ones_like(length), length
    reach = jnp.sqrt(head_square) * length**power  # of the contribution, before it is clipped
    reach = jnp.where(reach >= 1, jnp.minimum(reach, units), 1)  # NaN compares false
    bits = _exponent(reach) // (power + 1)
    exponent = _exponent(jnp.where(usable, length, 1)) + 1  # rounded up
    scale = jax.lax.bitcast_convert_type((bits - exponent + 1023) << 52, jnp.float64)
    # At most 2^21 in size: exact in single precision, which takes half of the memory.
    rounded = jnp.round(jnp.where(usable[:, None], vectors.astype(float) * scale[:, None], 0))
    return rounded.astype(jnp.float32), scale, length * scale + math.sqrt(vectors.shape[1]) / 2


def _exponent(positive):
    """Binary logarithm of normal numbers, rounded down."""
    return (jax.lax.bitcast_convert_type(positive.astype(jnp.float64), jnp.int64) >> 52) - 1023


def _outer_sum(left, right):
    # Reduced precision, which some accelerators default to, would let a contribution exceed its
    # norm.
    return jnp.matmul(left.T, right.astype(left.dtype), precision=jax.lax.Precision.HIGHEST)


def squares(values):
    """Sum of squares of each item of a batch."""
    flat = values.astype(float).reshape(values.shape[0], -1)  # double in the compiled loop
    return jnp.sum(jnp.square(flat), axis=1)


def _is_structured(part):
    return isinstance(part, _Structured)


def parts_of(contribution):
    """The parts of a block, in the order of its pytree, and its structure."""
    leaves, treedef = jax.tree.flatten(contribution, is_leaf=_is_structured)
    return [x if _is_structured(x) else Dense(x) for x in leaves], treedef


def scaled(contribution, factor):
    """One record's contribution times a number."""
    return jax.tree.map(
        lambda part: part.scaled(factor) if _is_structured(part) else part * factor,
        contribution,
        is_leaf=_is_structured,
    )


def contribution_norms(contributions):
    """l2 norms of a batch of contributions (a pytree of arrays, RankOne, Quadratic or Scattered), as given."""
    prepared = [part.prepared(1.0, 1.0, exact=False) for part in parts_of(contributions)[0]]
    return jnp.sqrt(sum(squares(part.head) * gain**2 for part, gain in prepared))


def contribution_norm(contribution):
    """l2 norm of one record's contribution."""
    return contribution_norms(jax.tree.map(lambda leaf: leaf[None], contribution))[0].astype(
        jnp.float32
    )
