"""Posteriors under normal and Student t priors, given a quadratic log-likelihood."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from skdpbayes.solvers.normal_posterior import normal_given


class Model(NamedTuple):
    """Prior about a centre that is not zero."""

    centre: np.ndarray
    scale: np.ndarray
    prior_df: float | None = None

    def init(self):
        return jnp.asarray(self.centre)

    def prior_precision(self):
        return jnp.asarray(self.scale) ** -2.0

    def prior_degrees(self):
        return None if self.prior_df is None else jnp.full(self.scale.shape, self.prior_df)


CENTRE, SCALE = np.array([0.5, -1.0, 0.0, 2.0]), np.array([1.0, 2.0, 0.5, 1.0])


def likelihood(strength, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(4, 4))
    return strength * root @ root.T, strength * rng.normal(size=4)


def moments(model, information, linear, steps=200):
    """Mean and covariance at the fixed point."""
    with jax.enable_x64(True):
        information, linear = jnp.asarray(information), jnp.asarray(linear)
        mean, covariance = jnp.asarray(model.centre), jnp.diag(jnp.asarray(model.scale) ** 2)
        for _ in range(steps):
            mean, precision = normal_given(model, information, linear, (mean, covariance))
            covariance = jnp.linalg.inv(precision)
    return np.asarray(mean), np.asarray(covariance)


def test_a_normal_prior():
    information, linear = likelihood(3.0)
    mean, covariance = moments(Model(CENTRE, SCALE), information, linear, steps=1)
    precision = information + np.diag(SCALE**-2)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-9)
    np.testing.assert_allclose(
        mean, np.linalg.solve(precision, linear + CENTRE / SCALE**2), rtol=1e-6
    )


@pytest.mark.parametrize("seen", [-3.0, 0.3, 2.0, 12.0])
@pytest.mark.parametrize("noise", [0.2, 1.0])
def test_a_student_t_prior_is_near_to_the_exact_posterior(seen, noise):
    """One parameter seen with noise, beside quadrature; a normal prior would be off by far more where it is large."""
    model, df = Model(np.array([0.5]), np.array([1.5])), 4.0
    information, linear = np.array([[noise**-2]]), np.array([seen / noise**2])
    mean, covariance = moments(model._replace(prior_df=df), information, linear)
    grid = np.linspace(-40, 60, 200_001)
    weights = stats.t(df, 0.5, 1.5).pdf(grid) * stats.norm(seen, noise).pdf(grid)
    weights /= weights.sum()
    wanted = weights @ grid
    assert abs(mean[0] - wanted) < 0.1 * noise
    np.testing.assert_allclose(
        np.sqrt(covariance[0, 0]), np.sqrt(weights @ (grid - wanted) ** 2), rtol=0.1
    )


def test_variational_bayes_of_a_student_t_prior():
    """The fixed point is that of coordinate ascent over normal parameters and gamma distributed precisions."""
    information, linear = likelihood(1.0)
    df, about = 5.0, linear - information @ CENTRE
    found = moments(Model(CENTRE, SCALE, df), information, linear)
    precisions = np.ones(4)
    for _ in range(500):
        covariance = np.linalg.inv(information + np.diag(precisions / SCALE**2))
        mean = covariance @ about
        rate = df / 2 + (mean**2 + np.diag(covariance)) / SCALE**2 / 2
        precisions = stats.gamma(df / 2 + 0.5, scale=1 / rate).mean()
    np.testing.assert_allclose(found[0], CENTRE + mean, rtol=1e-6)
    np.testing.assert_allclose(found[1], covariance, rtol=1e-6)


def test_without_data_the_scale_of_the_prior_remains():
    mean, covariance = moments(Model(CENTRE, SCALE, 4.0), np.zeros((4, 4)), np.zeros(4))
    np.testing.assert_allclose(np.diag(covariance), SCALE**2, rtol=1e-6)
    np.testing.assert_allclose(mean, CENTRE, atol=1e-6)


def test_many_degrees_of_freedom_are_a_normal_prior():
    information, linear = likelihood(3.0)
    many, normal = (moments(Model(CENTRE, SCALE, df), information, linear) for df in (1e6, None))
    np.testing.assert_allclose(many[0], normal[0], rtol=1e-4)
    np.testing.assert_allclose(many[1], normal[1], rtol=1e-4)
