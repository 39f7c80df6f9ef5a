"""NumPyro models as functions of coordinates, against NumPyro's own densities; and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from cases import slow_but
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats

from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.models.base import flat_start, prior_matrix, score
from skdpbayes.models.numpyro.guide import read_guide
from skdpbayes.models.numpyro.model import NumPyroModel, coordinates
from skdpbayes.models.numpyro.predict import mean_response
from skdpbayes.models.numpyro.program import Program
from skdpbayes.models.numpyro.reading import read_model
from skdpbayes.models.score_unit import WithScoreUnit, axes_of, scales_of
from skdpbayes.posteriors import GaussianPosterior

X, Y = ("0", (2,), "float32"), ("1", (), "int32")


def many_sites(x, y=None):
    """Sites of all kinds: normal, normal given others, transformed, bounded, positive, on a simplex."""
    m = numpyro.sample("m", dist.Normal(1.0, 2.0), sample_shape=(2,))
    tril = jnp.array([[1.0, 0.0], [0.5, 2.0]])
    numpyro.sample("mvn", dist.MultivariateNormal(m, scale_tril=tril))
    s = numpyro.sample("s", dist.HalfNormal(2.0))
    numpyro.sample("log", dist.LogNormal(m[0], s))
    numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    numpyro.deterministic("twice", 2 * m)
    with numpyro.plate("groups", 3):
        w = numpyro.sample("w", dist.Normal(m, s).to_event(1))
        u = numpyro.sample("u", dist.Uniform(-1.0, 1.0))
    with numpyro.plate("data", len(x)):
        logits = numpyro.deterministic("logits", x @ w.sum(axis=0) + u.sum())
        numpyro.sample("y", dist.BernoulliLogits(logits), obs=y)


def model_of(function, fields=(X, Y), **public):
    return read_model(Program(function, fields), public)[0]


@pytest.fixture(scope="module")
def model() -> NumPyroModel:
    return model_of(many_sites)


def draw(model, seed):
    flat, unravel = flat_start(model)
    return unravel(jnp.asarray(np.random.default_rng(seed).normal(size=flat.size) / 2, jnp.float32))


RECORD = {"0": jnp.array([0.3, -1.0]), "1": jnp.int32(1)}


def test_prior_and_likelihood_are_those_of_numpyro(model):
    """The density of coordinates is that of the values times the volume that the map makes of a unit."""

    def of_values(flat, unravel):  # unconstrained, one for one
        values = model.values(unravel(flat))
        own = {site.name: values[site.name] for site in model.program.sites}
        own["p"] = own["p"][:2]
        return ravel_pytree(own)[0]

    unravel = flat_start(model)[1]

    @jax.jit
    def difference(flat):
        params = unravel(flat)
        volume = jnp.linalg.slogdet(jax.jacobian(lambda x: of_values(x, unravel))(flat))[1]
        values = {site.name: model.values(params)[site.name] for site in model.program.sites}
        joint, _ = log_density(many_sites, (RECORD["0"][None], RECORD["1"][None]), {}, values)
        return joint - model.log_likelihood(params, RECORD) + volume - model.log_prior(params)

    differences = [difference(ravel_pytree(draw(model, seed))[0]) for seed in (0, 1, 2)]
    np.testing.assert_allclose(differences, differences[0], atol=2e-4)


def test_what_is_normal_is_standard_normal_in_coordinates(model):
    normal = {site.name for site in model.program.sites if site.normal}
    assert normal == {"m", "mvn", "log", "w"}
    log_prior = jax.jit(model.log_prior)
    params = {site.name: jnp.zeros(site.shape) for site in model.program.sites}
    moved = params | {"w": params["w"] + 2.0}
    assert log_prior(moved) - log_prior(params) == pytest.approx(-6 * 2.0, rel=1e-5)


@pytest.mark.parametrize(("level", "expected"), [(0.05, -1.645), (0.95, 1.645)])
def test_others_have_the_quantiles_of_a_standard_normal_law(level, expected, model):
    found = jax.jit(model.values)(model.init())
    values = {site.name: found[site.name] for site in model.program.sites}
    values |= {
        "s": jnp.float32(stats.halfnorm(0, 2).ppf(level)),
        "u": jnp.full(3, 2 * level - 1, jnp.float32),
    }
    params, _ = jax.jit(lambda values: coordinates(model, values, jax.random.key(0)))(values)
    np.testing.assert_allclose(params["s"], expected, atol=0.1)
    np.testing.assert_allclose(params["u"], expected, atol=0.1)


def test_coordinates_of_values_are_those_the_values_come_from(model):
    params = draw(model, 3)
    found = jax.jit(model.values)(params)
    values = {site.name: found[site.name] for site in model.program.sites}
    back, log_prior = jax.jit(lambda values: coordinates(model, values, jax.random.key(0)))(values)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-3), back, params)
    with handlers.seed(rng_seed=0), handlers.trace() as sites, handlers.substitute(data=values):
        many_sites(RECORD["0"][None], RECORD["1"][None])
    expected = sum(
        jnp.sum(sites[name]["fn"].log_prob(values[name])) for name in values if name != "m"
    )
    expected += dist.Normal(1.0, 2.0).log_prob(values["m"]).sum()
    assert log_prior == pytest.approx(float(expected), abs=1e-3)


def test_sites_that_no_record_decides_are_told(model):
    assert model.program.derived == ("twice",)
    draws = model.constrained(np.zeros((2, flat_start(model)[0].size)))
    np.testing.assert_allclose(draws["twice"], 2 * draws["m"])
    assert draws["w"].shape == (2, 3, 2) and draws["p"].shape == (2, 3)


def test_a_score_is_bounded_over_all_responses(model):
    params = draw(model, 4)
    records = {"0": jnp.stack([RECORD["0"]] * 2), "1": jnp.array([0, 1])}

    def said(record):
        own = jnp.linalg.norm(ravel_pytree(score(model, params, record))[0])
        return own, model.score_norm(params, record), model.score_bound(params, record)

    norms, own, bounds = map(np.asarray, jax.jit(jax.vmap(said))(records))
    assert norms[0] != pytest.approx(norms[1], rel=1e-2)
    np.testing.assert_allclose(own, norms, rtol=1e-5)
    np.testing.assert_allclose(bounds, norms.max(), rtol=1e-5)


def test_the_unit_of_scores_is_a_quantile_of_norms(model):
    opened = WithScoreUnit(model, True)
    (opening,) = opened.openings()
    one = jax.jit(opening.statistics(opened.init()))
    seen = one(RECORD)["norms"]
    norm = float(jax.jit(model.score_norm)(model.init(), RECORD))
    assert seen.sum() == 1 and 2.0 ** (np.argmax(seen) - 8) <= norm < 2.0 ** (np.argmax(seen) - 7)
    assert not one(RECORD | {"0": jnp.array([jnp.nan, 0.0])})["norms"].any()
    counts = jnp.zeros(21).at[jnp.array([3, 10, 11])].set(jnp.array([10.0, 45.0, 45.0]))
    alone = jnp.zeros(21).at[9].set(100.0)
    assert opening.update(None, {"norms": alone}, {"norms": 0.0}, None)["unit"] == 2.0 ** (
        9 - 8 + 1
    )
    above = jnp.zeros(21).at[jnp.array([9, 10])].set(jnp.array([40.0, 60.0]))
    assert opening.update(None, {"norms": above}, {"norms": 0.0}, None)["unit"] == 2.0 ** (
        10 - 8 + 1
    )
    assert opening.update(None, {"norms": counts}, {"norms": 0.0}, None)["unit"] == 2.0 ** (
        10 - 8 + 1
    )
    assert WithScoreUnit(model, False).openings() == ()
    large = (
        WithScoreUnit(model, True, 64.0)
        .openings()[0]
        .update(None, {"norms": counts}, {"norms": 0.0}, None)["unit"]
    )
    assert large == 64 * 2.0 ** (10 - 8 + 1)


def test_noise_does_not_carry_the_unit_away(model):
    """Of few records: bins that hold noise alone would, by their sum."""
    opening = WithScoreUnit(model, True).openings()[0]
    counts = jnp.zeros(21).at[jnp.array([9, 10, 11])].set(jnp.array([40.0, 200.0, 100.0]))
    noisy = counts + 30 * np.random.default_rng(0).normal(size=(500, 21))
    units = [
        float(opening.update(None, {"norms": row}, {"norms": 30.0}, None)["unit"]) for row in noisy
    ]
    assert np.mean(np.isin(units, [2.0**2, 2.0**3, 2.0**4])) > 0.98
    nothing = opening.update(
        None, {"norms": jnp.full(21, -5.0).at[3].set(1.0)}, {"norms": 30.0}, None
    )
    assert nothing["unit"] == 2.0 ** (3 - 8 + 1)


@pytest.mark.parametrize("whitened", [False, True])
def test_shares_are_those_of_usable_scores(whitened, model):
    """Sizes over the norm, and their squares or products: a record counts for one, or for nothing."""
    opened = WithScoreUnit(model, True, coordinates="whitened" if whitened else "scaled")
    (opening,) = opened.openings()
    one = jax.jit(opening.statistics(opened.init()))
    own = jax.jit(lambda: ravel_pytree(score(model, model.init(), RECORD))[0])()
    shares = own / np.linalg.norm(own)
    found = one(RECORD)
    np.testing.assert_allclose(found["shares"], np.abs(shares), atol=1e-6)
    products = full(found["squares"]) if whitened else np.diag(found["squares"])
    expected = np.outer(shares, shares) if whitened else np.diag(shares**2)
    np.testing.assert_allclose(products, expected, atol=1e-6)
    null = one(RECORD | {"0": jnp.array([jnp.nan, 0.0])})
    assert not null["shares"].any() and not full(null["squares"]).any()
    assert sum(block.share for block in opening.blocks.values()) == 1
    assert opening.blocks.keys() - WithScoreUnit(model, True).openings()[0].blocks.keys() == {
        "shares",
        "squares",
    }


def full(part):
    if not isinstance(part, Quadratic):
        return part
    return part.weight[0, 0] * np.outer(part.vector, part.vector)


def test_scales_give_entries_of_scores_one_mean_square():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(10_000, 4)) * [1.0, 0.3, 0.02, 1.0]
    scores[:, 3] *= rng.uniform(size=10_000) < 0.1  # a rare column
    shares = np.abs(scores) / np.linalg.norm(scores, axis=1, keepdims=True)
    sums, square = (shares.sum(axis=0), (shares**2).sum(axis=0)), (shares**2).mean(axis=0)
    unknown, told = np.zeros(4), np.array([1e-4, 1e-4, 4e-4, 0.0])
    clear = np.asarray(scales_of(*sums, 1e-3, told))
    np.testing.assert_allclose(clear**2 * square, 0.25, rtol=1e-3)
    # With noise, an entry that hides in it counts as two standard deviations of it, or has the
    # size that is foreseen, if that hides in it.
    for foreseen, size in (unknown, 0.06), (told, 0.02), (100 * told, 0.06), (told / 1e4, 0.006):
        noisy = np.asarray(scales_of(*sums, 300.0, foreseen))[[0, 2]] * 2
        np.testing.assert_allclose(noisy, [square[0] ** -0.5, 1 / size], rtol=0.1)
    nothing = np.array([100.0, 0.0])  # of the second entry, without noise
    assert np.isfinite(scales_of(nothing, nothing, 0.0, unknown[:2])).all()
    hidden = [scales_of(*rng.normal(0, 300.0, (2, 4)), 300.0, unknown) for _ in range(20)]
    assert np.isfinite(hidden).all() and np.median(np.ptp(np.log(hidden), axis=1)) < 0.1


def test_axes_give_entries_one_mean_square_and_no_correlation():
    rng = np.random.default_rng(0)
    columns = np.append(np.ones((10_000, 1)), rng.uniform(size=(10_000, 3)), axis=1)
    scores = columns * [1.0, 1.0, 0.2, 0.01]
    shares = scores / np.linalg.norm(scores, axis=1, keepdims=True)
    moments = shares.T @ shares
    unknown = np.zeros(4)
    in_double = jax.jit(lambda *sums, foreseen=unknown: axes_of(*sums, foreseen))
    with jax.enable_x64(True):
        exact = np.asarray(in_double(np.abs(shares).sum(axis=0), moments, 1e-6), float)
        np.testing.assert_allclose(exact.T @ moments @ exact / 10_000, np.eye(4) / 4, atol=1e-3)
        noise = 20 * rng.normal(size=(4, 4))
        noisy = np.asarray(in_double(np.abs(shares).sum(axis=0), moments + noise, 20.0), float)
        # No correlation is taken of the last entry, which hides in the noise.
        assert np.count_nonzero(np.abs(noisy[3]) > 1e-6) == 1
        found = 4 * noisy.T @ moments @ noisy / 10_000
        assert np.linalg.cond(found) < 40 < 1000 < np.linalg.cond(moments)
        hidden = in_double(rng.normal(0, 300.0, 4), rng.normal(0, 300.0, (4, 4)), 300.0)
        sums = (np.abs(shares).sum(axis=0), moments, 300.0)
        told, not_told = in_double(*sums, foreseen=np.full(4, 1e-5)), in_double(*sums)
    assert np.isfinite(hidden).all()
    longer = np.linalg.norm(told, axis=1) / np.linalg.norm(not_told, axis=1)
    np.testing.assert_allclose(longer, [1, 1, 1, 10], rtol=0.2)  # the last entry hides


def test_made_up_records_foresee_that_they_tell_little_of_a_dispersion():
    model = model_of(counts)
    at, unravel = flat_start(model)
    foreseen = model.foreseen_shares(unravel(at))
    assert foreseen.sum() == pytest.approx(1, abs=1e-5)
    sizes = unravel(foreseen)
    assert 0 < sizes["concentration"] < 0.05 * sizes["intercept"]
    assert (sizes["weights"] > 0.05 * sizes["intercept"]).all()


def test_coordinates_of_what_hides_are_those_of_made_up_records_where_rounds_have_led():
    opened = WithScoreUnit(model_of(counts), True, coordinates="scaled")
    (opening,) = opened.openings()
    start = flat_start(opened.model)[0] + 0.5
    sums = {"norms": jnp.zeros(21).at[10].set(100.0)}
    sums |= dict.fromkeys(("shares", "squares"), jnp.array([0.0, 100.0, 0.0, 0.0]))
    noise = dict.fromkeys(("norms", "shares", "squares"), 10.0)
    params = opened.init() | {"arrived": jnp.bool_(True), "start": start}
    with jax.enable_x64(True):
        axes = np.asarray(opening.update(params, sums, noise, None)["axes"])
        unravel = flat_start(opened.model)[1]
        foreseen, other = (
            np.asarray(opened.model.foreseen_shares(unravel(at))) for at in (start, start - 0.5)
        )
        expected = scales_of(sums["shares"], sums["squares"], 10.0, foreseen)
    assert np.abs(foreseen / other - 1).max() > 0.1
    np.testing.assert_allclose(axes, expected, rtol=1e-4)
    (hidden,) = {*np.argsort(foreseen)[:1]}
    assert axes[hidden] > 1.5 * np.median(axes)


def counts(x, y=None):
    """Negative binomial regression."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    concentration = numpyro.sample("concentration", dist.LogNormal(1, 0.5))
    with numpyro.plate("records", len(x)):
        law = dist.NegativeBinomial2(jnp.exp(intercept + x @ weights), concentration)
        numpyro.sample("y", law, obs=y)


