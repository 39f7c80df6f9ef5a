"""DPBayesianLinearRegression as users of scikit-learn meet it, and what a bad row may not do."""

import pickle
import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from cases import solvers_of
from scipy import special, stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from whitebox import recorded

from skdpbayes import DPBayesianLinearRegression, inference
from skdpbayes.estimators._base import Outcome, draws_rng
from skdpbayes.estimators._responses import _quantiles
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.privacy import PrivacyLeakWarning

pytestmark = pytest.mark.usefixtures("compiled_quickly")
BOUNDS = ((-1, 1), (-4, 4))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(4000, 3))
    return X, X @ [2.0, -1.0, 0.0] + 0.5 + 0.3 * rng.normal(size=4000)


@pytest.fixture(scope="module")
def fitted(data, compiled_quickly):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # of the seed
        return DPBayesianLinearRegression(1.0, bounds=BOUNDS, random_state=0).fit(*data)


def test_predictions_and_intervals(data, fitted):
    X, y = data
    assert (
        fitted.score(X, y) > 0.9
        and fitted.coef_.shape == (3,)
        and isinstance(fitted.intercept_, float)
    )
    mean, std = fitted.predict(X, return_std=True)
    assert std.mean() == pytest.approx(0.3, rel=0.1)
    low, high = fitted.predict_interval(X, level=0.8)
    assert np.mean((low < y) & (y < high)) == pytest.approx(0.8, abs=0.04)
    np.testing.assert_allclose((low + high) / 2, mean, atol=0.05)
    drawn = fitted.sample_posterior_predictive(X[:5], 4000, random_state=0)
    np.testing.assert_allclose(drawn.mean(axis=0), mean[:5], atol=0.03)
    np.testing.assert_allclose(
        np.quantile(drawn, [0.1, 0.9], axis=0), [low[:5], high[:5]], atol=0.05
    )
    density = fitted.log_predictive_density(X, y)
    assert density.mean() == pytest.approx(stats.norm(mean, std).logpdf(y).mean(), abs=0.02)
    assert fitted.sample_posterior(7, 0)["coef"].shape == (7, 3)


@pytest.mark.parametrize("tail", [1e-6, 0.025, 0.6])
@pytest.mark.parametrize(
    "spread", [0.0, 2.0], ids=["equal noise", "draws that disagree on the noise"]
)
def test_ends_of_intervals_are_quantiles_of_the_mixture(tail, spread):
    rng = np.random.default_rng(0)
    means = rng.standard_t(1.5, size=(40, 500))
    noise = np.exp(spread * rng.normal(size=500))
    mass = special.ndtr((_quantiles(means, noise, tail)[:, None] - means) / noise).mean(axis=1)
    np.testing.assert_allclose(mass, tail, rtol=1e-6)


def test_units_of_the_data_do_not_matter(data, fitted):
    X, y = data
    scale, shift = np.array([10.0, 0.1, 3.0]), np.array([5.0, -2.0, 100.0])
    bounds = (shift - scale, shift + scale), (1000 - 40, 1000 + 40)
    other = DPBayesianLinearRegression(1.0, bounds=bounds, random_state=0).fit(
        X * scale + shift, 10 * y + 1000
    )
    np.testing.assert_allclose(other.coef_ * scale / 10, fitted.coef_, atol=1e-3)
    np.testing.assert_allclose(
        other.predict(X * scale + shift), 10 * fitted.predict(X) + 1000, atol=0.02
    )
    assert other.noise_std_ == pytest.approx(10 * fitted.noise_std_, rel=1e-2)


@pytest.mark.parametrize(
    ("solver", "intercept"), [("na-dpvi", True), ("vips", True), ("vips", False)]
)
def test_the_posterior_is_in_the_units_of_the_data(data, solver, intercept):
    X, y = data
    scale, shift = np.array([10.0, 0.1, 3.0]), np.array([5.0, -2.0, 100.0]) * intercept
    bounds = (shift - scale, shift + scale), (100 * intercept - 40, 100 * intercept + 40)
    fit = DPBayesianLinearRegression(
        5.0, bounds=bounds, solver=solver, fit_intercept=intercept, random_state=0
    ).fit(X * scale + shift, 10 * y + 100 * intercept)
    own, mean, std = fit.posterior_samples_, fit.posterior_.mean, fit.posterior_.std
    assert len(mean) == 4 + intercept
    draws = [2 * np.log(own["noise_std"]), *own["coef"].T]
    draws = np.array(draws + [own["intercept"]] * intercept)
    np.testing.assert_allclose(mean[1:4], fit.coef_)
    np.testing.assert_allclose(std, draws.std(axis=1), rtol=0.15)
    np.testing.assert_allclose(mean, draws.mean(axis=1), atol=0.2 * std.max())
    residual = 3**2 + 5**2 * (not intercept)  # without an intercept, its square is left
    assert mean[0] == pytest.approx(np.log(residual), abs=0.3)
    np.testing.assert_allclose(np.sqrt(np.diag(fit.posterior_.covariance)), std, rtol=1e-3)
    if intercept:
        assert mean[4] == pytest.approx(fit.intercept_)
    else:
        assert fit.intercept_ == 0 and not own["intercept"].any()


