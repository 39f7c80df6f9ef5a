"""Logistic regression by vips: exact without noise, honest with it, and a function of its releases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.base import clone
from variational import variational_optimum
from whitebox import recorded

from benchmarks.vips_coverage import coverage
from skdpbayes import DPBayesianLogisticRegression, inference
from skdpbayes.mechanism import keys as random
from skdpbayes.mechanism.contributions import contribution_norm
from skdpbayes.models.denoising import kept, shrunk_products
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.privacy import compose

NORM = 3**0.5


def problem(seed=0, n=2000):
    """Rows that are not normal, some of them missing their label."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [rng.exponential(0.3, n).clip(0, 1), rng.random(n) < 0.2, rng.uniform(-1, 1, n)]
    )
    y = (rng.random(n) < expit(X @ [2.0, -1.5, 1.0] - 0.3)).astype(int)
    return X, y


def fit(X, y, epsilon=1.0, **parameters):
    how = {"classes": [0, 1], "data_norm": NORM, "solver": "vips", "random_state": 0}
    how["intercept_scale"] = parameters.get("prior_scale", 1.0)  # as the references' prior
    return DPBayesianLogisticRegression(epsilon, **(how | parameters)).fit(X, y)


def exact(X, y, prior_scale=1.0):
    Z, mode = np.c_[X, np.ones(len(X))], np.zeros(X.shape[1] + 1)
    for _ in range(30):
        p = expit(Z @ mode)
        precision = (Z * (p * (1 - p))[:, None]).T @ Z + np.eye(len(mode)) / prior_scale**2
        mode += np.linalg.solve(precision, Z.T @ (y - p) - mode / prior_scale**2)
    return mode, np.diag(np.linalg.inv(precision)) ** 0.5


def assert_variational(found, X, y, tolerance):
    """The rows are not normal, which shows in the last digits."""
    mean, covariance = variational_optimum(np.c_[X, np.ones(len(X))], y, mean_field=False)
    std = np.diag(covariance) ** 0.5
    np.testing.assert_allclose((found.mean - mean) / std, 0, atol=tolerance)
    np.testing.assert_allclose(found.std, std, rtol=0.01)


def test_without_noise_it_is_variational_bayes(compiled_quickly):
    X, y = problem()
    assert_variational(fit(X, y, np.inf).posterior_, X, y, 0.015)
    mode, std = exact(X, y)
    assert (
        np.abs((variational_optimum(np.c_[X, np.ones(2000)], y, False)[0] - mode) / std).max()
        > 0.03
    )


def test_without_noise_null_rows_count_for_nothing(compiled_quickly):
    X, y = problem(n=600)
    labels = np.where(np.arange(600) % 2, y, 7)
    assert_variational(fit(X, labels, np.inf).posterior_, X[1::2], y[1::2], 0.03)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The guarantee is void")  # hardly any noise is wanted here
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_null_rows_do_not_narrow_the_posterior(share, compiled_quickly):
    """Also where the mean weight of a row has to be told from the releases."""
    X, y = problem(n=20_000)
    labels = np.where(np.random.default_rng(6).random(20_000) < share, 7, y)
    known = labels < 7
    ratio = fit(X, labels, 1e4).posterior_.std / exact(X[known], y[known])[1]
    assert (0.95 < ratio).all()
    assert (ratio < 1.15).all()


@pytest.mark.parametrize("entries", [10, 1000, 100_000, 500_000])
@pytest.mark.parametrize("size", [0.9, 1.0, 1.3, 3.0])
def test_the_share_kept_is_that_of_a_cut_gamma_distribution(entries, size):
    with jax.enable_x64(True):
        share, left = (float(x) for x in kept(jnp.float64(size * entries), entries, jnp.float64(1)))
    # 1 - lost has an integral that is elementary to quadrature in log lost, finely about its peak
    t = np.linspace(-40, 0, 4_000_001)
    log = entries / 2 * t - size * entries / 2 * np.exp(t)
    mass = np.exp(log - log.max())
    lost = mass @ np.exp(t) / mass.sum()
    assert share == pytest.approx(1 - lost, rel=0.05, abs=1e-5)
    assert 0 < left <= 1