@pytest.mark.parametrize("whitened", [False, True])
def test_coordinates_are_found_where_rounds_have_arrived(whitened, model):
    """Not at the start: there one entry may stand for all that a model does not explain."""
    opened = WithScoreUnit(model, True, coordinates="whitened" if whitened else "scaled")
    (opening,) = opened.openings()
    size = flat_start(model)[0].size
    sums = {"norms": jnp.zeros(21).at[10].set(100.0), "shares": jnp.ones(size).at[0].set(50.0)}
    sums["squares"] = jnp.diag(sums["shares"]) if whitened else sums["shares"]
    noise = {"norms": 0.0, "shares": 1e-3, "squares": 1e-3}
    with jax.enable_x64(True):
        first = opening.update(opened.init(), sums, noise, None)
    assert first["unit"] == 2.0 ** (10 - 8 + 1)
    np.testing.assert_array_equal(first["axes"], np.eye(size) if whitened else np.ones(size))
    arrived = opened.looked_at(first, ravel_pytree(draw(model, 5))[0])
    told = [jax.jit(lambda p: opening.statistics(p)(RECORD))(p) for p in (arrived, first)]
    at = flat_start(model)[1](arrived["start"])
    own = np.asarray(jax.jit(lambda: jnp.abs(ravel_pytree(score(model, at, RECORD))[0]))())
    np.testing.assert_allclose(told[0]["shares"], own / np.linalg.norm(own), atol=1e-5)
    assert not np.allclose(*(x["shares"] for x in told), atol=1e-2)
    with jax.enable_x64(True):
        second = opening.update(arrived, sums, noise, None)
    assert second["axes"].ravel()[0] < 0.2 * np.max(second["axes"])
    marginal = opened.marginal(second)
    start = marginal.coordinates(ravel_pytree(marginal.init())[0])
    np.testing.assert_allclose(start, arrived["start"], rtol=1e-4, atol=1e-5)
    assert not ravel_pytree(marginal.prior_mean())[0].any()


