"""Sums of the statistics of persons about a released centre."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from skdpbayes import DPBetaBernoulli, DPDirichletCategorical, DPGammaExponential
from skdpbayes.mechanism.records import Person
from skdpbayes.models.families import BetaBernoulli, DirichletCategorical, GammaExponential
from skdpbayes.solvers.centred import CentredRelease, Clipping, PersonQuery, clipped_sums

MODELS = {
    "beta": BetaBernoulli(2, 1.0, 1.0),
    "dirichlet": DirichletCategorical(np.ones(3)),
    "gamma": GammaExponential(2, 1.0, 1.0, 4.0),
}


def draws_about(name, mean, rng, shape):
    """Rows of one entry, less its mean, of a law that has it."""
    if name != "gamma":
        share = mean + (0.5 if name == "beta" else 1 / 3)
        return (rng.random(shape) < share) - share
    mean = mean + 2  # E min(x, 4)
    rates = np.geomspace(1e-3, 1e3, 20_001)
    rate = np.interp(-mean, -(1 - np.exp(-4 * rates)) / rates, rates)
    return np.minimum(rng.exponential(1 / rate, shape), 4) - mean


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mean", [-0.2, 0.1])
def test_moments_of_clipped_sums_are_exact(name, mean):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        model, limit = MODELS[name], 1.2 if name != "gamma" else 3.0
        values, shares = model.rows_about(jnp.full(model.n_statistics, mean))
        np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-12)
        np.testing.assert_allclose((shares * values).sum(axis=1), 0, atol=1e-9)
        numbers = np.array([1, 5, 20])
        own = clipped_sums(values, shares, numbers, np.full(3, limit))
        whole = clipped_sums(values, shares, numbers, np.full(3, 1e3))
    for moment, value in zip(whole, (0, 1, 1), strict=True):  # nothing is clipped
        np.testing.assert_allclose(moment, value, atol=1e-6)
    for i, k in enumerate(numbers):
        sums = draws_about(name, mean, rng, (400_000, k)).sum(axis=1)
        clipped = np.clip(sums, -limit, limit)
        kept = (clipped @ sums) / (sums @ sums)
        np.testing.assert_allclose(own.mean[i], clipped.mean(), atol=0.01)
        np.testing.assert_allclose(own.kept[i], kept, atol=0.01)
        spread = clipped.var() / (kept**2 * sums.var())
        np.testing.assert_allclose(own.spread[i], spread, rtol=0.03)


def test_a_persons_clipped_sum_is_over_its_expectation():
    """By the number of their usable rows, alone."""
    with jax.enable_x64(True):
        model, centre = MODELS["beta"], jnp.array([-0.3, 0.2])
        limit, room = jnp.float32(0.9), jnp.float32(0.8)
        expected = jnp.arange(64.0).reshape(32, 2) / 1000
        clipping = Clipping(centre, expected, limit, room, None, None)
        query = PersonQuery(model, clipping, jnp.float32(8))
        x = np.array([[1.0, 1], [1, 0], [1, 1], [np.nan, 1], [1, 1]], np.float32)
        person = Person({"x": jnp.asarray(x)}, jnp.array([True, True, True, True, False]))
        found, alone = query.person(person), query({"x": jnp.asarray(x[1])})
    total = x[:3].sum(axis=0) - 3 * (np.array([-0.3, 0.2]) + 0.5)
    for own, whole, k in ((found, total, 3), (alone, np.array([0.8, -0.7]), 1)):
        score = 0.8 * (np.clip(whole, -0.9, 0.9) - np.asarray(expected)[k - 1])
        np.testing.assert_allclose(own["sum"], score, rtol=1e-5)
        assert float(own["rows"][0]) == k


@pytest.mark.parametrize("kind", [DPBetaBernoulli, DPDirichletCategorical, DPGammaExponential])
def test_without_noise_the_posterior_is_that_of_the_rows(kind):
    rng, owner = np.random.default_rng(0), np.repeat(np.arange(100), 5)
    X = rng.integers(0, 2, (500, 1)).astype(float)  # of one person up to five ones
    own = {"categories": [0, 1, 2]} if kind is DPDirichletCategorical else {}
    own |= {"upper": 2.0} if kind is DPGammaExponential else {}
    rows = kind(np.inf, **own).fit(X)
    persons = kind(np.inf, max_rows_per_person=5, **own).fit(X, groups=owner)
    assert isinstance(persons.plan(100, 1).solver, CentredRelease)
    np.testing.assert_allclose(persons.posterior_.mean, rows.posterior_.mean, rtol=1e-4)
    np.testing.assert_allclose(persons.posterior_.std, rows.posterior_.std, rtol=1e-3)


@pytest.mark.parametrize("share", [0.2, 0.95])
def test_clipping_moves_no_estimate(share):
    """Sums of five rows of a skewed law are clipped on one side; here by two standard deviations."""
    rng, z = np.random.default_rng(0), []
    owner = np.repeat(np.arange(2000), rng.integers(1, 6, 2000))
    for seed in range(16):
        X = (rng.random((len(owner), 1)) < share).astype(float)
        model = DPBetaBernoulli(4.0, max_rows_per_person=5, random_state=seed)
        model.fit(X, groups=owner)
        z.append((model.posterior_.mean[0] - share) / model.posterior_.std[0])
    assert abs(np.mean(z)) < 0.9 and 0.5 < np.std(z) < 1.6


@pytest.mark.parametrize("most", [5, 60])
def test_sums_of_rows_follow_from_clipped_ones(most):
    """Though the centre is not the mean: by the slope of clipped sums, of each column its own."""
    rng, n = np.random.default_rng(0), 20_000
    plan = DPBetaBernoulli(1.0, max_rows_per_person=most).plan(n, 2)
    shares = np.array([0.5, 0.05])
    x = (rng.random((n, most, 2)) < shares).astype(np.float32)
    with jax.enable_x64(True):
        state = plan.solver.init(plan.model, jax.random.key(0))
        away = jnp.array([0.03, 0.0]) / most**0.5
        state = state._replace(centre=jnp.asarray(shares - 0.5) + away, persons=jnp.asarray(n))
        own = plan.solver.rounds(plan.model, plan.spec.traced())[1]
        point, places = own.point(state, jax.random.key(0)), jnp.ones(most, bool)
        query = own.query(state, point)
        persons = jax.jit(jax.vmap(lambda x: query.person(Person({"x": x}, places))))
        sums = {name: x.sum(axis=0) for name, x in persons(jnp.asarray(x)).items()}
        assert float(point.room) < 1

        def learnt(noise, shift=0.0):
            scales = {"sum": jnp.asarray(noise), "rows": jnp.asarray(0.0)}
            moved = {**sums, "sum": sums["sum"] + shift}
            return jax.device_get(own.update(state, point, jnp.int32(1), moved, scales))

        quiet, noisy, moved = learnt(0.0), learnt(1e5), learnt(0.0, 1e5)
    rows = n * most
    deviations = np.sqrt(rows * shares * (1 - shares))
    errors = quiet.total + rows * quiet.centre - (x.sum(axis=(0, 1)) - rows / 2)
    approximate = 0.5 * deviations * (most > 32)  # of persons in parts
    assert np.all(np.abs(errors) < 3 * quiet.scale + approximate)  # what clipping adds
    added = quiet.scale / deviations
    assert 0.2 < added[0] < 0.45 and added[1] < 0.35
    # Noise is over the same slope as the sum.
    np.testing.assert_allclose(noisy.scale, moved.total - quiet.total, rtol=1e-3)
    assert noisy.scale[0] > 1.15 * noisy.scale[1]  # a rare column is hardly clipped


@pytest.mark.parametrize("alike", [0.0, 0.3])
def test_rows_that_are_alike_bias_no_estimate(alike):
    """More of their sums are clipped than expected, and the mean over persons contradicts them."""
    rng, n, shares = np.random.default_rng(0), 20_000, np.array([0.03, 0.4, 0.9])
    owner = np.repeat(np.arange(n), rng.integers(1, 7, n))
    own = rng.beta(shares * (1 / alike - 1), (1 - shares) * (1 / alike - 1), (n, 3)) if alike else 0
    x = rng.random((len(owner), 3)) < (own[owner] if alike else shares)
    model = DPBetaBernoulli(2.0, max_rows_per_person=6, random_state=0).fit(x, groups=owner)
    found, second = model.posterior_, model.diagnostics_["noise_std"] / len(owner)
    assert np.all(np.abs(found.mean - x.mean(axis=0)) < 4 * second)
    assert np.all(np.abs(found.mean - x.mean(axis=0)) < [0.004, 0.008, 0.008])
    contradiction = model.diagnostics_["contradiction"]
    if alike:
        assert contradiction[0] > 4 and contradiction[2] > 4
        assert np.all(second > 0.0009)  # as the mean over persons, not the sums, is known
    else:
        assert np.all(contradiction < 2.5) and second.min() < 0.0006


def test_without_noise_no_contradiction_counts():
    """Persons with many rows differ from others, so that the mean over persons is another one."""
    rng, n = np.random.default_rng(0), 3000
    each = rng.integers(1, 7, n)
    owner = np.repeat(np.arange(n), each)
    x = rng.random((len(owner), 1)) < np.where(each > 3, 0.6, 0.2)[owner, None]
    model = DPBetaBernoulli(np.inf, max_rows_per_person=6, random_state=0).fit(x, groups=owner)
    assert model.diagnostics_["contradiction"][0] > 10
    exact = (x.sum() + 1) / (len(x) + 2)
    assert model.posterior_.mean[0] == pytest.approx(exact, abs=1e-4)


def test_a_centre_that_would_be_noise_is_not_released():
    """Then one release of whole sums tells more; and where sums about a centre have its noise."""
    how, few = dict(max_rows_per_person=9), dict(max_rows_per_person=2)
    assert isinstance(DPBetaBernoulli(1.0, **how).plan(1000, 2).solver, CentredRelease)
    many = DPDirichletCategorical(1.0, categories=range(50), max_rows_per_person=5)
    for model, n in (
        (DPBetaBernoulli(1.0, **how), 50),
        (DPBetaBernoulli(0.01, **how), 1000),
        (DPBetaBernoulli(1.0, adjacency="add_remove", **how), None),
        (DPBetaBernoulli(1.0, **few), 1000),
        (many, 5000),
    ):
        assert not isinstance(model.plan(n, 2).solver, CentredRelease)
