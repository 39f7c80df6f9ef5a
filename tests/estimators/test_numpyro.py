"""Models of the user's own: exact posteriors without noise, what records may be, guides, and predictions."""

import copy
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from cases import slow_but
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoNormal
from scipy import sparse, special, stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from skdpbayes import (
    DPBayesianLogisticRegression,
    DPHierarchicalLogisticRegression,
    DPNumPyroModel,
    Schema,
)
from skdpbayes.estimators._hierarchical import hierarchical_logistic
from skdpbayes.intake.fields import pack
from skdpbayes.posteriors.base import DrawsPosterior
from skdpbayes.preprocessing import check_data
from skdpbayes.privacy import PrivacyLeakWarning
from skdpbayes.solvers.base import arithmetic

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N = 1500
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
WEIGHTS = np.array([1.0, -0.5])
LABELS = (X @ WEIGHTS + RNG.logistic(size=N) > 0).astype(int)
NUMBERS = X @ WEIGHTS + RNG.normal(size=N)


def linear(x, y=None, noise=1.0):
    w = numpyro.sample("w", dist.Normal(jnp.array([2.0, 0.0]), 3.0).to_event(1))
    numpyro.deterministic("sum", w.sum())
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(numpyro.deterministic("mean", x @ w), noise), obs=y)


def logistic(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.BernoulliLogits(x @ w), obs=y)


def own_guide(x, y=None):
    loc = numpyro.param("loc", jnp.zeros(2))
    scale = numpyro.param("scale", jnp.full(2, 0.1), constraint=dist.constraints.positive)
    numpyro.sample("w", dist.Normal(loc, scale).to_event(1))


def exact():
    """Posterior of `linear`."""
    precision = X.T @ X + np.eye(2) / 9
    return np.linalg.solve(precision, X.T @ NUMBERS + np.array([2.0, 0.0]) / 9), np.linalg.inv(
        precision
    )


@pytest.mark.parametrize("solver", slow_but(["dpvi", "na-dpvi", "sgld"], "na-dpvi"))
def test_without_noise_the_posterior_is_exact(solver):
    mean, covariance = exact()
    more = {"n_steps": 4000, "n_posterior_samples": 2000} if solver == "sgld" else {}
    fitted = DPNumPyroModel(linear, epsilon=np.inf, solver=solver, random_state=0, **more).fit(
        X, NUMBERS
    )
    draws = fitted.posterior_samples_["w"]
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(axis=0) - mean) < 0.25 * sd).all()
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.15)
    np.testing.assert_allclose(
        fitted.posterior_samples_["sum"], draws.sum(axis=1), rtol=1e-4, atol=1e-5
    )
    if solver == "na-dpvi":
        np.testing.assert_allclose(fitted.summary()["noise_share"], 0, atol=0.05)
        noisy = DPNumPyroModel(linear, solver=solver, random_state=0).fit(X, NUMBERS).summary()
        # What is left is at least the exact width: clipping costs some, and noise of the curvature.
        left = ((1 - noisy["noise_share"]) * noisy["sd"])[["w[0]", "w[1]"]]
        assert noisy["noise_share"].between(0.01, 0.5).all()
        assert (left > 0.9 * sd).all() and (left < 2 * sd).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "guide",
    [own_guide, pytest.param(AutoNormal(linear), marks=[pytest.mark.slow])],
    ids=["own", "AutoNormal"],
)
def test_a_guide_of_the_users_finds_the_exact_posterior_without_noise(guide):
    mean, covariance = exact()  # all but diagonal
    fitted = DPNumPyroModel(linear, guide, epsilon=np.inf, n_steps=2000, random_state=0).fit(
        X, NUMBERS
    )
    draws = fitted.posterior_samples_["w"]
    sd = np.sqrt(np.diag(covariance))
    assert (np.abs(draws.mean(axis=0) - mean) < 0.4 * sd).all()
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.2)
    private = DPNumPyroModel(linear, guide, epsilon=1.0, random_state=0).fit(X, NUMBERS)
    assert np.abs(private.posterior_samples_["w"].mean(axis=0) - mean).max() < 0.3
    assert 0.99 < private.privacy_spent_.epsilon <= 1


def wide(n):
    def function(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([n]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w[:2], 1.0), obs=y)

    return function


def with_a_factor(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.factor("likelihood", -0.5 * (x @ w - (0.0 if y is None else y)) ** 2)


def with_a_spread(law):
    def function(x, y=None):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        w = numpyro.sample("w", law(tau).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return function


@pytest.mark.parametrize(
    ("function", "changes", "solver"),
    [
        (linear, {}, "na-dpvi"),
        pytest.param(
            with_a_spread(lambda tau: dist.Normal(0.0, tau)),
            {},
            "na-dpvi",
            marks=pytest.mark.slow,
        ),
        (with_a_spread(lambda tau: dist.Laplace(0.0, 1.0)), {}, "na-dpvi"),
        (with_a_spread(lambda tau: dist.Laplace(0.0, tau)), {}, "dpvi"),  # whose prior it keeps
        (
            linear,
            {
                "n_steps": 10,
                "sampling_rate": 0.1,
                "clipping_norm": 2.0,
                "adjacency": "add_remove",
            },
            "na-dpvi",
        ),
        (logistic, {"epsilon": np.inf}, "dpvi"),
        (linear, {"max_rows_per_person": 2}, "na-dpvi"),
        (linear, {"guide": "mean_field"}, "dpvi"),
        (linear, {"guide": own_guide}, "dpvi"),
        (linear, {"learning_rate": 0.1}, "dpvi"),
        (wide(100), {}, "na-dpvi"),
        (wide(101), {}, "dpvi"),
        (with_a_factor, {}, "dpvi"),  # clipping biases it
    ],
)
def test_the_model_and_the_parameters_choose_the_solver(function, changes, solver):
    plan = DPNumPyroModel(function, **changes).plan(N, 2)
    assert plan.solver_name == solver
    assert repr(plan).startswith(f"Plan(DPNumPyroModel by '{solver}'")


def test_more_records_are_taken_in_batches():
    model = DPNumPyroModel(linear)
    assert [model.plan(n, 2).solver_name for n in (20_000, 20_001)] == ["na-dpvi", "dpvi"]
    private = DPNumPyroModel(linear, adjacency="add_remove", sampling_rate=0.1)
    assert {private.plan(n, 2).solver_name for n in (None, 10, 20_001)} == {"na-dpvi"}


def test_a_parameter_of_another_solver_than_the_chosen_one_is_refused():
    with pytest.raises(ValueError, match="n_chains=2 needs solver='sgld'; 'na-dpvi' has no such"):
        DPNumPyroModel(linear, n_chains=2).plan(N, 2)


@pytest.mark.slow
def test_under_noise_it_is_the_logistic_regression_that_knows_its_bounds():
    own = DPNumPyroModel(logistic, epsilon=1.0, random_state=0, n_posterior_samples=100).fit(
        X, LABELS
    )
    ready = DPBayesianLogisticRegression(
        1.0, classes=[0, 1], fit_intercept=False, data_norm=4, random_state=0
    )
    ready.fit(X, LABELS)
    draws = own.posterior_samples_["w"]
    assert np.abs(draws.mean(axis=0) - ready.coef_[0]).max() < 0.4
    assert draws.std() < 2 * ready.posterior_samples_["coef"].std()
    draws = draws.astype(float)
    expected = special.expit(X[:20] @ draws.T).mean(axis=1)
    np.testing.assert_allclose(
        own.predict_proba(X[:20]), np.column_stack([1 - expected, expected]), atol=1e-5
    )
    np.testing.assert_array_equal(own.predict(X[:20]), expected > 0.5)
    assert own.score(X, LABELS) > np.log(0.5)


def counts(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + x @ w)), obs=y)


