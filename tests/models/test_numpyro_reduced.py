"""Directions of the coordinates that no record tells of: which models have them, and what becomes of the posterior."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from cases import slow_but
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import AutoNormal

from skdpbayes import DPNumPyroModel
from skdpbayes.models.base import flat_start, prior_matrix
from skdpbayes.models.numpyro.program import Program
from skdpbayes.models.numpyro.reading import read_model
from skdpbayes.models.numpyro.reduced import reduced
from skdpbayes.models.responses import typical_length
from skdpbayes.posteriors.base import DrawsPosterior, GaussianPosterior

FIELDS = ("x", (2,), "float32"), ("group", (), "int32"), ("y", (), "float32")
RECORD = {"x": jnp.array([0.3, -1.0]), "group": jnp.int32(1), "y": jnp.float32(0.7)}
TABLE = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, -0.5]], np.float32)  # of three groups


def between(effects):
    low = jax.nn.softplus(effects[0, 0])
    return numpyro.sample("sigma", dist.Uniform(low, low + 1))


def level(mean=lambda effects: jnp.asarray(TABLE) @ effects, spread=0.5, noise=0.5, seen=False):
    """A regression in each group, about one of the groups, with `spread` and `noise` numbers or functions."""

    def model(x, group, y=None):
        effects = numpyro.sample("effects", dist.Normal(0, 2).expand([2, 2]).to_event(2))
        own_spread = spread(effects) if callable(spread) else spread
        own_noise = noise(effects) if callable(noise) else noise
        with numpyro.plate("groups", 3):
            w = numpyro.sample("w", dist.Normal(mean(effects), own_spread).to_event(1))
        with numpyro.plate("data", len(x)):
            shift = effects[0, 0] if seen else 0.0
            numpyro.sample("y", dist.Normal((x * w[group]).sum(-1) + shift, own_noise), obs=y)

    return model


def positive(name, scale=1.0):
    return lambda effects: numpyro.sample(
        name, dist.HalfNormal(scale(effects) if callable(scale) else scale)
    )


def read(function):
    return read_model(Program(function, FIELDS), {})[0]


@pytest.mark.slow
def test_a_hierarchy_has_the_coordinates_of_its_lowest_level():
    model = read(level())
    small = reduced(model)
    assert small.basis.shape == (10, 6)
    np.testing.assert_allclose(small.basis.T @ small.basis, np.eye(6), atol=1e-6)
    flat, unravel = flat_start(model)
    for seed in range(3):
        z = jnp.asarray(np.random.default_rng(seed).normal(size=flat.size), jnp.float32)
        own = small.basis.T @ z
        here, score = jax.value_and_grad(small.log_likelihood)(own, RECORD)
        np.testing.assert_allclose(here, model.log_likelihood(unravel(z), RECORD), rtol=1e-4)
        of_all = ravel_pytree(jax.grad(model.log_likelihood)(unravel(z), RECORD))[0]
        np.testing.assert_allclose(
            small.basis @ score, of_all, atol=1e-3
        )  # so that norms are those of all coordinates
        np.testing.assert_allclose(small.log_prior(own), -jnp.sum(own**2) / 2, rtol=1e-5)


def test_sites_that_are_not_normal_stay_as_they_are():
    model = read(level(noise=positive("sigma")))
    small = reduced(model)
    assert small.basis.shape == (11, 7)
    place = [site.name for site in sorted(model.program.sites)].index("sigma")
    assert place == 1  # after the four effects
    np.testing.assert_array_equal(small.basis[4], np.eye(7)[6])


@pytest.mark.parametrize(
    "function",
    [
        level(spread=lambda effects: positive("tau", jnp.exp(effects[0, 0]))(effects)),
        pytest.param(
            level(spread=lambda effects: numpyro.sample("tau", dist.HalfNormal(1).expand([3, 2]))),
            marks=pytest.mark.slow,
        ),
        level(spread=positive("tau"), noise=positive("sigma")),
        pytest.param(
            level(mean=lambda effects: jnp.asarray(TABLE) @ effects**2), marks=pytest.mark.slow
        ),
        pytest.param(
            level(mean=lambda effects: jnp.asarray(TABLE) @ jnp.maximum(effects, 0)),
            marks=pytest.mark.slow,
        ),
        pytest.param(level(spread=lambda effects: jnp.exp(effects[0])), marks=pytest.mark.slow),
        level(
            noise=positive("sigma", lambda effects: jnp.exp(effects[0, 0]))
        ),  # a prior that tells of the effects
        level(
            mean=lambda effects: jnp.asarray(TABLE) @ (effects + 4 * (effects > 0))
        ),  # slopes do not see a jump
        pytest.param(
            level(noise=between), marks=pytest.mark.slow
        ),  # of one volume wherever it is, so that its prior does not tell
        level(seen=True),  # records tell of effects themselves
    ],
    ids=[
        "spread that tells of the effects",
        "more spreads than can be covered",
        "a spread and a noise",
        "square",
        "kink",
        "spread of effects",
        "prior of noise",
        "jump",
        "support of noise",
        "seen",
    ],
)
def test_other_models_keep_all_coordinates(function):
    model = read(function)
    assert reduced(model) is model


def log_normal(name):
    return lambda effects: numpyro.sample(name, dist.LogNormal(0, 0.5))


@pytest.mark.parametrize("law", slow_but([positive, log_normal], log_normal))
def test_a_learnt_spread_is_left_out_too(law):
    model = read(level(spread=law("tau")))
    small = reduced(model)
    assert small.basis.shape == (11, 6)  # six weights
    assert reduced(model, hyper=False) is model
    # Rounds have a wide prior: the spread is above its median.
    assert small.offset[small.parts.hyper[0]] > 0.5
    own = jnp.asarray(np.random.default_rng(0).normal(size=6), jnp.float32)
    whole = flat_start(model)[1](small.offset + small.basis @ own)
    np.testing.assert_allclose(
        small.log_likelihood(own, RECORD), model.log_likelihood(whole, RECORD), rtol=1e-5
    )
    flat = jax.grad(small.log_prior)(own)
    np.testing.assert_allclose(flat[:6], -own[:6], rtol=1e-4)


def test_noise_that_sets_the_spread_is_no_hyper_parameter():
    def function(x, group, y=None):
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        with numpyro.plate("groups", 3):
            w = numpyro.sample("w", dist.Normal(jnp.zeros(2), sigma).to_event(1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        del tau
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal((x * w[group]).sum(-1), sigma), obs=y)

    model = read(function)
    assert reduced(model) is model


def bernoulli(x, group, y=None):
    effects = numpyro.sample("effects", dist.Normal(0, 2).expand([2, 2]).to_event(2))
    with numpyro.plate("groups", 3):
        w = numpyro.sample("w", dist.Normal(jnp.asarray(TABLE) @ effects, 0.5).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.BernoulliLogits((x * w[group]).sum(-1)), obs=y)


@pytest.mark.parametrize(
    "function",
    [level(), pytest.param(bernoulli, marks=pytest.mark.slow)],
    ids=["normal", "bernoulli"],
)
def test_norms_are_those_of_scores_in_all_coordinates(function):
    model = read(function)
    small, record = reduced(model), RECORD | {"y": jnp.float32(1)}
    own = jnp.asarray(np.random.default_rng(0).normal(size=6), jnp.float32)
    whole = flat_start(model)[1](small.basis @ own)
    norm = (
        typical_length(small.response(own, record))
        if small.known_responses
        else jnp.linalg.norm(jax.grad(small.log_likelihood)(own, record))
    )
    np.testing.assert_allclose(small.score_norm(own, record), norm, rtol=1e-4)
    np.testing.assert_allclose(small.score_norm(own, record), model.score_norm(whole, record), 1e-4)
    np.testing.assert_allclose(
        small.score_bound(own, record), model.score_bound(whole, record), rtol=1e-5
    )


def test_axes_are_units_of_these_coordinates_too():
    small, record = reduced(read(level())), RECORD | {"y": jnp.float32(1)}
    axes = np.geomspace(0.1, 10, 6)[:, None] * (np.eye(6) + np.tri(6, k=-1) / 6)
    other = dataclasses.replace(small, axes=axes.astype(np.float32))
    params = np.random.default_rng(0).normal(size=6)
    own = jnp.asarray(np.linalg.solve(axes, params), jnp.float32)
    params = jnp.asarray(params, jnp.float32)

    @jax.jit
    def told():
        pairs = (other, own), (small, params)
        slopes = [m.response(at, record).slope for m, at in pairs]
        densities = [(m.log_prior(at), m.log_likelihood(at, record)) for m, at in pairs]
        moments = [m.score_moments(at, record) for m, at in pairs]
        return slopes, densities, moments, [m.score_sizes(at, record) for m, at in pairs]

    (slope, plain), densities, moments, sizes = told()
    np.testing.assert_allclose(slope, plain @ axes, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(*densities, rtol=1e-3)
    np.testing.assert_allclose(moments[0], axes.T @ moments[1] @ axes, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(sizes[0] ** 2, np.diag(moments[0]), rtol=1e-4, atol=1e-6)
    with jax.enable_x64(True):
        np.testing.assert_allclose(prior_matrix(other), axes.T @ axes, rtol=1e-5, atol=1e-6)
    assert not np.any(small.foreseen_shares(params))  # made-up records are all of one group
    mean, root = np.arange(6.0), np.eye(6) / 10
    found = other.natural(GaussianPosterior(mean, root))
    expected = small.natural(GaussianPosterior(axes @ mean, axes @ root))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-5, atol=1e-6)


def twice(x, group, y=None):
    """Three weights that are two numbers, by a covariance without full rank."""
    effects = numpyro.sample("effects", dist.Normal(0, 1).expand([4]).to_event(1))
    loc = jnp.array([effects[0], effects[0], effects[1]])
    root = jnp.array([[0.0, 0, 0], [0, 0, 0], [0, 0, 0.5]])
    w = numpyro.sample("w", dist.MultivariateNormal(loc, scale_tril=root))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w[group] * x[:, 0], 1.0), obs=y)


def test_what_is_read_may_not_be_numbers_that_depend_on_each_other():
    model = read(twice)
    assert reduced(model) is model


@pytest.mark.slow
def test_a_guide_of_ones_own_has_all_coordinates():
    rng = np.random.default_rng(0)
    records = {
        "x": rng.normal(size=(100, 2)),
        "group": rng.integers(0, 3, 100),
        "y": rng.normal(size=100),
    }
    model = DPNumPyroModel(level(), AutoNormal(level()), epsilon=np.inf, n_steps=5)
    assert model.fit(records).posterior_.sample(rng, 3).shape == (3, 10)


@pytest.mark.slow
def test_draws_of_a_chain_keep_a_learnt_spread_as_a_coordinate():
    fields = {"x": np.zeros((100, 2)), "group": np.zeros(100, int), "y": np.zeros(100)}
    function = level(spread=positive("tau"))
    kinds = {
        solver: type(
            DPNumPyroModel(function, solver=solver).plan(100, fields=fields).model.model
        ).__name__
        for solver in ("sgld", "dpvi", "na-dpvi")
    }
    assert kinds == {"sgld": "NumPyroModel", "dpvi": "Reduced", "na-dpvi": "Reduced"}


def test_what_is_left_out_has_its_prior():
    small = reduced(read(level()))
    basis = np.asarray(small.basis, float)
    rng = np.random.default_rng(0)
    mean, root = rng.normal(size=6), rng.normal(size=(6, 6)) / 10
    others = np.eye(10) - basis @ basis.T
    full = small.natural(GaussianPosterior(mean, root))
    np.testing.assert_allclose(full.mean, basis @ mean)
    np.testing.assert_allclose(full.covariance, basis @ root @ root.T @ basis.T + others, atol=1e-6)
    independent = small.natural(GaussianPosterior(mean, np.full(6, 0.1)))
    np.testing.assert_allclose(independent.covariance, 0.01 * basis @ basis.T + others, atol=1e-6)

    draws = GaussianPosterior(mean, root).sample(rng, 20_000).reshape(4, 5000, 6)
    natural = small.natural(DrawsPosterior(draws))
    np.testing.assert_allclose(natural.draws @ basis, draws, atol=1e-5)
    np.testing.assert_allclose(natural.covariance, full.covariance, atol=0.05)
    noise = (natural.draws - draws @ basis.T) @ others
    assert np.abs(noise[0] - noise[1]).max() > 0.1  # of each chain its own
    again = small.natural(DrawsPosterior(draws + 1e-3))
    assert np.abs((natural.draws - again.draws) @ others).max() > 0.1  # another fit, other noise


def regressions(weights):
    """Columns, groups and responses of 600 records, with `weights` drawn for each group."""
    rng = np.random.default_rng(1)
    x, group = rng.normal(size=(600, 2)), rng.integers(0, 3, 600)
    return x, group, (x * weights(rng)[group]).sum(axis=1) + 0.5 * rng.normal(size=600)


@pytest.mark.parametrize("solver", slow_but(["dpvi", "na-dpvi"], "na-dpvi"))
def test_the_posterior_of_all_levels_is_exact_without_noise(solver):
    x, group, y = regressions(
        lambda rng: TABLE @ rng.normal(size=(2, 2)) + 0.5 * rng.normal(size=(3, 2))
    )
    n, table = len(y), np.asarray(TABLE, float)
    model = DPNumPyroModel(
        level(), epsilon=np.inf, solver=solver, sampling_rate=1.0, n_posterior_samples=20_000
    )
    draws = model.fit({"x": x, "group": group, "y": y}).posterior_samples_

    # Effects and weights are jointly normal; rows of the design take (effects, w), both by rows.
    design = np.zeros((n, 10))
    design[np.arange(n), 4 + 2 * group], design[np.arange(n), 5 + 2 * group] = x.T
    about = np.kron(table, np.eye(2))  # means of w given effects
    prior = np.zeros((10, 10))
    prior[:4, :4] = np.eye(4) / 4 + about.T @ about / 0.25
    prior[4:, 4:] = np.eye(6) / 0.25
    prior[:4, 4:], prior[4:, :4] = -about.T / 0.25, -about / 0.25
    covariance = np.linalg.inv(prior + design.T @ design / 0.25)
    mean, std = covariance @ design.T @ y / 0.25, np.sqrt(np.diag(covariance))

    found = np.concatenate([draws["effects"].reshape(-1, 4), draws["w"].reshape(-1, 6)], axis=1)
    np.testing.assert_allclose((found.mean(axis=0) - mean) / std, 0, atol=0.1)
    np.testing.assert_allclose(found.std(axis=0) / std, 1, atol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["dpvi", "na-dpvi"])
def test_a_learnt_spread_has_its_exact_posterior_without_noise(solver):
    x, group, y = regressions(
        lambda rng: TABLE @ rng.normal(size=(2, 2)) + 0.4 * rng.normal(size=(3, 2))
    )
    n, table = len(y), np.asarray(TABLE, float)
    model = DPNumPyroModel(
        level(spread=positive("tau")),
        epsilon=np.inf,
        solver=solver,
        sampling_rate=1.0,
        n_posterior_samples=20_000,
    )
    draws = model.fit({"x": x, "group": group, "y": y}).posterior_samples_

    # All but the spread is integrated out, on a grid of it; weights by rows.
    design = np.zeros((n, 6))
    design[np.arange(n), 2 * group], design[np.arange(n), 2 * group + 1] = x.T
    about = np.kron(table, np.eye(2))
    told, linear = design.T @ design / 0.25, design.T @ y / 0.25
    spreads = np.linspace(1e-3, 4, 2000)
    logs, means, variances = [], [], []
    for tau in spreads:
        prior = tau**2 * np.eye(6) + 4 * about @ about.T
        covariance = np.linalg.inv(np.linalg.inv(prior) + told)
        both = np.eye(6) + prior @ told
        logs.append(linear @ covariance @ linear / 2 - np.linalg.slogdet(both)[1] / 2 - tau**2 / 2)
        back = 4 * about.T @ np.linalg.inv(prior)  # effects given weights
        means.append(np.append(back @ covariance @ linear, covariance @ linear))
        rest = 4 * np.eye(4) - 4 * back @ about + back @ covariance @ back.T
        variances.append(np.append(np.diag(rest), np.diag(covariance)))
    share = np.exp(np.array(logs) - np.max(logs))
    share /= share.sum()
    mean = share @ means
    std = np.sqrt(share @ (np.array(variances) + np.square(means)) - mean**2)

    found = np.concatenate([draws["effects"].reshape(-1, 4), draws["w"].reshape(-1, 6)], axis=1)
    np.testing.assert_allclose((found.mean(axis=0) - mean) / std, 0, atol=0.1)
    np.testing.assert_allclose(found.std(axis=0) / std, 1, atol=0.1)
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    exact = spreads[np.searchsorted(np.cumsum(share), levels)]
    np.testing.assert_allclose(np.quantile(draws["tau"], levels), exact, rtol=0.06)


@pytest.mark.slow
def test_a_hyper_parameter_may_shift_the_values_read():
    x, group, y = regressions(lambda rng: 1.5 + rng.normal(size=(3, 2)))

    def mean(effects):
        shifts = numpyro.sample("shift", dist.LogNormal(0, 0.5))  # of each group
        return jnp.asarray(TABLE) @ effects + shifts[:, None]

    model = DPNumPyroModel(level(mean=mean), epsilon=np.inf, sampling_rate=1.0)
    draws = model.fit({"x": x, "group": group, "y": y}).posterior_samples_
    assert type(model.posterior_).__name__ == "HierarchyPosterior"
    fits = [np.linalg.lstsq(x[group == g], y[group == g], rcond=None)[0] for g in range(3)]
    np.testing.assert_allclose(draws["w"].mean(axis=0), fits, atol=0.03)
