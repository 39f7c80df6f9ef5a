"""What is public about a table: written, read, refused where it makes no sense, and taken by every estimator."""

import copy
import csv
import datetime as dt
import io
import json
import pickle
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBayesianMLPRegressor,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
    Schema,
    read_csv,
)
from skdpbayes.declarations import public_schema
from skdpbayes.pipelines import make_private_pipeline
from skdpbayes.preprocessing import (
    BoundedScaler,
    CategoryEncoder,
    DPStandardScaler,
    NormClipper,
    check_data,
    make_preprocessor,
)
from skdpbayes.schema import Column, Outcome

TOML = """
[columns.age]
bounds = [18, 100]
unit = "years"
missing = 45

[columns.children]
kind = "count"
bounds = [0, 12]

[columns.city]
categories = ["Oslo", "Bergen"]

[outcome]
name = "ill"
labels = ["no", "yes"]
"""
PEOPLE = Schema.from_toml(TOML)
NUMBERS = Schema(
    {"a": {"bounds": (0, 4)}, "b": {"bounds": (-1, 1), "missing": 0.5}},
    {"name": "y", "bounds": (0, 9)},
)
LABELS = Schema(NUMBERS.columns, {"name": "y", "labels": [0, 1]})
FRAME = pd.DataFrame({"a": [1.0, 2.0, 8.0], "b": [0.0, np.nan, -3.0]})

# As a value


def test_a_schema_is_what_was_written():
    age, children, city = PEOPLE.columns
    assert age == Column("age", "number", (18.0, 100.0), unit="years", missing=45.0)
    assert (children.kind, city.kind, city.categories) == ("count", "category", ("Oslo", "Bergen"))
    assert PEOPLE.outcome == Outcome("ill", ["no", "yes"]) and PEOPLE.names == (
        "age",
        "children",
        "city",
    )
    assert PEOPLE.select(["city", "age"]) == Schema([city, age]) and PEOPLE.select("age").names == (
        "age",
    )


@pytest.mark.parametrize(
    "schema",
    [PEOPLE, NUMBERS, Schema([Column("a", "integer"), Column("b", categories=[True, False])])],
)
def test_what_is_written_reads_back(schema, tmp_path):
    assert Schema.from_dict(schema.to_dict()) == schema and eval(repr(schema)) == schema
    assert (
        Schema.from_json(schema.to_json()) == schema == Schema.from_json(schema.to_json(indent=1))
    )
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict(), sort_keys=True))) == schema, (
        "order is kept"
    )
    schema.save(tmp_path / "own.json")
    assert Schema.load(tmp_path / "own.json") == schema
    with pytest.raises(ValueError, match=r"saved as .json"):
        schema.save(tmp_path / "own.toml")