def test_the_summary_is_in_the_units_of_the_data(data):
    X, y = data
    scale, names = np.array([10.0, 0.1, 3.0]), ["age", "dose", "height"]
    rows = pd.DataFrame(X * scale + 5, columns=names)
    bounds = (5 - scale, 5 + scale), (1000 - 40, 1000 + 40)
    model = DPBayesianLinearRegression(0.3, bounds=bounds, random_state=0)
    table = model.fit(rows, 10 * y + 1000).summary()
    assert list(table.index) == [*names, "intercept", "noise_std"]
    coef = np.array([20.0, -10.0, 0.0]) / scale
    truth = [*coef, 1000 + 5 - 5 * coef.sum(), 3.0]
    assert (np.abs(table["estimate"] - truth) < 5 * table["sd"]).all()
    np.testing.assert_array_equal(table["estimate"].iloc[:3], model.coef_)
    np.testing.assert_allclose(table["sd"].iloc[:4], model.posterior_.std[1:], rtol=0.15)
    assert table["noise_share"].between(0.01, 0.9).all()
    assert table["p_direction"]["age"] > 0.99


@pytest.mark.parametrize("loose", [(10, 10), (10, 1), (1, 10)])
def test_bounds_ten_times_too_loose_cost_little(data, loose):
    """Noise in units of the bounds would hide coefficients: their error was .3 before."""
    truth, X = np.array([0.6, -0.3, 0.0]), data[0][:2000]
    y = X @ truth + 0.2 + 0.3 * np.random.default_rng(1).normal(size=2000)
    bounds = (-loose[0], loose[0]), (-2 * loose[1], 2 * loose[1])
    fits = [
        DPBayesianLinearRegression(1.0, bounds=bounds, random_state=seed).fit(X, y)
        for seed in range(5)
    ]
    errors = np.array([fit.coef_ - truth for fit in fits])
    assert np.sqrt(np.mean(errors**2)) < 0.05
    spread = np.array([fit.posterior_samples_["coef"].std(axis=0) for fit in fits])
    assert 0.4 < np.sqrt(np.mean((errors / spread) ** 2)) < 1.6
    assert spread.max() < 0.1


def test_the_noise_is_found_where_coefficients_explain_nearly_all():
    """Its variance starts a thousand times too large; early rounds would keep it there."""
    missed = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = rng.uniform(-1, 1, size=(2500, 5))
        y = X @ rng.normal(size=5) + 0.02 * rng.normal(size=2500)
        model = DPBayesianLinearRegression(0.4, bounds=((-2, 2), (-15, 15)), random_state=seed)
        log_noise = np.log(model.fit(X, y).posterior_samples_["noise_std"])
        missed.append((log_noise.mean() - np.log(0.02)) / log_noise.std())
        assert model.diagnostics_["last_step"] < 1.5  # it has arrived
    assert abs(np.mean(missed)) < 0.8 and np.max(np.abs(missed)) < 4
    # Ten rounds are too few: the noise is 25 standard deviations off. That is told.
    with pytest.warns(
        ConvergenceWarning, match=r"not arrived: its last step is \d+\.\d\d posterior"
    ):
        model.set_params(n_steps=10).fit(X, y)
    assert model.diagnostics_["last_step"] > 2


def test_rare_categories_are_as_uncertain_as_they_are_said_to_be():
    """Noise throws their coefficients far off, whence cut residuals would not bring them back."""
    missed = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        level = rng.choice(6, 2000, p=[0.37, 0.23, 0.18, 0.12, 0.07, 0.03])
        truth = np.r_[0, rng.normal(0, 0.5, 5)]
        y = 2 + truth[level] + rng.normal(size=2000)
        bounds = ((0, 1), (-15, 15))
        model = DPBayesianLinearRegression(0.5, bounds=bounds, random_state=seed)
        model.fit(np.eye(6)[level][:, 1:], y)
        missed.append((model.coef_ - truth[1:]) / model.posterior_samples_["coef"].std(axis=0))
    assert np.sqrt(np.mean(np.square(missed))) < 1.2 and np.abs(missed).max() < 4.5


