"""Arrays of any shape, by name: the records of NumPyro models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from scipy import sparse
from sklearn.utils.validation import validate_data

from skdpbayes.cells import parsed
from skdpbayes.facts import Facts, Field, Shape
from skdpbayes.intake.labels import as_labels
from skdpbayes.intake.reading import Reader, Rows, response_numbers, table_rows
from skdpbayes.intake.rows import refuse_text_columns
from skdpbayes.intake.sources import Converted, RecordSource
from skdpbayes.intake.stored import MappedArray, StoredNumbers, source_of
from skdpbayes.intake.tables import (
    as_table,
    check_table,
    dtype_of,
    frame_of,
    is_sequence,
    named,
)

if TYPE_CHECKING:
    from skdpbayes.mechanism.records import Records

Fields = dict[str, Any]


@dataclass(frozen=True)
class FieldRows(Reader):
    """Arrays of the records by their names, or places, as arguments of a model."""

    def declared(self, shape: Shape) -> Facts:
        """Shapes alone; of a table without fields, those of ``model(X, y)`` with numbers."""
        if not shape.fields:
            fields = (Field("0", (shape.n_features,), "float32"), Field("1", (), "float32"))
            shape = Shape(shape.n_rows, shape.n_features, shape.names, fields)
        return Facts(shape)

    def read(self, owner: Any, X: Any, y: Any = None) -> Rows:
        """Fields of the records."""
        fields = self.fields(owner, X, y, reset=True)
        facts = facts_of(fields, vars(owner).get("n_features_in_", 0))
        return table_rows(
            facts, lambda *own: pack(dict(zip(fields, own, strict=True))), *fields.values()
        )

    def made_up(self, n_rows: int, shape: Shape) -> tuple[Any, Any]:
        """Fields of zeros, by place or by name."""
        own = {
            name: np.zeros((n_rows, *size), dtype)
            for name, size, dtype in self.declared(shape).shape.fields
        }
        if "0" in own:
            return own["0"], own.get("1")
        return own, None

    def fields(self, owner: Any, X: Any, y: Any = None, *, reset: bool) -> Fields:
        """Arrays by name."""
        if isinstance(X, dict) and not sparse.issparse(X):  # which one format is
            if y is not None:
                raise ValueError(
                    "X is a dict of the model's arguments: put y into it, by its name in the model."
                )
            if not X or not all(isinstance(name, str) and name.isidentifier() for name in X):
                raise ValueError(f"X as a dict must name arguments of the model, got {list(X)}.")
            fields = {name: _array(f"X[{name!r}]", value) for name, value in X.items()}
        else:
            width = None if reset else vars(owner).get("n_features_in_")
            fields = {"0": _array("X", X, width)}
            if fields["0"].ndim == 2:
                own = named(X, fields["0"])
                validate_data(owner, own, skip_check_array=True, reset=reset)
            if y is not None:
                fields["1"] = _array("y", y)
        lengths = [x.shape[0] for x in fields.values()]
        if len(set(lengths)) != 1:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: {lengths}."
            )
        if not all(lengths):
            raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
        return fields


def facts_of(fields: Fields, n_features: int, **more: Any) -> Facts:
    """Facts of records: shapes, dtypes, and where they lie in memory."""
    own = tuple(
        Field(name, tuple(x.shape[1:]), typed(x[:1]).dtype.name) for name, x in fields.items()
    )
    arrays = [
        own
        for x in fields.values()
        for own in (x.memory if isinstance(x, RecordSource) else (x,))
        if not sparse.issparse(own) and own.size
    ]
    memory = tuple(map(byte_bounds, arrays))
    n = next(iter(fields.values())).shape[0]
    return Facts(Shape(n, n_features, None, own), memory=memory, **more)


def pack(fields: Fields) -> Records:
    """Records of fields."""
    from skdpbayes.intake.packing import finite_rows, pack_records

    own = {name: typed(x) for name, x in fields.items()}
    finite = [finite_rows(x) for x in own.values()]  # negative integers are no nulls here
    return pack_records(usable=np.logical_and.reduce(finite), **own)


def typed(x: Any) -> Any:
    """In single precision, 32 bits or as a Boolean, element by element."""
    if x.dtype.kind == "b":
        return x
    with np.errstate(all="ignore"):
        if x.dtype.kind == "f":
            return x.astype(np.float32)
        edges = np.iinfo(np.int32)
        return np.clip(x, edges.min, edges.max).astype(np.int32)


def _stored_floats(source: RecordSource) -> RecordSource:
    """A table as floats, and a column too unless all of its items are numbers."""
    if source.ndim == 2:
        return StoredNumbers(source)
    if source.dtype.kind == "O" or (source.nullable and source.dtype.kind != "f"):
        return Converted(source, response_numbers)
    return source


def _array(name: str, value: Any, width: int | None = None) -> Any:
    """An array of numbers; cells that are none become NaN. A list X has a public `width`.

    Raises
    ------
    ValueError
        For public facts: a dtype that holds no numbers, no axis of records.
    """
    refuse_text_columns(value)
    # No record may decide whether a list holds rows: X does, another argument holds items.
    of_rows = is_sequence(value) and name == "X"
    if of_rows or sparse.issparse(value) or frame_of(value) is not None:
        return as_table(value, width).numeric()
    # One missing value may decide about a dtype of pandas or polars, and each value about a list
    # without a dtype: these are read item by item, as floats.
    dtype = dtype_of(value)
    if isinstance(value, Iterable) and not isinstance(dtype, np.dtype):
        return parsed(as_labels(list(value) if dtype is None else value))
    source = source_of(value)
    if source is not None and not isinstance(source, MappedArray):
        source = _stored_floats(source)
    array = np.asarray(value) if source is None else source
    if array.ndim == 2 or array.dtype.kind == "c":
        check_table(array)
    if array.ndim == 0 or array.dtype.kind not in "fiubO":
        raise ValueError(
            f"{name} must be an array of numbers with an axis of records, got dtype {array.dtype} "
            f"and shape {array.shape}. Encode text by public categories, as "
            "skdpbayes.preprocessing.CategoryEncoder does."
        )
    return parsed(array) if isinstance(array, np.ndarray) and array.dtype.kind == "O" else array