@pytest.mark.parametrize("whitened", [False, True])
def test_axes_are_units_of_the_coordinates(whitened, model):
    """The same model, of other parameters."""
    size = flat_start(model)[0].size
    axes = np.geomspace(0.1, 10, size).astype(np.float32)
    if whitened:
        axes = axes[:, None] * (np.eye(size) + np.tri(size, k=-1) / size).astype(np.float32)
    matrix = np.diag(axes) if axes.ndim == 1 else axes
    other, params = dataclasses.replace(model, axes=axes), draw(model, 5)
    flat, unravel = ravel_pytree(params)
    own = unravel(jnp.asarray(np.linalg.solve(matrix.astype(float), np.asarray(flat)), jnp.float32))

    @jax.jit
    def told():
        scores = [ravel_pytree(score(*at, RECORD))[0] for at in ((other, own), (model, params))]
        sizes, moments = other.score_sizes(own, RECORD), other.score_moments(own, RECORD)
        bounds = other.score_bound(own, RECORD), other.score_norm(own, RECORD)
        densities = [
            (m.log_prior(at), m.log_likelihood(at, RECORD))
            for m, at in ((other, own), (model, params))
        ]
        return scores, sizes, moments, bounds, densities, other.values(own), model.values(params)

    (changed, plain), sizes, moments, (bound, norm), (one, two), values, expected = told()
    np.testing.assert_allclose(changed, matrix.T @ plain, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(sizes, np.abs(changed), rtol=1e-5)
    np.testing.assert_allclose(full(moments), np.outer(changed, changed), rtol=1e-4)
    assert norm == pytest.approx(float(np.linalg.norm(changed)), rel=1e-5) and bound >= norm
    np.testing.assert_allclose(one, two, rtol=1e-3)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3), values, expected)
    with jax.enable_x64(True):
        np.testing.assert_allclose(prior_matrix(other), matrix.T @ matrix, rtol=1e-5)
    found = other.natural(GaussianPosterior(np.ones(size), np.full(size, 0.1)))
    np.testing.assert_allclose(found.mean, matrix.sum(axis=1), rtol=1e-6)
    np.testing.assert_allclose(found.covariance, 0.01 * matrix @ matrix.T, rtol=1e-6, atol=1e-9)


