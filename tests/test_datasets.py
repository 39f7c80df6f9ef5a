"""Loaders and preparation of public data sets."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import warnings
import zlib

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
import sklearn.datasets._openml
import statsmodels.datasets
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.utils import Bunch

from skdpbayes import datasets
from skdpbayes.datasets import adult_preprocessor, fair_preprocessor, load_adult, load_fair


def people(n: int, seed: int = 0) -> pd.DataFrame:
    """Draw rows that follow the public schema of Adult and are nobody's."""
    rng = np.random.default_rng(seed)
    columns = {}
    for own in datasets.ADULT.columns:
        if own.categories is not None:
            columns[own.name] = rng.choice(own.categories, n)
        else:
            lower, upper = own.bounds or (1, 10**6)
            columns[own.name] = rng.integers(int(lower), int(upper), n, endpoint=True)
    return pd.DataFrame(columns)


def original_sizes() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Stand-ins for the two files of Adult, with the published numbers of rows and labels."""
    parts = []
    for seed, (n, positives) in enumerate((datasets._ADULT_TRAIN, datasets._ADULT_TEST)):
        part = people(n, seed)
        part["class"] = np.where(np.arange(n) < positives, ">50K", "<=50K")
        parts.append(part)
    return parts[0], parts[1]


def test_preprocessor_learns_nothing():
    row = people(5, seed=3)
    first = adult_preprocessor().fit(people(50, seed=1)).transform(row)
    second = adult_preprocessor().fit(people(1, seed=2)).transform(row)
    np.testing.assert_array_equal(first, second)


def test_preprocessor_keeps_the_declared_norm():
    X = people(2_000)
    X.loc[0, ["age", "capital-gain", "capital-loss", "hours-per-week"]] = 10**9
    Z = adult_preprocessor().fit_transform(X)
    assert Z.shape == (2_000, 58)
    assert np.linalg.norm(Z, axis=1).max() <= datasets.ADULT_DATA_NORM


def test_preprocessor_raises_on_no_value():
    X = people(4).astype(object)
    X.loc[0, ["age", "workclass"]] = ["forty", "Astronaut"]
    X.loc[1, ["age", "workclass"]] = [None, None]
    X.loc[2, ["age", "workclass"]] = [np.inf, 3.5]
    X.loc[3, ["age", "workclass"]] = [np.nan, np.nan]
    transformer = adult_preprocessor().fit(X)
    Z = transformer.transform(X)
    names = list(transformer.get_feature_names_out())
    np.testing.assert_array_equal(Z[:, names.index("age")], [np.nan, np.nan, 1.0, np.nan])
    assert Z[:, [name.startswith("workclass") for name in names]].sum() == 0


@pytest.mark.parametrize("test_first", [True, False])
def test_openml_order_is_told_apart(monkeypatch, test_first):
    train, test = original_sizes()
    table = pd.concat([test, train] if test_first else [train, test], ignore_index=True)
    for own in datasets.ADULT.columns:  # as OpenML gives them
        if own.categories is None:
            continue
        name = own.name
        table[name] = table[name].where(table[name] != "?").astype("category")
    monkeypatch.delenv(datasets.DATA_HOME_VARIABLE, raising=False)
    monkeypatch.setattr(
        sklearn.datasets, "fetch_openml", lambda *args, **kwargs: Bunch(frame=table)
    )
    data = load_adult()
    pd.testing.assert_frame_equal(data.X_train, train.drop(columns="class"), check_dtype=False)
    pd.testing.assert_frame_equal(data.X_test, test.drop(columns="class"), check_dtype=False)
    assert list(data.y_test) == list(test["class"])


def answers(monkeypatch, answer):
    """Make scikit-learn's downloader answer so, on a machine without the table."""
    monkeypatch.setenv(datasets.DATA_HOME_VARIABLE, "")
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", answer)


