"""Normal priors, and the gamma hyper-prior of their precision."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from skdpbayes.models.base import prior_variance
from skdpbayes.solvers._normal import normal_given


class Model(NamedTuple):
    """Normal prior about a mean that is not zero."""

    centre: np.ndarray
    scale: np.ndarray
    hyper_prior: tuple | None = None

    def init(self):
        return jnp.asarray(self.centre)

    def prior_precision(self):
        return jnp.asarray(self.scale) ** -2.0


CENTRE, SCALE = np.array([0.5, -1.0, 0.0, 2.0]), np.array([1.0, 2.0, 0.5, 1.0])


def likelihood(strength, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(4, 4))
    return strength * root @ root.T, strength * rng.normal(size=4)


def moments(model, information, linear):
    with jax.enable_x64(True):
        mean, precision = normal_given(model, jnp.asarray(information), jnp.asarray(linear))
    return np.asarray(mean), np.linalg.inv(precision)


def test_a_fixed_prior():
    information, linear = likelihood(3.0)
    mean, covariance = moments(Model(CENTRE, SCALE), information, linear)
    precision = information + np.diag(SCALE**-2)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-9)
    np.testing.assert_allclose(mean, np.linalg.solve(precision, linear + CENTRE / SCALE**2), rtol=1e-6)


@pytest.mark.parametrize("hyper_prior", [(2.0, 1.0), (1.5, 0.3), (50.0, 50.0)])
@pytest.mark.parametrize("strength", [0.3, 10.0, 1000.0])
def test_a_hyper_prior_is_integrated_out(strength, hyper_prior):
    """Against sums over a fine grid of the factor, each with its evidence by determinants."""
    information, linear = likelihood(strength)
    about = linear - information @ CENTRE
    shape, rate = hyper_prior
    logs, means, covariances = [], [], []
    for factor in np.geomspace(1e-10, 1e4, 1000) * shape / rate:
        prior = factor / SCALE**2
        precision = information + np.diag(prior)
        mean = np.linalg.solve(precision, about)
        evidence = np.log(prior).sum() - np.linalg.slogdet(precision)[1] + about @ mean
        logs.append(evidence / 2 + stats.gamma(shape, scale=1 / rate).logpdf(factor) + np.log(factor))
        means.append(mean)
        covariances.append(np.linalg.inv(precision))
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    mean = weights @ np.array(means)
    covariance = np.einsum("k,kij->ij", weights, covariances) + np.cov(np.array(means).T, aweights=weights, bias=True)
    found = moments(Model(CENTRE, SCALE, hyper_prior), information, linear)
    np.testing.assert_allclose(found[0], CENTRE + mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], covariance, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("shape", [1.5, 3.0])
def test_without_data_the_prior_remains(shape):
    with jax.enable_x64(True):
        model = Model(CENTRE, SCALE, (shape, 4.0))
        mean, covariance = moments(model, np.zeros((4, 4)), np.zeros(4))
        variance = np.asarray(prior_variance(model))
    np.testing.assert_allclose(np.diag(covariance), variance, rtol=1e-3)
    np.testing.assert_allclose(variance, SCALE**2 * 4 / (shape - 1), rtol=1e-6)  # of a scaled t distribution
    np.testing.assert_allclose(mean, CENTRE, atol=1e-6)


def test_a_sharp_hyper_prior_is_a_fixed_prior():
    information, linear = likelihood(3.0)
    sharp = moments(Model(CENTRE, SCALE, (1e5, 2.5e4)), information, linear)
    fixed = moments(Model(CENTRE, SCALE / 2), information, linear)
    np.testing.assert_allclose(sharp[0], fixed[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(sharp[1], fixed[1], rtol=1e-2, atol=1e-4)