@pytest.mark.slow
def test_without_noise_several_classes_are_fitted_jointly(compiled_quickly):
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (3000, 2))
    W = np.array([[1.5, 0.0, 0.0], [0.0, 1.5, 0.5], [-1.0, -1.0, 0.0]])
    Z = np.c_[X, np.ones(3000)]
    y = (softmax(Z @ W.T, axis=1).cumsum(axis=1) < rng.random((3000, 1))).sum(axis=1)
    model = fit(X, y, np.inf, classes=[0, 1, 2])
    mean = model.posterior_.mean.reshape(3, 3)
    score = (np.eye(3)[y] - softmax(Z @ mean.T, axis=1)).T @ Z - mean
    step = np.linalg.solve(np.linalg.inv(model.posterior_.covariance), score.ravel())
    assert (np.abs(step) < 0.03 * model.posterior_.std).all()


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "n"), [(0.3, 3_000), (1.0, 1_000)])
def test_intervals_cover_the_truth_because_the_noise_is_in_them(epsilon, n):
    found = coverage("vips", epsilon, "uniform", n, 3, 300)
    assert 0.92 < found["covered"].mean() < 0.98
    assert found["covered"].min() > 0.89
    assert found["naive"].mean() < 0.9


@pytest.mark.slow  # the audit of this solver replays a fit too
def test_fitted_attributes_follow_from_the_releases(compiled_as_users_do):
    X, y = problem(n=300)
    with recorded() as kept:
        estimator = fit(X, y, random_state=5)
    plan = estimator.plan(300, 3)
    model, solver, spec = plan.model, plan.solver, plan.spec
    keys = random.fit_keys(5)
    example = {"x": jnp.zeros(4, jnp.float32), "y": jnp.int32(0)}
    replayed = jax.device_get(inference.replay(kept[-1], keys.solver, model, solver, spec, example))
    again = solver.posterior(model, replayed)
    np.testing.assert_array_equal(again.mean, estimator.posterior_.mean)
    np.testing.assert_array_equal(again.factor, estimator.posterior_.factor)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_response_less_fitted_is_the_score(n_classes):
    rng = np.random.default_rng(2)
    model = LogisticRegression(3, n_classes, np.ones(3, np.float32))
    params = jnp.asarray(rng.normal(size=(model.n_rows, 3)))
    for label in (*range(n_classes), -1, n_classes):
        record = {"x": jnp.asarray(rng.normal(size=3)), "y": jnp.int32(label)}
        parts = [
            jnp.outer(part.left, part.right)
            for part in (model.response(record), model.fitted(params, record))
        ]
        score = model.score(params, record)
        np.testing.assert_allclose(
            parts[0] - parts[1], jnp.outer(score.left, score.right), atol=1e-6
        )
        assert label in range(n_classes) or not np.any(parts)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_mean_of_the_fitted_over_normal_rows(n_classes):
    rng = np.random.default_rng(3)
    model = LogisticRegression(3, n_classes, np.ones(3, np.float32))
    params, mean, root = (
        rng.normal(size=(model.n_rows, 3)),
        rng.normal(size=3),
        rng.normal(size=(3, 3)),
    )
    params *= 1.0 if n_classes == 2 else 0.3
    rows = mean + rng.standard_normal((400_000, 3)) @ root.T
    p = expit(rows @ params.T) if n_classes == 2 else softmax(rows @ params.T, axis=1)
    wanted = (p - 1 / n_classes).T @ rows / len(rows)
    with jax.enable_x64(True):
        found = model.mean_fitted(
            jnp.asarray(params), jnp.asarray(mean), jnp.asarray(root @ root.T)
        )
    np.testing.assert_allclose(found, wanted, atol=0.02)