def test_responses_beyond_their_bounds_are_warned_of(data):
    X, y = data
    with pytest.warns(UserWarning, match="seems to be larger than that of the responses"):
        DPBayesianLinearRegression(1.0, bounds=BOUNDS).fit(X, 0.6 * y + 33)


def test_a_skewed_response_leaves_no_bias():
    """Costs with the spread of their mean: residuals cut at 2 would move the mean by 6%."""
    rng = np.random.default_rng(1)
    X = np.c_[rng.uniform(20, 90, 8000), rng.integers(0, 2, 8000)]
    mean = 100 + 10 * X[:, 0] + 300 * X[:, 1]
    bounds = ([20, 0], [90, 1]), (0, 8000)
    model = DPBayesianLinearRegression(2.0, bounds=bounds, random_state=0)
    own = model.fit(X, rng.gamma(1.5, mean / 1.5)).posterior_samples_
    middle = own["intercept"] + own["coef"] @ [55, 0.5]
    for draws, truth in ((middle, 800), (own["coef"][:, 0], 10), (own["coef"][:, 1], 300)):
        assert abs(draws.mean() - truth) < 2.5 * draws.std()
    assert abs(middle.mean() - 800) < 25 and middle.std() < 15


@pytest.mark.slow
def test_without_an_intercept(data):
    X, y = data
    model = DPBayesianLinearRegression(
        10.0, bounds=BOUNDS, fit_intercept=False, random_state=0
    ).fit(X, y - 0.5)
    assert model.intercept_ == 0 and not model.posterior_samples_["intercept"].any()
    np.testing.assert_allclose(model.coef_, [2, -1, 0], atol=0.06)


def test_inferred_bounds_warn_and_void_the_guarantee(data):
    X, y = data
    with pytest.warns(PrivacyLeakWarning, match="bounds=None"):
        model = DPBayesianLinearRegression(1.0, random_state=0).fit(X, y)
    assert not model.privacy_spent_.guarantee_holds
    with pytest.raises(ValueError, match="NaN"):
        DPBayesianLinearRegression(1.0).fit(X, np.where(np.arange(4000) == 7, np.nan, y))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bounds": (1, 2)}, "bounds must be"),
        ({"bounds": ((1, -1), (0, 1))}, "bounds of X"),
        ({"bounds": ((-1, 1), (0, np.inf))}, "bounds of y"),
        ({"solver": "dpvi"}, "'dpvi' is not offered .* solver='na-dpvi'"),
        ({"solver": "sgld"}, "'sgld' is not offered .* solver='vips'"),
        ({"solver": "vi"}, "solver must be"),
        ({"solver": "vips", "n_steps": 5}, "n_steps=5 needs another solver"),
        ({"solver": "vips", "adjacency": "add_remove"}, "add_remove"),
        ({"prior_precision": 0.0}, "prior_precision"),
        ({"n_steps": 1}, "too few"),
    ],
)
def test_bad_parameters_are_named(data, parameters, message):
    with pytest.raises(ValueError, match=message):
        DPBayesianLinearRegression(**({"bounds": BOUNDS} | parameters)).fit(*data)


def test_guarantee_and_report(data, fitted):
    assert not fitted.privacy_spent_.guarantee_holds, "it has a seed"
    assert fitted.privacy_spent_.epsilon <= 1.0
    assert sum(piece.steps for piece in fitted.privacy_spent_.steps) == fitted.n_iter_ == 30
    substituted = DPBayesianLinearRegression(
        1.0, bounds=BOUNDS, adjacency="replace_one", random_state=0
    ).fit(*data)
    ratio = (
        substituted.privacy_spent_.steps[-1].noise_multiplier
        / fitted.privacy_spent_.steps[-1].noise_multiplier
    )
    assert ratio == pytest.approx(2, rel=0.05)  # the share of the start is larger
    with pytest.raises(ValueError, match="sampling_rate"):
        DPBayesianLinearRegression(1.0, bounds=BOUNDS, adjacency="add_remove").fit(*data)
    DPBayesianLinearRegression(1.0, bounds=BOUNDS, adjacency="add_remove", sampling_rate=0.5).fit(
        *data
    )


