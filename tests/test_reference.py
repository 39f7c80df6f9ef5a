"""The exact sampler beside numerical integration, and what it takes."""

import numpy as np
import pytest
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from skdpbayes.reference import logistic_gibbs

DRAWS = 4000


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = 1 + rng.normal(size=(60, 1))
    return X, (1.5 * X[:, 0] - 1 + rng.logistic(size=60) > 0).astype(int)


def integrated(rows, y, prior_scale):
    """Mean and covariance of two coefficients, on a grid that ends where nothing is left."""
    axis = np.linspace(-8, 8, 401)
    theta = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    signed = (theta @ rows.T) * (2 * y - 1)
    log_density = -np.logaddexp(0, -signed).sum(axis=1) - 0.5 * ((theta / prior_scale) ** 2).sum(
        axis=1
    )
    weight = np.exp(log_density - log_density.max())
    mean = weight @ theta / weight.sum()
    return mean, np.cov(theta.T, aweights=weight, ddof=0)


@pytest.mark.parametrize("prior_scale", [1.0, (0.5, 2.0)])
def test_moments_are_those_of_numerical_integration(data, prior_scale):
    X, y = data
    draws = logistic_gibbs(
        X, y, prior_scale=prior_scale, n_draws=DRAWS, n_burn=200, n_chains=2, random_state=1
    )
    assert draws.shape == (2, DRAWS, 2)
    assert split_gelman_rubin(draws).max() < 1.01
    n = effective_sample_size(draws).min()
    assert n > 1000
    mean, covariance = integrated(np.c_[X, np.ones(60)], y, np.asarray(prior_scale))
    sd, flat = np.sqrt(np.diag(covariance)), draws.reshape(-1, 2)
    np.testing.assert_allclose((flat.mean(axis=0) - mean) / sd, 0, atol=4 / n**0.5)
    found = np.cov(flat.T) / np.outer(sd, sd)
    np.testing.assert_allclose(found, covariance / np.outer(sd, sd), atol=4 * (2 / n) ** 0.5)


def test_without_records_of_one_class_the_prior_keeps_it_proper(data):
    draws = logistic_gibbs(
        data[0], np.ones(60, bool), fit_intercept=False, n_draws=50, n_burn=10, n_chains=1
    )
    assert draws.shape == (1, 50, 1) and np.isfinite(draws).all()


def test_chains_are_fixed_by_the_seed_and_differ(data):
    first, again = (
        logistic_gibbs(*data, n_draws=20, n_burn=0, n_chains=2, random_state=3) for _ in range(2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_draws": 0}, "n_draws must be at least 1, got 0"),
        ({"n_chains": 0}, "n_chains must be at least 1"),
        ({"prior_scale": (1.0, 0.0)}, "prior_scale must be positive"),
        ({"y": ["a", "b"] * 30}, "y must hold 0 and 1"),
        ({"y": [0, 1]}, "inconsistent numbers of samples"),
        ({"X": [[np.nan]] * 60}, "contains NaN"),
    ],
)
def test_what_makes_no_sense_is_refused(data, wrong, message):
    X, y = data
    with pytest.raises(ValueError, match=message):
        logistic_gibbs(**{"X": X, "y": y, "n_draws": 2, "n_burn": 0, **wrong})