@pytest.mark.parametrize("n_classes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_mean_of_the_fitted_over_normal_rows_and_parameters(n_classes):
    rng = np.random.default_rng(7)
    model = LogisticRegression(3, n_classes, np.ones(3, np.float32))
    size = model.n_rows * 3
    params, mean, root = (
        rng.normal(size=(model.n_rows, 3)),
        np.array([0.3, -0.2, 1.0]),
        np.diag([1.0, 0.7, 0.0]),
    )
    doubt = 0.1 * np.eye(size) + 0.05
    rows = mean + rng.standard_normal((1_000_000, 3)) @ root
    of_rows = params.ravel() + rng.standard_normal((len(rows), size)) @ np.linalg.cholesky(doubt).T
    logits = np.einsum("nia,na->ni", of_rows.reshape(-1, model.n_rows, 3), rows)
    p = expit(logits) if n_classes == 2 else softmax(logits, axis=1)
    wanted = (p - 1 / n_classes).T @ rows / len(rows)
    shape = (model.n_rows, 3) * 2
    with jax.enable_x64(True):
        given = (jnp.asarray(x) for x in (params, mean, root**2, doubt.reshape(shape)))
        found = np.asarray(model.with_doubt(*given))
        plain = np.asarray(
            model.mean_fitted(jnp.asarray(params), jnp.asarray(mean), jnp.asarray(root**2))
        )
    assert np.abs(found - wanted).max() < 0.3 * np.abs(plain - wanted).max()


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["vips", "na-dpvi"])
def test_a_student_t_prior_shrinks_large_coefficients_less(solver, compiled_quickly):
    rng = np.random.default_rng(8)
    X = rng.uniform(-1, 1, (3000, 3))
    y = (rng.random(3000) < expit(X @ [3.0, 0.0, 0.0])).astype(int)
    how = {"solver": solver, "prior_scale": 0.2}
    normal, student = (fit(X, y, 1.0, prior_df=df, **how) for df in (1e6, 4.0))
    assert normal.coef_[0, 0] < 0.85 * student.coef_[0, 0]
    assert abs(student.coef_[0, 0] - 3) < 0.8
    assert np.abs(student.coef_[0, 1:]).max() < 0.5
    assert student.privacy_spent_.steps == normal.privacy_spent_.steps


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["vips", "na-dpvi"])
def test_without_noise_a_student_t_prior_is_that_of_variational_bayes(solver, compiled_quickly):
    """Few rows, so that the prior matters: the mean is the mode under the precisions that the posterior expects."""
    rng = np.random.default_rng(9)
    X = rng.uniform(-1.2, 1.2, (150, 2))
    y = (rng.random(150) < expit(X @ [2.0, 0.3])).astype(int)
    df, scale = 4.0, 0.3
    found = fit(X, y, np.inf, solver=solver, prior_df=df, prior_scale=scale, fit_intercept=False)
    mean, covariance = found.coef_[0], found.posterior_.covariance
    precisions = (df + 1) / (df + (mean**2 + np.diag(covariance)) / scale**2) / scale**2
    if solver == "vips":  # averages over the posterior
        draws = np.random.default_rng(0).multivariate_normal(mean, covariance, 20_000)
        gradient = ((y[:, None] - expit(X @ draws.T)).mean(axis=1)) @ X - precisions * mean
    else:
        gradient = (y - expit(X @ mean)) @ X - precisions * mean
    assert (
        np.abs(np.linalg.solve(np.linalg.inv(covariance), gradient) / found.posterior_.std).max()
        < 0.05
    )
    if solver == "na-dpvi":
        p = expit(X @ mean)
        np.testing.assert_allclose(
            np.linalg.inv(covariance),
            (X.T * p * (1 - p)) @ X + np.diag(precisions),
            rtol=0.05,
            atol=0.5,
        )


BAD_PRIORS = [
    ({"prior_df": 2.0}, r"prior_df must be a number in \[3"),
    ({"prior_df": "t"}, "prior_df must be"),
    ({"prior_df": 4.0, "solver": "dpvi"}, "needs solver='na-dpvi' or 'vips'"),
    ({"prior_df": 4.0, "solver": "sgld"}, "needs solver='na-dpvi' or 'vips'"),
]


@pytest.mark.parametrize(("parameters", "message"), BAD_PRIORS)
def test_priors_that_are_none_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        fit(*problem(n=100), **parameters)


def test_products_are_cleared_of_noise():
    rng = np.random.default_rng(4)
    n, d, sd = 2000, 12, 150.0
    X = np.c_[rng.normal(size=(n, d)) * 0.5 + 0.3, np.ones(n)]
    true, errors, lefts, seen = X.T @ X, [], [], []
    for _ in range(20):
        noise = sd * rng.normal(size=(d + 1, d + 1))
        noisy = true + (noise + noise.T) / 2
        with jax.enable_x64(True):
            cleared, left = shrunk_products(
                jnp.asarray(noisy), jnp.float64(sd**2 / 2), jnp.float64(n), intercept=True
            )
        cleared, left = np.asarray(cleared), float(left)
        assert np.linalg.eigvalsh(cleared).min() > 0
        np.testing.assert_allclose(cleared, cleared.T, rtol=1e-12)
        off = np.tri(d, k=-1, dtype=bool)
        errors.append(np.mean((cleared - true)[:d, :d] ** 2))
        lefts.append([left, np.mean((cleared - true)[:d, :d][off] ** 2)])
        seen.append(np.mean((noisy - true)[:d, :d] ** 2))
    said, seen_off = np.mean(lefts, axis=0)
    assert 0.6 < said / seen_off < 2
    assert np.mean(errors) < 0.3 * np.mean(seen)
    with jax.enable_x64(True):
        same, left = shrunk_products(
            jnp.asarray(true), jnp.float64(0), jnp.float64(n), intercept=True
        )
    same, left = np.asarray(same), float(left)
    np.testing.assert_allclose(same, true, rtol=1e-6)
    assert left == 0


