"""The mixture's statistics: bounds, coordinates, M-step, and the sketch that it starts from."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped
from scipy import integrate, optimize, special, stats
from sklearn.mixture import BayesianGaussianMixture

from skdpbayes.models.columns import fit_columns, waves
from skdpbayes.models.mixtures.gaussian import (
    GaussianMixture,
    Start,
    inverse_factor,
    mean_weights,
    restricted,
)
from skdpbayes.models.mixtures.marginal import nodes_for
from skdpbayes.models.mixtures.sketch import (
    Sketch,
    expected_features,
    features,
    fit_sketch,
    frequencies,
)

f32 = np.float32
quick = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
KINDS = ["full", "tied", "diag", "spherical"]
K, D = 3, 2


def model(kind="full", radius=2.2, k=K, d=D, **others):
    given = dict(
        concentration=f32(1.5), precision=f32(2.0), freedom=f32(d + 1), mean_prior=np.zeros(d, f32), ridge=f32(0),
        covariance_prior=np.eye(d, dtype=f32) * f32(0.3), radius=f32(radius), kept=mean_weights(radius, d),
        frequencies=None, means=np.zeros((k, d), f32), weights=np.full(k, 1 / k, f32),
        nodes=nodes_for(1000, d, 10),
    )  # fmt: skip
    return GaussianMixture(kind, k, d, **(given | others))


def params_of(model, means, covariances, counts=100.0, errors=1e12):
    """Parameters at given components, with a start that counts for nothing unless told."""
    k, counts = model.n_components, jnp.full(model.n_components, counts)
    start = Start(counts, means, covariances, jnp.full((3, k), errors))
    return model.init()._replace(
        concentration=counts, precision=counts, freedom=counts, mean=jnp.asarray(means), start=start,
        covariance=jnp.asarray(covariances), total=counts.sum(),
    )  # fmt: skip


statistics = quick(lambda m, params, x: jax.vmap(m.statistics(params))({"x": x}))
m_step = quick(lambda m, *rest: m.m_step(*rest))


def flat(contribution):
    return jnp.concatenate([jnp.ravel(x) for x in contribution.values()])


# What a record contributes


@pytest.mark.parametrize(
    "kind", ["full", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
def test_no_record_and_no_state_exceed_the_declared_bound(kind):
    """Sought with gradients: one record moves the sums by sqrt(3) at most, two by sqrt(6), and nearly so."""
    m = model(kind)

    @quick
    @jax.value_and_grad
    def less(v):
        x, means, factors = v[:4].reshape(2, D), v[4:10].reshape(K, D), v[10:].reshape(K, D, D)
        lower = jnp.tril(factors, -1) + jnp.exp(jnp.clip(factors, -3, 3)) * jnp.eye(D)
        covariances = restricted(kind, lower @ jnp.swapaxes(lower, 1, 2))
        one, other = (flat(m.statistics(params_of(m, means, covariances))({"x": row})) for row in x)
        norms = jnp.sqrt(jnp.sum(one**2)), jnp.sqrt(jnp.sum((one - other) ** 2))
        return -(norms[0] / 3**0.5 + norms[1] / 6**0.5)

    rng, worst = np.random.default_rng(0), 0
    for _ in range(4):
        start = rng.normal(size=10 + K * D * D) * np.repeat([3.0, 3.0, 0.3], [4, 6, K * D * D])
        found = optimize.minimize(
            lambda v: tuple(np.asarray(x, float) for x in less(v.astype(f32))), start, jac=True
        )
        worst = max(worst, -found.fun)
    assert (1.97 if kind == "full" else 1.8) < worst <= 2 * (1 + 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_each_block_is_bounded_wherever_a_record_lies(kind):
    m = model(kind)
    rng = np.random.default_rng(1)
    p = params_of(
        m, rng.normal(size=(K, D)).astype(f32), np.tile(np.eye(D, dtype=f32) * f32(0.2), (K, 1, 1))
    )
    x = rng.normal(size=(400, D)) * 10 ** rng.uniform(-3, 6, (400, 1))
    x[-1, 0] = np.nan
    sums = statistics(m, p, x.astype(f32))
    *norms, null = zip(
        *(np.linalg.norm(np.asarray(s, float).reshape(400, -1), axis=1) for s in sums.values()),
        strict=True,
    )
    assert np.isnan(null).all(), "the private sum must see a null record"
    norms = dict(zip(sums, np.transpose(norms), strict=True))
    blocks = m.blocks()
    assert set(norms) == set(blocks) and sum(b.share for b in blocks.values()) == pytest.approx(1)
    for name, norm in norms.items():
        assert norm.max() <= 1 + 1e-5 < blocks[name].clipping_norm < 1.01, name
        assert norm.max() > 0.9
    assert {name: s.shape[1:] for name, s in sums.items()} == {
        name: s.shape for name, s in m.zeros().items()
    }


def test_responsibilities_are_expected_log_densities():
    m, rng = model(radius=1e3), np.random.default_rng(2)
    means, covariance = (
        rng.normal(size=(K, D)).astype(f32),
        np.tile(np.eye(D, dtype=f32), (K, 1, 1)),
    )
    p = params_of(m, means, covariance, 7.0)._replace(concentration=jnp.array([1.0, 2.0, 9.0]))
    x = rng.normal(size=D)
    # E log |precision| and E of the quadratic form, by drawing precisions
    draws = stats.wishart(7, np.eye(D) / 7).rvs(200_000, random_state=0)
    weights = np.log(stats.dirichlet([1, 2, 9]).rvs(200_000, random_state=0)).mean(axis=0)
    log = weights + np.linalg.slogdet(draws)[1].mean() / 2
    log -= [((x - mean) @ draws.mean(axis=0) @ (x - mean) + D / 7) / 2 for mean in means]
    want = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
    np.testing.assert_allclose(m.statistics(p)({"x": x.astype(f32)})["count"], want, atol=0.005)


@pytest.mark.parametrize(("radius", "d"), [(1.5, 1), (2.0, 2), (2.8, 5), (200, 3)])
def test_mean_weights_are_those_of_a_normal_component(radius, d):
    chi2 = stats.chi2(d)
    split = min(radius**2, chi2.isf(1e-9))

    def mean(power):
        of = lambda t: np.minimum(1, radius**2 / t) * t**power * chi2.pdf(t)  # noqa: E731
        return (integrate.quad(of, 0, split)[0] + integrate.quad(of, split, 300)[0]) / d**power

    np.testing.assert_allclose(mean_weights(radius, d), [mean(0), mean(1)], rtol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_carried_to_new_components(kind):
    """They are those that the same responsibilities give about the new ones."""
    m, rng = model(kind, radius=200), np.random.default_rng(3)
    x, r = rng.normal(size=(50, D)), rng.dirichlet(np.ones(K), 50)

    def components():
        root = rng.normal(size=(K, D, D))
        return params_of(
            m,
            rng.normal(size=(K, D)),
            np.array(restricted(kind, jnp.asarray(root @ root.mT + np.eye(D)))),
        )

    def about(p):
        y = np.einsum("kij,nkj->nki", inverse_factor(p.covariance), x[:, None] - p.mean) / m.radius
        second = np.einsum("nk,nki,nkj->kij", r, y, y)
        return {
            "count": r.sum(axis=0),
            "first": np.einsum("nk,nki->ki", r, y),
            "second": {
                "full": second, "tied": second.sum(axis=0), "diag": np.einsum("kii->ki", second),
                "spherical": np.einsum("kii->k", second),
            }[kind],
        }  # fmt: skip

    old, new = components(), components()
    carried = m.carry(about(old), old, new)
    for name, want in about(new).items():
        np.testing.assert_allclose(
            carried[name], want, atol=1e-4 * np.abs(want).max(), err_msg=name
        )


# The M-step


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_it_is_scikit_learns_m_step(kind):
    m, rng = model(kind, radius=200), np.random.default_rng(4)
    x = rng.normal(size=(400, D)) @ [[1, 0.4], [0, 0.5]] + rng.choice([-2, 0, 3], (400, 1))
    p = params_of(m, f32([[-2, -2], [0, 0], [3, 3]]), np.tile(np.eye(D, dtype=f32), (K, 1, 1)))
    sums = statistics(m, p, x.astype(f32))
    got = m_step(m, p, {name: s.sum(axis=0) for name, s in sums.items()}, dict.fromkeys(sums, 0.0))
    prior = 0.3 * (1 if kind == "spherical" else np.ones(D) if kind == "diag" else np.eye(D))
    theirs = BayesianGaussianMixture(
        n_components=K, covariance_type=kind, weight_concentration_prior_type="dirichlet_distribution", reg_covar=0,
        weight_concentration_prior=1.5, mean_precision_prior=2.0, mean_prior=np.zeros(D), covariance_prior=prior,
        degrees_of_freedom_prior=D + 1,
    )  # fmt: skip
    theirs._check_parameters(x, np)
    theirs._m_step(x, np.log(np.maximum(np.asarray(sums["count"], float), 1e-300)))
    freedom = np.broadcast_to(theirs.degrees_of_freedom_, K)
    np.testing.assert_allclose(got.concentration, theirs.weight_concentration_, rtol=1e-4)
    np.testing.assert_allclose(got.freedom, freedom, rtol=1e-4)
    np.testing.assert_allclose(got.mean, theirs.means_, atol=2e-4)
    want = theirs.covariances_
    if kind in ("diag", "spherical"):
        want = np.reshape(want, (K, -1, 1)) * np.eye(D)
    np.testing.assert_allclose(got.covariance, np.broadcast_to(want, (K, D, D)), atol=5e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_where_noise_is_all_there_is_the_start_is_kept(kind):
    m, rng = model(kind, freedom=f32(2)), np.random.default_rng(5)
    p = params_of(
        m,
        f32([[-2, 0], [0, 1], [2, 0]]),
        np.tile(np.eye(D, dtype=f32) / 4, (K, 1, 1)),
        1000.0,
        errors=0.01,
    )
    scales = dict.fromkeys(("count", "first", "second"), 1e4)
    sums = {name: 1e4 * rng.normal(size=s.shape) for name, s in m.zeros().items()}
    got = m_step(m, p, sums, scales)
    np.testing.assert_allclose(got.mean, p.mean, atol=0.02)
    np.testing.assert_allclose(got.covariance, p.covariance, atol=0.02)
    np.testing.assert_allclose(got.noise, 0.01, rtol=0.2)
    wild = m_step(m, p._replace(start=p.start._replace(errors=p.start.errors * 1e9)), sums, scales)
    assert np.isfinite(wild.mean).all() and (np.linalg.eigvalsh(wild.covariance) > 0).all()


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_the_default_scatter_prior_is_that_of_components_however_far_apart(kind):
    """By all rows it would be that of the distance between components, and widen them."""
    m = model(kind, covariance_prior=None, frequencies=frequencies(D, K), freedom=f32(D))
    own = np.tile(f32([[1.0, 0.3], [0.3, 0.5]]), (K, 1, 1))
    for apart in (3, 300):
        means = apart * f32([[-1, 0], [0, 1], [1, 0]])
        p = params_of(m, means, own, 1000.0, errors=1e-6)
        p = p._replace(spread=f32(np.cov(means.T)) + own[0])
        np.testing.assert_allclose(m.marginal(p).scatter, D * own, rtol=2e-3)
    # A start that is hardly known says less: under a small scatter its components could collapse.
    unknown = p._replace(start=p.start._replace(errors=p.start.errors * 1e6))
    np.testing.assert_allclose(m.marginal(unknown).scatter, np.e * D * own, rtol=2e-3)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_the_scatter_prior_of_a_small_component_is_smaller_as_far_as_its_size_is_known(kind):
    """Under the scatter of wide ones it would come out too wide."""
    m = model(kind, covariance_prior=None, frequencies=frequencies(D, K), freedom=f32(D))
    own = f32([1.0, 0.01, 1.0])[:, None, None] * np.eye(D, dtype=f32)
    p = params_of(m, 30 * f32([[-1, 0], [0, 1], [1, 0]]), own, 1000.0, errors=1e-8)
    p = p._replace(start=p.start._replace(count=f32([600, 1, 399])))
    np.testing.assert_allclose(m.marginal(p).scatter, D * own, rtol=5e-3)
    errors = p.start.errors.at[2].set(f32([0, 1, 0]))  # half of it is believed
    found = m.marginal(p._replace(start=p.start._replace(errors=errors))).scatter
    np.testing.assert_allclose(found[1], np.e * D * 0.1 * np.eye(D), rtol=5e-3)
    np.testing.assert_allclose(found[0], D * own[0], rtol=5e-3)


# The sketch


def test_features_have_norm_one_and_the_mean_that_is_expected():
    omega, rng = frequencies(D, K), np.random.default_rng(6)
    weights, means, roots = (
        np.array([0.2, 0.3, 0.5]),
        rng.normal(size=(K, D)),
        0.5 * rng.normal(size=(K, D, D)),
    )
    labels = rng.choice(K, 20_000, p=weights)
    x = means[labels] + np.einsum("nij,nj->ni", roots[labels], rng.normal(size=(20_000, D)))
    values = np.asarray(mapped(lambda row: features(omega, row))(x.astype(f32)))
    np.testing.assert_allclose(np.linalg.norm(values, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(
        values.mean(axis=0), expected_features(omega, weights, means, roots), atol=2e-3
    )
    m = model(frequencies=omega, means=None, weights=None)
    assert len(m.openings()) == 4
    for opening in m.openings():
        null = jax.jit(opening.statistics(m.init()))({"x": jnp.array([jnp.nan, 0.0])})
        assert all(np.isnan(x).any() for x in null.values()), (
            "the private sum must see a null record"
        )


@pytest.mark.slow
@jax.enable_x64(True)
def test_a_mixture_is_found_from_its_sketch():
    weights, means = np.array([0.2, 0.3, 0.5]), np.array([[-1, 1], [1, 0.8], [0, -1.0]])
    roots = np.array([[[0.3, 0], [0.1, 0.4]], [[0.2, 0], [0, 0.2]], [[0.5, 0], [-0.2, 0.3]]])
    omega = np.float64(frequencies(D, K))
    errors, fit_once = (
        {},
        jax.jit(
            lambda value, noise: fit_sketch(
                jax.random.key(0), Sketch(omega, value, 1.2e4, 0.2, 1.0), noise, K, "full"
            )
        ),
    )
    for noise in (1.0, 100.0):
        value = 10_000 * expected_features(omega, weights, means, roots)
        fits = fit_once(value, noise)
        fit = jax.tree.map(lambda x: x[0], fits)
        order = np.argsort(fit.counts)
        errors[noise] = np.asarray(fit.errors)[:, order]
        if noise == 1:
            np.testing.assert_allclose(fit.counts[order] / 1e4, weights, atol=0.01)
            np.testing.assert_allclose(fit.counts.sum(), 1e4, rtol=0.01)
            np.testing.assert_allclose(fit.means[order], means, atol=0.03)
            np.testing.assert_allclose(fit.covariances[order], roots @ roots.mT, atol=0.03)
        repeated = np.isneginf(fits.log_posterior)
        assert repeated.any() and not repeated[0], "copies of the best, which are never chosen"
        for leaf in fits[1:]:
            assert (leaf[repeated] == leaf[0]).all()
    assert (errors[100.0] > 3 * errors[1.0]).all(), "more noise, larger errors"


@pytest.mark.slow
@jax.enable_x64(True)
@pytest.mark.parametrize("kind", KINDS)
def test_mixtures_of_each_kind_are_found_from_their_sketch(kind):
    weights, means = np.array([0.2, 0.3, 0.5]), np.array([[-1, 1], [1, 0.8], [0, -1.0]])
    one, omega = np.diag([0.3, 0.3 if kind == "spherical" else 0.5]), np.float64(frequencies(D, K))
    sizes = np.ones(K) if kind == "tied" else np.array([0.8, 1, 1.2])
    roots = sizes[:, None, None] * one
    value = 1e4 * expected_features(omega, weights, means, roots)
    fits = jax.jit(lambda key: fit_sketch(key, Sketch(omega, value, 1e4, 1e-3, 1.0), 1.0, K, kind))(
        jax.random.key(0)
    )
    order = np.argsort(fits.counts[0])
    np.testing.assert_allclose(fits.means[0][order], means, atol=0.03)
    np.testing.assert_allclose(fits.covariances[0][order], roots @ roots.mT, atol=0.02)
    assert (fits.errors[0, 2] < 0.1).all(), "entries of covariances are known"


@pytest.mark.slow
@jax.enable_x64(True)
def test_the_best_of_many_fits_to_a_sketch_is_found():
    """Five components, of which the fit that is best before it is polished often misses one."""
    rng = np.random.default_rng(5)
    weights, means = rng.dirichlet(np.full(5, 3.0)), 1.5 * rng.normal(size=(5, 2))
    std, omega = np.exp(rng.normal(-0.3, 0.4, (5, 2))), np.float64(frequencies(2, 5))
    spread = np.sqrt(weights @ (means**2 + std**2) - (weights @ means) ** 2)
    roots = std[:, :, None] / spread[:, None] * np.eye(2)
    value = 2e4 * expected_features(omega, weights, (means - weights @ means) / spread, roots)
    fit = jax.jit(lambda key: fit_sketch(key, Sketch(omega, value, 2e4, 1e-3, 1.0), 1.0, 5, "diag"))
    for i in range(6):
        found = fit(jax.random.key(i))
        np.testing.assert_allclose(np.sort(found.counts[0]), 2e4 * np.sort(weights), atol=1e3)


@jax.enable_x64(True)
@pytest.mark.parametrize(("noise", "chosen"), [(1e-3, 1), (1e6, 0)], ids=["rows", "sketch"])
def test_rows_choose_the_start_unless_their_ratios_are_noise(noise, chosen):
    m = model(frequencies=frequencies(D, K), means=None, weights=None)
    rng, truth = np.random.default_rng(8), np.array([[-1.0, 0], [1, 0], [0, 2]])
    rows = truth[rng.choice(K, 3000, p=[0.2, 0.3, 0.5])] + 0.5 * rng.normal(size=(3000, D))
    means = np.stack([truth[::-1], truth, truth[::-1], truth[::-1]])
    count = np.tile(3000 * np.array([0.2, 0.3, 0.5]), (4, 1))
    rivals = Start(count, means, np.tile(0.25 * np.eye(D), (4, K, 1, 1)), np.ones((4, 3, K)))
    params = m.init()._replace(
        rivals=jax.tree.map(f32, rivals), log_posterior=f32([0, -5, -1, -np.inf]), total=f32(3000)
    )
    choice = m.openings()[3]
    ratios = mapped(choice.statistics(params))({"x": rows.astype(f32)})["ratios"]
    shortened = ratios / np.maximum(1, np.linalg.norm(ratios, axis=1, keepdims=True))
    update = jax.jit(lambda *release: choice.update(*release, None))
    after = update(params, {"ratios": shortened.sum(axis=0)}, {"ratios": noise})
    np.testing.assert_array_equal(after.start.mean, rivals.mean[chosen].astype(f32))
    np.testing.assert_array_equal(after.mean, after.start.mean)
    # A row's share is the log-likelihood ratio, up to its unit.
    log = [
        special.logsumexp(
            -0.5 * ((rows[:, None] - means[i]) ** 2 / 0.25).sum(axis=2), axis=1, b=[0.2, 0.3, 0.5]
        )
        for i in (0, 1)
    ]
    np.testing.assert_allclose(np.corrcoef(ratios[:, 0], log[1] - log[0])[0, 1], 1, atol=1e-6)


@jax.enable_x64(True)
def opened(m, rows, noise=1e-5, weight=1.0):
    """Parameters after the columns and the moments of `rows`, with noise of that deviation.

    All but the number of rows counts by a weight, as of persons with many rows.
    """
    params, rng = m.init(), np.random.default_rng(7)
    for opening in m.openings()[:2]:
        shares = mapped(opening.statistics(params))({"x": rows.astype(f32)})
        sums = {
            name: np.float64(leaf.sum(axis=0))
            * (weight if opening.blocks[name].together != "sum" else 1)
            + noise * rng.standard_normal(leaf.shape[1:])
            for name, leaf in shares.items()
        }
        params = opening.update(params, sums, dict.fromkeys(sums, noise), None)
    return params


@pytest.mark.parametrize("kind", ["spherical", "diag", "full"])
def test_rows_are_whitened_so_that_components_stay_of_their_kind(kind):
    m = model(kind=kind, frequencies=frequencies(D, K), means=None, weights=None)
    rows = np.random.default_rng(7).normal(size=(4000, D)) @ [[0.3, 0.02], [0, 0.01]]
    params = opened(m, rows)
    spread, own = np.asarray(params.spread), np.cov(rows.T)
    if kind == "spherical":
        assert spread[0, 0] == spread[1, 1] == pytest.approx(np.trace(own) / 2, rel=0.1)
    else:
        np.testing.assert_allclose(np.diag(spread), np.diag(own), rtol=0.1)
    if kind == "full":
        correlation = spread[0, 1] / np.sqrt(spread[0, 0] * spread[1, 1])
        assert correlation == pytest.approx(0.894, abs=0.01)
    else:
        assert spread[0, 1] == 0
    np.testing.assert_allclose(params.centre, rows.mean(axis=0), atol=0.02)


def test_a_small_group_far_away_is_in_the_moments_and_persons_lighter_weights_are_in_no_total():
    m, rng = (
        model(frequencies=frequencies(D, K), means=None, weights=None),
        np.random.default_rng(7),
    )
    rows = 0.05 * rng.normal(size=(4000, D)) + 0.6 * (rng.random((4000, 1)) < 0.05)
    params = opened(m, rows)
    np.testing.assert_allclose(params.spread, np.cov(rows.T), rtol=0.1)
    assert params.total == pytest.approx(4000, rel=1e-3)
    lighter = opened(m, rows, weight=0.6)
    np.testing.assert_allclose(lighter.spread, np.cov(rows.T), rtol=0.1)
    assert lighter.total == params.total
    sampled = opened(replace(m, sampling_rate=f32(0.2)), rows)
    assert sampled.total_error == pytest.approx(0.0316, rel=0.05) and params.total_error < 0.01


@jax.enable_x64(True)
@pytest.mark.parametrize("noise", [0.1, 40.0])
def test_location_and_size_of_columns_are_found_whatever_the_range(noise):
    """Of two groups both are in; of a narrow column far from the middle, the place."""
    rng = np.random.default_rng(9)
    groups = rng.choice([-0.3, 0.3], 2000) + 0.003 * rng.normal(size=2000)
    rows = np.stack([groups, 0.6 + 0.02 * rng.normal(size=2000), 0.7 * rng.normal(size=2000)], 1)
    value = np.asarray(mapped(waves)(rows.astype(f32)))
    np.testing.assert_allclose(np.sqrt((value**2).sum(axis=(1, 2, 3))), 1, atol=1e-5)
    value = value.sum(axis=0, dtype=float) + noise * rng.standard_normal(value.shape[1:])
    found = fit_columns(jnp.asarray(value), 2000.0, noise, 1.0)
    near = 0.3 if noise < 1 else 0.5
    np.testing.assert_allclose(found.std / rows.std(axis=0), 1, atol=near)
    assert (abs(found.centre - rows.mean(axis=0)) < near * rows.std(axis=0)).all()
    if noise < 1:
        return
    # Of noise alone nothing is believed.
    blind = fit_columns(jnp.asarray(noise * rng.standard_normal(value.shape)), 1.0, noise, 1.0)
    assert (abs(blind.centre) < 0.5).all() and ((0.1 < blind.std) & (blind.std < 1)).all()


@jax.enable_x64(True)
def test_moments_that_hide_in_noise_stay_those_of_the_columns():
    m = model(frequencies=frequencies(D, K), means=None, weights=None)
    params = m.init()._replace(
        centre=f32([0.2, -0.1]), spread=np.diag(f32([0.04, 0.09])), total=f32(1000)
    )
    moments = m.openings()[1]
    zero = {"count": np.ones(1) * 1000, "first": np.zeros((1, D)), "second": np.zeros((1, D, D))}
    wild = jax.tree.map(lambda x: x + 3000 * np.random.default_rng(3).normal(size=x.shape), zero)
    after = moments.update(params, wild, dict.fromkeys(zero, 3000.0), None)
    np.testing.assert_allclose(np.diag(after.spread), [0.04, 0.09], rtol=0.5)
    assert (np.linalg.eigvalsh(after.spread) > 0.01).all()
    np.testing.assert_allclose(after.centre, [0.2, -0.1], atol=0.1)


@pytest.mark.slow
@jax.enable_x64(True)
def test_a_sketch_of_fewer_records_has_larger_errors():
    omega = np.float64(frequencies(D, 2))
    means, roots = np.array([[-1, 0], [1, 0.0]]), 0.5 * np.array([np.eye(2)] * 2)
    value = 1e5 * expected_features(omega, np.array([0.4, 0.6]), means, roots)
    fit = jax.jit(
        lambda rate: fit_sketch(
            jax.random.key(0), Sketch(omega, value, 1e5, 1e-3, rate), 1.0, 2, "diag"
        )
    )
    whole, sampled = (np.asarray(fit(rate).errors[0]) for rate in (1.0, 0.1))
    np.testing.assert_allclose(sampled, 10 * whole, rtol=0.2)  # sampling is nearly all of them