@pytest.mark.slow
def test_clipping_does_not_move_an_intercept():
    """Scores of counts are skewed: clipped by their own norms they are zero some five sd away."""
    x = np.random.default_rng(1).normal(size=(4000, 2)) / 2
    y = np.random.default_rng(2).poisson(np.exp(0.4 + x @ WEIGHTS))
    how = {"epsilon": 2.0, "random_state": 0, "n_steps": 120}
    draws = DPNumPyroModel(counts, **how).fit(x, y).posterior_samples_
    assert abs(draws["a"].mean() - 0.4) < 3 * draws["a"].std() < 0.12
    assert (np.abs(draws["w"].mean(axis=0) - WEIGHTS) < 3 * draws["w"].std(axis=0)).all()


def two_numbers(x):
    m = numpyro.sample("m", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.MultivariateNormal(m, jnp.eye(2)), obs=x)


def test_it_says_where_clipping_biases_the_fit():
    with pytest.warns(UserWarning, match="intervals are those of the clipped fit"):
        DPNumPyroModel(two_numbers, epsilon=1.0, random_state=0, n_steps=20).fit(X)


def test_a_record_without_a_density_contributes_nothing():
    x, y = X.copy(), NUMBERS.copy()
    x[3, 0], y[5] = np.nan, np.inf
    keep = np.setdiff1d(np.arange(N), [3, 5])

    def mean(*data, **how):
        return (
            DPNumPyroModel(linear, epsilon=np.inf, random_state=0, **how).fit(*data).posterior_.mean
        )

    np.testing.assert_allclose(mean(x, y), mean(X[keep], NUMBERS[keep]), atol=1e-4)

    def levels(y):  # as read from a file: floats, which a NaN would leave for some integer
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Categorical(p), obs=y.astype(int))

    level = RNG.integers(0, 3, N).astype(float)
    level[::3] = np.where(np.arange(N)[::3] % 2, np.nan, np.inf)
    fitted = DPNumPyroModel(levels, epsilon=np.inf, random_state=0).fit({"y": level})
    shares = (
        np.bincount(level[np.isfinite(level)].astype(int), minlength=3) / np.isfinite(level).sum()
    )
    np.testing.assert_allclose(fitted.posterior_samples_["p"].mean(axis=0), shares, atol=0.02)


def test_levels_that_a_distribution_lacks_are_counted_and_floats_explained():
    def levels(x, y=None):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Categorical(p), obs=y)

    model = DPNumPyroModel(levels, random_state=0)
    y = RNG.integers(1, 4, N)  # from 1, not from 0
    x, wanted = X.copy(), f"{(y == 3).sum()} of {N} records have no density"
    (said,) = check_data(x, y, estimator=model).findings
    assert said.startswith(wanted) and "from 0" in said
    x[y == 3, 0] = np.nan  # counted as missing alone
    before = {**vars(model)}
    for data in ((x, y), ({"x": x, "y": y},), (x[:, :, None], y)):
        (said,) = check_data(*data, estimator=model).findings
        assert said.startswith(f"{(y == 3).sum()} of {N} rows have a missing")
    assert vars(model) == before
    groups = ["one", None] + [f"person {i}" for i in range(N - 2)]
    by_person = clone(model).set_params(max_rows_per_person=1)
    said = check_data({"x": x, "y": y}, estimator=by_person, groups=groups).findings
    assert any("1 of" in own and "name no person" in own for own in said)
    x[:, 1] = np.nan
    said = check_data(x, y, estimator=model).findings
    assert any("column 1 holds no number" in own for own in said)
    with pytest.raises(ValueError, match=r"(?s)raises an error.*write `y.astype\(int\)`"):
        check_data(X, y.astype(float), estimator=DPNumPyroModel(indexed))


def test_an_argument_that_is_missing_in_predictions_is_named():
    def scaled(x, size, y=None):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(mean * size.astype(float), 1.0), obs=y)

    record = {"x": X, "size": np.ones(N), "y": NUMBERS}
    fitted = DPNumPyroModel(scaled, epsilon=np.inf, random_state=0).fit(record)
    for predicted in (fitted.predict, fitted.sample_posterior_predictive):
        with pytest.raises(ValueError, match=r"error without 'size', 'y'.*all that it takes but"):
            predicted({"x": X[:3]})
        with pytest.raises(ValueError, match=r"records of 'x', 'size', 'y', not of X: pass them"):
            predicted(X[:3])
    assert fitted.predict({"x": X[:3], "size": np.ones(3)}).shape == (3,)


