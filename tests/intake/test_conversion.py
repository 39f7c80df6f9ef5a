"""`skdpbayes convert`: what `read_csv` makes of the cells, in a file that is read in place."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skdpbayes import DPBayesianLogisticRegression, Schema, open_table, read_csv
from skdpbayes.__main__ import main
from skdpbayes.intake import conversion
from skdpbayes.intake.conversion import convert
from skdpbayes.preprocessing import CategoryEncoder

SCHEMA = Schema(
    {
        "age": {"bounds": [0, 120], "kind": "integer"},
        "dose": {},
        "city": {"categories": ["Oslo", "Bergen"]},
        "smokes": {"categories": [False, True]},
        "ward": {"categories": [1, 2]},
    },
    {"name": "ill", "labels": ["no", "yes"]},
)
LINES = [
    "44,0.5,Oslo,true,1,yes,here",
    "forty,1e400,Rome,maybe,3,perhaps,here",
    "44.5,nan,,,,,",
    '"open,1,2',
    "too,short",
    "",
    "-3,-0.25,Bergen,FALSE,2,no,there",
    "9" * 400 + ",\xff,Oslo,True,x,yes,\x00",
]
TEXT = "age,dose,city,smokes,ward,ill,other\n" + "".join(f"{own}\n" for own in LINES * 3)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(conversion, "_BLOCK", 5)


def written_csv(folder):
    path = folder / "table.csv"
    path.write_bytes(TEXT.encode("latin-1"))
    return path


def same(found, expected):
    """Equal cells, those without a declared category or label aside."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == theirs or (mine != mine and theirs != theirs)


def test_cells_of_a_csv_file_are_those_of_read_csv(tmp_path):
    path = written_csv(tmp_path)
    n, names = convert(path, tmp_path / "t.arrow", SCHEMA)
    table = open_table(tmp_path / "t.arrow")
    X, y = read_csv(path, SCHEMA)
    assert n == len(X) == len(table) == 24 and tuple(names) == (*SCHEMA.names, "ill") == table.names
    assert [len(batch) for batch in map(table._file.batch, range(5))] == [5, 5, 5, 5, 4]
    for name in ("age", "dose", "ward"):
        same(table[name][:].tolist(), X[name].tolist())
        assert not table[name].nullable
    for name, known in (("city", ["Oslo", "Bergen"]), ("smokes", [True, False])):
        same(table[name][:].tolist(), [own if own in known else None for own in X[name]])
    same(table["ill"][:].tolist(), [own if own in ("no", "yes") else None for own in y])
    # Downstream nothing tells the two apart.
    encoder = CategoryEncoder(SCHEMA.select(["city", "smokes", "ward"]))
    columns = list(encoder.categories.names)
    expected = encoder.fit(X[columns]).transform(X[columns])
    np.testing.assert_array_equal(encoder.transform(table[columns][:]), expected)
    model = DPBayesianLogisticRegression(classes=["no", "yes"], data_norm=200.0)
    of_both = (
        model._reader().read(model, rows, labels).pack()
        for rows, labels in ((X[["age", "dose"]], y), (table[["age", "dose"]], table["ill"]))
    )
    in_memory, on_disk = (records.fields for records in of_both)
    for name, own in in_memory.items():
        np.testing.assert_array_equal(own, on_disk[name])


