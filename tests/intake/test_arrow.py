"""Tables of Arrow files: what is in them is what a data frame holds, row by row."""

import builtins
import datetime
import subprocess
import sys
from pathlib import Path

import arrow_files
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import skdpbayes
from skdpbayes import DPBayesianLogisticRegression, DPBetaBernoulli, DPNumPyroModel, Schema
from skdpbayes.intake import stored
from skdpbayes.intake.columns import numbers
from skdpbayes.intake.tables import as_table, kind_of
from skdpbayes.preprocessing import CategoryEncoder

N = 200
RNG = np.random.default_rng(0)
TYPES = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.decimal128(21, 2)),
)


def cells(dtype, n=N):
    values = RNG.integers(0, 2 if dtype == pa.bool_() else 100, n)
    known = pa.array(values).cast(pa.int64())
    if dtype == pa.float16():
        return pa.array(values.astype(np.float16))
    return (
        known.cast(pa.decimal128(21, 0)).cast(dtype)
        if pa.types.is_decimal(dtype)
        else known.cast(dtype)
    )


def with_nulls(values, places):
    mask = np.zeros(len(values), bool)
    mask[list(places)] = True
    return pa.array(
        [None if gone else own for gone, own in zip(mask, values.to_pylist(), strict=True)],
        values.type,
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_numbers_are_those_of_a_data_frame(dtype, tmp_path):
    """With a missing cell in one batch of four."""
    values = with_nulls(cells(dtype), [60, 63])
    expected = np.array([np.nan if v is None else float(v) for v in values.to_pylist()])
    table = arrow_files.write(tmp_path / "t", {"a": values, "b": pa.array(np.arange(N))}, block=50)
    read = stored.StoredNumbers(table)
    assert read.shape == (N, 2) and kind_of(dtype) in "iufbO"
    for places in (slice(None), slice(40, 70), np.array([0, 0, 59, 60, 63, 63, 199])):
        np.testing.assert_array_equal(read[places][:, 0], expected[places])
        np.testing.assert_array_equal(read[places][:, 1], np.arange(N)[places])
    in_memory = pa.table({"a": values}).to_pandas()
    np.testing.assert_array_equal(read[:][:, 0], numbers(in_memory, None, None)[:, 0])
    # A column, for y, has the type that the file declares wherever nothing is missing.
    column = table["a"]
    items = column[np.array([3, 60])]
    assert (
        np.isnan(items[1])
        if pa.types.is_floating(dtype) and dtype != pa.float16()
        else items[1] is None
    )
    assert float(items[0]) == expected[3] and len(column) == N
    assert column[10:20].dtype == column.dtype


def test_whole_columns_are_read_in_place(tmp_path):
    table = arrow_files.write(tmp_path / "t", {"a": np.arange(100.0)}, block=30)
    start = np.frombuffer(table._file.mapped, np.uint8).ctypes.data
    for chunk in table[25:95].column("a").chunks:
        assert 0 <= chunk.buffers()[1].address - start < len(table._file.mapped)


@pytest.mark.parametrize("label", [0, 2**60 + 1])
def test_a_missing_label_changes_no_other(label, tmp_path):
    """Floats would not tell 2**60 from the number after it."""
    y = with_nulls(pa.array([label, label + 1, 5] * 4), [4])
    y = arrow_files.write(tmp_path / "t", {"y": y}, block=6)["y"]
    model = DPBayesianLogisticRegression(classes=[label, label + 1])
    rows = model._reader().read(model, np.ones((12, 1)), y)
    codes = np.array([0, 1, -1] * 4)
    codes[4] = -1
    assert rows.part(slice(None)).fields["y"][:12].tolist() == codes.tolist()
    assert rows.part(np.array([1, 4, 6])).fields["y"][:3].tolist() == [1, -1, 0]


@pytest.mark.parametrize("format", [pa.string(), pa.large_string(), "dictionary"])
def test_text_labels_and_categories(format, tmp_path):
    texts = pa.array(["no", "yes", None, "perhaps"] * 5)
    texts = texts.dictionary_encode() if format == "dictionary" else texts.cast(format)
    table = arrow_files.write(tmp_path / "t", {"x": np.arange(20.0), "y": texts}, block=7)
    model = DPBayesianLogisticRegression(classes=["no", "yes"])
    part = model._reader().read(model, table[["x"]], table["y"]).part
    assert part(slice(4, 8)).fields["y"][:4].tolist() == [0, 1, -1, -1]
    assert model.feature_names_in_.tolist() == ["x"]
    encoder = CategoryEncoder({"y": ["no", "yes"]}).fit(table[["y"]][:])
    expected = [[1, 0], [0, 1], [0, 0], [0, 0]]
    assert encoder.transform(table[["y"]][:4]).tolist() == expected
    with pytest.raises(ValueError, match=r"Columns 'y' .* do not hold numbers"):
        model._reader().read(model, table, table["y"])


def broken():
    """Columns with a cell that pyarrow cannot hand out, beside cells that it can."""
    text = pa.Array.from_buffers(
        pa.string(),
        2,
        [None, pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"5\xff\xfe")],
    )
    return {
        "text": (text, ["5"], [5.0]),
        "date": (
            pa.array([10, 2**31 - 1], pa.int32()).cast(pa.date32()),
            [datetime.date(1970, 1, 11)],
            [np.nan],
        ),
        "time": (pa.array([1, 2**60], pa.int64()).cast(pa.timestamp("s")), [None], [np.nan]),
        "list": (pa.array([[1.0], None]), [None], [np.nan]),
    }