def indexed(x, y=None):
    levels = numpyro.sample("levels", dist.Normal(0, 1).expand([5]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("z", dist.Normal(levels[y], 1), obs=x[:, 0])


@pytest.mark.slow
def test_records_come_in_many_forms():
    def by_name(code, *, table, y=None, twice):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([table.shape[0]]).to_event(1))
        with numpyro.plate("data", len(code)):
            numpyro.sample("y", dist.Normal(twice * w[code], 1.0), obs=y)

    codes = RNG.integers(0, 3, N)
    y = np.array([0.0, 1.0, 2.0])[codes] + RNG.normal(size=N)
    how = {
        "epsilon": np.inf,
        "random_state": 0,
        "public": {"table": np.zeros((3, 1)), "twice": 2.0},
    }
    fits = [
        DPNumPyroModel(by_name, **how).fit({"code": code, "y": value})
        for code, value in (
            (codes, y),
            (pd.Series(codes), y.tolist()),
            (codes.astype(np.int8), y.astype(object)),
        )
    ]
    for fitted in fits:
        np.testing.assert_allclose(
            fitted.posterior_samples_["w"].mean(axis=0), [0, 0.5, 1], atol=0.1
        )
        np.testing.assert_array_equal(fitted.posterior_.mean, fits[0].posterior_.mean)
    with pytest.raises(ValueError, match=r"X is a dict.*put y into it"):
        DPNumPyroModel(by_name, **how).fit({"code": codes}, y)

    fits = [
        DPNumPyroModel(linear, epsilon=np.inf, random_state=0).fit(x, NUMBERS)
        for x in (X, pd.DataFrame(X, columns=["a", "b"]), sparse.csr_matrix(X))
    ]
    for fitted in fits:
        np.testing.assert_allclose(fitted.posterior_.mean, fits[0].posterior_.mean, atol=1e-5)
    assert fits[1].feature_names_in_.tolist() == ["a", "b"] and fits[0].n_features_in_ == 2


@pytest.mark.parametrize(
    ("change", "records", "message"),
    [
        ({"model": 3}, (X, NUMBERS), "model must be a function"),
        ({"public": [1]}, (X, NUMBERS), "public must be a dict"),
        ({"guide": "round"}, (X, NUMBERS), "guide must be one of"),
        ({"solver": "vips"}, (X, NUMBERS), "'dpvi', 'na-dpvi', 'sgld'"),
        ({"solver": "sgld", "guide": own_guide}, (X, NUMBERS), "guide=.* needs solver='dpvi'"),
        ({"solver": "sgld", "n_chains": 2}, (X, NUMBERS), "pass clipping_norm"),
        ({"n_steps": 1}, (X, NUMBERS), "n_steps=1 is too few"),
        ({}, (X, NUMBERS[:-1]), "inconsistent numbers of samples"),
        ({}, (X, NUMBERS.astype(str)), "y must be an array of numbers"),
        ({}, (X[:0], NUMBERS[:0]), "0 sample"),
        ({}, ({"not a name": X},), "must name arguments"),
    ],
)
def test_what_is_public_may_raise(change, records, message):
    with pytest.raises(ValueError, match=message):
        DPNumPyroModel(**({"model": linear} | change)).fit(*records)


def around(x, spread=1.0):
    centre = numpyro.sample("centre", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(centre, spread).expand([x.shape[1]]).to_event(1), obs=x)


@pytest.mark.parametrize("public", [None, {"spread": 2.0}])
def test_a_model_without_a_response_is_planned_as_it_is_fitted(public):
    model = DPNumPyroModel(around, public=public, clipping_norm=1.0)
    planned, (fitted, _) = model.plan(n_rows=50, n_features=2), model._prepared(np.ones((50, 2)))
    assert planned.facts.shape == fitted.facts.shape and planned.spec == fitted.spec
    assert planned.epsilon == fitted.epsilon


def test_a_plan_of_other_arguments_needs_fields():
    model = DPNumPyroModel(lambda age, *, height, weight: None)
    with pytest.raises(ValueError, match=r"takes neither \(X, y\) nor \(X\).*pass fields="):
        model.plan(n_rows=50, n_features=2)


def test_the_size_of_the_plate_of_records_is_checked():
    def model(x, y=None, *, size, places=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("data", size, places or len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    with pytest.raises(ValueError, match=r"N?1500 places.*numpyro.plate\('data', len\(x\)\)"):
        DPNumPyroModel(model, public={"size": N, "places": N}).fit(X, NUMBERS)
    with pytest.raises(ValueError, match=r"of 1400 records, but there are 1500.*'data', len\(x\)"):
        DPNumPyroModel(model, public={"size": 1400}).fit(X, NUMBERS)
    own = DPNumPyroModel(model, public={"size": N}, clipping_norm=1.0)
    assert own.plan(n_rows=N, n_features=2).model.model.program.declared == (("data", N),)
    # Where the number of records is private, the size may be a guess, and changes nothing.
    private = DPNumPyroModel(
        model, public={"size": 10}, adjacency="add_remove", sampling_rate=0.5, clipping_norm=1.0
    )
    assert private._prepared(X, NUMBERS)[0].epsilon <= 1


def test_an_error_of_the_model_is_the_users_own():
    def broken(x, y=None):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        DPNumPyroModel(broken).fit(X, NUMBERS)
    with pytest.raises(ValueError, match=r"'<lambda>' raises .* argument"):
        DPNumPyroModel(lambda x: None).fit(X, NUMBERS)


def test_shapes_that_do_not_match_are_told_by_the_name_of_the_function():
    def too_long(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)

    def guide(x, y=None):
        numpyro.sample("w", dist.Normal(jnp.zeros(2) + jnp.zeros(3), 1).to_event(1))

    for given, name, shapes in (
        ((too_long,), "too_long", r"\(2, 2\), \(2,\)"),
        ((linear, guide), "guide", r"\(1, 2\), \(1,\)"),
    ):
        with pytest.raises(ValueError, match=f"'{name}' raises .* of shapes {shapes}: ") as told:
            DPNumPyroModel(*given).fit(X, NUMBERS)
        assert isinstance(told.value.__cause__, TypeError)


@pytest.fixture(scope="module")
def fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return DPNumPyroModel(linear, epsilon=5.0, random_state=0, n_posterior_samples=200).fit(
            X, NUMBERS
        )


@pytest.mark.slow
def test_predictions_are_averages_over_the_posterior(fitted):
    new = RNG.normal(size=(1030, 2))  # more than a block
    draws = fitted.posterior_samples_["w"].astype(float)
    np.testing.assert_allclose(fitted.predict(new), new @ draws.mean(axis=0), atol=1e-4)
    y = RNG.normal(size=1030)
    log = stats.norm(new @ draws.T, 1.0).logpdf(y[:, None])
    expected = special.logsumexp(log, axis=1) - np.log(200)
    np.testing.assert_allclose(fitted.log_predictive_density(new, y), expected, atol=1e-4)
    assert fitted.score(new, y) == pytest.approx(expected.mean(), abs=1e-4)
    assert not hasattr(fitted, "predict_proba")  # which is for responses of few values


@pytest.mark.slow
@pytest.mark.parametrize("form", ["arrays", "fields"])
def test_a_response_without_a_default_is_none_in_predictions(form):
    def required(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 2))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope * x[:, 0], 1), obs=y)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 1))
    y = 2 * x[:, 0] + rng.normal(size=2000)
    model = DPNumPyroModel(required, epsilon=5.0, solver="na-dpvi")
    records, new = ((x, y), x) if form == "arrays" else (({"x": x, "y": y},), {"x": x})
    np.testing.assert_allclose(model.fit(*records).predict(new), 2 * x[:, 0], atol=0.4)