def with_a_size(x, y=None):
    w = latent()
    with numpyro.plate("data", 1000, len(x)), numpyro.handlers.scale(scale=0.5):
        numpyro.sample("y", dist.BernoulliLogits(x @ w), obs=y)


def without_a_size(x, y=None):
    w = latent()
    with numpyro.plate("data", len(x)), numpyro.handlers.scale(scale=0.5):
        numpyro.sample("y", dist.BernoulliLogits(x @ w), obs=y)


def test_the_size_of_a_plate_multiplies_nothing():
    """The private sum estimates the sum over all records; NumPyro's factor would do so twice."""
    params, models = (
        {"w": jnp.array([0.5, -2.0])},
        [model_of(with_a_size), model_of(without_a_size)],
    )
    one, other = (jax.jit(model.log_likelihood)(params, RECORD) for model in models)
    assert float(one) == pytest.approx(float(other), rel=1e-6)
    assert [model.program.declared for model in models] == [(("data", 1000),), ()]


def test_functions_get_arrays_of_jax():
    """Records may be made up, public arrays may be NumPy's: methods of JAX work on both."""
    seen = []

    def function(x, y=None, *, table):
        seen.extend([x, y, table])
        observe(x.at[:, 0].set(0), y, table.at[0].set(1.0) @ latent())

    model = model_of(function, table=np.eye(2, dtype=np.float32))
    jax.jit(model.log_prior)(model.init())
    read_guide(lambda x, y, table: partial(x.at[0].set(0)), model)
    assert all(isinstance(x, jax.Array) for x in seen)


