"""Latent sites of single records under amortised guides, and parameters fitted as points."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

from skdpbayes import DPNumPyroModel
from skdpbayes.models.numpyro.program import Program
from skdpbayes.models.numpyro.reading import read_model
from skdpbayes.privacy import PrivacyLeakWarning

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N, D, NOISE = 800, 3, 0.5


def factors(x):
    """One factor: the mean has a prior, the loadings are points."""
    mean = numpyro.sample("mean", dist.Normal(0, 10).expand([D]).to_event(1))
    loadings = numpyro.param("loadings", jnp.full((1, D), 0.5))
    with numpyro.plate("data", len(x)):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([1]).to_event(1))
        numpyro.sample("x", dist.Normal(mean + z @ loadings, NOISE).to_event(1), obs=x)


def encoder(x):
    """Its family holds the exact posterior, but for correlations of the mean."""
    loc = numpyro.param("loc", jnp.zeros(D))
    scale = numpyro.param("scale", jnp.full(D, 0.1), constraint=dist.constraints.positive)
    weights = numpyro.param("weights", jnp.full((D, 1), 0.1))
    spread = numpyro.param("spread", 0.5, constraint=dist.constraints.positive)
    mean = numpyro.sample("mean", dist.Normal(loc, scale).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("z", dist.Normal((x - mean) @ weights, spread).to_event(1))


def read(model, guide, shape=(D,)):
    return read_model(Program(model, (("0", shape, "float32"),)), {}, guide)[0]


def test_records_read_all_parameters_but_those_of_sites_outside_of_their_plate():
    learnt = read(factors, encoder)
    names = sorted(learnt.start)
    assert [n for n, r in zip(names, learnt.read, strict=True) if r] == [
        "loadings", "spread", "weights",
    ]  # fmt: skip
    assert set(learnt.init()["sites"]) == {"mean"}
    assert learnt.program.local == ("z",)


def test_a_record_with_nan_adds_nothing_whatever_model_and_guide_make_of_it():
    learnt = read(
        lambda x: factors(jnp.nan_to_num(x, posinf=0)),
        lambda x: encoder(jnp.nan_to_num(x, posinf=0)),
    )
    params, record = learnt.init(), np.ones(D, np.float32)
    for missing, known in ((1.0, True), (np.nan, False), (np.inf, False)):
        record[1] = missing
        assert np.isfinite(learnt.log_likelihood(params, {"0": jnp.asarray(record)})) == known


def test_latent_variables_are_a_function_of_round_and_record():
    learnt = read(factors, encoder)
    rng = np.random.default_rng(0)
    one, other = ({"0": x} for x in rng.normal(size=(2, D)).astype(np.float32))

    def noise(record, key):
        batch = {"0": record["0"][None]}
        sites = learnt.guided({"mean": jnp.zeros(D)}, batch, learnt.key_of(record, key))
        return float((sites["z"]["value"] - sites["z"]["fn"].base_dist.loc).item())

    first, second = jax.random.key(1), jax.random.key(2)
    assert noise(one, first) == noise(one, first)
    assert len({noise(one, first), noise(one, second), noise(other, first)}) == 3


@pytest.fixture(scope="module")
def factor_fit():
    rng = np.random.default_rng(0)
    loadings = np.array([[1.0, -0.5, 0.8]])
    X = [0.2, -0.2, 0.1] + rng.normal(size=(N, 1)) @ loadings + NOISE * rng.normal(size=(N, D))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)  # of the seed, said once
        fitted = DPNumPyroModel(
            factors, encoder, epsilon=float("inf"), n_steps=500, sampling_rate=1.0, random_state=0
        ).fit(X)
    return X, fitted


@pytest.mark.slow
def test_without_noise_the_fit_is_probabilistic_pca(factor_fit):
    """Tipping and Bishop (1999): the covariance of most likelihood, given the noise."""
    X, fitted = factor_fit
    sizes, axes = np.linalg.eigh(np.cov(X.T, bias=True))
    expected = axes[:, -1] * np.sqrt(sizes[-1] - NOISE**2)
    found = fitted.params_["loadings"][0]
    np.testing.assert_allclose(
        found * np.sign(found[0]), expected * np.sign(expected[0]), atol=0.05
    )
    precision = np.linalg.inv(np.outer(expected, expected) + NOISE**2 * np.eye(D))
    draws = fitted.posterior_samples_["mean"]
    np.testing.assert_allclose(draws.mean(axis=0), X.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(draws.std(axis=0), (N * np.diag(precision)) ** -0.5, rtol=0.2)
    of_z = (X - X.mean(axis=0)) @ precision @ found
    np.testing.assert_allclose(fitted.transform(X)[:, 0], of_z, atol=0.1)

    density = dist.MultivariateNormal(X.mean(axis=0), precision_matrix=precision)
    exact = np.asarray(density.log_prob(X[:50]))
    np.testing.assert_allclose(fitted.log_predictive_density(X[:50]), exact, atol=0.1)
    # The guide is nearly exact, so that the bound is nearly tight, and it is a bound.
    assert -0.05 < np.mean(fitted.evidence_lower_bound(X[:50]) - exact) < 0.01


@pytest.mark.slow
def test_new_records_have_the_models_law_and_null_records_are_told(factor_fit):
    X, fitted = factor_fit
    new = fitted.sample(4000, random_state=0)["x"]
    np.testing.assert_allclose(np.cov(new.T), np.cov(X.T), atol=0.15)
    np.testing.assert_allclose(fitted.predict(X[:1])[0], X.mean(axis=0), atol=0.1)
    with pytest.warns(UserWarning, match="records of zeros"):
        assert np.isfinite(fitted.transform(np.full((1, D), np.nan))).all()


def per_record(x):
    encoder(x)
    loc = numpyro.param("of_each", jnp.zeros((len(x), 1)))
    with numpyro.plate("data", len(x)):
        numpyro.sample("z2", dist.Normal(loc, 1).to_event(1))


def per_record_in_plate(x):
    with numpyro.plate("data", len(x)):
        loc = numpyro.param("loc", 0.0)
        numpyro.sample("z", dist.Normal(loc, 1).expand_by([1]).to_event(1))


def without_z(x):
    numpyro.sample("mean", dist.Normal(numpyro.param("loc", jnp.zeros(D)), 1).to_event(1))


def with_another(x):
    encoder(x)
    with numpyro.plate("data", len(x)):
        numpyro.sample("u", dist.Normal(0, 1))


def without_gradient(x):
    p = numpyro.param("p", 0.5)
    with numpyro.plate("data", len(x)):
        numpyro.sample("z", dist.Poisson(p).expand([1]).to_event(1))


def of_the_batch(x):
    weights = numpyro.param("weights", jnp.full((D, 1), 0.1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("z", dist.Normal((x - x.mean(axis=0)) @ weights, 1).to_event(1))


def mean_of_records(x):
    encoder_of = numpyro.param("weights", jnp.full((D, 1), 0.1))
    numpyro.sample("mean", dist.Normal(x.sum(axis=0), 1).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("z", dist.Normal(x @ encoder_of, 1).to_event(1))


def drops_out(x):
    weights = numpyro.param("weights", jnp.full((D, 1), 0.1))
    kept = jax.random.bernoulli(numpyro.prng_key(), 0.5, x.shape)
    with numpyro.plate("data", len(x)):
        numpyro.sample("z", dist.Normal((x * kept) @ weights, 1).to_event(1))


def rejects(x):
    weights = numpyro.param("weights", jnp.full((D, 1), 0.1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("z", dist.Gamma(jnp.exp(x @ weights), 1).to_event(1))


@jax.custom_vjp
def told_backwards(x):
    """The same, whose derivative calls Python."""
    return x


told_backwards.defvjp(
    lambda x: (x, None), lambda _, g: (jax.pure_callback(lambda v: np.asarray(v), g, g),)
)


def tells(x):
    weights = numpyro.param("weights", jnp.full((D, 1), 0.1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("z", dist.Normal(told_backwards(x @ weights), 1).to_event(1))


def counted(x):
    numpyro.param("loadings", jnp.ones(D))
    with numpyro.plate("data", len(x)):
        k = numpyro.sample("k", dist.Poisson(1.0))
        numpyro.sample("x", dist.Normal(k[:, None], 1).expand([len(x), D]).to_event(1), obs=x)


@pytest.mark.parametrize(
    ("model", "guide", "message"),
    [
        (factors, None, "'loadings' is a numpyro.param"),
        (factors, AutoNormal(factors), "AutoNormal has parameters for each record"),
        (factors, per_record, "'of_each' has a value for each record"),
        (factors, per_record_in_plate, "'loc' has a value for each record"),
        (factors, without_z, "does not draw 'z'"),
        (factors, with_another, "draws 'u' in the plate of records"),
        (factors, without_gradient, "'z' from a distribution without a reparametrised sampler"),
        (factors, of_the_batch, "not the sum"),
        (factors, mean_of_records, "depends on records"),
        (factors, drops_out, "prng_key"),
        (factors, rejects, "operation 'random_gamma"),
        (factors, tells, "operation 'pure_callback"),
        (counted, encoder, r"'k' .* is discrete"),
    ],
    ids=lambda item: getattr(item, "__name__", "") or None,
)
def test_what_cannot_be_private_is_refused_by_name(model, guide, message):
    with pytest.raises(ValueError, match=message):
        read(model, guide)


def test_a_guide_that_holds_as_many_rows_as_there_are_voids_the_guarantee():
    """It could look up a record's neighbours."""
    others = jnp.ones((N, D))

    def looks_up(x):
        weights = numpyro.param("weights", jnp.full((D, 1), 0.1))
        near = others[jnp.argmin(jnp.sum((others - x[:, None]) ** 2, axis=-1), axis=1)]
        with numpyro.plate("data", len(x)):
            numpyro.sample("z", dist.Normal((x - near) @ weights, 1).to_event(1))

    for n, holds in ((N, False), (N + 1, True)):
        plan = DPNumPyroModel(factors, looks_up, solver="dpvi").plan(n, D)
        assert plan.guarantee_holds == holds


def test_a_record_that_its_law_cannot_have_has_no_term():
    def model(y):
        scale = numpyro.param("scale", jnp.array(1.0))
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Normal(0, 1))
            numpyro.sample("y", dist.Poisson(jnp.exp(scale * z)), obs=y)

    def guide(y):
        with numpyro.plate("data", len(y)):
            numpyro.sample("z", dist.Normal(0, 1))

    learnt, key = read(model, guide, ()), jax.random.key(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # NumPyro's, of values that it sees
        terms = [learnt.term({}, {"0": jnp.array([y])}, key) for y in (0.0, 3.0, -1.0)]
    assert np.isfinite(terms).tolist() == [True, True, False]