def test_records_that_are_no_numbers_are_predicted_with_a_warning(fitted):
    rows = X[:3].copy()
    rows[1, 0] = np.nan
    zero = "1 of these records hold NaN or infinity: predicted as records of zeros"
    with pytest.warns(UserWarning, match=zero):
        mean = fitted.predict(rows)
    with pytest.warns(UserWarning, match=zero):
        assert np.isfinite(fitted.predict_interval(rows)).all()
    with pytest.warns(UserWarning, match=zero):
        assert np.isfinite(fitted.sample_posterior_predictive(rows, 2)["y"]).all()
    assert np.isfinite(mean).all() and mean[1] == 0 and np.isnan(rows[1, 0])
    with pytest.warns(UserWarning, match="Results for 1 records are NaN"):
        assert np.isnan(fitted.log_predictive_density(rows, NUMBERS[:3])).tolist() == [0, 1, 0]


def test_an_interval_has_the_quantiles_of_the_predictive_law(fitted):
    new = RNG.normal(size=(140, 2))  # more than a block
    lower, upper = fitted.predict_interval(new, level=0.9)
    assert lower.shape == upper.shape == (140,)
    laws = stats.norm(new @ fitted.posterior_samples_["w"].astype(float).T, 1.0)
    for ends, tail in ((lower, 0.05), (upper, 0.95)):
        np.testing.assert_allclose(laws.cdf(ends[:, None]).mean(axis=1), tail, atol=0.025)
    # The interval of a record does not depend on the others.
    np.testing.assert_allclose(fitted.predict_interval(new[5:6], 0.9)[0], lower[5:6], rtol=1e-5)
    with pytest.raises(ValueError, match="level"):
        fitted.predict_interval(new, 1.0)


def heavy(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Cauchy(x @ w, 1.0), obs=y)


@pytest.mark.slow
def test_a_law_without_a_mean_is_predicted_by_intervals():
    y = X @ WEIGHTS + RNG.standard_cauchy(size=N)
    fitted = DPNumPyroModel(heavy, epsilon=np.inf, random_state=0, n_steps=30).fit(X, y)
    with pytest.raises(ValueError, match=r"law of 'y' has no mean.*predict_interval"):
        fitted.predict(X)
    lower, upper = fitted.predict_interval(X[:200], level=0.8)
    assert 0.7 < np.mean((lower < y[:200]) & (y[:200] < upper)) < 0.9


def times(x, censored, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(x)):
        law = dist.Exponential(jnp.exp(-a - x @ w))
        numpyro.sample("y", dist.RightCensoredDistribution(law, censored), obs=y)


def test_a_model_fitted_to_arguments_by_name_is_summarised_predicted_and_scored():
    rng, mean = np.random.default_rng(1), np.exp(X @ WEIGHTS)
    event, end = rng.exponential(mean), rng.uniform(0.5, 3, N)
    records = {"x": X, "censored": (event > end).astype(float)}
    fitted = DPNumPyroModel(times, epsilon=np.inf, random_state=0, n_steps=30)
    fitted.fit(records | {"y": np.minimum(event, end)})
    # The mean time is that of the event, seen or not.
    found = fitted.predict(records)
    assert np.mean(np.abs(np.log(found / mean))) < 0.15
    names = {"feature_names": ["age", "dose"]}
    plain = fitted.summary(linear=("w", "a"), **names)
    ratios = fitted.summary(linear=("w", "a"), exponentiate=True)
    assert {"w[age]", "w[dose]", "a"} == set(plain.index)
    assert set(ratios.index) == {"w[x0]", "w[x1]", "a"}
    np.testing.assert_allclose(ratios["estimate"]["w[x0]"], np.exp(plain["estimate"]["w[age]"]))
    slopes = fitted.summary(linear=("w", "a"), scaling=([2.0, 1.0], [0.0, 0.0]), **names)
    np.testing.assert_allclose(slopes["estimate"]["w[age]"], 2 * plain["estimate"]["w[age]"])
    assert list(fitted.summary(dims={"w": ["feature"]}, **names).index)[1:] == ["w[age]", "w[dose]"]
    with pytest.raises(ValueError, match="feature_names has 1 names for 2 columns"):
        fitted.summary(linear=("w", "a"), feature_names=["age"])
    # A record without a density is left out of the score, and said so.
    every = records | {"y": np.minimum(event, end)}
    some = {name: x.copy() for name, x in every.items()}
    some["y"][:3] = np.nan
    rest = {name: x[3:] for name, x in every.items()}
    with pytest.warns(UserWarning, match="3 of these rows hold NaN"):
        assert fitted.score(some) == pytest.approx(fitted.score(rest))
    some["y"][:] = np.nan
    with pytest.warns(UserWarning, match=f"Results for {N} records are NaN"):
        assert np.isnan(fitted.score(some))


CUTS = 12


def ordered(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.OrderedLogistic(x @ w, jnp.linspace(-3, 3, CUTS)), obs=y)


@pytest.mark.slow
def test_more_than_ten_categories_are_learnt_and_predicted():
    new = RNG.normal(size=(4, 2))
    latent = X @ (2 * WEIGHTS) + RNG.logistic(size=N)
    levels = np.searchsorted(np.linspace(-3, 3, CUTS), latent)
    fitted = DPNumPyroModel(ordered, epsilon=4.0, random_state=0, n_steps=100).fit(X, levels)
    draws = fitted.posterior_samples_["w"]
    assert (np.abs(draws.mean(axis=0) - 2 * WEIGHTS) < 4 * draws.std(axis=0)).all()
    assert draws.std() < 2 and np.abs(draws.mean(axis=0) - 2 * WEIGHTS).max() < 0.3
    probabilities = fitted.predict_proba(new)
    assert probabilities.shape == (4, CUTS + 1)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(fitted.predict(new), probabilities.argmax(axis=1))
    lower, upper = fitted.predict_interval(new, level=0.9)
    assert ((lower < probabilities) & (probabilities < upper)).all()


