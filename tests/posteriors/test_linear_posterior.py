"""Posterior given noisy sums of products: its density by brute force, its limits, and how often intervals cover."""

import math

import numpy as np
import pytest
from scipy import stats

from skdpbayes.posteriors import linear as noisy
from skdpbayes.posteriors.linear import Moments, Prior, moments_posterior

PRIOR = Prior(0.5, 10.0, 0.15)


def simulated(rng, n, d, noise, intercept=True):
    """Parameters (log s2, w) from the prior, and noisy sums of uniform rows."""
    s2 = PRIOR.scale / rng.gamma(PRIOR.shape)
    x = rng.uniform(-1, 1, (n, d))
    x = np.column_stack([x, np.ones(n)]) if intercept else x
    w = rng.normal(size=x.shape[1]) * math.sqrt(s2 / PRIOR.precision)
    y = x @ w + math.sqrt(s2) * rng.normal(size=n)
    gram_noise = noise * rng.normal(size=(len(w), len(w)))
    gram = x.T @ x + (gram_noise + gram_noise.T) / 2
    others = noise * rng.normal(size=len(w) + 2)
    moments = Moments(gram, x.T @ y + others[2:], y @ y + others[0], n + others[1], n, (noise,) * 4)
    return np.append(math.log(s2), w), moments, (x, y)


def test_the_density_is_that_of_the_released_residuals():
    """By the covariance of all sources of noise, and a matrix that maps them to the residuals."""
    rng, p = np.random.default_rng(0), 4
    _, moments, _ = simulated(rng, 500, p - 1, 30.0)
    norm = (0.8 * np.trace(moments.gram) / 450) ** 0.5  # for a mean weight of 0.8
    moments = moments._replace(noise=(30.0, 20.0, 10.0, 5.0), weight=450.0, row_norm=norm)
    spreads, weight = noisy._Spreads(400.0, 600.0), 450.0
    values, last = rng.uniform(50, 200, p), np.eye(p)[-1]
    density = noisy._Density(values, last, spreads, moments.cross, weight, moments, PRIOR)
    points = np.column_stack([rng.uniform(-4, -1, 5), rng.normal(size=(5, p))])
    expected = [brute_force(point, values, spreads, weight, moments) for point in points]
    np.testing.assert_allclose(density(points), expected, rtol=1e-9)


def brute_force(point, values, spreads, weight, moments):
    (s2, w), p = (math.exp(point[0]), point[1:]), len(values)
    share = moments.mean_weight
    sources = [
        (np.append(np.eye(p)[j], 0), s2 * share * values[j]) for j in range(p)
    ]  # of sampling
    sources.append((np.append(np.zeros(p), 1), 2 * s2**2 * share * weight))
    sources += [(np.append(np.eye(p)[j], -2 * w[j]), moments.noise[1] ** 2) for j in range(p)]
    sources.append(
        (np.append(np.zeros(p), 1), moments.noise[2] ** 2 + (s2 * moments.noise[3]) ** 2)
    )
    covariance = sum(variance * np.outer(v, v) for v, variance in sources)
    # Of the Gram matrix: as if all entries had the spread of the features', and what its last row
    # has beyond that.
    inner = spreads.inner / 2 * (w @ w * np.eye(p) + np.outer(w, w))
    features = w[:-1] @ w[:-1]
    own = spreads.border / 2 * features + moments.noise[3] ** 2 * w[-1] ** 2
    inner[-1, -1] += max(own - inner[-1, -1], -spreads.inner / 2 * features)
    to_residuals = np.vstack([-np.eye(p), w])
    covariance += to_residuals @ inner @ to_residuals.T
    h = moments.square - 2 * w @ moments.cross + w**2 @ values - s2 * weight
    log = stats.multivariate_normal(np.zeros(p + 1), covariance).logpdf(
        np.append(moments.cross - values * w, h)
    )
    log_prior = stats.norm(0, math.sqrt(s2 / PRIOR.precision)).logpdf(w).sum()
    log_prior += stats.invgamma(PRIOR.shape, scale=PRIOR.scale).logpdf(s2) + point[0]
    # The density leaves out what does not depend on the parameters.
    constants = -(p + 1) / 2 * math.log(2 * math.pi) + p / 2 * math.log(
        PRIOR.precision / (2 * math.pi)
    )
    return (
        log + log_prior - constants - PRIOR.shape * math.log(PRIOR.scale) + math.lgamma(PRIOR.shape)
    )


@pytest.mark.parametrize("intercept", [True, False])
def test_with_little_noise_it_is_the_exact_posterior(intercept):
    _, moments, _ = simulated(np.random.default_rng(1), 3000, 3, 1e-3, intercept)
    found = moments_posterior(moments, PRIOR, intercept=intercept)
    exact = moments_posterior(moments._replace(noise=(0.0,) * 4), PRIOR, intercept=intercept)
    np.testing.assert_allclose((found.mean - exact.mean) / exact.std, 0, atol=0.15)
    np.testing.assert_allclose(found.std, exact.std, rtol=0.1)


@pytest.mark.parametrize("noise", [1e6, 1e12])
def test_with_nothing_but_noise_it_is_the_prior(noise):
    _, moments, _ = simulated(np.random.default_rng(2), 1000, 3, noise)
    found = moments_posterior(moments, PRIOR, intercept=True)
    log_variance = -stats.loggamma(PRIOR.shape).mean() + math.log(PRIOR.scale)
    spread = math.sqrt(PRIOR.scale / (PRIOR.shape - 1) / PRIOR.precision)
    assert found.mean[0] == pytest.approx(log_variance, abs=0.1)
    np.testing.assert_allclose(found.mean[1:], 0, atol=0.15 * spread)
    np.testing.assert_allclose(found.std[1:], spread, rtol=0.1)


def test_the_same_sums_give_the_same_draws_and_every_sum_gives_some():
    rng = np.random.default_rng(3)
    _, moments, _ = simulated(rng, 1000, 2, 50.0)
    draws = [moments_posterior(moments, PRIOR, intercept=True).draws for _ in range(2)]
    np.testing.assert_array_equal(*draws)
    for sign in (1, -1):  # sums that no records have
        odd = moments._replace(
            gram=-sign * moments.gram, square=-sign * 1e4, cross=1e4 * moments.cross, weight=-5.0
        )
        assert np.isfinite(moments_posterior(odd, PRIOR, intercept=True).draws).all()


SIZES = [
    (2000, 2, 150.0),
    *(pytest.param(*size, marks=pytest.mark.slow) for size in [(2000, 2, 15.0), (3000, 6, 60.0)]),
]


@pytest.mark.parametrize(("n", "d", "scale"), SIZES)
def test_intervals_cover(monkeypatch, n, d, scale):
    monkeypatch.setattr(noisy, "_KEPT", 8)  # a shorter run, with draws enough
    rng, inside = np.random.default_rng(4), []
    for _ in range(70):
        truth, moments, _ = simulated(rng, n, d, scale)
        draws = moments_posterior(moments, PRIOR, intercept=True).draws.reshape(-1, d + 2)
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        inside.append((low < truth) & (truth < high))
    inside = np.array(inside)
    for part in (inside[:, 0], inside[:, 1:].mean(axis=1)):
        assert part.mean() == pytest.approx(
            0.9, abs=4 * max(part.std(), 0.1) / math.sqrt(len(part))
        )
