"""Pipelines transform rows of a table on disk when these are read, and release what they would."""

import arrow_files
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import FunctionTransformer

from skdpbayes import DPBayesianLogisticRegression, Schema
from skdpbayes.intake.sources import RecordSource
from skdpbayes.mechanism import keys, stored
from skdpbayes.model_selection import DPRandomizedSearchCV
from skdpbayes.pipelines import PrivatePipeline, make_private_pipeline
from skdpbayes.preprocessing import BoundedScaler, CategoryEncoder, DPStandardScaler, NormClipper
from skdpbayes.privacy import PrivacyLedger

pytestmark = pytest.mark.usefixtures("compiled_quickly", "same_keys")
N = 500
SCHEMA = Schema(
    {"age": {"bounds": [18, 90], "missing": 40}, "city": {"categories": ["Oslo", "Bergen"]}},
    {"name": "ill", "labels": ["no", "yes"]},
)


@pytest.fixture
def same_keys(monkeypatch):
    """Keys of a seed, since pipelines refuse estimators with one."""
    original = keys.key_material
    monkeypatch.setattr(keys, "key_material", lambda seed, n_chains: original(1, n_chains))


def data():
    rng = np.random.default_rng(0)
    age = rng.uniform(18, 90, N)
    ill = np.where(rng.random(N) < age / 90, "yes", "no").astype(object)
    city = rng.choice(np.array(["Oslo", "Bergen", "Rome", None], object), N)
    texts = [f"{own:.1f}" for own in age]
    texts[3], texts[4], ill[5] = "old", None, "perhaps"
    return {"age": pa.array(texts, pa.string()), "city": pa.array(city), "ill": pa.array(ill)}


def model(**how):
    return DPBayesianLogisticRegression(
        classes=["no", "yes"], data_norm=2.0, solver="vips", n_steps=4, **how
    )


def encoded(last):
    columns = ColumnTransformer(
        [
            ("number", BoundedScaler(SCHEMA.select(["age"])), ["age"]),
            ("text", CategoryEncoder(SCHEMA.select(["city"])), ["city"]),
        ]
    )
    return PrivatePipeline([("columns", columns), ("clip", NormClipper(2.0)), ("model", last)])


@pytest.fixture
def parts(monkeypatch):
    """Sizes of the parts that are read, a few rows at a time."""
    monkeypatch.setattr(stored, "_MOST_BYTES", 2**12)
    monkeypatch.setattr(stored, "_AT_A_TIME", 50)
    seen, original = [], CategoryEncoder.transform
    monkeypatch.setattr(
        CategoryEncoder, "transform", lambda self, X: seen.append(len(X)) or original(self, X)
    )
    return seen


@pytest.mark.slow
def test_texts_are_parsed_part_by_part(tmp_path, parts):
    columns = data()
    table = arrow_files.write(tmp_path / "t", columns)
    found = encoded(model()).fit(table[["age", "city"]], table["ill"])
    assert max(parts) <= 50 < N < sum(parts)
    parts.clear()
    frame = pa.table(columns).to_pandas()
    expected = encoded(model()).fit(frame[["age", "city"]], frame["ill"])
    assert parts == [N]
    np.testing.assert_array_equal(found[-1].posterior_.mean, expected[-1].posterior_.mean)
    assert found[-1].usable_records_ == expected[-1].usable_records_
    assert type(found.steps[0][1]) is ColumnTransformer
    assert found.get_params()["clip"].norm == 2.0
    X = table[["age", "city"]][:20]
    with pytest.warns(UserWarning, match="without a declared category"):
        np.testing.assert_array_equal(
            found.predict_proba(X), expected.predict_proba(frame[["age", "city"]][:20])
        )
    assert found.feature_names_in_.tolist() == ["age", "city"]


@pytest.mark.parametrize("format", ["npy", "arrow"])
def test_a_private_scaler_reads_parts_and_is_charged_once(format, tmp_path, parts):
    X = np.random.default_rng(0).normal(size=(N, 3))
    X[7] = np.nan
    y = np.where(X[:, 0] > 0, 1, 0)
    if format == "arrow":
        given = arrow_files.of_rows(tmp_path / "t", X, y)
        in_memory = pd.DataFrame(X, columns=list("abc"))
    else:
        np.save(tmp_path / "X.npy", X)
        given, in_memory = (np.load(tmp_path / "X.npy", mmap_mode="r"), y), X
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-3)

    def made():
        scaler = DPStandardScaler(bounds=(-4, 4), ledger=ledger)
        return make_private_pipeline(scaler, model(ledger=ledger).set_params(classes=[0, 1]))

    expected = made().fit(in_memory, y)
    found = made().fit(*given)
    np.testing.assert_array_equal(found[0].scale_, expected[0].scale_)
    np.testing.assert_array_equal(found[-1].posterior_.mean, expected[-1].posterior_.mean)
    assert found.privacy_spent_.epsilon == expected.privacy_spent_.epsilon
    assert len(ledger.entries) == 4


def test_steps_that_need_all_rows_are_refused_before_the_charge(tmp_path):
    X = np.random.default_rng(0).normal(size=(N, 3))
    table, y = arrow_files.of_rows(tmp_path / "t", X, (X[:, 0] > 0).astype(int))
    ledger = PrivacyLedger(epsilon=5.0, delta=1e-3)
    scaler = ColumnTransformer([("s", DPStandardScaler(bounds=(-4, 4), ledger=ledger), ["a"])])
    last = DPBayesianLogisticRegression(classes=[0, 1], ledger=ledger)
    for step, trusted in ((scaler, ()), (FunctionTransformer(np.abs), ["step"])):
        pipeline = PrivatePipeline([("step", step), ("model", last)], trusted=trusted)
        with pytest.raises(ValueError, match=r"\['step'\] need all rows at once"):
            pipeline.fit(table, y)
        assert pipeline.steps[0][1] is step
    assert not ledger.entries
    # A memmap is an array, too: such steps get it as they did.
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    trusting = PrivatePipeline(
        [("step", FunctionTransformer(np.abs)), ("model", model().set_params(classes=[0, 1]))],
        trusted=["step"],
    )
    assert trusting.fit(mapped, y)[-1].n_features_in_ == 3


def test_a_fit_that_fails_leaves_the_steps(tmp_path):
    table = arrow_files.write(tmp_path / "t", data())
    pipeline = encoded(model(epsilon=-1.0))
    steps = list(pipeline.steps)
    with pytest.raises(ValueError, match="epsilon"):
        pipeline.fit(table[["age", "city"]], table["ill"])
    assert pipeline.steps == steps
    with pytest.raises(ValueError, match="not columns of the dataframe"):
        encoded(model()).fit(table[["age", "ill"]], table["ill"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::skdpbayes.privacy.PrivacyLeakWarning")
def test_a_search_loads_the_table(tmp_path):
    X = np.random.default_rng(0).normal(size=(N, 3))
    y = (X[:, 0] > 0).astype(int)
    table, column = arrow_files.of_rows(tmp_path / "t", X, y)
    seen = []
    search = DPRandomizedSearchCV(
        model().set_params(classes=[0, 1]), {"prior_scale": [1.0, 2.0]}, epsilon=2.0, n_iter=2,
        random_state=0,
    )  # fmt: skip
    for own in ((table, column), (pd.DataFrame(X, columns=list("abc")), y)):
        seen.append(search.fit(*own).best_estimator_.coef_)
    np.testing.assert_array_equal(*seen)
    assert not any(isinstance(own, RecordSource) for own in vars(search).values())