def test_files_are_read_by_their_names(tmp_path):
    (tmp_path / "own.toml").write_text(TOML)
    assert Schema.load(tmp_path / "own.toml") == PEOPLE
    with pytest.raises(ValueError, match=r"end in .toml or .json"):
        Schema.load("own.yaml")
    for name, text, message in (
        ("a.toml", "age = [", "a.toml: "),
        ("a.json", "{", "a.json: "),
        ("b.json", '{"columns": []}', "b.json: A schema needs"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=message):
            Schema.load(tmp_path / name)


def test_a_schema_is_frozen_and_is_copied_compared_and_hashed():
    for other in (copy.deepcopy(PEOPLE), pickle.loads(pickle.dumps(PEOPLE))):
        assert other == PEOPLE and other is not PEOPLE and hash(other) == hash(PEOPLE)
    assert PEOPLE != PEOPLE.select(PEOPLE.names) and len({PEOPLE, NUMBERS}) == 2
    with pytest.raises(AttributeError):
        PEOPLE.columns = ()
    with pytest.raises(AttributeError):
        PEOPLE.columns[0].bounds = (0, 1)


A, C = {"a": {}}, {"categories": ["x"]}
MALFORMED = [
    (lambda: Schema({}), "one or more columns"),
    (lambda: Schema("age"), "columns must be a list"),
    (lambda: Schema(3), "columns must be a list"),
    (lambda: Schema(["a"]), "A column must be a Column or a dict"),
    (lambda: Schema(FRAME), "A column must be a Column or a dict"),  # never from rows
    (lambda: Schema.from_dict(FRAME), "made of a dict"),
    (lambda: Schema({"a": 3}), "column 'a' must be a dict"),
    (lambda: Schema({3: {}}), "each column needs a name"),
    (lambda: Schema([{}]), "each column needs a name"),
    (lambda: Schema([{"name": " "}]), "each column needs a name"),
    (lambda: Schema({"a": {"name": "b"}}), "column 'a' is given under another name"),
    (lambda: Schema({"a": Column("b")}), "column 'a' is given under another name"),
    (lambda: Schema([{"name": "a"}, {"name": "a"}]), "'a' comes twice"),
    (lambda: Schema(A, {"name": "a", "labels": [0, 1]}), "'a' comes twice"),
    (lambda: Schema({"a": {"bound": 1}}), r"column 'a' has the unknown keys \['bound'\]"),
    (lambda: Schema({"a": {"kind": "text"}}), "column 'a': kind must be one of"),
    (lambda: Schema({"a": {"kind": "category"}}), "column 'a': kind 'category' needs categories"),
    (
        lambda: Schema({"a": C | {"kind": "number"}}),
        "column 'a': kind 'number' takes no categories",
    ),
    (lambda: Schema({"a": C | {"bounds": [0, 1]}}), "column 'a' has both bounds and categories"),
    (lambda: Schema({"a": {"bounds": [1, 1]}}), "column 'a': bounds .* low < high"),
    (lambda: Schema({"a": {"bounds": [-1e308, 1e308]}}), "column 'a': bounds .* finite range"),
    (lambda: Schema({"a": {"bounds": [0, float("inf")]}}), "column 'a': bounds must be finite"),
    (lambda: Schema({"a": {"bounds": [0, 10**400]}}), "column 'a': bounds must be finite"),
    (lambda: Schema({"a": {"bounds": [False, True]}}), "column 'a': bounds must be finite numbers"),
    (lambda: Schema({"a": {"bounds": ["0", "1"]}}), "column 'a': bounds must be finite numbers"),
    (lambda: Schema({"a": {"bounds": 3}}), "column 'a': bounds must be a pair"),
    (lambda: Schema({"a": {"bounds": [0, 1, 2]}}), "column 'a': bounds must be a pair"),
    (lambda: Schema({"a": {"kind": "count", "bounds": [-1, 1]}}), "column 'a': bounds of a count"),
    (lambda: Schema({"a": {"categories": []}}), "column 'a': categories must be 1 or more"),
    (
        lambda: Schema({"a": {"categories": ["x", "x"]}}),
        "column 'a': categories must be 1 or more different",
    ),
    (lambda: Schema({"a": {"categories": "xy"}}), "column 'a': categories must be a list"),
    (lambda: Schema({"a": {"categories": ["x", 1]}}), "column 'a': categories must be all texts"),
    (lambda: Schema({"a": {"categories": [None]}}), "column 'a': categories must be all texts"),
    (
        lambda: Schema({"a": {"categories": [0.0, float("nan")]}}),
        "column 'a': categories must be finite",
    ),
    (lambda: Schema({"a": {"unit": 3}}), "column 'a': unit must be a text"),
    (lambda: Schema({"a": {"missing": "x"}}), "column 'a': missing must be finite"),
    (
        lambda: Schema({"a": {"bounds": [0, 1], "missing": 2}}),
        "column 'a': missing must be .* within bounds",
    ),
    (
        lambda: Schema({"a": {"kind": "count", "missing": 0.5}}),
        "column 'a': missing must be of the kind 'count'",
    ),
    (
        lambda: Schema({"a": C | {"missing": "y"}}),
        "column 'a': missing must be one of the categories",
    ),
    (lambda: Schema(A, {"name": "y"}), "outcome 'y' needs either labels"),
    (
        lambda: Schema(A, {"name": "y", "labels": [0, 1], "bounds": [0, 1]}),
        "outcome 'y' needs either",
    ),
    (lambda: Schema(A, {"name": "y", "labels": [0]}), "outcome 'y': labels must be 2 or more"),
    (lambda: Schema(A, {"name": "y", "categories": [0, 1]}), "outcome 'y' has the unknown keys"),
    (lambda: Schema(A, "y"), "A outcome must be an? Outcome or a dict"),
    (lambda: Schema.from_dict({"column": {}}), "a schema has 'columns'"),
    (lambda: Schema.from_json('{"columns": {"a": {}, "a": {}}}'), "'a' twice"),
    (lambda: PEOPLE.select(["age", "wage"]), "no column 'wage'"),
]


@pytest.mark.parametrize(("make", "message"), MALFORMED, ids=[message for _, message in MALFORMED])
def test_what_makes_no_sense_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=f"(?i){message}"):
        make()


