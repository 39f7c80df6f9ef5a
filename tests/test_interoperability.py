"""Data frames of pandas and polars, scikit-learn's meta-estimators, and files."""

import io
import pickle
import warnings

import joblib
import numpy as np
import pytest
from cases import slow_but
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.feature_selection import SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict, learning_curve
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPHierarchicalLogisticRegression,
    DPLatentDirichletAllocation,
    DPSigmoidBeliefNet,
    DPVariationalAutoencoder,
)
from skdpbayes.declarations import declared_labels
from skdpbayes.intake.labels import as_labels, codes
from skdpbayes.intake.rows import as_numeric
from skdpbayes.preprocessing import BoundedScaler, CategoryEncoder, DPStandardScaler, NormClipper

pytestmark = pytest.mark.usefixtures("compiled_quickly")

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
NAMES = ["p", "q", "r"]
LABELS = np.where(X[:, 0] + 0.5 * RNG.logistic(size=200) > 0, "ill", "well")
CODES = (LABELS == "well").astype(int)
FRAMES = {
    "pandas": lambda x: pd.DataFrame(x, columns=NAMES),
    "polars": lambda x: pl.DataFrame(x, schema=NAMES),
}
SERIES = {"pandas": pd.Series, "polars": pl.Series}


def classifier(classes=("ill", "well"), **parameters):
    return DPBayesianLogisticRegression(
        **(
            {"classes": list(classes), "solver": "vips", "epsilon": 10.0, "random_state": 0}
            | parameters
        )
    )


@pytest.mark.parametrize("kind", slow_but(FRAMES, "polars"))
def test_frames_are_their_arrays_with_names(kind):
    frame, series = FRAMES[kind](X), SERIES[kind]
    fitted = classifier().fit(X, LABELS)
    for labels in (series(LABELS), series(LABELS.tolist()), LABELS):
        again = classifier().fit(frame, labels)
        np.testing.assert_array_equal(again.coef_, fitted.coef_)
        assert again.feature_names_in_.tolist() == NAMES
        assert again.score(frame, labels) == fitted.score(X, LABELS)
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame[["q", "p", "r"]])
    regression = DPBayesianLinearRegression(bounds=((-4, 4), (-4, 4)), random_state=0)
    np.testing.assert_array_equal(
        clone(regression).fit(frame, series(X[:, 0])).coef_, regression.fit(X, X[:, 0]).coef_
    )


@pytest.mark.parametrize("kind", FRAMES)
def test_text_where_numbers_belong_is_refused_by_its_type(kind):
    frame = FRAMES[kind](X)
    text = LABELS.tolist()
    mixed = frame.assign(p=text) if kind == "pandas" else frame.with_columns(p=pl.Series(text))
    with pytest.raises(ValueError, match=r"Columns 'p' .* do not hold numbers"):
        classifier().fit(mixed, LABELS)
    with pytest.raises(ValueError, match=r"no label can be in classes.*meta-estimators"):
        classifier([0, 1]).fit(frame, SERIES[kind](text))


@pytest.mark.slow
def test_polars_types_of_labels_and_columns():
    fitted, frame = classifier().fit(X, LABELS), FRAMES["polars"](X)
    for kind in (pl.Categorical, pl.Enum(["ill", "well"])):
        np.testing.assert_array_equal(
            classifier().fit(frame, pl.Series(LABELS).cast(kind)).coef_, fitted.coef_
        )
    with_null = frame.with_columns(p=pl.Series([None, *X[1:, 0]]))
    null_row = np.vstack([np.full(3, np.nan), X[1:]])
    np.testing.assert_array_equal(
        classifier().fit(with_null, LABELS).coef_, classifier().fit(null_row, LABELS).coef_
    )
    flags = pl.DataFrame((X > 0), schema=NAMES)
    np.testing.assert_array_equal(
        classifier().fit(flags, LABELS).coef_, classifier().fit(X > 0, LABELS).coef_
    )
    with pytest.raises(ValueError, match=r"'p' \(Date\).* do not hold numbers"):
        classifier().fit(frame.with_columns(p=pl.date(2020, 1, 1)), LABELS)
    grouped = frame.with_columns(ward=pl.Series(np.where(X[:, 1] > 0, "a", "b")))
    wards = DPHierarchicalLogisticRegression(
        groups=["a", "b"], group_column="ward", classes=["ill", "well"], n_steps=20, random_state=0
    )
    as_pandas = FRAMES["pandas"](X).assign(ward=np.where(X[:, 1] > 0, "a", "b"))
    np.testing.assert_array_equal(
        clone(wards).fit(grouped, pl.Series(LABELS)).coef_, wards.fit(as_pandas, LABELS).coef_
    )


@pytest.mark.parametrize("as_given", [lambda y: y, lambda y: y.to_frame()], ids=["series", "frame"])
@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([2**53, 2**53 + 1], [2**53, 2**53 + 1]),  # one number, as floats
        (["ill", "ill\0"], ["ill", "well"]),  # one text, in an array of NumPy's
    ],
    ids=["integers", "text"],
)
def test_a_missing_label_changes_no_other(values, classes, as_given):
    own_labels = declared_labels(classes, "classes")
    whole, missing = (pl.Series("y", [first, *(values * 100)[1:]]) for first in (values[0], None))
    of_whole, of_missing = (
        codes(as_labels(as_given(labels)), own_labels) for labels in (whole, missing)
    )
    assert of_missing[0] == -1 and len(set(of_whole)) == 2
    np.testing.assert_array_equal(of_missing[1:], of_whole[1:])
    null_row = np.vstack([np.full(3, np.nan), X[1:]])
    fitted = [
        classifier(classes).fit(rows, as_given(y)).coef_
        for rows, y in ((X, missing), (null_row, whole))
    ]
    np.testing.assert_array_equal(*fitted)


