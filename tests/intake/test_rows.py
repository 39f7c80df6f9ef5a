"""Rows as numbers: total, and one row at a time."""

import datetime
import fractions
import math
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from sklearn.utils.validation import column_or_1d

from skdpbayes import DPHierarchicalLogisticRegression, DPNumPyroModel, Schema
from skdpbayes.cells import plain
from skdpbayes.intake.columns import numbers
from skdpbayes.intake.labels import as_labels, codes
from skdpbayes.intake.rows import as_numeric, bounded_rows, counted, refuse_text_columns
from skdpbayes.preprocessing import CategoryEncoder

CELLS = [
    1.5,
    "2.5",
    "two",
    None,
    10**400,
    -(10**30),
    np.nan,
    np.inf,
    -np.inf,
    1e300,
    5e-324,
    True,
    b"3",
    object(),
    [1],
]


def test_cells_that_are_not_numbers_become_nan():
    X = np.empty((len(CELLS), 1), object)
    X[:, 0] = CELLS
    got = as_numeric(X)
    want = [
        1.5,
        2.5,
        *[np.nan] * 3,
        -1e30,
        np.nan,
        np.inf,
        -np.inf,
        1e300,
        5e-324,
        1,
        3,
        np.nan,
        np.nan,
    ]
    np.testing.assert_array_equal(got[:, 0], want)
    assert got.dtype == np.float64


@pytest.mark.parametrize(
    "cell", [*CELLS, np.datetime64("2020"), np.timedelta64(5, "s"), np.datetime64("NaT"), pd.NaT]
)
def test_a_bad_cell_changes_no_other(cell):
    X = np.empty((2, 1), object)
    got = []
    for other in (1.0, "bad"):
        X[:, 0] = cell, other
        got.append(as_numeric(X)[0])
    np.testing.assert_array_equal(*got)


@pytest.mark.parametrize("cell", [*CELLS, np.ma.masked, np.datetime64("2020")])
def test_a_cell_of_a_list_is_as_one_of_an_array_and_warns_of_nothing(cell):
    X = np.empty((2, 2), object)
    X[:] = 1.0
    X[0, 1] = cell
    want = as_numeric(X)
    kinds = [list, tuple] + ([np.array, pd.Series] if not isinstance(cell, list) else [])
    for kind in kinds:
        rows = [
            kind([1.0, cell]) if kind in (list, tuple) else kind([1.0, cell], dtype=object),
            kind([1.0, 1.0]),
        ]
        np.testing.assert_array_equal(as_numeric(rows, 2), want)  # warnings are errors


def test_rows_of_a_list_do_not_influence_each_other():
    good = pd.Series([True, 2.0])
    for other in (
        pd.Series([1.0, "x"]),
        pd.Series([1.0]),
        "x",
        None,
        {"a": 1},
        3.0,
        [],
        [[1.0, 2.0]],
    ):
        np.testing.assert_array_equal(as_numeric([other, good], 2)[1], [1, 2])
        np.testing.assert_array_equal(as_numeric([good, other], 2)[0], [1, 2])
    with pytest.raises(ValueError, match="nothing public says how many columns"):
        as_numeric([[1.0, 2.0]])


class NoLength(list):
    """A row that cannot be asked for its length."""

    def __len__(self):
        raise KeyboardInterrupt


