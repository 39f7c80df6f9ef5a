"""Draws as ArviZ takes them, in both of its lines."""

import sys
import warnings

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sklearn.exceptions import NotFittedError

import skdpbayes
from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGaussianMixture,
    DPLatentDirichletAllocation,
    DPNumPyroModel,
    DPVariationalAutoencoder,
)
from skdpbayes.estimators._arviz import _in_chains
from skdpbayes.preprocessing import DPStandardScaler

pytestmark = pytest.mark.usefixtures("compiled_quickly")

pd = pytest.importorskip("pandas")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its coming changes, once a day
    arviz = pytest.importorskip("arviz")

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(200, 3)), columns=["age", "dose", "height"])
Y = RNG.choice(["a", "b", "c"], 200)
OWN = {"random_state": 0, "n_posterior_samples": 30}


@pytest.mark.slow
def test_dimensions_have_names():
    own = OWN | {"random_state": None}
    model = DPBayesianLogisticRegression(classes=["a", "b", "c"], n_steps=20, **own).fit(X, Y)
    posterior = model.to_arviz().posterior
    assert posterior["coef"].dims == ("chain", "draw", "class", "feature")
    one = posterior["coef"].sel({"class": "b", "feature": "dose"})
    np.testing.assert_array_equal(one[1], model.posterior_samples_["coef"][1:28:4, 1, 1])
    assert (
        posterior.attrs["epsilon"] == model.privacy_spent_.epsilon
        and posterior.attrs["guarantee_holds"] == 1
    )
    assert posterior.attrs["inference_library_version"] == skdpbayes.__version__
    assert list(arviz.summary(posterior, var_names=["coef"]).index[:2]) == [
        "coef[a, age]",
        "coef[a, dose]",
    ]