# One release


WIDE = ((-1, 1), (-6, 6))  # no response is beyond


def once(epsilon=1.0, **parameters):
    return DPBayesianLinearRegression(
        epsilon, **({"bounds": WIDE, "solver": "vips", "random_state": 0} | parameters)
    )


@pytest.mark.parametrize("intercept", [True, False])
def test_one_release_without_noise_gives_the_exact_posterior(data, intercept):
    X, y = data
    fit = once(
        np.inf, fit_intercept=intercept, prior_precision=0.5, prior_shape=3.0, prior_scale=0.1
    ).fit(X, y)
    rows, y = np.column_stack([X, np.ones(len(X))]) if intercept else X, y / 6
    precision = rows.T @ rows + 0.5 * np.eye(rows.shape[1])
    w = np.linalg.solve(precision, rows.T @ y)
    shape, scale = 3 + len(y) / 2, 0.1 + (y @ y - w @ precision @ w) / 2
    log_variance = stats.loggamma(shape)  # of 1 / s2, times the scale
    expected = np.append(np.log(36 * scale) - log_variance.mean(), 6 * w)
    np.testing.assert_allclose(fit.posterior_.mean, expected, atol=1e-5)
    covariance = fit.posterior_.covariance
    assert covariance[0, 0] == pytest.approx(log_variance.var(), rel=1e-5)
    np.testing.assert_allclose(
        covariance[1:, 1:],
        36 * scale / (shape - 1) * np.linalg.inv(precision),
        rtol=1e-4,
        atol=1e-8,
    )
    draws = fit.posterior_.sample(np.random.default_rng(0), 40_000)
    np.testing.assert_allclose(
        draws.mean(axis=0), expected, atol=5 * fit.posterior_.std.max() / 200
    )
    np.testing.assert_allclose(draws.std(axis=0), fit.posterior_.std, rtol=0.02)


@pytest.mark.slow
def test_one_release_reports_one_step_and_honest_intervals(data):
    X, y = data
    fit = once(3.0).fit(X, y)
    assert (
        fit.n_iter_ == 1 and fit.diagnostics_["noise_std"] > 0 and fit.privacy_spent_.epsilon <= 3
    )
    z = (fit.coef_ - [2, -1, 0]) / fit.posterior_samples_["coef"].std(axis=0)
    assert (np.abs(z) < 4).all() and fit.score(X, y) > 0.9
    again = once(3.0).fit(X, y)
    np.testing.assert_array_equal(again.posterior_.draws, fit.posterior_.draws)
    low, high = fit.predict_interval(X, level=0.8)
    assert np.mean((low < y) & (y < high)) == pytest.approx(0.8, abs=0.15)
    substituted = (
        once(3.0, adjacency="replace_one").fit(X, y).privacy_spent_.steps[0].noise_multiplier
    )
    assert substituted / fit.privacy_spent_.steps[0].noise_multiplier == pytest.approx(2, rel=0.01)


def test_the_posterior_of_one_release_follows_from_it_and_the_solver_key(
    data, compiled_as_users_do
):
    X, y = data
    with recorded() as kept:
        fit = once().fit(X, y)
    again, solver_keys = once(), fit_keys(0).solver
    plan = again.plan(len(y), 3)
    example = {"x": np.zeros(4, np.float32), "y": np.float32(0)}
    state = jax.device_get(
        inference.replay(kept[-1], solver_keys, plan.model, plan.solver, plan.spec, example)
    )
    again._adopt(plan, Outcome(state, draws_rng(solver_keys), None))
    np.testing.assert_array_equal(again.posterior_samples_["coef"], fit.posterior_samples_["coef"])


def test_the_noise_of_one_release_is_the_one_reported(data):
    X, y = (v[:100] for v in data)
    releases = []
    for seed in range(4):
        with recorded() as kept:
            fit = once(random_state=seed).fit(X, y)
        releases.append(np.asarray(kept[-1], np.float64)[0])
    scale = fit.privacy_spent_.noise_multiplier * fit.privacy_spent_.clipping_norm
    assert fit.diagnostics_["noise_std"] == pytest.approx(scale, rel=1e-5)
    ratio = np.square(releases - np.mean(releases, axis=0)).sum() / scale**2
    assert 1e-4 < stats.chi2(3 * len(releases[0])).cdf(ratio) < 1 - 1e-4


