"""Linear regression: bounded scores that are still centred, with the slopes that the model says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped
from scipy import stats

from skdpbayes.models import linear
from skdpbayes.models.linear import LinearRegression

D = 3


def model(unit=2.0):
    normal = linear.normal_prior(0.5, 4.0, 1.0)
    return LinearRegression(
        D,
        np.float32(0.5),
        np.float32(4.0),
        np.float32(1.0),
        np.float32(unit),
        normal,
        linear.Huber.at(2),
    )


def params(w=(0.5, -1.0, 0.2), log_variance=-0.7):
    return {"u": jnp.float32(log_variance / 2.0), "w": jnp.asarray(w, jnp.float32)}


def draws(at, n=400_000, seed=0):
    """Rows, and responses of the model with these parameters."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D)).astype(np.float32)
    y = x @ np.asarray(at["w"]) + np.exp(float(at["u"])) * rng.normal(size=n)
    return {"x": x, "y": y.astype(np.float32)}


def summed(at, records, what="score"):
    out = mapped(lambda r: getattr(model(), what)(at, r))(records)
    return jax.tree.map(lambda v: np.asarray(v, np.float64).sum(axis=0), out)


def test_scores_are_centred_and_curvature_is_their_slope():
    truth, n = params(), 400_000
    records = draws(truth, n)
    at_truth = summed(truth, records)
    slope = summed(truth, records, "curvature")
    assert abs(at_truth["u"]) < 5 * np.sqrt(n) and (np.abs(at_truth["w"]) < 5 * np.sqrt(n)).all()
    for j in range(4):
        step = 0.05 * np.eye(4)[j]
        moved = {
            "u": truth["u"] + np.float32(step[0]),
            "w": truth["w"] + step[1:].astype(np.float32),
        }
        down = {
            "u": truth["u"] - np.float32(step[0]),
            "w": truth["w"] - step[1:].astype(np.float32),
        }
        change = [
            np.r_[s["u"], s["w"]] * np.r_[1, [np.exp(-float(at["u"]))] * D]
            for at, s in ((moved, summed(moved, records)), (down, summed(down, records)))
        ]
        factors = np.r_[1, [np.exp(-float(truth["u"]))] * D]
        expected = -(factors[:, None] * slope * factors)[:, j] * 0.1
        got = change[0] - change[1]
        scale = 0.1 * n * factors[j] * factors
        np.testing.assert_allclose(got / scale, expected / scale, atol=0.02)


def test_score_is_the_gradient_where_residuals_are_small():
    at, m = params(), model()
    record = {"x": jnp.asarray([0.3, -0.2, 0.4], jnp.float32), "y": jnp.float32(0.6)}
    gradient = jax.grad(m.log_likelihood)(at, record)
    score = m.score(at, record)["w"] * m.precondition(at)["w"]
    np.testing.assert_allclose(score, linear.Huber.at(2).weights * gradient["w"], rtol=1e-5)


def test_variance_of_the_scores_is_their_slope():
    truth, n, m = params(), 400_000, model()
    scores = mapped(lambda r: m.score(truth, r))(draws(truth, n))
    slope = summed(truth, draws(truth, n), "curvature") / n
    covariance = np.cov(np.c_[scores["u"], scores["w"]].T)
    np.testing.assert_allclose(covariance, slope, atol=0.01 * slope.max())


@pytest.mark.parametrize("y", [0.0, 1.0, -3.0, 1e30, -1e30])
def test_no_response_exceeds_the_bound(y):
    m, rng = model(), np.random.default_rng(0)
    for x in rng.normal(size=(20, D)).astype(np.float32):
        record = {"x": jnp.asarray(x), "y": jnp.float32(y)}
        score = m.score(params(), record)
        norm = float(jnp.hypot(score["u"], jnp.linalg.norm(score["w"])))
        bound = float(m.score_bound(params(), record))
        assert norm <= bound * (1 + 1e-5)
        assert abs(y) < 1e29 or norm > 0.9 * bound
        assert bound <= m.bounds(float(np.linalg.norm(x)))[0] * (1 + 1e-5)
        assert np.linalg.norm(m.curvature(params(), record)) <= m.bounds(float(np.linalg.norm(x)))[
            1
        ] * (1 + 1e-5)


