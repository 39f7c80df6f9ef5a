"""What a record may contribute: arrays, or products that are summed without being formed.

A part of a contribution is a product of a *head*, which is scaled when it is clipped, and of
vectors that stay. The *gain* is the norm of what stays (or a bound on it), so that the norm of a
part is that of its head times its gain. Where sums have to be exact, vectors and heads are rounded
to integers: products and sums of integers are exact (`docs/arithmetic.md`).
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeAlias

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.grid import Grid
from skdpbayes.pytrees import pytree

Number: TypeAlias = jax.Array | float
"""A number, traced or not."""

Contribution: TypeAlias = Any
"""A pytree of arrays and `Part`\\ s."""


class Part(ABC):
    """A part of a contribution, of one record or of a batch."""

    _head: ClassVar[str]

    @property
    def head(self) -> jax.Array:
        """The factor that is scaled."""
        head: jax.Array = getattr(self, self._head)
        return head

    def with_head(self, head: jax.Array) -> Self:
        """Contribution with another head."""
        return replace(self, **{self._head: head})  # type: ignore[type-var]

    def scaled(self, factor: Number) -> Self:
        """Contribution times a number."""
        return self.with_head(self.head * factor)

    @abstractmethod
    def prepared(self, scale: Number, units: Number, exact: bool) -> tuple[Part, jax.Array]:
        """Batch whose vectors are finite and, if exact, of integers; and its gains.

        Parameters
        ----------
        scale : float
            Steps of the grid in a unit of the contribution.
        units : float
            Steps of the grid in the clipping norm.
        exact : bool
        """

    @abstractmethod
    def total(self) -> jax.Array:
        """Sum over the batch."""

    def joined(self) -> Contribution:
        """Sum over the batch as one contribution."""
        return self.total()


@pytree
@dataclass(frozen=True)
class RankOne(Part):
    """``left right'`` (K x d), never formed: the gradient of a generalised linear model.

    Attributes
    ----------
    left : array of shape (K,)
    right : array of shape (d,)
    grid : Grid or None
        Of `right`, if it is known. The private sum takes a grid from records alone.
    """

    _head = "left"

    left: jax.Array
    right: jax.Array
    grid: Grid | None = None

    def prepared(self, scale: Number, units: Number, exact: bool) -> tuple[RankOne, jax.Array]:
        """Batch with `right` finite and, if exact, of integers; and a bound on its length."""
        if self.grid is not None:  # finite and rounded when records were packed
            # Records that pad have no scale.
            scale = jnp.where(self.grid.scale > 0, self.grid.scale, 1).astype(float)
            left = self.left.astype(float) / scale[:, None]
            return _InSteps(left, self.right, self.grid), self.grid.length.astype(float) * scale
        head = squares(self.left) * scale**2
        right, factor, length = _vectors(self.right, head, units, exact, 1)
        left = self.left.astype(float) / factor[:, None]
        return replace(self, left=left, right=right), length

    def total(self) -> jax.Array:
        """Sum over the batch, (K, d)."""
        return _outer_sum(self.left, self.right)


@pytree
@dataclass(frozen=True)
class _InSteps(RankOne):
    """``left right'``, where the vector is `right` in steps of its grid.

    It is not formed: its scale, a power of two, goes to the other factor, and products are as exact
    as those of integers.
    """

    def total(self) -> jax.Array:
        """Sum over the batch, (K, d)."""
        assert self.grid is not None
        scale = self.grid.scale[:, None].astype(self.left.dtype)
        return _outer_sum(self.left * scale, self.right)


@pytree
@dataclass(frozen=True)
class Quadratic(Part):
    """``weight (x) vector vector'`` (K x d x K x d), never formed: a GLM's curvature."""

    _head = "weight"

    weight: jax.Array  # (K, K)
    vector: jax.Array  # (d,)

    def prepared(self, scale: Number, units: Number, exact: bool) -> tuple[Self, jax.Array]:
        """Batch with `vector` finite and, if exact, of integers; and its squared length."""
        head = squares(self.weight) * scale**2
        vector, factor, length = _vectors(self.vector, head, units, exact, 2)
        gain = jnp.where(jnp.isfinite(length), squares(vector), jnp.nan) if exact else length**2
        weight = self.weight.astype(float) / factor[:, None, None] ** 2
        return replace(self, weight=weight, vector=vector), gain

    def total(self) -> jax.Array:
        """Sum over the batch, (K, d, K, d)."""
        left = self.weight[:, :, :, None] * self.vector.astype(self.weight.dtype)[:, None, None, :]
        _, k, _, d = left.shape
        return (
            _outer_sum(left.reshape(-1, k * k * d), self.vector)
            .reshape(k, k, d, d)
            .transpose(0, 2, 1, 3)
        )


@pytree
@dataclass(frozen=True)
class Scattered(Part):
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

    def prepared(self, scale: Number, units: Number, exact: bool) -> tuple[Self, jax.Array]:
        """Batch; and one, or NaN where rows are not as they must be."""
        del scale, units, exact
        distinct = (self.rows[:, 1:] > self.rows[:, :-1]) | (self.rows[:, 1:] == self.n_rows)
        gain = jnp.where(distinct.all(axis=1) & (self.rows[:, 0] >= 0), 1, jnp.nan)
        return self.with_head(self.values.astype(float)), gain

    def total(self) -> jax.Array:
        """Sum over the batch, (n_rows, K)."""
        values = self.values.reshape(-1, self.values.shape[-1])
        total = jnp.zeros((self.n_rows, values.shape[1]), values.dtype)
        return total.at[self.rows.reshape(-1)].add(values, mode="drop")

    def joined(self) -> Scattered:
        """Sum over the batch, with as many entries as the batch has; equal rows are added."""
        rows = self.rows.reshape(-1)
        order = jnp.argsort(rows)
        rows, values = rows[order], self.values.reshape(len(rows), -1)[order]
        first = jnp.concatenate([jnp.ones(1, bool), rows[1:] != rows[:-1]])
        place = jnp.cumsum(first) - 1
        own = jnp.full_like(rows, self.n_rows).at[place].set(rows)
        return replace(self, rows=own, values=jnp.zeros_like(values).at[place].add(values))


@pytree
@dataclass(frozen=True)
class Dense(Part):
    """A contribution that is an array (any shape)."""

    _head = "value"

    value: jax.Array

    def prepared(self, scale: Number, units: Number, exact: bool) -> tuple[Self, jax.Array]:
        """Batch; and one."""
        del scale, units, exact
        return self.with_head(self.value.astype(float)), jnp.ones(self.value.shape[0])

    def total(self) -> jax.Array:
        """Sum over the batch."""
        return jnp.sum(self.value, axis=0)


def _vectors(
    vectors: jax.Array, head_square: jax.Array, units: Number, exact: bool, power: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Finite vectors, what they were multiplied by, and bounds on their lengths.

    If sums are to be exact, vectors are rounded. Their scale makes the vectors of a contribution
    (`power` of them) and its head (of squared length `head_square`, in steps of the grid) about
    equally long, because rounding costs least then. It is a power of two, which keeps numbers of
    few binary digits exact. A vector that is not finite becomes zero, with a length that is not
    finite.
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


def _exponent(positive: jax.Array) -> jax.Array:
    """Binary logarithm of normal numbers, rounded down."""
    return (jax.lax.bitcast_convert_type(positive.astype(jnp.float64), jnp.int64) >> 52) - 1023


def _outer_sum(left: jax.Array, right: jax.Array) -> jax.Array:
    # Reduced precision, which some accelerators default to, would let a contribution exceed its
    # norm.
    return jnp.matmul(left.T, right.astype(left.dtype), precision=jax.lax.Precision.HIGHEST)


def sum_of(terms: Iterable[jax.Array]) -> jax.Array:
    """Sum of at least one array."""
    return functools.reduce(jnp.add, terms)


def squares(values: jax.Array) -> jax.Array:
    """Sum of squares of each item of a batch."""
    flat = values.astype(float).reshape(values.shape[0], -1)  # double in the compiled loop
    return jnp.sum(jnp.square(flat), axis=1)


def parts_of(contribution: Contribution) -> tuple[list[Part], jax.tree_util.PyTreeDef]:
    """The parts of a block, in the order of its pytree, and its structure."""
    leaves, treedef = jax.tree.flatten(contribution, is_leaf=_is_part)
    return [x if isinstance(x, Part) else Dense(x) for x in leaves], treedef


def _is_part(leaf: object) -> bool:
    return isinstance(leaf, Part)


def scaled(contribution: Contribution, factor: Number) -> Contribution:
    """One record's contribution times a number."""
    return jax.tree.map(
        lambda part: part.scaled(factor) if isinstance(part, Part) else part * factor,
        contribution,
        is_leaf=_is_part,
    )


def contribution_norms(contributions: Contribution) -> jax.Array:
    """l2 norms of a batch of contributions, as given."""
    prepared = [part.prepared(1.0, 1.0, exact=False) for part in parts_of(contributions)[0]]
    return jnp.sqrt(sum_of(squares(part.head) * gain**2 for part, gain in prepared))


def contribution_norm(contribution: Contribution) -> jax.Array:
    """l2 norm of one record's contribution."""
    return contribution_norms(jax.tree.map(lambda leaf: leaf[None], contribution))[0].astype(
        jnp.float32
    )