@pytest.mark.parametrize("kind", ["text", "date", "time", "list"])
def test_no_cell_raises_or_changes_another(kind, tmp_path):
    values, first, as_number = broken()[kind]
    table = as_table(arrow_files.write(tmp_path / "t", {"a": values})[:])
    good, bad = table.cells(0)
    assert good == first[0] or (first == [None] and good != good)
    assert isinstance(bad, float) and np.isnan(bad)
    np.testing.assert_array_equal(table.numeric(by_cell=True)[:, 0], [*as_number, np.nan])
    alone = as_table(pa.table({"a": values.slice(0, 1)}))
    assert repr(alone.cells(0)) == repr([good])


def test_a_schema_describes_the_columns(tmp_path):
    schema = Schema(
        {
            "age": {"bounds": [0, 99], "kind": "integer"},
            "sex": {"categories": [0, 1], "missing": 1},
        },
        {"name": "ill", "labels": [0, 1]},
    )
    data = {
        "age": pa.array([30.0, 30.5, None]),
        "sex": pa.array(["0", "x", None]),
        "ill": pa.array(["1", "0", "2"]),
    }
    table = arrow_files.write(tmp_path / "t", data)
    model = DPBayesianLogisticRegression(classes=schema, data_norm=1e3)
    frame = pa.table(data).to_pandas()
    expected = model._reader().read(model, frame[["age", "sex"]], frame["ill"]).pack()
    found = model._reader().read(model, table[["age", "sex"]], table["ill"]).pack()
    for name, own in expected.fields.items():
        np.testing.assert_array_equal(found.fields[name], own)
    assert expected.usable.tolist() == [True, False, False]
    with pytest.raises(ValueError, match="in the order of the schema"):
        model._reader().read(model, table[["sex", "age"]], table["ill"])
    with pytest.raises(ValueError, match=r"it lacks \['sex'\]"):
        model._reader().read(model, table[["age"]], table["ill"])


def test_columns_of_numpyro_models(tmp_path):
    data = pa.table(
        [pa.array([1, None, 3]), pa.array([1, 2, 3]), pa.array([0.5, None, 1.5])],
        pa.schema(
            [("a", pa.int64()), pa.field("b", pa.int64(), nullable=False), ("c", pa.float64())]
        ),
    )
    table = arrow_files.write(tmp_path / "t", data)
    model = DPNumPyroModel(lambda a, b, c: None)
    fields = {name: table[name] for name in table.names}
    rows = model._reader().read(model, fields)
    assert [(f.name, f.dtype) for f in rows.facts.shape.fields] == [
        ("a", "float32"), ("b", "int32"), ("c", "float32")
    ]  # fmt: skip
    records = rows.pack()
    assert records.usable.tolist() == [True, False, True]
    assert records.fields["b"][:3].tolist() == [1, 2, 3]