@pytest.mark.parametrize("format", ["parquet", "feather"])
def test_cells_of_other_files_are_read_by_the_schema(format, tmp_path):
    X, y = read_csv(written_csv(tmp_path), SCHEMA)
    texts = X.astype(object).where(X.notna(), None).assign(ill=y, more=1.0)
    texts["age"] = [None if own is None else str(own) for own in texts["age"]]
    table = pa.Table.from_pandas(
        texts.astype({"city": "string", "smokes": "boolean"}, errors="ignore"), preserve_index=False
    )
    path = tmp_path / f"t.{format}"
    if format == "parquet":
        pq.write_table(table, path, row_group_size=7)
    else:
        with pa.ipc.new_file(
            path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as file:
            file.write_table(table, max_chunksize=7)
    convert(path, tmp_path / "t.arrow", SCHEMA)
    convert(written_csv(tmp_path), tmp_path / "of_csv.arrow", SCHEMA)
    expected, found = (open_table(tmp_path / name)[:] for name in ("of_csv.arrow", "t.arrow"))
    assert found.schema == expected.schema
    for name in found.column_names:
        same(found[name].to_pylist(), expected[name].to_pylist())


def test_numbers_keep_their_types(tmp_path):
    data = pa.table(
        {
            "i": pa.array([1, None, 2**60 + 1] * 4),
            "f": pa.array([0.5, np.nan, None] * 4, pa.float32()),
            "b": pa.array([True, None, False] * 4),
            "d": pa.array([None, 1, 2] * 4, pa.decimal128(9, 2)),
        }
    )
    pq.write_table(data, tmp_path / "t.parquet")
    assert convert(tmp_path / "t.parquet", tmp_path / "t") == (12, ["i", "f", "b", "d"])
    found = open_table(tmp_path / "t")[:]
    for name in ("i", "f", "b"):
        assert found[name].type == data[name].type
        assert str(found[name].to_pylist()) == str(data[name].to_pylist())
    same(found["d"].to_pylist(), [np.nan, 1.0, 2.0] * 4)


def test_what_is_refused(tmp_path, monkeypatch):
    path, target = written_csv(tmp_path), tmp_path / "t"
    with pytest.raises(ValueError, match="give a schema"):
        convert(path, target)
    with pytest.raises(ValueError, match=r"it lacks \['none'\]"):
        convert(path, target, Schema({"none": {}}))
    pq.write_table(pa.table({"a": ["x"], "b": [1]}), tmp_path / "p")
    with pytest.raises(ValueError, match=r"'a' has the type string.*schema"):
        convert(tmp_path / "p", target)
    with pytest.raises(ValueError, match=r"lacks \['c'\] and repeats \[\]"):
        convert(tmp_path / "p", target, Schema({"b": {}, "c": {}}))
    with pytest.raises(ValueError, match="is the source"):
        convert(tmp_path / "p", tmp_path / "p")
    assert not target.exists()
    # What fails in the middle leaves an older file as it was, and nothing beside it.
    target.write_text("older")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(conversion, "_packed", lambda *how: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        convert(path, target, SCHEMA)
    assert target.read_text() == "older" and sorted(tmp_path.iterdir()) == before


def test_the_file_has_the_permissions_of_its_source(tmp_path):
    path = written_csv(tmp_path)
    path.chmod(0o600)
    seen, original = [], conversion._packed

    def packed(*how):
        seen.append((tmp_path / "t.new").stat().st_mode & 0o777)
        return original(*how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "_packed", packed)
        convert(path, tmp_path / "t", SCHEMA)
    assert {*seen, (tmp_path / "t").stat().st_mode & 0o777} == {0o600}


def test_the_command(tmp_path, capsys):
    path = written_csv(tmp_path)
    schema = tmp_path / "schema.json"
    schema.write_text(SCHEMA.to_json())
    how = ["convert", str(path), str(tmp_path / "t"), "--schema", str(schema)]
    assert main([*how, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"target": str(tmp_path / "t"), "rows": 24, "columns": [*SCHEMA.names, "ill"]}
    assert main(how) == 0 and "24" in capsys.readouterr().out
    for wrong in ([*how[:3]], [how[0], str(tmp_path / "no"), *how[2:]], [*how, "--delimiter", ";"]):
        with pytest.raises(SystemExit) as stopped:
            main(wrong)
        assert stopped.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_decimal_commas(tmp_path):
    source, target = tmp_path / "commas.csv", tmp_path / "t"
    source.write_text("age;ill\n44,5;no\n4.5;yes\n7;no\n")
    schema = Schema({"age": {"bounds": [0, 100]}}, {"name": "ill", "labels": ["no", "yes"]})
    how = {"delimiter": ";", "decimal": ","}
    expected = read_csv(source, schema, **how)[0]["age"]
    convert(source, target, schema, **how)
    np.testing.assert_array_equal(open_table(target)[:].to_pandas()["age"], expected)
    assert expected.tolist()[::2] == [44.5, 7.0] and np.isnan(expected[1])
    with pytest.raises(ValueError, match="both ','"):
        convert(source, tmp_path / "u", schema, decimal=",")


def test_a_pandas_frame_of_the_table_is_read_alike(tmp_path):
    """Text categories are a dictionary of the schema's, which pandas knows as categories."""
    convert(written_csv(tmp_path), tmp_path / "t", SCHEMA)
    frame = open_table(tmp_path / "t")[:].to_pandas()
    assert isinstance(frame["city"].dtype, pd.CategoricalDtype)
    encoder = CategoryEncoder({"city": ["Oslo", "Bergen"]}).fit(frame[["city"]])
    assert encoder.transform(frame[["city"]])[:2].tolist() == [[1, 0], [0, 0]]