def test_a_weight_looks_at_the_length_of_a_row_alone():
    """Released sums of one long row: its weight is that of its length, whatever its label."""
    estimator = DPBayesianLogisticRegression(
        0.5, classes=[0, 1], solver="vips", data_norm=2.0, fit_intercept=False
    )
    plan = estimator.plan(10, 2)
    model, solver, spec = plan.model, plan.solver, plan.spec
    with jax.enable_x64(True):
        first, later = solver.rounds(model, spec.traced())
        state = solver.init(model, None)
        for length, weight in ((2.0, 0.7), (1.5, 1.4 / 1.5), (1.4, 1.0), (0.1, 1.0)):
            for label in (0, 1):
                record = {"x": jnp.array([0.0, length], jnp.float32), "y": jnp.int32(label)}
                out = first.query(state, ())(record)
                assert out["products"].weight[0, 0] == pytest.approx(weight, rel=1e-6)
                np.testing.assert_allclose(out["weight"], [weight, weight**2], rtol=1e-6)
                assert out["response"].left[0] == pytest.approx(weight * (label - 0.5), rel=1e-6)
                out = later.query(state, jnp.array([[0.0, 3.0]], jnp.float32))(record)
                slope = weight * expit(3 * length) * expit(-3 * length)
                assert out["curvature"].weight[0, 0] == pytest.approx(slope, rel=1e-4)
                assert out["fitted"].left[0] == pytest.approx(
                    weight * (expit(3 * length) - 0.5), rel=1e-5
                )


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("n_steps", [1, 2, 11])
def test_what_runs_is_what_is_charged_and_no_more(adjacency, n_steps):
    estimator = DPBayesianLogisticRegression(
        0.7, classes=[0, 1], solver="vips", adjacency=adjacency, n_steps=n_steps, data_norm=NORM
    )
    spec = estimator.plan(100, 3).spec
    assert spec.n_steps == n_steps
    assert 0.69 < compose(spec.composed(), adjacency).epsilon(1e-5) <= 0.7


