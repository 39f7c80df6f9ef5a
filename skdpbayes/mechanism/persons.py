"""Persons as records: what the rows of one person contribute together.

A query maps a row to a contribution. `of_person` makes of it the query of a person, to which the
private sum does what it does to any record: it clips the contribution as a whole, to the norm of
`blocks_of_persons`. What a person can do to a release is thus decided where it is for rows, and
whatever is computed here changes utility, never privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from skdpbayes.mechanism.contributions import (
    Contribution,
    Part,
    contribution_norm,
    contribution_norms,
    parts_of,
    scaled,
)
from skdpbayes.mechanism.records import Person, Tree
from skdpbayes.mechanism.spec import Block, Mechanism


def blocks_of_persons(blocks: Mapping[str, Block], mechanism: Mechanism) -> dict[str, Block]:
    """Blocks with the clipping norms of a record of up to ``mechanism.most_rows`` rows."""
    return {
        name: own._replace(clipping_norm=mechanism.norm_of_record(own.clipping_norm, own.together))
        for name, own in blocks.items()
    }


@runtime_checkable
class QueryOfPersons(Protocol):
    """Query that says itself what the rows of a person contribute."""

    def person(self, record: Person) -> Mapping[str, Contribution]:
        """Contribution of a person, which the private sum clips as any other."""


def of_person(
    query: Callable[[Tree], Mapping[str, Contribution]],
    blocks: Mapping[str, Block],
    of_persons: Mapping[str, Block],
) -> Callable[[Tree], Mapping[str, Contribution]]:
    """Query of a record that may be a person: the sum, or mean, of its rows' contributions.

    Each row is clipped to the norm that a lone row would have, so that one outlier does not take
    the place of a person's other rows. A row does not count in a block in which it is not finite.

    Parameters
    ----------
    query : callable
        Of one row.
    blocks : mapping of str to Block
        Blocks of one row.
    of_persons : mapping of str to Block
        The same with the norms of persons (`blocks_of_persons`).
    """

    def whole(record: Tree) -> Mapping[str, Contribution]:
        if not isinstance(record, Person):
            return query(record)
        if isinstance(query, QueryOfPersons):
            return query.person(record)
        rows = jax.vmap(query)(record.rows)
        sums = {
            name: _together(own, record.present, blocks[name]) if name in blocks else own
            for name, own in rows.items()
        }
        if any(own.together == "statistic" for own in blocks.values()):
            return _shortened(sums, of_persons)
        return sums

    return whole


def _together(rows: Contribution, present: jax.Array, block: Block) -> Contribution:
    """Sum or mean of the contributions of a person's rows."""
    norms = contribution_norms(rows)
    usable = present & jnp.isfinite(norms)
    limit = jnp.asarray(block.clipping_norm, norms.dtype)
    weight = jnp.where(usable, jnp.minimum(1, limit / jnp.where(norms > 0, norms, 1)), 0)
    if block.together == "mean":
        weight = weight / jnp.maximum(usable.sum(), 1)
    parts, treedef = parts_of(rows)

    def joined(part: Part) -> Contribution:
        kept = jax.tree.map(lambda x: jnp.where(_as_column(usable, x), x, jnp.zeros_like(x)), part)
        return kept.with_head(kept.head * _as_column(weight, kept.head)).joined()

    return jax.tree.unflatten(treedef, [joined(part) for part in parts])


def _shortened(
    sums: Mapping[str, Contribution], blocks: Mapping[str, Block]
) -> dict[str, Contribution]:
    """Contribution of a person, with one factor for all sums so that each keeps to its norm."""
    weight = jnp.ones(())
    shortened = {
        name: own for name, own in blocks.items() if own.together in ("statistic", "weight")
    }
    for name, block in shortened.items():
        norm, limit = contribution_norm(sums[name]), jnp.asarray(block.clipping_norm)
        weight = jnp.minimum(weight, jnp.where(norm > limit, limit / norm, 1))
    return {name: scaled(own, weight) if name in shortened else own for name, own in sums.items()}


def _as_column(values: jax.Array, like: jax.Array) -> jax.Array:
    return values.reshape(-1, *(1,) * (like.ndim - 1))