FAILURES = [
    OSError("no route to host"),
    TimeoutError("timed out"),
    urllib.error.HTTPError("https://api.openml.org", 503, "Service Unavailable", None, None),
    http.client.IncompleteRead(b"12"),
    http.client.RemoteDisconnected("closed"),
    zlib.error("incomplete or truncated stream"),
    EOFError("compressed file ended"),
    ValueError("md5 checksum does not match"),
    json.JSONDecodeError("Expecting value", "<html>", 0),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    pd.errors.ParserError("Error tokenizing data"),
    KeyError("data_set_description"),
    AttributeError("'NoneType' object has no attribute 'columns'"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_download_that_fails_says_what_to_do(monkeypatch, failure):
    def answer(*args, **kwargs):
        warnings.warn("Invalid cache, redownloading file to ...", RuntimeWarning, stacklevel=2)
        raise failure

    answers(monkeypatch, answer)
    with pytest.raises(ConnectionError, match=r"put adult\.csv\.gz in a folder") as caught:
        load_adult()
    assert type(failure).__name__ in str(caught.value) and caught.value.__cause__ is failure


def test_answer_that_is_not_the_table_is_no_connection(monkeypatch):
    """Whatever was downloaded: nothing, another table, half of the table, or a page that says so."""
    half = people(20).assign(**{"class": "<=50K"})
    for table in (
        None,
        pd.DataFrame(),
        pd.DataFrame({"<html>": ["log in first"]}),
        half,
        half.astype(object),
    ):
        answers(monkeypatch, lambda *args, table=table, **kwargs: Bunch(frame=table))
        with pytest.raises(ConnectionError, match="could not be had from OpenML"):
            load_adult()
    answers(monkeypatch, lambda *args, **kwargs: None)
    with pytest.raises(ConnectionError, match="could not be had from OpenML"):
        load_adult()


@pytest.mark.parametrize(
    "body",
    [
        b"<html>log in first</html>",
        b"",
        b'{"data_set_description": {}}',
        gzip.compress(b"<html>")[:-3],
        b"\xff\x00",
    ],
    ids=["page", "empty", "other", "cut", "bytes"],
)
def test_network_that_answers_anything(monkeypatch, tmp_path, body):
    """scikit-learn's downloader itself, with a network beneath it that answers with other bytes."""

    class Answer(io.BytesIO):
        def info(self):
            return {"Content-Encoding": "gzip"} if body[:2] == b"\x1f\x8b" else {}

    asked = []

    def urlopen(request, *args, **kwargs):
        asked.append(request.full_url)
        return Answer(body)

    monkeypatch.setenv(datasets.DATA_HOME_VARIABLE, "")
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    monkeypatch.setattr(sklearn.datasets._openml, "urlopen", urlopen)
    with pytest.raises(ConnectionError, match=r"put adult\.csv\.gz in a folder"):
        load_adult()
    assert asked


def test_interrupt_of_a_download_is_heard(monkeypatch):
    def answer(*args, **kwargs):
        raise KeyboardInterrupt

    before = socket.getdefaulttimeout()
    answers(monkeypatch, answer)
    with pytest.raises(KeyboardInterrupt):
        load_adult()
    assert socket.getdefaulttimeout() == before


def test_tests_cannot_reach_a_network():
    for attempt in (
        lambda: urllib.request.urlopen("http://example.com", timeout=1),
        lambda: socket.create_connection(("192.0.2.1", 80), timeout=0.1),
        load_adult_from_the_network,
    ):
        with pytest.raises(pytest.fail.Exception, match="over the network"):
            attempt()


def load_adult_from_the_network():
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv(datasets.DATA_HOME_VARIABLE, "")
        patch.setenv("SCIKIT_LEARN_DATA", folder)
        load_adult()


def test_folder_without_the_table_is_named(monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match="because data_home names"):
        load_adult(tmp_path)
    monkeypatch.setenv(datasets.DATA_HOME_VARIABLE, str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match="because the environment variable SKDPBAYES_DATA_HOME"
    ):
        load_adult()


def test_other_tables_are_refused(tmp_path):
    table = people(20).assign(income="<=50K", split="train")
    table.to_csv(tmp_path / "adult.csv.gz", index=False)
    with pytest.raises(ValueError, match=r"training part .* has 20 rows"):
        load_adult(tmp_path)
    table.drop(columns="age").to_csv(tmp_path / "adult.csv.gz", index=False)
    with pytest.raises(ValueError, match=r"lacks the columns \['age'\]"):
        load_adult(tmp_path)


# The survey on affairs


def test_fair_is_the_table_that_is_described():
    data = load_fair()
    assert (data.X_train.shape, data.X_test.shape) == ((4244, 8), (2122, 8))
    assert list(data.X_train.columns) == list(data.feature_descriptions)
    assert set(data.y_train) == set(data.y_test) == set(data.classes)
    assert (data.y_train == "affair").sum() + (data.y_test == "affair").sum() == 2053
    for X in (data.X_train, data.X_test):
        for name, levels in data.categories.items():
            assert set(X[name]) <= set(levels), name
        for name, (lower, upper) in data.bounds.items():
            assert X[name].between(lower, upper).all(), name
    again = load_fair()
    pd.testing.assert_frame_equal(data.X_train, again.X_train)
    pd.testing.assert_series_equal(data.y_test, again.y_test)


def test_fair_is_split_by_position_alone():
    """The rows of statsmodels in their order: two for training, one for testing."""
    table = statsmodels.datasets.fair.load_pandas().data
    data = load_fair()
    for X, rows in ((data.X_train, [0, 1, 3, 4]), (data.X_test, [2, 5, 8, 11])):
        found = X.iloc[:4][list(data.bounds)].to_numpy()
        np.testing.assert_array_equal(found, table.iloc[rows][list(data.bounds)])
        codes = [data.categories["occupation"].index(job) + 1 for job in X["occupation"][:4]]
        assert codes == list(table["occupation"].iloc[rows])
    assert list(data.y_train == "affair") == list(table["affairs"][np.arange(6366) % 3 != 2] > 0)


def test_fair_preprocessor_keeps_the_declared_norm():
    data = load_fair()
    Z = fair_preprocessor().fit_transform(data.X_train)
    assert Z.shape == (4244, 16)
    assert np.linalg.norm(Z, axis=1).max() <= data.data_norm
    extreme = data.X_train.head(2).copy()
    extreme[list(data.bounds)] = 10.0**9
    assert (
        np.linalg.norm(fair_preprocessor().fit_transform(extreme), axis=1).max() <= data.data_norm
    )


def test_fair_preprocessor_learns_nothing_and_raises_on_no_value():
    data = load_fair()
    hostile = data.X_test.astype(object).copy()
    hostile.iloc[0] = [None, "old", np.inf, np.nan, "?", b"", 3.5, None]
    for rows in (data.X_train, hostile, hostile.head(1)):
        fitted = fair_preprocessor().fit(rows)
        expected = fair_preprocessor().fit(data.X_train).transform(data.X_test)
        np.testing.assert_array_equal(fitted.transform(data.X_test), expected)
    Z = fair_preprocessor().fit_transform(hostile)
    assert np.isnan(Z[0]).sum() == 5 and np.isfinite(Z[1:]).all()


def test_other_versions_of_fair_are_refused(monkeypatch):
    table = statsmodels.datasets.fair.load_pandas().data
    for changed, said in (
        (table.iloc[:-1], "has 6365 rows"),
        (table.drop(columns="age"), r"lacks .*'age'"),
    ):
        monkeypatch.setattr(
            statsmodels.datasets.fair, "load_pandas", lambda changed=changed: Bunch(data=changed)
        )
        with pytest.raises(ValueError, match=said):
            load_fair()


def test_missing_statsmodels_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels.datasets", None)
    with pytest.raises(ImportError, match=r"pip install skdpbayes\[datasets\]"):
        load_fair()


def test_module_imports_without_pandas_and_statsmodels():
    code = (
        "import sys; sys.modules['pandas'] = sys.modules['statsmodels'] = None; import skdpbayes.datasets as d;"
        "d.adult_preprocessor(), d.fair_preprocessor()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.adult
def test_real_table_fits_its_public_schema():
    data = load_adult()
    for X in (data.X_train, data.X_test):
        assert list(X.columns) == list(data.feature_descriptions)
        for name, levels in data.categories.items():
            assert set(X[name]) <= set(levels), name
        for name, (lower, upper) in data.bounds.items():
            assert X[name].between(lower, upper).all(), name


@pytest.mark.adult
def test_real_table_gives_the_published_fit():
    data = load_adult()
    prepare = adult_preprocessor().fit(data.X_train)
    model = LogisticRegression(max_iter=1000).fit(prepare.transform(data.X_train), data.y_train)
    probability = model.predict_proba(prepare.transform(data.X_test))
    assert model.score(prepare.transform(data.X_test), data.y_test) == pytest.approx(
        0.850, abs=2e-3
    )
    assert roc_auc_score(data.y_test == ">50K", probability[:, 1]) == pytest.approx(0.903, abs=2e-3)
    assert log_loss(data.y_test, probability) == pytest.approx(0.324, abs=2e-3)