def test_importing_it_loads_no_jax_and_no_pandas():
    code = (
        "import sys; from skdpbayes import Schema; from skdpbayes.schema import Column; "
        "Schema([Column('a')]); sys.exit(sorted({'jax', 'pandas', 'sklearn'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


# As a parameter


ESTIMATORS = [
    DPBayesianLogisticRegression(classes=LABELS),
    DPBayesianLinearRegression(bounds=NUMBERS),
    DPBayesianMLPRegressor(bounds=(NUMBERS, NUMBERS.outcome)),
    DPGaussianMixture(bounds=NUMBERS),
    DPStandardScaler(bounds=NUMBERS),
    BoundedScaler(bounds=NUMBERS),
    CategoryEncoder(categories=PEOPLE.select(["city"])),
    DPDirichletCategorical(categories=PEOPLE.select(["city"])),
    DPHierarchicalLogisticRegression(groups=PEOPLE, classes=PEOPLE, group_column="city"),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_it_is_a_parameter_like_others(estimator):
    twin = clone(estimator)
    assert twin.get_params() == estimator.get_params() and "Schema(" in repr(estimator)
    assert pickle.loads(pickle.dumps(estimator)).get_params() == estimator.get_params()
    (name, schema), *_ = [(k, v) for k, v in twin.get_params().items() if "Schema(" in repr(v)]
    assert getattr(twin, name) is not getattr(estimator, name)
    assert getattr(twin.set_params(**{name: schema}), name) is schema
    estimator._repr_html_()


def test_a_grid_of_schemas():
    wide = Schema({"a": {"bounds": (0, 8)}, "b": {"bounds": (-5, 5), "missing": 0.5}})
    pipeline = make_pipeline(BoundedScaler(NUMBERS), LogisticRegression())
    grid = GridSearchCV(pipeline, {"boundedscaler__bounds": [NUMBERS, wide]}, cv=2)
    grid.fit(pd.concat([FRAME] * 4), [0, 1, 1] * 4)
    assert grid.best_params_["boundedscaler__bounds"] in (NUMBERS, wide)
    assert list(grid.cv_results_["param_boundedscaler__bounds"]) == [NUMBERS, wide]


def test_the_report_can_say_what_the_schema_was():
    def said(estimator):
        return public_schema(estimator.get_params(deep=False).values())

    assert said(ESTIMATORS[0]) == LABELS.to_dict()
    assert said(ESTIMATORS[2]) == NUMBERS.to_dict()
    of_outcome = said(DPBayesianLogisticRegression(classes=LABELS.outcome))
    assert of_outcome == {"outcome": {"name": "y", "labels": [0, 1]}}
    assert said(DPBayesianLogisticRegression(classes=[0, 1])) is None
    json.dumps(list(map(said, ESTIMATORS)))


def read_by(estimator, X, y=None):
    """Public facts of a table that an estimator has read."""
    return estimator._reader().read(estimator, X, y).facts


def numbers_of(estimator, X):
    """X as numbers, as an estimator reads it."""
    return estimator._reader().numeric(estimator, X, reset=True)


EVERY_WAY = [
    (0, 4),
    ((0, 0), (4, 4)),
    ([0, 0], 4),
    {"b": (0, 4), "a": (0, 4)},
    Schema({n: {"bounds": (0, 4)} for n in "ab"}),
]


@pytest.mark.parametrize("bounds", EVERY_WAY, ids=lambda b: type(b).__name__)
def test_bounds_are_written_in_one_way_everywhere(bounds):
    frame = FRAME.fillna(0.0)
    np.testing.assert_array_equal(
        BoundedScaler(bounds).fit(frame).transform(frame)[:, 0], [0.25, 0.5, 1]
    )
    scaler = DPStandardScaler(bounds)
    facts = read_by(scaler, frame)
    np.testing.assert_array_equal(scaler._reader().bounds(facts.shape), [[0, 0], [4, 4]])
    facts = read_by(DPGaussianMixture(bounds=bounds), frame)
    np.testing.assert_array_equal(facts.own_scales()[:2], [[2, 2], [2, 2]])
    for kind in (DPBayesianLinearRegression, DPBayesianMLPRegressor):
        for of_response in ((0, 9), NUMBERS.outcome):
            model = kind(bounds=(bounds, of_response))
            facts = read_by(model, frame, np.zeros(3))
            np.testing.assert_array_equal(
                np.concatenate(facts.own_scales()), [2, 2, 2, 2, 4.5, 4.5]
            )
            assert not facts.voided_by


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((1, 0), "low below high"),
        ((0, [1, 2, 3]), "each of the 2 columns"),
        ({"a": (0, 1)}, "differs by .*b"),
        ({"a": (0, 1), "b": 3}, "must be a pair"),
        ({"a": (0, 1), "b": (1, 0)}, "low below high"),
        (Schema({"a": {"bounds": (0, 1)}, "b": {}}), r"no bounds of the columns \['b'\]"),
        (
            Schema({"a": {"bounds": (0, 1)}, "b": {"categories": [0, 1]}}),
            r"no bounds of the columns \['b'\]",
        ),
        (Schema({"a": {"bounds": (0, 1)}}), r"has \['b'\] beside"),
        ("ab", "must be a pair"),
    ],
    ids=str,
)
def test_bounds_that_make_no_sense_are_refused_everywhere(bounds, message):
    for take in (
        lambda: BoundedScaler(bounds).fit(FRAME),
        lambda: DPStandardScaler(bounds).fit(FRAME),
        lambda: DPGaussianMixture(bounds=bounds).fit(FRAME),
        lambda: DPBayesianLinearRegression(bounds=(bounds, (0, 1))).fit(FRAME, np.zeros(3)),
        lambda: DPBayesianMLPRegressor(bounds=(bounds, (0, 1))).fit(FRAME, np.zeros(3)),
    ):
        with pytest.raises(ValueError, match=message):
            take()


