"""Parquet, CSV and compressed Arrow files as Arrow files that are read in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from skdpbayes.cells import objects, parsed
from skdpbayes.intake.arrow import imported
from skdpbayes.intake.files import (
    category_like,
    check_format,
    csv_cells,
    described,
    values_of,
)
from skdpbayes.intake.labels import codes
from skdpbayes.intake.tables import ArrowFrame, arrow_dtype, items
from skdpbayes.schema import Column, Outcome, Schema

_BLOCK = 2**16  # rows that are converted at a time, and that a batch of the result has


def convert(
    source: str | Path,
    target: str | Path,
    schema: Schema | None = None,
    *,
    delimiter: str = ",",
    decimal: str = ".",
) -> tuple[int, list[str]]:
    """Write a table as an Arrow file of fixed-width columns, for `skdpbayes.open_table`.

    Rows are read and written block by block, so that memory does not grow with their number (it
    does with the row groups of a Parquet file). Cells are read as `skdpbayes.read_csv` reads them:
    none raises, and none changes another. One that is no number of its column's kind becomes NaN.
    A text that is not among the categories or labels of the schema becomes a missing cell, which
    is none of them either.

    Parameters
    ----------
    source : str or Path
        A Parquet file, an Arrow IPC (Feather) file, or a CSV file, which its first bytes tell.
    target : str or Path
        File that is written; it is there as a whole or not at all, with the permissions of
        `source`.
    schema : Schema, default=None
        Its columns and its outcome are written, by name. None writes all columns, which must be
        numbers, in the types of the file; not for CSV files.
    delimiter : str, default=","
        Of a CSV file.
    decimal : {".", ","}, default="."
        Decimal point of a CSV file.

    Returns
    -------
    n_rows : int
    names : list of str

    Raises
    ------
    ImportError
        Without pyarrow.
    ValueError
        For public facts: names and types of columns. Never for the content of a record.
    """
    pa, source, target = imported(), Path(source), Path(target)
    if target.exists() and target.samefile(source):
        raise ValueError(f"{target} is the source: give the target another name.")
    with open(source, "rb") as file:
        magic = file.read(6)
    if magic == b"ARROW1":
        batches = _batches_of_arrow(source)
    elif magic[:4] == b"PAR1":
        batches = _batches_of_parquet(source)
    elif schema is None:
        raise ValueError(
            f"{source} is read as a CSV file, which does not say what its columns are: give a "
            "schema."
        )
    else:
        check_format(delimiter, decimal)
        blocks = _of_csv(source, schema, delimiter, decimal)
        return _written(pa, source, target, blocks, _layout(schema))
    header, blocks = batches
    if schema is None:
        layout = pa.schema([_numbers(own) for own in header])
        columns = (_as_they_are(block, layout) for block in blocks)
    else:
        wanted = described(schema)
        _refuse_missing(source, [own.name for own in wanted], header.names)
        layout = _layout(schema)
        columns = (_described(block, wanted) for block in blocks)
    return _written(pa, source, target, columns, layout)


def _written(
    pa: Any, source: Path, target: Path, blocks: Iterable[list[Any]], layout: Any
) -> tuple[int, list[str]]:
    """Write blocks of columns; a number of rows, and the names."""
    n_rows, new = 0, target.with_name(f"{target.name}.new")
    try:
        with open(new, "wb") as file:
            shutil.copymode(source, new)  # before the first record is in it
            with pa.ipc.new_file(file, layout) as writer:
                for block in blocks:
                    batch = pa.RecordBatch.from_arrays(block, schema=layout)
                    writer.write_batch(batch)
                    n_rows += batch.num_rows
        os.replace(new, target)
    finally:
        new.unlink(missing_ok=True)
    return n_rows, list(layout.names)


def _batches_of_arrow(source: Path) -> tuple[Any, Iterator[Any]]:
    """Schema and blocks of an Arrow file."""
    pa = imported()
    reader = pa.ipc.open_file(pa.memory_map(str(source)))

    def blocks() -> Iterator[Any]:
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            for low in range(0, batch.num_rows, _BLOCK):
                yield batch.slice(low, _BLOCK)

    return reader.schema, blocks()


def _batches_of_parquet(source: Path) -> tuple[Any, Iterator[Any]]:
    """Schema and blocks of a Parquet file."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(source, pre_buffer=False)
    return file.schema_arrow, file.iter_batches(_BLOCK, use_threads=False)


def _refuse_missing(source: Path, names: list[str], known: list[str]) -> None:
    missing = [name for name in names if name not in known]
    twice = [name for name in names if known.count(name) > 1]
    if missing or twice:
        raise ValueError(
            f"{source} must have each column of the schema once; it lacks {missing} and repeats "
            f"{twice}. It has {known}."
        )


# ------------------------------------------------------------ by the file's own types


def _numbers(field: Any) -> Any:
    """Field of a column of numbers as it is written; decimals and half floats are floats."""
    pa = imported()
    if arrow_dtype(field.type) is not None:
        return pa.field(field.name, field.type, field.nullable)
    if str(field.type).startswith(("decimal", "halffloat")):
        return pa.field(field.name, pa.float64(), nullable=False)
    raise ValueError(
        f"Column {field.name!r} has the type {field.type}. Without a schema only numbers are "
        "written: give a schema with the categories of this column, or without the column."
    )


def _as_they_are(block: Any, layout: Any) -> list[Any]:
    pa = imported()
    out = []
    for own, field in zip(block.columns, layout, strict=True):
        same = own.type == field.type
        cells = own if same else parsed(objects(items(pa.chunked_array([own]))))
        out.append(cells if same else pa.array(cells))
    return out


# -------------------------------------------------------------------- by a schema


def _layout(schema: Schema) -> Any:
    """Fields as a schema describes them, of fixed width."""
    pa = imported()

    def field(column: Column | Outcome) -> Any:
        like = category_like(column)
        if like is None:
            return pa.field(column.name, pa.float64(), nullable=False)
        text = pa.dictionary(pa.int32(), pa.string())
        return pa.field(column.name, text if isinstance(like, str) else pa.bool_())

    return pa.schema([field(column) for column in described(schema)])


def _packed(column: Column | Outcome, values: np.ndarray) -> Any:
    """Values of a column, as `values_of` reads them, in the type of its field."""
    pa, like = imported(), category_like(column)
    if like is None:
        return pa.array(values)
    declared = column.categories if isinstance(column, Column) else column.labels
    assert declared is not None
    code = codes(values, np.array(declared))
    if not isinstance(like, str):
        return pa.array(np.array(declared)[np.maximum(code, 0)], mask=code < 0)
    texts = pa.array(list(declared), pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(code, mask=code < 0), texts)


def _of_csv(source: Path, schema: Schema, delimiter: str, decimal: str) -> Iterator[list[Any]]:
    wanted = described(schema)
    for cells in csv_cells(source, schema, delimiter, _BLOCK):
        yield [
            _packed(own, values_of(own, some, decimal))
            for own, some in zip(wanted, cells, strict=True)
        ]


def _described(block: Any, wanted: list[Column | Outcome]) -> list[Any]:
    pa = imported()
    table = ArrowFrame(pa.Table.from_batches([block]))
    places = [table.names.index(column.name) for column in wanted]
    return [
        _packed(own, values_of(own, table.cells(j))) for own, j in zip(wanted, places, strict=True)
    ]