def test_null_rows_leave_one_release_what_it_was(data):
    X, y = (v.copy() for v in data)
    X[:40:2], y[1:40:2] = np.nan, np.inf
    fits = [once(np.inf).fit(*table).posterior_.mean for table in ((X, y), (X[40:], y[40:]))]
    np.testing.assert_allclose(*fits, atol=1e-5)


def releases_of(monkeypatch, X, y, **parameters):
    """First release of a fit with a fixed seed, in units of its noise."""
    kept, original = [], inference.run

    def run(*arguments, **options):
        state, releases = original(*arguments, **(options | {"keep_releases": True}))
        kept.append((np.asarray(releases), *arguments[1:3]))
        return state, releases

    with monkeypatch.context() as patch:
        patch.setattr(inference, "run", run)
        DPBayesianLinearRegression(1.0, bounds=BOUNDS, random_state=0, **parameters).fit(X, y)
    releases, model, solver = kept[0]
    if hasattr(solver, "n_records"):  # one release
        return releases[0] / solver.clipping_norm
    blocks = model.openings()[0].blocks  # logarithms of the response, and of each column
    d = X.shape[1]
    units = [blocks["response"], *[blocks["rows"]] * d]
    return releases[0][: d + 1] / [own.clipping_norm / own.share**0.5 for own in units]


@pytest.mark.parametrize("solver", solvers_of(DPBayesianLinearRegression))
def test_one_row_moves_a_release_by_no_more_than_its_bound(data, monkeypatch, solver):
    X, y = data[0][:500].copy(), data[1][:500].astype(object)
    X[3], y[3] = np.nan, np.nan
    without = releases_of(monkeypatch, X, y, solver=solver)
    for row, response in (([1e6, 0, 0], 0.0), ([1e300, 1, 1], 1.0), ([0.5, 0.5, -1], 1e300), ([0, 0, 0], "x"),
                          ([0.1, 0.2, 0.3], None), ([np.inf, 0, 0], 1.0), ([0.9, -0.9, 0.9], 2.0)):  # fmt: skip
        X[3], y[3] = row, response
        moved = np.linalg.norm(releases_of(monkeypatch, X, y, solver=solver) - without)
        assert moved <= 1 + 1e-4, (row, response)
    assert moved > 0.05  # the last one is an ordinary row


def test_bad_rows_raise_nothing_and_change_little(data):
    X, y = (v.copy() for v in data)
    X[:40:2], y[1:40:2] = np.nan, np.inf
    model = DPBayesianLinearRegression(np.inf, bounds=BOUNDS).fit(X, y)
    clean = DPBayesianLinearRegression(np.inf, bounds=BOUNDS).fit(X[40:], y[40:])
    np.testing.assert_allclose(model.coef_, clean.coef_, atol=2e-3)
    y[40:60] = 1e6  # half a percent of outliers
    model = DPBayesianLinearRegression(np.inf, bounds=BOUNDS).fit(X, y)
    np.testing.assert_allclose(model.coef_, clean.coef_, atol=0.05)


def test_columns_of_text_are_refused_by_their_dtype(data):
    X, y = data
    frame = pd.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 0, "yes", "no")})
    with pytest.raises(ValueError, match="'b'"):
        DPBayesianLinearRegression(1.0, bounds=BOUNDS).fit(frame, y)


def test_frames_lists_clones_and_pickles(data, fitted):
    X, y = data
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = DPBayesianLinearRegression(1.0, bounds=BOUNDS, random_state=0).fit(frame, pd.Series(y))
    np.testing.assert_array_equal(named.coef_, fitted.coef_)
    assert list(named.feature_names_in_) == ["a", "b", "c"]
    each = tuple(np.broadcast_to(end, 3).tolist() for end in BOUNDS[0])
    small = DPBayesianLinearRegression(1.0, bounds=(each, BOUNDS[1])).fit(
        X[:50].tolist(), y[:50].tolist()
    )
    assert small.predict(X[:2].tolist()).shape == (2,)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X[:3]), fitted.predict(X[:3]))
    with pytest.raises(NotFittedError):
        clone(fitted).predict(X)
    with pytest.raises(TypeError, match="dense"):
        from scipy import sparse

        fitted.predict(sparse.csr_array(X))


@pytest.mark.parametrize("solver", solvers_of(DPBayesianLinearRegression))
def test_a_response_of_text_is_refused_by_its_dtype(solver):
    with pytest.raises(ValueError, match="y holds text"):
        DPBayesianLinearRegression(bounds=((-1, 1), (-1, 1)), solver=solver).fit(
            np.zeros((3, 1)), np.array(["1", "2", "x"])
        )
