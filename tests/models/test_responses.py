"""Clipped scores have mean zero whatever the covariates, and the slope that the model expects."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro import handlers

from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.models.base import flat_start, unbiased_weight, weighted_score
from skdpbayes.models.numpyro.laws import has_points, is_censored, points
from skdpbayes.models.numpyro.program import Program
from skdpbayes.models.numpyro.reading import read_model
from skdpbayes.models.responses import fair_score, typical_length

FIELDS = ("x", (2,), "float32"), ("y", (), "float32")
RECORD = {"x": jnp.array([0.4, -0.8])}
NORM = jnp.float32(0.7)
N = 40_000


def poisson(eta, scale):
    return dist.Poisson(jnp.exp(eta - 1))


def many_counts(eta, scale):
    return dist.NegativeBinomial2(jnp.exp(eta + 5), 3 / scale)


def positive(eta, scale):
    return dist.Gamma(2 / scale, jnp.exp(eta))


def tails(eta, scale):
    return dist.StudentT(3.0, eta, scale)


def exponential(eta, scale):
    return dist.Exponential(scale * jnp.exp(eta))


def model_of(law):
    """Regression with an intercept and a scale; `limit` ends what is seen of a response."""

    def function(x, y=None, limit=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        a = numpyro.sample("a", dist.Normal(0, 1))
        s = numpyro.sample("s", dist.HalfNormal(1.0))
        own = law(a + x @ w, s)
        if limit is not None:
            own = dist.RightCensoredDistribution(own, limit <= y)
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", own, obs=y)

    return function


def read(law, *more):
    return read_model(Program(model_of(law), (*FIELDS, *more)), {})[0]


def drawn(law, model, params, n=N):
    """Responses of one record."""
    values = model.values(params)
    eta = values["a"] + RECORD["x"] @ values["w"]
    return np.asarray(law(eta, values["s"]).sample(jax.random.key(0), (n,)), np.float32)


def somewhere(model):
    flat, unravel = flat_start(model)
    return unravel(jnp.asarray(np.random.default_rng(3).normal(size=flat.size) / 2, jnp.float32))


@pytest.mark.parametrize(
    "law",
    [
        dist.Normal(1000.0, 0.1),
        dist.StudentT(3.0, -2.0, 0.5),
        dist.Gamma(0.7, 3.0),
        dist.LogNormal(1.0, 0.5),
        dist.Beta(2.0, 5.0),
        dist.Poisson(0.05),
        dist.Poisson(300.0),
        dist.NegativeBinomial2(40.0, 2.0),
        dist.ZeroInflatedPoisson(0.3, 4.0),
    ],
    ids=lambda law: type(law).__name__,
)
def test_points_have_the_moments_of_their_law(law):
    assert has_points(law.expand([1]))
    y, shares = (np.asarray(x, float) for x in points(law.expand([1])))
    sd = float(law.variance) ** 0.5
    assert abs(shares.sum() - 1) < 1e-5
    off = y - float(law.mean)
    assert abs(shares @ off) < 0.01 * sd
    if not isinstance(law, dist.StudentT):
        assert abs(shares @ off**2 / sd**2 - 1) < 0.03


@pytest.mark.parametrize(
    "law",
    [
        dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)),
        dist.RightCensoredDistribution(dist.Exponential(1.0), jnp.array([True])),
        dist.Unit(jnp.zeros(1)),
        dist.Dirichlet(jnp.ones(3)),
    ],
    ids=lambda law: type(law).__name__,
)
def test_laws_that_are_not_of_one_number_have_no_points(law):
    assert not has_points(law)


@pytest.mark.parametrize("law", [poisson, many_counts, positive, tails])
def test_a_clipped_score_has_mean_zero_and_its_declared_slope_and_covariance(law):
    model = read(law)
    assert model.one_response and model.program.unbiased
    params, unravel = somewhere(model), ravel_pytree(model.init())[1]
    flat = ravel_pytree(params)[0]
    y = drawn(law, model, params)

    @jax.jit
    @jax.vmap
    def fair(y):
        own = fair_score(model, params, RECORD | {"y": y}, NORM)
        plain = ravel_pytree(jax.grad(model.log_likelihood)(params, RECORD | {"y": y}))[0]
        return own, plain

    own, plain = fair(y)
    scores, plain = np.asarray(own.score), np.asarray(plain)
    assert np.linalg.norm(scores, axis=1).max() <= NORM * (1 + 1e-4)
    error = np.linalg.norm(scores.std(axis=0)) / N**0.5
    assert np.linalg.norm(scores.mean(axis=0)) < 4 * error
    # Clipped by its own norm it would not: the check can fail.
    clipped = plain * np.minimum(1, NORM / np.linalg.norm(plain, axis=1))[:, None]
    assert np.linalg.norm(clipped.mean(axis=0)) > 10 * error
    # The expected slope is E[score (log density)'], by the law that the responses come from.
    slope = scores.T @ plain / N
    expected = own.curvature
    if isinstance(expected, Quadratic):  # the law has one number
        expected = expected.weight * jax.vmap(jnp.outer)(expected.vector, expected.vector)
    expected = np.asarray(expected[0])
    assert np.linalg.norm(slope - expected) < 0.03 * np.linalg.norm(expected)
    ratio = np.trace(np.cov(scores.T)) / np.trace(expected)
    np.testing.assert_allclose(own.ratio[0], ratio, rtol=0.03)
    lengths = np.linalg.norm(plain, axis=1)
    record = RECORD | {"y": y[0]}
    if law is not tails:
        typical = typical_length(model.response(params, record))
        np.testing.assert_allclose(typical, np.sqrt((lengths**2).mean()), rtol=0.03)
    assert model.score_scale(unravel(jnp.zeros_like(flat))) == 1


def test_the_curvature_of_few_values_is_their_fisher_information():
    """With linear logits it is the negative Hessian."""

    def logistic(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.BernoulliLogits(x @ w), obs=y)

    def ordered(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.OrderedLogistic(x @ w, jnp.array([-1.0, 0.5])), obs=y)

    fields, record = (FIELDS[0], ("y", (), "int32")), RECORD | {"y": jnp.int32(1)}
    model = read_model(Program(logistic, fields), {})[0]
    params = {"w": jnp.array([0.5, -1.0])}
    own = model.curvature(params, record)
    assert isinstance(own, Quadratic)  # never formed
    hessian = jax.hessian(model.log_likelihood)(params, record)["w"]["w"]
    np.testing.assert_allclose(own.weight * jnp.outer(own.vector, own.vector), -hessian, rtol=1e-4)
    model = read_model(Program(ordered, fields), {})[0]
    records = [RECORD | {"y": jnp.int32(y)} for y in range(3)]
    scores = [jax.grad(model.log_likelihood)(params, record)["w"] for record in records]
    shares = [jnp.exp(model.log_likelihood(params, record)) for record in records]
    expected = sum(p * jnp.outer(v, v) for p, v in zip(shares, scores, strict=True))
    np.testing.assert_allclose(model.curvature(params, record), expected, rtol=1e-3, atol=1e-6)


def test_the_scale_of_scores_follows_the_parameters():
    """Scores of a normal law are as long as its scale is short."""
    model = read(lambda eta, scale: dist.Normal(eta, scale))
    here, there = model.init(), model.init() | {"s": jnp.float32(-1.0)}
    ratio = model.values(here)["s"] / model.values(there)["s"]
    assert 0.6 * ratio < model.score_scale(there) < 1.1 * ratio and ratio > 2


def test_a_score_that_is_not_clipped_is_the_likelihoods():
    model, record = read(tails), RECORD | {"y": jnp.float32(0.3)}
    params = somewhere(model)
    own, weight = weighted_score(model, params, record, jnp.float32(1e3))
    score = jax.grad(model.log_likelihood)(params, record)
    assert weight == 1
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), own, score)


def test_a_censored_response_has_a_bounded_score_of_mean_zero():
    """Whenever records stop being seen, on which the bound does not depend."""
    limit = ("limit", (), "float32")
    model = read(exponential, limit)
    assert model.program.censored and not model.one_response and model.program.unbiased
    params = somewhere(model)
    ends = np.random.default_rng(0).exponential(2.0, N).astype(np.float32)
    seen = np.minimum(drawn(exponential, model, params), ends)

    @jax.jit
    @jax.vmap
    def one(y, limit):
        record = RECORD | {"y": y, "limit": limit}
        score = ravel_pytree(jax.grad(model.log_likelihood)(params, record))[0]
        weight = unbiased_weight(model, params, record, NORM)
        return score, weight, model.score_bound(params, record)

    score, weight, bound = (np.asarray(x, float) for x in one(seen, ends))
    assert np.ptp(weight) < 1e-6 and np.ptp(bound) < 1e-5
    assert np.linalg.norm(score, axis=1).max() <= bound[0] * 1.05
    assert (np.abs(score.mean(axis=0)) < 4 * score.std(axis=0) / N**0.5).all()
    with handlers.seed(rng_seed=0):
        assert is_censored(dist.RightCensoredDistribution(dist.Exponential(jnp.ones(1)), True))