class Longer(tuple):
    """A row that is longer than it says."""

    __slots__ = ()

    def __iter__(self):
        return iter([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("row", "want"),
    [
        (NoLength([1.0, 2.0]), [1, 2]),
        (Longer([1.0, 2.0]), [1, 2]),
        (sparse.coo_array([1.0, 2.0]), [np.nan, np.nan]),
        (np.ma.array([1.0, 2.0]), [np.nan, np.nan]),
        (np.array(["1", "2"], object), [1, 2]),
        (np.ones((1, 2)), [np.nan, np.nan]),
        (pd.Series(["1", "x"]), [1, np.nan]),
        (pd.Series(pd.array([1, 2], "Int64")), [np.nan, np.nan]),
    ],
    ids=lambda row: type(row).__name__,
)
def test_a_row_is_read_by_the_methods_of_lists_tuples_and_arrays_alone(row, want):
    np.testing.assert_array_equal(
        as_numeric([[1.0, 2.0], row, [3.0, 4.0]], 2), [[1, 2], want, [3, 4]]
    )


def test_a_longdouble_that_is_no_float_raises_nothing():
    X = np.array([[np.longdouble("1e400")], [1.0]], object)
    for told in ("warn", "raise"):
        with np.errstate(all=told):
            assert not np.isfinite(as_numeric(X)[0, 0]) and as_numeric(X)[1, 0] == 1


@pytest.mark.parametrize("order", "<>")
def test_text_without_characters_is_missing(order):
    X = np.array([[0x110000, 0], [ord("7"), ord("5")]], f"{order}u4").view(f"{order}U1")
    np.testing.assert_array_equal(as_numeric(X), [[np.nan, np.nan], [7, 5]])


def test_cells_do_not_influence_each_other():
    X = np.empty((len(CELLS), 2), object)
    X[:, 0], X[:, 1] = CELLS, 1.0
    alone = [as_numeric(X[i : i + 1]) for i in range(len(X))]
    np.testing.assert_array_equal(as_numeric(X), np.concatenate(alone))


@pytest.mark.parametrize(
    ("column", "want"),
    [
        (pd.array([1, None], dtype="Int64"), [1, np.nan]),
        (pd.array([1.5, None], dtype="Float64"), [1.5, np.nan]),
        (pd.array([True, None], dtype="boolean"), [1, np.nan]),
        (pd.array(["1.5", None], dtype="string"), [1.5, np.nan]),
        (pd.Categorical([3, None]), [3, np.nan]),
        (pd.Categorical(["a", "7"]), [np.nan, 7]),
    ],
)
def test_pandas_dtypes(column, want):
    for frame in (pd.DataFrame({"a": column}), pd.DataFrame({"a": column, "b": ["x", "y"]})):
        np.testing.assert_array_equal(as_numeric(frame)[:, 0], want)


def test_dates_are_no_numbers_and_raise_nothing():
    frame = pd.DataFrame({"when": pd.to_datetime(["2020-01-01", None]), "a": [1.0, 2.0]})
    assert np.isnan(as_numeric(frame)[:, 0]).all() or np.isnan(as_numeric(frame)[1, 0])
    assert as_numeric(frame[["when"]]).dtype.kind == "f"


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "uint64", "bool", "<U3", "S3"]
)
def test_numpy_dtypes(dtype):
    X = np.array([[0, 1], [1, 1]]).astype(dtype)
    got = as_numeric(X)
    assert got.dtype.kind == "f"
    np.testing.assert_array_equal(got, [[0, 1], [1, 1]])


def test_an_array_of_texts_is_refused_by_its_dtype():
    """Its cells might be numbers; but whether they are is no public fact."""
    for dtype in ("<U3", "S3", np.dtypes.StringDType()):
        with pytest.raises(ValueError, match=r"^X is an array of texts\. .*CategoryEncoder"):
            refuse_text_columns(np.array([["1", "2"], ["3", "x"]]).astype(dtype))
    refuse_text_columns(np.array([["1", "x"]], object))  # cells of any kind


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_complex_is_refused(make):
    with pytest.raises(ValueError, match="Complex data not supported"):
        as_numeric(make(np.ones((2, 2), complex)))


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 2), (0, 3), (3, 0)])
def test_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"Expected 2D array|Found array with 0"):
        as_numeric(np.zeros(shape))


floats = st.floats() | st.sampled_from([1.7e308, -1.7e308, 1e200, 1e38, 4e38, 1e-320, 5e-324, -0.0])
matrices = hnp.arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=floats)