def test_predictive_draws_have_the_predictive_law(fitted):
    new = RNG.normal(size=(50, 2))
    drawn = fitted.sample_posterior_predictive(new, 200, random_state=0)
    assert drawn.keys() == {"y"} and drawn["y"].shape == (200, 50)
    assert np.abs((drawn["y"] - new @ WEIGHTS).mean()) < 0.15
    assert (drawn["y"] - new @ WEIGHTS).std() == pytest.approx(1, abs=0.1)
    ours = Predictive(linear, fitted.posterior_samples_)(jax.random.key(0), new)["mean"]
    np.testing.assert_allclose(ours, fitted.posterior_samples_["w"] @ new.T, atol=1e-4)


def test_predictive_draws_are_from_all_of_a_chain(fitted):
    walk = copy.copy(fitted)
    walk.posterior_ = DrawsPosterior(
        np.repeat([[-10.0, 0.0], [10.0, 0.0]], 500, axis=0)[None]
    )  # slow: one step
    drawn = walk.sample_posterior_predictive(np.array([[1.0, 0.0]]), 400, random_state=0)["y"]
    assert 0.4 < np.mean(drawn > 0) < 0.6


def dice(x, y=None, sides=2):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([sides]).to_event(1))
    with numpyro.plate("data", len(x)):
        logits = jnp.sum(x, axis=1, keepdims=True) * w
        numpyro.sample(
            "y", dist.CategoricalLogits(logits) if sides > 2 else dist.DiscreteUniform(1, 3), obs=y
        )


@pytest.mark.slow
def test_what_is_predicted_is_a_value_of_the_response():
    public = {"sides": np.int64(4)}  # a number of the wrong kind is a number all the same
    how = {"epsilon": np.inf, "random_state": 0, "n_steps": 20}
    faces = DPNumPyroModel(dice, public=public, **how).fit(X, RNG.integers(0, 4, N))
    assert faces.predict_proba(X[:5]).shape == (5, 4) and set(faces.predict(X)) <= {0, 1, 2, 3}
    assert set(DPNumPyroModel(dice, **how).fit(X, RNG.integers(1, 4, N)).predict(X)) <= {1, 2, 3}
    assert faces.sample_posterior(7, random_state=0)["w"].shape == (7, 4)


def weighted(x, y=None, weight=None):
    w = numpyro.sample("w", dist.Normal(jnp.array([2.0, 0.0]), 3.0).to_event(1))
    with numpyro.plate("data", len(x)), numpyro.handlers.scale(scale=weight):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_records_may_have_weights():
    weights = RNG.integers(0, 3, N)
    records = {"x": X, "y": NUMBERS, "weight": weights.astype(float)}
    fitted = DPNumPyroModel(weighted, epsilon=np.inf, clipping_norm=1e4, random_state=0).fit(
        records
    )
    precision = (X.T * weights) @ X + np.eye(2) / 9
    mean = np.linalg.solve(precision, X.T @ (weights * NUMBERS) + np.array([2.0, 0.0]) / 9)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert (np.abs(fitted.posterior_samples_["w"].mean(axis=0) - mean) < 0.5 * sd).all()


def test_it_is_cloned_pickled_and_not_fitted_before_it_is(fitted):
    with pytest.raises(NotFittedError):
        DPNumPyroModel(linear).predict(X)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    assert clone(fitted).get_params()["model"] is linear


def test_other_data_and_budgets_compile_nothing(compilations):
    how = {"epsilon": 1.0, "random_state": 0, "n_posterior_samples": 100}
    DPNumPyroModel(linear, **how).fit(X, NUMBERS)
    compilations.clear()
    DPNumPyroModel(linear, **how | {"epsilon": 0.7, "delta": 1e-6, "n_steps": 77}).fit(
        X[:-9] / 2, NUMBERS[9:]
    )
    assert not compilations


# --------------------------------------------------------------------------------- hierarchical


GROUPS = np.repeat(["a", "b", "c"], [1000, 400, 100])
OF_GROUPS = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]])
GROUP_LABELS = (
    (X * OF_GROUPS[np.unique(GROUPS, return_inverse=True)[1]]).sum(axis=1) + RNG.logistic(size=N)
    > 0
).astype(int)


def hierarchical(**parameters):
    how = {
        "groups": ["a", "b", "c"],
        "group_column": "g",
        "epsilon": np.inf,
        "data_norm": 10,
        "random_state": 0,
        "classes": [0, 1],
        "prior_scale": 1.0,
        "group_scale": 1.0,
    }
    return DPHierarchicalLogisticRegression(**how | parameters)


def frame(groups=GROUPS):
    return pd.DataFrame({"x": X[:, 0], "g": groups, "z": X[:, 1]})


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["dpvi", "na-dpvi"])
def test_without_noise_groups_are_as_the_numpyro_model_says(solver):
    fitted = hierarchical(solver=solver, fit_intercept=False).fit(frame(), GROUP_LABELS)
    # The exact posterior is near to normal: its mode, by Newton's method on the weights with
    # effects summed out.
    prior = np.linalg.inv(
        np.eye(3) + np.ones((3, 3))
    )  # of one feature's weights: effects have variance 1
    codes, w = np.unique(GROUPS, return_inverse=True)[1], np.zeros((3, 2))
    for _ in range(20):
        p = special.expit((X * w[codes]).sum(axis=1))
        gradient, hessian = np.zeros((3, 2)), np.zeros((3, 2, 3, 2))
        for g in range(3):
            own = codes == g
            gradient[g] = X[own].T @ (GROUP_LABELS[own] - p[own])
            hessian[g, :, g, :] = (X[own] * (p * (1 - p))[own, None]).T @ X[own]
        gradient -= prior @ w
        hessian += np.einsum("gh,ij->gihj", prior, np.eye(2))
        w += np.linalg.solve(hessian.reshape(6, 6), gradient.ravel()).reshape(3, 2)
    sd = np.sqrt(np.diag(np.linalg.inv(hessian.reshape(6, 6)))).reshape(3, 2)
    assert (np.abs(fitted.coef_ - w) < 0.5 * sd).all()
    np.testing.assert_allclose(fitted.posterior_samples_["weights"].std(axis=0), sd, rtol=0.2)
    assert fitted.intercept_.tolist() == [0, 0, 0]