def test_nothing_is_computed_in_double_precision(model):
    """As in NumPyro, where the driver asks for 64 bits: users' code is not written for it."""
    with jax.enable_x64(True):
        params = model.init()
        assert jax.eval_shape(model.log_likelihood, params, RECORD).dtype == jnp.float32
        assert jax.eval_shape(model.log_prior, params).dtype == jnp.float32


DISCRETE = {
    "Categorical of 4": (lambda eta: dist.CategoricalLogits(eta[..., None] * jnp.arange(4)), 4),
    "Categorical of 30": (
        lambda eta: dist.CategoricalProbs(jax.nn.softmax(eta[..., None] * jnp.arange(30) / 9)),
        30,
    ),
    "OrderedLogistic of 12": (lambda eta: dist.OrderedLogistic(eta, jnp.linspace(-3, 3, 11)), 12),
    "Binomial of 30": (lambda eta: dist.Binomial(30, logits=eta), 0),
    "Multinomial": (lambda eta: dist.Multinomial(5, logits=eta[..., None] * jnp.arange(3)), 0),
    "Poisson": (lambda eta: dist.Poisson(jnp.exp(eta)), 0),
}


@pytest.mark.parametrize(
    "name", slow_but(DISCRETE, "Categorical of 30", "OrderedLogistic of 12", "Poisson")
)
def test_no_discrete_law_is_predicted_as_nan(name):
    law_of, n_values = DISCRETE[name]

    def function(x, y=None):
        w = latent()
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", law_of(x @ w), obs=y)

    event = jax.eval_shape(lambda: law_of(jnp.zeros(1)).sample(jax.random.key(0))).shape[1:]
    model = model_of(function, (X, ("1", event, "int32")))
    assert len(model.program.values) == n_values
    draws = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    x = np.array([[0.3, -1.0], [2.0, 0.0], [0.0, 0.0]], np.float32)
    found = np.asarray(mean_response(model, {"w": draws}, {"0": x}))

    @jax.jit
    def expected():
        law = law_of(jnp.einsum("nd,sd->sn", x, draws))
        if not n_values:
            return jnp.mean(law.mean, axis=0)
        own = [jnp.exp(law.log_prob(jnp.full((5, 3), value))) for value in range(n_values)]
        return jnp.mean(jnp.stack(own, axis=-1), axis=0)

    np.testing.assert_allclose(found, expected(), rtol=1e-4, atol=1e-6)
    if n_values > 10:
        # The fit, too: many categories are clipped by the law that the model gives them.
        assert model.program.weighed
        record = {"0": x[0], "1": np.int32(3)}
        response = jax.jit(model.response)({"w": draws[0]}, record)
        scores = np.asarray(response.others[0] @ response.slope)
        np.testing.assert_allclose(response.shares[0] @ scores, 0, atol=1e-3)
        own = response.own[0] @ response.slope
        np.testing.assert_allclose(own, scores[3], rtol=1e-4, atol=1e-5)


