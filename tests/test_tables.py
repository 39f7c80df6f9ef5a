"""Tables of every library: shapes, names, columns and numbers, and no library loaded for it."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

import skdpbayes.intake
from skdpbayes.declarations import Declared
from skdpbayes.intake.labels import as_labels
from skdpbayes.intake.tables import (
    ArrayTable,
    PandasFrame,
    PolarsFrame,
    SparseTable,
    as_table,
    dtype_of,
    frame_of,
    kind_of,
    may_hold_numbers,
    named,
)
from skdpbayes.schema import Schema

ROWS = [[1.0, 2.0, 0.0], [3.0, 0.0, 5.0]]
NAMES = ["a", "b", "c"]
TABLES = {
    "list": (ROWS, ArrayTable),
    "tuple of arrays": (tuple(map(np.array, ROWS)), ArrayTable),
    "array": (np.array(ROWS), ArrayTable),
    "objects": (np.array(ROWS, object), ArrayTable),
    "text": (np.array(ROWS).astype("U5"), ArrayTable),
    "CSR": (sparse.csr_array(ROWS), SparseTable),
    "COO": (sparse.coo_matrix(ROWS), SparseTable),
    "pandas": (pd.DataFrame(ROWS, columns=NAMES), PandasFrame),
    "pandas, own dtypes": (pd.DataFrame(ROWS, columns=NAMES, dtype="Float64"), PandasFrame),
    "polars": (pl.DataFrame(ROWS, NAMES, orient="row"), PolarsFrame),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_the_same_in_every_library(kind):
    X, of = TABLES[kind]
    table = as_table(X, 3)
    assert type(table) is of and as_table(table) is table
    assert (table.n_rows, table.n_columns) == (2, 3)
    assert table.names == (tuple(NAMES) if frame_of(X) is not None else None)
    numeric = table.numeric()
    assert numeric.dtype == np.float64 and sparse.issparse(numeric) == sparse.issparse(X)
    np.testing.assert_array_equal(numeric.toarray() if sparse.issparse(X) else numeric, ROWS)
    by_cell = table.numeric(by_cell=True)
    np.testing.assert_array_equal(by_cell.toarray() if sparse.issparse(X) else by_cell, ROWS)
    np.testing.assert_array_equal(table.column(2).astype(float), [0, 5])
    assert list(map(float, table.cells(1))) == [2, 0]
    some = table.select([2, 0])
    assert type(some) is of and some.names in (None, ("c", "a"))
    np.testing.assert_array_equal(
        np.column_stack([some.column(0), some.column(1)]).astype(float), [[0, 1], [5, 3]]
    )
    assert named(X, "numbers") is (X if table.names else "numbers")


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros(3), "Expected 2D array, got 1D array"),
        (3.0, "got scalar array"),
        (pd.Series([1.0]), "got 1D array"),
        (pd.DataFrame({"a": []}), r"0 sample\(s\) \(shape=\(0, 1\)\)"),
        (pl.DataFrame({"a": []}), r"0 sample\(s\)"),
        (np.zeros((2, 0)), r"0 feature\(s\) \(shape=\(2, 0\)\)"),
        (sparse.csr_array((0, 2)), r"0 sample\(s\)"),
        (np.zeros((2, 2), complex), "Complex data not supported"),
        (ROWS, "nothing public says how many columns"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_only_public_facts_are_refused(X, message):
    with pytest.raises(ValueError, match=message):
        as_table(X)


def test_names_of_columns_are_no_attributes():
    """A column may have any name, also that of an attribute that other libraries have."""
    for name in ("dtype", "iloc", "to_series", "columns", "shape"):
        frame = pd.DataFrame({name: [0, 1]})
        assert dtype_of(frame) is None and as_labels(frame) is frame
        np.testing.assert_array_equal(as_table(frame).numeric(), [[0], [1]])
        assert as_labels(pl.DataFrame({name: ["x", "y"]})).tolist() == ["x", "y"]


@pytest.mark.parametrize(
    ("dtype", "kind", "numbers"),
    [
        (np.dtype("f4"), "f", True),
        (np.dtype(object), "O", True),
        (np.dtype("U3"), "U", False),
        (pd.Int64Dtype(), "i", True),
        (pd.BooleanDtype(), "b", True),
        (pd.StringDtype(), "U", False),
        (pd.CategoricalDtype([1]), "O", False),
        (pd.PeriodDtype("D"), "O", False),
        (pd.DatetimeTZDtype(tz="UTC"), "M", False),
        (pl.Series([1]).dtype, "f", True),
        (pl.Series([True]).dtype, "b", True),
        (pl.Series(["a"]).dtype, "U", False),
        (pl.Series(["a"], dtype=pl.Categorical).dtype, "U", False),
        (pl.Series(["a"], dtype=pl.Enum(["a"])).dtype, "U", False),
        (pl.Series([[1]]).dtype, "O", True),
        (pl.Series([None], dtype=pl.Date).dtype, "M", False),
        (pl.Series([1], dtype=pl.Decimal(5, 2)).dtype, "f", True),
    ],
    ids=str,
)
def test_dtypes_of_every_library(dtype, kind, numbers):
    assert (kind_of(dtype), may_hold_numbers(dtype)) == (kind, numbers)


def test_no_library_of_frames_is_loaded_for_a_table():
    code = (
        "import sys, numpy; from skdpbayes.intake.labels import as_labels; "
        "from skdpbayes.intake.tables import as_table; "
        "before = set(sys.modules); as_table(numpy.ones((2, 2))).numeric(); "
        "as_table([[1, 'a']], 2).numeric(); as_labels(['a', 1]); "
        "loaded = {'pandas', 'polars'} & (set(sys.modules) - before); "
        "sys.exit(str(loaded) if loaded else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


FOREIGN = {"iloc", "to_series", "to_numpy", "to_physical", "is_float", "is_temporal"}


def foreign(path):
    """Attributes of libraries' frames, and guesses by attributes, in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in FOREIGN:
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr"):
            if ast.unparse(node.args[1]) not in ("'read'", "'steps'"):  # of files, of pipelines
                yield ast.unparse(node)