@pytest.mark.parametrize(
    "types", [(pl.Int8,), (pl.Int16,), (pl.Boolean, pl.Float32), (pl.Float32,)]
)
def test_a_missing_cell_does_not_decide_the_precision_of_others(types):
    for value in (1, None):
        frame = pl.DataFrame(
            [pl.Series(f"c{j}", [1, value]).cast(kind) for j, kind in enumerate(types)]
        )
        assert as_numeric(frame).dtype == np.float64


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize(
    ("transformer", "names"),
    [
        (DPSigmoidBeliefNet(2), ["dpsigmoidbeliefnet0", "dpsigmoidbeliefnet1"]),
        pytest.param(
            DPLatentDirichletAllocation(1), ["dplatentdirichletallocation0"], marks=pytest.mark.slow
        ),
        pytest.param(
            DPVariationalAutoencoder(1, (3,), n_steps=5),
            ["dpvariationalautoencoder0"],
            marks=pytest.mark.slow,
        ),
        (DPStandardScaler((-4, 4)), NAMES),
        (NormClipper(2.0), NAMES),
        (BoundedScaler((-4, 4)), NAMES),
    ],
    ids=lambda value: type(value).__name__,
)
def test_set_output(transformer, names, kind):
    frame = FRAMES[kind]((X > 0).astype(int))
    out = clone(transformer).set_output(transform=kind).fit(frame).transform(frame)
    assert type(out) is type(frame) and list(out.columns) == names


def test_set_output_of_categories():
    frame = pl.DataFrame({"ward": LABELS.tolist()})
    out = (
        CategoryEncoder([["ill", "well"]])
        .set_output(transform="polars")
        .fit(frame)
        .transform(frame)
    )
    assert out.columns == ["ward_ill", "ward_well"] and out["ward_well"].to_list() == CODES.tolist()


def calibrated_later(classes, y):
    return CalibratedClassifierCV(FrozenEstimator(classifier(classes).fit(X, y)))


OUTER = {
    "calibrated": lambda classes, y: CalibratedClassifierCV(classifier(classes), cv=2),
    "calibrated later": calibrated_later,
    "selection": lambda classes, y: make_pipeline(
        SelectFromModel(classifier(classes)), classifier(classes)
    ),
}
RENAMING = {  # they hand 0 and 1 to the estimators inside
    "stacking": lambda inner: StackingClassifier([("a", inner), ("b", LogisticRegression())], cv=2),
    "voting": lambda inner: VotingClassifier(
        [("a", inner), ("b", LogisticRegression())], voting="soft"
    ),
    "bagging": lambda inner: BaggingClassifier(inner, n_estimators=2, random_state=0),
    "one against the rest": lambda inner: OneVsRestClassifier(inner),
}


@pytest.mark.parametrize("name", slow_but([*OUTER, *RENAMING], *RENAMING, "calibrated"))
@pytest.mark.parametrize("y", [LABELS, CODES], ids=["text", "codes"])
def test_inside_of_other_estimators(name, y):
    """They run as with any classifier; what they do with raw rows is theirs, and not private."""
    outer = OUTER[name](np.unique(y), y) if name in OUTER else RENAMING[name](classifier([0, 1]))
    fitted = outer.fit(X, y)
    assert fitted.score(X, y) > 0.7 and fitted.predict_proba(X[:2]).shape == (2, 2)


def test_inspection_and_cross_validation():
    fitted = classifier().fit(X, LABELS)
    assert (
        permutation_importance(
            fitted, X, LABELS, n_repeats=2, random_state=0
        ).importances_mean.argmax()
        == 0
    )
    held_out = cross_val_predict(classifier([0, 1]), X, CODES, cv=2, method="predict_proba")
    assert held_out.shape == (200, 2) and np.mean(held_out.argmax(axis=1) == CODES) > 0.7
    assert learning_curve(classifier(), X, LABELS, cv=2, train_sizes=[0.5, 1.0])[2].shape == (2, 2)


def test_files():
    fitted = classifier().fit(X, LABELS)
    expected = fitted.predict_proba(X)
    stream = io.BytesIO()
    joblib.dump(fitted, stream)
    stream.seek(0)
    for again in (pickle.loads(pickle.dumps(fitted)), joblib.load(stream)):
        np.testing.assert_array_equal(again.predict_proba(X), expected)
        assert again.privacy_spent_ == fitted.privacy_spent_


def test_a_file_of_another_version_says_so():
    fitted = classifier().fit(X, LABELS)
    state = fitted.__getstate__()
    assert state["_skdpbayes_version"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier().__setstate__(state)
    old = state | {"_skdpbayes_version": "0.0.1"}
    with pytest.warns(
        UserWarning, match=r"saved by skdpbayes 0\.0\.1 .* fit again is another release"
    ):
        classifier().__setstate__(old)


def test_skops():
    skops = pytest.importorskip("skops.io")
    fitted = classifier().fit(X, LABELS)
    saved = skops.dumps(fitted)
    unknown = skops.get_untrusted_types(data=saved)
    assert unknown and all(name.startswith("skdpbayes.") for name in unknown)
    np.testing.assert_array_equal(
        skops.loads(saved, trusted=unknown).predict_proba(X), fitted.predict_proba(X)
    )
