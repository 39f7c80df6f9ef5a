"""Exponential families: closed forms against autodiff and scipy, bounds against dense grids of records."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped
from scipy import special, stats

from skdpbayes import inference
from skdpbayes.intake.packing import pack_records
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.mechanism.spec import Block, MechanismSpec
from skdpbayes.models.base import flat_start
from skdpbayes.models.families import BetaBernoulli, DirichletCategorical, GammaExponential
from skdpbayes.privacy import GaussianSteps
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import Round

f32 = np.float32
UPPER = 1.5
ALPHA = np.array([0.5, 1, 3], f32)
MODELS = {
    "gamma": GammaExponential(2, f32(2), f32(3), f32(UPPER)),
    "beta": BetaBernoulli(2, f32(2), f32(5)),
    "dirichlet": DirichletCategorical(ALPHA),
}
# Every kind of valid record.
RECORDS = {
    "gamma": np.array(
        list(itertools.product([*np.linspace(0, UPPER, 31), -1, 2 * UPPER, np.inf], repeat=2)), f32
    ),
    "beta": np.array(list(itertools.product([0, 0.3, 0.7, 1, -9, 9, np.inf], repeat=2)), f32),
    "dirichlet": np.arange(3, dtype=np.int32),
}
NULL = {
    "gamma": np.array([[np.nan, 1], [1, np.nan], [np.nan, np.nan]], f32),
    "beta": np.array([[np.nan, 1], [0, np.nan], [np.nan, np.nan]], f32),
    "dirichlet": np.array([-1, 3, 99, -(2**31), 2**31 - 1], np.int32),
}
PARAMS = np.vstack(
    [np.random.default_rng(0).normal(size=(20, 2)), [[-20, -20], [3, -20], [8, 8]]]
).astype(f32)

families = pytest.mark.parametrize("name", MODELS)


def every_pair(function, xs, params=PARAMS):
    """``function(params, record)`` for all parameters and records, as float64."""
    both = jax.vmap(jax.vmap(lambda p, x: function(p, {"x": x}), (None, 0)), (0, None))
    return np.asarray(jax.jit(both)(params, xs), np.float64)


def norms(values, axes=1):
    return np.linalg.norm(values.reshape(*values.shape[:-axes], -1), axis=-1)


@families
def test_score_and_curvature_are_derivatives_of_the_likelihood(name):
    model, xs, params = MODELS[name], RECORDS[name], PARAMS[:20]
    gradient, hessian = jax.grad(model.log_likelihood), jax.hessian(model.log_likelihood)
    scores, curvatures = (
        every_pair(model.score, xs, params),
        every_pair(model.curvature, xs, params),
    )
    np.testing.assert_allclose(scores, every_pair(gradient, xs, params), atol=2e-5, rtol=1e-5)
    np.testing.assert_allclose(curvatures, -every_pair(hessian, xs, params), atol=2e-5, rtol=1e-5)
    assert norms(scores).max() > 0.5 and norms(curvatures, 2).max() > 0.1


def test_likelihoods_are_those_of_scipy():
    params = PARAMS[:20]
    x = RECORDS["gamma"][:, None]
    kept, rates = np.clip(x, 0, UPPER), np.exp(params.astype(float))
    want = np.where(
        x < UPPER,
        stats.expon.logpdf(kept, scale=1 / rates),
        stats.expon.logsf(UPPER, scale=1 / rates),
    )
    got = every_pair(MODELS["gamma"].log_likelihood, RECORDS["gamma"], params)
    np.testing.assert_allclose(got.T, want.sum(axis=-1), rtol=1e-4, atol=1e-5)

    x = RECORDS["beta"][:, None] > 0.5
    got = every_pair(MODELS["beta"].log_likelihood, RECORDS["beta"], params)
    want = stats.bernoulli.logpmf(x, special.expit(params.astype(float))).sum(axis=-1)
    np.testing.assert_allclose(got.T, want, rtol=1e-4)

    got = every_pair(MODELS["dirichlet"].log_likelihood, RECORDS["dirichlet"], params)
    np.testing.assert_allclose(np.exp(got), MODELS["dirichlet"].constrained(params), rtol=1e-5)


@families
def test_score_bound_is_the_largest_norm_of_a_score(name):
    model = MODELS[name]
    largest = norms(every_pair(model.score, RECORDS[name])).max(axis=1)
    for xs in (RECORDS[name][:2], NULL[name]):  # it does not look at the record
        bound = every_pair(model.score_bound, xs)
        assert (largest[:, None] <= bound * (1 + 1e-5)).all()
        assert (largest[:, None] >= 0.97 * bound).all()


@families
def test_public_bounds_hold_and_are_attained(name):
    model = MODELS[name]
    limit = 4.0
    params = np.vstack([PARAMS, [[0, -30], [-0.01, 30], [30, 30]]]).astype(f32)
    params = np.minimum(params, f32(np.log(limit))) if name == "gamma" else params
    if name == "dirichlet":  # almost all of the mass on two categories
        params = np.vstack([params, [[20, 20]]]).astype(f32)
    score, curvature = model.bounds(limit) if name == "gamma" else model.bounds()
    slopes = norms(every_pair(model.score, RECORDS[name], params))
    curves = norms(every_pair(model.curvature, RECORDS[name], params), 2)
    assert 0.97 * score < slopes.max() <= score * (1 + 1e-5)
    if name == "beta":
        curves = np.append(
            curves, norms(every_pair(model.curvature, RECORDS[name], np.zeros((1, 2), f32)), 2)
        )
    assert 0.97 * curvature < curves.max() <= curvature * (1 + 1e-5)


@families
def test_statistic_bound_is_the_distance_from_a_null_record(name):
    """A null record gives zero; replacing one record by another moves the sum by at most twice the bound."""
    model = MODELS[name]
    values = np.asarray(mapped(lambda x: model.statistic({"x": x}))(RECORDS[name]), np.float64)
    bound = model.statistic_bound()
    assert values.shape == (len(values), model.n_statistics)
    assert 0.999 * bound < norms(values).max() <= bound * (1 + 1e-6)
    apart = norms(values[:, None] - values[None])
    assert bound < apart.max() <= 2 * bound * (1 + 1e-6)


def test_statistics_are_centred_sufficient_statistics():
    def one(name, x):
        return np.asarray(MODELS[name].statistic({"x": jnp.asarray(x)}))

    np.testing.assert_allclose(one("gamma", [0.25, 7.0]), [0.25 - UPPER / 2, UPPER / 2])
    np.testing.assert_allclose(one("beta", [0.0, 0.9]), [-0.5, 0.5])
    np.testing.assert_allclose(one("dirichlet", 1), [-1 / 3, 2 / 3, -1 / 3], rtol=1e-6)


# Through the mechanism


@pytree
@dataclasses.dataclass(frozen=True)
class EverySum:
    """Releases, in one round, the sums of all that a model says of a record."""

    theta: object

    def init(self, model, key):
        return jnp.zeros(())

    def rounds(self, model, mechanism):
        names = ("curvature", "score", "statistic")

        def query(state, point):
            return lambda record: {
                "curvature": model.curvature(self.theta, record),
                "score": model.score(self.theta, record),
                "statistic": model.statistic(record),
            }

        def update(state, point, step, estimate, scales):
            return state

        blocks = {name: Block(f32(100), 1 / 3) for name in names}
        return (Round(lambda state, key: (), query, lambda state: blocks, update),)


def summed(name, xs):
    """Sums over `xs`, made up to one size with null records; the noise is far below what is tested."""
    filled = np.concatenate([xs, np.repeat(NULL[name][:1], 60 - len(xs), axis=0)])
    spec = MechanismSpec((GaussianSteps(1e-7, 1.0, 1),))
    solver = EverySum(f32([0.3, -0.4]))
    releases = inference.run(
        fit_keys(0), MODELS[name], solver, spec, pack_records(x=filled), keep_releases=True
    )[1]
    return np.asarray(releases)[0]


@families
def test_null_records_contribute_nothing(name, compiled_quickly):
    """And do not spoil what others contribute."""
    good = RECORDS[name][:2]
    alone = summed(name, good)
    assert norms(alone) > 0.3
    for bad in NULL[name]:
        np.testing.assert_allclose(summed(name, bad[None]), 0, atol=3e-4)
        np.testing.assert_allclose(
            summed(name, np.stack([good[0], bad, good[1]])), alone, atol=3e-4
        )


@pytest.mark.parametrize(
    ("name", "far", "same"), [("gamma", 3e38, UPPER), ("beta", np.inf, 1), ("beta", -np.inf, 0)]
)
def test_values_out_of_range_count_as_the_nearest_in_range(name, far, same, compiled_quickly):
    got, want = (summed(name, np.array([[value, 0.2]], f32)) for value in (far, same))
    np.testing.assert_allclose(got, want, atol=3e-4)
    assert norms(want) > 0.3


# Priors

DENSITIES = {  # of the natural parameter, and the log Jacobian of the map from the unconstrained one
    "gamma": lambda t: (stats.gamma(2, scale=1 / 3).logpdf(t) + np.log(t)).sum(axis=1),
    "beta": lambda t: (stats.beta(2, 5).logpdf(t) + np.log(t * (1 - t))).sum(axis=1),
    "dirichlet": lambda t: (
        stats.dirichlet(ALPHA).logpdf(t.T / t.sum(axis=1)) + np.log(t).sum(axis=1)
    ),
}


@families
def test_priors_are_those_of_scipy_up_to_a_constant(name):
    model, params = MODELS[name], PARAMS[:20]
    got = np.asarray(mapped(model.log_prior)(params), np.float64)
    want = DENSITIES[name](model.constrained(params.astype(float)))
    np.testing.assert_allclose(got - got[0], want - want[0], atol=1e-4, rtol=1e-4)
    assert np.ptp(want) > 1


@families
def test_prior_precision_is_that_of_the_log_prior_at_the_start(name):
    model, start = MODELS[name], flat_start(MODELS[name])[0]
    hessian = jax.hessian(model.log_prior)(start)
    np.testing.assert_allclose(model.prior_precision(), -np.diag(hessian), rtol=1e-4)


def test_the_start_is_the_prior_mean():
    means = {"gamma": [2 / 3] * 2, "beta": [2 / 7] * 2, "dirichlet": ALPHA / ALPHA.sum()}
    for name, mean in means.items():
        np.testing.assert_allclose(
            MODELS[name].constrained(np.asarray(MODELS[name].init())[None])[0], mean, rtol=1e-5
        )


def test_constrained_maps_onto_the_parameter_space():
    far = np.array([[-1000.0, 1000.0], [0, 0], [1000, 1000]])
    rates = MODELS["gamma"].constrained(far)
    assert np.isfinite(rates).all() and (rates > 0).all()
    np.testing.assert_allclose(
        MODELS["beta"].constrained(far), [[0, 1], [0.5, 0.5], [1, 1]], atol=1e-99
    )
    np.testing.assert_allclose(
        MODELS["dirichlet"].constrained(far), [[0, 1, 0], [1 / 3] * 3, [0.5, 0.5, 0]]
    )