@pytest.mark.slow
def test_columns_of_groups_are_found_and_others_contribute_nothing():
    named = hierarchical().fit(frame(), GROUP_LABELS)
    codes = np.unique(GROUPS, return_inverse=True)[1]
    table = np.column_stack([X, codes])
    by_place = hierarchical(groups=3, group_column=-1).fit(table, GROUP_LABELS)
    np.testing.assert_allclose(named.posterior_.mean, by_place.posterior_.mean, atol=1e-6)
    np.testing.assert_allclose(
        named.predict_proba(frame()), by_place.predict_proba(table), atol=1e-6
    )
    columns = {f"x{j}": {} for j in range(table.shape[1] - 1)} | {"group": {"categories": range(3)}}
    schema = Schema(columns, outcome={"name": "y", "labels": [0, 1]})
    lists = hierarchical(groups=schema, classes=schema, group_column=-1).fit(
        table.tolist(), GROUP_LABELS.tolist()
    )
    np.testing.assert_allclose(lists.posterior_.mean, by_place.posterior_.mean, atol=1e-6)

    unknown = GROUPS.astype(object)
    unknown[:99] = [None, "d", np.nan] * 33
    rest = slice(99, None)
    some = hierarchical().fit(frame(unknown), GROUP_LABELS).posterior_.mean
    np.testing.assert_allclose(
        some, hierarchical().fit(frame()[rest], GROUP_LABELS[rest]).posterior_.mean, atol=1e-3
    )
    p = named.predict_proba(frame(unknown))
    assert np.isfinite(p).all()
    middle = named.posterior_samples_["effects"][:, :, 0].mean(axis=0)
    assert np.corrcoef(special.logit(p[:99, 1]), X[:99] @ middle[:2])[0, 1] > 0.99


def test_rows_far_longer_than_their_norm_are_warned_of():
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 3, N)
    rows = {"age": rng.uniform(18, 90, N), "bmi": rng.normal(27, 4, N)}
    raw = pd.DataFrame({"ward": np.array(["a", "b", "c"], object)[groups], **rows})
    model = DPHierarchicalLogisticRegression(
        ["a", "b"], None, "ward", epsilon=1.0, classes=[0, 1], random_state=0
    )
    said = check_data(raw, LABELS, estimator=model).findings
    others = (groups == 2).sum()
    assert (
        said[0] == f"{others} of {N} rows are of none of groups, and will be left out, such as 'c'"
    )
    assert f"{N} of {N} rows are longer than data_norm=1.41421" in said[1] and len(said) == 2
    raw.loc[:9, "age"] = np.nan
    again = check_data(raw, LABELS, estimator=model).findings
    assert any(f"10 of {N} rows have a missing" in own for own in again)
    empty = check_data(raw.assign(age=np.nan), LABELS, estimator=model).findings
    assert any(own.startswith("column 'age' holds no number") for own in empty)
    model.set_params(groups=["a", "b", "c"])
    with pytest.warns(UserWarning, match="Rows weigh .*% of what they could"):
        model.fit(raw, LABELS)
    assert model.diagnostics_["mean_weight_at_most"] > 0.1  # noise hides how little
    scaled = raw.assign(age=(raw["age"] - 54) / 36, bmi=(raw["bmi"] - 27) / 8)
    model.fit(scaled, LABELS)  # filters make a warning an error
    assert model.diagnostics_["mean_weight"] > 0.5


@pytest.mark.slow
def test_rows_with_other_labels_contribute_nothing():
    y = GROUP_LABELS.copy()
    y[:99] = 7
    known = hierarchical().fit(frame()[99:], GROUP_LABELS[99:]).posterior_.mean
    np.testing.assert_allclose(hierarchical().fit(frame(), y).posterior_.mean, known, atol=1e-3)


@pytest.mark.parametrize(
    "kind",
    [
        DPNumPyroModel(logistic),
        pytest.param(hierarchical(groups=3, group_column=-1), marks=pytest.mark.slow),
    ],
    ids=["own", "groups"],
)
def test_columns_of_a_sparse_table_that_do_not_exist_crash_nothing(kind):
    table = sparse.csr_matrix(np.column_stack([X, RNG.integers(0, 3, N)]))
    table.indices[0] = 2_000_000_000
    clone(kind).set_params(n_steps=5, random_state=0, clipping_norm=1.0, guide="mean_field").fit(
        table, LABELS
    )


@pytest.mark.slow
def test_what_is_known_of_groups_moves_their_weights():
    known = hierarchical(group_features=[[1.0], [0.0], [-1.0]], group_scale=0.1, prior_scale=3.0)
    fitted = known.fit(frame(), GROUP_LABELS)
    slope = fitted.posterior_samples_["effects"][:, 0, 0].mean()
    assert slope > 0.5  # the first weight falls from a to c
    turned = clone(known).set_params(groups=["c", "b", "a"], group_features=[[-1.0], [0.0], [1.0]])
    np.testing.assert_allclose(turned.fit(frame(), GROUP_LABELS).coef_, fitted.coef_, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "error"), [(1.0, 0.55), (4.0, 0.5), (16.0, 0.42)])
def test_private_intervals_of_small_groups_hold(epsilon, error):
    """Noise must neither carry the norm of scores away nor the weights of groups that few records tell of."""
    sizes, errors, inside = np.repeat([50, 200, 800, 3200], 6), [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = np.array([1.5, 1.0, -0.5]) + 0.6 * rng.normal(size=(24, 3))
        group = np.repeat(np.arange(24), sizes)
        x = rng.uniform(-1, 1, size=(len(group), 2))
        p = special.expit((x * truth[group, :2]).sum(axis=1) + truth[group, 2])
        model = DPHierarchicalLogisticRegression(
            24,
            epsilon=epsilon,
            classes=[0, 1],
            data_norm=2**0.5,
            prior_scale=2.0,
            group_scale=0.6,
            random_state=seed,
        ).fit(np.column_stack([x, group]), (rng.random(len(group)) < p).astype(int))
        draws = model.posterior_samples_["weights"]
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        errors.append(np.mean((draws.mean(axis=0) - truth) ** 2))
        inside.append((low < truth) & (truth < high))
    assert np.mean(errors) ** 0.5 < error and np.mean(inside) > 0.82


@pytest.mark.parametrize(
    ("how", "learnt"),
    [
        ({}, True),
        ({"epsilon": 0.08}, True),  # 2000 rows, 6 weights
        ({"epsilon": 0.07}, False),
        ({"adjacency": "add_remove", "sampling_rate": 0.5}, False),
        ({"epsilon": np.inf}, True),
        ({"solver": "dpvi"}, False),
        ({"solver": "sgld"}, False),
    ],
)
def test_the_spread_of_groups_is_learnt_where_noise_leaves_it(how, learnt):
    """By default: by dpvi it would come out too small."""
    model = DPHierarchicalLogisticRegression(3, classes=[0, 1], **how)
    for given, wanted in (("auto", learnt), (None, True), (0.5, False)):
        own = model.set_params(group_scale=given).plan(2000, 2).model
        while hasattr(own, "model"):
            own = own.model
        sites = {site.name for site in own.program.sites}
        assert ("group_scale" in sites) is wanted, given


@pytest.mark.slow
def test_the_spread_of_groups_can_be_learnt():
    fitted = hierarchical(group_scale=None, epsilon=5.0).fit(frame(), GROUP_LABELS)
    spread = fitted.posterior_samples_["group_scale"]
    assert (spread > 0).all() and 0.4 < spread.mean() < 1.1
    assert spread.std() < 0.35  # 0.6 a priori


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group_column": "missing"}, "group_column='missing' is no column"),
        ({"group_column": 3}, "group_column=3 is no column"),
        ({"group_features": np.ones((2, 1))}, "one row for each of the 3 groups"),
        ({"classes": [0, 1, 2]}, "Only binary classification"),
        ({"group_scale": -1}, "group_scale must be"),
    ],
)
def test_a_hierarchy_that_makes_no_sense_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        hierarchical(**change).fit(frame(), GROUP_LABELS)


