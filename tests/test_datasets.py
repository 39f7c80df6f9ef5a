"""Loaders and preparation of public data sets."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.utils import Bunch

from skdpbayes import datasets
from skdpbayes.datasets import adult_preprocessor, load_adult

REAL = pytest.mark.skipif(
    not os.path.exists(os.path.join(os.environ.get(datasets.DATA_HOME_VARIABLE, ""), "adult.csv.gz")),
    reason=f"Adult is not in the folder that {datasets.DATA_HOME_VARIABLE} names",
)


def people(n: int, seed: int = 0) -> pd.DataFrame:
    """Draw rows that follow the public schema of Adult and are nobody's."""
    rng = np.random.default_rng(seed)
    columns = {}
    for name in datasets.ADULT_DESCRIPTIONS:
        if name in datasets.ADULT_CATEGORIES:
            columns[name] = rng.choice(datasets.ADULT_CATEGORIES[name], n)
        else:
            lower, upper = datasets.ADULT_BOUNDS.get(name, (1, 10**6))
            columns[name] = rng.integers(int(lower), int(upper), n, endpoint=True)
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
    for name in datasets.ADULT_CATEGORIES:  # as OpenML gives them
        table[name] = table[name].where(table[name] != "?").astype("category")
    monkeypatch.delenv(datasets.DATA_HOME_VARIABLE, raising=False)
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda *args, **kwargs: Bunch(frame=table))
    data = load_adult()
    pd.testing.assert_frame_equal(data.X_train, train.drop(columns="class"), check_dtype=False)
    pd.testing.assert_frame_equal(data.X_test, test.drop(columns="class"), check_dtype=False)
    assert list(data.y_test) == list(test["class"])


def test_download_that_fails_says_what_to_do(monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setenv(datasets.DATA_HOME_VARIABLE, "")
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fail)
    with pytest.raises(ConnectionError, match=r"no route to host.*put adult\.csv\.gz in a folder"):
        load_adult()


def test_folder_without_the_table_is_named(monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match="because data_home names"):
        load_adult(tmp_path)
    monkeypatch.setenv(datasets.DATA_HOME_VARIABLE, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="because the environment variable SKDPBAYES_DATA_HOME"):
        load_adult()


def test_other_tables_are_refused(tmp_path):
    table = people(20).assign(income="<=50K", split="train")
    table.to_csv(tmp_path / "adult.csv.gz", index=False)
    with pytest.raises(ValueError, match=r"training part .* has 20 rows"):
        load_adult(tmp_path)
    table.drop(columns="age").to_csv(tmp_path / "adult.csv.gz", index=False)
    with pytest.raises(ValueError, match=r"lacks the columns \['age'\]"):
        load_adult(tmp_path)


def test_module_imports_without_pandas():
    code = "import sys; sys.modules['pandas'] = None; import skdpbayes.datasets as d; d.adult_preprocessor()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@REAL
def test_real_table_fits_its_public_schema():
    data = load_adult()
    for X in (data.X_train, data.X_test):
        assert list(X.columns) == list(data.feature_descriptions)
        for name, levels in data.categories.items():
            assert set(X[name]) <= set(levels), name
        for name, (lower, upper) in data.bounds.items():
            assert X[name].between(lower, upper).all(), name


@REAL
def test_real_table_gives_the_published_fit():
    data = load_adult()
    prepare = adult_preprocessor().fit(data.X_train)
    model = LogisticRegression(max_iter=1000).fit(prepare.transform(data.X_train), data.y_train)
    probability = model.predict_proba(prepare.transform(data.X_test))
    assert model.score(prepare.transform(data.X_test), data.y_test) == pytest.approx(0.850, abs=2e-3)
    assert roc_auc_score(data.y_test == ">50K", probability[:, 1]) == pytest.approx(0.903, abs=2e-3)
    assert log_loss(data.y_test, probability) == pytest.approx(0.324, abs=2e-3)