def truncated_cauchy(eta):
    return dist.TruncatedDistribution(dist.Cauchy(eta, 1.0), low=0.0)


def mixture_of_cauchys(eta):
    law = dist.Cauchy(jnp.stack([eta, -eta], axis=-1), 1.0)
    return dist.MixtureSameFamily(dist.Categorical(jnp.full(2, 0.5)), law)


@pytest.mark.parametrize("law_of", [truncated_cauchy, mixture_of_cauchys])
def test_a_law_whose_mean_is_nan_does_not_weigh_records(law_of):
    """The expectation of a clipped score would be NaN, and every record would contribute nothing."""

    def function(x, y=None):
        w = latent()
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", law_of(x @ w), obs=y)

    assert not model_of(function).program.weighed


class Told(dist.Gamma):
    """Its variance runs what a test says."""

    also = staticmethod(lambda x: x)

    @property
    def variance(self):
        return Told.also(super().variance)


def of_told(x, y=None):
    w = latent()
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", Told(2.0, jnp.exp(x @ w)), obs=y)


def test_what_a_law_computes_of_its_moments_is_looked_at_anew(monkeypatch):
    """No likelihood has it, and rounds run it with records."""
    assert model_of(of_told).program.weighed

    def leak(x):
        jax.debug.callback(lambda value: None, x)
        return x

    def loop(x):
        return jax.lax.while_loop(lambda own: (own > 1e9).any(), lambda own: own / 2, x)

    monkeypatch.setattr(Told, "also", staticmethod(leak))
    with pytest.raises(ValueError, match="debug_callback"):
        model_of(of_told)
    monkeypatch.setattr(Told, "also", staticmethod(loop))
    assert not model_of(of_told).program.weighed


def test_a_model_may_hold_a_key():
    key = jax.random.key(3)

    def function(x, y=None):
        w = latent() + jax.random.normal(key, (2,))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    assert model_of(function).program.weighed


@pytest.mark.parametrize("missing", [np.nan, np.inf])
def test_a_record_with_nan_has_neither_score_nor_curvature(missing):
    """Also where the model casts it to an integer, and where nothing else is missing."""

    def function(x, y):
        w = latent()
        with numpyro.plate("data", len(x)):
            logits = jnp.nan_to_num(x, posinf=0) @ w
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=(y > 0).astype(int))

    model = model_of(function)
    params = model.init()
    for x, y in (([0.5, 1.0], 1.0), ([0.5, 1.0], missing), ([missing, 1.0], 1.0)):
        record = {"0": jnp.array(x), "1": jnp.asarray(y)}
        score = ravel_pytree(jax.grad(model.log_likelihood)(params, record))[0]
        curvature = ravel_pytree(model.curvature(params, record))[0]
        finite = bool(np.isfinite([*x, y]).all())
        for found in (score, curvature):
            assert np.isfinite(np.asarray(found, float)).all() == finite
        assert not finite or np.abs(score).sum() > 0.1


def test_a_callback_that_only_the_curvature_has_is_found():
    @jax.custom_jvp
    def one(x):
        return jnp.ones_like(x)

    @one.defjvp
    def _(primals, tangents):
        jax.debug.callback(lambda value: None, primals[0])
        return one(primals[0]), 0 * tangents[0]

    @jax.custom_jvp
    def same(x):
        return x

    @same.defjvp
    def _(primals, tangents):
        return primals[0], one(primals[0]) * tangents[0]

    def function(x, y=None):
        w = latent()
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(same(x @ w), 1.0), obs=y)

    with pytest.raises(ValueError, match="debug_callback"):
        model_of(function)