def test_a_response_that_is_not_a_number_contributes_nothing():
    record = {"x": jnp.ones(D), "y": jnp.float32(np.nan)}
    m = model()
    assert float(m.score(params(), record)["u"]) == 0 and not np.any(m.score(params(), record)["w"])
    assert (
        not np.any(m.curvature(params(), record)) and float(m.log_likelihood(params(), record)) == 0
    )


def test_prior_is_normal_inverse_gamma():
    m, rng = model(), np.random.default_rng(0)

    def reference(at):
        variance = np.exp(2 * float(at["u"]))
        prior = stats.norm(0, np.sqrt(variance / 0.5)).logpdf(np.asarray(at["w"])).sum()
        return (
            prior + stats.invgamma(4.0, scale=1.0).logpdf(variance) + np.log(variance)
        )  # the Jacobian of the log

    points = [params(rng.normal(size=D), rng.normal()) for _ in range(5)]
    ours = np.array([float(m.log_prior(p)) for p in points])
    np.testing.assert_allclose(
        np.diff(ours), np.diff([reference(p) for p in points]), rtol=1e-4, atol=1e-4
    )


def test_normal_prior_has_the_quantiles_of_the_prior():
    variance = stats.invgamma(4.0, scale=1.0).rvs(400_000, random_state=0)
    weight = np.random.default_rng(0).normal(size=400_000) * np.sqrt(variance / 0.5)
    centre, spread, weight_std = linear.normal_prior(0.5, 4.0, 1.0)
    tails = [0.05, 0.95]
    np.testing.assert_allclose(
        stats.norm(centre, spread).ppf(tails), np.quantile(np.log(variance), tails), atol=0.01
    )
    np.testing.assert_allclose(
        stats.norm(0, weight_std).ppf(tails), np.quantile(weight, tails), atol=0.01
    )


def test_scores_at_the_working_point_are_centred_though_the_weights_are_not_known():
    at, m, n = params(), model(), 400_000
    records = draws(at, n, seed=1)
    covariance = np.diag([0, 0.3, 0.1, 0.2])
    curvature = summed(at, records, "curvature")
    point, slopes, doubt = m.working_point(
        jnp.asarray([at["u"], *at["w"]]), jnp.asarray(curvature), covariance
    )
    rng = np.random.default_rng(2)
    w = np.asarray(at["w"]) + np.sqrt(np.diag(covariance)[1:]) * rng.normal(size=(n, D))
    y = (records["x"] * w).sum(axis=1) + np.exp(float(at["u"])) * rng.normal(
        size=n
    )  # new weights for each row
    asked = {"u": jnp.float32(point[0]), "w": jnp.asarray(point[1:], jnp.float32)}
    score = summed(asked, {"x": records["x"], "y": y.astype(np.float32)})
    naive = summed(at, {"x": records["x"], "y": y.astype(np.float32)})
    assert abs(score["u"]) < 0.1 * abs(naive["u"])
    seen = np.exp(2 * float(at["u"])) + 0.6
    np.testing.assert_allclose(
        slopes, [np.exp(2 * float(at["u"])) / seen, *[seen**-0.5] * D], rtol=0.02
    )
    assert doubt[0] > 0 and not np.any(doubt[1:])


@pytest.mark.parametrize("moved", [-2.0, -0.7, 0.4])
def test_mean_slopes_are_those_of_scores_far_from_the_optimum(moved):
    """Of a variance that was far too large; where it was too small scores are nearly linear."""
    truth = params()
    records = draws(truth)
    at = truth | {"u": truth["u"] - moved / 2.0}
    flat, point = (jnp.asarray([p["u"], *p["w"]]) for p in (truth, at))
    slopes = model().mean_slopes(flat, point[None])[0]
    curvature = summed(at, records, "curvature")[0, 0]
    score = summed(at, records)["u"]
    assert score / (curvature * moved / 2.0) == pytest.approx(float(slopes[0]), abs=0.08)
    assert abs(slopes[0] - 1) > 0.1 or moved > 0
    np.testing.assert_array_equal(slopes[1:], 1)


@pytest.mark.parametrize("cut", [2.0, 4.0])
def test_constants_are_those_of_the_normal_distribution(cut):
    z = np.random.default_rng(0).normal(size=2_000_000)
    own, inside = linear.Huber.at(cut), np.abs(z) < cut
    assert own.inside == pytest.approx(inside.mean(), abs=1e-3)
    assert own.square_inside == pytest.approx((z**2 * inside).mean(), abs=2e-3)
    assert own.mean_square == pytest.approx(np.minimum(z**2, cut**2).mean(), abs=2e-3)
