"""The regression behind noise-aware post-processing, against quadrature of the joint density of the trace itself."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import _na_dpvi_collapsed as _collapsed
from benchmarks._na_dpvi_collapsed import (
    Regression,
    TraceSums,
    accumulate,
    exact,
    laplace,
    nuts,
    softplus,
)

pytestmark = pytest.mark.slow

KAPPA = 0.1
NO_OMEGA = np.zeros(1), np.ones(1)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def simulated(rng, n, a, optimum, V, omega=0.0, learning_rate=0.3):
    """Points and noisy gradients of descent on a quadratic, (n, d) each."""
    point, points, gradients = optimum + 1.0, [], []
    for _ in range(n):
        g = KAPPA * a * (point - optimum) + np.sqrt(V + omega**2) * rng.standard_normal(np.shape(a))
        points.append(point)
        gradients.append(g)
        point = point - learning_rate * g
    return np.array(points), np.array(gradients)


def sums_of(x, g):
    sums = TraceSums.zeros(x.shape[1:])
    for point, gradient in zip(x, g, strict=True):
        sums = accumulate(sums, point, gradient)
    return sums


def spread_variance(a):
    """A prior variance of x* that depends on a, bounded."""
    return 0.2 + 1 / (1 + a**2)


@pytest.fixture(scope="module")
def problem():
    """Three coordinates: a slope seen well, one hardly seen, and a prior in conflict with the trace."""
    rng = np.random.default_rng(1)
    a, optimum, V = np.array([6.0, 0.8, 3.0]), np.array([0.5, -1.0, 2.0]), np.array([0.3, 0.5, 0.2])
    x, g = simulated(rng, 40, a, optimum, V)
    regression = Regression(
        sums_of(x, g), V, KAPPA, v_mean=np.array([5.0, 1.0, 1.0]), v_sd=np.array([2.0, 1.5, 0.7]),
        prior_mean=np.array([0.0, -0.5, 1.0]), prior_variance=spread_variance,
    )  # fmt: skip
    return regression, x, g


def panels(low, high, n):
    edges = np.linspace(low, high, n + 1)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1 + NODES)).ravel(), np.broadcast_to(
        half * WEIGHTS, (n, 20)
    ).ravel()


def by_brute_force(regression, x, g, j, omegas=NO_OMEGA):
    """Mean and sd of x*, mean of a and of omega, in coordinate j, by quadrature over (omega, v, x*) of the trace."""
    m, s, p = (
        np.broadcast_to(y, x.shape[1:])[j]
        for y in (regression.v_mean, regression.v_sd, regression.prior_mean)
    )
    V = regression.noise_variance[j]
    (v, wv), (z, wz), (omega, wo) = panels(m - 9 * s, m + 9 * s, 16), panels(-12, 14, 16), omegas
    a, W = np.logaddexp(0, v)[:, None], (V + omega**2)[:, None, None]
    r = regression.prior_variance(a)
    log_density = -0.5 * (
        ((v - m) / s)[:, None] ** 2 + (z - p) ** 2 / r + np.log(r)
    ) + np.zeros_like(W)
    if regression.subsampling is not None:
        log_density = log_density - 0.5 * (omega[:, None, None] / regression.subsampling) ** 2
    for point, gradient in zip(x[:, j], g[:, j], strict=True):
        log_density -= 0.5 * (np.log(W) + (gradient - KAPPA * a * (point - z)) ** 2 / W)
    weight = np.exp(log_density - log_density.max()) * wo[:, None, None] * wv[:, None] * wz
    weight /= weight.sum()
    mean = np.sum(weight * z)
    sd = np.sqrt(np.sum(weight * (z - mean) ** 2))
    return mean, sd, np.sum(weight * a), np.sum(weight * omega[:, None, None])


def test_sums_are_those_of_the_stored_trace():
    rng = np.random.default_rng(0)
    x, g = rng.normal(3, 1, (500, 4)), rng.normal(-2, 5, (500, 4))
    weight = rng.uniform(0.5, 2, (500, 1)) * np.ones(4)
    weight[::7] = 0
    mean_x, mean_g = (np.average(y, axis=0, weights=weight) for y in (x, g))
    dx, dg = x - mean_x, g - mean_g
    moments = ((weight * y).sum(axis=0) for y in (dx**2, dx * dg, dg**2))
    expected = TraceSums(weight.sum(axis=0), mean_x, mean_g, *moments)

    @jax.jit
    def compiled(x, g, weight):
        return jax.lax.fori_loop(
            0,
            len(x),
            lambda t, sums: accumulate(sums, x[t], g[t], weight[t]),
            TraceSums.zeros(4, x.dtype),
        )

    for found, want in zip(compiled(*map(jnp.float32, (x, g, weight))), expected, strict=True):
        np.testing.assert_allclose(found, want, rtol=2e-5)
    sums = TraceSums.zeros(4)
    for row in zip(x, g, weight, strict=True):
        sums = accumulate(sums, *row)
    for found, want in zip(sums, expected, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-12)


@pytest.mark.parametrize("j", range(3))
def test_exact_is_the_posterior(problem, j):
    regression, x, g = problem
    found = exact(regression)
    mean, sd, a_mean, _ = by_brute_force(regression, x, g, j)
    assert (found.mean[j] - mean) / sd == pytest.approx(0, abs=1e-6)
    assert found.sd[j] == pytest.approx(sd, rel=1e-6)
    assert found.a_mean[j] == pytest.approx(a_mean, rel=1e-6)


def test_exact_with_unknown_subsampling_noise():
    rng = np.random.default_rng(2)
    V = np.array([0.2])
    x, g = simulated(rng, 25, np.array([4.0]), np.array([0.5]), V, omega=0.6)
    regression = Regression(sums_of(x, g), V, KAPPA, 4.0, 1.5, 0.0, subsampling=1.0)
    found = exact(regression)
    mean, sd, a_mean, omega_mean = by_brute_force(regression, x, g, 0, panels(0, 7, 5))
    assert (found.mean[0] - mean) / sd == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(
        [found.sd[0], found.a_mean[0], found.omega_mean[0]], [sd, a_mean, omega_mean], rtol=1e-6
    )
    known = exact(dataclasses.replace(regression, subsampling=None))
    assert known.sd[0] < 0.95 * sd  # who takes omega for zero is too sure


def test_leading_axes_are_replicates(problem):
    regression, *_ = problem
    one, scale = exact(regression), np.array([[1.0], [2.0]])
    both = exact(dataclasses.replace(regression, noise_variance=regression.noise_variance * scale))
    assert both.mean.shape == both.sd.shape == both.a_mean.shape == (2, 3)
    np.testing.assert_allclose(both.mean[0], one.mean, rtol=1e-12)
    assert (both.sd[1] > 1.02 * one.sd).all()
    x, a = both.sample(np.random.default_rng(0), 7)
    assert x.shape == a.shape == (7, 2, 3)


def test_the_prior_without_rounds():
    found = exact(
        Regression(
            TraceSums.zeros(2), 1.0, KAPPA, 1.0, 0.5, 3.0, prior_variance=lambda a: 4.0 + 0 * a
        )
    )
    np.testing.assert_allclose(found.mean, 3, rtol=1e-9)
    np.testing.assert_allclose(found.sd, 2, rtol=1e-9)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    np.testing.assert_allclose(
        found.a_mean, softplus(1 + 0.5 * nodes) @ weights / weights.sum(), rtol=1e-9
    )


def test_a_round_of_weight_two_is_two_rounds(problem):
    regression, x, g = problem
    sums = TraceSums.zeros(3)
    for point, gradient in zip(x, g, strict=True):
        sums = accumulate(sums, point, gradient, 2.0)
    twice = exact(dataclasses.replace(regression, sums=sums))
    doubled = exact(
        dataclasses.replace(
            regression, sums=sums_of(np.repeat(x, 2, axis=0), np.repeat(g, 2, axis=0))
        )
    )
    np.testing.assert_allclose(twice.mean, doubled.mean, rtol=1e-9)
    np.testing.assert_allclose(twice.sd, doubled.sd, rtol=1e-9)
    assert (twice.sd < exact(regression).sd).all()


@pytest.mark.parametrize("subsampling", [None, 0.5])
def test_draws_are_of_the_posterior(problem, subsampling):
    regression = dataclasses.replace(problem[0], subsampling=subsampling)
    found = exact(regression)
    x, a = found.sample(np.random.default_rng(0), 40_000)
    np.testing.assert_allclose((x.mean(axis=0) - found.mean) / found.sd, 0, atol=0.02)
    np.testing.assert_allclose(x.std(axis=0) / found.sd, 1, atol=0.02)
    np.testing.assert_allclose(a.mean(axis=0) / found.a_mean, 1, atol=0.02)
    assert len(np.unique(a[:, 0])) == 40_000  # points inside of the cells


@pytest.mark.parametrize("sd_of_v", [3.0, 1e3, 1e6])
def test_a_flat_prior_leaves_a_tail_where_the_trace_sees_no_slope(monkeypatch, sd_of_v):
    """Mass beside a narrow peak, and a second moment from where there is hardly any: a much finer grid agrees."""
    rng = np.random.default_rng(3)
    x, g = simulated(
        rng,
        8000,
        np.array([900.0, 60.0]),
        np.array([0.2, 0.1]),
        np.array([1e4, 1e4]),
        learning_rate=1e-4,
    )
    regression = Regression(sums_of(x, g), 1e4, KAPPA, 500.0, sd_of_v, 0.0)
    coarse = exact(regression)
    monkeypatch.setattr(_collapsed, "_PANELS", 1500)
    monkeypatch.setattr(_collapsed, "_REFINED", (4000, 48))
    fine = exact(regression)
    np.testing.assert_allclose((coarse.mean - fine.mean) / fine.sd, 0, atol=1e-4)
    np.testing.assert_allclose(coarse.sd, fine.sd, rtol=1e-4)


def test_no_scale_is_missed(monkeypatch):
    """Slopes, noise and widths over many orders of magnitude, priors that the trace contradicts."""
    rng, m = np.random.default_rng(6), 400
    n, V, a = (
        rng.integers(2, 10_000, m) * 1.0,
        10 ** rng.uniform(-4, 6, m),
        10 ** rng.uniform(-2, 5, m),
    )
    sxx = n * 10 ** rng.uniform(-6, 2, m)
    slope = KAPPA * a + np.sqrt(V / sxx) * rng.normal(size=m)
    sums = TraceSums(
        n, 0.0, KAPPA * a * rng.normal(size=m), sxx, slope * sxx, slope**2 * sxx + V * n
    )
    regression = Regression(
        sums, V, KAPPA, a * 10 ** rng.uniform(-1, 1, m), 10 ** rng.uniform(-3, 5, m), 0.0
    )
    usual = exact(regression)
    monkeypatch.setattr(_collapsed, "_PANELS", 1200)
    monkeypatch.setattr(_collapsed, "_REFINED", (3000, 48))
    fine = exact(regression)
    np.testing.assert_allclose((usual.mean - fine.mean) / fine.sd, 0, atol=0.01)
    np.testing.assert_allclose(usual.sd, fine.sd, rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("subsampling", [None, 0.5])
def test_nuts_agrees_where_it_has_converged(problem, subsampling):
    # Narrower priors of v than elsewhere: second moments of heavy tails take Monte Carlo too long.
    regression = dataclasses.replace(
        problem[0], subsampling=subsampling, v_sd=np.array([1.0, 0.8, 0.7])
    )
    found, drawn = exact(regression), nuts(regression, n_warmup=300, n_samples=12_000, n_chains=1)
    converged = (drawn.r_hat < 1.01) & (drawn.ess > 1000)
    assert converged.sum() >= 2
    np.testing.assert_allclose(((drawn.mean - found.mean) / found.sd)[converged], 0, atol=0.05)
    np.testing.assert_allclose((drawn.sd / found.sd)[converged], 1, atol=0.05)
    np.testing.assert_allclose((drawn.a_mean / found.a_mean)[converged], 1, atol=0.05)
    x, a = drawn.sample(np.random.default_rng(0), 5000)
    np.testing.assert_allclose((x.mean(axis=0) - drawn.mean) / drawn.sd, 0, atol=0.08)
    assert x.shape == a.shape == (5000, 3)


def test_laplace_is_the_mode_and_the_hessian_there(problem):
    regression, x, g = problem
    found = laplace(regression)

    def minus_log_density(z, x, g, V, v_mean, v_sd, p):
        v, optimum = z
        a = jax.nn.softplus(v)
        r = spread_variance(a)
        prior = ((v - v_mean) / v_sd) ** 2 + jnp.log(r) + (optimum - p) ** 2 / r
        return 0.5 * (prior + jnp.sum((g - KAPPA * a * (x - optimum)) ** 2) / V)

    arguments = regression.noise_variance, regression.v_mean, regression.v_sd, regression.prior_mean
    x_drawn, a_drawn = found.sample(np.random.default_rng(0), 100_000)
    with jax.enable_x64(True):
        slope, hessian = (
            jax.jit(jax.grad(minus_log_density)),
            jax.jit(jax.hessian(minus_log_density)),
        )
        for j in range(3):
            at = (
                np.array([found._mode[j, 0], found.mean[j]]),
                x[:, j],
                g[:, j],
                *(y[j] for y in arguments),
            )
            covariance, gradient = np.linalg.inv(hessian(*at)), np.asarray(slope(*at))
            assert gradient @ covariance @ gradient < 1e-10
            assert found.sd[j] == pytest.approx(covariance[1, 1] ** 0.5, rel=1e-5)
            v_drawn = _collapsed.softplus_inverse(a_drawn[:, j])
            np.testing.assert_allclose(
                np.cov(v_drawn, x_drawn[:, j]), covariance, rtol=0.03, atol=0.01 * found.sd[j]
            )
            assert found.a_mean[j] == pytest.approx(a_drawn[:, j].mean(), rel=0.02)


def test_laplace_is_exact_in_the_limit():
    rng = np.random.default_rng(4)
    x, g = simulated(rng, 20_000, np.array([5.0]), np.array([0.3]), np.array([0.3]))
    regression = Regression(sums_of(x, g), 0.3, KAPPA, 5.0, 2.0, 0.0)
    normal, found = laplace(regression), exact(regression)
    assert (normal.mean - found.mean) / found.sd == pytest.approx(0, abs=0.02)
    assert normal.sd / found.sd == pytest.approx(1, abs=0.01)


def test_laplace_refuses_unknown_subsampling_noise(problem):
    with pytest.raises(ValueError, match="subsampling=None"):
        laplace(dataclasses.replace(problem[0], subsampling=1.0))


def seconds(call):
    """Processor time of the fastest of five."""
    times = []
    for _ in range(5):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("subsampling", [None, 50.0])
def test_cost_does_not_depend_on_the_trace(subsampling):
    """And is that of some eigendecompositions, machines being unequal: hundredths of a second."""
    rng = np.random.default_rng(5)
    a, V = rng.gamma(2, 500, 24), rng.uniform(50, 300, 24) ** 2
    sums = sums_of(*simulated(rng, 8000, a, rng.normal(size=24), V, learning_rate=1e-4))
    regression = Regression(sums, V, KAPPA, a, 200.0, 0.0, subsampling=subsampling)
    matrix = rng.normal(size=(300, 300))
    unit = seconds(lambda: np.linalg.eigh(matrix @ matrix.T))
    assert seconds(lambda: exact(regression)) < (5 if subsampling is None else 40) * unit