@pytest.mark.parametrize(
    ("model", "rows", "dims"),
    [
        (
            DPBayesianLinearRegression(bounds=((-4, 4), (-9, 9)), **OWN),
            X,
            {"coef": ("feature",), "noise_std": ()},
        ),
        (DPBetaBernoulli(**OWN), X > 0, {"probability": ("feature",)}),
        (
            DPDirichletCategorical(categories=["a", "b", "c"], **OWN),
            Y[:, None],
            {"probability": ("category",)},
        ),
        pytest.param(
            DPGaussianMixture(n_components=2, bounds=(-4, 4), solver="vips", **OWN),
            X,
            {
                "means": ("component", "feature"),
                "covariances": ("component", "feature", "other_feature"),
            },
            marks=pytest.mark.slow,
        ),
        pytest.param(
            DPLatentDirichletAllocation(2, **OWN),
            (X > 0).astype(int),
            {"topics": ("topic", "feature")},
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_model_names_its_dimensions(model, rows, dims):
    posterior = model.fit(rows, RNG.normal(size=200)).to_arviz().posterior
    for name, expected in dims.items():
        assert posterior[name].dims == ("chain", "draw", *expected)
        assert posterior[name].shape[:2] == (4, 7)
    if "probability" in dims and "category" in dims["probability"]:
        assert list(posterior["category"].values) == ["a", "b", "c"]


def test_names_may_be_given():
    model = DPBetaBernoulli(**OWN).fit((X > 0).to_numpy())
    posterior = model.to_arviz(
        coords={"sign": ["a", "b", "c"]}, dims={"probability": ["sign"]}
    ).posterior
    one = posterior["probability"].sel(sign="b")
    np.testing.assert_array_equal(one[1], model.posterior_samples_[1:28:4, 1])
    with pytest.raises(ValueError, match=r"dims has \['p'\], but the draws have \['probability'\]"):
        model.to_arviz(dims={"p": ["sign"]})
    with pytest.raises(ValueError, match=r"coords has \['sign'\], but .* \['feature'\]"):
        model.to_arviz(coords={"sign": ["a", "b", "c"]})
    own = model.to_arviz(coords={"feature": ["a", "b", "c"]}).posterior
    assert list(own["feature"].values) == ["a", "b", "c"]


def of_hospitals(x, hospital, y=None, *, n):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("hospital", n):
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        mean = (x * (w + slope[hospital])).sum(axis=1)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_plates_of_a_numpyro_model_are_dimensions():
    rows = {"x": X.to_numpy(), "hospital": RNG.integers(0, 4, 200), "y": RNG.normal(size=200)}
    how = OWN | {"epsilon": np.inf, "n_steps": 5}
    model = DPNumPyroModel(of_hospitals, "mean_field", public={"n": 4}, **how).fit(rows)
    assert model.to_arviz().posterior["slope"].dims == ("chain", "draw", "hospital", "slope_dim_1")
    posterior = model.to_arviz(
        coords={"hospital": list("ABCD"), "covariate": ["age", "dose", "height"]},
        dims={"w": ["covariate"], "slope": ["hospital", "covariate"]},
    ).posterior
    one = posterior["slope"].sel(hospital="C", covariate="dose")
    np.testing.assert_array_equal(one[1], model.posterior_samples_["slope"][1:28:4, 2, 1])
    assert "w[age]" in arviz.summary(posterior, var_names=["w"]).index


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_chains_keep_their_order_and_their_diagnostics():
    own = {
        "solver": "sgld",
        "n_chains": 3,
        "n_steps": 400,
        "n_posterior_samples": 301,
        "random_state": 0,
    }
    model = DPBayesianLogisticRegression(classes=["a", "b"], epsilon=np.inf, **own).fit(
        X, np.where(Y == "c", "a", Y)
    )
    posterior = model.to_arviz().posterior
    assert (
        posterior["coef"].shape == (3, 100, 1, 3) and len(model.posterior_samples_["coef"]) == 301
    )
    chains = model.posterior_.draws  # (chains, draws, parameters), the intercept last
    np.testing.assert_array_equal(posterior["coef"][:, :, 0], chains[:, :100, :3])
    np.testing.assert_allclose(
        arviz.rhat(posterior, method="split")["coef"].values.ravel(),
        model.diagnostics_["r_hat"][:3],
        rtol=0.01,
    )
    model.set_params(n_posterior_samples=300, n_steps=40, learning_rate=1e-4)
    fewer = model.fit(X, np.where(Y == "c", "a", Y))
    repeated = fewer.to_arviz().posterior
    assert repeated.sizes == {"chain": 3, "draw": 100, "class": 1, "feature": 3}
    assert len(np.unique(repeated["coef"][0, :, 0, 0])) == fewer.posterior_.draws.shape[1] < 100
    assert arviz.ess(repeated)["coef"].max() < fewer.posterior_.n_draws  # repeats are no news


def test_more_chains_than_draws_are_dealt_to_four():
    """ArviZ warns of such shapes, which are mostly a mistake."""
    own = {"solver": "vips", "bounds": ((-4, 4), (-9, 9))}
    model = DPBayesianLinearRegression(**OWN | own).fit(X, X["age"])
    assert model.posterior_.n_chains > 30
    posterior = model.to_arviz().posterior
    assert posterior.sizes["chain"] == 4 and posterior.sizes["draw"] == 7
    np.testing.assert_array_equal(posterior["coef"][3], model.posterior_samples_["coef"][3:28:4])


@pytest.mark.parametrize(
    "draws, chains, shape",
    [
        (1000, 0, (4, 250)),
        (30, 0, (4, 7)),
        (12, 0, (3, 4)),
        (3, 0, (1, 3)),
        (30, 1, (1, 30)),  # one Markov chain is no several
        (9, 3, (3, 3)),
        (8, 3, (2, 4)),
    ],
)
def test_draws_are_dealt_to_chains(draws, chains, shape):
    found = _in_chains(np.arange(draws)[:, None], chains)
    assert found.shape == (*shape, 1)
    np.testing.assert_array_equal(found[0, :, 0], np.arange(shape[1]) * shape[0])


def test_independent_draws_are_summarised_without_warnings(caplog):
    own = OWN | {"n_posterior_samples": 1000}
    table = arviz.summary(DPBetaBernoulli(**own).fit(X > 0).to_arviz())
    assert not caplog.records
    assert table["r_hat"].between(0.99, 1.01).all() and (table["ess_bulk"] > 700).all()


def test_the_newer_line_of_arviz(monkeypatch):
    newer = pytest.importorskip("arviz_base")
    monkeypatch.setitem(sys.modules, "arviz", newer)
    model = DPBayesianLinearRegression(bounds=((-4, 4), (-9, 9)), **OWN).fit(X, X["age"])
    tree = model.to_arviz()
    assert tree["posterior"]["coef"].dims == ("chain", "draw", "feature")
    assert tree["posterior"].attrs["model"] == "DPBayesianLinearRegression"
    np.testing.assert_array_equal(
        tree["posterior"]["coef"].sel(feature="age")[0],
        model.posterior_samples_["coef"][:28:4, 0],
    )


def test_what_has_no_draws_has_no_such_method(monkeypatch):
    with pytest.raises(NotFittedError):
        DPBetaBernoulli().to_arviz()
    assert not hasattr(DPVariationalAutoencoder(), "to_arviz") and not hasattr(
        DPStandardScaler((0, 1)), "to_arviz"
    )
    fitted = DPBetaBernoulli(**OWN).fit(X > 0)
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install skdpbayes\[arviz\]"):
        fitted.to_arviz()
