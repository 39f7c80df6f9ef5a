"""Training records as the compiled loop sees them: padded arrays, and rows that know how to be gathered.

Everything here is a map over single records: no total, mean or count of the data is ever formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_SLOTS = 16  # non-zeros of a row that are scattered at a time
_NARROWEST = 32  # width of the shortest ragged rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SparseRows:
    """CSR rows; a batch of them is made dense when it is gathered."""

    data: Any
    columns: Any
    row_starts: Any  # (n + 1,)
    template: Any  # zeros of shape (n_columns,): the width as a shape

    def take(self, indices):
        """Dense rows, of shape (len(indices), n_columns)."""
        start, stop = self.row_starts[indices], self.row_starts[indices + 1]
        rows = jnp.arange(indices.shape[0], dtype=jnp.int32)[:, None]

        def scatter(carry):
            offset, dense = carry
            slots = start[:, None] + offset + jnp.arange(_SLOTS, dtype=jnp.int32)
            inside = slots < stop[:, None]
            slots = jnp.where(inside, slots, 0)
            dense = dense.at[rows, self.columns[slots]].add(jnp.where(inside, self.data[slots], 0))
            return offset + _SLOTS, dense

        dense = jnp.zeros((indices.shape[0], self.template.shape[0]), self.data.dtype)
        longest = jnp.max(stop - start)
        return jax.lax.while_loop(lambda carry: carry[0] < longest, scatter, (jnp.int32(0), dense))[
            1
        ]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RaggedRows:
    """CSR rows of very different lengths, sorted by length; a batch has lists of columns and values of one width.

    Each row has the width that its own length asks for, of a few: what a row contributes, to the
    last bit, must not depend on the rows that are gathered with it.
    """

    data: Any
    columns: Any
    row_starts: Any  # (n + 1,)
    template: Any  # zeros of shape (n_columns,): the width as a shape

    def take(self, indices, width):
        """Columns, in increasing order and then ``n_columns``, and values, then zero, each of shape (n, width)."""
        start, place = self.row_starts[indices], jnp.arange(width, dtype=jnp.int32)
        inside = place < (self.row_starts[indices + 1] - start)[:, None]
        slots = jnp.where(inside, start[:, None] + place, 0)
        columns = jnp.where(inside, self.columns[slots], self.template.shape[0])
        return {"columns": columns, "values": jnp.where(inside, self.data[slots], 0)}


class Group(NamedTuple):
    """Records from `start` to `stop`, all of the width `width` (None, if they have no `RaggedRows`)."""

    width: int | None
    start: Any
    stop: Any


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["fields", "n_records", "ends"],
    meta_fields=["widths", "slots"],
    drop_fields=["usable"],
)
@dataclass(frozen=True)
class Records:
    """A pytree of arrays with a common leading axis, padded; `n_records` of them are real.

    The number of records is a traced value and the arrays are padded to one of a few sizes, so that
    folds of a cross-validation share one compiled program. Where there are `RaggedRows`, `widths`
    has the width of each group and `ends` where it ends. `slots` of a batch are processed at a time
    (None: as many as suit cheap records).
    """

    fields: Any
    n_records: Any
    ends: Any = ()
    widths: tuple[int, ...] = ()
    slots: int | None = None
    usable: np.ndarray | None = field(default=None, compare=False)

    @property
    def n_slots(self) -> int:
        """Number of records, with those that pad."""

        def size(field):
            return (
                field.row_starts.shape[0] - 1
                if isinstance(field, SparseRows | RaggedRows)
                else field.shape[0]
            )

        return size(
            jax.tree.leaves(self.fields, is_leaf=lambda x: isinstance(x, SparseRows | RaggedRows))[
                0
            ]
        )

    def bounds(self) -> list[int]:
        """Where groups begin, and the number of records."""
        return [0, *(int(group.stop) for group in self.groups())]

    def one(self):
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

    def take(self, indices, width=None):
        """The records at `indices`, as a batch."""

        def rows(field):
            if isinstance(field, SparseRows):
                return field.take(indices)
            if isinstance(field, RaggedRows):
                return field.take(indices, width)
            return field.at[indices].get(mode="promise_in_bounds")

        return jax.tree.map(
            rows, self.fields, is_leaf=lambda x: isinstance(x, SparseRows | RaggedRows)
        )


def padded_size(n: int) -> int:
    """Smallest of the padded sizes that holds `n`: four per power of two, at least 64."""
    if n <= 64:
        return 64
    step = 2 ** (math.ceil(math.log2(n)) - 3)
    return step * math.ceil(n / step)