def test_an_outcome_that_is_another_is_refused():
    for bounds in (LABELS, NUMBERS.select(["a", "b"]), (NUMBERS, LABELS.outcome)):
        with pytest.raises(ValueError, match="whose outcome has bounds"):
            DPBayesianLinearRegression(bounds=bounds).fit(FRAME, np.zeros(3))
    for classes, message in (
        (NUMBERS, "has bounds, and no labels"),
        (NUMBERS.select(["a", "b"]), "has no outcome"),
    ):
        with pytest.raises(ValueError, match=message):
            DPBayesianLogisticRegression(classes=classes).fit(FRAME, np.zeros(3))


@pytest.mark.parametrize("estimator", ESTIMATORS[:6], ids=lambda e: type(e).__name__)
def test_columns_must_be_the_schemas(estimator):
    for X, message in (
        (FRAME[["b", "a"]], r"in the order of the schema, \['a', 'b'\]"),
        (FRAME[["a"]], r"lacks \['b'\]"),
        (FRAME.assign(c=1.0), r"has \['c'\] beside"),
        (np.ones((3, 3)), "X has 3 columns, and the schema 2"),
        (np.ones((3, 1), object), "X has 1 columns, and the schema 2"),
    ):
        with pytest.raises(ValueError, match=message):
            estimator.fit(X, np.zeros(3))


def test_an_outcome_alone_says_nothing_of_the_columns():
    model = DPBayesianLogisticRegression(classes=LABELS.outcome)
    facts = read_by(model, np.ones((2, 7)), [0, 1])
    assert (facts.n_rows, facts.n_features) == (2, 7)
    assert facts.own_labels().tolist() == [0, 1] and not facts.voided_by
    with pytest.raises(ValueError, match="nothing public says"):
        read_by(clone(model), [[1.0], [2.0]], [0, 1])


def test_text_where_numbers_are_needed_is_refused_by_the_schema_and_never_by_the_dtype():
    model = DPBayesianLogisticRegression(classes=PEOPLE)
    table = pd.DataFrame({"age": [40.0], "children": [1.0], "city": ["Oslo"]})
    with pytest.raises(ValueError, match="'city' of the schema is a category of text"):
        read_by(model, table, ["no"])


def test_missing_cells_get_the_public_value():
    want = [[0.25, 0.5], [0.5, 0.75], [1.0, 0.0]]
    np.testing.assert_array_equal(BoundedScaler(NUMBERS).fit(FRAME).transform(FRAME), want)
    X = numbers_of(DPBayesianLogisticRegression(classes=LABELS), FRAME)
    np.testing.assert_array_equal(X, [[1, 0], [2, 0.5], [8, -3]])
    np.testing.assert_array_equal(FRAME["b"], [0, np.nan, -3])  # the caller's own
    wards = Schema(
        {"ward": {"categories": ["a", "b"], "missing": "b"}, "sex": {"categories": [1, 2]}}
    )
    table = pd.DataFrame(
        {"ward": ["a", None, "c"], "sex": ["1", "2.0", "x"]}
    )  # as one bad cell leaves it
    out = CategoryEncoder(wards).fit(table).transform(table)
    assert out.tolist() == [[1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 0, 0]]
    model = DPDirichletCategorical(categories=wards.select("ward"))
    column = model._reader().column(model, table[["ward"]], reset=True)
    assert column.tolist() == ["a", "b", "b"]


FIRST_DAY = dt.datetime(1969, 12, 31, 23, 59)
VISITS = Schema(
    {
        "admitted": {"kind": "date", "bounds": ["2020-01-01", dt.date(2024, 12, 31)]},
        "born": {"kind": "date", "bounds": ["1920-01-01", "2005-12-31"], "missing": "1970-01-11"},
    }
)
FIRST = [18262, -1.0]  # 2020-01-01 and 1969-12-31