def test_rules_of_derivatives_are_traced_in_single_precision_as_the_model_is():
    @jax.custom_jvp
    def same(x):
        return x

    @same.defjvp
    def _(primals, tangents):
        return primals[0], jnp.ones(primals[0].shape) * tangents[0]

    def function(x, y=None):
        w = latent()
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(same(x @ w), 1.0), obs=y)

    with jax.enable_x64(True):
        assert model_of(function).program.weighed


def test_what_a_model_computes_is_part_of_what_it_is_known_by():
    """Not its value alone: also a rule of a derivative, and a constant of a compiled part."""
    rule, table = [1.0], [np.ones(2, np.float32)]

    @jax.custom_jvp
    def same(x):
        return x

    @same.defjvp
    def _(primals, tangents):
        return primals[0], rule[0] * tangents[0]

    def function(x, y=None):
        w = latent()
        with numpyro.plate("data", len(x)):
            product = jax.jit(lambda x: x @ (w * table[0]))(x)
            numpyro.sample("y", dist.Normal(same(product), 1.0), obs=y)

    def code():
        return model_of(function).program.code

    first = code()
    assert code() == first
    rule[0] = 2.0
    second = code()
    table[0] = 2 * table[0]
    assert len({first, second, code()}) == 3


# ------------------------------------------------------------------------------------- refused


def latent():
    return numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))


def observe(x, y, w):
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.BernoulliLogits(x @ w), obs=y)


def subsampled(x, y):
    w = latent()
    with numpyro.plate("data", 1000, 100) as chosen:
        numpyro.sample("y", dist.BernoulliLogits(x[chosen] @ w), obs=y[chosen])


def subsampled_twice(x, y):
    w = latent()
    with numpyro.plate("data", 2 * len(x), subsample_size=len(x)):
        numpyro.sample("y", dist.BernoulliLogits(x @ w), obs=y)


def of_all_records(x, y):
    w = latent()
    with numpyro.plate("data", 1000):
        numpyro.sample("y", dist.BernoulliLogits(x @ w), obs=y)


def of_all_records_in_silence(x, y):
    w = latent()
    with numpyro.plate("data", 1000):
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)


def without_a_plate(x, y):
    numpyro.sample("y", dist.BernoulliLogits(x @ latent()), obs=y)


def local_latent(x, y):
    w = latent()
    with numpyro.plate("data", len(x)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.BernoulliLogits(x @ w + z), obs=y)


def outside(x, y):
    w = latent()
    observe(x, y, w)
    numpyro.sample("total", dist.Normal(w.sum(), 1.0), obs=3.0)


def factor_outside(x, y):
    w = latent()
    observe(x, y, w)
    numpyro.factor("extra", w.sum())


def point(x, y):
    w = numpyro.param("w", jnp.zeros(2))
    latent_b = numpyro.sample("b", dist.Normal(0, 1))
    observe(x, y, w + latent_b)


def discrete(x, y):
    k = numpyro.sample("k", dist.Bernoulli(0.5))
    observe(x, y, latent() * k)


def improper(x, y):
    w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), (2,)))
    observe(x, y, w)


def one_for_each(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([len(x)]).to_event(1))
    observe(x, y, jnp.ones(2) * w.sum())


def centred(x, y):
    observe(x - x.mean(axis=0), y, latent())


def prior_from_records(x, y):
    w = numpyro.sample("w", dist.HalfNormal(jnp.mean(x) + 1.0).expand([2]).to_event(1))
    observe(x, y, w)


def in_two_plates(x, y):
    w = latent()
    with numpyro.plate("data", len(x)), numpyro.plate("pairs", len(x)):
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=jnp.outer(y, y))


def looks_at_values(x, y):
    w = latent()
    observe(x, y, w if x.sum() > 0 else -w)


def nothing_to_learn(x, y):
    observe(x, y, jnp.ones(2))


def nothing_seen(x, y):
    latent()
    with numpyro.plate("data", len(x)):
        pass


def prints(x, y):
    jax.debug.print("{}", x)
    observe(x, y, latent())


def hidden_in_the_slope(x, y):
    """A callback that only the derivative runs."""

    @jax.custom_vjp
    def same(x):
        return x

    def backwards(_, slope):
        jax.debug.callback(lambda value: None, slope)
        return (slope,)

    same.defvjp(lambda x: (x, None), backwards)
    observe(same(x), y, same(latent()))


