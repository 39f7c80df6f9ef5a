"""Training records as the compiled loop sees them: padded arrays, and rows that are gathered.

Everything here is a map over single records: no total, mean or count of the data is ever formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from skdpbayes.pytrees import pytree

CHUNK = 384
"""Batch slots summed in floating point at a time: a multiple of 64.

A processor takes one chunk at a time: larger ones would waste slots, smaller ones cost launches. An
accelerator takes many at once.
"""

NARROWEST = 32
"""Width of the shortest `RaggedRows`."""

Array: TypeAlias = jax.Array | np.ndarray
"""An array of NumPy, which the compiled loop makes one of JAX."""

Tree: TypeAlias = Any
"""A pytree of arrays, whose structure is the model's."""

_SLOTS = 16  # non-zeros of a row that are scattered at a time
_ALIGNED = 64  # bytes


@pytree
@dataclass(frozen=True)
class SparseRows:
    """CSR rows; a batch of them is made dense when it is gathered."""

    data: Array
    columns: Array
    row_starts: Array  # (n + 1,)
    template: Array  # zeros of shape (n_columns,): the width as a shape

    def take(self, indices: jax.Array) -> jax.Array:
        """Dense rows, of shape (len(indices), n_columns)."""
        start, stop = self.row_starts[indices], self.row_starts[indices + 1]
        rows = jnp.arange(indices.shape[0], dtype=jnp.int32)[:, None]

        def scatter(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            offset, dense = carry
            slots = start[:, None] + offset + jnp.arange(_SLOTS, dtype=jnp.int32)
            inside = slots < stop[:, None]
            slots = jnp.where(inside, slots, 0)
            dense = dense.at[rows, self.columns[slots]].add(jnp.where(inside, self.data[slots], 0))
            return offset + _SLOTS, dense

        dense = jnp.zeros((indices.shape[0], self.template.shape[0]), self.data.dtype)
        longest = jnp.max(stop - start)
        taken: jax.Array
        _, taken = jax.lax.while_loop(
            lambda carry: carry[0] < longest, scatter, (jnp.int32(0), dense)
        )
        return taken


@pytree
@dataclass(frozen=True)
class RaggedRows:
    """CSR rows of very different lengths, sorted by length; a batch has lists of one width.

    Each row has the width that its own length asks for, of a few: what a row contributes, to the
    last bit, must not depend on the rows that are gathered with it.
    """

    data: Array
    columns: Array
    row_starts: Array  # (n + 1,)
    template: Array  # zeros of shape (n_columns,): the width as a shape

    def take(self, indices: jax.Array, width: int | None) -> dict[str, jax.Array]:
        """Columns and values, each of shape (n, width).

        Columns are in increasing order. Unused places have the column ``n_columns`` and value zero.
        """
        if width is None:
            raise ValueError("Ragged rows are taken with a width.")
        start, place = self.row_starts[indices], jnp.arange(width, dtype=jnp.int32)
        inside = place < (self.row_starts[indices + 1] - start)[:, None]
        slots = jnp.where(inside, start[:, None] + place, 0)
        columns = jnp.where(inside, self.columns[slots], self.template.shape[0])
        return {"columns": columns, "values": jnp.where(inside, self.data[slots], 0)}


class Person(NamedTuple):
    """The rows of one person, or of a batch of persons.

    Attributes
    ----------
    rows : pytree
        With an axis of places for rows.
    present : bool array
        Places that hold a row.
    """

    rows: Tree
    present: jax.Array


@pytree
@dataclass(frozen=True)
class Persons:
    """Rows by person: a record is a person.

    Attributes
    ----------
    rows : pytree
        Fields of all rows.
    order : int32 array
        Places of the rows that count, of one person after the other.
    starts : int32 array of shape (n_persons + 1,)
        Where in `order` a person's rows begin.
    most : int
        Largest number of a person's rows.
    """

    rows: Tree
    order: Array
    starts: Array
    most: int = field(metadata={"static": True})

    def take(self, indices: jax.Array, width: int | None) -> Person:
        """Batch of persons."""
        places = self.starts[indices][:, None] + jnp.arange(self.most, dtype=jnp.int32)
        present = places < self.starts[indices + 1][:, None]
        rows = _taken(self.rows, self.order[jnp.where(present, places, 0)].reshape(-1), width)
        return Person(jax.tree.map(lambda x: x.reshape(*places.shape, *x.shape[1:]), rows), present)


class Group(NamedTuple):
    """Records from `start` to `stop`, of one width (None, if they have no `RaggedRows`)."""

    width: int | None
    start: jax.Array | np.integer[Any]
    stop: jax.Array | np.integer[Any]


@pytree
@dataclass(frozen=True)
class Records:
    """A pytree of arrays with a common leading axis, padded; `n_records` of them are real.

    The number of records is a traced value and the arrays are padded to one of a few sizes, so that
    folds of a cross-validation share one compiled program. Where there are `RaggedRows`, `widths`
    has the width of each group and `ends` where it ends. `slots` of a batch are processed at a time
    (None: as many as suit cheap records), in several chunks if a chunk has fewer; `whole`: no batch
    has more. `places` says
    where the rows are, in the order in which they were given (None: in that order). `axis` names
    the devices over which records are divided, each of which has a part of them (None: all are
    here).
    """

    fields: Tree
    n_records: jax.Array | np.integer[Any]
    ends: Array | tuple[()] = ()
    widths: tuple[int, ...] = field(default=(), metadata={"static": True})
    slots: int | None = field(default=None, metadata={"static": True})
    whole: bool = field(default=False, metadata={"static": True})
    axis: str | None = field(default=None, metadata={"static": True})
    usable: np.ndarray | None = field(default=None, compare=False, metadata={"dropped": True})
    places: np.ndarray | None = field(default=None, compare=False, metadata={"dropped": True})

    @property
    def shaped(self) -> Records:
        """Records of the same shapes."""
        return self

    @property
    def n_slots(self) -> int:
        """Number of records, with those that pad."""
        first = jax.tree.leaves(self.fields, is_leaf=_is_rows)[0]
        if isinstance(first, SparseRows | RaggedRows):
            return int(first.row_starts.shape[0] - 1)
        if isinstance(first, Persons):
            return int(first.starts.shape[0] - 1)
        return int(first.shape[0])

    @property
    def at_once(self) -> int:
        """Slots of a batch that are processed at a time."""
        return self.slots or CHUNK

    @property
    def parts(self) -> list[Tree]:
        """All that a fit reads of the records."""
        return [(self.fields, self.n_records, self.ends)]

    @property
    def most_rows(self) -> int:
        """Largest number of rows of a record: above one where records are persons."""
        return self.fields.most if isinstance(self.fields, Persons) else 1

    def bounds(self) -> list[int]:
        """Where groups begin, and the number of records."""
        return [0, *(int(group.stop) for group in self.groups())]

    def one(self) -> Tree:
        """A batch of one record, for its shapes."""
        return self.take(jnp.zeros(1, jnp.int32), self.groups()[0].width)

    def groups(self) -> list[Group]:
        """Records that are gathered in the same way."""
        if not self.widths:
            return [Group(None, jnp.int32(0), self.n_records)]
        starts = [jnp.int32(0), *(self.ends[i] for i in range(len(self.widths) - 1))]
        return [
            Group(w, start, self.ends[i])
            for i, (w, start) in enumerate(zip(self.widths, starts, strict=True))
        ]

    def take(self, indices: jax.Array, width: int | None = None) -> Tree:
        """The records at `indices`, as a batch."""
        return _taken(self.fields, indices, width)


def _taken(fields: Tree, indices: jax.Array, width: int | None) -> Tree:
    def rows(field: Any) -> Tree:
        if isinstance(field, SparseRows):
            return field.take(indices)
        if isinstance(field, RaggedRows | Persons):
            return field.take(indices, width)
        return field.at[indices].get(mode="promise_in_bounds")

    return jax.tree.map(rows, fields, is_leaf=_is_rows)


def _is_rows(leaf: object) -> bool:
    return isinstance(leaf, SparseRows | RaggedRows | Persons)


def padded_size(n: int) -> int:
    """Smallest of the padded sizes that holds `n`: four per power of two, at least 64."""
    if n <= 64:
        return 64
    step: int = 2 ** (math.ceil(math.log2(n)) - 3)
    return step * math.ceil(n / step)


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array that begins where a processor's programs may use it as it is, without a copy."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(n_bytes + _ALIGNED, np.uint8)
    start = -raw.ctypes.data % _ALIGNED
    out: np.ndarray = raw[start : start + n_bytes].view(dtype).reshape(shape)
    return out