def test_libraries_are_told_apart_in_one_place():
    room = Path(skdpbayes.intake.__file__).parent
    found = {path.name for path in room.glob("*.py") if list(foreign(path))}
    assert found == {"tables.py"}
    package = room.parent
    for own in ("declarations.py", "preprocessing/_public.py", "preprocessing/_check_data.py"):
        assert not list(foreign(package / own)), own


# Declarations

PEOPLE = Schema(
    {"age": {"bounds": (0, 120)}, "ward": {"categories": ["a", "b"]}},
    {"name": "days", "bounds": (0, 30)},
)
ILL = Schema({"age": {"bounds": (0, 120)}}, {"name": "ill", "labels": ["yes", "no"]})


@pytest.mark.parametrize(
    ("declared", "width", "schema"),
    [
        (Declared.of_columns(PEOPLE), 2, PEOPLE),
        (Declared.of_columns({"a": (0, 1), "b": (0, 2)}), 2, None),
        (Declared.of_columns((0, 1)), None, None),
        (Declared.of_columns(([0, 0, 0], [1, 1, 1])), 3, None),
        (Declared.of_columns(None), None, None),
        (Declared.of_regression(PEOPLE), 2, PEOPLE),
        (Declared.of_regression((PEOPLE, (0, 1))), 2, PEOPLE),
        (Declared.of_regression((([0, 0], 1), PEOPLE.outcome)), 2, None),
        (Declared.of_classes(ILL), 1, ILL),
        (Declared.of_classes(ILL.outcome), None, None),
        (Declared.of_classes(["yes", "no"]), None, None),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_a_parameter_is_one_value(declared, width, schema):
    assert declared.schema == schema and declared.width == width


def test_what_a_parameter_declares_of_columns_and_response():
    regression = Declared.of_regression((ILL, PEOPLE.outcome))
    assert regression.response == (0, 30) and regression.outcome == PEOPLE.outcome
    np.testing.assert_array_equal(regression.bounds(1), [[0], [120]])
    np.testing.assert_array_equal(regression.response_bounds(), [[0], [30]])
    by_name = Declared.of_columns({"b": (0, 2), "a": (0, 1)})
    np.testing.assert_array_equal(by_name.bounds(2, ["a", "b"]), [[0, 0], [1, 2]])
    assert Declared.of_classes(ILL).labels == ["yes", "no"]
    assert [own.tolist() for own in Declared.of_columns([0, 1]).categories(2)] == [[0, 1]] * 2
    with pytest.raises(ValueError, match=r"bounds of y must be a pair"):
        Declared.of_regression(((0, 1), (1, 0))).response_bounds()
    with pytest.raises(ValueError, match=r"the outcome 'days' of the schema has bounds"):
        Declared.of_classes(PEOPLE)
