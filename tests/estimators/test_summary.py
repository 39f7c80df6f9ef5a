"""Summaries: names, original units, intervals, and the share of the privacy noise."""

import sys

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import FeatureUnion, make_pipeline

from skdpbayes import (
    DPBayesianLogisticRegression,
    DPBayesianMLPClassifier,
    DPBayesianMLPRegressor,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGammaExponential,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
    DPLatentDirichletAllocation,
    DPNumPyroModel,
    DPVariationalAutoencoder,
)
from skdpbayes.facts import Scales
from skdpbayes.pipelines import PrivatePipeline, make_private_pipeline
from skdpbayes.preprocessing import (
    BoundedScaler,
    CategoryEncoder,
    DPStandardScaler,
    NormClipper,
)
from skdpbayes.schema import Schema

pytestmark = [
    pytest.mark.usefixtures("compiled_quickly"),
    pytest.mark.filterwarnings("ignore::skdpbayes.privacy.PrivacyLeakWarning"),  # of seeds
]

RNG = np.random.default_rng(0)
NAMES = ["age", "dose", "height"]
X = RNG.normal(size=(1000, 3))
FRAME = pd.DataFrame(X, columns=NAMES)
Y = (X @ [1.5, -1.0, 0.0] + RNG.logistic(size=1000) > 0).astype(int)
COLUMNS = ["estimate", "sd", "5%", "95%", "p_direction", "noise_share"]


def made_up(model, **attributes):
    """Attributes of a fit that took place nowhere, since fits compile for long."""
    vars(model).update({"posterior_": None} | attributes)
    return model


@pytest.fixture(scope="module")
def logistic():
    return DPBayesianLogisticRegression(
        epsilon=1.0, classes=[0, 1], n_steps=21, random_state=0
    ).fit(FRAME, Y)


@pytest.fixture(scope="module")
def bernoulli():
    model = DPBetaBernoulli(epsilon=0.5, n_posterior_samples=50_000, random_state=0)
    return model.fit(FRAME > 0.5)


def test_a_regression_has_a_row_for_each_coefficient(logistic):
    table, draws = logistic.summary(), logistic.posterior_samples_["coef"][:, 0]
    assert list(table.columns) == COLUMNS and table.index.name == "parameter"
    assert list(table.index) == [*NAMES, "intercept"]
    np.testing.assert_array_equal(table["estimate"][:3], logistic.coef_[0])
    assert table["estimate"]["intercept"] == logistic.intercept_[0]
    np.testing.assert_allclose(table["sd"][:3], draws.std(axis=0))
    np.testing.assert_allclose(table["sd"], logistic.posterior_.std, rtol=0.15)
    np.testing.assert_allclose(table[["5%", "95%"]][:3].T, np.quantile(draws, [0.05, 0.95], axis=0))
    np.testing.assert_array_equal(table["p_direction"][:3] >= 0.5, True)
    assert table["p_direction"]["dose"] == np.mean(draws[:, 1] < 0)
    wide = logistic.summary(level=0.999)
    assert list(wide.columns[2:4]) == ["0.05%", "99.95%"]
    assert (wide["99.95%"] - wide["0.05%"] > table["95%"] - table["5%"]).all()


def test_the_share_of_noise_is_what_the_posterior_without_it_lacks(logistic):
    share = logistic.summary()["noise_share"]
    assert (share > 0.02).all() and (share < 0.9).all()
    quiet = DPBayesianLogisticRegression(
        epsilon=np.inf, classes=[0, 1], n_steps=21, random_state=0
    ).fit(FRAME, Y)
    np.testing.assert_allclose(quiet.summary()["noise_share"], 0, atol=0.05)
    # What is left is about the width that the table itself allows.
    left = []
    for seed in range(6):
        again = clone(logistic).set_params(random_state=seed).fit(FRAME, Y)
        left.append((1 - again.summary()["noise_share"]) * again.posterior_.std)
    ratios = np.mean(left, axis=0) / quiet.posterior_.std  # 1.31, 1.40, 1.50, 1.23 over 24 draws
    assert 0.9 < ratios.min() and ratios.mean() < 1.4 and ratios.max() < 1.6
    unknown = logistic.with_prior(prior_scale=0.5).summary()
    assert unknown["noise_share"].isna().all() and unknown["estimate"].notna().all()