def test_a_row_that_is_not_finite_is_a_null_row():
    rows = [[np.nan, 1.0], [np.inf, 0.0], [0.5, 0.5]]
    estimator = DPBayesianLogisticRegression(classes=[0, 1], solver="vips", data_norm=1.0)
    packed = estimator._reader().read(estimator, np.array(rows), np.array([1, 0, 1])).pack()
    assert packed.fields["y"][:3].tolist() == [-1, -1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_one_column_and_extreme_scales(fit_intercept, compiled_quickly):
    X, y = np.linspace(-1, 1, 200)[:, None], np.arange(200) % 2
    for scale, prior in ((1.0, 1.0), (1e4, 1e6)):
        fitted = fit(scale * X, y, fit_intercept=fit_intercept, data_norm=scale, prior_scale=prior)
        assert np.isfinite(fitted.posterior_.mean).all()
        assert np.isfinite(fitted.posterior_.std).all()


@pytest.mark.slow
def test_units_of_columns_do_not_matter(compiled_quickly):
    X, y = problem(n=20_000)
    usual, small = (
        fit(X * c, y, data_norm=NORM * c, prior_scale=1 / c, fit_intercept=False)
        for c in (1.0, 0.01)
    )
    np.testing.assert_allclose(small.coef_ / 100, usual.coef_, rtol=1e-3)
    assert np.abs(small.coef_).max() > 100


@pytest.mark.parametrize("solver", ["vips", "na-dpvi"])
def test_before_any_release_the_posterior_is_the_prior(solver):
    estimator = DPBayesianLogisticRegression(
        classes=[0, 1], solver=solver, prior_df=4.0, prior_scale=2.0, data_norm=NORM
    )
    model = estimator.plan(100, 3).model
    assert getattr(model, "model", model).prior_scale.tolist() == [2, 2, 2, 2.5]
    wide = clone(estimator).set_params(prior_scale=4.0).plan(100, 3).model
    assert getattr(wide, "model", wide).prior_scale.tolist() == [4, 4, 4, 4]
    estimator.set_params(intercept_scale=2.0)
    plan = estimator.plan(100, 3)
    with jax.enable_x64(True):
        state = plan.solver.init(plan.model, None)
        variance = (
            state.solver.covariance
            if solver == "na-dpvi"
            else jnp.linalg.inv(state.given.precision)
        )
        np.testing.assert_allclose(np.diag(variance), 4, rtol=1e-6)


@pytest.mark.slow
def test_where_the_fitted_are_asked_is_a_draw_of_the_posterior_and_without_noise_its_mean():
    X, y = problem(n=500)
    estimator = fit(X, y)
    plan = estimator.plan(500, 3)
    model, solver = plan.model, plan.solver
    with jax.enable_x64(True):
        mechanism = jax.tree.map(jnp.asarray, plan.spec.traced())
        ask = jax.jit(jax.vmap(solver.rounds(model, mechanism)[1].point, (None, 0)))
        state = solver.init(model, None)
        points = ask(state, jax.random.split(jax.random.key(0), 4000))
        mean, covariance = np.asarray(state.given.mean), np.linalg.inv(state.given.precision)
        centred = np.asarray(points) - mean
        still = np.asarray(
            ask(
                state._replace(response_variance=jnp.zeros(())),
                jax.random.split(jax.random.key(0), 2),
            )
        )
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(centred.mean(axis=0) / sd, 0, atol=0.06)
    np.testing.assert_allclose(
        np.cov(centred.T) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.08
    )
    np.testing.assert_array_equal(still, [mean, mean])


def test_what_it_cannot_do_is_refused():
    X, y = problem(n=100)
    for name, value in (("clipping_norm", 1.0), ("sampling_rate", 0.5), ("learning_rate", 0.1)):
        with pytest.raises(ValueError, match=f"{name}={value} needs another solver"):
            fit(X, y, **{name: value})
    with pytest.raises(ValueError, match="add_remove' keeps private"):
        fit(X, y, adjacency="add_remove")
    with pytest.raises(ValueError, match="n_steps=17 is too many"):
        fit(X, y, n_steps=17)
    with pytest.raises(ValueError, match="1002, and takes at most"):
        fit(np.zeros((5, 1001)), [0, 1, 0, 1, 0])


def test_one_release_is_enough_where_rows_are_normal(compiled_quickly):
    rng = np.random.default_rng(5)
    X = 0.5 * rng.standard_normal((20_000, 3))
    y = (rng.random(20_000) < expit(X @ [2.0, -1.0, 0.0])).astype(int)
    model = fit(X, y, np.inf, n_steps=1, data_norm=10.0)
    mode, std = exact(X, y)
    assert model.n_iter_ == 1
    assert (np.abs(model.posterior_.mean - mode) < 0.5 * std).all()


def test_long_rows_weigh_less_and_are_not_clipped():
    """All statistics of a row of any length stay within their norms; weights ignore the label."""
    estimator = DPBayesianLogisticRegression(1.0, classes=[0, 1], solver="vips", data_norm=NORM)
    plan = estimator.plan(1000, 3)
    first, again = plan.solver.rounds(plan.model, plan.spec.traced())
    norms = first.blocks(None) | again.blocks(None)
    direction, theta = np.array([0.6, 0, 0.8, 0], np.float32), jnp.zeros(4, jnp.float32)
    for length in (0.1, 0.7, 1.0, 2.0, 30.0):
        found = []
        for label in (0, 1):
            x = direction * np.float32(length * plan.solver.row_norm)
            record = {"x": jnp.asarray(x), "y": jnp.int32(label)}
            found.append(first.query(None, None)(record) | again.query(None, theta)(record))
            for name, part in found[-1].items():
                assert contribution_norm(part) <= norms[name].clipping_norm, (name, length)
        weight = min(1, 0.7 / length) * min(1, 1 / length)
        for own in found:
            np.testing.assert_allclose(own["weight"], [weight, weight**2], rtol=1e-5)