@settings(max_examples=300, deadline=None)
@given(matrices, st.floats(1e-30, 1e15), st.booleans(), st.sampled_from([np.float32, np.float64]))
def test_rows_are_bounded_one_by_one(X, bound, intercept, dtype):
    rows, null = bounded_rows(X, bound, intercept=intercept, dtype=dtype)
    d = X.shape[1]
    assert rows.dtype == dtype and rows.shape == (len(X), d + intercept)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(null, ~np.isfinite(X.astype(dtype)).all(axis=1))
    assert np.isfinite(rows).all()
    assert not rows[null].any()
    if intercept:
        np.testing.assert_array_equal(rows[:, d], ~null)
    lengths = np.linalg.norm(rows[:, :d].astype(np.float64), axis=1)
    assert (lengths <= bound * (1 + 1e-6) + 1e-44).all()
    for i in range(len(X)):
        alone = bounded_rows(X[i : i + 1], bound, intercept=intercept, dtype=dtype)
        np.testing.assert_array_equal(rows[i : i + 1], alone[0])
        np.testing.assert_array_equal(null[i : i + 1], alone[1])
        if not null[i]:
            length = math.hypot(*X[i])
            if length <= bound * (1 - 1e-6):
                np.testing.assert_array_equal(
                    rows[i, :d], X[i].astype(dtype), "a short row was changed"
                )
            elif bound > 1e-20 and length > bound * (1 + 1e-6):
                assert lengths[i] >= bound * (1 - 1e-6), "a long row was shortened too much"


def test_a_lone_row_is_bounded_as_one_of_many():
    """Data frames hold columns together, and NumPy adds up one row in another order than several."""
    X = np.asfortranarray(np.random.default_rng(0).normal(size=(50, 9)))
    together, _ = bounded_rows(X, 1.0, intercept=False)
    alone = [bounded_rows(X[[i]], 1.0, intercept=False)[0] for i in range(len(X))]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_the_longest_float64_rows_keep_their_direction():
    rows, null = bounded_rows(np.full((1, 9), 1.7e308), 3.0, intercept=False)
    assert not null.any()
    np.testing.assert_allclose(rows, 1.0)


@settings(max_examples=200, deadline=None)
@given(matrices, st.floats(1e-3, 1e3), st.booleans(), st.sampled_from([np.float32, np.float64]))
def test_sparse_equals_dense(X, bound, intercept, dtype):
    X[np.abs(X) < 1] = 0  # some structure
    dense, null = bounded_rows(X, bound, intercept=intercept, dtype=dtype)
    rows, null_too = bounded_rows(
        as_numeric(sparse.csr_matrix(X)), bound, intercept=intercept, dtype=dtype
    )
    assert sparse.issparse(rows) and rows.dtype == dtype
    np.testing.assert_array_equal(null, null_too)
    np.testing.assert_allclose(rows.toarray(), dense, rtol=1e-6, atol=1e-30)