def asks_python(x, y):
    observe(jax.pure_callback(lambda x: x, x, jax.lax.stop_gradient(x)), y, latent())


def runs_as_long_as_a_record_says(x, y):
    halved = jax.lax.while_loop(
        lambda v: jnp.any(jnp.abs(v) > 1), lambda v: v / 2, jax.lax.stop_gradient(x)
    )
    observe(halved, y, latent())


def sees_a_batch(x, y):
    @jax.custom_batching.custom_vmap
    def same(x):
        return x

    same.def_vmap(lambda size, batched, x: (x - x.mean(axis=0), True))
    observe(same(jax.lax.stop_gradient(x)), y, latent())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (prints, "operation 'debug"),
        (hidden_in_the_slope, "callback'"),
        (asks_python, "'pure_callback'"),
        (runs_as_long_as_a_record_says, "'while'"),
        (sees_a_batch, "'custom_vmap_call'"),
        (
            subsampled,
            r"Plate 'data' takes a sub.*100 out of 1000.*numpyro.plate\('data', len\(x\)\)",
        ),
        (subsampled_twice, r"Plate 'data'.*3 out of 6.*numpyro.plate\('data', len\(x\)\)"),
        (of_all_records, r"Plate 'data' has 1000 .*numpyro.plate\('data', len\(x\)\)"),
        (of_all_records_in_silence, r"Plate 'data' has 1000 .*numpyro.plate\('data', len\(x\)\)"),
        (without_a_plate, "No plate"),
        (local_latent, "'z' is a latent variable in the plate of records, 'data'"),
        (outside, "'total' is observed .* outside"),
        (factor_outside, "'extra' is observed .* outside"),
        (point, "'w' is a numpyro.param"),
        (discrete, r"'k' \(Bernoulli.*\) is discrete"),
        (improper, r"'w' \(ImproperUniform\)"),
        (one_for_each, "'w' has a shape that depends on the number of records"),
        (centred, "not the sum"),
        (prior_from_records, "prior depends on records"),
        (in_two_plates, "'y' is in two plates"),
        (looks_at_values, "looks at values"),
        (nothing_to_learn, "no latent site"),
        (nothing_seen, "observes nothing"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_what_cannot_be_private_is_refused_by_name(function, message):
    with pytest.raises(ValueError, match=message):
        model_of(function)


# -------------------------------------------------------------------------------------- guides


def regression(x, y=None):
    observe(x, y, latent())
    numpyro.sample("extra", dist.Normal(3.0, 2.0))


def partial(x, y=None):
    loc = numpyro.param("loc", jnp.zeros(2))
    scale = numpyro.param("scale", jnp.ones(2), constraint=dist.constraints.positive)
    numpyro.sample("w", dist.Normal(loc, scale).to_event(1))


def test_a_guide_draws_coordinates_and_its_bound_is_the_ratio_of_prior_and_guide():
    model = model_of(regression)
    guide = read_guide(partial, model)
    assert guide.init().keys() == {"loc", "scale"}
    parameters = {"loc": jnp.array([1.0, -1.0]), "scale": jnp.log(jnp.array([0.5, 2.0]))}
    keys = jax.random.split(jax.random.key(0), 4000)
    params, bound = jax.jit(jax.vmap(lambda key: guide.draw(parameters, key)))(keys)
    np.testing.assert_allclose(params["w"].mean(axis=0), [1, -1], atol=0.1)
    np.testing.assert_allclose(params["w"].std(axis=0), [0.5, 2.0], rtol=0.05)
    np.testing.assert_allclose(
        [params["extra"].mean(), params["extra"].std()], [0, 1], atol=0.05
    )  # its prior
    expected = dist.Normal(0, 1).log_prob(params["w"]) - dist.Normal(
        parameters["loc"], jnp.exp(parameters["scale"])
    ).log_prob(params["w"])
    np.testing.assert_allclose(bound, expected.sum(axis=1), atol=1e-4)


def draws_too_much(x, y=None):
    partial(x, y)
    numpyro.sample("local", dist.Normal(0, 1))


def without_gradient(x, y=None):
    p = numpyro.param("p", 0.5)
    numpyro.sample("w", dist.Bernoulli(p).expand([2]).to_event(1))


def without_parameters(x, y=None):
    numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (draws_too_much, "draws 'local', which is no latent site"),
        (without_gradient, "'w' from a distribution without a reparametrised sampler"),
        (without_parameters, "no numpyro.param"),
    ],
)
def test_a_guide_that_cannot_be_fitted_is_refused_by_name(function, message):
    with pytest.raises(ValueError, match=message):
        read_guide(function, model_of(regression))