@pytest.mark.parametrize(
    "frame",
    [
        {"admitted": ["2020-01-01", "January"], "born": ["1969-12-31", None]},
        {"admitted": ["2020-01-01T23:59", "2020-13-01"], "born": ["1969-12-31 10:00", ""]},
        {"admitted": [dt.date(2020, 1, 1), np.nan], "born": [dt.date(1969, 12, 31), pd.NaT]},
        {"admitted": [18262.0, np.nan], "born": [-1.0, np.nan]},
        {"admitted": [" 2020-01-01 ", "2020-01-01+05"], "born": ["1969-12-31", "19691231"]},
        {"admitted": [pd.Timestamp("2020-01-01 10:00"), "x"], "born": [FIRST_DAY, "-1"]},
        {
            "admitted": pd.to_datetime(["2020-01-01 23:59", None]),
            "born": pd.to_datetime(["1969-12-31", None]).astype("datetime64[s]"),
        },
    ],
)
def test_dates_are_days(frame):
    frame = pd.DataFrame(frame)
    before = frame.copy()
    scaler = BoundedScaler(VISITS, feature_range=(0, 1))
    found = scaler.fit(frame).inverse_transform(scaler.transform(frame))
    np.testing.assert_allclose(found[0], FIRST, atol=1e-6)
    assert np.isnan(found[1, 0]) and found[1, 1] == pytest.approx(10)
    pd.testing.assert_frame_equal(frame, before)


def test_dates_of_files_arrow_and_polars_are_days():
    text = "born,admitted\n1969-12-31,2020-01-01\n,2020-02-30\n"
    X, _ = read_csv(io.StringIO(text), VISITS)
    np.testing.assert_array_equal(X["admitted"], [18262, np.nan])
    np.testing.assert_array_equal(X["born"], [-1, np.nan])
    days = {"admitted": [dt.date(2020, 1, 1)], "born": [dt.date(1969, 12, 31)]}
    scaler = BoundedScaler(VISITS)
    for library in ("polars", "pyarrow"):
        made = pytest.importorskip(library)
        frame = made.DataFrame(days) if library == "polars" else made.table(days)
        found = scaler.fit(frame).inverse_transform(scaler.transform(frame))
        np.testing.assert_allclose(found[0], FIRST, atol=1e-6)


def test_dates_are_written_as_such_and_refused_where_they_are_none():
    assert Schema.from_json(VISITS.to_json()) == VISITS
    assert VISITS.to_dict()["columns"][1] == {
        "name": "born",
        "kind": "date",
        "bounds": ["1920-01-01", "2005-12-31"],
        "missing": "1970-01-11",
    }
    toml = '[columns.admitted]\nkind = "date"\nbounds = [2020-01-01, 2024-12-31]'
    assert Schema.from_toml(toml).columns == VISITS.columns[:1]
    for bounds in ([0, 100], ["2020", "2021"], ["2020-01-01", None]):
        with pytest.raises(ValueError, match=r"column 'a': bounds of a date must be dates"):
            Schema({"a": {"kind": "date", "bounds": bounds}})
    with pytest.raises(ValueError, match=r"column 'a': missing must be .* within bounds"):
        Schema({"a": {**VISITS.columns[0].to_dict(), "name": "a", "missing": "2030-01-01"}})
    when = pd.DataFrame({"a": pd.to_datetime(["2020-01-01"])})
    number = Schema({"a": {"bounds": [0, 100], "missing": 50}})
    with pytest.raises(ValueError, match=r"'a' holds dates or times .* declare dates with kind="):
        BoundedScaler(number).fit(when)
    zoned = when.assign(a=when["a"].dt.tz_localize("UTC"))
    with pytest.raises(ValueError, match=r"'a' holds times .* without a time zone"):
        BoundedScaler(Schema({"a": VISITS.columns[0].to_dict() | {"name": "a"}})).fit(zoned)


def test_text_categories_of_a_column_of_numbers_are_refused_by_its_dtype():
    schema = Schema({"k": {"categories": ["0", "1"]}})
    for cells in ([0, 1], [True, False], [0.0, 1.0]):
        with pytest.raises(ValueError, match=r"'k' has dtype .* no label can be in categories"):
            CategoryEncoder(schema).fit(pd.DataFrame({"k": cells}))
    numbers = Schema({"k": {"categories": [0, 1]}})  # text is read as numbers
    assert CategoryEncoder(numbers).fit_transform(pd.DataFrame({"k": ["1"]})).tolist() == [[0, 1]]