@pytest.mark.slow
def test_the_ready_made_estimator_is_its_model():
    codes = np.unique(GROUPS, return_inverse=True)[1]
    public = {"group_features": np.ones((3, 1)), "prior_scale": 1.0, "group_scale": 1.0}
    records = {"x": np.column_stack([X, np.ones(N)]), "group": codes, "y": GROUP_LABELS}
    own = DPNumPyroModel(hierarchical_logistic, public=public, solver="dpvi", random_state=0).fit(
        records
    )
    ready = hierarchical(epsilon=1.0, solver="dpvi").fit(frame(), GROUP_LABELS)
    np.testing.assert_allclose(own.posterior_.mean, ready.posterior_.mean, atol=1e-5)
    low, high = ready.predict_interval(frame(), 0.9)
    weights = ready.posterior_samples_["weights"].astype(float)
    p = special.expit(np.einsum("nd,snd->ns", records["x"], weights[:, codes]))
    inside = ((p > low[:, 1:]) & (p < high[:, 1:])).mean()
    assert 0.88 < inside < 0.92 and set(ready.sample_posterior_predictive(frame(), 5).ravel()) <= {
        0,
        1,
    }
    with pytest.warns(UserWarning, match="predicted as all-zero rows"):
        ready.predict_proba(frame().assign(x=np.nan))
    # The label is in the records: its log predictive density is that of the classifier.
    assert own.score(records) == pytest.approx(
        ready.log_predictive_density(frame(), GROUP_LABELS).mean(), abs=1e-5
    )


def test_negative_integers_can_contribute():
    packed = pack({"x": np.array([-1, 2], np.int32), "y": np.array([[0.0], [np.nan]])})
    assert packed.usable.tolist() == [True, False]


@pytest.mark.slow  # 300 000 rows
def test_strong_weights_of_many_rows_are_reached():
    rng = np.random.default_rng(1)
    n, weights = 300_000, rng.normal(0.0, 2.0, (8, 4))
    group, x = rng.integers(0, 8, n), rng.normal(size=(n, 3))
    logits = (np.column_stack([x, np.ones(n)]) * weights[group]).sum(axis=1)
    y = logits + rng.logistic(size=n) > 0
    model = DPHierarchicalLogisticRegression(
        8,
        np.linspace(-1, 1, 8)[:, None],
        epsilon=1.0,
        delta=1e-6,
        classes=[False, True],
        group_scale=None,
        random_state=0,
    ).fit(np.column_stack([x, group]), y)
    draws = model.posterior_samples_["weights"]
    z = (draws.mean(axis=0) - weights) / draws.std(axis=0)
    assert np.sqrt((z**2).mean()) < 1.3


FIELDS = {"0": np.zeros((0, 2)), "1": np.zeros(0)}


@pytest.mark.parametrize("solver", ["na-dpvi", "dpvi"])
def test_the_second_look_comes_after_a_part_of_the_rounds_and_costs_its_share(solver):
    def planned(**how):
        return DPNumPyroModel(linear, epsilon=1.0, solver=solver, **how).plan(N, fields=FIELDS)

    plan = planned()
    first, early, second, late = plan.spec.steps
    assert (first.steps, second.steps, plan.solver.second_look) == (1, 1, 1 + early.steps)
    assert early.steps == int(0.15 * (early.steps + late.steps))
    assert early.noise_multiplier == late.noise_multiplier
    spent = {piece: piece.steps / piece.noise_multiplier**2 for piece in plan.spec.steps}
    shares = np.array([spent[first], spent[second]]) / sum(spent.values())
    np.testing.assert_allclose(shares, [0.02, 0.05], rtol=1e-3)
    kinds = [int(plan.solver.which(np.int32(step))) for step in range(plan.n_steps)]
    assert [step for step, kind in enumerate(kinds) if kind == 0] == [0, 1 + early.steps]
    # Each part begins with the curvature.
    assert kinds[1] == kinds[2 + early.steps] == 2
    for n_steps in range(4, 12):
        few = planned(n_steps=n_steps)
        assert (few.n_steps, few.epsilon <= 1.0) == (n_steps, True)
    assert len(planned(clipping_norm=1.0).spec.steps) == 1