def test_the_share_of_noise_of_a_noisy_count(bernoulli):
    """A normal approximation: variance of the count, and variance of its noise."""
    table = bernoulli.summary()
    assert list(table.index) == NAMES
    np.testing.assert_array_equal(table["estimate"], bernoulli.probability_)
    p, noise = bernoulli.probability_, bernoulli.diagnostics_["noise_std"]
    sampling = 1000 * p * (1 - p)
    expected = 1 - np.sqrt(sampling / (sampling + noise**2))
    np.testing.assert_allclose(table["noise_share"], expected, atol=0.02)
    assert table["p_direction"].isna().all()


@pytest.mark.parametrize(
    ("model", "rows", "names"),
    [
        (DPDirichletCategorical(categories=["a", "b", "c"]), "abc", ["a", "b", "c"]),
        (DPGammaExponential(upper=3.0), "times", ["x0", "x1"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_families(model, rows, names):
    tables = {
        "abc": RNG.choice(["a", "b", "c"], size=(500, 1)),
        "times": RNG.exponential(size=(500, 2)),
    }
    table = model.fit(tables[rows]).summary()
    assert list(table.index) == names
    assert table["noise_share"].notna().all() and (table["sd"] > 0).all()


@pytest.mark.slow
def test_names_of_a_schema_of_classes_and_of_a_pipeline(logistic):
    schema = Schema.from_dict(
        {
            "columns": [{"name": name, "bounds": [-4, 4]} for name in NAMES],
            "outcome": {"name": "ill", "labels": ["a", "b", "c"]},
        }
    )
    labels = RNG.choice(["a", "b", "c"], 1000)
    model = DPBayesianLogisticRegression(
        epsilon=1.0, classes=schema, n_steps=21, random_state=0
    ).fit(X, labels)
    table = model.summary()
    assert list(table.index[:2]) == ["coef[a, age]", "coef[a, dose]"]
    assert list(table.index[-3:]) == [f"intercept[{label}]" for label in "abc"]
    assert list(model.summary(feature_names=["p", "q", "r"]).index[:1]) == ["coef[a, p]"]
    with pytest.raises(ValueError, match="2 names for 3 columns"):
        model.summary(feature_names=["p", "q"])
    pipeline = make_private_pipeline(BoundedScaler((-4, 4)).fit(FRAME), logistic)
    assert list(pipeline.summary().index) == [*NAMES, "intercept"]
    encoder = CategoryEncoder({"sex": ["f", "m"], "ward": ["A"]})
    rows = pd.DataFrame({"sex": ["f", "m"] * 500, "ward": "A"})
    pipeline = make_private_pipeline(encoder, DPBetaBernoulli()).fit(rows)
    assert list(pipeline.summary(level=0.8).index) == ["sex_f", "sex_m", "ward_A"]
    assert not hasattr(make_private_pipeline(DPStandardScaler()), "summary")


def test_coefficients_of_a_pipeline_are_in_the_units_of_its_columns():
    """Those of the model behind scalers and encoders, converted draw by draw."""
    rows = FRAME * [10.0, 0.1, 1.0] + [50, 0, 0]
    rows["ward"] = RNG.choice(["A", "B"], 1000)
    scale = make_pipeline(
        BoundedScaler({"age": (0, 100)}, feature_range=(-1, 1)), DPStandardScaler((-1, 1))
    )
    prepare = ColumnTransformer(
        [
            ("ward", CategoryEncoder({"ward": ["A", "B"]}, drop="first"), ["ward"]),
            ("scale", scale, ["age"]),
            ("without", "drop", ["dose"]),
        ],
        remainder="passthrough",
        verbose_feature_names_out=False,
    )
    model = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1], n_steps=21)
    steps = [("prepare", prepare), ("clip", NormClipper(50.0)), ("model", model)]
    pipeline = PrivatePipeline(steps).fit(rows, Y)
    table, plain = pipeline.summary(), pipeline.summary(units="steps")
    names = ["ward_B", "age", "height"]
    assert list(table.index) == list(plain.index) == [*names, "intercept"]
    assert (table.attrs["units"], plain.attrs["units"]) == ("original", "steps")
    np.testing.assert_array_equal(plain["estimate"][:3], model.coef_[0])
    # The linear predictor is the same.
    inside = rows[rows["age"].between(0, 100)]
    before = pipeline[:-1].transform(inside) @ model.coef_[0] + model.intercept_
    columns = np.column_stack([inside["ward"] == "B", inside["age"], inside["height"]])
    after = columns.astype(float) @ table["estimate"].to_numpy()[:3] + table["estimate"].iloc[3]
    assert len(inside) > 900
    np.testing.assert_allclose(after, before, atol=1e-9)
    slope = (table["estimate"] / plain["estimate"])[:3].abs()
    assert slope["age"] < 0.2 and slope["height"] == slope["ward_B"] == 1
    np.testing.assert_allclose((table["sd"] / plain["sd"])[:3], slope, rtol=1e-9)
    np.testing.assert_allclose(table["noise_share"][:3], plain["noise_share"][:3], atol=1e-9)
    assert np.isnan(table["noise_share"]["intercept"])
    # Age is far from zero, so that the intercept there is hardly known.
    assert table["sd"]["intercept"] > 2 * plain["sd"]["intercept"]
    assert table.columns.name == "in original units"
    assert plain.columns.name == "in units of the steps' columns"
    ratios, ends = pipeline.summary(exponentiate=True), ["estimate", "5%", "95%"]
    assert ratios.columns.name == "odds of 1, in original units"
    ratios.columns.name = table.columns.name
    pd.testing.assert_frame_equal(ratios[ends], np.exp(table[ends]))
    pd.testing.assert_frame_equal(ratios.drop(columns=ends), table.drop(columns=ends))
    with pytest.raises(ValueError, match="units"):
        pipeline.summary(units="kg")
    with pytest.raises(ValueError, match=r"shape \(3,\), got shapes \(2,\)"):
        model.summary(scaling=([1, 2], [0, 0]))


def test_other_pipelines_keep_the_units_of_their_steps(logistic, bernoulli):
    union = FeatureUnion([("scale", BoundedScaler((-4, 4)))]).fit(FRAME)
    for step, model in ((union, logistic), (BoundedScaler((0, 1)).fit(FRAME), bernoulli)):
        pipeline = PrivatePipeline([("step", step), ("model", model)])
        assert pipeline.summary().attrs["units"] == "steps"
        with pytest.raises(ValueError, match="take units='steps'"):
            pipeline.summary(units="original")
    with pytest.raises(ValueError, match="no coefficients of columns"):
        bernoulli.summary(scaling=(np.ones(3), np.zeros(3)))
    alone = PrivatePipeline([("model", logistic)]).summary()
    assert alone.attrs["units"] == "original"
    pd.testing.assert_frame_equal(alone, logistic.summary())


def test_columns_named_as_other_rows_are_told_apart(bernoulli):
    names = ["coef", "intercept", "noise_std"]
    table = bernoulli.summary(feature_names=names)
    assert list(table.index) == names  # a family has no other rows
    model = DPBayesianLogisticRegression(epsilon=1.0, classes=[0, 1], n_steps=21, random_state=0)
    table = model.fit(FRAME.set_axis(["a", "intercept", "c"], axis=1), Y).summary()
    assert list(table.index) == ["coef[a]", "coef[intercept]", "coef[c]", "intercept"]


def test_mixtures_topics_and_networks():
    draws = {
        "weights": RNG.dirichlet([1, 1], 50),
        "means": RNG.normal(size=(50, 2, 3)),
        "covariances": np.tile(np.diag([1.0, 4.0, 9.0]), (50, 2, 1, 1)),
    }
    mixture = made_up(DPGaussianMixture(n_components=2), posterior_samples_=draws)
    table = made_up(mixture, n_features_in_=3, feature_names_in_=np.array(NAMES)).summary()
    assert list(table.index[:3]) == ["weights[0]", "weights[1]", "means[0, age]"]
    assert table.index[-1] == "std[1, height]" and table["noise_share"].isna().all()
    assert table["estimate"].iloc[-3:].tolist() == [1, 2, 3]
    signed = table.index.str.startswith("means")
    assert (table["p_direction"].notna() == signed).all()
    words = pd.DataFrame(RNG.poisson(3, size=(400, 12)), columns=[*"abcdefghijkl"])
    topics = DPLatentDirichletAllocation(2, n_posterior_samples=50).fit(words)
    table = topics.summary(n_words=3)
    first = words.columns[topics.topics_[0].argmax()]
    assert table["p_direction"].isna().all()
    assert len(table) == 6 and table.index[0] == f"topics[0, {first}]"
    assert (np.diff(table["estimate"][:3]) <= 0).all()
    assert table["estimate"].iloc[0] == topics.topics_[0].max()
    scales = Scales(np.zeros(3), np.ones(3), np.zeros(1), np.full(1, 5.0))
    weights = np.zeros((50, 9))
    network = DPBayesianMLPRegressor()
    made_up(network, posterior_samples_=weights, noise_std_=2.0, _scales=scales, n_features_in_=3)
    table = network.summary()
    assert list(table.index) == ["noise_std"] and table["estimate"]["noise_std"] == 2.0
    assert table["95%"]["noise_std"] == network._noise(weights)[0]
    assert not hasattr(DPBayesianMLPClassifier(), "summary")
    assert not hasattr(DPVariationalAutoencoder(), "summary")
    with pytest.raises(AttributeError) as error:
        DPBayesianMLPClassifier().summary()
    assert "look at its predictions" in str(error.value.__cause__)


def test_groups_have_names():
    model = DPHierarchicalLogisticRegression(["A", "B"], [[1.0], [2.0]], "ward", classes=[0, 1])
    made_up(model, feature_names_in_=np.array(["age", "ward", "dose"]), n_features_in_=3)
    model.groups_, model._table = model._groups_and_table()
    weights, effects = RNG.normal(size=(50, 2, 3)), RNG.normal(size=(50, 3, 2))
    model.posterior_samples_ = {"weights": weights, "effects": effects}
    table = model.summary()
    columns = ["age", "dose", "intercept"]
    assert list(table.index) == [
        *(f"weights[{ward}, {column}]" for ward in "AB" for column in columns),
        *(f"effects[{column}, {own}]" for column in columns for own in ("0", "constant")),
    ]
    assert table["estimate"]["weights[B, dose]"] == pytest.approx(weights[:, 1, 1].mean())
    own = model.summary(feature_names=["p", "q", "r"])
    assert list(own.index[:3]) == ["weights[A, p]", "weights[A, r]", "weights[A, intercept]"]
    with pytest.raises(ValueError, match="exponentiate is for"):
        model.summary(exponentiate=True)  # of labels that are not known yet
    ratios = made_up(model, classes_=np.array(["no", "yes"])).summary(exponentiate=True)
    assert ratios.columns.name == "odds of yes"
    np.testing.assert_allclose(ratios["estimate"], np.exp(table["estimate"]))
    np.testing.assert_allclose(ratios["95%"], np.exp(table["95%"]))


def test_errors(bernoulli, monkeypatch):
    with pytest.raises(NotFittedError):
        DPBetaBernoulli().summary()
    with pytest.raises(ValueError, match="level"):
        bernoulli.summary(level=90)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        bernoulli.summary()


def test_sites_of_a_model_of_ones_own_are_named_by_dims():
    def linear(x, y=None):
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ weights, 1.0), obs=y)

    X = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["age", "dose"])
    fitted = DPNumPyroModel(linear, epsilon=np.inf, random_state=0).fit(X, X["age"])
    dims = {"weights": ["feature"]}
    assert list(fitted.summary().index) == ["weights[0]", "weights[1]"]
    assert list(fitted.summary(dims=dims).index) == ["weights[age]", "weights[dose]"]
    named = fitted.summary(dims={"weights": ["c"]}, coords={"c": ["a", "b"]})
    assert list(named.index) == ["weights[a]", "weights[b]"]
    given = fitted.summary(dims=dims, feature_names=["u", "v"])
    assert list(given.index) == ["weights[u]", "weights[v]"]
    for options, message in (
        ({"feature_names": ["u", "v"]}, "say so as in dims="),
        ({"dims": {"w": ["feature"]}}, "dims has"),
        ({"dims": {"weights": ["c"]}, "coords": {"c": ["a"]}}, "'c' has 1 names"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted.summary(**options)
    private = clone(fitted).set_params(epsilon=1.0, random_state=None)
    rows = make_private_pipeline(BoundedScaler(bounds=(-5, 5)), private).fit(X, X["age"])
    assert list(rows.summary(dims=dims).index) == ["weights[age]", "weights[dose]"]
    assert list(rows.summary().index) == ["weights[0]", "weights[1]"]
    named = rows.summary(dims={"weights": ["c"]}, coords={"c": ["a", "b"]})
    assert list(named.index) == ["weights[a]", "weights[b]"]

    with pytest.raises(ValueError, match="exponentiate is for"):
        fitted.summary(exponentiate=True)

    def plated(x):
        with numpyro.plate("feature", 3):  # no columns of x
            mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", dist.Normal(mean.sum(), 1.0).expand([2]).to_event(1), obs=x)

    fitted = DPNumPyroModel(plated, epsilon=np.inf, random_state=0).fit(X)
    assert list(fitted.summary().index) == ["mean[0]", "mean[1]", "mean[2]"]


def test_sites_that_are_linear_are_converted_to_the_units_of_the_columns():
    def visits(x, y=None):
        level = numpyro.sample("level", dist.Normal(0, 2))
        slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        size = numpyro.sample("size", dist.LogNormal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(level + x @ slopes), size), obs=y)

    rows = FRAME[["age", "dose"]] * [10.0, 0.1] + [50, 0]
    y = RNG.poisson(np.exp(0.02 * (rows["age"] - 50)))
    scale = BoundedScaler({"age": (0, 100), "dose": (-1, 1)})
    model = DPNumPyroModel(visits, epsilon=1.0, solver="dpvi", n_steps=20)
    pipeline = make_private_pipeline(scale, model).fit(rows, y)
    linear, ends = ("slopes", "level"), ["estimate", "5%", "95%"]
    table = pipeline.summary(linear=linear)
    plain = pipeline.summary(linear=linear, units="steps")
    assert set(table.index) == {"slopes[age]", "slopes[dose]", "level", "size"}
    assert table.columns.name == "in original units"
    assert next(iter(pipeline.summary().index)) != "slopes[age]"
    # The linear predictor is the same, and what is not linear stays.
    inside = rows.assign(age=rows["age"].clip(0, 100), dose=rows["dose"].clip(-1, 1))
    names = ["slopes[age]", "slopes[dose]"]
    before = pipeline[:-1].transform(rows) @ plain["estimate"][names].to_numpy()
    after = inside.to_numpy() @ table["estimate"][names].to_numpy()
    difference = plain["estimate"]["level"] - table["estimate"]["level"]
    np.testing.assert_allclose(after, before + difference, atol=1e-6)
    ratios = pipeline.summary(linear=linear, exponentiate=True)
    pd.testing.assert_frame_equal(
        ratios.loc[[*names, "level"], ends], np.exp(table.loc[[*names, "level"], ends])
    )
    pd.testing.assert_series_equal(ratios.loc["size"], table.loc["size"])
    for wrong in (("level", "slopes"), ("slopes", "size of all")):
        with pytest.raises(ValueError, match="must name a site with an entry for each column"):
            pipeline.summary(linear=wrong)