def test_sets_are_refused_since_they_have_no_order():
    with pytest.raises(ValueError, match=r"categories must be a list, got \{"):
        Schema({"k": {"categories": {"a", "b"}}})
    frame = pd.DataFrame({"k": ["a"]})
    for given in ({"k": {"a", "b"}}, [{"a", "b"}], {"a", "b"}):
        with pytest.raises(ValueError, match="categories must be a list, which has an order"):
            CategoryEncoder(given).fit(frame)
    with pytest.raises(ValueError, match="classes must be a list"):
        DPBayesianLogisticRegression(classes={0, 1}).plan(100, 2)


def test_numbers_of_another_kind_are_no_numbers():
    schema = Schema(
        {"n": {"kind": "integer"}, "k": {"kind": "count"}, "c": {"categories": [1, 2]}},
        LABELS.outcome,
    )
    table = np.array([[-1, 2, 1], [0.5, -1, 3], [np.inf, 1.5, 2]])
    X = numbers_of(DPBayesianLogisticRegression(classes=schema), table)
    np.testing.assert_array_equal(X, [[-1, 2, 1], [np.nan] * 3, [np.nan, np.nan, 2]])


def test_sparse_matrices_under_a_schema():
    X = numbers_of(DPBayesianLogisticRegression(classes=LABELS), sparse.csr_array(np.eye(2)))
    assert X.toarray().tolist() == [[1, 0], [0, 1]]
    with pytest.raises(ValueError, match="X has 3 columns"):
        numbers_of(DPBayesianLogisticRegression(classes=LABELS), sparse.csr_array(np.eye(3)))


def test_groups_of_a_schema():
    model = DPHierarchicalLogisticRegression(groups=PEOPLE, classes=PEOPLE, group_column="city")
    groups, _ = model._groups_and_table()
    assert groups.tolist() == ["Bergen", "Oslo"]
    assert model.plan(100).report.schema == PEOPLE.to_dict()  # the schema names the columns
    table = pd.DataFrame({"age": ["40", "x"], "children": [1, 1.5], "city": ["Oslo", "Rome"]})
    rows, codes = model._reader().rows_and_groups(model, table, reset=True)
    np.testing.assert_array_equal(rows, [[40, 1], [45, np.nan]])
    assert codes.tolist() == [1, -1]
    by_place = DPHierarchicalLogisticRegression(groups=PEOPLE, classes=PEOPLE)
    table = [[40, 1, "Oslo"], None]
    rows, codes = by_place._reader().rows_and_groups(by_place, table, reset=True)
    assert codes.tolist() == [1, -1] and rows[0].tolist() == [40, 1]
    with pytest.raises(ValueError, match="no categories of the column of groups, 'children'"):
        DPHierarchicalLogisticRegression(
            PEOPLE, classes=PEOPLE, group_column="children"
        )._groups_and_table()


def test_what_a_schema_says_is_held_against_data():
    said = str(
        check_data(FRAME, [1.0, 2.0, 99.0], estimator=DPBayesianLinearRegression(bounds=NUMBERS))
    )
    assert "2 of 6 values of X lie outside" in said and "1 of 3 values of y lie outside" in said
    said = str(
        check_data(
            FRAME.fillna(0), ["0", "1", "x"], estimator=DPBayesianLogisticRegression(classes=LABELS)
        )
    )
    assert "1 of 3 labels are not among classes" in said and "no row has" not in said
    each = DPBayesianLinearRegression(bounds=({"a": (0, 4), "b": (-1, 1)}, (0, 9)))
    assert "2 of 6 values of X lie outside" in str(
        check_data(FRAME, [1.0, 2.0, 3.0], estimator=each)
    )


# Files


def read(text, schema=PEOPLE, **how):
    return read_csv(io.BytesIO(text if isinstance(text, bytes) else text.encode()), schema, **how)


def test_a_file_names_the_person_of_each_line():
    text = 'ill,who,city,children,age\nno, 007 ,Oslo,2,44\n"no,7,Oslo,1,2\n\nyes,,Rome,1,50\n'
    X, y, persons = read(text, groups="who")
    assert persons.tolist() == ["007", None, None, None] and len(X) == len(y) == 4
    with pytest.raises(ValueError, match=r"lacks \['ward'\]"):
        read(text, groups="ward")