def test_whoever_needs_all_rows_reads_them(tmp_path):
    X = RNG.integers(0, 2, (50, 2))
    table, _ = arrow_files.of_rows(tmp_path / "t", X)
    model = DPBetaBernoulli(random_state=0).fit(table)
    again = DPBetaBernoulli(random_state=0).fit(pd.DataFrame(X, columns=["a", "b"]))
    np.testing.assert_array_equal(model.posterior_.mean, again.posterior_.mean)
    assert model.feature_names_in_.tolist() == ["a", "b"]
    np.testing.assert_array_equal(np.asarray(table["a"]), X[:, 0])
    assert skdpbayes.DPGaussianMixture(bounds=(0, 1)).plan(*table.shape).n_steps


def test_tables_of_columns(tmp_path):
    table = arrow_files.write(tmp_path / "t", {"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert table[["b"]].names == ("b",) and table[["b", "a"]][1:].to_pylist() == [{"b": 4, "a": 2}]
    assert table[::-1].column("a").to_pylist() == [2, 1]
    assert "2 rows" in repr(table) and "'a'" in repr(table["a"])
    for wrong in ("c", ["a", "c"], ["a", "a"], []):
        with pytest.raises(KeyError, match="which has"):
            table[wrong]


def test_what_is_no_table_is_refused(tmp_path):
    data = {"a": np.zeros(1000)}
    for codec in ("lz4", "zstd"):
        with pytest.raises(ValueError, match=r"is compressed.*skdpbayes convert"):
            arrow_files.write(
                tmp_path / codec, data, options=pa.ipc.IpcWriteOptions(compression=codec)
            )
    for content in (b"", b"a,b\n1,2\n" * 10):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(ValueError, match=r"is no Arrow IPC file.*skdpbayes convert"):
            skdpbayes.open_table(tmp_path / "other")
    twice = pa.Table.from_arrays([pa.array([1])] * 2, names=["a", "a"])
    with pytest.raises(ValueError, match="columns of one name: 'a'"):
        arrow_files.write(tmp_path / "twice", twice)
    with pytest.raises(FileNotFoundError):
        skdpbayes.open_table(tmp_path / "nothing")
    empty = arrow_files.write(tmp_path / "empty", {"a": pa.array([], pa.float64())})
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        DPBetaBernoulli().fit(empty)
    model = DPBayesianLogisticRegression(classes=[0, 1])
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        model.fit(empty, empty["a"])
    y = arrow_files.write(tmp_path / "short", {"a": [0, 1]})["a"]
    with pytest.raises(ValueError, match="X and y differ in length"):
        model.fit(np.zeros((3, 2)), y)


def test_pyarrow_is_an_extra(monkeypatch, tmp_path):
    known = builtins.__import__

    def without(name, *how):
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return known(name, *how)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install skdpbayes\[arrow\]"):
        skdpbayes.open_table(tmp_path / "t")


def test_memory_does_not_grow_with_the_table(tmp_path):
    """The map is the same for 20 times as many rows, in one batch or in many."""
    if not Path("/proc/self/smaps").exists():
        pytest.skip("no /proc")
    block = np.ones((20_000, 8))
    columns = pa.table({f"x{j}": block[:, j] for j in range(8)})
    with pa.ipc.new_file(tmp_path / "t", columns.schema) as file:
        for _ in range(20):
            file.write_table(columns)  # 26 MB
    code = """
import sys, numpy as np
from pathlib import Path
from skdpbayes import open_table
from skdpbayes.intake import arrow, stored

def mapped():
    own = Path("/proc/self/smaps").read_text().split(sys.argv[1])[1].splitlines()
    return next(int(line.split()[1]) for line in own if line.startswith("Rss:"))

table = open_table(sys.argv[1])
rows = stored.StoredNumbers(table)
np.frombuffer(table._file.mapped, np.uint8).sum()
whole = mapped()
for part in range(0, 400_000, 20_000):
    assert rows[part : part + 20_000].sum() == 160_000
assert rows[np.arange(0, 400_000, 7)].sum() == 8 * 57143
most = [mapped()]
arrow.SEGMENT = 2**20
original = arrow.drop_pages
arrow.drop_pages = lambda own: (most.append(mapped()), original(own))
table.take(np.arange(0, 400_000, 3))
print(whole, most[0], max(most))
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "t")],
        capture_output=True,
        text=True,
        check=True,
    )
    whole, after, most = map(int, run.stdout.split())
    assert whole > 20_000 and after < 1_000 and most < 8_000