def test_the_second_look_is_where_the_rounds_have_led_and_the_rounds_start_anew():
    def spread(x, y=None):
        m, s = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ms")
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(m, jnp.exp(s)), obs=y)

    plan = DPNumPyroModel(spread, epsilon=1.0, solver="na-dpvi").plan(N, fields=FIELDS)
    solver, model, schedule = plan.solver, plan.model, plan.spec.traced()
    record = {"0": jnp.array([0.3, -1.0]), "1": jnp.float32(1.0)}
    with arithmetic():
        opened, score, _ = solver.rounds(model, schedule)
        state, key = jax.jit(solver.init)(model, jax.random.key(0)), jax.random.key(1)
        moved = state._replace(solver=state.solver._replace(theta=jnp.array([0.5, -0.2])))

        @jax.jit
        def asked(state):
            return opened.query(state, key)(record)

        @jax.jit
        def statistics(params, theta):
            return model.openings()[0].statistics(model.looked_at(params, theta))(record)

        told, expected = asked(moved), statistics(state.params, moved.solver.theta)
        for name in ("norms", "shares"):
            np.testing.assert_array_equal(told[name], expected[name])
        assert not np.allclose(told["shares"], asked(state)["shares"])
        sums = {"norms": jnp.zeros(21).at[8].set(N), "shares": jnp.full(2, N / 2)}
        sums["squares"] = jnp.eye(2) * N / 2
        noise = {"norms": 1.0, "shares": 1.0, "squares": 1.0}
        anew = jax.jit(opened.update)(moved, key, jnp.int32(0), sums, noise)
        np.testing.assert_allclose(anew.params["start"], [0.5, -0.2])
        np.testing.assert_allclose(anew.solver.theta, [0.5, -0.2], rtol=1e-6)

        # A score goes to the block of its place among the rounds of its part.
        @jax.jit
        def updated(step):
            release = {"score": {"m": jnp.float32(1), "s": jnp.float32(1)}}, {"score": 1.0}
            return score.update(anew, score.point(anew, key), step, *release)

        def block(step):
            return int(np.flatnonzero(updated(jnp.int32(step)).solver.blocks.weight[:, 0])[0])

        second = int(solver.second_look)
        assert [block(step) for step in (1, second - 1, second + 1, plan.n_steps - 1)] == [
            0,
            31,
            0,
            31,
        ]


def test_a_curvature_may_be_longer_where_there_is_less_noise():
    """Norm over the square of half the median norm of scores, and over that of a score's: 2 to 6."""

    def ratio(epsilon, solver):
        found = DPNumPyroModel(linear, epsilon=epsilon, solver=solver).plan(N, fields=FIELDS)
        own, longer = found.solver.solver, float(found.model.factor) / 0.5
        norm = own.guide.curvature_ratio if solver == "dpvi" else own.curvature_norm / 1.01
        over_score = float(norm) / float(own.clipping_norm) ** 2
        assert over_score <= 6 * (1 + 1e-6)
        return over_score * longer**2, longer

    for solver in ("dpvi", "na-dpvi"):
        ratios, longer = zip(*[ratio(e, solver) for e in (0.01, 0.3, 100.0)], strict=True)
        assert longer[0] == 1 < longer[1] < longer[2] == 12
        assert ratios[0] == pytest.approx(2) and 2 < ratios[1] < ratios[2] and ratios[2] > 24


def test_coordinates_are_those_of_the_solver():
    def coordinates(**how):
        model = DPNumPyroModel(linear, **how).plan(N, fields=FIELDS).model
        return model.coordinates if model.looks_again else "given"

    assert coordinates() == coordinates(solver="na-dpvi") == "whitened"
    assert coordinates(solver="dpvi") == coordinates(guide="mean_field") == "scaled"
    for how in (
        {"solver": "sgld"},
        {"guide": own_guide},
        {"epsilon": np.inf},
        {"clipping_norm": 1.0},
    ):
        assert coordinates(**how) == "given"
    # A look that is the only one has its share of the budget.
    spec = DPNumPyroModel(linear, solver="sgld").plan(N, fields=FIELDS).spec
    spent = [piece.steps / piece.noise_multiplier**2 for piece in spec.steps]
    assert spent[0] / sum(spent) == pytest.approx(0.05, rel=1e-3)


@pytest.mark.slow
def test_columns_between_zero_and_one_do_not_hide_in_the_noise():
    """They are nearly collinear with the intercept: in the prior's coordinates intervals are wide."""

    def positive(x, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Poisson(jnp.exp(b + x @ w)), obs=y)

    rng = np.random.default_rng(1)
    x = rng.uniform(size=(3000, 3))
    y = rng.poisson(np.exp(0.3 + x @ np.array([0.5, -0.5, 0.3])))
    fitted = DPNumPyroModel(positive, epsilon=1.0, random_state=0).fit(x, y)
    draws = fitted.posterior_samples_
    assert draws["w"].std(axis=0).max() < 0.25 and draws["b"].std() < 0.25
    errors = draws["w"].mean(axis=0) - [0.5, -0.5, 0.3]
    assert np.abs(errors / draws["w"].std(axis=0)).max() < 4


FACTOR = {"of all": 1.0}


def scaled_by_a_global(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(FACTOR["of all"] * (x @ w), 1.0), obs=y)


def test_a_model_whose_global_has_changed_is_another_model(monkeypatch):
    """And not the one whose programs are compiled."""
    how = {"solver": "na-dpvi", "epsilon": np.inf, "random_state": 0, "n_steps": 30}

    def mean():
        return DPNumPyroModel(scaled_by_a_global, **how).fit(X, NUMBERS).posterior_.mean

    before = mean()
    np.testing.assert_array_equal(mean(), before)
    monkeypatch.setitem(FACTOR, "of all", 2.0)
    np.testing.assert_allclose(mean(), before / 2, rtol=0.05)


@pytest.mark.slow
def test_counts_that_vary_more_than_the_model_says_leave_no_bias():
    """What clipping takes off is not what the model expects: at half the median by 13%."""

    rng = np.random.default_rng(3)
    x = rng.normal(size=(8000, 2)) / 2
    y = rng.poisson(np.exp(1 + x @ [0.6, -0.4]) * rng.gamma(2, 0.5, 8000))
    model = DPNumPyroModel(counts, epsilon=4.0, random_state=0)
    found = model.plan(8000, 2).model
    assert (found.factor, found.first_factor) == (6, 2) and model.plan(100, 2).model.factor < 2
    own = model.fit(x.astype(np.float32), y.astype(np.float32)).posterior_samples_
    assert abs(own["a"].mean() - 1) < 0.04
    np.testing.assert_allclose(own["w"].mean(axis=0), [0.6, -0.4], atol=0.1)


@pytest.mark.parametrize("solver", ["dpvi", "na-dpvi"])
def test_a_declared_clipping_norm_has_its_own_curvature(solver):
    """Of its square, as where noise is large: nothing was found that it could be relative to."""
    how = {"solver": solver, "epsilon": 100.0}
    found, declared = (
        DPNumPyroModel(linear, clipping_norm=norm, **how).plan(N, fields=FIELDS)
        for norm in (None, 0.5)
    )
    assert float(found.model.factor) == 6 and float(declared.model.factor) == 0.5
    own = declared.solver.solver
    norm = own.guide.curvature_ratio if solver == "dpvi" else own.curvature_norm / 1.01
    size = 1 if solver == "dpvi" else 0.25
    assert float(norm) / size == pytest.approx(6)