def test_a_file_is_read_by_names_and_kinds(tmp_path):
    text = 'ill,name,city,children,age\r\nno,"Ann, A.",Oslo,2,44\r\nyes,Bo, Bergen ,1.5,"50"\r\nmaybe,,Rome,,old\r\n'
    path = tmp_path / "people.csv"
    path.write_bytes(text.encode("utf-8-sig"))
    with path.open("rb") as file:
        tables = [
            read_csv(source, PEOPLE)
            for source in (path, str(path), file, io.StringIO(text), io.BytesIO(text.encode()))
        ]
    for X, y in tables:
        assert list(X.columns) == ["age", "children", "city"] and X["city"].dtype == object
        np.testing.assert_array_equal(
            X[["age", "children"]], [[44, 2], [50, np.nan], [np.nan, np.nan]]
        )
        assert X["city"].tolist() == ["Oslo", "Bergen", "Rome"] and y.tolist() == [
            "no",
            "yes",
            "maybe",
        ]
    semicolons, _ = read("age;children;city;ill\n1;2;a,b;no\n", delimiter=";")
    assert semicolons["city"].tolist() == ["a,b"]
    # Decimal commas; a cell with a point may have thousands apart.
    lines = "age;children;city;ill\n44,5;2;a,b;no\n4.5;1,0;c;yes\n\n1.234,5;3;d;no\n"
    commas, labels = read(lines, delimiter=";", decimal=",")
    np.testing.assert_array_equal(commas["age"], [44.5, np.nan, np.nan, np.nan])
    assert commas["children"].tolist()[:2] == [2, 1]
    assert commas["city"].tolist() == ["a,b", "c", None, "d"]
    assert labels.tolist() == ["no", "yes", None, "no"]
    for wrong, message in ((";", "decimal must be"), (",", "both ','")):
        with pytest.raises(ValueError, match=message):
            read(lines, decimal=wrong)


def test_labels_and_categories_that_are_no_text():
    schema = Schema(
        {"c": {"categories": [1, 2]}, "b": {"categories": [True, False]}},
        {"name": "y", "labels": [0, 1]},
    )
    X, y = read("c,b,y\n1,TRUE,1\n2.0,false,0.0\nx,1,\n", schema)
    np.testing.assert_array_equal(X["c"], [1, 2, np.nan])
    assert X["b"].tolist() == [True, False, None]
    np.testing.assert_array_equal(y, [1, 0, np.nan])
    _, y = read("a,b,y\n1,1,3.5\n1,1,?\n", NUMBERS)
    np.testing.assert_array_equal(y, [3.5, np.nan])


def test_a_record_is_a_line():
    """A quotation mark that is not closed would swallow what follows, and one record would be many."""
    lines = ['44,1,"Oslo,no', "50,2,Bergen,yes", '"60",0,Oslo,no']
    text = "age,children,city,ill\n" + "\n".join(lines) + "\n"
    swallowed = list(csv.reader(io.StringIO(text)))
    assert len(swallowed) < 4, "the attack is one"
    X, y = read(text)
    assert (
        X["age"].tolist()[1:] == [50, 60]
        and np.isnan(X["age"][0])
        and y.tolist() == [None, "yes", "no"]
    )


def test_each_line_is_a_row_whatever_is_in_it():
    for end in ("", "\n"):
        X, y = read("age,children,city,ill\n\n1,1,Oslo,no\n\n\r\n2,2,Oslo,no" + end)
        assert len(X) == 5 and y.tolist() == [None, "no", None, None, "no"]
    X, _ = read("age,children,city,ill\n")
    assert X.shape == (0, 3)


@pytest.mark.parametrize("line", ["44,1,Oslo", "44,1,Oslo,no,", "44,1,Oslo,no,no", "44"])
def test_a_line_with_too_few_or_too_many_cells_is_a_row_of_missing_cells(line):
    X, y = read(f"age,children,city,ill\n{line}\n2,2,Oslo,no\n")
    assert (
        np.isnan(X["age"][0])
        and X["city"].tolist() == [None, "Oslo"]
        and y.tolist() == [None, "no"]
    )