def test_sparse_formats_and_duplicates():
    rows, columns, values = [0, 0, 1, 2, 2], [1, 1, 0, 2, 0], [2.0, 3.0, 4.0, 0.0, np.nan]
    coo = sparse.coo_matrix((values, (rows, columns)), shape=(4, 3))
    want, null = bounded_rows(coo.toarray(), 4.0, intercept=True)
    for X in (coo, coo.tocsc(), coo.tolil(), sparse.csr_array(coo)):
        got, null_too = bounded_rows(as_numeric(X), 4.0, intercept=True)
        np.testing.assert_allclose(got.toarray(), want)
        np.testing.assert_array_equal(null_too, null)
    duplicated = sparse.csr_matrix(
        (np.array([2.0, 3.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3)
    )
    np.testing.assert_allclose(
        bounded_rows(as_numeric(duplicated), 4.0, intercept=False)[0].toarray(), [[0, 4, 0]]
    )


def test_blocks_of_rows_do_not_show(monkeypatch):
    from skdpbayes.intake import rows as _rows

    X = np.random.default_rng(0).normal(size=(23, 4)) * 3
    X[11, 2] = np.inf
    want = bounded_rows(X, 2.0, intercept=True)
    monkeypatch.setattr(_rows, "BLOCK", 5)
    for a, b in zip(bounded_rows(X, 2.0, intercept=True), want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_input_is_left_alone():
    for X in (
        np.full((3, 2), 100.0),
        np.full((3, 2), 100.0, np.float32),
        sparse.csr_array(np.full((3, 2), 100.0)),
    ):
        before = X.copy()
        bounded_rows(as_numeric(X), 1.0, intercept=False, dtype=X.dtype)
        assert abs(X - before).max() == 0


# Counts


@settings(max_examples=300, deadline=None)
@given(matrices, st.booleans())
def test_counts_are_taken_one_row_at_a_time(X, as_sparse):
    """Whatever is in a row, no other row changes; what is no count makes the row an empty one."""
    with np.errstate(over="ignore", under="ignore"):
        single = X.astype(np.float32)
    bad = ~(np.isfinite(single) & (single >= 0)).all(axis=1)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        rows, null = counted(sparse.csr_array(X) if as_sparse else X)
    np.testing.assert_array_equal(null, bad)
    np.testing.assert_array_equal(rows.toarray(), np.where(bad[:, None], 0, single))
    assert rows.dtype == np.float32 and rows.has_canonical_format and (rows.data > 0).all()


@pytest.mark.parametrize("cell", [-1, np.nan, np.inf, -np.inf, 1e39, -1e-30])
def test_a_row_with_what_is_no_count_is_empty_and_changes_no_other(cell):
    X = np.array([[1.0, 0, 2], [3, 4, 0], [0, 5, 6]])
    X[1, 0] = cell
    for matrix in (X, sparse.csr_array(X), sparse.csr_matrix(X)):
        rows, null = counted(matrix)
        np.testing.assert_array_equal(null, [False, True, False])
        np.testing.assert_array_equal(rows.toarray(), [[1, 0, 2], [0, 0, 0], [0, 5, 6]])


def csr(data, columns, starts):
    return sparse.csr_array(
        (np.array(data, float), np.array(columns), np.array(starts)), shape=(len(starts) - 1, 4)
    )


def test_counts_of_a_word_that_is_listed_twice_add_up():
    rows, null = counted(csr([1, 2, 3, 0, 5], [3, 1, 3, 0, 2], [0, 4, 5]))
    assert not null.any()
    np.testing.assert_array_equal(rows.toarray(), [[0, 2, 0, 4], [0, 0, 5, 0]])
    np.testing.assert_array_equal(rows.indices, [1, 3, 2], "sorted, none twice, no zeros")
    rows, null = counted(csr([5, -2, 1], [0, 0, 1], [0, 2, 3]))
    np.testing.assert_array_equal(null, [True, False], "a sum does not hide a negative count")
    rows, null = counted(csr([3e38, 3e38, 1], [0, 0, 1], [0, 2, 3]))
    assert np.isfinite(rows.data).all() and rows[[1]].toarray()[0, 1] == 1
    X = csr([2, 1], [3, 1], [0, 2])
    counted(X)
    np.testing.assert_array_equal(X.indices, [3, 1], "the caller's matrix was changed")


@pytest.mark.parametrize("column", [-1, 4, 2**31 - 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_column_out_of_range_makes_its_own_row_null_and_changes_no_other(column, dtype):
    indices = np.array([0, column, 1], np.int32)
    X = sparse.csr_array(
        (np.ones(3, dtype), np.array([0, 0, 1], np.int32), np.arange(4)), shape=(3, 4)
    )
    X.indices = indices
    found = as_numeric(X).toarray()
    assert np.isnan(found[1]).any()
    np.testing.assert_array_equal(found[[0, 2]], [[1, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(indices, [0, column, 1])  # the caller's own


@pytest.mark.parametrize("column", [-1, 4, 2**31 - 1])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float64])
def test_a_column_out_of_range_leaves_repeated_columns_alone(column, dtype):
    """SciPy's conversion of integers adds up what repeats, in place and as integers."""
    data, starts = np.array([200, 100, 5, 1, 1, 1]).astype(dtype), np.array([0, 3, 6])
    X = sparse.csr_array((data, np.zeros(6, np.int32), starts), shape=(2, 4))
    for last in (0, column):
        X.indices = np.array([3, 3, 1, 1, 1, last], np.int32)
        found = as_numeric(X)
        assert ((found.indices >= 0) & (found.indices < 4)).all()
        np.testing.assert_array_equal(found.toarray()[0], [0, 5, 0, 300])
        assert np.isnan(found.toarray()[1]).any() == (last != 0)
        np.testing.assert_array_equal(X.indices, [3, 3, 1, 1, 1, last])  # the caller's own


@pytest.mark.parametrize("column", [-1, 4, 2**31 - 1])
@pytest.mark.parametrize("group_column", [0, 3])
def test_a_column_out_of_range_leaves_the_groups_of_others_alone(column, group_column):
    X = sparse.csr_array(np.arange(8.0).reshape(2, 4) % 3)
    model = DPHierarchicalLogisticRegression(3, group_column=group_column)
    reader = model._reader()
    (want, groups), X.indices[-1] = reader.rows_and_groups(model, X, reset=True), column
    rows, found = reader.rows_and_groups(model, X, reset=True)
    np.testing.assert_array_equal(rows[0], want[0])
    assert found[0] == groups[0] and (found[1] == -1 or np.isnan(rows[1]).any())


# Labels


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_label_that_is_a_signalling_nan_warns_of_nothing(dtype):
    y = np.ones(2, dtype)
    y.view(f"u{y.itemsize}")[0] = {"f4": 0x7F800001, "f8": 0x7FF0000000000001}[dtype]
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(codes(y, np.array([0, 1])), [-1, 1])


def test_a_first_response_that_objects_raises_nothing():
    class Hostile:
        def __getattr__(self, name):
            raise RuntimeError(name)

    model = DPNumPyroModel(print)
    fields = model._reader().fields(model, np.zeros((2, 1)), [Hostile(), 1.0], reset=True)
    np.testing.assert_array_equal(fields["1"], [np.nan, 1])


_FARTHEST = {
    "pandas": lambda: (
        pd.Series(np.array([0, 0, 2**63 - 1], "M8[ns]"))
        .dt.tz_localize("UTC")
        .dt.tz_convert("Asia/Tokyo")
    ),
    "polars": lambda: pl.Series([0, None, 2**31 - 1], dtype=pl.Int32).cast(pl.Date),
    "polars, times": lambda: pl.Series([0, None, 2**62], dtype=pl.Int64).cast(
        pl.Datetime("ms", "Asia/Tokyo")
    ),
    "polars, lists": lambda: pl.Series([[0], None, [2**31 - 1]], dtype=pl.List(pl.Int32)).cast(
        pl.List(pl.Date)
    ),
}


@pytest.mark.parametrize("library", _FARTHEST)
def test_a_date_that_is_none_of_pythons_raises_nothing(library, capfd):
    dates = _FARTHEST[library]()
    frame = (pd if isinstance(dates, pd.Series) else pl).DataFrame({"when": dates})
    days = Schema({"when": {"kind": "date", "bounds": ["1960-01-01", "2000-01-01"]}})
    if library in ("pandas", "polars, times"):  # their dtype, which is public, has a time zone
        with pytest.raises(ValueError, match="holds times"):
            numbers(frame, days, None)
    else:
        known = 0 if library == "polars" else np.nan
        np.testing.assert_array_equal(numbers(frame, days, None), [[known], [np.nan], [np.nan]])
    own = (
        [datetime.date(1970, 1, 1), datetime.date(2000, 1, 1)]
        if library == "polars"
        else ["a", "b"]
    )
    encoded = CategoryEncoder([own]).fit_transform(frame)
    assert encoded.tolist() == [[float(library == "polars"), 0.0], [0.0, 0.0], [0.0, 0.0]]
    for labels in (dates, frame):
        assert np.shape(column_or_1d(as_labels(labels))) == (3,)
    assert not capfd.readouterr().err


def test_parts_of_a_fraction_run_no_code():
    class Part:
        def __truediv__(self, other):
            raise KeyboardInterrupt

    cell = fractions.Fraction(1, 2)
    cell._numerator = Part()
    assert as_numeric(np.array([[cell], [fractions.Fraction(1, 4)]], object)).tolist()[1] == [0.25]
    assert math.isnan(plain(cell))
