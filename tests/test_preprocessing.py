"""Preparation learns nothing from rows, or is private; and a walk through a pipeline sees what is not."""

import warnings

import numpy as np
import pandas as pd
import pytest
from cases import slow_but
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPGammaExponential,
    DPLatentDirichletAllocation,
    Schema,
)
from skdpbayes.audit import audit
from skdpbayes.datasets import load_adult
from skdpbayes.estimators._base import PrivateEstimator
from skdpbayes.model_selection import DPRandomizedSearchCV
from skdpbayes.pipelines import check_pipeline
from skdpbayes.preprocessing import (
    BoundedScaler,
    CategoryEncoder,
    DPStandardScaler,
    NormClipper,
    check_data,
    make_preprocessor,
)
from skdpbayes.privacy import BudgetError, PrivacyLedger, compose

pytestmark = pytest.mark.filterwarnings("ignore:delta=.* is not below")  # tables of a few rows


def refused_checks(estimator):
    """A list of rows has no public width: the check that fits to one must fail."""
    return {
        "check_transformer_data_not_an_array": "lists of rows whose width is not declared are refused"
    }


@parametrize_with_checks(
    [
        NormClipper(),
        BoundedScaler((-10, 10)),
        CategoryEncoder([0, 1, 2]),
        CategoryEncoder([0, 1, 2], drop="first"),
        DPStandardScaler((-9, 9), random_state=0),
    ],
    expected_failed_checks=refused_checks,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


class Hostile:
    """A cell that objects to everything."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __hash__(self):
        raise RuntimeError("hash")

    def __eq__(self, other):
        raise RuntimeError("eq")

    def __float__(self):
        raise RuntimeError("float")


CELLS = [Hostile(), "x", [1, 2], None, 1j, 10**400, float("nan"), b"seven", pd.NaT]
TRANSFORMERS = [
    NormClipper(2.0),
    BoundedScaler(((0, 0), (4, 8)), feature_range=(-1, 1)),
    CategoryEncoder([[0, 1, 2], [0, 1, 2, 3]]),
    DPStandardScaler(((0, 0), (4, 8)), epsilon=np.inf, random_state=0),
]


@pytest.mark.parametrize("estimator", TRANSFORMERS, ids=lambda e: type(e).__name__)
def test_no_cell_raises_or_changes_another_row(estimator):
    table = np.random.default_rng(0).integers(0, 3, (20, 2)).astype(object)
    usual = clone(estimator).fit(table)
    for cell in CELLS:
        changed = table.copy()
        changed[3, 1] = cell
        for rows in (changed, changed.tolist()):
            if not isinstance(estimator, NormClipper):  # which declares no width
                clone(estimator).fit(rows)
            out = usual.transform(rows)
            np.testing.assert_array_equal(
                np.delete(out, 3, axis=0), np.delete(usual.transform(table), 3, axis=0)
            )
            assert (
                out[3, -1] == 0 if isinstance(estimator, CategoryEncoder) else np.isnan(out[3, 1])
            )


def test_long_rows_are_shortened_and_missing_ones_stay_missing():
    X = np.array([[3.0, 4.0], [0.3, 0.4], [np.nan, 1.0], [1e300, 1e300], [np.inf, 0]])
    want = [[0.6, 0.8], [0.3, 0.4], [np.nan] * 2, [0.5**0.5] * 2, [np.nan] * 2]
    np.testing.assert_allclose(NormClipper().fit_transform(X), want)
    thin = NormClipper().fit(X).transform(sparse.csr_array(np.nan_to_num(X[:2])))
    np.testing.assert_allclose(thin.toarray(), want[:2])
    hidden = NormClipper().fit(X).transform(sparse.csr_array(X[2:3]))
    assert np.isnan(hidden.toarray()).all()


def test_no_number_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strange = np.array([[np.longdouble("1e4000")], [np.nan]])
        assert BoundedScaler((0, 1)).fit(strange).transform(strange)[0] == 1
        DPStandardScaler((-1, 1), delta=1e-3).fit(strange).transform(strange)


def test_a_signalling_nan_warns_of_nothing():
    X = np.full((2, 1), 0.5)
    X.view(np.uint64)[0] = 0x7FF0000000000001
    scaler = DPStandardScaler((-1, 1), delta=1e-3, epsilon=np.inf, random_state=0).fit(
        np.linspace(-1, 1, 20)[:, None]
    )
    with np.errstate(all="raise"):
        assert np.isnan(scaler.transform(X)[0, 0])


class Talkative:
    """A cell that warns when it is looked at."""

    def __hash__(self):
        warnings.warn("looked at", stacklevel=1)
        return 1


def test_what_a_category_says_is_not_heard():
    X = np.array([[Talkative()], [1]])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(CategoryEncoder([0, 1]).fit(X).transform(X), [[0, 0], [0, 1]])
    assert not heard


def test_text_without_characters_is_no_category():
    X = np.array([[0x110000], [ord("a")]], "u4").view("U1")
    np.testing.assert_array_equal(CategoryEncoder(["a", "b"]).fit(X).transform(X), [[0, 0], [1, 0]])


def test_bounds_by_number_by_column_and_by_name():
    frame = pd.DataFrame({"age": [20, 60, 120], "hours": [0, 50, None]})
    want = [[0.2, 0.0], [0.6, 0.5], [1.0, np.nan]]
    np.testing.assert_allclose(BoundedScaler((0, 100)).fit_transform(frame), want)
    named = BoundedScaler({"hours": (0, 100), "age": (0, 100)}).fit(frame)
    np.testing.assert_allclose(named.transform(frame), want)
    np.testing.assert_allclose(named.inverse_transform(want), [[20, 0], [60, 50], [100, np.nan]])
    assert named.get_feature_names_out().tolist() == ["age", "hours"]
    for bounds, message in (
        ({"age": (0, 1)}, "differs by .*hours"),
        ((1, 0), "low below high"),
        ((0, [1, 2, 3]), "each of the 2 columns"),
        ("ab", "must be a pair"),
        (None, "must be a pair"),
    ):
        with pytest.raises(ValueError, match=message):
            BoundedScaler(bounds).fit(frame)
    for scaler in (BoundedScaler(), DPStandardScaler()):
        with pytest.raises(ValueError, match=r"bounds must be a pair .* or a Schema\), got None"):
            scaler.fit(frame)
    with pytest.raises(ValueError, match="feature_range"):
        BoundedScaler((0, 1), feature_range=(1, 1)).fit(frame)
    with pytest.raises(ValueError, match="needs a data frame"):
        BoundedScaler({0: (0, 1)}).fit([[1.0]])


def test_categories_by_name_and_by_column():
    frame = pd.DataFrame({"a": ["x", "y", "z"], "b": [1, 2, 1]})
    encoder = CategoryEncoder({"b": [1, 2], "a": ["x", "y"]}).fit(frame)
    assert encoder.get_feature_names_out().tolist() == ["a_x", "a_y", "b_1", "b_2"]
    assert encoder.transform(frame).tolist() == [[1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
    assert CategoryEncoder(["x", "y"]).fit_transform(np.array([["y", "x"]])).tolist() == [
        [0, 1, 1, 0]
    ]
    for categories, message in (
        ([["x"]], "1 lists"),
        ([[1], []], "one or more"),
        ([[1, 1], [2]], "different"),
        ([[(1,)], [2]], "texts, numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            CategoryEncoder(categories).fit(frame)


FRAME = pd.DataFrame({"a": ["x", "y", "z"], "b": [1, 2, 3]})
NAN = float("nan")


@pytest.mark.parametrize(
    ("drop", "names", "rows"),
    [
        ("first", ["a_y", "b_2", "b_3"], [[0, 0, 0], [1, 1, 0], [NAN, 0, 1]]),
        (
            "if_binary",
            ["a_y", "b_1", "b_2", "b_3"],
            [[0, 1, 0, 0], [1, 0, 1, 0], [NAN, 0, 0, 1]],
        ),
        ({"a": "y", "b": 2}, ["a_x", "b_1", "b_3"], [[1, 1, 0], [0, 0, 0], [NAN, 0, 1]]),
        (["y", None], ["a_x", "b_1", "b_2", "b_3"], [[1, 1, 0, 0], [0, 0, 1, 0], [NAN, 0, 0, 1]]),
    ],
)
def test_a_category_is_left_out(drop, names, rows):
    encoder = CategoryEncoder({"a": ["x", "y"], "b": [1, 2, 3]}, drop=drop).fit(FRAME)
    assert encoder.get_feature_names_out().tolist() == names
    np.testing.assert_array_equal(encoder.transform(FRAME), rows)
    assert clone(encoder).get_params()["drop"] == drop


def test_what_drop_refuses():
    for drop, message in (
        ("last", "drop must be one of 'first', 'if_binary'"),
        (["x"], "drop has 1 categories, X has 2 columns"),
        (["x", 7], "drop=7 is not among the categories"),
        ({"a": "x"}, "drop must name the columns"),
    ):
        with pytest.raises(ValueError, match=message):
            CategoryEncoder({"a": ["x", "y"], "b": [1, 2]}, drop=drop).fit(FRAME)


def test_with_a_category_left_out_no_cell_raises_or_passes_for_it():
    table = np.random.default_rng(0).integers(0, 3, (20, 2)).astype(object)
    encoder = CategoryEncoder([[0, 1, 2], [0, 1, 2]], drop="first")
    usual = clone(encoder).fit_transform(table)
    for cell in CELLS:
        changed = table.copy()
        changed[3, 1] = cell
        out = clone(encoder).fit_transform(changed)  # nor does any warn
        np.testing.assert_array_equal(np.delete(out, 3, axis=0), np.delete(usual, 3, axis=0))
        assert np.isnan(out[3, 2:]).all() and not np.isnan(out[3, :2]).any()


# The private scaler


def columns(n=20_000, seed=0):
    return np.random.default_rng(seed).normal([50, 3], [10, 0.5], (n, 2))


BOUNDS = ([0, 0], [100, 10])


def test_without_noise_it_is_the_standard_scaler():
    X = columns()
    X[::7, 1] = np.nan
    ours, theirs = (
        DPStandardScaler(BOUNDS, epsilon=np.inf, random_state=0).fit(X),
        StandardScaler().fit(X),
    )
    np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-4)
    np.testing.assert_allclose(ours.scale_, theirs.scale_, rtol=1e-4)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=2e-3)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(X)), X, rtol=1e-6)
    plain = DPStandardScaler(
        BOUNDS, epsilon=np.inf, with_mean=False, with_std=False, random_state=0
    )
    np.testing.assert_array_equal(plain.fit_transform(X), X)


def test_moments_are_as_far_off_as_the_noise_says():
    X = columns(2000)
    fits = [DPStandardScaler(BOUNDS, epsilon=0.5, random_state=seed).fit(X) for seed in range(60)]
    noise = (
        fits[0].privacy_spent_.steps[0].noise_multiplier * 3**0.5 / len(X)
    )  # in units of half of the range
    errors = (np.array([fit.mean_ for fit in fits]) - X.mean(axis=0)) / [50, 5]
    assert 0.7 < errors.std() / noise < 1.3
    assert np.median([fit.scale_[0] for fit in fits]) == pytest.approx(X[:, 0].std(), rel=0.1)


@pytest.mark.parametrize(
    "adjacency", slow_but(["zero_out", "add_remove", "replace_one"], "zero_out")
)
def test_the_scaler_passes_the_audit(adjacency):
    report = audit(
        DPStandardScaler((-1, 1), epsilon=4.0, adjacency=adjacency), np.ones((20, 3)), n_trials=400
    )
    assert report.passed, str(report)
    assert adjacency == "replace_one" or report.epsilon_lower_bound > 1.2


def test_noise_alone_gives_finite_scales_within_the_bounds():
    X = np.full((30, 2), np.nan)
    for seed in range(20):
        scaler = DPStandardScaler(BOUNDS, epsilon=0.1, delta=1e-3, random_state=seed).fit(X)
        assert ((scaler.mean_ >= 0) & (scaler.mean_ <= [100, 10])).all()
        assert ((scaler.scale_ > 0) & (scaler.scale_ <= [50, 5])).all()


def test_the_scaler_charges_a_ledger():
    with PrivacyLedger(epsilon=1.0, delta=1e-5), pytest.raises(BudgetError):
        DPStandardScaler(BOUNDS, epsilon=5.0).fit(columns(100))


# Pipelines

MODEL = DPBayesianLogisticRegression(1.0, classes=[0, 1], solver="vips")


class Learns(BoundedScaler):
    """Of a class that passes, but for what it does."""


@pytest.mark.parametrize(
    ("step", "leaks"),
    [
        (StandardScaler(), True),
        (PCA(2), True),
        (Normalizer(), True),  # raises on a missing cell
        (OneHotEncoder(categories=[["a"]], handle_unknown="ignore"), True),
        (FunctionTransformer(lambda X: X - X.mean()), True),
        (Learns(), True),
        (BoundedScaler(), False),
        (CategoryEncoder(["a"]), False),
        (NormClipper(), False),
        ("passthrough", False),
        (GridSearchCV(MODEL, {"epsilon": [1.0]}), True),
        (DPBayesianLogisticRegression(1.0), True),
        (DPBayesianLinearRegression(1.0), True),
        (DPRandomizedSearchCV(DPBayesianLogisticRegression(1.0), {}), True),
        (DPBayesianLogisticRegression(np.inf, classes=[0, 1]), True),
        (DPStandardScaler(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_steps_are_judged(step, leaks):
    nested = ColumnTransformer([("own", FeatureUnion([("inner", Pipeline([("it", step)]))]), [0])])
    pipeline = Pipeline([("before", nested), ("model", MODEL)])
    report = check_pipeline(pipeline)
    assert [found.name for found in report.leaks] == (["before__own__inner__it"] if leaks else [])
    assert report.passed == (not leaks)
    assert ("LEAKS" in str(report)) == leaks and ("no guarantee" in str(report)) == leaks
    if leaks:  # an estimator that spends is judged all the same
        own = isinstance(step, PrivateEstimator | DPRandomizedSearchCV)
        assert check_pipeline(pipeline, trusted=["before__own__inner__it"]).passed is not own


def test_columns_that_are_left_and_selectors_that_look_are_judged():
    rest = ColumnTransformer([("a", "passthrough", [0])], remainder=StandardScaler())
    assert [step.name for step in check_pipeline(make_pipeline(rest, MODEL)).leaks] == [
        "columntransformer__remainder"
    ]
    chosen = ColumnTransformer([("a", BoundedScaler(), lambda X: [int(X[:, 0].mean() > 0)])])
    report = check_pipeline(make_pipeline(chosen, MODEL))
    assert [step.name for step in report.leaks] == ["columntransformer__a's columns"]
    named = ColumnTransformer([("a", BoundedScaler(), make_column_selector("a"))])
    assert check_pipeline(make_pipeline(named, MODEL)).passed
    with pytest.raises(ValueError, match="trusted names no step"):
        check_pipeline(MODEL, trusted=["scaler"])


def test_a_pipeline_without_a_private_step_does_not_pass():
    assert not check_pipeline(make_pipeline(BoundedScaler())).passed
    mixed = make_pipeline(DPGammaExponential(), DPLatentDirichletAllocation())
    with pytest.raises(ValueError, match="different adjacencies or units"):
        check_pipeline(mixed)


@pytest.mark.slow
def test_refits_count_and_conditions_are_said():
    X, model = columns(300), clone(MODEL)
    model.fit(X, np.arange(300) % 2).fit(X, np.arange(300) % 2)
    report = check_pipeline(model)
    assert (
        report.epsilon == pytest.approx(model.privacy_spent_.cumulative_epsilon, rel=1e-6)
        and report.epsilon > 1.3
    )
    assert "in the last of several fits" in report.steps[0].reason
    found = DPRandomizedSearchCV(MODEL, {}, epsilon=2.0, n_iter=1).fit(X, np.arange(300) % 2)
    found.fit(X, np.arange(300) % 2)
    again = check_pipeline(found)
    assert (again.epsilon, again.delta) == (found.privacy_spent_.total_epsilon, 2e-5)
    fast = clone(MODEL).set_params(numerics="fast")
    assert "idealised" in check_pipeline(fast).steps[0].reason
    for wrong in (("foo", ()), (MODEL, "model")):
        with pytest.raises(ValueError, match="Give a pipeline"):
            check_pipeline(wrong[0], trusted=wrong[1])


@pytest.mark.slow
def test_fitted_steps_compose():
    X = columns(300)
    pipeline = make_pipeline(DPStandardScaler(BOUNDS, epsilon=0.5), MODEL)
    assert check_pipeline(pipeline).epsilon == 1.5
    pipeline.fit(X, np.arange(300) % 2)
    report = check_pipeline(pipeline)
    assert report.passed and report.delta == pytest.approx(2e-5)
    steps = [step for part in pipeline for step in part.privacy_spent_.releases]
    assert report.epsilon == pytest.approx(compose(steps).epsilon(2e-5), rel=1e-6)
    with pytest.warns(UserWarning, match="classes=None"):
        voided = pipeline.set_params(dpbayesianlogisticregression__classes=None).fit(
            X, np.arange(300) % 2
        )
    assert "guarantee does not hold" in check_pipeline(voided).leaks[0].reason


@pytest.mark.adult
def test_from_the_raw_adult_table_to_predictions():
    """Strings and numbers in, probabilities out, one total."""
    data = load_adult()
    text = ["workclass", "education", "marital-status", "occupation", "race", "sex"]
    numbers = ["age", "hours-per-week", "capital-gain", "capital-loss"]
    prepare = ColumnTransformer(
        [
            ("categories", CategoryEncoder({name: data.categories[name] for name in text}), text),
            (
                "numbers",
                DPStandardScaler({name: data.bounds[name] for name in numbers}, epsilon=0.2),
                numbers,
            ),
        ]
    )
    model = DPBayesianLogisticRegression(0.8, classes=data.classes, data_norm=4.0, solver="vips")
    pipeline = make_pipeline(prepare, NormClipper(4.0), model).fit(data.X_train, data.y_train)
    report = check_pipeline(pipeline)
    assert report.passed and report.epsilon <= 1 and report.delta == pytest.approx(2e-5)
    assert pipeline.score(data.X_test, data.y_test) > 0.84


# Data


def test_what_is_wrong_with_data_is_said():
    table = pd.DataFrame(
        {"a": [1.0, 2.0, np.nan, 50.0], "b": ["1", "x", "3", "4"], "c": [7, 7, 7, 7]}
    )
    model = DPBayesianLogisticRegression(
        10.0, delta=0.5, classes=["no", "yes", "never"], data_norm=20.0
    )
    said = check_data(table.astype(object), ["no", "yes", "no", 3], estimator=model).findings
    for part in (
        "2 of 4 rows have a missing",
        "1 of 4 rows are longer than data_norm=20",
        "columns 'c' are constant",
        "1 of 4 labels are not among classes, and their rows will be left out, such as 3",
        "no row has the label 'never'",
        "delta=0.5 is not below one",
        "mostly noise",
    ):
        assert any(part in finding for finding in said), part
    assert len(said) == 7


def test_the_labels_that_are_not_declared_are_shown_the_most_frequent_first():
    model = DPBayesianLogisticRegression(classes=["no", "yes"])
    labels = np.array([None, *["Yes"] * 3, "jes", "jes", *["no", "yes"] * 10], dtype=object)
    said = check_data(np.ones((len(labels), 1)), labels, estimator=model).findings
    assert any(finding.endswith("such as 'Yes', 'jes', None") for finding in said)


def test_bounds_are_held_against_the_data():
    scaled = check_data(
        [[0.0, 5.0], [2.0, 30.0]], estimator=DPStandardScaler((0, [1.0, 10.0]), delta=0.1)
    ).findings
    assert any("2 of 4 values of X lie outside" in finding for finding in scaled)
    linear = DPBayesianLinearRegression(bounds=((0, 1), (0, 9)))
    said = str(check_data([[0.5], [0.7]], [1.0, 10.0], estimator=linear))
    assert (
        "1 of 2 values of y lie outside" in said
        and "values of X" not in said
        and said.startswith("Not private")
    )


def test_names_are_those_of_columns_and_pipelines_are_turned_away():
    frame = pd.DataFrame({"a": ["x", "y"], "b": [1.0, 1.0]}).astype(object)
    said = check_data(frame, estimator=NormClipperLike()).findings
    assert any("column 'a' holds no number" in f for f in said) and not any(
        "smaller data_norm" in f for f in said
    )
    assert any("'b' are constant" in f for f in said)
    with pytest.raises(ValueError, match="what the model is given"):
        check_data(frame, estimator=make_pipeline(MODEL))


def test_persons_are_looked_at_before_a_fit():
    names = ["ann", "Ann ", "bob", "bob", "bob", None]
    model = DPBayesianLogisticRegression(classes=[0, 1], max_rows_per_person=2, epsilon=5.0)
    said = check_data(np.eye(6), [0, 1] * 3, estimator=model, groups=names).findings
    assert "1 of 6 rows name no person, and will be left out" in said
    assert any("1 of 3 persons" in own and ": 1 rows will be left out" in own for own in said)
    assert any("1 names equal another one but for case" in own for own in said)
    assert any("with 3 persons and 6 columns" in own for own in said)


def test_names_that_are_not_what_they_seem_are_told():
    names = [1, 2.0, "1", "2", "b", "nan", "<NA>", "nan", float("nan")]
    said = check_data(np.eye(9), groups=names).findings
    assert any("persons are called <NA>, nan, as astype(str)" in own for own in said)
    assert any("2 names are there as a text and as another type" in own for own in said)
    assert any("such as '1'" in own for own in said)
    for fine in (["nancy", "None of them"], [1, 2], [("a", 1), ("a", "1")]):
        assert not [own for own in check_data(np.eye(2), groups=fine).findings if "person" in own]


def test_cells_are_held_against_the_categories_of_an_encoder():
    table = pd.DataFrame({"city": ["Oslo", "?", "Oslo", "-", "?"], "ward": ["a", "b", "a", "b", 1]})
    encoder = CategoryEncoder(
        {"city": ["Oslo", "Rome"], "ward": ["a", "b"]}, {"city": None, "ward": "a"}
    )
    said = check_data(table, estimator=encoder, groups=[1, 1, 1, 1, None]).findings
    assert said == (
        "3 of 5 cells of column 'city' are not among categories, and will be zeros, such as '?', "
        "'-'",
        "no cell of column 'city' has the category 'Rome'",
        "1 of 5 cells of column 'ward' are not among categories, and their rows will be left out, "
        "such as 1",
        "1 of 5 rows name no person, and will be left out",
    )
    assert not hasattr(encoder, "n_features_in_")
    # By a schema too, and of each step of a transformer of columns.
    schema = Schema(
        {
            "ward": {"categories": ["a", "b"]},
            "age": {"bounds": [0, 100], "missing": 50},
            "dose": {"bounds": [0, 1]},
        }
    )
    numbers = {"age": [30.0, np.nan, 200.0, 3.0, 4.0], "dose": [0.1, 0.2, 0.3, 0.4, np.nan]}
    prepare = make_preprocessor(schema, drop="first")
    frame = table[["ward"]].assign(**numbers, name="a text")
    said = check_data(frame, estimator=prepare).findings
    assert len(said) == 3 and said[0].startswith("1 of 5 rows have a missing")
    assert said[1].startswith("1 of 10 values of X lie outside")
    assert said[2].endswith(
        "column 'ward' are not among categories, and their rows will be left out, such as 1"
    )
    # Nothing is fitted, so that nothing is spent.
    ledger = PrivacyLedger(1.0, 1e-4)
    private = DPStandardScaler((0.0, 1.0), epsilon=0.5, ledger=ledger)
    steps = [
        ("scale", private, ["dose"]),
        ("ward", make_pipeline(encoder_of := CategoryEncoder({"ward": ["a", "b"]})), "ward"),
        ("nothing", BoundedScaler((0, 1)), []),
        ("name", "passthrough", ["name"]),
        ("chosen", BoundedScaler((0, 100)), lambda rows: ["age"]),
    ]
    said = check_data(frame, estimator=ColumnTransformer(steps, remainder="passthrough")).findings
    assert not ledger.spent_epsilon and not hasattr(encoder_of, "n_features_in_")
    assert len(said) == 5 and not any("'name'" in own for own in said)
    by_place = ColumnTransformer([("age", BoundedScaler((0, 100)), [1])])
    assert any(
        "lie outside" in own for own in check_data([["a", 200]], estimator=by_place).findings
    )
    filled = Schema({"city": {"categories": ["Oslo", "other"], "missing": "other"}})
    assert not check_data(table[["city"]], estimator=CategoryEncoder(filled)).findings
    holes = np.array([[0.2], [np.nan], [0.4]])
    assert check_data(holes, estimator=BoundedScaler((0, 1))).findings
    assert not check_data(holes, estimator=BoundedScaler((0, 1), missing=0.5)).findings


def test_good_data_pass():
    X = np.random.default_rng(0).normal(size=(500, 2))
    assert not check_data(X).findings and "nothing found" in str(check_data(X))
    assert any(
        "smaller data_norm" in f for f in check_data(X / 9, estimator=NormClipperLike()).findings
    )
    assert any("no number at all" in f for f in check_data(X * [1, np.nan]).findings)


class NormClipperLike:
    def get_params(self, deep):
        return {"data_norm": 5.0}


@pytest.mark.parametrize("missing", [40, [40, 2], {"a": 40, "b": 2}])
def test_missing_cells_get_a_public_value(missing):
    table = pd.DataFrame({"a": [50.0, np.nan, np.inf], "b": [np.nan, 1.0, -np.inf]})
    scaled = BoundedScaler(((0, 0), (100, 4)), missing=missing).fit_transform(table)
    second = 1.0 if missing == 40 else 0.5  # 40 is cut at 4
    np.testing.assert_allclose(scaled, [[0.5, second], [0.4, 0.25], [1.0, 0.0]])


@pytest.mark.parametrize("missing", [np.nan, "text", [1, 2, 3], {"a": 1}, {"a": 1, "c": 2}])
def test_values_of_missing_cells_that_make_no_sense_are_refused(missing):
    with pytest.raises(ValueError, match="missing must"):
        BoundedScaler((0, 1), missing=missing).fit(pd.DataFrame({"a": [0.5], "b": [0.5]}))


@pytest.mark.parametrize("as_given", [lambda X: X, lambda X: pd.DataFrame(X, columns=["a", "b"])])
def test_categories_of_another_kind_than_the_column_are_refused_by_its_dtype(as_given):
    X = as_given(np.array([[1, 0], [2, 1]]))
    with pytest.raises(
        ValueError, match=r"The column .* has dtype int64 .* no label can be in categ"
    ):
        CategoryEncoder(categories=[["1", "2"], ["0", "1"]]).fit(X)
    encoded = CategoryEncoder(categories=[[1, 2], [0, 1]]).fit(X).transform(X)
    np.testing.assert_array_equal(encoded, [[1, 0, 1, 0], [0, 1, 0, 1]])
    objects = CategoryEncoder(categories=[["1", "2"], ["0", "1"]]).fit(np.array(X, object))
    assert not objects.transform(np.array(X, object)).any()  # cells alone raise nothing


def test_a_schema_prepares_its_columns_of_a_frame():
    columns = {
        "ward": {"categories": ["north", "south"]},
        "age": {"bounds": [0, 100], "missing": 40},
        "visits": {"kind": "count", "bounds": [0, 10]},
    }
    schema = Schema(columns, {"name": "ill", "labels": [0, 1]})
    frame = pd.DataFrame(
        {"name": ["a", "b"], "visits": [10, 99], "ward": ["south", "?"], "age": [50, np.nan]}
    )
    prepare = make_preprocessor(schema)
    rows = prepare.fit_transform(frame)
    np.testing.assert_allclose(rows, [[0, 1, 0, 1], [-0.2, 1, 0, 0]])
    assert list(prepare.get_feature_names_out()) == ["age", "visits", "ward_north", "ward_south"]
    assert {step.verdict for step in check_pipeline(prepare).steps} == {"learns nothing"}
    assert np.linalg.norm(rows, axis=1).max() <= len(schema.columns) ** 0.5
    dropped = make_preprocessor(schema, feature_range=(0, 1), drop={"ward": "south"})
    np.testing.assert_allclose(dropped.fit_transform(frame), [[0.5, 1, 0], [0.4, 1, np.nan]])
    assert make_preprocessor(schema.select(["ward"])).fit_transform(frame).shape == (2, 2)
    with pytest.raises(ValueError, match=r"no bounds of the columns \['age'\]: declare them"):
        make_preprocessor(Schema({"age": {"kind": "count"}, "ward": {"categories": ["n", "s"]}}))
    alone = make_preprocessor(schema.select(["age"]))
    assert [name for name, *_ in alone.transformers] == ["numbers"]
    with pytest.raises(ValueError, match="schema must be a Schema, got dict"):
        make_preprocessor(columns)