def test_a_huge_cell_is_a_row_of_missing_cells():
    cell = "1" * (csv.field_size_limit() + 1)
    X, y = read(f"age,children,city,ill\n{cell},1,Oslo,no\n2,2,Oslo,no\n")
    assert X["age"].tolist()[1] == 2 and y.tolist() == [None, "no"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,children,ill\n", r"lacks \['city'\]\. Read with.*'ill'\]\.$"),
        ("age,children,city\n1,1,Oslo\n", r"lacks \['ill'\].* give schema.select\(schema.names\)"),
        ("age,age,children,city,ill\n", r"repeats \['age'\]"),
        ("", r"lacks \['age', 'children', 'city', 'ill'\]"),
        ("age;children;city;ill\n", r"Read with delimiter=',', it has \['age;children;city;ill'\]"),
        ("age,age,children,ill\n", r"lacks \['city'\] and it repeats \['age'\]"),
        (b"age,\xff\n", "header cannot be read"),
        ('age,"city\n', "header cannot be read"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_the_header_is_public_and_is_checked(text, message):
    with pytest.raises(ValueError, match=message):
        read(text)


def test_a_text_file_is_refused(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,children,city,ill\n")
    with path.open() as file, pytest.raises(ValueError, match="binary mode"):
        read_csv(file, PEOPLE)
    with pytest.raises(ValueError, match="Give a path"):
        read_csv(3, PEOPLE)


def test_without_pandas_there_are_arrays(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    X, y = read("age,children,city,ill\n44,1,Oslo,no\nx,1,Rome,yes\n")
    assert (
        X.dtype == object
        and X[0].tolist() == [44, 1, "Oslo"]
        and np.isnan(X[1, 0])
        and y.tolist() == ["no", "yes"]
    )
    X, y = read("b,a,y\n1,2,3\n", NUMBERS)
    assert X.dtype == np.float64 and X.tolist() == [[2, 1]] and y.tolist() == [3]


@pytest.mark.parametrize(
    "schema", [PEOPLE, PEOPLE.select(["age", "children"])], ids=["mixed", "numbers"]
)
def test_an_encoder_refuses_a_schema_with_columns_of_numbers(schema):
    X, _ = read("age,children,city,ill\n44,1,Oslo,no\n")
    with pytest.raises(
        ValueError,
        match=r"no categories of the columns \['age', 'children'\]: encode only the others",
    ):
        CategoryEncoder(schema).fit(X[list(schema.names)])


def test_from_a_file_to_a_model_in_a_pipeline():
    """One bad line nulls one row; names choose columns."""
    rng = np.random.default_rng(0)
    rows = [
        f"{a},{k},{c},{y}"
        for a, k, c, y in zip(
            rng.integers(18, 90, 60),
            [1, 2] * 30,
            ["Oslo", "Bergen"] * 30,
            ["no", "yes"] * 30,
            strict=True,
        )
    ]
    numbers, city = ["age", "children"], ["city"]
    prepare = ColumnTransformer(
        [
            ("numbers", BoundedScaler(PEOPLE.select(numbers)), numbers),
            ("city", CategoryEncoder(PEOPLE.select(city)), city),
        ]
    )
    found = []
    for first in (rows[0], '"', "x,y,z,w", "\0", "1,2,3,4,5"):
        X, y = read("\n".join(["age,children,city,ill", first, *rows[1:]]) + "\n")
        prepared = make_pipeline(prepare, NormClipper(2.0)).fit_transform(X)
        model = DPBayesianLogisticRegression(classes=PEOPLE.outcome, data_norm=2.0)
        found.append(model._reader().read(model, prepared, y).pack().fields)
    for fields in found[1:]:
        for field, own in zip(*map(jax.tree.leaves, (fields, found[0])), strict=True):
            np.testing.assert_array_equal(np.asarray(field)[1:], np.asarray(own)[1:])
        assert np.asarray(fields["y"])[0] == -1


def test_an_estimator_without_bounds_takes_no_list():
    for rows in ([[0, 1]], [None]):
        with pytest.raises(ValueError, match="nothing public says how many columns"):
            DPBetaBernoulli().fit(rows)


def test_half_a_character_spoils_its_own_line_alone():
    rows, _ = read_csv(io.StringIO("a,b\n\ud800,1\n2,3\n"), Schema({"a": {}, "b": {}}))
    np.testing.assert_array_equal(rows, [[np.nan, np.nan], [2, 3]])


def test_an_outcome_alone_is_of_prepared_columns():
    """Behind `make_preprocessor`, as the error of a schema with other columns says."""
    schema = Schema(
        {"age": {"bounds": [0, 100]}, "ward": {"categories": ["a", "b"]}},
        {"name": "hours", "bounds": [0, 60]},
    )
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.uniform(20, 90, 500), "ward": rng.choice(["a", "b"], 500)})
    y = 20 + 0.3 * X["age"].to_numpy() + rng.normal(0, 5, 500)
    prepare, how = make_preprocessor(schema, drop="first"), {"n_posterior_samples": 20}
    fits = [
        make_private_pipeline(prepare, DPBayesianLinearRegression(5.0, bounds=own, **how))
        for own in (schema.outcome, ((-1, 1), (0, 60)))
    ]
    plans = [fit[-1].plan(500, 2).report.public for fit in fits]
    assert plans[0] == plans[1] and fits[0].fit(X, y).summary().attrs["units"] == "original"
    with pytest.raises(ValueError, match="or that outcome, got Outcome"):
        DPBayesianLinearRegression(bounds=Outcome("ill", labels=[0, 1])).plan(10, 2)
